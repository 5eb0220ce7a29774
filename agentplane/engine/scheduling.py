"""Work that begins by the clock: schedules.

Owns which due instants of a schedule are admitted, and how far it has come. Refuses to admit an instant twice: its
admission key is the schedule's name and the instant. Invariant: an instant is admitted before the schedule moves past
it, so that a kill between the two repeats a key and not the work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from agentplane.core import bounds
from agentplane.core.errors import AgentplaneError, DuplicateAdmission, StoreFailed
from agentplane.core.instants import to_text
from agentplane.core.records import Actor, Basis
from agentplane.engine.admission import Wanted, admit
from agentplane.engine.runs import Runs
from agentplane.work import schedules
from agentplane.work.cron import Cron, missed

if TYPE_CHECKING:
    from agentplane.engine.sweep import Ticked

ADMITTED_A_TICK = 32
"""Runs that one schedule begins in a tick; the rest of what was missed comes with the next."""


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """One ``[[schedule]]``. ``missed``: skip, last or all of the instants that passed while nobody looked."""

    name: str
    cron: Cron
    capability: str
    input: object = None
    correlate: Mapping[str, str] | None = None
    missed: str = "skip"


class Scheduler:
    """Of one plane. ``faults``: the schedules that could not be admitted at the last try, and why."""

    def __init__(
        self, runs: Runs, plan: Sequence[Schedule] = (), *, halted: Callable[[], bool] = lambda: False,
        max_admitted: int = bounds.MAX_ADMITTED,
    ) -> None:  # fmt: skip
        self.halted = halted
        self.runs = runs
        self.plan = list(plan)
        self.max_admitted = max_admitted
        self.faults: dict[str, str] = {}
        self._next: dict[str, int | None] = {}

    async def once(self, now_ms: int, ticked: Ticked) -> None:
        """Admit what is due at ``now_ms``. A schedule that was never seen begins now."""
        for one in self.plan:
            known = self._next.get(one.name, 0)
            if known is None or known > now_ms:
                continue
            try:
                await self._one(one, now_ms, ticked)
                self.faults.pop(one.name, None)
            except StoreFailed:
                raise
            except AgentplaneError as error:
                # Full, paused, low on disk, an input that does not fit: told, and tried again; nothing is passed.
                self.faults[one.name] = error.message
                ticked.schedules_failed.append(one.name)

    def next_ms(self) -> int | None:
        """When the next instant of a schedule is due, as far as is known; 0 where that was never looked at."""
        known = [self._next.get(one.name, 0) for one in self.plan]
        return min((one for one in known if one is not None), default=None)

    async def _one(self, one: Schedule, now_ms: int, ticked: Ticked) -> None:
        last_ms = await self.runs.read(partial(schedules.last, name=one.name))
        if last_ms is None:
            await self._move(one, now_ms)
            return
        found = one.cron.due_between(last_ms, now_ms, bounds.SCHEDULE_MISSED_MAX)
        wanted = missed(one.missed, found, now_ms)
        for due_ms in wanted[:ADMITTED_A_TICK]:
            if self.halted():
                return  # a drain or a pause began in the middle of the tick: the rest is the next process's
            run = await self._admit(one, due_ms)
            if run is not None:
                ticked.admitted.append(run)
            await self._move(one, due_ms)
        if len(wanted) <= ADMITTED_A_TICK and found:
            await self._move(one, found[-1])
        if not found:
            self._next[one.name] = one.cron.next_after(now_ms)

    async def _admit(self, one: Schedule, due_ms: int) -> str | None:
        wanted = Wanted(
            capability=one.capability, input=one.input, key=f"schedule:{one.name}:{to_text(due_ms)}",
            actor=Actor(actor=f"schedule:{one.name}", basis=Basis.ASSERTED),
            correlate=None if one.correlate is None else dict(one.correlate),
        )  # fmt: skip
        try:
            # Cut between the commit and the beginning, a run would stand admitted with nobody to execute it.
            with trio.CancelScope(shield=True):
                admission, _ = await admit(self.runs, wanted, max_admitted=self.max_admitted)
        except DuplicateAdmission:
            return None  # its input was another when the instant was admitted: once is once
        return admission.run if admission.admitted else None

    async def _move(self, one: Schedule, at_ms: int) -> None:
        await self.runs.writer.do(lambda tx: schedules.advance(tx, one.name, at_ms))
        self._next[one.name] = one.cron.next_after(at_ms)


def of_settings(found: Sequence[Any]) -> list[Schedule]:
    """The schedules of ``plane.toml``."""
    return [
        Schedule(
            name=one.name, cron=Cron(one.cron, one.tz), capability=one.capability, input=one.input,
            correlate=one.correlate, missed=one.missed,
        )
        for one in found
    ]  # fmt: skip
