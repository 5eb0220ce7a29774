"""What is counted of tasks for who is told of them: each task once, over stretches that meet."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentplane.core.notices import Tally
from agentplane.core.records import Actor, Basis
from agentplane.core.tasks import Reviewer
from agentplane.journal.tx import Row, Tx, Value
from agentplane.testkit.tasks_hold import opened
from agentplane.work import tasks, telling
from journal.stores import NOW, PlainStore

BEN = Actor(actor="ben", basis=Basis.CONNECTED)
WHO = Reviewer(actor="ben", basis=Basis.CONNECTED, roles=("reviewer",))
BEFORE, BEYOND = NOW - 1, NOW + 10**9


def at(store: PlainStore, number: int, created_ms: int, due_ms: int | None = None) -> str:
    """A task that was opened then."""
    kept, store.now_ms = store.now_ms, created_ms
    task = opened(store, number=number, key=number.to_bytes(32, "big"), due_ms=due_ms)
    store.now_ms = kept
    return task


def test_a_task_that_was_opened_is_counted_whatever_became_of_it(plain: PlainStore) -> None:
    """And once, by whichever of two stretches that meet it lies in."""
    at(plain, 1, NOW)
    decided = at(plain, 2, NOW + 10)
    at(plain, 3, NOW + 10)
    plain.unit(lambda tx: tasks.decide(tx, decided, WHO, BEN, {}, said="approve", reason="looked"))
    assert plain.unit(lambda tx: telling.opened(tx, BEFORE, NOW + 9)) == Tally(1, NOW)
    assert plain.unit(lambda tx: telling.opened(tx, NOW, NOW + 10)) == Tally(2, NOW + 10)
    assert plain.unit(lambda tx: telling.opened(tx, NOW + 10, BEYOND)) == Tally()
    assert plain.unit(telling.pending) == Tally(2, NOW)


def test_a_window_that_nobody_answered_in_is_counted_when_it_was_closed(plain: PlainStore) -> None:
    task = at(plain, 1, NOW, NOW + 100)
    at(plain, 2, NOW, NOW + 100)
    plain.now_ms = NOW + 500
    plain.unit(lambda tx: tasks.expire(tx, task))
    assert plain.unit(lambda tx: telling.unanswered(tx, NOW, NOW + 499)) == Tally()
    assert plain.unit(lambda tx: telling.unanswered(tx, NOW, NOW + 500)) == Tally(1, NOW + 500)


def test_half_a_window_is_counted_of_what_waits(plain: PlainStore) -> None:
    """Claimed or not; not of what was decided, nor of what has no end."""
    at(plain, 1, NOW, NOW + 100)
    claimed, decided = at(plain, 2, NOW, NOW + 200), at(plain, 3, NOW, NOW + 100)
    at(plain, 4, NOW)
    plain.unit(lambda tx: tasks.claim(tx, claimed, WHO, BEN, {}))
    plain.unit(lambda tx: tasks.decide(tx, decided, WHO, BEN, {}, said="approve", reason="looked"))
    assert plain.unit(lambda tx: telling.half_gone(tx, BEFORE, NOW + 49)) == Tally()
    assert plain.unit(lambda tx: telling.half_gone(tx, BEFORE, NOW + 50)) == Tally(1, NOW + 50)
    assert plain.unit(lambda tx: telling.half_gone(tx, BEFORE, BEYOND)) == Tally(2, NOW + 50)


def put(tx: Tx, number: int, opened_ms: int, due_ms: int) -> None:
    tx.run(
        "INSERT INTO task (tenant, task, run, key, kind, priority, state, created_ms, due_ms, on_expiry, escalate_to, "
        "audience, excluded, least_basis, four_eyes, proposal) VALUES (?, ?, 'r', ?, 'k', 1, 'open', ?, ?, 'deny', "
        "'[]', '[]', '[]', 'connected', 1, x'')",
        tx.tenant, f"{number:064x}", number.to_bytes(32, "big"), opened_ms, due_ms,
    )  # fmt: skip


def test_of_two_thousand_tasks_none_is_left_out(plain: PlainStore) -> None:
    """No page ends a count, in whatever order their windows close."""

    def many(tx: Tx) -> None:
        for n in range(2_000):
            put(tx, n, NOW, NOW + 10 + 2 * (2_000 - n))

    plain.unit(many)
    assert plain.unit(telling.pending) == plain.unit(lambda tx: telling.opened(tx, BEFORE, NOW)) == Tally(2_000, NOW)
    assert plain.unit(lambda tx: telling.half_gone(tx, BEFORE, BEYOND)) == Tally(2_000, NOW + 6)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(
    windows=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 80)), max_size=8),
    cuts=st.lists(st.integers(-5, 120), min_size=2, max_size=6),
)
def test_each_half_is_in_exactly_one_of_the_stretches_that_meet(
    plain: PlainStore, windows: list[tuple[int, int]], cuts: list[int]
) -> None:
    """However the looks fall."""
    cuts = sorted(cuts)
    halves = [(opened_ms + opened_ms + width) // 2 for opened_ms, width in windows]

    def whole(tx: Tx) -> None:
        tx.run("DELETE FROM task")
        for n, (opened_ms, width) in enumerate(windows):
            put(tx, n, opened_ms, opened_ms + width)
        for since, until in [*pairwise(cuts), (cuts[0], cuts[-1])]:
            inside = [half for half in halves if since < half <= until]
            assert telling.half_gone(tx, since, until) == Tally(len(inside), min(inside, default=None))

    plain.unit(whole)


@pytest.mark.parametrize(
    ("ask", "index"),
    [
        (telling.pending, "task_queue"),
        (lambda tx: telling.opened(tx, 1, 2), "task_created"),
        (lambda tx: telling.half_gone(tx, 1, 2), "task_"),
        (lambda tx: telling.unanswered(tx, 1, 2), "task_expired"),
    ],
)
def test_each_count_is_taken_from_an_index(plain: PlainStore, ask: Callable[[Tx], Tally], index: str) -> None:
    """No look once a minute walks the table."""
    said: list[str] = []

    class Noted(Tx):
        def one(self, sql: str, *params: Value) -> Row | None:
            said.append(sql)
            return super().one("EXPLAIN QUERY PLAN " + sql, *params)

    with contextlib.suppress(TypeError):  # a plan is no count
        plain.unit(lambda tx: ask(Noted(tx.connection, tx.tenant, tx.now_ms)))
    (sql,) = said
    given_none = [None] * sql.count("?")
    (plan,) = plain.unit(lambda tx: tx.all("EXPLAIN QUERY PLAN " + sql, *given_none))
    assert str(plan[3]).startswith("SEARCH") and index in str(plan[3])
