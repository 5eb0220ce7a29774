"""Effect groups: several calls of one step that take together, or are taken back together.

Owns a group while its step walks: its members, the reversal that each one's real output gave, and the carrying out of
what ``core.groups`` decides. Refuses a member outside of the footprint, a mutation beside an open group, and a
reversal that is no call. Invariant: a group commits by ``commit`` and by nothing else; every member and every reversal
goes the way of any effect, so that a re-walk rebuilds the group from the journal and performs nothing twice.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import trio

from agentplane.authoring.effect import Effect
from agentplane.authoring.group import Invariant
from agentplane.authoring.raising import EffectFailed, GroupAborted, GroupForgotten, OutsideFootprint, OutsideGroup
from agentplane.authoring.sql import SqlDescription
from agentplane.authoring.types import CallDescription
from agentplane.core import bounds
from agentplane.core.dispositions import Disposition
from agentplane.core.effects import REVERSAL_BIT, Phase
from agentplane.core.errors import AgentplaneError, InvalidRequest
from agentplane.core.groups import (
    Abort,
    Ended,
    InDoubt,
    Member,
    Refused,
    Release,
    Role,
    Settle,
    Settlement,
    Transact,
    decide_commit,
    decide_settle,
    member_refused,
    reversals,
)
from agentplane.core.history import GroupSpot, History, Series, Spot
from agentplane.core.records import EffectFailed as FailedRecord
from agentplane.core.records import GroupOpened, GroupSettled
from agentplane.core.recovery import Age, Repeat, decide_recovery, in_doubt
from agentplane.engine.atomics import same, transact
from agentplane.engine.dispatch import REVERSAL, Bound, bind
from agentplane.engine.stops import Divergence, Quarantine, Stop

if TYPE_CHECKING:
    from agentplane.engine.context import StepContext

Undo = CallDescription | Callable[[Any], CallDescription]


class Held:
    """One member as its step knows it: where it stands, what it asks, and what takes it back."""

    __slots__ = ("ask", "ordinal", "resource", "reversal", "role")

    def __init__(self, role: Role, resource: str, ordinal: int, ask: Bound | SqlDescription) -> None:
        self.role = role
        self.resource = resource
        self.ordinal = ordinal
        self.ask = ask
        self.reversal: Bound | None = None


class Groups:
    """The groups of one step's phase: at most one is open."""

    def __init__(self, cx: StepContext) -> None:
        self.cx = cx
        self.opened: Group | None = None
        self._count = 0

    async def open(self, name: object, resources: object) -> Group:
        """Raises InvalidRequest for a name or a footprint that is none, and while another group is open."""
        cx = self.cx
        cx.enter()
        if self.opened is not None:
            raise InvalidRequest(f"The group {self.opened.name!r} of this step is open: settle it first.")
        group = Group(cx, *_footprint(name, resources), self._count)
        self._count += 1
        try:
            group.open()
        except Stop as stop:
            raise cx.latching(stop) from None
        self.opened = group
        await trio.lowlevel.checkpoint()
        return group

    def enter(self, group: Group) -> None:
        """Raises InvalidRequest when ``group`` is not the open one, and what a call of ``cx`` raises."""
        self.cx.enter()
        if self.opened is not group:
            raise InvalidRequest(f"The group {group.name!r} is settled; open another for what comes behind it.")

    def close(self) -> None:
        self.opened = None
        self.cx.dispatcher.deaf = False

    def refuse_beside(self, effect: Effect) -> None:
        """Raises OutsideGroup for a mutation while a group of the step is open."""
        if self.opened is not None and effect.mutates:
            raise OutsideGroup(self.opened.name, effect.kind)


def _footprint(name: object, resources: object) -> tuple[str, tuple[str, ...]]:
    named = tuple(resources) if isinstance(resources, list | tuple) else ()
    if (
        isinstance(name, str)
        and all(isinstance(one, str) and 0 < len(one) <= bounds.NAME_CHARS_MAX for one in (name, *named))
        and 0 < len(named) <= bounds.GROUP_MEMBERS_MAX
    ):
        return name, named
    raise InvalidRequest("A group has a name and a list of the resources it touches, each a text.")


class Group:
    """A group that its step holds open. Made by ``cx.group``."""

    def __init__(self, cx: StepContext, name: str, resources: tuple[str, ...], nth: int) -> None:
        self.name = name
        self.resources = resources
        self.members: list[Held] = []
        self._cx = cx
        self._live = cx.live
        self._spot = GroupSpot(cx.step, cx.phase, nth)

    # --- members -----------------------------------------------------------------------------------------------------

    async def reversible(self, resource: str, call: CallDescription, *, undo: Undo) -> Any:
        """Perform ``call`` now. ``undo`` is the call that takes it back, or makes that call from its output."""
        if not callable(undo) and not isinstance(undo, CallDescription):
            raise InvalidRequest("A reversal is a call such as `release(hold=...)`, or a function of the output that "
                                 f"gives one; not {type(undo).__name__}.")  # fmt: skip
        member = self._enrol(Role.REVERSIBLE, resource, call)
        if isinstance(undo, CallDescription):
            member.reversal = bind(undo)
        output = await self._perform(member.ordinal, member.ask, member.role)
        if not isinstance(undo, CallDescription):
            member.reversal = self._captured(member, undo, output)
        return output

    async def read(self, resource: str, call: CallDescription) -> Any:
        """Perform a call that changes nothing, now."""
        member = self._enrol(Role.READ, resource, call)
        return await self._perform(member.ordinal, member.ask, member.role)

    def deferred(self, resource: str, call: CallDescription) -> None:
        """Hold ``call`` back until the group commits; one that is taken back never sends it."""
        self._enrol(Role.DEFERRED, resource, call)

    def atomic(self, resource: str, statement: SqlDescription) -> None:
        """Run ``statement`` in the transaction that ``commit`` opens, with the records that say so. Raises
        InvalidRequest for SQL that may not be a member, before anything runs."""
        if not isinstance(statement, SqlDescription):
            raise InvalidRequest(f"An atomic member is sql(text, *params, rows=N), not {type(statement).__name__}.")
        member = self._enrol(Role.ATOMIC, resource, statement)
        at = Spot(self._spot.step, self._spot.phase, member.ordinal)
        if at not in self._live.history.series:
            # What the journal holds was checked when it was made; its tables may be others since.
            self._live.check_sql(statement)
        try:
            same(self._cx.dispatcher, at, statement)
        except Divergence as divergence:
            raise self._cx.latching(divergence) from None

    # --- endings -----------------------------------------------------------------------------------------------------

    async def commit(self, *invariants: Invariant) -> None:
        """Check what must hold, then let everything become permanent. Raises GroupAborted, with the group taken back,
        when an invariant is false or the first thing to become permanent failed."""
        self._cx.groups.enter(self)
        for one in invariants:
            if not isinstance(one, Invariant):
                raise InvalidRequest(f"commit takes Invariant(name, condition), not {type(one).__name__}.")
        named = [(one.name, one.holds) for one in invariants]
        while True:
            seen = self._seen()
            # Once something is out that nothing takes back, a cancel waits until the group is settled.
            self._cx.dispatcher.deaf = any(member.out for member in seen)
            move = decide_commit(named, seen)
            match move:
                case Refused(why=why):
                    raise InvalidRequest(why)
                case InDoubt(ordinal=ordinal):
                    await self._settle_doubt(ordinal)
                case Abort(detail=detail):
                    await self._take_back(detail + self._why(seen))
                    raise GroupAborted(self.name, self._detail() or detail)
                case Transact(ordinals=ordinals):
                    await self._transact(ordinals)
                case Release(ordinal=ordinal):
                    await self._release(ordinal)
                case Settle(outcome=outcome, detail=detail):
                    self._settle(outcome, None if detail is None else detail + self._why(seen))
                    return

    async def abort(self, reason: str = "abandoned") -> None:
        """Take back what landed; nothing deferred is sent."""
        self._cx.groups.enter(self)
        await self._take_back(reason[: bounds.TEXT_CHARS_MAX])

    async def settle_left_open(self, outcome: str) -> GroupForgotten:
        """The step ended (``outcome``) and the group is open: it is taken back."""
        await self._take_back(f"the step ended {outcome} with the group open")
        return GroupForgotten(self.name)

    # --- inside ------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Record the opening, or find the recorded one. Raises Divergence for another group than the recorded one."""
        recorded = self._live.history.groups.get(self._spot)
        if recorded is None:
            self._live.hear_cancel(deaf=self._cx.dispatcher.deaf)
            members: dict[str, object] = {"step": self._spot.step, "group": self.name, "index": self._spot.nth,
                                          "resources": list(self.resources)}  # fmt: skip
            self._live.log.ride((GroupOpened, self._phased(members)), held=True)
        elif recorded.opened.group != self.name or recorded.opened.resources != list(self.resources):
            raise Divergence(
                f"step {self._spot.step}, group {self._spot.nth}: recorded {recorded.opened.group!r} over "
                f"{recorded.opened.resources}, asked {self.name!r} over {list(self.resources)}"
            )
        self._live.world.observe("group.opened", run=self._live.run, step=self._spot.step, group=self.name)

    def _enrol(self, role: Role, resource: str, ask: Any) -> Held:
        self._cx.groups.enter(self)
        if len(self.members) >= bounds.GROUP_MEMBERS_MAX:
            raise InvalidRequest(f"A group has at most {bounds.GROUP_MEMBERS_MAX} members; open another.")
        bound = bind(ask) if role is not Role.ATOMIC else ask
        mutates = True if role is Role.ATOMIC else bound.call.effect.mutates
        refused = member_refused(self.resources, role, resource, mutates=mutates)
        if refused is not None:
            if resource not in self.resources:
                raise OutsideFootprint(self.name, str(resource)[:80], self.resources)
            raise InvalidRequest(refused.why)
        member = Held(role, resource, self._cx.take().ordinal, bound)
        self.members.append(member)
        return member

    async def _perform(self, ordinal: int, ask: Any, role: str) -> Any:
        """The way of any effect, with the group and the role in its announcement."""
        dispatcher = self._cx.dispatcher
        dispatcher.member = (self._spot.nth, str(role))
        try:
            return await self._cx.one(Spot(self._spot.step, self._spot.phase, ordinal), ask)
        finally:
            dispatcher.member = None

    def _captured(self, member: Held, undo: Callable[[Any], CallDescription], output: Any) -> Bound:
        """The reversal of a member that has landed. One that cannot be made leaves the member standing with nothing to
        take it back: a person must look."""
        try:
            made = undo(output)
            if not isinstance(made, CallDescription):
                raise InvalidRequest(f"it gives {type(made).__name__}, which is no call.")
            return bind(made)
        except Exception as error:
            kind = member.ask.call.effect.kind if isinstance(member.ask, Bound) else "a member"
            detail = self._live.world.secrets.sentence(f"{kind} landed and its reversal cannot be made: {error}")
            raise self._quarantined(detail) from None

    async def _release(self, ordinal: int) -> None:
        member = self._at(ordinal)
        try:
            await self._perform(ordinal, member.ask, member.role)
        except EffectFailed:
            return  # it is recorded, and decided on the next turn

    async def _transact(self, ordinals: Sequence[int]) -> None:
        members = [(Spot(self._spot.step, self._spot.phase, at), self._at(at).ask) for at in ordinals]
        dispatcher = self._cx.dispatcher
        dispatcher.member = (self._spot.nth, Role.ATOMIC.value)
        try:
            await self._cx.within(transact, dispatcher, members)
        finally:
            dispatcher.member = None

    async def _take_back(self, detail: str) -> None:
        """Reverse what landed, the last first; settle. Raises the stops, Quarantine among them."""
        dispatcher = self._cx.dispatcher
        dispatcher.deaf = True
        while True:
            move = decide_settle(self._seen(), detail)
            if isinstance(move, InDoubt):
                await self._settle_doubt(move.ordinal)
                continue
            if isinstance(move, Settle):
                self._settle(move.outcome, move.detail)
                return
            left = reversals(self._seen())
            member = self._at(left[0] if isinstance(left, tuple) else -1)
            try:
                await self._perform(member.ordinal | REVERSAL_BIT, member.reversal, REVERSAL)
            except EffectFailed:
                continue  # it is recorded, and decided on the next turn
            except AgentplaneError as error:
                # It cannot even be announced, so nothing takes the member back.
                raise self._quarantined(f"the reversal of member {member.ordinal} cannot be sent: {error}") from None

    def _settle(self, outcome: Settlement, detail: str | None) -> None:
        """Record how the group ended, once. Raises Quarantine when nobody can say what stands."""
        if outcome is Settlement.QUARANTINED:
            raise self._quarantined(detail or "what stands is not known")
        self._record(outcome, detail)
        self._cx.groups.close()

    def _quarantined(self, detail: str) -> Stop:
        self._record(Settlement.QUARANTINED, detail)
        reason = f"group {self.name!r} of step {self._spot.step}: {detail}"
        return self._cx.latching(Quarantine(reason[: bounds.TEXT_CHARS_MAX], "group_quarantined"))

    def _record(self, outcome: Settlement, detail: str | None) -> None:
        recorded = self._live.history.groups[self._spot].settled
        if recorded is not None and recorded.outcome == outcome.value:
            return
        said = None if detail is None else self._live.world.secrets.sentence(detail)[: bounds.TEXT_CHARS_MAX]
        members: dict[str, object] = {"step": self._spot.step, "group": self.name, "index": self._spot.nth,
                                      "outcome": outcome.value, "detail": said}  # fmt: skip
        # Lost, it is made again by the same decision over the same members.
        self._live.log.ride((GroupSettled, self._phased(members)), held=outcome is not Settlement.QUARANTINED)
        self._live.world.observe("group.settled", run=self._live.run, step=self._spot.step, outcome=outcome.value)

    def _detail(self) -> str | None:
        """What stopped the group, as it was recorded: the same on every walk."""
        settled = self._live.history.groups[self._spot].settled
        return None if settled is None else settled.detail

    def _why(self, seen: list[Member]) -> str:
        """What the member that stopped the commit failed with, as it is recorded."""
        for member in seen:
            if member.role in (Role.ATOMIC, Role.DEFERRED) and member.outcome is Ended.REFUSED:
                series = self._live.history.series[Spot(self._spot.step, self._spot.phase, member.ordinal)]
                failed = series.failure()
                return "" if failed is None else f": {failed.fault.message.removesuffix('.')}"
        return ""

    async def _settle_doubt(self, ordinal: int) -> None:
        """A death left the member, or its reversal, in doubt: it is asked as any effect is. Raises Quarantine, with the
        group left open, when only a person can tell."""
        member = self._at(ordinal)
        back = self._live.history.series.get(Spot(self._spot.step, self._spot.phase, ordinal | REVERSAL_BIT))
        reversing = back is not None and in_doubt(back.attempts(), back.first.mutates)
        ask = member.reversal if reversing else member.ask
        if not isinstance(ask, Bound):
            raise self._in_doubt(ordinal)
        try:
            at, role = (ordinal | REVERSAL_BIT, REVERSAL) if reversing else (ordinal, member.role)
            await self._perform(at, ask, role)
        except EffectFailed:
            return  # it is recorded, and decided on the next turn

    def _in_doubt(self, ordinal: int) -> Stop:
        reason = f"group {self.name!r} of step {self._spot.step}: member {ordinal & ~REVERSAL_BIT} is in doubt"
        return self._cx.latching(Quarantine(reason, "undecided"))

    def _phased(self, members: dict[str, object]) -> dict[str, object]:
        return members if self._spot.phase is Phase.forward else members | {"phase": self._spot.phase.wire}

    def _at(self, ordinal: int) -> Held:
        return next(member for member in self.members if member.ordinal == ordinal)

    def _seen(self) -> list[Member]:
        """The members as the journal has them."""
        history = self._live.history
        return [
            Member(
                ordinal=member.ordinal, role=member.role, resource=member.resource,
                outcome=_ended(history, Spot(self._spot.step, self._spot.phase, member.ordinal)),
                has_reversal=member.reversal is not None,
                reversal=_ended(history, Spot(self._spot.step, self._spot.phase, member.ordinal | REVERSAL_BIT)),
            )
            for member in self.members
        ]  # fmt: skip


NO_AGE: Final = Age(first_ms=None, last_ms=None, now_ms=None)
"""Of a series without doubt nothing depends on it."""


def _ended(history: History, spot: Spot) -> Ended:
    """What became of the series at ``spot``."""
    series: Series | None = history.series.get(spot)
    if series is None:
        return Ended.NONE
    if series.output_record() is not None:
        return Ended.DONE
    if in_doubt(series.attempts(), series.first.mutates):
        return Ended.IN_DOUBT
    if isinstance(decide_recovery(series.attempts(), series.declared(), series.policy(), NO_AGE), Repeat):
        return (
            Ended.NONE
        )  # between two attempts (a death, a person who has it asked again) it goes on where it is asked
    outcome = series.last.outcome
    if isinstance(outcome, FailedRecord):
        return Ended.LANDED_BROKEN if outcome.disposition is Disposition.LANDED else Ended.REFUSED
    return Ended.NONE


class Opening:
    """What ``cx.group`` gives: to be awaited, or entered with ``async with``."""

    def __init__(self, groups: Groups, name: str, resources: Sequence[str]) -> None:
        self._groups = groups
        self._asked = (name, resources)
        self._context: Any = None

    def __await__(self) -> Generator[Any, Any, Group]:
        return self._open().__await__()

    async def __aenter__(self) -> Group:
        self._context = self._held()
        group: Group = await self._context.__aenter__()
        return group

    async def __aexit__(self, *ending: Any) -> bool | None:
        result: bool | None = await self._context.__aexit__(*ending)
        return result

    async def _open(self) -> Group:
        return await self._groups.open(*self._asked)

    @asynccontextmanager
    async def _held(self) -> AsyncIterator[Group]:
        """A block that raises has its group taken back and goes on raising; one that ends without a commit fails."""
        group = await self._open()
        try:
            yield group
        except (EffectFailed, AgentplaneError):
            await self._close(group, "failed")
            raise
        except (Stop, trio.Cancelled, GeneratorExit, KeyboardInterrupt):
            raise
        except BaseException:
            await self._close(group, "failed")
            raise
        forgotten = await self._close(group, "succeeded")
        if forgotten is not None:
            raise forgotten

    async def _close(self, group: Group, outcome: str) -> GroupForgotten | None:
        # A stop has latched, whatever its exception became on the way (P12): the executor knows what it was.
        if self._groups.opened is not group or self._groups.cx.latched is not None:
            return None
        return await group.settle_left_open(outcome)
