"""The appliance as the operations see it.

Owns ``status``, ``drain`` and ``reload`` of a serving process. Refuses nothing of its own. Invariant: what it says
of runs comes
from committed rows, what it says of the process from memory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from agentplane.appliance import credentials, payload, settings
from agentplane.appliance.drain import Drain
from agentplane.appliance.logs import Log
from agentplane.appliance.notify import Notifier, Webhook, read_secret
from agentplane.appliance.settings import Located
from agentplane.core import bounds, errors
from agentplane.core.build import __version__
from agentplane.core.instants import to_text
from agentplane.core.notices import Found
from agentplane.engine.plane import Plane
from agentplane.journal import lists, obligations, schema, timers
from agentplane.journal.room import Room
from agentplane.journal.tx import Tx
from agentplane.surface.access import TokenFile
from agentplane.surface.attention import conditions
from agentplane.work import tasks

SHOWN_MAX = 100
"""Runs named in one answer; the number of them is beside it."""
LIVE_AGE_S = 10.0
"""A unit in hand for longer than this: the writer makes no progress."""


class ApplianceHost:
    """``Host`` of a serving process."""

    serving = True

    def __init__(self, plane: Plane, located: Located, drain: Drain, log: Log | None = None) -> None:
        self.plane: Plane | None = plane
        self._plane = plane
        self._located = located
        self._drain = drain
        self._log = Log(located.plane.log_level) if log is None else log
        self._began = time.monotonic()
        self.tokens = TokenFile(located.path("tokens"))
        self.now_ms = plane.world.now_ms
        self.operator_url: str | None = None
        self.listeners: dict[str, str] = {}
        self.settings_fault: str | None = None
        self._changed: list[str] = []
        self.people = plane.worklist.people
        webhook = Webhook.of(located)
        if webhook is not None:
            # Said at the start, and not by a plane that has told nobody since.
            read_secret(webhook.secret)
        self.notifier = None if webhook is None else Notifier(plane, webhook, self._conditions)

    async def _conditions(self) -> list[Found]:
        found = await conditions(self, bounds.LIST_PAGE)
        return [
            # Subjects that are listed whole are known again; their names stay here.
            Found(
                condition=one["condition"],
                count=one["found"],
                subjects=() if one["unlisted"] else tuple(one["subjects"]),
            )
            for one in found
        ]

    def faults(self) -> dict[str, list[str]]:
        """Conditions of the process itself, by name: of what, and why, each one line."""
        found: dict[str, list[str]] = {}
        if self._plane.clock.why is not None:
            found["clock.suspect"] = [self._plane.clock.why]
        failing = sorted(self._plane.sweep.scheduler.faults.items())
        if failing:
            found["schedule.failing"] = [f"{name}: {why}" for name, why in failing]
        if self.notifier is not None and self.notifier.fault is not None:
            found["notify.failing"] = [self.notifier.fault]
        return found

    async def read(self, body: Callable[[Tx], Any]) -> Any:
        return await self._plane.read(body)

    async def status(self) -> dict[str, Any]:
        plane = self._plane
        counts, due_ms = await plane.read(lambda tx: (lists.count_by_status(tx), _next_due(tx)))
        # 0: a schedule that was never looked at.
        due_ms = min((one for one in (due_ms, plane.sweep.scheduler.next_ms() or None) if one), default=None)
        return {
            "name": self._located.plane.name,
            "environment": self._located.plane.environment,
            "state": self._state(),
            "build": __version__,
            "payload": payload.sha256(),
            "pid": os.getpid(),
            "started": to_text(plane.started_ms),
            "store": str(plane.store.path),
            "incarnation": plane.world.incarnation,
            "level": plane.store.found.level,
            "level_known": schema.LEVEL,
            "uptime_s": round(time.monotonic() - self._began),
            "operator": self.operator_url,
            "listeners": self.listeners,
            "live": self.live(),
            "ready": self.ready(),
            "running": len(plane.runs.live),
            "runs": counts,
            "parked": len(plane.runs.parked),
            "held": plane.state.held,
            "paused": plane.state.paused,
            "clock": plane.clock.why,
            "held_out": {run: error.message for run, error in sorted(plane.runs.held_out.items())[:SHOWN_MAX]},
            "held_out_count": len(plane.runs.held_out),
            "waiting_for_capability": plane.recovery.last.left[:SHOWN_MAX],
            "waiting_for_capability_count": len(plane.recovery.last.left),
            "disk_free": plane.store.room.free,
            "disk": plane.store.room.state.name.lower(),
            "writer_age_s": round(plane.writer.oldest_unit_age_s(), 3),
            "commits": plane.writer.commits,
            "capabilities": sorted(plane.runs.skills),
            "next_due": None if due_ms is None else to_text(due_ms),
            "tokens_fault": self.tokens.fault,
            "settings_fault": self.settings_fault,
            "log_level": self._log.level,
            "log_dropped": self._log.dropped,
        }

    def live(self) -> bool:
        """Whether the writer makes progress; that the loop does is shown by the answer."""
        return self._plane.writer.oldest_unit_age_s() < LIVE_AGE_S

    def ready(self) -> bool:
        """Whether admission is open."""
        plane = self._plane
        is_open = not plane.draining and plane.state.held is None and plane.state.paused is None
        return is_open and plane.store.room.state is Room.ENOUGH

    def _state(self) -> str:
        if self._plane.draining:
            return "draining"
        if self._plane.state.held is not None:
            return "held"
        return "paused" if self._plane.state.paused is not None else "serving"

    async def drain(self, *, now: bool, grace_s: float | None) -> dict[str, Any]:
        already = self._drain.begun.is_set()
        if grace_s is not None and not 0 <= grace_s <= 3600:
            raise errors.InvalidRequest("A grace is between 0 and 3600 seconds.")
        running = sorted(self._plane.runs.live)
        # The answer is sent all the same: what closes the door it goes out of waits for it.
        if now:
            self._drain.end_now()
        else:
            self._drain.begin(grace_s)
        return {
            "draining": True,
            "already_draining": already,
            "pid": os.getpid(),
            "running": running[:SHOWN_MAX],
            "running_count": len(running),
            "mode": self._located.plane.drain_mode,
            "grace_left_s": round(max(0.0, self._drain.left_s()), 1),
        }

    async def reload(self) -> dict[str, Any]:
        """Read the token file and the level of the log again, each whole or not at all. Raises Settings for the first
        that cannot be read; the other is taken all the same."""
        faults = self._read_again()
        if faults:
            raise errors.Settings(faults[0])
        return {"reloaded": ["tokens", "log_level"], "log_level": self._log.level, "needs_restart": self._changed}

    def hang_up(self) -> None:
        """SIGHUP: a reload whose faults are said in ``status`` and in the log, and keep what was read last."""
        faults = self._read_again()
        for sentence in faults:
            self._log.alarm("reload", f"reload: {sentence} What was read last stays.")
        if not faults:
            self._log.tell("reload", f"reloaded: tokens, and the log from {self._log.level} on", level=self._log.level)

    def _read_again(self) -> list[str]:
        found = []
        try:
            why = credentials.open_to_others(self.tokens.path, "The token file", needed=False)
            if why is not None:
                raise errors.Settings(why)
            self.tokens.reload()
        except errors.Settings as error:
            self.tokens.fault = error.message
            found.append(error.message)
        self.settings_fault = self._level_again()
        return [*found, *([] if self.settings_fault is None else [self.settings_fault])]

    def _level_again(self) -> str | None:
        """Take the log's level from plane.toml as it is now, under the same flags and variables; why not, or None."""
        located = self._located
        try:
            if not located.plane.trust_writable:
                open_to = settings.writable_by_others([located.directory / settings.FILE], settings.own_uid())
                if open_to is not None:
                    raise errors.Settings(open_to)
            environ = {settings.ENV + key.upper(): value for key, value in located.environ.items()}
            now = settings.load(located.directory, located.flags, environ).plane
        except errors.Settings as error:
            return error.message
        self._log.level = now.log_level
        before = located.plane
        self._changed = [
            key for key in settings.KEYS if key != "log_level" and getattr(now, key) != getattr(before, key)
        ]
        return None


def _next_due(tx: Tx) -> int | None:
    """When the first timer, obligation or window of a task is due, ms UTC."""
    found = (timers.next_due_ms(tx), obligations.next_due_ms(tx), tasks.next_due_ms(tx))
    return min((one for one in found if one is not None), default=None)
