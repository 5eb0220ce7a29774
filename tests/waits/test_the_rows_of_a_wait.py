"""What a record does to the rows that outlive its run: in its own unit, or not at all."""

from __future__ import annotations

import apsw
import pytest

from agentplane.core.errors import HeadMoved, InvariantViolation
from agentplane.core.history import AWAIT, SLEEP, TASK
from agentplane.core.records import Approved, Descriptor, EffectDone, RunSuspended
from agentplane.journal import appends, lists, rows, subscriptions, timers
from agentplane.journal.tx import Tx
from agentplane.testkit.cases_hold import case_id, close, correlate, keys
from agentplane.testkit.events_hold import ORDER, announced, arm, awaits, delivered, event_id, wait_key
from agentplane.testkit.ledger import Ledger, ask, key_of, run_id
from agentplane.testkit.tasks_hold import DIGEST, actor, decide, opened, task_of
from agentplane.testkit.undo_hold import member
from agentplane.work import events, matters, tasks
from journal.stores import PlainStore


def test_an_outcome_that_is_refused_takes_no_row_away(plain: PlainStore) -> None:
    """Outcome, timer, subscription, task and the claim of the event are one unit: the head refuses all of them.

    Spec: Delivery.ClaimAndOutcomeTogether.
    """
    one = Ledger(plain).admit()
    awaits(one, 1, due_ms=90)
    one.append(announced(one, 2, TASK))
    opened(plain, one.run, wait_key(2), 2)
    delivered(plain, 1)
    stale = one.head
    one.append(one.started(3, mutates=False))

    def unit(tx: Tx) -> None:
        assert events.consume(tx, event_id(1), one.run, wait_key(1))
        done = one.link(one.done(1), one.done(2, seq=one.head.seq + 2))
        appends.append(tx, one.run, one.lease.epoch, stale, done)

    with pytest.raises(HeadMoved):
        plain.unit(unit)
    assert [row.key for row in ask(plain, subscriptions.of_run, one.run)] == [wait_key(1)]
    assert [row.key for row in ask(plain, timers.of_run, one.run)] == [wait_key(1)]
    assert ask(plain, tasks.get, task_of(2)).state == "open"
    assert ask(plain, events.is_buffered, event_id(1))


def test_a_consumption_that_is_refused_is_none(plain: PlainStore) -> None:
    """The announcement and the use of the approval are one unit: refused, the approval is as good as before."""
    one = Ledger(plain).admit()
    one.append(announced(one, 1, TASK))
    opened(plain, one.run, wait_key(1), 1)
    decide(plain, task_of(1))
    one.append(one.record(EffectDone, step=0, effect_key=key_of(1), by=actor("ben")))
    approval = Approved(task=task_of(1), digest=DIGEST)
    with pytest.raises(HeadMoved):
        one.put(*one.link(member(one, 2, approval=approval)), head=appends.Head(1, one.head.hash))
    assert ask(plain, tasks.get, task_of(1)).consumed is None
    one.append(member(one, 2, approval=approval))
    assert ask(plain, tasks.get, task_of(1)).consumed == (0, 0, 2)


def test_a_wait_says_of_what_kind_it_is(plain: PlainStore) -> None:
    """A timer that is due tells whether a sleep is over or an event did not come; another kind of effect is no wait."""
    one = Ledger(plain).admit()
    for number, kind in ((1, SLEEP), (2, AWAIT)):
        one.append(announced(one, number, kind, until="x"))
        arm(plain, one.run, wait_key(number), kind, {"until": "x"})
    one.append(one.started(3, mutates=False))
    found = {timer.key: timer.waits_for_event for timer in ask(plain, timers.of_run, one.run)}
    assert found == {wait_key(1): False, wait_key(2): True}
    due = {timer.key: timer.waits_for_event for timer in ask(plain, timers.due, 90, 9)}
    assert due == found
    assert [ask(plain, events.is_open_wait, one.run, wait_key(n)) for n in (1, 2, 3)] == [True, True, False]


def test_a_run_that_is_closed_is_no_longer_asked_to_stop(plain: PlainStore) -> None:
    """Nobody looks for a request that came too late, however many there are."""
    one, other = Ledger(plain).admit(), Ledger(plain, 2).admit()
    for ledger in (one, other):
        ask(plain, appends.request_cancel, ledger.run, "anna", "connected", None, "enough")
    one.append(one.concluded("succeeded"))
    other.append(other.concluded("failed"))
    left = plain.unit(lambda tx: tx.all("SELECT run FROM cancel WHERE heard = 0"))
    assert left == [(other.run,)]
    assert ask(plain, rows.unheard_cancels, 9) == [other.run]
    assert ask(plain, lists.cancellation, one.run) is not None


def test_a_stop_is_left_to_a_run_that_undoes_and_waits(plain: PlainStore) -> None:
    """Asked while it waits in a compensation, a run hears it when that wait is over; one that waits going forward is
    taken up."""
    for number, phase in ((1, {"phase": "compensating"}), (2, {})):
        one = Ledger(plain, number).admit()
        one.append(member(one, 1, descriptor=Descriptor(kind=AWAIT, args={}), mutates=False, **phase))
        ask(plain, subscriptions.arm, one.run, wait_key(1), "paid", ORDER, None)
        one.append(one.record(RunSuspended, reason="it waits"))
        ask(plain, appends.request_cancel, one.run, "anna", "connected", None, "enough")
    assert ask(plain, rows.unheard_cancels, 9) == [run_id(2)]


def test_a_run_that_succeeds_over_an_armed_timer_is_an_invariant(plain: PlainStore) -> None:
    """A wait that has its outcome has no timer, so that one which is left is told, and not taken away silently."""
    one = Ledger(plain).admit()
    ask(plain, timers.arm, one.run, wait_key(9), 90)
    with pytest.raises(InvariantViolation, match="INV-11"):
        one.append(one.concluded("succeeded"))


TASK_COLUMNS = (
    "run, key, kind, priority, state, created_ms, on_expiry, escalate_to, audience, excluded, least_basis, four_eyes, "
    "proposal"
)
EVENT_COLUMNS = "dedup, source, producer, producer_id, kind, keys, received_ms, state, payload"
TWICE = {
    "a key of two open cases": "INSERT INTO matter_key VALUES ('default', 'case_x', 'order', '1', 1)",
    "a key that another case took": "UPDATE matter_key SET open = 1",
    "a wait with two tasks": f"INSERT INTO task (tenant, task, {TASK_COLUMNS}) "
    f"SELECT tenant, 'other', {TASK_COLUMNS} FROM task",
    "a message twice": f"INSERT INTO event (tenant, event, {EVENT_COLUMNS}) "
    f"SELECT tenant, 'evt_x', {EVENT_COLUMNS} FROM event",
}


@pytest.mark.parametrize("sql", TWICE.values(), ids=TWICE)
def test_the_tables_refuse_what_the_units_never_ask(plain: PlainStore, sql: str) -> None:
    """Behind every look in a unit stands a unique index."""
    correlate(plain, 1, order="1")
    close(plain, 1)
    correlate(plain, 2, order="1")
    opened(plain, number=1)
    delivered(plain, 1)
    with pytest.raises(Exception) as refused:
        plain.unit(lambda tx: tx.run(sql))
    assert apsw.ConstraintError.__name__ in str(refused.value)
    assert ask(plain, matters.by_key, keys(order="1")[0]) == case_id(2)
