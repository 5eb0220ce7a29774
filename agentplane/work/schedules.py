"""How far each schedule has come.

Owns one row a schedule. Refuses to go back: an instant that was passed is passed. Invariant: the row moves after the
admission of the instant that it moves to.
"""

from __future__ import annotations

from agentplane.journal.tx import Tx, number


def last(tx: Tx, name: str) -> int | None:
    """The last instant, ms UTC, that the schedule has dealt with; None where it was never seen."""
    row = tx.one("SELECT last_ms FROM schedule WHERE tenant = ? AND name = ?", tx.tenant, name)
    return None if row is None else number(row[0])


def advance(tx: Tx, name: str, ms: int) -> None:
    """The schedule has dealt with everything up to ``ms``; what lies before the stored instant changes nothing."""
    tx.run(
        "INSERT INTO schedule (tenant, name, last_ms) VALUES (?, ?, ?) "
        "ON CONFLICT (tenant, name) DO UPDATE SET last_ms = max(last_ms, excluded.last_ms)",
        tx.tenant, name, ms,
    )  # fmt: skip


def forget(tx: Tx, name: str) -> bool:
    """Take the row of a schedule away; False when there was none."""
    return tx.run("DELETE FROM schedule WHERE tenant = ? AND name = ?", tx.tenant, name) > 0
