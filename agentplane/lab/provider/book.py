"""The provider's book: one SQLite file, one connection, one lock, every change in a transaction of its own.

It owns the tables (described in the package's docstring) and the one decision that matters: whether a key was
seen. It refuses to answer that question outside the transaction that acts on the answer, so two requests with
one key can race as they like: one creates, the other is the replay. The invariant is held by the database as
well, as a unique index over remembered keys. ``synchronous=NORMAL`` is enough here: the lab kills processes,
it does not cut power.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from typing import Any

PREFIX = {
    "/refunds": "rf", "/reships": "rs", "/notices": "nt", "/reservations": "rv", "/authorisations": "au",
    "/parcels": "pc", "/invoices": "iv", "/shipments": "sh", "/receipts": "rc", "/releases": "rl", "/voids": "vd",
    "/returns": "rt", "/credits": "cn", "/retractions": "rx",
}  # fmt: skip
REVERSES = {
    "/releases": "/reservations", "/voids": "/authorisations", "/returns": "/parcels", "/credits": "/invoices",
    "/retractions": "/notices",
}  # fmt: skip
"""Which deeds take which back; a reversal names the deed that it is of."""
LIST_MAX = 200

SCHEMA = """
CREATE TABLE IF NOT EXISTS arrivals (
    id INTEGER PRIMARY KEY, at_us INTEGER NOT NULL, path TEXT NOT NULL,
    order_id TEXT, key TEXT, fingerprint TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS arrivals_by_key ON arrivals (key);
CREATE TABLE IF NOT EXISTS effects (
    id INTEGER PRIMARY KEY, ref TEXT NOT NULL UNIQUE, path TEXT NOT NULL, order_id TEXT NOT NULL,
    amount_minor INTEGER, currency TEXT, key TEXT NOT NULL, fingerprint TEXT NOT NULL,
    arrival_id INTEGER NOT NULL REFERENCES arrivals (id), at_us INTEGER NOT NULL,
    replays INTEGER NOT NULL DEFAULT 0, remembered INTEGER NOT NULL CHECK (remembered IN (0, 1)), undoes TEXT);
CREATE UNIQUE INDEX IF NOT EXISTS effects_one_a_key ON effects (key) WHERE remembered = 1;
CREATE INDEX IF NOT EXISTS effects_by_key ON effects (key);
CREATE INDEX IF NOT EXISTS effects_by_order ON effects (order_id);
CREATE TABLE IF NOT EXISTS failures (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL, fingerprint TEXT NOT NULL, status INTEGER NOT NULL,
    body TEXT NOT NULL, at_us INTEGER NOT NULL, replays INTEGER NOT NULL DEFAULT 0,
    remembered INTEGER NOT NULL CHECK (remembered IN (0, 1)));
CREATE UNIQUE INDEX IF NOT EXISTS failures_one_a_key ON failures (key) WHERE remembered = 1;
CREATE TABLE IF NOT EXISTS answers (
    id INTEGER PRIMARY KEY, arrival_id INTEGER NOT NULL REFERENCES arrivals (id), at_us INTEGER NOT NULL,
    verdict TEXT NOT NULL, status INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS reads (
    id INTEGER PRIMARY KEY, at_us INTEGER NOT NULL, path TEXT NOT NULL, order_id TEXT, key TEXT);
"""


def now_us() -> int:
    """Wall time in whole microseconds since 1970, the clock of every time in the book."""
    return time.time_ns() // 1000


@dataclass(frozen=True)
class Asked:
    """One mutating request as the book needs it; ``amount_minor`` and ``currency`` only for refunds, ``undoes`` (a
    reference) only for reversals."""

    path: str
    key: str
    fingerprint: str
    order: str
    amount_minor: int | None = None
    currency: str | None = None
    undoes: str | None = None


@dataclass(frozen=True)
class Settled:
    """What the book decided: its verdict, the HTTP status, the JSON body, and whether an earlier request made
    it."""

    verdict: str
    status: int
    body: dict[str, Any]
    replayed: bool = False


class Book:
    """The provider's rows. Every method is one transaction; any thread may call any of them."""

    def __init__(self, path: str) -> None:
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
        self._db.row_factory = sqlite3.Row
        self._db.execute("PRAGMA journal_mode=WAL").fetchall()
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.executescript(SCHEMA)

    def close(self) -> None:
        """Closes the file. A request that is still running afterwards gets a database error and no row."""
        with self._lock:
            self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def arrive(self, path: str, order: str | None, key: str | None, fingerprint: str) -> tuple[int, int]:
        """Writes an arrival in a commit of its own; answers its id and its time in microseconds."""
        with self._transaction() as db:
            at = now_us()
            row = db.execute(
                "INSERT INTO arrivals (at_us, path, order_id, key, fingerprint) VALUES (?, ?, ?, ?, ?)",
                (at, path, order, key, fingerprint),
            )
            return int(row.lastrowid or 0), at

    def settle(self, arrival: int, asked: Asked, *, honour: bool = True, fail_with: int = 0) -> Settled:
        """Looks the key up and acts on what it found, in one transaction.

        ``honour=False`` neither looks nor remembers. ``fail_with`` stores a failure of that status under the
        key in place of an effect. A key seen with another fingerprint is 409 and changes nothing.
        """
        with self._transaction() as db:
            settled = self._seen(db, asked) if honour else None
            if settled is None:
                settled = _unknown(db, asked)
            if settled is None:
                make = self._fail if fail_with else self._create
                settled = make(db, arrival, asked, honour, fail_with)
            self._log(db, arrival, settled.verdict, settled.status)
            return settled

    def _seen(self, db: sqlite3.Connection, asked: Asked) -> Settled | None:
        for table in ("effects", "failures"):
            row = db.execute(f"SELECT * FROM {table} WHERE key = ? AND remembered = 1", (asked.key,)).fetchone()
            if row is None:
                continue
            if row["fingerprint"] != asked.fingerprint:
                return Settled("refused_fingerprint", 409, {"error": "this key was used for another request"})
            db.execute(f"UPDATE {table} SET replays = replays + 1 WHERE id = ?", (row["id"],))
            if table == "effects":
                return Settled("replayed", 200, effect_json(row), replayed=True)
            return Settled("replayed_failure", row["status"], json.loads(row["body"]), replayed=True)
        return None

    def _create(self, db: sqlite3.Connection, arrival: int, asked: Asked, honour: bool, _status: int) -> Settled:
        made = db.execute(
            "INSERT INTO effects (ref, path, key, fingerprint, order_id, amount_minor, currency, undoes,"
            " arrival_id, at_us, remembered) VALUES ('', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*astuple(asked), arrival, now_us(), int(honour)),
        )
        ref = f"{PREFIX[asked.path]}_{made.lastrowid:06d}"
        db.execute("UPDATE effects SET ref = ? WHERE id = ?", (ref, made.lastrowid))
        row = db.execute("SELECT * FROM effects WHERE id = ?", (made.lastrowid,)).fetchone()
        return Settled("created", 201, effect_json(row))

    def _fail(self, db: sqlite3.Connection, _arrival: int, asked: Asked, honour: bool, status: int) -> Settled:
        body = {"error": "the provider refused this request and will refuse it again", "order": asked.order}
        db.execute(
            "INSERT INTO failures (key, fingerprint, status, body, at_us, remembered) VALUES (?, ?, ?, ?, ?, ?)",
            (asked.key, asked.fingerprint, status, json.dumps(body), now_us(), int(honour)),
        )
        return Settled("stored_failure", status, body)

    def _log(self, db: sqlite3.Connection, arrival: int, verdict: str, status: int) -> None:
        db.execute(
            "INSERT INTO answers (arrival_id, at_us, verdict, status) VALUES (?, ?, ?, ?)",
            (arrival, now_us(), verdict, status),
        )

    def log_answer(self, arrival: int, verdict: str, status: int) -> None:
        """Writes what was answered where that differs from what was settled (a fault, a refusal); status 0 is
        none."""
        with self._transaction() as db:
            self._log(db, arrival, verdict, status)

    def forget(self, *, key: str | None = None, order: str | None = None) -> int:
        """Forgets keys (all without arguments): the rows stay, a repetition is no longer recognised. Answers
        how many."""
        with self._transaction() as db:
            wanted = (key, key, order, order)
            done = db.execute(
                "UPDATE effects SET remembered = 0 WHERE remembered = 1 AND (? IS NULL OR key = ?)"
                " AND (? IS NULL OR order_id = ?)",
                wanted,
            ).rowcount
            if order is None:
                done += db.execute(
                    "UPDATE failures SET remembered = 0 WHERE remembered = 1 AND (? IS NULL OR key = ?)",
                    (key, key),
                ).rowcount
            return done

    def find(self, path: str, *, key: str | None, order: str | None) -> list[dict[str, Any]]:
        """The committed effects of one path by key, by order or by both; at most ``LIST_MAX``; the read is
        logged."""
        with self._transaction() as db:
            db.execute(
                "INSERT INTO reads (at_us, path, order_id, key) VALUES (?, ?, ?, ?)",
                (now_us(), path, order, key),
            )
            rows = db.execute(
                "SELECT * FROM effects WHERE path = ? AND (? IS NULL OR key = ?)"
                " AND (? IS NULL OR order_id = ?) ORDER BY id LIMIT ?",
                (path, key, key, order, order, LIST_MAX),
            ).fetchall()
            return [effect_json(row) for row in rows]

    def deeds(self, order: str) -> list[dict[str, Any]]:
        """Every committed effect of an order with its path, oldest first, at most ``LIST_MAX``; the read is
        logged."""
        with self._transaction() as db:
            db.execute(
                "INSERT INTO reads (at_us, path, order_id, key) VALUES (?, ?, ?, NULL)", (now_us(), "/deeds", order)
            )
            rows = db.execute("SELECT * FROM effects WHERE order_id = ? ORDER BY id LIMIT ?", (order, LIST_MAX))
            return [effect_json(row) | {"path": row["path"]} for row in rows.fetchall()]

    def order(self, order: str) -> dict[str, Any]:
        """What this provider did for one order; an order it never heard of has zeros. The read is logged."""
        with self._transaction() as db:
            db.execute(
                "INSERT INTO reads (at_us, path, order_id, key) VALUES (?, ?, ?, NULL)",
                (now_us(), "/orders", order),
            )
            rows = db.execute(
                "SELECT path, count(*) AS n, coalesce(sum(amount_minor), 0) AS minor FROM effects"
                " WHERE order_id = ? GROUP BY path",
                (order,),
            ).fetchall()
        counts = {row["path"]: (row["n"], row["minor"]) for row in rows}
        return {
            "order": order,
            "refunded_minor": counts.get("/refunds", (0, 0))[1],
            "refunds": counts.get("/refunds", (0, 0))[0],
            "reships": counts.get("/reships", (0, 0))[0],
            "notices": counts.get("/notices", (0, 0))[0],
        }


def _unknown(db: sqlite3.Connection, asked: Asked) -> Settled | None:
    """A reversal of what this provider never did for that order is refused, whatever its key."""
    if asked.undoes is None:
        return None
    path = REVERSES[asked.path]
    row = db.execute(
        "SELECT 1 FROM effects WHERE ref = ? AND path = ? AND order_id = ?", (asked.undoes, path, asked.order)
    ).fetchone()
    return Settled("unknown_deed", 422, {"error": "there is no such deed to take back"}) if row is None else None


def effect_json(row: sqlite3.Row) -> dict[str, Any]:
    """One effect as the API shows it: the same bytes when created, replayed and listed."""
    shown: dict[str, Any] = {
        "id": row["ref"],
        "order": row["order_id"],
        "key": row["key"],
        "at_us": row["at_us"],
    }
    if row["amount_minor"] is not None:
        shown["amount_minor"] = row["amount_minor"]
        shown["currency"] = row["currency"]
    if row["undoes"] is not None:
        shown["of"] = row["undoes"]
    return shown
