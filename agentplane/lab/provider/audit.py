"""The provider's book for readers: opens the file read-only and answers rows, in the order they were
committed.

It owns the queries a driver needs after a crash. It refuses to write: the connection is read-only and every
query is one fetch. Its invariant: what it answers is what was committed, never what a running provider is
about to do. The provider's tables are described in the package's docstring.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote


class Arrival(NamedTuple):
    """One mutating request that arrived: id, microseconds since 1970, path, order, key."""

    id: int
    at_us: int
    path: str
    order: str | None
    key: str | None


class Effect(NamedTuple):
    """One effect that was committed; times in microseconds since 1970, ``arrived_us`` that of its own
    request; ``undoes`` the reference that a reversal takes back."""

    ref: str
    path: str
    order: str
    amount_minor: int | None
    currency: str | None
    key: str
    arrival: int
    arrived_us: int
    at_us: int
    replays: int
    undoes: str | None = None


class Answer(NamedTuple):
    """One answer: the arrival it belongs to, microseconds since 1970, verdict, HTTP status (0: none was
    sent)."""

    arrival: int
    at_us: int
    verdict: str
    status: int


@contextmanager
def open_book(path: str | Path) -> Iterator[sqlite3.Connection]:
    """A read-only connection on the provider's file. Raises ``sqlite3.OperationalError`` when there is
    none."""
    uri = f"file:{quote(str(Path(path).absolute()))}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, timeout=5.0)) as db:
        yield db


def arrivals(db: sqlite3.Connection, *, key: str | None = None) -> list[Arrival]:
    """All arrivals, or those with a key, oldest first."""
    rows = db.execute(
        "SELECT id, at_us, path, order_id, key FROM arrivals WHERE ? IS NULL OR key = ? ORDER BY id",
        (key, key),
    )
    return [Arrival(*row) for row in rows.fetchall()]


def effects(db: sqlite3.Connection, *, key: str | None = None, order: str | None = None) -> list[Effect]:
    """All committed effects, or those with a key or of an order, oldest first."""
    rows = db.execute(
        "SELECT e.ref, e.path, e.order_id, e.amount_minor, e.currency, e.key, e.arrival_id, a.at_us, e.at_us,"
        " e.replays, e.undoes"
        " FROM effects e JOIN arrivals a ON a.id = e.arrival_id"
        " WHERE (? IS NULL OR e.key = ?) AND (? IS NULL OR e.order_id = ?) ORDER BY e.id",
        (key, key, order, order),
    )
    return [Effect(*row) for row in rows.fetchall()]


def refunds(db: sqlite3.Connection, *, order: str | None = None) -> list[Effect]:
    """The committed refunds, oldest first."""
    return [each for each in effects(db, order=order) if each.path == "/refunds"]


def answers(db: sqlite3.Connection, *, key: str | None = None) -> list[Answer]:
    """All answers, or those to requests with a key, oldest first."""
    rows = db.execute(
        "SELECT w.arrival_id, w.at_us, w.verdict, w.status FROM answers w"
        " JOIN arrivals a ON a.id = w.arrival_id"
        " WHERE ? IS NULL OR a.key = ? ORDER BY w.id",
        (key, key),
    )
    return [Answer(*row) for row in rows.fetchall()]


def replays_by_key(db: sqlite3.Connection) -> dict[str, int]:
    """For each key that was replayed, how often: answers that repeated an effect already made."""
    rows = db.execute("SELECT key, sum(replays) FROM effects GROUP BY key HAVING sum(replays) > 0")
    return dict(rows.fetchall())


def repeated_orders(db: sqlite3.Connection, path: str = "/refunds") -> dict[str, list[str]]:
    """Orders with more than one effect on a path, with their references: the list that must be empty."""
    found: dict[str, list[str]] = {}
    for each in effects(db):
        if each.path == path:
            found.setdefault(each.order, []).append(each.ref)
    return {order: refs for order, refs in found.items() if len(refs) > 1}
