"""The books of a month, read once the appliance has ended: the provider's, the journal, and the rows of what outlives a
run.

Owns the reading and the joining by order. Refuses to judge. Invariant: every order of the fixture has one night, and
each row that names an order, or a run or a case of it, stands in it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from agentplane.core import bounds
from agentplane.core.records import CaseBound, Record, RunAdmitted, Swept
from agentplane.journal import lists, obligations
from agentplane.journal.obligations import Obligation
from agentplane.journal.store import read_only
from agentplane.journal.tx import Tx
from agentplane.lab.approvals import order_of
from agentplane.lab.overnight.fixture import CAPABILITY, NIGHTLY, Month, Order
from agentplane.lab.provider import audit
from agentplane.lab.provider.audit import Effect
from agentplane.work import events, matters, tasks
from agentplane.work.events import Letter
from agentplane.work.matters import Matter
from agentplane.work.tasks import TaskRow

TASKS_MAX = 10_000


@dataclass(frozen=True)
class Night:
    """All that is known of one order. ``run`` None: it was never admitted."""

    order: Order
    run: str | None = None
    status: str = ""
    records: tuple[Record, ...] = ()
    deeds: tuple[Effect, ...] = ()
    tasks: tuple[TaskRow, ...] = ()
    matter: Matter | None = None
    promises: tuple[Obligation, ...] = ()
    letter: Letter | None = None


@dataclass(frozen=True)
class Tally:
    """One run of the schedule: its admission key, and its receipts at the provider."""

    run: str
    key: str
    status: str
    records: tuple[Record, ...] = ()


@dataclass(frozen=True)
class Books:
    """Everything that the verdict is reached from. ``letters``: every event by its producer's name of it;
    ``breaches``: the sweep's notes of them, by subject; ``handovers``: runs that it took over from a dead process."""

    nights: tuple[Night, ...]
    tallies: tuple[Tally, ...] = ()
    letters: Mapping[str, Letter] = field(default_factory=dict)
    effects: tuple[Effect, ...] = ()
    records: tuple[Record, ...] = ()
    tasks: tuple[TaskRow, ...] = ()
    breaches: Mapping[str, int] = field(default_factory=dict)
    handovers: int = 0


def read_books(month: Month, provider: Path, store: Path, told: Mapping[str, str]) -> Books:
    """``told``: the plane's id of each event that it took, by what its producer calls it."""
    with audit.open_book(provider) as book:
        effects = audit.effects(book)
    readers = read_only(store)
    try:
        rows = list(lists.every_run(readers.read))
        by_run = {row.run: tuple(one.record for one in lists.read_history(readers.read, row.run)) for row in rows}
        status = {row.run: row.status for row in rows}
        worklist = readers.read(_tasks)
        letters = readers.read(lambda tx: {name: events.get(tx, event) for name, event in told.items()})
        cases = readers.read(lambda tx: _cases(tx, list(by_run.values())))
        notes = _notes(readers.read)
    finally:
        readers.close()
    of_order = _runs_of(by_run)
    nights = tuple(
        _night(order, of_order.get(order.order, []), by_run, status, effects, worklist, cases, letters)
        for order in month.orders
    )
    records = tuple(record for found in by_run.values() for record in found)
    return Books(
        nights, _tallies(by_run, status), letters, tuple(effects), records, tuple(worklist),
        Counter(one.subject for one in notes if one.action == "deadline_breached"),
        sum(one.action == "run_recovered" for one in notes),
    )  # fmt: skip


def _notes(read: lists.Read) -> list[Swept]:
    """What the sweep wrote of its acts, in the runs of its own."""
    found: list[Swept] = []
    before: tuple[int, str] | None = None
    while True:
        page = read(partial(lists.runs, limit=bounds.LIST_PAGE, before=before, own=True))
        for row in page:
            found += [one.record for one in lists.read_history(read, row.run) if isinstance(one.record, Swept)]
        if len(page) < bounds.LIST_PAGE:
            return found
        before = (page[-1].admitted_ms, page[-1].run)


def _tasks(tx: Tx) -> list[TaskRow]:
    return [tasks.get(tx, task) for _, task in tasks.opened_since(tx, -1, TASKS_MAX)]


def _cases(tx: Tx, histories: Sequence[Sequence[Record]]) -> dict[str, tuple[Matter, tuple[Obligation, ...]]]:
    """By case."""
    named = {one.case for found in histories for one in found if isinstance(one, CaseBound) and one.case is not None}
    return {case: (matters.get(tx, case), tuple(obligations.of_subject(tx, case))) for case in named}


def _runs_of(by_run: Mapping[str, Sequence[Record]]) -> dict[str, list[str]]:
    """The runs of each order."""
    found: dict[str, list[str]] = defaultdict(list)
    for run, records in by_run.items():
        first = records[0] if records else None
        if isinstance(first, RunAdmitted) and first.capability == CAPABILITY and isinstance(first.input, dict):
            found[str(first.input.get("order"))].append(run)
    return found


def _night(
    order: Order, runs: Sequence[str], by_run: Mapping[str, tuple[Record, ...]], status: Mapping[str, str],
    effects: Sequence[Effect], worklist: Sequence[TaskRow],
    cases: Mapping[str, tuple[Matter, tuple[Obligation, ...]]], letters: Mapping[str, Letter],
) -> Night:  # fmt: skip
    deeds = tuple(row for row in effects if row.order == order.order)
    letter = letters.get(order.event_id)
    if len(runs) != 1:
        return Night(order, None, f"admitted {len(runs)} times", deeds=deeds, letter=letter)
    records = by_run[runs[0]]
    case = next((one.case for one in records if isinstance(one, CaseBound)), None)
    matter, promises = cases.get(case or "", (None, ()))
    asked = tuple(task for task in worklist if order_of(task) == order.order)
    return Night(order, runs[0], status[runs[0]], records, deeds, asked, matter, promises, letter)


def _tallies(by_run: Mapping[str, tuple[Record, ...]], status: Mapping[str, str]) -> tuple[Tally, ...]:
    found = []
    for run, records in by_run.items():
        first = records[0] if records else None
        key = first.idempotency_key if isinstance(first, RunAdmitted) else None
        if key is not None and key.startswith(f"schedule:{NIGHTLY}:"):
            found.append(Tally(run, key, status[run], records))
    return tuple(found)
