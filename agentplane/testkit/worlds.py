"""Stores as a killed process would have left them: copies at a commit, and records replanted up to one.

Owns the making of a prefix store: its file, and the mark that fits, so that it opens as its own original. Refuses to
change a record. Invariant: a copy holds exactly what one commit made durable; a replanted store holds exactly a prefix
of one run's records, with the index that ``appends`` derives from them.
"""

from __future__ import annotations

from pathlib import Path

import apsw
import msgspec

from agentplane.core.records import RunAdmitted
from agentplane.journal import appends, lists, schema
from agentplane.journal.appends import Head, Linked
from agentplane.journal.lists import Stored
from agentplane.journal.mark import Mark, write_mark
from agentplane.journal.store import connect
from agentplane.journal.tx import Tx, number, text


class Kept(msgspec.Struct, frozen=True):
    """A run as a store holds it."""

    row: lists.RunRow
    stored: list[Stored]


def copy_store(source: Path, target: Path) -> None:
    """The committed content of a store that may be open, in one step; safe on the writer's own thread."""
    target.parent.mkdir(parents=True, exist_ok=True)
    reader = connect(source, read_only=True)
    copy = apsw.Connection(str(target))
    try:
        copy.pragma("synchronous", "off")
        with copy.backup("main", reader, "main") as backup:
            backup.step(-1)
    finally:
        copy.close()
        reader.close()


def fit_mark(store: Path) -> None:
    """Write the mark that this file's own original would have: it then opens as that, and is not held."""
    connection = connect(store, read_only=True)
    try:
        row = connection.execute("SELECT incarnation, commits FROM store").fetchone()
    finally:
        connection.close()
    if row is None:
        raise ValueError(f"{store} has no row of its own")
    write_mark(store, Mark(text(row[0]), number(row[1]), store.stat().st_ino))


def kept_runs(store: Path, tenant: str = "default") -> dict[str, Kept]:
    """Every run of callers in a closed or open store, with its chain verified against its head."""
    connection = connect(store, read_only=True)
    try:
        tx = Tx(connection, tenant, 0)
        rows = tx.all("SELECT run FROM run WHERE tenant = ? AND own = 0 ORDER BY run", tenant)
        return {
            text(row[0]): Kept(lists.get_run(tx, text(row[0])), lists.whole_history(tx, text(row[0]))) for row in rows
        }
    finally:
        connection.close()


def leased(store: Path, run: str) -> bool:
    """Whether the run's lease still names an owner."""
    connection = connect(store, read_only=True)
    try:
        row = connection.execute("SELECT owner FROM lease WHERE run = ?", (run,)).fetchone()
    finally:
        connection.close()
    return row is not None and row[0] is not None


def replant(store: Path, stored: list[Stored], *, now_ms: int, incarnation: str = "replanted") -> None:
    """A new store that holds these records of one run, as a process that died behind the last of them would have."""
    store.parent.mkdir(parents=True, exist_ok=True)
    connection = connect(store)
    try:
        first = stored[0].record
        if not isinstance(first, RunAdmitted):
            raise ValueError("the first record of a run is its admission")
        schema.migrate(connection, first.tenant, now_ms, "replanted")
        connection.execute("BEGIN IMMEDIATE")
        tx = Tx(connection, first.tenant, now_ms)
        tx.run(
            "INSERT INTO store (tenant, incarnation, commits, created_ms) VALUES (?, ?, 1, ?)",
            tx.tenant, incarnation, now_ms,
        )  # fmt: skip
        appends.admit(tx, first.run, capability=first.capability, incarnation=incarnation, at_ms=now_ms)
        tx.run(
            "INSERT INTO lease (tenant, run, owner, opening, epoch, expires_ms) VALUES (?, ?, 'gone', 'gone', 1, 1)",
            tx.tenant, first.run,
        )  # fmt: skip
        head = Head()
        for item in stored:
            epoch = item.record.epoch
            tx.run("UPDATE lease SET epoch = ? WHERE tenant = ? AND run = ?", epoch, tx.tenant, first.run)
            head = appends.append(tx, first.run, epoch, head, (Linked(item.record, item.body, item.hash),))
        connection.execute("COMMIT")
    finally:
        connection.close()
    fit_mark(store)
