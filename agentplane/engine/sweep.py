"""What falls due while nobody runs it.

Owns the tick, a function of ``now``, and the order of its passes: obligations, tasks, deliveries that were left, dead
letters, timers, schedules, cancels, and runs that nothing would wake. Refuses to fire what depends on time under a
suspect clock, and anything at all under a pause or a drain (L3); in a restored store that is held it wakes the runs
that were let go and does nothing else. Invariant: each pass takes a bounded batch in units of a few rows, and says when
more was due; a tick hands runs to their nursery and awaits none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import msgspec
import trio

from agentplane.core import bounds, ids
from agentplane.core.history import AWAIT, SLEEP
from agentplane.engine.duties import Duties
from agentplane.engine.redelivery import Redelivery
from agentplane.engine.runs import Runs
from agentplane.engine.scheduling import Scheduler
from agentplane.engine.waits import Ending, came, time_is_up
from agentplane.engine.waking import May, Waker
from agentplane.journal import appends, leases, lists, obligations, rows, subscriptions, timers
from agentplane.journal.leases import Lease
from agentplane.journal.timers import Timer
from agentplane.journal.tx import Tx
from agentplane.work import events, tasks

T = TypeVar("T")
TICK_S = 1.0
EVERY_S = 30.0
"""How often everything is looked at that nobody announced: what is due is looked at when it is."""
REARM_MS = 60_000
"""How often runs are looked for that nothing would wake: at start, and then seldom, for there are none."""


class Saturated(msgspec.Struct, kw_only=True):
    """Which passes came back full: at least their batch was waiting, never all there was."""

    timers: bool = False
    deadlines: bool = False
    tasks: bool = False
    redeliveries: bool = False
    dead_letters: bool = False

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in self.__struct_fields__)


class Ticked(msgspec.Struct, kw_only=True):
    """What one tick did. ``fired``: runs whose timer came; ``cancels``, ``rearmed``: runs taken up to be stopped, or to
    arm their wait again; ``record``: the sealed run that holds what was decided, when anything was."""

    fired: list[str] = []
    cancels: list[str] = []
    rearmed: list[str] = []
    redelivered: list[str] = []
    warned: int = 0
    breached: int = 0
    tasks_expired: int = 0
    tasks_escalated: int = 0
    dead_lettered: int = 0
    not_applied: int = 0
    admitted: list[str] = []
    schedules_failed: list[str] = []
    records: list[str] = []
    full: Saturated = msgspec.field(default_factory=Saturated)

    @property
    def saturated(self) -> bool:
        return bool(self.full)

    @property
    def needs_attention(self) -> bool:
        """What a person should see: a promise that was broken, a window that nobody answered in, a message that reached
        nobody, work that does not fit in a tick."""
        return bool(
            self.breached or self.tasks_expired or self.dead_lettered or self.schedules_failed or self.saturated
        )


class Sweep:
    """The sweep of one plane."""

    def __init__(
        self, waker: Waker, duties: Duties, redelivery: Redelivery, scheduler: Scheduler, every_s: float = EVERY_S, *,
        held: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        self.every_s = every_s
        self.held = held
        self.waker = waker
        self.runs: Runs = waker.runs
        self.duties = duties
        self.redelivery = redelivery
        self.scheduler = scheduler
        self.last = Ticked()
        self._kick = trio.Event()
        self._rearmed_ms: int | None = None

    def kick(self) -> None:
        """Look now: something was suspended or asked to stop."""
        self._kick.set()

    async def forever(self) -> None:
        while True:
            self._kick = trio.Event()
            ticked, looked_ms = Ticked(), self.runs.world.now_ms()
            if not self.waker.halted():
                ticked = await self.tick(looked_ms)
            if not ticked.saturated:
                with trio.move_on_after(await self._pause(looked_ms)):
                    await self._kick.wait()

    async def _pause(self, looked_ms: int) -> float:
        """Seconds until the next thing is due, at most the period. What was due at the last look and was left is looked
        at again in a second, and not at once."""
        due_ms = min(await self.runs.read(_next_due), self.scheduler.next_ms() or ids.MAX_MS)
        if due_ms <= looked_ms:
            return min(TICK_S, self.every_s)
        return min(self.every_s, max(0.001, (due_ms - self.runs.world.now_ms()) / 1000))

    async def tick(self, now_ms: int) -> Ticked:
        """Do what is due at ``now_ms``. Raises StoreFailed."""
        ticked = Ticked()
        trusted = not self.runs.world.clock_suspect
        # The original of a held store may have kept its promises and asked its people: that is not for a copy to say.
        whole = trusted and not self.held()
        if whole:
            await self.duties.obligations(now_ms, ticked)
            await self.duties.tasks(now_ms, ticked)
        await self.redelivery.once(ticked)
        if whole:
            await self.redelivery.age_out(now_ms, ticked)
        if trusted:
            await self._fire(now_ms, ticked)
        if whole:
            await self.scheduler.once(now_ms, ticked)
        await self._heed_all(ticked)
        if self._rearmed_ms is None or not 0 <= now_ms - self._rearmed_ms < REARM_MS:
            self._rearmed_ms = now_ms
            self.waker.forget_the_left()
            await self._rearm(ticked)
        self.last = ticked
        return ticked

    # --- runs that nothing would wake --------------------------------------------------------------------------------

    async def _rearm(self, ticked: Ticked) -> None:
        """A run that waits and that nothing would wake (a row that was lost, a copy that does not have it) is walked
        to its wait again, which arms it."""
        await self._each(_unarmed, self._take_up, ticked.rearmed)

    def _take_up(self, tx: Tx, run: str) -> Lease | None:
        if not rows.is_unarmed(tx, run) or self.waker.may(tx, run) is not May.NOW:
            return None
        lease = leases.acquire(tx, run, self.runs.owner, self.runs.opening, self.runs.ttl_ms)
        appends.resumed(tx, run)
        return lease

    async def _heed_all(self, ticked: Ticked) -> None:
        await self._each(_asked, self._heed, ticked.cancels)

    def _heed(self, tx: Tx, run: str) -> Lease | None:
        row = lists.get_run(tx, run)
        if row.log_index is not None or row.status not in ("suspended", "failed", "exhausted"):
            return None
        if not self.waker.has_code(tx, run):
            return None
        lease = leases.acquire(tx, run, self.runs.owner, self.runs.opening, self.runs.ttl_ms, progress=True)
        appends.resumed(tx, run)
        return lease

    async def _each(
        self, page_of: Callable[[Tx, str], list[str]], unit: Callable[[Tx, str], Lease | None], taken: list[str]
    ) -> None:
        """Every run of a list by id, taken by ``unit`` where it gets the lease."""
        after = ""
        while True:
            page = await self.runs.read(_behind(page_of, after))
            for run in page:
                if self.waker.is_free(run) and await self.waker.take(run, _behind(unit, run)):
                    taken.append(run)
            if len(page) < bounds.RECOVERY_BATCH:
                return
            after = page[-1]

    # --- timers ------------------------------------------------------------------------------------------------------

    async def _fire(self, now_ms: int, ticked: Ticked) -> None:
        after = (-1, "", b"")
        # What may not be fired now (held, without its code) is passed over, so that it never stands before what may.
        while len(ticked.fired) < bounds.SWEEP_TIMERS:
            page = await self.runs.read(partial(_due, now_ms=now_ms, after=after))
            for timer in page:
                if self.waker.is_free(timer.run) and await self.waker.take(timer.run, partial(self._wake, timer=timer)):
                    ticked.fired.append(timer.run)
            if len(page) < bounds.RECOVERY_BATCH:
                return
            after = (page[-1].due_ms, page[-1].run, page[-1].key)
        ticked.full.timers = True

    def _wake(self, tx: Tx, timer: Timer) -> Lease | None:
        """One unit: the claim of the row, the lease, the outcome of the wait, the mark. None where the run is not
        suspended: its own unit of suspension looks."""
        if self.waker.may(tx, timer.run) is not May.NOW:
            return None
        ending = self._came_before(tx, timer) if timer.waits_for_event else None
        if not timers.disarm(tx, timer.run, timer.key):
            return None
        kind = AWAIT if timer.waits_for_event else SLEEP
        return self.waker.wake(tx, timer.run, timer.key, ending or time_is_up(kind, timer.due_ms))

    def _came_before(self, tx: Tx, timer: Timer) -> Ending | None:
        """What came before the time that is over, while nothing could be woken."""
        for waiter in subscriptions.of_run(tx, timer.run):
            if waiter.key == timer.key:
                event = events.oldest(tx, waiter.kind, waiter.keys, waiter.sender)
                return None if event is None else came(event)
        return None


def _behind(body: Callable[[Tx, str], T], one: str) -> Callable[[Tx], T]:
    return lambda tx: body(tx, one)


def _next_due(tx: Tx) -> int:
    """When the first timer, obligation or window of a task is due, ms UTC; far ahead where there is none."""
    found = (timers.next_due_ms(tx), obligations.next_due_ms(tx), tasks.next_due_ms(tx))
    return min((one for one in found if one is not None), default=ids.MAX_MS)


def _due(tx: Tx, now_ms: int, after: tuple[int, str, bytes]) -> list[Timer]:
    return timers.due(tx, now_ms, bounds.RECOVERY_BATCH, after)


def _unarmed(tx: Tx, after: str) -> list[str]:
    return rows.suspended_without_timer(tx, bounds.RECOVERY_BATCH, after)


def _asked(tx: Tx, after: str) -> list[str]:
    return rows.unheard_cancels(tx, bounds.RECOVERY_BATCH, after)
