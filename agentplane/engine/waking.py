"""Ending a wait of a run that is suspended, and taking the run into execution.

Owns the unit "Wake": who may be woken, the lease at epoch + 1, the outcome of the wait, the mark as running. Refuses a
run that somebody executes: what came for it waits for the look in its own suspension. Invariant: the claim of what
ended the wait, the outcome and the lease change in one unit, so that a wake is neither lost nor doubled.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar

import trio

from agentplane.core.errors import AgentplaneError, LeaseHeld, NotFound, StoreFailed
from agentplane.core.records import EffectDone
from agentplane.engine.having import has_code
from agentplane.engine.linking import link
from agentplane.engine.runs import Runs
from agentplane.engine.waits import Ending
from agentplane.journal import appends, leases, lists, rows
from agentplane.journal.leases import Lease
from agentplane.journal.tx import Tx
from agentplane.work import events

T = TypeVar("T")
LEFT_S = 60.0
"""How long a run whose code is not here is not asked for again: it will not come, and asking keeps the writer busy."""


class May(StrEnum):
    """Whether a run's wait may be ended now: yes; later, by the run's own look; or not by this process."""

    NOW = "now"
    LATER = "later"
    NOT_HERE = "not_here"


class Trying:
    """The run that a unit is about to wake: whose fault it is when that cannot be written."""

    def __init__(self) -> None:
        self.run: str | None = None


class Waker:
    """Of one plane. ``may_run`` False: the run is held. ``halted``: nothing may be woken now."""

    def __init__(self, runs: Runs, *, may_run: Callable[[str], bool], halted: Callable[[], bool]) -> None:
        self.runs = runs
        self.may_run = may_run
        self.halted = halted
        self._left: dict[str, float] = {}
        self._lacks: set[str] = set()

    def is_free(self, run: str) -> bool:
        """Whether anything here forbids to take the run, before the store is asked."""
        runs = self.runs
        if self._left.get(run, 0.0) > trio.current_time():
            return False
        return run not in runs.live and run not in runs.held_out and not runs.acting(run) and self.may_run(run)

    def forget_the_left(self) -> None:
        now = trio.current_time()
        self._left = {run: until for run, until in self._left.items() if until > now}
        self._lacks &= self._left.keys()

    # --- inside a unit -----------------------------------------------------------------------------------------------

    def may(self, tx: Tx, run: str) -> May:
        """Asked inside the unit, of the rows that it will change."""
        if self.halted() or not self.may_run(run) or run in self.runs.held_out:
            return May.NOT_HERE
        try:
            row = lists.get_run(tx, run)
        except NotFound:
            return May.NOT_HERE
        if row.status != "suspended":
            return May.LATER
        return May.NOW if self.has_code(tx, run) else May.NOT_HERE

    def has_code(self, tx: Tx, run: str) -> bool:
        """Whether this build can take the run further; one that it cannot is not asked for again for a while."""
        if has_code(tx, run, self.runs.skills):
            return True
        self._lacks.add(run)
        return False

    def wake(self, tx: Tx, run: str, key: bytes, ending: Ending, trying: Trying | None = None) -> Lease:
        """End the wait announced under ``key``, and take the run: the rest of the unit. Raises LeaseHeld."""
        runs = self.runs
        if trying is not None:
            trying.run = run
        if ending.event is not None and not events.consume(tx, ending.event, run, key):
            raise LeaseHeld(f"The event for {run} was claimed meanwhile.", run=run)
        lease = leases.acquire(tx, run, runs.owner, runs.opening, runs.ttl_ms)
        step, phase = rows.place_of(tx, run, key)
        members: dict[str, object] = {"step": step, "effect_key": key.hex()}
        members |= ending.members(runs.world.secrets.handed_out())
        if phase is not None:
            members["phase"] = phase
        head = rows.head_of(tx, run)
        appends.append(tx, run, lease.epoch, head, link(run, lease.epoch, head, [(EffectDone, members)], tx.now_ms))
        appends.resumed(tx, run)
        return lease

    async def do(self, unit: Callable[[Tx, Trying], T]) -> T:
        """Run a unit that may wake a run on its way. A run whose head or chain does not hold is held out, by name, and
        the unit runs again without it: what came from outside is not lost for the sake of one run."""
        while True:
            trying = Trying()
            try:
                # Named after a run: what does not hold of it is no invariant of the writer, leases and log (W9).
                return await self.runs.writer.do(_with(unit, trying), run="")
            except StoreFailed:
                raise
            except AgentplaneError as error:
                if trying.run is None or trying.run in self.runs.held_out:
                    raise
                self.runs.held_out[trying.run] = error

    # --- behind it ---------------------------------------------------------------------------------------------------

    async def begin(self, lease: Lease) -> bool:
        """Execute a run whose lease a unit took; False when its records cannot be trusted (it is held out)."""
        self.runs.world.observe("run.woken", run=lease.run)
        return await self.runs.resume(lease.run, lease) is not None

    async def take(self, run: str, unit: Callable[[Tx], Lease | None]) -> bool:
        """Run the unit, and execute the run when it got the lease."""
        try:
            # Cut between the commit and the beginning, the lease would be left to lapse with nobody behind it.
            with trio.CancelScope(shield=True):
                lease = await self.runs.writer.do(unit, run=run)
                if lease is not None:
                    return await self.begin(lease)
                if run in self._lacks:
                    self._left[run] = trio.current_time() + LEFT_S
        except StoreFailed:
            raise
        except (LeaseHeld, NotFound):
            return False
        except AgentplaneError as error:
            # A head or a chain that does not hold is this run's, and its neighbours' timers go on.
            self.runs.held_out[run] = error
        return False


def _with(unit: Callable[[Tx, Trying], T], trying: Trying) -> Callable[[Tx], T]:
    return lambda tx: unit(tx, trying)
