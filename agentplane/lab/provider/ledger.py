"""The application's ledger for readers: the table ``app_ledger`` in the journal's own file, read by nothing of ours.

Owns the one query that an audit of orders needs. Refuses to write: the connection is read-only. Invariant: what it
answers is what the file holds, whatever the journal beside it says.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from agentplane.lab.provider.audit import open_book


class Entry(NamedTuple):
    """One row: the order, ``sale`` or ``return``, and the amount in minor units (negative for a return)."""

    order: str
    kind: str
    amount_minor: int


def entries(store: str | Path) -> list[Entry]:
    """Every row, by order and kind. Raises ``sqlite3.Error`` where the table is not there."""
    with open_book(store) as file:
        rows = file.execute("SELECT order_id, kind, amount_minor FROM app_ledger ORDER BY order_id, kind DESC")
        return [Entry(*row) for row in rows.fetchall()]
