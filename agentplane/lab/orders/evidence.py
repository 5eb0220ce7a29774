"""The three books of an order, read once the appliance has ended: the provider's, the ledger and the journal.

Owns the reading and the joining by order. Refuses to judge. Invariant: every order of the fixture has one case, and
each row of a book that names an order stands in its case.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from agentplane.core.records import Record, RunAdmitted
from agentplane.journal import lists
from agentplane.journal.lists import RunRow
from agentplane.journal.store import read_only
from agentplane.lab.orders.fixture import CAPABILITY, Order
from agentplane.lab.orders.verdict import Case
from agentplane.lab.provider import ledger
from agentplane.lab.provider.audit import Effect


def cases_of(orders: Iterable[Order], effects: Iterable[Effect], store: Path) -> list[Case]:
    """One case an order, in their order."""
    deeds: dict[str, list[Effect]] = defaultdict(list)
    for effect in effects:
        deeds[effect.order].append(effect)
    booked: dict[str, dict[str, int]] = defaultdict(dict)
    for entry in ledger.entries(store):
        booked[entry.order][entry.kind] = entry.amount_minor
    runs = {name: (row, records) for name, row, records in _runs(store)}
    cases = []
    for order in orders:
        row, records = runs.get(order.order, (None, ()))
        cases.append(Case(
            order.order, None if row is None else row.run, "" if row is None else row.status,
            tuple(deeds.get(order.order, ())), booked.get(order.order, {}), tuple(records),
        ))  # fmt: skip
    return cases


def _runs(store: Path) -> Iterator[tuple[str, RunRow, Sequence[Record]]]:
    """Every order's name with its run and records."""
    readers = read_only(store)
    try:
        for row in lists.every_run(readers.read):
            if row.capability != CAPABILITY:
                continue
            records = [item.record for item in lists.read_history(readers.read, row.run)]
            first = records[0] if records else None
            asked = first.input if isinstance(first, RunAdmitted) else None
            yield str(asked.get("order")) if isinstance(asked, dict) else "", row, records
    finally:
        readers.close()


def told(orders: Iterable[Order], cases: Iterable[Case]) -> list[str]:
    """What each order was meant to run into and how it ended, for whoever reads a kept directory."""
    by_name = {case.order: case for case in cases}
    return [f"{one} -> {by_name[one.order].status} {by_name[one.order].run}" for one in orders]
