"""What an unwind takes back, and in which order: every combination of three steps, and the cases in prose."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations, product

import msgspec
import pytest

from agentplane.core.saga import (
    Action,
    Cause,
    Compensation,
    InDoubt,
    Move,
    Nothing,
    StepFacts,
    Unwind,
    decide_unwind,
    severity,
    unwinds,
    worst,
)

UNDO, PIVOT, FREE, SILENT = Compensation
COMPENSATE, KEEP_PIVOT, KEEP, ESCALATE = Action
FAILED, CANCELLED = Cause

LIVES = [
    {"completed": True},
    {"completed": True, "landed": True},
    {"completed": True, "undone": True},
    {"completed": True, "landed": True, "undone": True},
    {"failed": True},
    {"failed": True, "landed": True},
    {"failed": True, "landed": True, "undone": True},
    {},
    {"landed": True},
    {"landed": True, "undone": True},
]
"""What can be recorded of a step, apart from what it declares; the numbers of records are given by ``every``."""


def every(count: int, doubts: tuple[bool, ...]) -> Iterator[tuple[StepFacts, ...]]:
    """Every set of facts of ``count`` steps: what they declare, how they ended, the order in which they did.

    The numbers of steps are shuffled against the order of completion, which loses nothing: whoever reads them has no
    other way of telling steps apart. A step that did not complete landed its work in every order against the others.
    """
    names = [2, 0, 1][-count:] if count < 3 else [2, 0, 1]
    steps = list(product(Compensation, LIVES, doubts))
    for chosen in product(steps, repeat=count):
        unfinished = [at for at, (_, life, _) in enumerate(chosen) if "completed" not in life and "landed" in life]
        for order in permutations(unfinished):
            landed = {at: 20 + rank for rank, at in enumerate(order)}
            yield tuple(
                StepFacts(
                    step=names[at],
                    declared=declared,
                    completed=10 + 2 * at if "completed" in life else None,
                    failed="failed" in life,
                    landed=landed.get(at, 9 + 2 * at) if "landed" in life else None,
                    in_doubt=doubt,
                    undone="undone" in life,
                )
                for at, (declared, life, doubt) in enumerate(chosen)
            )


def place(facts: StepFacts) -> tuple[int, int]:
    """Where a step stands on the way back: what was interrupted before what completed, the later the earlier."""
    return (1, -facts.completed) if facts.completed is not None else (0, -(facts.landed or 0))


def did_something(facts: StepFacts) -> bool:
    return facts.completed is not None or facts.landed is not None


def own_failure(facts: StepFacts, cause: Cause) -> bool:
    return cause is FAILED and facts.failed and facts.completed is None


def expected(steps: tuple[StepFacts, ...], cause: Cause) -> dict[int, Action]:
    """What each step is owed, said of one step at a time: by what stands between it and the end."""
    pivots = [place(facts) for facts in steps if facts.declared is PIVOT and did_something(facts)]
    closed = [place(facts) for facts in steps if facts.declared is PIVOT and own_failure(facts, cause) and facts.landed]
    owed = {}
    for facts in steps:
        if facts.undone or not did_something(facts) or own_failure(facts, cause):
            continue
        beyond = [other for other in pivots if other <= place(facts)]
        stopped = any(
            other.declared is SILENT and other.landed is not None and not other.undone
            and not own_failure(other, cause) and place(other) < place(facts)
            and not any(pivot < place(other) for pivot in pivots)
            for other in steps
        )  # fmt: skip
        if stopped:
            continue
        if beyond:
            first_pivot = min(beyond)
            if first_pivot not in closed and (place(facts) == first_pivot or facts.landed is not None):
                owed[facts.step] = KEEP_PIVOT
        elif facts.declared is UNDO:
            owed[facts.step] = COMPENSATE
        elif facts.landed is not None:
            owed[facts.step] = KEEP if facts.declared is FREE else ESCALATE
    return owed


def faults(steps: tuple[StepFacts, ...], cause: Cause) -> list[str]:
    found = []
    first, resumed = decide_unwind(steps, cause, begun=False), decide_unwind(steps, cause, begun=True)
    doubtful = tuple(sorted(facts.step for facts in steps if facts.in_doubt))
    if doubtful:
        return [] if first == resumed == InDoubt(doubtful) else ["an unwind around doubt"]
    if not isinstance(resumed, Unwind):
        return ["a begun unwind is no unwind any more"]
    moves = resumed.moves
    of = {facts.step: facts for facts in steps}
    places = [place(of[move.step]) for move in moves]
    if places != sorted(set(places)):
        found.append("not the reverse, or twice")
    if {move.step: move.action for move in moves} != expected(steps, cause):
        found.append("not what each step is owed")
    if any(move.action is COMPENSATE and of[move.step].declared is not UNDO for move in moves):
        found.append("a compensation that nobody declared")
    if any(not did_something(of[move.step]) or of[move.step].undone for move in moves):
        found.append("a move of what never ran, or is undone")
    if any(move.action is ESCALATE for move in moves[:-1]):
        found.append("it goes on behind an escalation")
    asks = any(move.action in (COMPENSATE, ESCALATE) for move in moves)
    wanted = asks if cause is FAILED else bool(moves)
    if first != (resumed if wanted else Nothing()):
        found.append("it begins when nothing asks, or does not when something does")
    if moves and moves[0].action is not ESCALATE:
        later = tuple(
            msgspec.structs.replace(facts, undone=facts.undone or facts.step == moves[0].step) for facts in steps
        )
        if decide_unwind(later, cause, begun=True) != Unwind(moves[1:]):
            found.append("a resumed unwind is another one")
    return found


@pytest.mark.parametrize("cause", Cause)
def test_every_pair_of_steps_is_unwound_by_the_rules(cause: Cause) -> None:
    """Any two steps, doubt included: nothing under doubt, each step what it is owed and once, in reverse, and the same
    when it is resumed."""
    seen = 0
    for count in (0, 1, 2):
        for steps in every(count, (False, True)):
            seen += 1
            assert not (wrong := faults(steps, cause)), (wrong, steps)
    assert seen > 5000


@pytest.mark.parametrize("cause", Cause)
def test_every_three_steps_are_unwound_by_the_rules(cause: Cause) -> None:
    """Any three: enough for something on both sides of a pivot, and between two that are undone. Spec:
    Saga.UndeclaredIsNeverUndone."""
    seen = 0
    for steps in every(3, (False,)):
        seen += 1
        assert not (wrong := faults(steps, cause)), (wrong, steps)
    assert seen > 100_000


def done(step: int, declared: Compensation, seq: int, *, landed: bool = True, undone: bool = False) -> StepFacts:
    return StepFacts(step=step, declared=declared, completed=seq, landed=seq - 1 if landed else None, undone=undone)


def cut(step: int, declared: Compensation, landed: int | None, *, failed: bool = False) -> StepFacts:
    return StepFacts(step=step, declared=declared, landed=landed, failed=failed)


def moves_of(steps: list[StepFacts], cause: Cause, *, begun: bool = False) -> list[tuple[int, Action]]:
    found = decide_unwind(steps, cause, begun=begun)
    assert isinstance(found, Unwind)
    return [(move.step, move.action) for move in found.moves]


def test_completed_steps_are_taken_back_in_reverse_order_of_completion() -> None:
    """S18: Not of their ids: a later step may stand on an earlier one."""
    steps = [done(0, UNDO, 10), done(1, UNDO, 30), done(2, UNDO, 20), cut(3, UNDO, None, failed=True)]
    assert moves_of(steps, FAILED) == [(1, COMPENSATE), (2, COMPENSATE), (0, COMPENSATE)]


def test_an_undeclared_step_without_landed_work_is_passed_over() -> None:
    """The journal proves that there is nothing to undo."""
    steps = [done(0, UNDO, 10), done(1, SILENT, 20, landed=False), cut(2, SILENT, None, failed=True)]
    assert moves_of(steps, FAILED) == [(0, COMPENSATE)]


def test_an_undeclared_step_with_landed_work_stops_the_unwind_and_is_named() -> None:
    """What was completed after it is undone, it and what was before it is not touched."""
    steps = [done(0, UNDO, 10), done(1, SILENT, 20), done(2, UNDO, 30)]
    assert moves_of(steps, FAILED) == [(2, COMPENSATE), (1, ESCALATE)]


def test_nothing_at_or_before_a_pivot_is_taken_back() -> None:
    """S49: It stands by right, and so does what landed before it; what did nothing has nothing to stand."""
    steps = [done(0, UNDO, 10), done(1, FREE, 20, landed=False), done(2, PIVOT, 30), done(3, UNDO, 40)]
    assert moves_of(steps, FAILED) == [(3, COMPENSATE), (2, KEEP_PIVOT), (0, KEEP_PIVOT)]


def test_a_pivot_that_was_kept_holds_in_a_resumed_unwind() -> None:
    """A step before it that landed nothing was given no record, and is not compensated for that."""
    steps = [done(0, UNDO, 10, landed=False), done(1, PIVOT, 20, undone=True), cut(2, UNDO, 25, failed=True)]
    assert moves_of(steps, CANCELLED, begun=True) == [(2, COMPENSATE)]


def test_a_run_in_doubt_is_never_unwound() -> None:
    """S51: Neither by a failure nor by a cancel, not even as far as the doubt does not reach."""
    doubtful = StepFacts(step=4, declared=UNDO, landed=40, in_doubt=True)
    for cause, begun in product(Cause, (False, True)):
        assert decide_unwind([done(0, UNDO, 10), doubtful], cause, begun=begun) == InDoubt((4,))


def test_a_cancel_takes_back_the_interrupted_step_first() -> None:
    """A stop comes while a step holds what it already did and never completes."""
    steps = [cut(0, UNDO, 15), done(1, UNDO, 40), cut(2, UNDO, 35), cut(3, UNDO, None)]
    assert moves_of(steps, CANCELLED) == [(2, COMPENSATE), (0, COMPENSATE), (1, COMPENSATE)]


def test_a_failure_takes_back_the_sibling_that_it_interrupted() -> None:
    """S55: Though nothing completed; and not what the failing step itself did."""
    steps = [cut(0, UNDO, 15, failed=True), cut(1, UNDO, 12)]
    assert moves_of(steps, FAILED) == [(1, COMPENSATE)]


def test_a_failure_whose_only_landed_work_is_its_own_unwinds_nothing() -> None:
    """It stays resumable, until somebody finishes it or cancels it."""
    own = [cut(0, UNDO, 15, failed=True)]
    assert decide_unwind(own, FAILED, begun=False) == Nothing()
    assert moves_of(own, CANCELLED) == [(0, COMPENSATE)]


def test_a_failure_that_needs_nothing_undone_stays_resumable() -> None:
    """What may stand by right is no reason to end a run that could go on; a cancel says so of each."""
    steps = [done(0, FREE, 10), done(1, PIVOT, 20), cut(2, UNDO, None, failed=True)]
    assert decide_unwind(steps, FAILED, begun=False) == Nothing()
    assert moves_of(steps, CANCELLED) == [(1, KEEP_PIVOT), (0, KEEP_PIVOT)]


def test_a_completed_step_that_landed_nothing_is_compensated_all_the_same() -> None:
    """Its compensation may know more than the journal; one that was only interrupted has nothing to give it."""
    assert moves_of([done(0, UNDO, 10, landed=False)], FAILED) == [(0, COMPENSATE)]
    assert decide_unwind([cut(0, UNDO, None)], CANCELLED, begun=False) == Nothing()


def test_unnecessary_work_is_kept_and_said_to_be() -> None:
    """No run is sealed as cancelled over landed work of which nothing is said."""
    steps = [done(0, UNDO, 10), done(1, FREE, 20), cut(2, FREE, 25)]
    assert moves_of(steps, CANCELLED) == [(2, KEEP), (1, KEEP), (0, COMPENSATE)]


def test_a_resumed_unwind_skips_what_is_undone() -> None:
    """S53: It walks from the top, and no step is taken back twice."""
    steps = [done(0, UNDO, 10), done(1, UNDO, 20, undone=True)]
    assert moves_of(steps, FAILED, begun=True) == [(0, COMPENSATE)]
    steps[0] = done(0, UNDO, 10, undone=True)
    assert moves_of(steps, FAILED, begun=True) == []


def test_a_step_whose_compensation_failed_stays_in_front() -> None:
    """It is not undone, so that whoever asks again comes to it before anything that was completed earlier."""
    steps = [done(0, UNDO, 10), done(1, UNDO, 20), done(2, UNDO, 30, undone=True)]
    for cause in Cause:
        assert moves_of(steps, cause, begun=True)[0] == (1, COMPENSATE)


def test_a_cancel_after_an_unwind_takes_back_what_the_failure_left() -> None:
    """The failing step's own work."""
    steps = [done(0, UNDO, 10, undone=True), cut(1, UNDO, 15, failed=True)]
    assert decide_unwind(steps, FAILED, begun=False) == Nothing()
    assert moves_of(steps, CANCELLED, begun=True) == [(1, COMPENSATE)]


def test_a_pivot_that_failed_half_way_holds_too() -> None:
    """Its landed work can still be carried on, and needs what it was built on; a sibling that landed later goes. A
    cancel then keeps both."""
    half = cut(1, PIVOT, 15, failed=True)
    assert decide_unwind([done(0, UNDO, 10), half], FAILED, begun=False) == Nothing()
    assert moves_of([done(0, UNDO, 10), half, cut(2, UNDO, 20)], FAILED) == [(2, COMPENSATE)]
    assert moves_of([done(0, UNDO, 10), half], CANCELLED) == [(1, KEEP_PIVOT), (0, KEEP_PIVOT)]
    assert moves_of([done(0, UNDO, 10), cut(1, PIVOT, None, failed=True)], FAILED) == [(0, COMPENSATE)]


def test_the_last_of_an_unwind_is_its_first_undeclared_or_pivot() -> None:
    """Everything that can be undone before that is."""
    steps = [done(n, UNDO, 10 * n) for n in range(1, 40)]
    assert moves_of(steps, FAILED) == [(n, COMPENSATE) for n in range(39, 0, -1)]
    steps[19] = done(20, SILENT, 200)
    assert moves_of(steps, FAILED) == [*((n, COMPENSATE) for n in range(39, 20, -1)), (20, ESCALATE)]


ORDER = ["dropped", "quarantined", "parked", "failed", "exhausted", "suspended", "succeeded"]


def test_severity_beats_ready_order() -> None:
    """S54: A suspension is the run at work, a failure is the run over, a quarantine is the one that must not unwind."""
    assert sorted(ORDER, key=severity) == ORDER and len({severity(name) for name in ORDER}) == len(ORDER)
    assert severity("cancelled") == severity("failed") and severity("replanning") == severity("suspended")
    assert worst([(0, "suspended"), (3, "failed"), (5, "cancelled"), (7, "succeeded")]) == (3, "failed")
    assert worst([(4, "replanning"), (2, "suspended")]) == (2, "suspended")
    assert worst([(9, "quarantined"), (1, "failed")]) == (9, "quarantined")
    assert worst([(0, "succeeded")]) is None and worst([]) is None


def test_an_ending_without_a_rank_is_never_mild() -> None:
    """Nobody can say what may be done about it."""
    assert severity("diverged") == severity("quarantined") and not unwinds("diverged")


def test_only_failures_and_cancels_unwind() -> None:
    """Exhaustion is a pause, a suspension is health, and a quarantine may not."""
    assert [name for name in [*ORDER, "cancelled", "replanning"] if unwinds(name)] == ["failed", "cancelled"]


def test_moves_are_values() -> None:
    """Of one kind and no other: an unwind of no moves is not nothing."""
    assert Move(1, COMPENSATE) == Move(1, COMPENSATE) != Move(1, KEEP)
    assert Unwind(()) != Nothing() and InDoubt((1,)) != Unwind((Move(1, COMPENSATE),))
