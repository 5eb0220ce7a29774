"""What an effect group may do next.

Owns who may be a member, the order of a commit and of an abort, and how a group ends, as functions over what is
recorded of its members; each is asked again after every outcome, live and on a re-walk, and gives the next move.
Refuses to perform anything. Invariant: nothing deferred runs before the frontier, nothing is taken back in doubt or
once a member that cannot be taken back is out, and ``aborted`` is said only of a group of which nothing stands.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Final

import msgspec


class Role(StrEnum):
    """How a member takes part; the word in ``EffectStarted.role``. (A reversal is recorded with a role of its own.)"""

    READ = "read"
    REVERSIBLE = "reversible"
    ATOMIC = "atomic"
    DEFERRED = "deferred"


class Ended(StrEnum):
    """What became of a member, or of its reversal."""

    NONE = "none"
    """It was not asked, or has not ended."""
    DONE = "done"
    REFUSED = "refused"
    """It failed, and certainly did not happen."""
    LANDED_BROKEN = "landed_broken"
    """It took effect and failed: nobody can use what it answered."""
    IN_DOUBT = "in_doubt"


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One member. The members of a step are asked one at a time, so that the order of ordinals is that of landing."""

    ordinal: int
    role: Role
    resource: str
    outcome: Ended = Ended.NONE
    has_reversal: bool = False
    reversal: Ended = Ended.NONE

    @property
    def stands(self) -> bool:
        """Whether it took effect for certain and was not taken back; a read leaves nothing."""
        return self.role is not Role.READ and self.outcome in _LANDED and self.reversal is not Ended.DONE

    @property
    def out(self) -> bool:
        """Whether it took effect and nothing takes it back."""
        return self.role in (Role.ATOMIC, Role.DEFERRED) and self.outcome in _LANDED


_LANDED: Final = (Ended.DONE, Ended.LANDED_BROKEN)


class Settlement(StrEnum):
    COMMITTED = "committed"
    """Every member stands, and no reversal will run."""
    ABORTED = "aborted"
    """Nothing stands, and nothing deferred ran."""
    QUARANTINED = "quarantined"
    """What stands is for a person to say."""


class Refused(msgspec.Struct, frozen=True):
    """The request itself is at fault; nothing ran for it. ``why`` is one sentence."""

    why: str


class InDoubt(msgspec.Struct, frozen=True):
    """A member, or its reversal, may have landed or not: the group is left open and the run is quarantined."""

    ordinal: int


class Abort(msgspec.Struct, frozen=True):
    """Take back what landed; then settle with ``detail``."""

    detail: str


class Transact(msgspec.Struct, frozen=True):
    """Run these in one transaction, with their records."""

    ordinals: tuple[int, ...]


class Release(msgspec.Struct, frozen=True):
    """Perform this deferred member."""

    ordinal: int


class Settle(msgspec.Struct, frozen=True):
    """Record the ending. ``detail`` names what stopped the group."""

    outcome: Settlement
    detail: str | None = None


class Impossible(msgspec.Struct, frozen=True):
    """The group cannot be taken back, on account of this member."""

    member: int
    why: str


def member_refused(footprint: Collection[str], role: Role, resource: str, *, mutates: bool) -> Refused | None:
    """Why a call may not be a member, before it runs; None when it may."""
    if resource not in footprint:
        return Refused(f"The group did not declare the resource {resource[:80]!r}: add it to its resources.")
    if role is Role.READ and mutates:
        return Refused("A member that mutates is no read of the group: make it reversible, or deferred.")
    return None


def beside_refused(*, mutates: bool) -> Refused | None:
    """Why a call may not be made beside an open group; None when it may."""
    if mutates:
        return Refused("A mutation beside an open group is refused: make it a member, or settle the group first.")
    return None


def decide_commit(
    invariants: Sequence[tuple[str, object]], members: Sequence[Member]
) -> Refused | InDoubt | Abort | Transact | Release | Settle:
    """The next move of a commit: invariants, then the atomic members in one transaction, then the deferred ones in
    order, then the settlement."""
    for name, value in invariants:
        if type(value) is not bool:
            return Refused(f"The invariant {name[:80]!r} is {type(value).__name__}, not a bool: state the condition.")
    doubtful = _doubtful(members)
    if doubtful is not None:
        return InDoubt(doubtful)
    out = any(member.out for member in members)
    broken = next((name for name, value in invariants if not value), None)
    if broken is not None:
        return decide_after_failure(broken, externalised=out)
    if any(member.reversal is not Ended.NONE for member in members):
        # Its abort began in another life, and what was taken back does not stand.
        return Abort("an abort of it had begun")
    atomic = [member for member in members if member.role is Role.ATOMIC]
    for member in atomic:
        if member.outcome is Ended.REFUSED:
            return decide_after_failure(_failed(member), externalised=out)
    waiting = tuple(member.ordinal for member in atomic if member.outcome is Ended.NONE)
    if waiting:
        return Transact(tuple(sorted(waiting)))
    for member in sorted(members, key=lambda one: one.ordinal):
        if member.role is Role.DEFERRED and member.outcome is not Ended.DONE:
            if member.outcome is Ended.NONE:
                return Release(member.ordinal)
            return decide_after_failure(_failed(member), externalised=out)
    return Settle(Settlement.COMMITTED)


def decide_after_failure(detail: str, *, externalised: bool) -> Abort | Settle:
    """What follows a failure at the frontier or behind it. ``externalised``: an atomic or a deferred member took
    effect. Until then abandoning the group costs nothing; from then on nobody may say that it was taken back whole."""
    return Settle(Settlement.QUARANTINED, detail) if externalised else Abort(detail)


def reversals(members: Sequence[Member]) -> tuple[int, ...] | Impossible:
    """The members that an abort has still to take back, the last landed first. One that cannot be taken back stops it
    before anything is: what stands around it is then at least what the person will find."""
    for member in sorted(members, key=lambda one: one.ordinal):
        if Ended.IN_DOUBT in (member.outcome, member.reversal):
            return Impossible(member.ordinal, "nobody knows whether it landed")
        if member.out:
            return Impossible(member.ordinal, f"the {member.role} member took effect and nothing takes it back")
        if member.role is Role.REVERSIBLE and member.stands:
            if not member.has_reversal:
                return Impossible(member.ordinal, "it landed and has no reversal")
            if member.reversal is not Ended.NONE:
                return Impossible(member.ordinal, "its reversal failed")
    back = [member.ordinal for member in members if member.role is Role.REVERSIBLE and member.stands]
    return tuple(sorted(back, reverse=True))


def decide_settle(members: Sequence[Member], detail: str | None = None) -> InDoubt | Settle | None:
    """How a group ends that is given up: by an abort, a failing or returning step, or a cancel. None while reversals
    are left to run."""
    doubtful = _doubtful(members)
    if doubtful is not None:
        return InDoubt(doubtful)
    left = reversals(members)
    if isinstance(left, Impossible):
        return Settle(Settlement.QUARANTINED, f"Member {left.member}: {left.why}.")
    return None if left else Settle(Settlement.ABORTED, detail)


def _doubtful(members: Sequence[Member]) -> int | None:
    found = [member.ordinal for member in members if Ended.IN_DOUBT in (member.outcome, member.reversal)]
    return min(found, default=None)


def _failed(member: Member) -> str:
    return f"the {member.role} member {member.ordinal} on {member.resource[:80]} failed"
