"""The writer: one queue, one commit for what waits, and answers that are never early."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio
import trio.testing

from agentplane.core.errors import (
    AgentplaneError,
    Fenced,
    InvalidRequest,
    InvariantViolation,
    LeaseHeld,
    StoreBusy,
    StoreFailed,
)
from agentplane.journal.tx import Tx
from agentplane.journal.units import Unit, UnitDefect
from agentplane.journal.writer import Writer
from journal.stores import opened

# No test here waits for more than its subject: this bound turns a hang into a failure.
HANG_S = 30


class Desk:
    """A writer over a real store with a table of its own, and what became of every unit."""

    def __init__(self, path: Path, **members: Any) -> None:
        self.path = path
        self.store = opened(path, vfs=members.pop("vfs", None))
        self.points: list[str] = []
        self.poison: list[AgentplaneError] = []
        self.connection: apsw.Connection | None = None
        self.answers: list[tuple[Any, BaseException | None]] = []
        members.setdefault("before_commit", self.store.count_commit)
        self.writer = Writer(
            self.open, "default", lambda: 5, observe=self.observe, on_poison=self.poison.append, **members
        )  # fmt: skip

    def open(self) -> apsw.Connection:
        self.connection = self.store.writer_connection()
        self.connection.execute("CREATE TABLE IF NOT EXISTS note (id INTEGER PRIMARY KEY, task, said BLOB)").fetchall()
        return self.connection

    def observe(self, point: str, **fields: object) -> None:
        self.points.append(point)

    def rows(self) -> list[Any]:
        """What a second connection sees: what stands."""
        return [row[0] for row in self.store.readers.read(lambda tx: tx.all("SELECT said FROM note ORDER BY id"))]

    def unit(self, said: object, **members: Any) -> Unit[Any]:
        body = said if callable(said) else note(said)
        return Unit(body, lambda value, error: self.answers.append((value, error)), **members)

    def submit(self, *said: object, **members: Any) -> list[Unit[Any]]:
        units = [self.unit(one, **members) for one in said]
        for unit in units:
            self.writer.submit(unit)
        return units

    async def gate(self) -> Callable[[], None]:
        """Hold the writer inside a unit: what is submitted now waits behind it. Returns what lets it go."""
        entered, leave = trio.Event(), threading.Event()
        token = trio.lowlevel.current_trio_token()

        def body(tx: Tx) -> None:
            token.run_sync_soon(entered.set)
            assert leave.wait(HANG_S)

        self.writer.submit(Unit(body, lambda value, error: None))
        await entered.wait()
        return leave.set


def note(said: object) -> Callable[[Tx], object]:
    def body(tx: Tx) -> object:
        tx.run("INSERT INTO note (said) VALUES (?)", said)  # type: ignore[arg-type]
        return said

    return body


def raising(error: BaseException, said: object = "half") -> Callable[[Tx], object]:
    """Writes, and then raises."""

    def body(tx: Tx) -> object:
        note(said)(tx)
        raise error

    return body


@asynccontextmanager
async def desk(path: Path, **members: Any) -> AsyncIterator[Desk]:
    with trio.fail_after(HANG_S):
        made = Desk(path, **members)
        made.writer.start()
        await made.writer.do(lambda tx: None)
        made.points.clear()
        try:
            yield made
        finally:
            await made.writer.close(HANG_S)
            made.store.close()


async def test_what_waits_is_one_commit_in_its_order(store_path: Path) -> None:
    """W1: N units that wait share one commit, run in the order of the queue, and are answered in it."""
    async with desk(store_path) as d:
        before = d.writer.commits
        go = await d.gate()
        d.submit(*range(50))
        go()
        await d.writer.do(note("last"))
        assert d.rows() == [*range(50), "last"]
        assert [value for value, _ in d.answers] == list(range(50))
        assert d.writer.commits - before <= 2
        counted = d.store.readers.read(lambda tx: tx.one("SELECT commits FROM store"))
        assert counted == (d.writer.commits,)


async def test_a_refusal_takes_back_its_own_unit_and_is_answered_after_the_commit(store_path: Path) -> None:
    """W3, W4: the batch goes on, and no answer, the refusal's included, comes before the commit.

    Spec: EffectProtocol.AnsweredIsDurable.
    """
    async with desk(store_path) as d:
        committed_at_answer: list[int] = []
        go = await d.gate()
        before = d.writer.commits
        declared = (note("a"), raising(Fenced("no")), note("b"), raising(InvalidRequest("bad")))

        def deliver(value: Any, error: BaseException | None) -> None:
            committed_at_answer.append(d.writer.commits)
            d.answers.append((value, error))

        for body in (*declared, lambda tx: "already"):
            d.writer.submit(Unit(body, deliver))
        go()
        await d.writer.do(lambda tx: None)
        assert d.rows() == ["a", "b"]
        kinds = [type(error) for _, error in d.answers]
        assert kinds == [type(None), Fenced, type(None), InvalidRequest, type(None)]
        assert d.answers[-1][0] == "already" and min(committed_at_answer) > before
        assert d.writer.poisoned is None


class Halt(BaseException):
    """As the engine's stops: not an Exception."""


@pytest.mark.parametrize(
    "body",
    [
        raising(KeyError("x")),
        raising(Halt("stop")),
        lambda tx: tx.run("INSERT INTO nowhere VALUES (1)"),
        lambda tx: tx.run("INSERT INTO note (id) VALUES (?)"),
        lambda tx: tx.run("INSERT INTO note (id) VALUES (1), (1)"),
        lambda tx: tx.run("INSERT INTO note (id) VALUES (1)", object()),  # type: ignore[arg-type]
    ],
    ids=["exception", "stop", "sql", "bindings", "constraint", "type"],
)
async def test_what_a_unit_did_not_declare_is_a_defect_of_that_unit_alone(store_path: Path, body: Any) -> None:
    """W3: rolled back and named; the batch, the writer and every later unit go on."""
    async with desk(store_path) as d:
        go = await d.gate()
        d.submit("a", body, "b")
        go()
        await d.writer.do(note("later"))
        assert d.rows() == ["a", "b", "later"]
        assert [type(error) for _, error in d.answers] == [type(None), UnitDefect, type(None)]
        assert d.writer.poisoned is None and d.poison == []


async def poisoned_by(d: Desk, body: Any, *, refused: type[AgentplaneError] = StoreFailed) -> None:
    """Submit good, bad, good in one batch: nothing of it stands, and nothing is written after it."""
    await d.writer.do(note("before"))
    go = await d.gate()
    ran: list[str] = []
    d.submit("a", body, lambda tx: ran.append("c"))
    go()
    with pytest.raises(StoreFailed if refused is StoreFailed else refused):
        await d.writer.do(note("later"))
    assert d.rows() == ["before"]
    assert [type(error) for _, error in d.answers] == [refused] * 3
    assert ran == [] and [type(error) for error in d.poison] == [refused]
    assert d.writer.poisoned is d.poison[0]


async def test_a_full_disk_inside_a_unit_poisons_and_leaves_nothing_of_the_batch(store_path: Path) -> None:
    """W3: SQLite rolls back more than the unit, so no later unit may run; seen from a second connection."""

    def fill(tx: Tx) -> None:
        pages = tx.one("PRAGMA page_count")
        tx.all(f"PRAGMA max_page_count = {pages[0] if pages else 1}")
        for _ in range(100):
            tx.run("INSERT INTO note (said) VALUES (zeroblob(100000))")

    async with desk(store_path) as d:
        await poisoned_by(d, fill)


async def test_an_interrupt_inside_a_unit_poisons(store_path: Path) -> None:
    """W3: as a full disk does."""

    def interrupted(tx: Tx) -> None:
        tx.connection.set_progress_handler(lambda: True, 1)
        many = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 99999)"
        tx.run(f"INSERT INTO note (said) {many} SELECT x FROM c")

    async with desk(store_path) as d:
        await poisoned_by(d, interrupted)


@pytest.mark.parametrize("error", [apsw.IOError, apsw.FullError, apsw.NoMemError, apsw.CorruptError])
async def test_an_error_of_the_disk_poisons_also_while_the_transaction_stands(
    store_path: Path, error: type[apsw.Error]
) -> None:
    """W3: a savepoint is no answer to a disk that failed, whatever SQLite kept of the transaction."""
    async with desk(store_path) as d:
        await poisoned_by(d, raising(error("disk")))


@pytest.mark.parametrize("sql", ["COMMIT", "ROLLBACK", "COMMIT; BEGIN IMMEDIATE", "RELEASE unit"])
async def test_a_unit_that_touches_the_transaction_itself_poisons(store_path: Path, sql: str) -> None:
    """The writer begins and ends transactions; a unit that does cannot be vouched for, nor its batch."""

    def body(tx: Tx) -> None:
        for statement in sql.split(";"):
            tx.all(statement)

    async with desk(store_path) as d:
        go = await d.gate()
        d.submit(body, "c")
        go()
        with pytest.raises(StoreFailed):
            await d.writer.do(note("later"))
        assert d.rows() == [] and isinstance(d.writer.poisoned, StoreFailed)
        assert [type(error) for _, error in d.answers] == [StoreFailed, StoreFailed]


async def test_an_error_from_commit_poisons_and_is_never_tried_again(store_path: Path) -> None:
    """W9: every unit of the batch is told, nothing is written after it, and COMMIT ran once."""
    async with desk(store_path) as d:
        await d.writer.do(note("before"))
        tries = []

        def refuse() -> bool:
            tries.append(1)
            return True

        assert d.connection is not None
        d.connection.set_commit_hook(refuse)
        go = await d.gate()
        d.submit("a", "b")
        go()
        for _ in range(2):
            with pytest.raises(StoreFailed):
                await d.writer.do(note("later"))
        assert len(tries) == 1 and d.rows() == ["before"]
        assert [type(error) for _, error in d.answers] == [StoreFailed, StoreFailed]
        assert len(d.poison) == 1


async def test_an_observer_that_fails_stops_the_writer_with_everybody_answered(store_path: Path) -> None:
    """Nobody waits for ever because a bystander raised."""
    async with desk(store_path) as d:

        def fail(point: str, **fields: object) -> None:
            raise ValueError(point)

        d.writer._observe = fail
        d.submit("a")
        with pytest.raises(InvariantViolation, match=r"ValueError: writer\.batch"):
            await d.writer.do(note("b"))
        assert d.rows() == [] and len(d.poison) == 1


async def test_an_invariant_of_the_plane_stops_it_and_one_of_a_run_does_not(store_path: Path) -> None:
    """W9: a unit that belongs to a run takes only that run down."""
    async with desk(store_path) as d:
        with pytest.raises(InvariantViolation):
            await d.writer.do(raising(InvariantViolation("INV-99")), run="run_1")
        assert await d.writer.do(note("after")) == "after"
        with pytest.raises(InvariantViolation):
            await d.writer.do(raising(InvariantViolation("INV-99")))
        assert isinstance(d.writer.poisoned, InvariantViolation) and d.rows() == ["after"]


async def test_a_rider_and_the_barrier_behind_it_share_one_commit(store_path: Path) -> None:
    """W8: an outcome and the next announcement pay one sync, because the rider's transaction lingers."""
    async with desk(store_path, linger_us=20_000_000) as d:
        before = d.writer.commits
        for number in range(10):
            d.submit(number, barrier=False)
            assert await d.writer.do(note("barrier")) == "barrier"
        assert d.writer.commits - before == 10
        assert len(d.answers) == 10


async def test_a_barrier_is_not_held_up_by_the_linger(store_path: Path) -> None:
    """W8: with a linger longer than this test may last, a barrier and an impatient rider commit at once."""
    async with desk(store_path, linger_us=2 * HANG_S * 1_000_000) as d:
        assert await d.writer.do(note("barrier")) == "barrier"
        done = trio.Event()
        d.writer.submit(Unit(note("rider"), lambda value, error: done.set(), barrier=False, linger=False))
        await done.wait()
        assert d.rows() == ["barrier", "rider"]


async def test_a_lingering_rider_is_committed_when_its_time_is_over(store_path: Path) -> None:
    """W8: nothing has to come behind it."""
    async with desk(store_path, linger_us=1_000) as d:
        done = trio.Event()
        d.writer.submit(Unit(note("rider"), lambda value, error: done.set(), barrier=False))
        await done.wait()
        assert d.rows() == ["rider"]


async def test_a_withdrawn_unit_never_runs_and_a_taken_one_cannot_be_withdrawn(store_path: Path) -> None:
    """P13: exactly one of asker and writer gets a unit."""
    async with desk(store_path) as d:
        go = await d.gate()
        first, second, third = d.submit("a", "b", "c")
        assert second.withdraw() and not second.withdraw()
        go()
        await d.writer.do(lambda tx: None)
        assert d.rows() == ["a", "c"] and not first.withdraw() and not third.withdraw()
        assert [value for value, _ in d.answers] == ["a", "c"]


async def test_a_cancelled_waiter_withdraws_or_leaves_the_unit_to_be_committed(store_path: Path) -> None:
    """A cancellation neither blocks nor loses the writer."""
    async with desk(store_path) as d:
        go = await d.gate()
        with trio.move_on_after(0) as scope:
            await d.writer.do(note("withdrawn"))
        assert scope.cancelled_caught
        go()
        assert await d.writer.do(note("after")) == "after"
        assert d.rows() == ["after"]


async def test_close_commits_what_is_queued(store_path: Path) -> None:
    """Riders included, without waiting for their linger."""
    async with desk(store_path, linger_us=2 * HANG_S * 1_000_000) as d:
        go = await d.gate()
        d.submit(*range(20), barrier=False)
        go()
        assert await d.writer.close(HANG_S)
        await trio.testing.wait_all_tasks_blocked()
        assert d.rows() == list(range(20)) and len(d.answers) == 20


async def test_after_close_every_unit_is_answered(store_path: Path) -> None:
    """Never dropped: whoever asks a closed journal hears that it is closed."""
    async with desk(store_path) as d:
        assert await d.writer.close(HANG_S)
        for _ in range(3):
            with pytest.raises(StoreFailed, match="closed"):
                await d.writer.do(note("late"))
        assert d.rows() == []


async def test_a_writer_that_never_started_closes_and_answers(store_path: Path) -> None:
    """What was queued before a failed start is told."""
    made = Desk(store_path)
    made.submit("a")
    assert await made.writer.close(HANG_S)
    await trio.testing.wait_all_tasks_blocked()
    assert [type(error) for _, error in made.answers] == [StoreFailed]
    made.store.close()


async def test_a_connection_that_cannot_be_opened_is_told_to_everybody(store_path: Path) -> None:
    """The writer's thread stays and answers."""

    def fail() -> apsw.Connection:
        raise StoreBusy("no")

    poison: list[AgentplaneError] = []
    writer = Writer(fail, "default", lambda: 5, on_poison=poison.append)
    writer.start()
    for _ in range(2):
        with pytest.raises(StoreFailed):
            await writer.do(lambda tx: None)
    assert len(poison) == 1 and await writer.close(HANG_S)


async def test_a_foreign_writer_is_waited_for_and_alarmed(store_path: Path) -> None:
    """W9: BUSY at BEGIN is not a failure of the disk: units wait, the observer hears, nothing is poisoned."""
    async with desk(store_path) as d:
        assert d.connection is not None
        d.connection.set_busy_timeout(1)
        foreign = apsw.Connection(str(store_path))
        foreign.execute("BEGIN IMMEDIATE")
        waited = trio.Event()

        def heard(point: str, **fields: object) -> None:
            d.points.append(point)
            if d.points.count("writer.busy") == 3:
                token.run_sync_soon(waited.set)

        token = trio.lowlevel.current_trio_token()
        d.writer._observe = heard
        async with trio.open_nursery() as nursery:
            nursery.start_soon(d.writer.do, note("patient"))
            await waited.wait()
            foreign.execute("ROLLBACK")
        foreign.close()
        assert d.rows() == ["patient"] and d.writer.poisoned is None


async def test_a_foreign_writer_does_not_keep_the_journal_from_closing(store_path: Path) -> None:
    """What could not be written is told as busy, and nothing of it stands."""
    async with desk(store_path) as d:
        assert d.connection is not None
        d.connection.set_busy_timeout(1)
        foreign = apsw.Connection(str(store_path))
        foreign.execute("BEGIN IMMEDIATE")
        d.submit("a")
        assert await d.writer.close(HANG_S)
        await trio.testing.wait_all_tasks_blocked()
        foreign.close()
        assert [type(error) for _, error in d.answers] == [StoreBusy]
        assert d.writer.poisoned is None


async def test_a_hundred_tasks_write_at_once_and_each_in_its_order(store_path: Path) -> None:
    """Under load no unit is lost or run twice, each task's are in order, and commits are far fewer."""
    async with desk(store_path) as d:

        async def task(number: int) -> None:
            for index in range(50):

                def body(tx: Tx, index: int = index) -> int:
                    tx.run("INSERT INTO note (task, said) VALUES (?, ?)", number, index)
                    if index % 7 == 3:
                        raise LeaseHeld("refused")
                    return index

                if index % 7 == 3:
                    with pytest.raises(LeaseHeld):
                        await d.writer.do(body)
                else:
                    assert await d.writer.do(body) == index

        before = d.writer.commits
        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(task, number)
        rows = d.store.readers.read(lambda tx: tx.all("SELECT task, said FROM note ORDER BY id"))
        for number in range(100):
            said = [row[1] for row in rows if row[0] == number]
            assert said == [index for index in range(50) if index % 7 != 3]
        assert d.writer.commits - before < 2_500
