"""The appliance as the operations see it.

Owns ``status``, ``drain`` and ``reload`` of a serving process. Refuses nothing of its own. Invariant: what it says
of runs comes
from committed rows, what it says of the process from memory.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

from agentplane.appliance.drain import Drain
from agentplane.appliance.notify import Notifier, Webhook, read_secret
from agentplane.appliance.settings import Located
from agentplane.core import bounds, errors
from agentplane.core.build import __version__
from agentplane.core.instants import to_text
from agentplane.core.notices import Found
from agentplane.engine.plane import Plane
from agentplane.journal import lists
from agentplane.journal.room import Room
from agentplane.journal.tx import Tx
from agentplane.surface.access import TokenFile
from agentplane.surface.attention import conditions

SHOWN_MAX = 100
"""Runs named in one answer; the number of them is beside it."""
LIVE_AGE_S = 10.0
"""A unit in hand for longer than this: the writer makes no progress."""


class ApplianceHost:
    """``Host`` of a serving process."""

    serving = True

    def __init__(self, plane: Plane, located: Located, drain: Drain) -> None:
        self.plane: Plane | None = plane
        self._plane = plane
        self._located = located
        self._drain = drain
        self.tokens = TokenFile(located.path("tokens"))
        self.now_ms = plane.world.now_ms
        self.operator_url: str | None = None
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
        counts = await plane.read(lists.count_by_status)
        age_s = plane.writer.oldest_unit_age_s()
        ready = not plane.draining and plane.state.held is None and plane.state.paused is None
        ready = ready and plane.store.room.state is Room.ENOUGH
        return {
            "name": self._located.plane.name,
            "environment": self._located.plane.environment,
            "state": self._state(),
            "build": __version__,
            "pid": os.getpid(),
            "started": to_text(plane.started_ms),
            "store": str(plane.store.path),
            "incarnation": plane.world.incarnation,
            "operator": self.operator_url,
            "live": age_s < LIVE_AGE_S,
            "ready": ready,
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
            "writer_age_s": round(age_s, 3),
            "commits": plane.writer.commits,
            "capabilities": sorted(plane.runs.skills),
            "tokens_fault": self.tokens.fault,
        }

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
        """Read the token file again, whole or not at all. Raises Settings when it cannot be read."""
        self.tokens.reload()
        return {"reloaded": ["tokens"]}

    def hang_up(self) -> None:
        """SIGHUP: a reload whose fault is said in ``status`` and keeps the last good file."""
        with contextlib.suppress(errors.Settings):
            self.tokens.reload()
