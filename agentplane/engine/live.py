"""One run while it executes in this process.

Owns what its steps share: log, history, gates and the scopes of its acts. Refuses to be shared by two executions.
Invariant: cancelling the run's scope reaches every act, and nothing else does (P11).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any

import trio

from agentplane.core import budget as budgets
from agentplane.core.budget import Budget
from agentplane.core.effects import Phase
from agentplane.core.errors import AgentplaneError, DiskLow
from agentplane.core.history import History, Series
from agentplane.core.instants import from_text
from agentplane.core.records import BudgetReadmitted, BudgetRefused
from agentplane.engine.runlog import RunLog
from agentplane.engine.stops import CancelHeard, Dropped, Exhausted, Parked
from agentplane.engine.world import World
from agentplane.journal.lists import Cancel
from agentplane.journal.tx import Tx

ROOM_POLL_S = 1.0


class Gate:
    """What a drain or an operator says to every run of a plane. ``left_s`` is None while nobody drains."""

    def __init__(self) -> None:
        self.parking = False
        self.deadline: Callable[[], float] | None = None

    @property
    def draining(self) -> bool:
        return self.parking or self.deadline is not None

    def check(self, timeout_s: float) -> None:
        """Raises Parked when an act of ``timeout_s`` may not be begun any more."""
        if self.parking:
            raise Parked("the plane drains")
        if self.deadline is not None and timeout_s > self.deadline():
            raise Parked("the plane drains, and the effect does not fit in what is left")


class ActScope:
    """Entered around whatever one call of ``cx`` does; known to its run for as long, so that the run can cut it."""

    __slots__ = ("_cut", "_known", "_scope")

    def __init__(self, known: set[trio.CancelScope], *, cut: bool) -> None:
        self._known = known
        self._cut = cut
        self._scope = trio.CancelScope(shield=True)

    def __enter__(self) -> trio.CancelScope:
        scope = self._scope
        scope.__enter__()
        if self._cut:
            scope.cancel()
        self._known.add(scope)
        return scope

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._known.discard(self._scope)
        return self._scope.__exit__(kind, error, trace)


class LiveRun:
    """``cancel`` is the side table's row; ``restored`` marks a run admitted before the store was restored."""

    def __init__(self, run: str, log: RunLog, history: History, world: World, gate: Gate, *, restored: bool = False,
                 origin: bytes = b"") -> None:  # fmt: skip
        self.run = run
        self.log = log
        self.history = history
        self.world = world
        self.gate = gate
        self.restored = restored
        self.origin = origin
        self.cancel: Cancel | None = None
        self.strict = False
        self.going_on: frozenset[int] = frozenset()
        """Under strict replay: steps whose history has not ended, so that code may go on behind it."""
        self.unwinding = False
        self.stopping = False
        self.reserved_waits: set[str] = set()
        self.budget = budget_of(history)
        self.ended = trio.Event()
        self._nudge = trio.Event()
        self.scope = trio.CancelScope(shield=True)
        self.check_room: Callable[[], None] = lambda: None
        self.check_sql: Callable[[Any], None] = lambda statement: None
        self.read_blob: Callable[[bytes], Awaitable[object]]
        self.read: Callable[[Callable[[Tx], Any]], Awaitable[Any]]
        self._acts: set[trio.CancelScope] = set()
        self._cut = False

    @property
    def case(self) -> str | None:
        """The case that the run is bound to."""
        return None if self.history.case is None else self.history.case.case

    def act_scope(self) -> ActScope:
        """A scope shielded from the skill's own timeouts, cut when the run's is."""
        return ActScope(self._acts, cut=self._cut)

    async def relay(self) -> None:
        """Runs beside the steps: a cancellation from outside reaches the run through here, and only through here."""
        try:
            await trio.sleep_forever()
        finally:
            self.stop()

    def stop(self) -> None:
        """Cut the run where it stands: writes nothing, exactly as if the process had died here.

        It is known to be cut before any code of it sees the cancellation, so that a ``finally`` announces nothing.
        """
        self._cut = True
        self.scope.cancel()
        for scope in list(self._acts):
            scope.cancel()

    @property
    def is_cut(self) -> bool:
        return self._cut

    def cut_off(self) -> Dropped:
        """What a step of a cut run is stopped with."""
        return Dropped(self.log.latched or AgentplaneError("The run was cut."))

    def interrupt(self) -> None:
        """Wake whatever waits between attempts, so that it hears a cancel or a drain."""
        self._nudge.set()
        self._nudge = trio.Event()

    async def pause(self, seconds: float, timeout_s: float, *, deaf: bool = False) -> None:
        """Wait between attempts, at a boundary: whatever interrupts is heard, and what may not be heeded (a cancel,
        when ``deaf``) does not shorten the wait. Raises the stops, and Parked when an act of ``timeout_s`` does not fit
        any more."""
        deadline = trio.current_time() + seconds
        self.log.flush()
        while True:
            self.hear_cancel(deaf=deaf)
            self.gate.check(timeout_s)
            with trio.move_on_at(deadline) as waited:
                await self._nudge.wait()
            if waited.cancelled_caught or trio.current_time() >= deadline:
                break
        self.hear_cancel(deaf=deaf)
        self.gate.check(timeout_s)

    async def room(self, *, deaf: bool = False) -> None:
        """For what is announced and done at once: the mark that another announcement meets in its unit."""
        while True:
            try:
                self.check_room()
                return
            except DiskLow:
                await self.wait_for_room(deaf=deaf)

    async def wait_for_room(self, *, deaf: bool = False) -> None:
        """A full disk is a state: the run waits at its boundary, where a cancel is heard, and a drain parks it."""
        await self.pause(ROOM_POLL_S, float("inf") if self.gate.draining else 0.0, deaf=deaf)

    # --- ceilings ----------------------------------------------------------------------------------------------------

    def parallel_steps(self) -> int | None:
        """How many steps may run side by side; None: all that are ready."""
        return None if self.budget is None else self.budget.max_parallel_steps

    @property
    def is_serial(self) -> bool:
        """Whether a step may have one effect in flight at most (a ceiling on spend)."""
        return self.budget is not None and budgets.serial(self.budget)

    def release_waits(self) -> None:
        """The run does not suspend on the waits that its steps reached: what was not announced takes no slot."""
        for key in self.reserved_waits:
            if key not in self.history.by_key:
                self.history.ledger.unreserve_effect()
        self.reserved_waits.clear()

    def admit_step(self, step: int) -> None:
        """Raises Exhausted when the run may not begin another step."""
        self.ask_budget("step", step)

    def reading_s(self) -> int | None:
        """The clock's reading, where a ceiling on time asks for one with every announcement."""
        if self.budget is None or self.budget.max_wallclock_s is None:
            return None
        return self.world.now_ms() // 1000

    def ask_budget(
        self, what: budgets.What, step: int, phase: Phase = Phase.forward, ordinal: int | None = None,
        now_s: int | None = None,
    ) -> None:  # fmt: skip
        """Hold what is asked at this place against the ceilings that are in force now; what was recorded before is not
        asked again. A refusal that does not stand any more is readmitted, and says so. Raises Exhausted."""
        if self.budget is None:
            return
        place = (step, phase, ordinal)
        refused = None if place in self.history.readmitted else self.history.refused.get(place)
        found = budgets.verdict(self.history.ledger, self.budget, what, now_s)
        members: dict[str, object] = {"step": step, "ordinal": ordinal}
        if phase is not Phase.forward:
            members["phase"] = phase.wire
        if found is not None:
            if refused is None or (refused.limit, refused.allowed) != (found.limit, found.allowed):
                self.log.ride((BudgetRefused, members | {
                    "limit": found.limit, "allowed": found.allowed, "used": found.used,
                }), linger=False)  # fmt: skip
            raise Exhausted(found)
        if refused is not None:
            self.log.ride((BudgetReadmitted, members | {"limit": refused.limit}))

    def announced_since_restore(self, series: Series | None) -> bool:
        """Whether this series was decided once already after the store was restored."""
        restored_ms = self.world.restored_ms
        if series is None or restored_ms is None:
            return False
        return any(from_text(trial.started.at) >= restored_ms for trial in series.trials)

    def hear_cancel(self, *, deaf: bool = False) -> None:
        """P15: at a boundary. ``deaf``: what is under way here undoes, or settles a doubt, and a cancel waits for it.
        Raises CancelHeard, and Dropped once cut."""
        if self._cut:
            raise self.cut_off()
        if deaf or self.unwinding:
            return
        if self.cancel is not None:
            raise CancelHeard(self.cancel.reason)
        if self.stopping:
            raise CancelHeard("a sibling failed")


def budget_of(history: History) -> Budget | None:
    """The ceilings in force: those of the admission, as a person raised them since. None: there are none."""
    given = history.admitted.budget if history.admitted is not None else None
    if not given:
        return None
    ceilings = dict(given)
    for raised in history.raised:
        ceilings |= raised.ceilings
    return budgets.from_data(ceilings)
