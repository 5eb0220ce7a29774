"""Solo units: a transaction of its own in the one queue, whose failure is nobody else's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio

from agentplane.core.errors import AtomicRefused, Fenced, InvariantViolation, StoreFailed
from agentplane.journal.tx import Tx
from agentplane.journal.units import Unit, UnitDefect
from agentplane.testkit.faults import Disk, Fault, FaultVFS
from agentplane.testkit.inline import InlineWriter
from journal.stores import opened
from journal.test_the_writer_commits_groups import HANG_S, Desk, desk, note, raising

_names = count(1)


@pytest.fixture
def disk() -> Iterator[tuple[Disk, str]]:
    """A disk that can be full, and the name of its VFS."""
    with FaultVFS(f"solo-{next(_names)}", Disk()) as vfs:
        yield vfs.disk, vfs.name


def told(d: Desk) -> list[Any]:
    """Each answer: the value, or the class of the error."""
    return [value if error is None else type(error) for value, error in d.answers]


async def settled(d: Desk) -> None:
    """Everything queued before is answered."""
    await d.writer.do(lambda tx: None)


async def answered_at(d: Desk, solo: bool) -> list[int]:
    """Queue a, b, m, c and d behind a held writer; in how many commits each of them was answered. m may be solo."""
    at: list[int] = []
    done = trio.Event()

    def deliver(value: Any, error: BaseException | None) -> None:
        at.append(d.writer.commits)
        if len(at) == 5:
            done.set()

    go = await d.gate()
    before = d.writer.commits
    for said in "abmcd":
        d.writer.submit(Unit(note(said), deliver, solo=solo and said == "m"))
    go()
    await done.wait()
    return [commits - before for commits in at]


async def test_a_solo_unit_is_a_commit_of_its_own_in_its_turn(store_path: Path) -> None:
    """W1, W4, S82: what came before is committed before it, what came behind after it, in the order of the queue, and
    no answer is before its commit; without the solo unit all of it is one commit."""
    async with desk(store_path) as d:
        assert await answered_at(d, solo=False) == [1] * 5
        at = await answered_at(d, solo=True)
        # An answer is given on the loop, perhaps when the writer is further already.
        assert sorted(at) == at and at[0] >= 1 and at[2] >= 2 and at[3:] == [3, 3]
        assert d.rows() == [*"abmcd"] * 2
        counted = d.store.readers.read(lambda tx: tx.one("SELECT commits FROM store"))
        assert counted == (d.writer.commits,)


async def test_a_neighbour_that_comes_meanwhile_waits_for_one_commit_more(store_path: Path) -> None:
    """What an atomic unit costs the others: an announcement queued while it runs is in the very next commit."""
    async with desk(store_path) as d:
        token, entered, leave = trio.lowlevel.current_trio_token(), trio.Event(), threading.Event()

        def body(tx: Tx) -> None:
            token.run_sync_soon(entered.set)
            assert leave.wait(HANG_S)

        before = d.writer.commits
        d.submit(body, solo=True)
        await entered.wait()
        announced = trio.Event()
        d.writer.submit(Unit(note("announced"), lambda value, error: announced.set()))
        leave.set()
        await announced.wait()
        assert d.writer.commits - before == 2


def full_inside(d: Desk, disk: Disk) -> Callable[[Tx], object]:
    """Fills the disk and writes more than the cache of pages holds, so that SQLite meets it inside the statement."""

    def body(tx: Tx) -> None:
        tx.connection.pragma("cache_size", 5)
        disk.is_full = True
        tx.run("INSERT INTO note (said) SELECT randomblob(3000) FROM (WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL "
               "SELECT x + 1 FROM n WHERE x < 2000) SELECT x FROM n)")  # fmt: skip

    return body


def full_at_commit(d: Desk, disk: Disk) -> Callable[[Tx], object]:
    def body(tx: Tx) -> None:
        note("too much")(tx)
        disk.is_full = True

    return body


def interrupted(d: Desk, disk: Disk) -> Callable[[Tx], object]:
    def body(tx: Tx) -> None:
        note("half")(tx)
        tx.connection.set_progress_handler(lambda: True, 10, id="test")
        try:
            tx.run("UPDATE note SET said = said || 'x' WHERE (WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL "
                   "SELECT x + 1 FROM n WHERE x < 10000) SELECT max(x) FROM n) > 1")  # fmt: skip
        finally:
            tx.connection.set_progress_handler(None, id="test")

    return body


def constraint_inside(d: Desk, disk: Disk) -> Callable[[Tx], object]:
    return lambda tx: tx.run("INSERT INTO note (id, said) VALUES (1, 'again'), (1, 'again')")


def constraint_at_commit(d: Desk, disk: Disk) -> Callable[[Tx], object]:
    def body(tx: Tx) -> None:
        tx.run("CREATE TABLE app_a (id INTEGER PRIMARY KEY)")
        tx.run("CREATE TABLE app_b (a REFERENCES app_a (id) DEFERRABLE INITIALLY DEFERRED)")
        tx.run("INSERT INTO app_b VALUES (5)")

    return body


OWN = [full_inside, full_at_commit, interrupted, constraint_inside, constraint_at_commit]


@pytest.mark.parametrize("failing", OWN)
async def test_what_fails_in_a_solo_unit_is_its_own_refusal(
    store_path: Path, disk: tuple[Disk, str], failing: Callable[[Desk, Disk], Callable[[Tx], object]]
) -> None:
    """S81: A full disk, an interrupt, a constraint, in it or at its COMMIT: rolled back, told to it alone; the
    neighbours before and behind it stand, nothing is poisoned, and a process that opens the store finds the same."""
    held, vfs = disk
    async with desk(store_path, vfs=vfs) as d:
        go = await d.gate()
        d.submit("a", "b")

        d.submit(failing(d, held), solo=True)
        d.submit(healing(held))
        d.submit("c", "d")
        go()
        await settled(d)
        assert told(d) == ["a", "b", AtomicRefused, "healed", "c", "d"]
        assert d.rows() == ["a", "b", "healed", "c", "d"] and d.poison == []
        refusal = d.answers[2][1]
        assert str(refusal).startswith("Nothing of the transaction stands") and "\n" not in str(refusal)
    again = opened(store_path)
    assert [row[0] for row in again.readers.read(lambda tx: tx.all("SELECT said FROM note"))] == [
        "a", "b", "healed", "c", "d"
    ]  # fmt: skip
    again.close()


def healing(disk: Disk) -> Callable[[Tx], object]:
    def body(tx: Tx) -> object:
        disk.heal()
        return note("healed")(tx)

    return body


@pytest.mark.parametrize("failing", [full_inside, interrupted])
async def test_the_same_in_a_shared_transaction_stops_the_plane(
    store_path: Path, disk: tuple[Disk, str], failing: Callable[[Desk, Disk], Callable[[Tx], object]]
) -> None:
    """W3: what takes a batch's transaction away cannot be told apart from its neighbours' loss."""
    held, vfs = disk
    async with desk(store_path, vfs=vfs) as d:
        go = await d.gate()
        d.submit("a")
        d.submit(failing(d, held))
        d.submit("c")
        go()
        with pytest.raises(StoreFailed):
            await settled(d)
        assert d.poison and set(told(d)) == {StoreFailed}
        held.heal()


async def test_a_declared_refusal_and_a_defect_are_the_units_own(store_path: Path) -> None:
    """Rolled back without a commit, and answered as what they are; an invariant that names no run stops all."""
    async with desk(store_path) as d:
        before = d.writer.commits
        d.submit(raising(Fenced("no")), raising(ZeroDivisionError("boom")), solo=True)
        d.submit(raising(InvariantViolation("INV-01 mine")), solo=True, run="run_1")
        d.submit("fine", solo=True)
        await d.writer.do(note("last"), solo=True)
        assert told(d) == [Fenced, UnitDefect, InvariantViolation, "fine"]
        assert d.rows() == ["fine", "last"] and d.writer.commits - before == 2 and d.poison == []
        d.submit(raising(InvariantViolation("INV-01 everybody's")), solo=True)
        with pytest.raises(InvariantViolation):
            await settled(d)
        assert d.poison


async def test_an_error_of_the_disk_poisons_a_solo_unit_as_any(store_path: Path, disk: tuple[Disk, str]) -> None:
    """W9: a failed sync leaves a commit that nobody can vouch for, whoever asked for it."""
    held, vfs = disk
    async with desk(store_path, vfs=vfs) as d:
        go = await d.gate()
        d.submit("lost?", solo=True)
        held.fault = Fault("sync-eio", held.syncs + 2)
        go()
        with pytest.raises(StoreFailed):
            while True:
                await settled(d)
        assert told(d) == [StoreFailed] and d.poison


async def test_a_unit_that_lost_its_transaction_and_went_on_stops_the_plane(store_path: Path) -> None:
    """What it wrote behind a rollback committed itself, statement by statement: nobody may say that it is whole."""

    def body(tx: Tx) -> object:
        tx.connection.execute("ROLLBACK")
        return note("by itself")(tx)

    async with desk(store_path) as d:
        d.submit(body, solo=True)
        with pytest.raises(StoreFailed):
            await settled(d)
        assert told(d) == [StoreFailed] and d.poison


async def test_a_waiting_solo_unit_may_be_withdrawn_and_is_answered_at_the_end(store_path: Path) -> None:
    """P13: until its own turn the writer has not taken it, also when it is next; a journal that closes runs it, a
    poisoned one refuses it."""
    async with desk(store_path) as d:
        go = await d.gate()
        kept, gone = d.submit("kept", "gone", solo=True)
        assert gone.withdraw()
        go()
        await settled(d)
        assert d.rows() == ["kept"] and not kept.withdraw()
        go = await d.gate()
        d.submit("at the end", solo=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(d.writer.close, HANG_S)
            await trio.testing.wait_all_tasks_blocked()
            go()
        assert d.rows() == ["kept", "at the end"]
    async with desk(store_path) as d:
        go = await d.gate()

        def broken(tx: Tx) -> None:
            raise apsw.IOError("the disk failed")

        d.submit(broken)
        d.submit("never", solo=True)
        go()
        with pytest.raises(StoreFailed):
            await settled(d)
        assert told(d) == [StoreFailed, StoreFailed]


@pytest.mark.parametrize("failing", OWN)
async def test_the_writer_of_tests_keeps_the_same_rules(
    store_path: Path, disk: tuple[Disk, str], failing: Callable[[Desk, Disk], Callable[[Tx], object]]
) -> None:
    """The inline writer refuses a solo unit as the threaded one does, and goes on."""
    held, vfs = disk
    d = Desk(store_path, vfs=vfs)
    writer = InlineWriter(d.open, "default", lambda: 5, before_commit=d.store.count_commit)
    writer.start()
    await writer.do(note("a"))
    with pytest.raises(AtomicRefused):
        await writer.do(failing(d, held), solo=True)
    held.heal()
    assert writer.poisoned is None and writer.commits == 1 and writer.refused == {"AtomicRefused": 1}
    await writer.do(note("b"), solo=True)
    assert d.rows() == ["a", "b"] and writer.commits == 2
    await writer.close()
    d.store.close()
