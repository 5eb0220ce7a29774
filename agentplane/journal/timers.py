"""The timers: which wait of which run is due when.

Owns the table of what a tick may wake. Refuses to wake: who deletes a row and why is the unit's of the engine.
Invariant: a row is in one total order (due, run, key), so that a page neither repeats nor skips one, and a run that has
ended has none.
"""

from __future__ import annotations

from typing import Final

import msgspec

from agentplane.core.history import AWAIT
from agentplane.journal.tx import Row, Tx, number, raw, text


class Timer(msgspec.Struct, frozen=True):
    """One open wait: the key of its announcement (32 bytes), and when it is due, ms UTC. ``waits_for_event``: what is
    due then is the end of a wait for an event."""

    run: str
    key: bytes
    due_ms: int
    waits_for_event: bool = False


COLUMNS: Final = (
    "run, key, due_ms, (SELECT wait FROM effect WHERE effect.tenant = timer.tenant AND effect.run = timer.run "
    "AND effect.key = timer.key)"
)


def _timer(row: Row) -> Timer:
    return Timer(text(row[0]), raw(row[1]), number(row[2]), row[3] == AWAIT)


def arm(tx: Tx, run: str, key: bytes, due_ms: int) -> None:
    """Have the wait announced under ``key`` fire at ``due_ms``; armed before, it fires at this instant."""
    tx.run(
        "INSERT INTO timer (tenant, run, key, due_ms) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (tenant, run, key) DO UPDATE SET due_ms = excluded.due_ms",
        tx.tenant, run, key, due_ms,
    )  # fmt: skip


def disarm(tx: Tx, run: str, key: bytes) -> bool:
    """Take one timer away; False when it is not there."""
    return tx.run("DELETE FROM timer WHERE tenant = ? AND run = ? AND key = ?", tx.tenant, run, key) > 0


def disarm_run(tx: Tx, run: str) -> int:
    """Take every timer of the run away; how many there were."""
    return tx.run("DELETE FROM timer WHERE tenant = ? AND run = ?", tx.tenant, run)


def due(tx: Tx, now_ms: int, limit: int, after: tuple[int, str, bytes] | None = None) -> list[Timer]:
    """Timers of all runs that are due at ``now_ms`` (that very instant included), earliest first by (due, run, key);
    ``after`` is the triple of the last one already seen."""
    rows = tx.all(
        f"SELECT {COLUMNS} FROM timer WHERE tenant = ? AND due_ms <= ? AND (due_ms, run, key) > (?, ?, ?) "
        "ORDER BY due_ms, run, key LIMIT ?",
        tx.tenant, now_ms, *(after or (-(2**63), "", b"")), limit,
    )  # fmt: skip
    return [_timer(row) for row in rows]


def due_of(tx: Tx, run: str, now_ms: int) -> list[Timer]:
    """The run's timers that are due at ``now_ms``, earliest first by (due, key)."""
    return [timer for timer in of_run(tx, run) if timer.due_ms <= now_ms]


def of_run(tx: Tx, run: str) -> list[Timer]:
    """Every timer of the run, earliest first by (due, key)."""
    rows = tx.all(
        f"SELECT {COLUMNS} FROM timer WHERE tenant = ? AND run = ? ORDER BY due_ms, key", tx.tenant, run
    )  # fmt: skip
    return [_timer(row) for row in rows]


def next_due_ms(tx: Tx) -> int | None:
    """When the earliest timer of all is due; None without one."""
    row = tx.one("SELECT min(due_ms) FROM timer WHERE tenant = ?", tx.tenant)
    return None if row is None or row[0] is None else number(row[0])
