"""The step context: what a skill calls ``cx``.

Owns ordinals, the latch (P12) and the small local effects. Refuses a call from another task or thread than the step's.
Invariant: the n-th call of a step's phase has ordinal n on every walk, so that history is found by place.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import trio

from agentplane.authoring.effect import Effect
from agentplane.authoring.proposal import Decision, Proposal
from agentplane.authoring.raising import EffectFailed
from agentplane.authoring.types import Call, CallDescription
from agentplane.authoring.waiting import Event
from agentplane.core import bounds
from agentplane.core.effects import REVERSAL_BIT, Phase
from agentplane.core.errors import AgentplaneError, InvalidRequest
from agentplane.core.history import Spot
from agentplane.core.recovery import Mode
from agentplane.core.retry import RetryPolicy
from agentplane.engine import approvals, awaiting, deadlines, sleeping, tasking
from agentplane.engine.cases import CaseHandle
from agentplane.engine.dispatch import Bound, Dispatcher, bind
from agentplane.engine.groups import Groups, Opening
from agentplane.engine.guard import IN_STEP
from agentplane.engine.live import LiveRun
from agentplane.engine.stops import Divergence, Dropped, Quarantine, Stop
from agentplane.engine.world import World

E = TypeVar("E", bound=BaseException)
CHANGED = "agentplane.changed"
CHECKPOINT_S = 0.001
"""How long a step may be served from its history without letting anybody else run."""
SEVEREST_FIRST = (Divergence, Dropped, Quarantine, Stop)
"""Before every failure: what was stopped has no record, and code that went on past it would leave a hole."""


def _local(kind: str, body: Any) -> Effect:
    return Effect(
        kind, body, mutates=False, recovery=Mode.RETRY, key_window_s=0, retry=RetryPolicy(), timeout_s=5, settle_s=0,
        local=True, secrets=(),
    )  # fmt: skip


class StepContext:
    """One step's phase of one run; ``Step`` in the public types."""

    def __init__(
        self, live: LiveRun, step: int, phase: Phase = Phase.forward, dispatcher: Dispatcher | None = None
    ) -> None:
        self.live = live
        self.step = step
        self.phase = phase
        self.dispatcher = dispatcher or Dispatcher(live, step, phase)
        self._ordinal = 0
        self.latched: BaseException | None = None
        self._task: trio.lowlevel.Task | None = None
        self._open = True
        self._busy = False
        self._checkpoint_by = 0.0
        self.groups = Groups(self)

    @property
    def run(self) -> str:
        return self.live.run

    def begin(self) -> None:
        """Bind the context to the task that executes the step."""
        self._task = trio.lowlevel.current_task()

    def close(self) -> None:
        self._open = False

    def diverged(self, ended: str) -> None:
        """P17: raises Divergence when the code left a recorded place of this step's phase unasked."""
        for series in self.live.history.of_step(self.step, self.phase):
            ordinal = series.spot.ordinal
            # A reversal belongs to the end of its group, which may come behind the step's own.
            if self._ordinal <= ordinal < REVERSAL_BIT:
                raise Divergence(
                    f"step {self.step}, {self.phase.wire}, ordinal {ordinal}: recorded "
                    f"{series.first.descriptor.kind}, and the code {ended} without asking for it",
                    series.spot,
                )

    # --- the public calls --------------------------------------------------------------------------------------------

    async def do(self, call: CallDescription, *, approval: Decision | None = None) -> Any:
        """``approval``: the decision of ``cx.task`` that this very call acts on, once."""
        self.enter()
        if approval is not None:
            return await self._approved(call, approval)
        bound = bind(call)
        self.groups.refuse_beside(bound.call.effect)
        spot = self.take()
        series = self.live.history.series.get(spot)
        if series is None or not series.plainly_done():
            return await self.one(spot, bound)
        try:
            served, output = self.dispatcher.served(series, bound)
        except Divergence as divergence:
            raise self.latching(divergence) from None
        if not served:
            return await self.one(spot, bound)
        # Nothing is done and nobody is waited for: letting others run once a millisecond is enough (W8). The skill's
        # own scopes are heard at every call, as they were when it was made.
        if time.monotonic() >= self._checkpoint_by:
            await self._checkpoint()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
        return output

    async def _approved(self, call: CallDescription, decision: Decision) -> Any:
        bound, approved = approvals.bound_to(self, call, decision)
        self.groups.refuse_beside(bound.call.effect)
        spot = self.take()
        approvals.at_one_place(self, spot, approved)
        self.dispatcher.approval = approved
        try:
            return await self.one(spot, bound)
        finally:
            self.dispatcher.approval = None

    async def gather(self, *calls: CallDescription) -> list[Any]:
        """Ordinals in argument order. Raises the most severe ending, then the one of the lowest ordinal (P10)."""
        self.enter()
        if len(calls) > bounds.GATHER_MAX:
            raise InvalidRequest(f"A gather takes at most {bounds.GATHER_MAX} calls; {len(calls)} were given.")
        bound = [bind(call) for call in calls]
        spots = [self.take() for _ in bound]
        for one in bound:
            self.groups.refuse_beside(one.call.effect)
        results: list[Any] = [None] * len(bound)
        endings: list[BaseException | None] = [None] * len(bound)

        async def member(index: int) -> None:
            try:
                results[index] = await self.dispatcher.perform(spots[index], bound[index])
            except (Stop, EffectFailed, AgentplaneError) as ending:
                # A value, not an exception in a nursery: nobody is cancelled because a sibling failed.
                endings[index] = ending

        self.same_as_recorded(spots, bound)
        # The members' nursery is shielded from the skill's own scopes: a timeout there cuts no act.
        token = IN_STEP.set(None)
        self._busy = True
        try:
            with self.live.act_scope() as scope:
                if self.live.is_serial:
                    # A ceiling on spend may be overshot by one operation of a step, so no two of it are in flight.
                    for index in range(len(bound)):
                        await member(index)
                else:
                    async with trio.open_nursery() as nursery:
                        for index in range(len(bound)):
                            nursery.start_soon(member, index)
        finally:
            self._busy = False
            IN_STEP.reset(token)
        await self._heed(scope)
        worst = _worst(endings)
        if worst is not None:
            raise self.latching(worst)
        await trio.lowlevel.checkpoint()
        return results

    async def sleep(self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> int:
        """Wait that long from a recorded now, without running; the instant that was waited for, ms UTC."""
        return await sleeping.sleep(self, ((days * 24 + hours) * 60 + minutes) * 60 + seconds)

    async def sleep_until(self, instant: int | datetime) -> int:
        """Wait until ``instant`` (ms UTC, or an aware datetime), without running."""
        return await sleeping.sleep_until(self, instant)

    async def event(
        self, kind: str, *, correlation: Mapping[str, str], deadline: str | None = None,
        until: int | datetime | None = None, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0,
        sender: str | None = None,
    ) -> Event:  # fmt: skip
        """Wait for a message about all of ``correlation``, without running. Raises WaitTimedOut."""
        total_s = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
        return await awaiting.event(
            self, kind, correlation, deadline=deadline, until=until, within_s=total_s or None, sender=sender
        )

    async def task(self, proposal: Proposal) -> Decision:
        """Wait until a person has decided, or the window is over, without running."""
        return await tasking.task(self, proposal)

    async def deadline(self, name: str, **rule: Any) -> int:
        """Register an obligation through a calendar; when it is due, ms UTC."""
        return await deadlines.deadline(self, name, **rule)

    async def met(self, name: str) -> bool:
        """The obligation was met; False where it had been breached, or given up, before."""
        return await deadlines.move(self, name, "met")

    async def waive(self, name: str) -> bool:
        """Nobody waits for the obligation any more; False where it had ended before."""
        return await deadlines.move(self, name, "cancelled")

    @property
    def case(self) -> CaseHandle:
        return CaseHandle(self)

    def group(self, name: str, resources: Sequence[str]) -> Opening:
        """Open an effect group over ``resources``: awaited, or entered with ``async with``."""
        return Opening(self.groups, name, resources)

    async def now(self) -> int:
        return int(await self.do(NOW()))

    async def uuid(self) -> str:
        return str(await self.do(UUID()))

    async def random(self) -> float:
        return float(await self.do(RANDOM()))

    async def changed(self, name: str) -> bool:
        """P18: the place is taken only by a run that reaches it fresh, or that recorded it."""
        self.enter()
        history = self.live.history
        here = history.series.get(Spot(self.step, self.phase, self._ordinal))
        if here is not None:
            descriptor = here.first.descriptor
            if descriptor.kind != CHANGED or descriptor.args != {"name": name}:
                await trio.lowlevel.checkpoint()
                return False
        elif self.live.strict and self.step not in self.live.going_on:
            # A history that has ended passed this place without it.
            await trio.lowlevel.checkpoint()
            return False
        return bool(await self.one(self.take(), bind(CHANGED_HERE(name=name))))

    # --- for what stands on a call of the step -----------------------------------------------------------------------

    async def within(self, body: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        """Await ``body`` as a call of this context: shielded from the skill's scopes, cut when the run is (P11)."""
        token = IN_STEP.set(None)
        self._busy = True
        result: object = None
        try:
            with self.live.act_scope() as scope:
                result = await body(*args)
        except Stop as stop:
            raise self.latching(stop) from None
        finally:
            self._busy = False
            IN_STEP.reset(token)
        await self._heed(scope)
        return result

    # --- inside ------------------------------------------------------------------------------------------------------

    async def one(self, spot: Spot, bound: Bound) -> Any:
        token = IN_STEP.set(None)
        self._busy = True
        waited = spot not in self.live.history.series
        output: object = None
        try:
            # Nothing of the skill's own scopes reaches into a call: what it began is recorded and decided (P11).
            with self.live.act_scope() as scope:
                output = await self.dispatcher.perform(spot, bound)
        except Stop as stop:
            raise self.latching(stop) from None
        finally:
            self._busy = False
            IN_STEP.reset(token)
        await self._heed(scope)
        # Every cx call is a checkpoint (W8), also one that never had to wait.
        if waited and not bound.call.effect.local:
            # The announcement was waited for; what is left of a checkpoint is to hear the skill's own scopes.
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            await self._checkpoint()
        return output

    async def _checkpoint(self) -> None:
        await trio.lowlevel.checkpoint()
        self._checkpoint_by = time.monotonic() + CHECKPOINT_S

    async def _heed(self, scope: trio.CancelScope) -> None:
        """After a call in which the run was cut, no other begins, whatever the skill does with the cancellation."""
        if scope.cancelled_caught:
            self.latch(self.live.cut_off())
            await trio.lowlevel.checkpoint()
            raise self.live.cut_off()

    def same_as_recorded(self, spots: list[Spot], bound: list[Bound]) -> None:
        """A member that diverged stops the whole gather before a member beside it is performed (P17)."""
        for spot, one in zip(spots, bound, strict=True):
            series = self.live.history.series.get(spot)
            if series is not None:
                try:
                    self.dispatcher.same(series, one)
                except Divergence as divergence:
                    raise self.latching(divergence) from None

    def take(self) -> Spot:
        spot = Spot(self.step, self.phase, self._ordinal)
        self._ordinal += 1
        return spot

    @property
    def next_spot(self) -> Spot:
        """The place that the next call takes."""
        return Spot(self.step, self.phase, self._ordinal)

    def latching(self, ending: E) -> E:
        """``ending``, latched when it is a stop (P12)."""
        if isinstance(ending, Stop) and self.latched is None:
            self.latched = ending
        return ending

    def latch(self, stop: BaseException) -> None:
        """Stop the step from outside its calls (a guard's refusal)."""
        if self.latched is None:
            self.latched = stop

    def enter(self) -> None:
        if not self._open:
            raise InvalidRequest("The step has ended; its context cannot be used any more.")
        if self.latched is not None:
            raise self.latched
        if self.live.is_cut:
            raise self.latching(self.live.cut_off())
        try:
            here = trio.lowlevel.current_task()
        except RuntimeError:
            here = None
        if here is not self._task:
            raise InvalidRequest(
                "cx may be used only by the task that the step was given to; use cx.gather for work side by side."
            )
        if self._busy:
            raise InvalidRequest(
                "cx is in use by a call that has not ended; what an effect does is not a step's business."
            )


async def _now(call: Call) -> int:
    return int(_world(call).now_ms())


async def _new_uuid(call: Call) -> str:
    return str(_world(call).uuid())


async def _some_random(call: Call) -> float:
    return float(_world(call).random())


async def _named(call: Call, *, name: str) -> bool:
    return True


def _world(call: Any) -> World:
    """What the plane's own effects read; an author's have no way to it."""
    world: World = call._world
    return world


NOW = _local("clock.now", _now)
UUID = _local("agentplane.uuid", _new_uuid)
RANDOM = _local("agentplane.random", _some_random)
CHANGED_HERE = _local(CHANGED, _named)


def _worst(endings: list[BaseException | None]) -> BaseException | None:
    def rank(ending: BaseException) -> int:
        return next((at for at, kind in enumerate(SEVEREST_FIRST) if isinstance(ending, kind)), len(SEVEREST_FIRST))

    found = [ending for ending in endings if ending is not None]
    worst = min(found, key=rank) if found else None
    return worst.naming_all(found) if isinstance(worst, Quarantine) else worst
