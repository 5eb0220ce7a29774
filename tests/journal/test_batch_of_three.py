"""W3: an interrupt, a full disk and a no-memory fall on each unit of a batch of three.

The errors are SQLite's own, raised inside the unit's statement. A second connection looks at what stood, then the store
is opened again: nothing of a unit that was answered as failed is there, nothing answered as done is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from agentplane.core.errors import Fenced, StoreFailed
from agentplane.journal.tx import Tx
from journal.stores import opened
from journal.test_the_writer_commits_groups import Desk, desk, note

BATCH = ("first", "second", "third")
MANY = "INSERT INTO note (said) WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 99999) SELECT "


@contextmanager
def interrupted(tx: Tx) -> Iterator[None]:
    """Somebody interrupts the connection in the middle of a statement that writes."""
    tx.connection.create_scalar_function("interrupt_now", lambda: tx.connection.interrupt(), 0)
    yield
    tx.run(MANY + "interrupt_now() FROM c")


@contextmanager
def full(tx: Tx, sql: str = "INSERT INTO note (said) VALUES (zeroblob(100000))") -> Iterator[None]:
    """The file may grow by no page more."""
    pages = tx.all("PRAGMA page_count")[0][0]
    tx.all(f"PRAGMA max_page_count = {pages}")
    yield
    try:
        tx.run(sql)
    finally:
        tx.all("PRAGMA max_page_count = 1000000")


def full_in_a_statement(tx: Tx) -> AbstractContextManager[None]:
    """The same under a statement of many rows: SQLite takes back that statement, and the transaction stands."""
    return full(tx, MANY + "zeroblob(1000) FROM c")


@contextmanager
def out_of_memory(tx: Tx) -> Iterator[None]:
    """SQLite may take no byte more than it has."""
    yield
    kept = apsw.hard_heap_limit(max(1, apsw.memory_used() + 4096))
    try:
        tx.run("INSERT INTO note (said) VALUES (randomblob(5000000))")
    finally:
        apsw.hard_heap_limit(kept)


FAULTS: dict[str, tuple[Callable[[Tx], Any], type[apsw.Error]]] = {
    "interrupt": (interrupted, apsw.InterruptError),
    "full": (full, apsw.FullError),
    "full-statement": (full_in_a_statement, apsw.FullError),
    "nomem": (out_of_memory, apsw.NoMemError),
}


class Fallen:
    """A unit that writes, meets its fault, and then says nothing of it (``swallowed``), refuses (``refused``) or lets
    it pass (``raised``). ``stood``: whether the transaction was still open afterwards."""

    def __init__(self, fault: str, manner: str, said: str) -> None:
        self.enter, self.error = FAULTS[fault]
        self.manner = manner
        self.said = said
        self.stood: bool | None = None

    def __call__(self, tx: Tx) -> object:
        note(self.said)(tx)
        try:
            with self.enter(tx):
                pass
        except self.error:
            self.stood = tx.connection.in_transaction
            if self.manner == "raised":
                raise
            if self.manner == "refused":
                raise Fenced("no") from None
            return self.said
        raise AssertionError("the fault never fell")


async def stood_and_stands(d: Desk, path: Path) -> tuple[list[Any], list[Any]]:
    """What a second connection sees now, and what the next opening finds."""
    now = d.rows()
    await d.writer.close(30)
    d.store.close()
    again = opened(path)
    try:
        return now, [row[0] for row in again.readers.read(lambda tx: tx.all("SELECT said FROM note ORDER BY id"))]
    finally:
        again.close()


@pytest.mark.parametrize("manner", ["raised", "swallowed", "refused"])
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("fault", list(FAULTS))
async def test_nothing_failed_stands_and_nothing_done_is_missing(
    store_path: Path, fault: str, place: int, manner: str
) -> None:
    """Whatever the unit does with the error, the writer asks SQLite: gone with its transaction, the whole batch is
    answered as failed and the writer is poisoned; still open and not from the disk, the batch goes on."""
    async with desk(store_path) as d:
        await d.writer.do(note("before"))
        fallen = Fallen(fault, manner, BATCH[place])
        ran: list[str] = []

        def telling(said: str) -> Callable[[Tx], object]:
            def body(tx: Tx) -> object:
                ran.append(said)
                return note(said)(tx)

            return body

        commits, go = d.writer.commits, await d.gate()
        d.submit(*[fallen if at == place else telling(said) for at, said in enumerate(BATCH)])
        go()
        await _last(d)
        poisoned = manner == "raised" or not fallen.stood
        assert (d.writer.poisoned is not None) is poisoned and len(d.poison) == poisoned
        assert [type(error) for _, error in d.answers] == (
            [StoreFailed] * 3 if poisoned else [Fenced if manner == "refused" and at == place else type(None)
                                                for at in range(3)]
        )  # fmt: skip
        if poisoned:
            assert ran == list(BATCH[:place]), "a unit ran behind a transaction that was gone"
            assert d.writer.commits == commits
        done = [said for said, (_, error) in zip(BATCH, d.answers, strict=True) if error is None]
        now, later = await stood_and_stands(d, store_path)
        assert now == later == ["before", *done]


async def _last(d: Desk) -> None:
    """Until all three are answered: a unit behind them is answered last, whatever becomes of it."""
    try:
        await d.writer.do(lambda tx: None)
    except StoreFailed:
        assert d.writer.poisoned is not None


def test_each_fault_is_what_it_says_to_a_connection(store_path: Path) -> None:
    """The errors are SQLite's own: each takes the whole transaction with it, but for the one of many rows."""
    store = opened(store_path)
    took: dict[str, bool] = {}
    for fault in FAULTS:
        connection = store.writer_connection()
        connection.execute("CREATE TABLE IF NOT EXISTS note (id INTEGER PRIMARY KEY, task, said BLOB)").fetchall()
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("SAVEPOINT unit")
        fallen = Fallen(fault, "swallowed", "x")
        fallen(Tx(connection, "default", 5))
        took[fault] = not fallen.stood
        connection.close()
    store.close()
    assert took == {"interrupt": True, "full": True, "full-statement": False, "nomem": True}
