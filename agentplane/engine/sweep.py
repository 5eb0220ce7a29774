"""What falls due while nobody runs it: timers, and cancels of runs that no process executes.

Owns the tick, a function of ``now``. Refuses to fire anything under a suspect clock, a pause or a drain (L3).
Invariant: a timer's row, the outcome of its wait, the run's new lease and its mark as running change in one unit, so
that a wake is neither lost nor doubled; a tick hands runs to their nursery and awaits none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import msgspec
import trio

from agentplane.core import bounds
from agentplane.core.errors import AgentplaneError, LeaseHeld, NotFound, StoreFailed
from agentplane.core.records import EffectDone
from agentplane.engine.having import has_code
from agentplane.engine.linking import link
from agentplane.engine.runs import Runs
from agentplane.journal import appends, leases, lists, rows, timers
from agentplane.journal.leases import Lease
from agentplane.journal.timers import Timer
from agentplane.journal.tx import Tx

T = TypeVar("T")
TICK_S = 1.0
REARM_MS = 60_000
"""How often runs are looked for that no timer would wake: at start, and then seldom, for there are none."""


class Ticked(msgspec.Struct, kw_only=True):
    """What one tick did: timers fired, runs taken up for a cancel or to be armed again; ``saturated``: more is due than
    one batch."""

    fired: list[str] = []
    cancels: list[str] = []
    rearmed: list[str] = []
    saturated: bool = False


class Sweep:
    """The sweep of one plane. ``halted`` says that nothing may be fired now."""

    def __init__(self, runs: Runs, *, may_run: Callable[[str], bool], halted: Callable[[], bool]) -> None:
        self.runs = runs
        self.may_run = may_run
        self.halted = halted
        self._kick = trio.Event()
        self._rearmed_ms: int | None = None
        self._left: dict[str, float] = {}
        self._lacks: set[str] = set()

    def kick(self) -> None:
        """Look now: something was suspended or asked to stop."""
        self._kick.set()

    async def forever(self) -> None:
        while True:
            self._kick = trio.Event()
            ticked, looked_ms = Ticked(), self.runs.world.now_ms()
            if not self.halted():
                ticked = await self.tick(looked_ms)
            if not ticked.saturated:
                with trio.move_on_after(await self._pause(looked_ms)):
                    await self._kick.wait()

    async def _pause(self, looked_ms: int) -> float:
        """Seconds until the next timer is due, at most a tick. What was due at the last look and was left is looked at
        again in a tick, and not at once."""
        due_ms = await self._read(timers.next_due_ms)
        if due_ms is None or due_ms <= looked_ms:
            return TICK_S
        return min(TICK_S, max(0.001, (due_ms - self.runs.world.now_ms()) / 1000))

    async def tick(self, now_ms: int) -> Ticked:
        """Fire what is due at ``now_ms`` and take up what was asked to stop. Raises StoreFailed."""
        ticked = Ticked()
        if not self.runs.world.clock_suspect:
            await self._fire(now_ms, ticked)
        await self._heed_all(ticked)
        if self._rearmed_ms is None or not 0 <= now_ms - self._rearmed_ms < REARM_MS:
            self._rearmed_ms = now_ms
            now = trio.current_time()
            self._left = {run: until for run, until in self._left.items() if until > now}
            self._lacks &= self._left.keys()
            await self._rearm(ticked)
        return ticked

    async def _rearm(self, ticked: Ticked) -> None:
        """A run that waits and that no timer would wake (a row that was lost, a copy that does not have it) is walked
        to its wait again, which arms it."""
        after = ""
        while True:
            page = await self._read(partial(_unarmed, after=after))
            for run in page:
                if self._may(run) and await self._take(run, partial(self._take_up, run=run)):
                    ticked.rearmed.append(run)
            if len(page) < bounds.RECOVERY_BATCH:
                return
            after = page[-1]

    def _take_up(self, tx: Tx, run: str) -> Lease | None:
        row = lists.get_run(tx, run)
        if row.status != "suspended" or timers.of_run(tx, run) or not self._has_code(tx, run):
            return None
        lease = leases.acquire(tx, run, self.runs.owner, self.runs.opening, self.runs.ttl_ms)
        appends.resumed(tx, run)
        return lease

    def _has_code(self, tx: Tx, run: str) -> bool:
        if has_code(tx, run, self.runs.skills):
            return True
        self._lacks.add(run)
        return False

    async def _fire(self, now_ms: int, ticked: Ticked) -> None:
        after = (-1, "", b"")
        # What may not be fired now (held, without its code) is passed over, so that it never stands before what may.
        while len(ticked.fired) < bounds.RECOVERY_BATCH:
            page = await self._read(partial(_due, now_ms=now_ms, after=after))
            for timer in page:
                if self._may(timer.run) and await self._take(timer.run, partial(self._wake, timer=timer)):
                    ticked.fired.append(timer.run)
            if len(page) < bounds.RECOVERY_BATCH:
                return
            after = (page[-1].due_ms, page[-1].run, page[-1].key)
        ticked.saturated = True

    async def _heed_all(self, ticked: Ticked) -> None:
        after = ""
        while True:
            page = await self._read(partial(_asked, after=after))
            for run in page:
                if self._may(run) and await self._take(run, partial(self._heed, run=run)):
                    ticked.cancels.append(run)
            if len(page) < bounds.RECOVERY_BATCH:
                return
            after = page[-1]

    async def _read(self, body: Callable[[Tx], T]) -> T:
        return await trio.to_thread.run_sync(lambda: self.runs.store.readers.read(body))

    def _may(self, run: str) -> bool:
        runs = self.runs
        if self._left.get(run, 0.0) > trio.current_time():
            return False
        return run not in runs.live and run not in runs.held_out and not runs.acting(run) and self.may_run(run)

    async def _take(self, run: str, unit: Callable[[Tx], Lease | None]) -> bool:
        """Run the unit, and take the run into execution when it got the lease."""
        live = None
        try:
            # Cut between the commit and the beginning, the lease would be left to lapse with nobody behind it.
            with trio.CancelScope(shield=True):
                lease = await self.runs.writer.do(unit)
                if lease is None:
                    if run in self._lacks:
                        # Its code is not here and will not come: asking each second would keep the writer busy.
                        self._left[run] = trio.current_time() + REARM_MS / 1000
                    return False
                live = await self.runs.resume(run, lease)
            return live is not None
        except StoreFailed:
            raise
        except (LeaseHeld, NotFound):
            return False
        except AgentplaneError as error:
            # A head or a chain that does not hold is this run's, and its neighbours' timers go on.
            self.runs.held_out[run] = error
            return False

    def _wake(self, tx: Tx, timer: Timer) -> Lease | None:
        """One unit: the claim of the row, the lease, the outcome of the wait, the mark. None where the run is not
        suspended: its own unit of suspension looks."""
        runs, run = self.runs, timer.run
        row = lists.get_run(tx, run)
        if row.status != "suspended" or not self._has_code(tx, run):
            return None
        if not timers.disarm(tx, run, timer.key):
            return None
        lease = leases.acquire(tx, run, runs.owner, runs.opening, runs.ttl_ms)
        step, phase = rows.place_of(tx, run, timer.key)
        members: dict[str, object] = {"step": step, "effect_key": timer.key.hex(), "output": timer.due_ms}
        if phase is not None:
            members["phase"] = phase
        head = rows.head_of(tx, run)
        appends.append(tx, run, lease.epoch, head, link(run, lease.epoch, head, [(EffectDone, members)], tx.now_ms))
        appends.resumed(tx, run)
        return lease

    def _heed(self, tx: Tx, run: str) -> Lease | None:
        row = lists.get_run(tx, run)
        if row.log_index is not None or row.status not in ("suspended", "failed", "exhausted"):
            return None
        if not self._has_code(tx, run):
            return None
        lease = leases.acquire(tx, run, self.runs.owner, self.runs.opening, self.runs.ttl_ms, progress=True)
        appends.resumed(tx, run)
        return lease


def _due(tx: Tx, now_ms: int, after: tuple[int, str, bytes]) -> list[Timer]:
    return timers.due(tx, now_ms, bounds.RECOVERY_BATCH, after)


def _unarmed(tx: Tx, after: str) -> list[str]:
    return rows.suspended_without_timer(tx, bounds.RECOVERY_BATCH, after)


def _asked(tx: Tx, after: str) -> list[str]:
    return rows.unheard_cancels(tx, bounds.RECOVERY_BATCH, after)
