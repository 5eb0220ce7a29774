"""Who moves time: the offset of the appliance's clock, and when it may be moved.

Owns the file and the question whether anything is in flight, in doubt or due. Refuses to move time while a run
executes, while the provider has a request or a commit before it, or while something that is due was not done.
Invariant: what was due before a step was done before it, so that a step never makes anything late that was not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from agentplane.core.errors import AgentplaneError
from agentplane.journal import lists, obligations, timers
from agentplane.journal.store import read_only
from agentplane.journal.tx import Tx
from agentplane.lab import moved_clock
from agentplane.lab.overnight.fixture import CRON, KEPT_S, NIGHTLY, TZ
from agentplane.lab.provider_process import Provider, ProviderFailed
from agentplane.work import events, schedules, tasks
from agentplane.work.cron import Cron

T = TypeVar("T")
BUSY, DUE = "busy", "due"


class Timekeeper:
    """``hold`` keeps every observer point of the appliance from going on until it is called with False."""

    def __init__(self, clock: Path, store: Path, provider: Provider, hold: Callable[[bool], None]) -> None:
        self.clock = clock
        self._store = store
        self._provider = provider
        self._hold = hold
        self._offset_ms = 0
        self._cron = Cron(CRON, TZ)
        self.steps = 0
        moved_clock.write(clock, 0)

    @property
    def now_ms(self) -> int:
        """What the appliance's clock says, ms UTC."""
        return time.time_ns() // 1_000_000 + self._offset_ms

    def step_to(self, at_ms: int, *, over_what_is_due: bool = False) -> str | None:
        """Move time to ``at_ms``, unless it is there. Why it was not moved: BUSY, or DUE (and not done)."""
        ahead_ms = at_ms - self.now_ms
        if ahead_ms <= 0:
            return None
        self._hold(True)
        try:
            why = self._why_not()
            if why == BUSY or (why == DUE and not over_what_is_due):
                return why
            self._offset_ms += ahead_ms
            moved_clock.write(self.clock, self._offset_ms)
            self.steps += 1
            # Whoever is held at a point turns the loop before it does anything that has an end.
            time.sleep(moved_clock.SEEN_S)
        finally:
            self._hold(False)
        return None

    def _why_not(self) -> str | None:
        # The store first: what was sent by a run that it calls suspended has been answered before.
        found = self.standing()
        if found == BUSY:
            return BUSY
        try:
            return (found or None) if self._provider.quiet(0) else BUSY
        except (OSError, ProviderFailed):
            return BUSY

    def standing(self) -> str:
        """BUSY, DUE or nothing, from committed rows; BUSY where there are none yet."""
        found = self.look(self._standing)
        return BUSY if found is None else found

    def _standing(self, tx: Tx) -> str:
        now_ms = self.now_ms
        if lists.count_by_status(tx).get("running"):
            return BUSY
        last_ms = schedules.last(tx, NIGHTLY)
        waits = (
            timers.due(tx, now_ms, 1), obligations.due(tx, now_ms, 1), tasks.overdue(tx, now_ms, 1),
            tasks.undelivered(tx, 1), events.parked(tx, 1), events.has_older(tx, now_ms - KEPT_S * 1000),
            last_ms is None or self._cron.due_between(last_ms, now_ms, 1),
        )  # fmt: skip
        return DUE if any(waits) else ""

    def look(self, body: Callable[[Tx], T]) -> T | None:
        """A read of committed rows, whoever serves; None where there is no store yet."""
        if not self._store.exists():
            return None
        try:
            readers = read_only(self._store)
        except AgentplaneError:
            return None
        try:
            return readers.read(body)
        except AgentplaneError:
            return None
        finally:
            readers.close()
