"""Every list, scan and claim is answered from an index, in its order: no table is walked and nothing is sorted."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from agentplane.core.records import Actor, Basis, Key
from agentplane.core.tasks import Reviewer
from agentplane.journal import leases, lists, obligations, rows, subscriptions, timers, worklist
from agentplane.journal.tx import Row, Tx, Value
from agentplane.testkit.ledger import Ledger, run_id
from agentplane.testkit.tasks_hold import opened
from agentplane.work import events, matters, schedules, tasks
from journal.stores import PlainStore

KEYS = (Key(namespace="order", value="1"), Key(namespace="parcel", value="9"))
WHO = Reviewer(actor="ben", basis=Basis.CONNECTED, roles=("reviewer",))
BEN = Actor(actor="ben", basis=Basis.CONNECTED)

Ask = Callable[[Tx], object]
LISTS: dict[str, tuple[Ask, set[str]]] = {
    "lists.runs": (lambda tx: lists.runs(tx), {"run_admitted"}),
    "lists.runs of a status": (lambda tx: lists.runs(tx, status="failed"), {"run_status"}),
    "lists.runs_of_case": (lambda tx: lists.runs_of_case(tx, "c"), {"run_case"}),
    "lists.waiting": (lambda tx: lists.waiting(tx), {"run_waiting"}),
    "lists.failed_with_landed": (lambda tx: lists.failed_with_landed(tx), {"run_standing"}),
    "lists.unsettled_groups": (lambda tx: lists.unsettled_groups(tx), {"grp_open", "sqlite_autoindex_run_1"}),
    "lists.history": (lambda tx: lists.history(tx, run_id(1)), {"sqlite_autoindex_record_1"}),
    "rows.held_runs": (rows.held_runs, {"run_held"}),
    "rows.held_without_key": (rows.held_without_key, {"run_held", "admission_run"}),
    "rows.open_runs": (rows.open_runs, {"run_status"}),
    "rows.unheard_cancels": (
        lambda tx: rows.unheard_cancels(tx, 5), {"cancel_unheard", "sqlite_autoindex_run_1", "effect_wait"},
    ),
    "rows.suspended_without_timer": (
        lambda tx: rows.suspended_without_timer(tx, 5), {"effect_lacks", "sqlite_autoindex_run_1"},
    ),
    "rows.is_unarmed": (lambda tx: rows.is_unarmed(tx, "r"), {"effect_lacks", "sqlite_autoindex_run_1"}),
    "leases.abandoned": (lambda tx: leases.abandoned(tx, 5), {"lease_owned"}),
    "timers.due": (lambda tx: timers.due(tx, 5, 5), {"timer_due", "PRIMARY KEY"}),
    "timers.of_run": (lambda tx: timers.of_run(tx, "r"), {"timer_run", "PRIMARY KEY"}),
    "timers.due_of": (lambda tx: timers.due_of(tx, "r", 5), {"timer_run", "PRIMARY KEY"}),
    "timers.next_due_ms": (timers.next_due_ms, {"timer_due"}),
    "subscriptions.of_run": (lambda tx: subscriptions.of_run(tx, "r"), {"PRIMARY KEY"}),
    "subscriptions.waiters": (
        lambda tx: subscriptions.waiters(tx, "k", KEYS, "s", 5), {"subscription_key"},
    ),
    "subscriptions.arm": (
        lambda tx: subscriptions.arm(tx, "r", bytes(32), "k", KEYS, None), {"subscription_key"},
    ),
    "subscriptions.disarm_run": (lambda tx: subscriptions.disarm_run(tx, "r"), {"PRIMARY KEY"}),
    "obligations.of_subject": (lambda tx: obligations.of_subject(tx, "c"), {"PRIMARY KEY"}),
    "obligations.due": (lambda tx: obligations.due(tx, 5, 5), {"obligation_next"}),
    "obligations.owed": (lambda tx: obligations.owed(tx, 5), {"obligation_owed"}),
    "obligations.breached": (lambda tx: obligations.breached(tx, 5), {"obligation_breached"}),
    "obligations.next_due_ms": (obligations.next_due_ms, {"obligation_next"}),
    "obligations.latest": (lambda tx: obligations.latest(tx, "c", "n"), {"PRIMARY KEY"}),
    "worklist.settle": (
        lambda tx: worklist.settle(tx, run_id(1), bytes(32), told=True), {"task_wait"},
    ),
    "worklist.withdraw_run": (lambda tx: worklist.withdraw_run(tx, run_id(1)), {"task_wait", "PRIMARY KEY"}),
    "matters.correlate": (
        lambda tx: matters.correlate(tx, KEYS, "kind", "case_9"), {"matter_key_open"},
    ),
    "matters.by_status": (lambda tx: matters.by_status(tx, "open"), {"matter_status"}),
    "matters.by_status of all": (lambda tx: matters.by_status(tx, None), {"matter_opened"}),
    "matters.history": (lambda tx: matters.history(tx, "c"), {"record_case"}),
    "matters.runs_of": (lambda tx: matters.runs_of(tx, "c"), {"run_case"}),
    "matters.keys_of": (lambda tx: matters.keys_of(tx, "c"), {"PRIMARY KEY"}),
    "matters.census": (matters.census, {"matter_status"}),
    "events.store": (
        lambda tx: events.store(tx, "e", bytes(32), "s", "", "i", "k", KEYS, b"{}", 5), {"event_dedup"},
    ),
    "events.waiters": (lambda tx: events.waiters(tx, "k", KEYS, "s", 5), {"subscription_key"}),
    "events.oldest": (lambda tx: events.oldest(tx, "k", KEYS, "s"), {"PRIMARY KEY", "sqlite_autoindex_event_1"}),
    "events.parked": (lambda tx: events.parked(tx, 5), {"event_parked"}),
    "events.claimed": (lambda tx: events.claimed(tx, 5), {"event_claimed"}),
    "events.dead_letters": (lambda tx: events.dead_letters(tx, 5), {"event_dead"}),
    "events.has_older": (lambda tx: events.has_older(tx, 5), {"event_unclaimed"}),
    "events.age_out": (lambda tx: events.age_out(tx, -5, 5, "w"), {"event_unclaimed"}),
    "events.counts": (events.counts, {"event_unclaimed", "event_parked", "event_claimed", "event_dead"}),
    "events.is_open_wait": (
        lambda tx: events.is_open_wait(tx, "r", b""), {"PRIMARY KEY", "sqlite_autoindex_run_1"},
    ),
    "tasks.queue": (lambda tx: tasks.queue(tx, 5), {"task_queue"}),
    "tasks.queue of a role": (
        lambda tx: tasks.queue(tx, 5, role="reviewer"), {"task_audience_queue", "sqlite_autoindex_task_1"},
    ),
    "tasks.overdue": (lambda tx: tasks.overdue(tx, 5, 5), {"task_due"}),
    "tasks.unanswered": (lambda tx: tasks.unanswered(tx, 5, 5), {"task_due", "task_escalated"}),
    "tasks.undelivered": (lambda tx: tasks.undelivered(tx, 5), {"task_undelivered", "sqlite_autoindex_run_1"}),
    "tasks.decided_at": (lambda tx: tasks.decided_at(tx, "r", b""), {"task_wait"}),
    "tasks.decided_of": (lambda tx: tasks.decided_of(tx, "r"), {"task_wait"}),
    "tasks.for_case": (lambda tx: tasks.for_case(tx, "c"), {"task_case"}),
    "tasks.count_open": (tasks.count_open, {"task_queue"}),
    "tasks.next_due_ms": (tasks.next_due_ms, {"task_due"}),
    "tasks.opened_since": (lambda tx: tasks.opened_since(tx, 5, 5), {"task_created"}),
    "tasks.expired_since": (lambda tx: tasks.expired_since(tx, 5, 5), {"task_expired"}),
    "tasks.windows": (lambda tx: tasks.windows(tx, 5), {"task_due"}),
    "tasks.beginning": (lambda tx: tasks.beginning(tx, "ab", 5), {"sqlite_autoindex_task_1"}),
    "tasks.claim": (
        lambda tx: tasks.claim(tx, f"{1:064x}", WHO, BEN, {}), {"sqlite_autoindex_task_1"},
    ),
    "schedules.last": (lambda tx: schedules.last(tx, "n"), {"PRIMARY KEY"}),
}  # fmt: skip
ROOMS = (lists, rows, leases, timers, subscriptions, obligations, worklist, matters, events, tasks)
ELSEWHERE = {
    "lists.whole_history",  # pages of lists.history
    "lists.read_history",
    "lists.verify",  # no statement
    "leases.renew_all",  # leases by run
}


class Noted(Tx):
    """A transaction that keeps every statement that reads or changes rows."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.said: dict[str, int] = {}

    __slots__ = ("said",)

    def all(self, sql: str, *params: Value) -> list[Row]:
        self.said[sql] = len(params)
        return super().all(sql, *params)

    def one(self, sql: str, *params: Value) -> Row | None:
        self.said[sql] = len(params)
        return super().one(sql, *params)

    def run(self, sql: str, *params: Value) -> int:
        self.said[sql] = len(params)
        return super().run(sql, *params)


def plans(store: PlainStore, ask: Ask) -> list[str]:
    """The lines of the query plans of everything that ``ask`` says."""

    def body(tx: Tx) -> list[str]:
        noted = Noted(tx.connection, tx.tenant, tx.now_ms)
        ask(noted)
        found: list[str] = []
        for sql, many in noted.said.items():
            found += [str(row[3]) for row in tx.all("EXPLAIN QUERY PLAN " + sql, *([None] * many))]
        return found

    return store.unit(body)


@pytest.mark.parametrize("name", LISTS)
def test_a_list_is_read_from_its_index(plain: PlainStore, name: str) -> None:
    """The plan of every statement names the index that was made for it, walks no table and sorts nothing."""
    Ledger(plain).admit()
    opened(plain, number=1)
    ask, wanted = LISTS[name]
    found = plans(plain, ask)
    assert found
    for line in found:
        assert "TEMP B-TREE" not in line and "AUTOMATIC" not in line, found
        # Of SCAN only what is not a table: the few rows that a subquery counts, a constant row.
        assert not line.startswith("SCAN") or line.startswith(("SCAN (subquery", "SCAN CONSTANT")), found
    used = {index for index in wanted if any(index in line for line in found)}
    assert used == wanted, found
    searched = [line for line in found if line.startswith("SEARCH")]
    assert all(any(index in line for index in wanted) for line in searched), found


def test_every_function_that_lists_is_among_them() -> None:
    """A new list without an entry here is found by its return type."""

    def names(room: ModuleType) -> set[str]:
        short = room.__name__.rpartition(".")[2]
        return {
            f"{short}.{name}"
            for name, made in inspect.getmembers(room, inspect.isfunction)
            if made.__module__ == room.__name__ and not name.startswith("_")
            and str(inspect.signature(made).return_annotation).startswith("list[")
        }  # fmt: skip

    every = set().union(*(names(room) for room in ROOMS))
    assert len(every) >= 20
    assert every - ELSEWHERE <= {name.split(" ")[0] for name in LISTS}
