"""Who may decide a task: eligibility, hold and version, in one order for every entry point.

Owns the states of a task, who it is for, and the identity of a task, an action and a version. Refuses contention before
eligibility: what will never be yours is said first. Invariant: four-eyes compares people; a claim changes no version;
two different actions have two digests.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from hashlib import sha256
from typing import Final

import msgspec

from agentplane.core import canonical
from agentplane.core.errors import (
    AlreadyAnswered,
    AlreadyClaimed,
    BasisTooWeak,
    Excluded,
    NotHeld,
    NotPending,
    Refusal,
    StaleVersion,
    WrongRole,
)
from agentplane.core.people import People, is_nobody, one_person, same_person
from agentplane.core.records import Basis
from agentplane.core.roles import ROLES

ACTION_DOMAIN: Final = b"agentplane.action.v1\x00"
PRIORITIES: Final = ("low", "normal", "high", "urgent")
"""By rank: 0 to 3."""
BASES: Final = tuple(basis.value for basis in Basis)
"""Weakest first."""
ON_EXPIRY: Final = ("deny", "proceed", "escalate")


class TaskState(StrEnum):
    OPEN = "open"
    CLAIMED = "claimed"
    ESCALATED = "escalated"
    COMPLETED = "completed"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"


PENDING: Final = frozenset({TaskState.OPEN, TaskState.CLAIMED, TaskState.ESCALATED})
"""The states in which a decision is awaited. An escalated task that is claimed stays so, with an assignee."""


class Reviewer(msgspec.Struct, frozen=True, kw_only=True):
    """Whoever asks to act on a task, as a door established them. ``groups``: as ``group:NAME``; ``own``: the name of
    the plane's own uid; ``machine``: no person stands behind it."""

    actor: str
    basis: Basis
    roles: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    own: str | None = None
    machine: bool = False


class TaskFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules look at of a task's row. ``excluded`` holds, for four-eyes, whoever asked for the work."""

    state: str
    assignee: str | None = None
    audience: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    least_basis: str = Basis.CONNECTED.value
    four_eyes: bool = True


def may_claim(facts: TaskFacts, who: Reviewer, people: People) -> Refusal | None:
    """Why ``who`` may not claim, ready to be raised, or None: Excluded, WrongRole, BasisTooWeak, NotPending,
    AlreadyClaimed, in this order. A claim of one's own is no contention."""
    return _ineligible(facts, who, people) or _not_pending(facts) or _held_by_another(facts, who, people)


def may_release(facts: TaskFacts, who: Reviewer, people: People) -> Refusal | None:
    """Why ``who`` may not release: NotHeld for everybody but the holder."""
    if facts.state in PENDING and facts.assignee is not None and one_person(who.actor, facts.assignee, people):
        return None
    return NotHeld(f"{who.actor} does not hold the task; {_holder(facts)}.")


def may_take_over(facts: TaskFacts, who: Reviewer, holder: str, people: People) -> Refusal | None:
    """Why ``who`` may not displace ``holder``, who is named so that no third person is displaced unseen: what a claim
    is refused for but the hold, then NotHeld where somebody else, or nobody, holds it."""
    refused = _ineligible(facts, who, people) or _not_pending(facts)
    if refused is None and facts.assignee != holder:
        refused = NotHeld(f"The task is not held by {holder}; {_holder(facts)}.")
    return refused


def may_decide(
    facts: TaskFacts, who: Reviewer, people: People, *, named: str | None = None, version: str | None = None
) -> Refusal | None:
    """Why ``who`` may not decide: what a claim is refused for, with AlreadyAnswered for a task that has its decision,
    and StaleVersion, before any claim, where the ``named`` version is not the row's ``version``."""
    refused = _ineligible(facts, who, people)
    if refused is None and facts.state == TaskState.COMPLETED:
        refused = AlreadyAnswered("The task was decided before; its first decision stands.")
    return refused or _not_pending(facts) or stale(named, version) or _held_by_another(facts, who, people)


def stale(named: str | None, version: str | None) -> Refusal | None:
    """The refusal of a decision on a version that is not the row's; a decision that names none compares nothing."""
    if named is None or named == version:
        return None
    return StaleVersion("The task has changed since the version that the decision names.", version=version)


def _ineligible(facts: TaskFacts, who: Reviewer, people: People) -> Refusal | None:
    if facts.four_eyes and (who.machine or is_nobody(who.actor, who.own)):
        return Excluded(f"No person stands behind {who.actor}, and the task asks for a second one.")
    if any(_is_kept_out(name, who, people) for name in facts.excluded):
        return Excluded(f"{who.actor} is among those who may not decide this task.")
    if not any(_is_for(name, who, people) for name in facts.audience):
        return WrongRole(f"The task is for {', '.join(facts.audience) or 'nobody'}, and {who.actor} is none of them.")
    if _rank(who.basis) < _rank(facts.least_basis):
        return BasisTooWeak(f"The task asks for an identity that is {facts.least_basis}; this one is {who.basis}.")
    return None


def _is_kept_out(name: str, who: Reviewer, people: People) -> bool:
    """A name that is excluded is a role's, a group's, or whoever may be that person."""
    if name in who.roles or name in who.groups:
        return True
    return name not in ROLES and same_person(who.actor, name, people, own=who.own)


def _is_for(name: str, who: Reviewer, people: People) -> bool:
    """A name of the audience is a role's, a group's or a person's; a role's name is nobody's own."""
    if name in ROLES:
        return name in who.roles
    return name in who.roles or name in who.groups or one_person(who.actor, name, people)


def _rank(basis: str) -> int:
    # What no build knows is asked for is met by nobody.
    return BASES.index(basis) if basis in BASES else len(BASES)


def _not_pending(facts: TaskFacts) -> Refusal | None:
    return None if facts.state in PENDING else NotPending(f"The task is {facts.state}; no decision is awaited.")


def _held_by_another(facts: TaskFacts, who: Reviewer, people: People) -> Refusal | None:
    if facts.assignee is None or one_person(who.actor, facts.assignee, people):
        return None
    return AlreadyClaimed(f"The task is held by {facts.assignee}.", holder=facts.assignee)


def _holder(facts: TaskFacts) -> str:
    if facts.state not in PENDING:
        return f"it is {facts.state}"
    return "nobody holds it" if facts.assignee is None else f"{facts.assignee} does"


# --- identities -------------------------------------------------------------------------------------------------------


def task_id(run: str, effect_key: str) -> str:
    """The id of the task that ``run`` opens at ``effect_key`` (hex): the worklist is shared by all runs."""
    return sha256(f"{run}{effect_key}".encode()).hexdigest()


def action_digest(kind: str, args: object) -> str:
    """What an approval is bound to: the effect's kind and its exact arguments."""
    name = kind.encode()
    return sha256(ACTION_DOMAIN + len(name).to_bytes(8, "big") + name + canonical.encode(args)).hexdigest()


def version_digest(
    *, task: str, proposal: bytes, audience: Sequence[str], excluded: Sequence[str], least_basis: str, four_eyes: bool,
    priority: int, due_ms: int | None, on_expiry: str, escalate_to: Sequence[str], state: str,
) -> str:  # fmt: skip
    """The version of a row that a decision names; ``proposal``: its canonical bytes. Claim and release leave it as it
    is, an escalation and an ending do not."""
    shown = "pending" if state in (TaskState.OPEN, TaskState.CLAIMED) else str(state)
    members = [
        task, sha256(proposal).hexdigest(), sorted(audience), sorted(excluded), str(least_basis), four_eyes, priority,
        due_ms, on_expiry, sorted(escalate_to), shown,
    ]  # fmt: skip
    return sha256(canonical.encode(members)).hexdigest()
