"""What an effect group may do next: every ending of every member, played to the end, and the cases in prose."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import msgspec
import pytest

from agentplane.core.groups import (
    Abort,
    Ended,
    Impossible,
    InDoubt,
    Member,
    Refused,
    Release,
    Role,
    Settle,
    Settlement,
    Transact,
    beside_refused,
    decide_after_failure,
    decide_commit,
    decide_settle,
    member_refused,
    reversals,
)

READ, REVERSIBLE, ATOMIC, DEFERRED = Role
NONE, DONE, REFUSED, BROKEN, DOUBT = Ended
COMMITTED, ABORTED, QUARANTINED = Settlement
LANDED = (DONE, BROKEN)


def member(ordinal: int, role: Role, outcome: Ended = NONE, *, undo: bool = True, back: Ended = NONE) -> Member:
    return Member(
        ordinal=ordinal, role=role, resource="stock", outcome=outcome, has_reversal=undo and role is REVERSIBLE,
        reversal=back,
    )  # fmt: skip


Group = tuple[Member, ...]
Seen = tuple[tuple[object, ...], ...]


def told(group: Group, ordinals: tuple[int, ...], outcome: Ended) -> Group:
    return tuple(msgspec.structs.replace(one, outcome=outcome) if one.ordinal in ordinals else one for one in group)


def back(group: Group, ordinal: int, outcome: Ended) -> Group:
    return tuple(msgspec.structs.replace(one, reversal=outcome) if one.ordinal == ordinal else one for one in group)


def played(group: Group, holds: bool, aborting: bool, seen: Seen = ()) -> Iterator[tuple[Group, Seen]]:
    """Every way in which the group can go on, to its end: what was done in order, and the members as they are then.
    Nothing is remembered between two moves but the members, so that a crash between them changes nothing."""
    assert len(seen) < 20
    move: object
    if aborting:
        move = decide_settle(group, "given up")
        if move is None:
            left = reversals(group)
            assert isinstance(left, tuple)
            for outcome in (DONE, REFUSED, BROKEN, DOUBT):
                yield from played(back(group, left[0], outcome), holds, True, (*seen, ("reverse", left[0], outcome)))
            return
    else:
        move = decide_commit([("it holds", holds)], group)
    if isinstance(move, Abort):
        yield from played(group, holds, True, (*seen, ("abort",)))
    elif isinstance(move, Transact):
        for outcome in (DONE, REFUSED):
            yield from played(told(group, move.ordinals, outcome), holds, False, (*seen, ("transact", 0, outcome)))
    elif isinstance(move, Release):
        for outcome in (DONE, REFUSED, BROKEN, DOUBT):
            after = told(group, (move.ordinal,), outcome)
            yield from played(after, holds, False, (*seen, ("release", move.ordinal, outcome)))
    else:
        assert isinstance(move, Settle | InDoubt)
        yield group, (*seen, (move.outcome if isinstance(move, Settle) else "doubt",))


def openings() -> Iterator[Group]:
    """Two reversible members however they ended, a read, up to two atomic ones and up to two deferred ones."""
    ends = [(outcome, undo) for outcome in (DONE, REFUSED, BROKEN, DOUBT) for undo in (False, True)]
    for (one, undo_one), (two, undo_two), atomic, deferred in product(ends, ends, range(3), range(3)):
        eager = [
            member(0, REVERSIBLE, one, undo=undo_one),
            member(1, READ, DONE),
            member(2, REVERSIBLE, two, undo=undo_two),
        ]
        late = [member(3 + at, DEFERRED) for at in range(deferred)] + [member(6 + at, ATOMIC) for at in range(atomic)]
        yield (*eager, *late)


def faults(group: Group, seen: Seen, *, holds: bool, gave_up: bool) -> list[str]:
    """Rules of how it went, each said of the whole."""
    found = []
    names = [what[0] for what in seen]
    end = names[-1]
    released = [at for at, name in enumerate(names) if name == "release"]
    transacted = [at for at, name in enumerate(names) if name == "transact"]
    reversed_ = [what for what in seen if what[0] == "reverse"]
    if (released or transacted) and (not holds or gave_up):
        found.append("past the frontier without the invariants")
    if any(late > early for late in transacted for early in released) or len(transacted) > 1:
        found.append("the transaction does not precede the gate")
    if any(one.outcome is not DONE for one in group if one.role is ATOMIC) and released:
        found.append("released without the transaction")
    out = any(one.role in (ATOMIC, DEFERRED) and one.outcome in LANDED for one in group)
    doubt = any(DOUBT in (one.outcome, one.reversal) for one in group)
    if reversed_ and out:
        found.append("taken back past something that is out")
    if [what[1] for what in reversed_] != sorted((what[1] for what in reversed_), key=lambda n: -int(str(n))):
        found.append("not in reverse order")
    if any(what[2] is not DONE for what in reversed_[:-1]):
        found.append("taken back around a reversal that failed")
    if (end == "doubt") != doubt:
        found.append("doubt is not told, or told without any")
    if end == ABORTED and any(one.stands for one in group):
        found.append("aborted, and something stands")
    if end == COMMITTED and (
        not holds or gave_up or reversed_
        or any(one.outcome is not DONE for one in group if one.role in (ATOMIC, DEFERRED))
    ):  # fmt: skip
        found.append("committed, and not every member stands")
    could = all(one.has_reversal for one in group if one.role is REVERSIBLE and one.outcome in LANDED)
    failed = any(what[2] is not DONE for what in reversed_)
    if end == QUARANTINED and not (out or failed or not could):
        found.append("quarantined where it could have been taken back")
    return found


@pytest.mark.parametrize("holds", [True, False])
@pytest.mark.parametrize("gave_up", [True, False])
def test_every_way_through_a_group_keeps_the_rules(holds: bool, gave_up: bool) -> None:
    """S69: Whatever each member does, committed or given up. Spec: EffectGroup.AlwaysSettles."""
    ends: set[object] = set()
    count = 0
    for group in openings():
        for after, seen in played(group, holds, gave_up):
            count += 1
            ends.add(seen[-1][0])
            assert not (wrong := faults(after, seen, holds=holds, gave_up=gave_up)), (wrong, seen, after)
    assert count > 500
    assert ends == {ABORTED, QUARANTINED, "doubt"} | ({COMMITTED} if holds and not gave_up else set())


def test_the_frontier_is_crossed_in_order() -> None:
    """Invariants, one transaction of all atomic members, the deferred ones as they were registered, the settlement.
    Spec: EffectGroup.TransactionPrecedesTheGate."""
    group: Group = (member(0, DEFERRED), member(1, ATOMIC), member(2, DEFERRED), member(3, ATOMIC))
    assert decide_commit([("a", True)], group) == Transact((1, 3))
    group = told(group, (1, 3), DONE)
    assert decide_commit([("a", True)], group) == Release(0)
    group = told(group, (0,), DONE)
    assert decide_commit([("a", True)], group) == Release(2)
    assert decide_commit([("a", True)], told(group, (2,), DONE)) == Settle(COMMITTED)


def test_the_first_false_invariant_is_named() -> None:
    """Which condition stopped the group stands on the record, and not in a sentence that somebody rewords."""
    group = (member(0, REVERSIBLE, DONE), member(1, DEFERRED))
    assert decide_commit([("a", True), ("b", False), ("c", False)], group) == Abort("b")


def test_an_invariant_that_turned_false_behind_the_frontier_takes_nothing_back() -> None:
    """A re-walk judges it again, and by then something is out."""
    group = (member(0, REVERSIBLE, DONE), member(1, DEFERRED, DONE), member(2, DEFERRED))
    assert decide_commit([("a", False)], group) == Settle(QUARANTINED, "a")


@pytest.mark.parametrize("value", [1, 0, None, "", "yes", [], 1.0])
def test_an_invariant_is_a_bool(value: object) -> None:
    """Truth that somebody guesses is no condition; nothing runs for such a commit."""
    found = decide_commit([("a", False), ("the hold covers it", value)], (member(0, DEFERRED),))
    assert isinstance(found, Refused) and "'the hold covers it'" in found.why


def test_a_deferred_member_that_fails_first_costs_nothing() -> None:
    """Nothing is out: the group is taken back."""
    group = (member(0, REVERSIBLE, DONE), member(1, DEFERRED, REFUSED), member(2, DEFERRED))
    assert isinstance(decide_commit([], group), Abort)
    assert reversals(group) == (0,) and decide_settle(group) is None
    assert decide_settle(back(group, 0, DONE), "x") == Settle(ABORTED, "x")


def test_a_deferred_member_that_fails_behind_another_is_for_a_person() -> None:
    """Something is out that nothing takes back."""
    group = (member(0, REVERSIBLE, DONE), member(1, DEFERRED, DONE), member(2, DEFERRED, REFUSED))
    assert isinstance(found := decide_commit([], group), Settle) and found.outcome is QUARANTINED
    assert "member 2" in (found.detail or "")
    assert isinstance(stuck := reversals(group), Impossible) and stuck.member == 1
    assert isinstance(ended := decide_settle(group), Settle) and ended.outcome is QUARANTINED


def test_behind_the_transaction_there_is_no_cheap_abort() -> None:
    """Though the deferred member was the first to be tried."""
    group = (member(0, ATOMIC, DONE), member(1, DEFERRED, REFUSED))
    assert isinstance(found := decide_commit([], group), Settle) and found.outcome is QUARANTINED
    assert isinstance(found := decide_settle(group), Settle) and found.outcome is QUARANTINED


def test_a_transaction_that_was_refused_is_a_clean_refusal() -> None:
    """The store rolled it back: nothing stands."""
    group = (member(0, REVERSIBLE, DONE), member(1, ATOMIC, REFUSED), member(2, DEFERRED))
    assert isinstance(decide_commit([], group), Abort) and reversals(group) == (0,)


def test_nothing_is_taken_back_in_doubt() -> None:
    """S74: Of a member or of a reversal: the group is left open, and the run names it."""
    group: Group = (member(0, REVERSIBLE, DONE), member(1, REVERSIBLE, DOUBT))
    assert decide_commit([("a", False)], group) == InDoubt(1) == decide_settle(group)
    assert isinstance(reversals(group), Impossible)
    group = back(told(group, (1,), DONE), 1, DOUBT)
    assert decide_commit([], group) == InDoubt(1) == decide_settle(group)


def test_a_member_whose_reversal_nobody_has_stops_an_abort_before_it_begins() -> None:
    """It landed, and settling as aborted would say that it was discharged."""
    for broken in (member(0, REVERSIBLE, DONE, undo=False), member(0, REVERSIBLE, BROKEN, undo=False)):
        group = (broken, member(1, REVERSIBLE, DONE))
        assert reversals(group) == Impossible(0, "it landed and has no reversal")
        assert decide_settle(group) == Settle(QUARANTINED, "Member 0: it landed and has no reversal.")


@pytest.mark.parametrize("failed", [REFUSED, BROKEN])
def test_a_reversal_that_fails_stops_the_abort(failed: Ended) -> None:
    """S76: Going on would take back members around one of which nobody knows. Spec: EffectGroup.ReversedInReverse."""
    group = (member(0, REVERSIBLE, DONE), member(1, REVERSIBLE, DONE, back=failed))
    assert reversals(group) == Impossible(1, "its reversal failed")
    assert isinstance(found := decide_settle(group), Settle) and found.outcome is QUARANTINED


def test_a_group_whose_abort_began_is_not_committed_any_more() -> None:
    """A re-walk comes to the commit with a member that was taken back in another life."""
    group = (member(0, REVERSIBLE, DONE), member(1, REVERSIBLE, DONE, back=DONE), member(2, DEFERRED))
    assert isinstance(decide_commit([("a", True)], group), Abort)


def test_a_group_that_is_given_up_never_commits() -> None:
    """Whoever forgets to settle has settled nothing: all members landed, and the ending is an abort."""
    group: Group = (member(0, REVERSIBLE, DONE), member(1, REVERSIBLE, DONE))
    assert decide_settle(group) is None and reversals(group) == (1, 0)
    group = back(back(group, 1, DONE), 0, DONE)
    assert decide_settle(group, "left open") == Settle(ABORTED, "left open")


def test_what_has_ended_is_not_asked_again() -> None:
    """A re-walk finds it recorded: no transaction, no release and no reversal a second time."""
    late: Group = (member(0, ATOMIC, DONE), member(1, DEFERRED, DONE), member(2, DEFERRED))
    assert decide_commit([], late) == Release(2)
    early: Group = (member(0, REVERSIBLE, DONE), member(1, REVERSIBLE, DONE, back=DONE))
    assert reversals(early) == (0,)


def test_an_eager_member_that_was_refused_leaves_nothing_behind() -> None:
    """The skill may go on without it, and there is nothing to take back."""
    group = (member(0, REVERSIBLE, REFUSED), member(1, REVERSIBLE, DONE))
    assert decide_commit([("a", True)], group) == Settle(COMMITTED)
    assert reversals(group) == (1,)


def test_an_empty_group_ends_either_way() -> None:
    """A commit of nothing is one, and giving it up leaves nothing."""
    assert decide_commit([], ()) == Settle(COMMITTED)
    assert decide_settle((), "left open") == Settle(ABORTED, "left open")


def test_the_footprint_is_enforced() -> None:
    """A member names a resource of the group, before it runs, and one that mutates is no read."""
    footprint = ["inventory", "payments"]
    assert member_refused(footprint, REVERSIBLE, "payments", mutates=True) is None
    assert member_refused(footprint, READ, "inventory", mutates=False) is None
    outside = member_refused(footprint, DEFERRED, "notify", mutates=True)
    assert outside is not None and "'notify'" in outside.why
    assert member_refused(footprint, READ, "inventory", mutates=True) is not None
    long = member_refused(footprint, READ, "x" * 10_000, mutates=False)
    assert long is not None and len(long.why) < 200


def test_a_mutation_beside_an_open_group_is_refused() -> None:
    """It would stand behind a group that says it was taken back whole; a read leaves nothing."""
    assert beside_refused(mutates=True) is not None and beside_refused(mutates=False) is None


def test_a_failure_is_cheap_until_something_is_out() -> None:
    """One rule for invariants, transactions and deferred members."""
    assert decide_after_failure("x", externalised=False) == Abort("x")
    assert decide_after_failure("x", externalised=True) == Settle(QUARANTINED, "x")
