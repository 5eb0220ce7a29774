"""What is counted of tasks for who is told of them.

Owns one count a kind of news, each over a stretch of instants. Refuses to say which tasks: a number, and the earliest.
Invariant: stretches that meet count each task once, and no count is cut off, however many there are.
"""

from __future__ import annotations

from agentplane.core.notices import Tally
from agentplane.journal.tx import Row, Tx, number


def pending(tx: Tx) -> Tally:
    """Tasks that wait for a decision, and when the first of them was opened."""
    return _tally(
        tx.one(
            "SELECT count(*), min(created_ms) FROM task WHERE tenant = ? AND state IN ('open', 'claimed', 'escalated')",
            tx.tenant,
        )
    )


def opened(tx: Tx, since_ms: int, until_ms: int) -> Tally:
    """Tasks that were opened behind ``since_ms`` up to ``until_ms``, whatever became of them."""
    return _tally(
        tx.one(
            "SELECT count(*), min(created_ms) FROM task WHERE tenant = ? AND created_ms > ? AND created_ms <= ?",
            tx.tenant, since_ms, until_ms,
        )
    )  # fmt: skip


def half_gone(tx: Tx, since_ms: int, until_ms: int) -> Tally:
    """Tasks that wait and whose window was half gone in that stretch, and when the first of them was."""
    return _tally(
        tx.one(
            "SELECT count(*), min((created_ms + due_ms) / 2) FROM task WHERE tenant = ? "
            "AND state IN ('open', 'claimed') AND due_ms IS NOT NULL "
            "AND (created_ms + due_ms) / 2 > ? AND (created_ms + due_ms) / 2 <= ?",
            tx.tenant, since_ms, until_ms,
        )
    )  # fmt: skip


def unanswered(tx: Tx, since_ms: int, until_ms: int) -> Tally:
    """Tasks whose window was over in that stretch with nobody's answer. One that was escalated waits, and is counted
    among what waits."""
    return _tally(
        tx.one(
            "SELECT count(*), min(decided_ms) FROM task WHERE tenant = ? AND state = 'expired' AND decided_ms > ? "
            "AND decided_ms <= ?",
            tx.tenant, since_ms, until_ms,
        )
    )  # fmt: skip


def _tally(row: Row | None) -> Tally:
    if row is None or row[1] is None:
        return Tally()
    return Tally(number(row[0]), number(row[1]))
