"""Timers: what is due, in one order, and gone with the run that ends."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from agentplane.core.errors import InvariantViolation, OpenEffects
from agentplane.core.records import BudgetRaised, RunSuspended, UnwindBegan
from agentplane.journal import appends, lists, timers
from agentplane.journal.timers import Timer
from agentplane.testkit.ledger import Ledger, ask, key_of, run_id
from journal.stores import PlainStore

KEY = {number: bytes.fromhex(key_of(number)) for number in range(8)}


def row(plain: PlainStore, run: str) -> lists.RunRow:
    return plain.unit(lambda tx: lists.get_run(tx, run))


def test_what_is_due_comes_in_one_total_order_a_page_at_a_time(plain: PlainStore) -> None:
    """Earliest first, then by run and key; the very instant is due; a cursor neither repeats nor skips."""
    armed = [Timer(run_id(run), KEY[key], due) for run, key, due in ((2, 1, 50), (1, 2, 50), (1, 1, 50), (3, 1, 40),
                                                                    (4, 1, 51))]  # fmt: skip
    for timer in armed:
        ask(plain, timers.arm, timer.run, timer.key, timer.due_ms)
    expected = [armed[3], armed[2], armed[1], armed[0]]
    assert ask(plain, timers.due, 50, 100) == expected
    assert ask(plain, timers.due, 39, 100) == []
    paged: list[Timer] = []
    after: tuple[int, str, bytes] | None = None
    while page := ask(plain, timers.due, 50, 1, after):
        paged += page
        after = (page[-1].due_ms, page[-1].run, page[-1].key)
    assert paged == expected
    assert ask(plain, timers.next_due_ms) == 40
    assert ask(plain, timers.due_of, run_id(1), 50) == [armed[2], armed[1]]
    assert ask(plain, timers.due_of, run_id(4), 50) == [] and ask(plain, timers.of_run, run_id(4)) == [armed[4]]
    plan = plain.unit(lambda tx: tx.all(
        "EXPLAIN QUERY PLAN SELECT run, key, due_ms FROM timer WHERE tenant = ? AND due_ms <= ? "
        "AND (due_ms, run, key) > (?, ?, ?) ORDER BY due_ms, run, key LIMIT ?", "default", 50, 1, "", b"", 5
    ))  # fmt: skip
    assert "timer_due" in str(plan) and "TEMP B-TREE" not in str(plan)


def test_a_timer_is_armed_once_and_taken_away_once(plain: PlainStore) -> None:
    """Arming again moves it; taking away says whether it was there, and how many a run had."""
    for due in (50, 50, 60):
        ask(plain, timers.arm, run_id(1), KEY[1], due)
    assert ask(plain, timers.of_run, run_id(1)) == [Timer(run_id(1), KEY[1], 60)]
    assert ask(plain, timers.disarm, run_id(1), KEY[1]) is True
    assert ask(plain, timers.disarm, run_id(1), KEY[1]) is False
    assert ask(plain, timers.next_due_ms) is None
    for key in (1, 2, 3):
        ask(plain, timers.arm, run_id(1), KEY[key], 50)
    ask(plain, timers.arm, run_id(2), KEY[1], 50)
    assert ask(plain, timers.disarm_run, run_id(1)) == 3
    assert ask(plain, timers.next_due_ms) == 50


@pytest.mark.parametrize("outcome", ["failed", "exhausted", "quarantined"])
def test_no_timer_wakes_a_run_that_ended_for_now(plain: PlainStore, outcome: str) -> None:
    """S35: A run that a person may resume loses its timers with its conclusion, and another run keeps its own.

    Spec: Timers.NoWakeAfterConclusion.
    """
    one = Ledger(plain).admit()
    for run in (one.run, run_id(2)):
        ask(plain, timers.arm, run, KEY[1], 50)
    one.append(one.started(1, mutates=False))
    one.append(one.concluded(outcome))
    assert ask(plain, timers.of_run, one.run) == [] and len(ask(plain, timers.of_run, run_id(2))) == 1


@pytest.mark.parametrize("outcome", ["succeeded", "cancelled", "abandoned"])
def test_a_run_does_not_end_for_good_over_a_timer(plain: PlainStore, outcome: str) -> None:
    """S35: Whoever ends it takes its timers away first: one that is left is an invariant, and the row stays."""
    one = Ledger(plain).admit()
    ask(plain, timers.arm, one.run, KEY[1], 50)
    with pytest.raises(InvariantViolation, match="INV-11"):
        one.append(one.concluded(outcome))
    assert len(ask(plain, timers.of_run, one.run)) == 1 and row(plain, one.run).status == "running"
    ask(plain, timers.disarm_run, one.run)
    one.append(one.concluded(outcome))


def suspended(one: Ledger, *keys: int, due: int = 50) -> None:
    """One unit as the engine's: announcements of waits, their timers, the suspension."""
    waits = [one.started(key, mutates=False, seq=one.head.seq + 1 + at) for at, key in enumerate(keys)]
    last = one.record(RunSuspended, seq=one.head.seq + 1 + len(waits), reason="it waits")
    for key in keys:
        ask(one.store, timers.arm, one.run, KEY[key], due)
    one.append(*waits, last)


def test_a_suspended_run_is_listed_with_why_and_until_when(plain: PlainStore) -> None:
    """S36: The suspension has the last word over the announcements in its batch; the list is in the order of waking,
    and a run that no timer wakes stands last."""
    ends = [Ledger(plain, number).admit() for number in (1, 2, 3, 4)]
    for one, due in zip(ends[:3], (70, 50, 70), strict=True):
        suspended(one, 1, 2, due=due)
    ends[3].append(ends[3].record(RunSuspended, reason="an event"))
    ask(plain, timers.arm, ends[0].run, KEY[3], 90)
    assert {one.run: row(plain, one.run).status for one in ends} == dict.fromkeys(map(run_id, range(1, 5)), "suspended")
    assert row(plain, ends[0].run).reason == "it waits"
    paged: list[Any] = []
    after: tuple[int, str] | None = None
    while page := ask(plain, lists.waiting, limit=1, after=after):
        paged += [(one.run, one.reason, one.until_ms) for one in page]
        after = page[-1].cursor
    assert paged == [
        (run_id(2), "it waits", 50), (run_id(1), "it waits", 70), (run_id(3), "it waits", 70),
        (run_id(4), "an event", None),
    ]  # fmt: skip


def test_whatever_takes_a_run_up_clears_why_it_stood(plain: PlainStore) -> None:
    """Waking, an unwind and a raised ceiling set the row to running, without the reason and code of before."""
    one = Ledger(plain).admit()
    suspended(one, 1)
    ask(plain, appends.resumed, one.run)
    assert (row(plain, one.run).status, row(plain, one.run).reason) == ("running", None)
    one.append(one.done(1))
    one.append(one.concluded("failed", reason="no", code="c"))
    one.append(one.record(UnwindBegan, cause="failed", steps=[0]))
    assert (row(plain, one.run).status, row(plain, one.run).reason, row(plain, one.run).code) == ("running", None, None)
    one.append(one.concluded("exhausted", reason="no", code="c"))
    raised = {"raised_by": {"actor": "a", "basis": "asserted"}, "ceilings": {"max_steps": 2}, "reason": "r"}
    one.append(one.record(BudgetRaised, **raised))
    assert (row(plain, one.run).status, row(plain, one.run).reason, row(plain, one.run).code) == ("running", None, None)


def test_a_suspension_is_progress(plain: PlainStore) -> None:
    """A run that got as far as waiting is no suspect of killing its process (P4)."""
    one = Ledger(plain).admit()
    plain.now_ms += 40_000
    one.opening = "o2"
    assert one.acquire().takeovers == 1
    suspended(one, 1)
    plain.now_ms += 40_000
    assert one.acquire().takeovers == 1


def test_an_open_wait_holds_up_a_success(plain: PlainStore) -> None:
    """A wait is an announcement: its step and its run succeed over none (P14)."""
    one = Ledger(plain).admit()
    suspended(one, 1)
    for record in (one.finished("succeeded"), one.concluded("succeeded"), one.concluded("cancelled")):
        with pytest.raises(OpenEffects):
            one.append(record)
    assert partial(ask, plain, appends.open_effects)(one.run) == [key_of(1)]
