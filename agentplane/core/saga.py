"""What an unwind may do, and in which order.

Owns what a step declares about being taken back, the list of an unwind, and how severe the endings of a wave are.
Refuses to look at anything but recorded facts: not at the plan in force, not at code. Invariant: nothing moves while
forward work is in doubt, nothing at or before a pivot is taken back, and the walk is in reverse order of completion,
so that a resumed unwind finds the same list without what is undone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

import msgspec


class Compensation(StrEnum):
    """What an unwind may do about a step."""

    COMPENSATABLE = "compensatable"
    """Its compensation takes it back."""
    PIVOT = "pivot"
    """The point of no return: neither it nor anything before it is taken back."""
    UNNECESSARY = "unnecessary"
    """What it did may stand; the author says so."""
    UNDECLARED = "undeclared"
    """Judged on evidence: without landed work it is passed over, with it a person must look."""


class Cause(StrEnum):
    FAILED = "failed"
    CANCELLED = "cancelled"


class Action(StrEnum):
    COMPENSATE = "compensate"
    KEEP_PIVOT = "keep_pivot"
    KEEP_UNNECESSARY = "keep_unnecessary"
    ESCALATE = "escalate"
    """Landed work of a step that declared nothing: quarantine, naming it."""


class StepFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the journal says of one step.

    ``completed``: the seq of its successful StepFinished; ``failed``: it ended by itself, in failure; ``landed``: the
    highest seq of a record of landed forward work, members of aborted groups discounted; ``in_doubt``: of forward work;
    ``undone``: StepCompensated or StepKept is recorded.
    """

    step: int
    declared: Compensation
    completed: int | None = None
    failed: bool = False
    landed: int | None = None
    in_doubt: bool = False
    undone: bool = False


class Move(msgspec.Struct, frozen=True):
    step: int
    action: Action


class Nothing(msgspec.Struct, frozen=True):
    """Nothing asks to be taken back: a failed run stays as it is and may go on, a cancelled one ends."""


class InDoubt(msgspec.Struct, frozen=True):
    """Steps, ascending, of whose forward work nobody can say whether it landed: nothing is unwound. A failed run stays
    as it is, a cancelled one is quarantined."""

    steps: tuple[int, ...]


class Unwind(msgspec.Struct, frozen=True):
    """The moves that are left, in the order of making them; ``escalate`` and the first ``keep_pivot`` end the taking
    back."""

    moves: tuple[Move, ...]


def decide_unwind(steps: Sequence[StepFacts], cause: Cause, *, begun: bool) -> Nothing | InDoubt | Unwind:
    """What a run does that failed or was cancelled. ``begun``: its unwind is recorded already, so that a list which
    asks for nothing more is an unwind without moves.

    A failed step's own landed work is left to a resume or a cancel, unless a pivot holds it.
    """
    doubtful = tuple(sorted(facts.step for facts in steps if facts.in_doubt))
    if doubtful:
        return InDoubt(doubtful)
    moves = _moves(_walk(steps), cause)
    asks = any(move.action in (Action.COMPENSATE, Action.ESCALATE) for move in moves)
    if begun or asks or (moves and cause is Cause.CANCELLED):
        return Unwind(moves)
    return Nothing()


def _walk(steps: Sequence[StepFacts]) -> list[StepFacts]:
    """Interrupted and failed work first, the latest landed first; then what completed, in reverse. What is undone stays
    in it: a pivot that was kept holds in a resumed unwind too."""
    completed = [facts for facts in steps if facts.completed is not None]
    unfinished = [facts for facts in steps if facts.completed is None and facts.landed is not None]
    unfinished.sort(key=lambda facts: facts.landed or 0, reverse=True)
    completed.sort(key=lambda facts: facts.completed or 0, reverse=True)
    return unfinished + completed


def _moves(walk: list[StepFacts], cause: Cause) -> tuple[Move, ...]:
    moves: list[Move] = []
    for at, facts in enumerate(walk):
        if facts.declared is Compensation.PIVOT:
            # One that failed after it had landed work holds what is before it, though a failure does not ask it: its
            # own work may still be carried to its end, and needs what it was built on.
            return (*moves, *(_kept(walk[at:], cause) if _asked(facts, cause) else ()))
        action = _action(facts) if _asked(facts, cause) and not facts.undone else None
        if action is not None:
            moves.append(Move(facts.step, action))
        if action is Action.ESCALATE:
            break
    return tuple(moves)


def _asked(facts: StepFacts, cause: Cause) -> bool:
    """A failure does not ask a step that ended by itself in failure."""
    return cause is Cause.CANCELLED or facts.completed is not None or not facts.failed


def _action(facts: StepFacts) -> Action | None:
    landed = facts.landed is not None
    if facts.declared is Compensation.COMPENSATABLE:
        return Action.COMPENSATE
    if facts.declared is Compensation.UNNECESSARY:
        return Action.KEEP_UNNECESSARY if landed else None
    return Action.ESCALATE if landed else None


def _kept(rest: list[StepFacts], cause: Cause) -> list[Move]:
    """The pivot, and whatever landed before it."""
    return [
        Move(facts.step, Action.KEEP_PIVOT)
        for at, facts in enumerate(rest)
        if not facts.undone and _asked(facts, cause) and (at == 0 or facts.landed is not None)
    ]


_SEVERITY: Final = {
    "dropped": 0,
    "quarantined": 1,
    "parked": 2,
    "failed": 3,
    "cancelled": 3,
    "exhausted": 4,
    "suspended": 5,
    "replanning": 5,
    "succeeded": 9,
}


def severity(outcome: str) -> int:
    """The rank of how a step ended, 0 the most severe. An ending that has no rank stands beside ``quarantined``: nobody
    can say what may be done about it."""
    return _SEVERITY.get(outcome, _SEVERITY["quarantined"])


def worst(endings: Iterable[tuple[int, str]]) -> tuple[int, str] | None:
    """Of (step, outcome) pairs the most severe, the lowest step within a rank; None when all succeeded."""
    bad = [ending for ending in endings if ending[1] != "succeeded"]
    return min(bad, key=lambda ending: (severity(ending[1]), ending[0])) if bad else None


def unwinds(outcome: str) -> bool:
    """Whether a run that ends so takes its work back: an exhausted one pauses, a suspended one is at work, and a
    quarantined one may not."""
    return outcome in ("failed", "cancelled")
