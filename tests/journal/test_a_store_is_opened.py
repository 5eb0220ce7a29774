"""Opening a store: who may, what is refused in one sentence, and what is found there."""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from agentplane.core.errors import (
    JournalCorrupt,
    NotFound,
    StoreBusy,
    StoreFailed,
    StoreLevel,
    StoreLocked,
    StoreUnfit,
)
from agentplane.journal import leases, lists, lock, schema
from agentplane.journal import store as store_module
from agentplane.journal.store import Store, read_only
from agentplane.testkit.ledger import Ledger
from journal.stores import NOW, PlainStore, one_sentence, opened

ROOT = Path(__file__).parent.parent.parent


def with_history(path: Path) -> None:
    """A cleanly closed store that has one run."""
    plain = PlainStore(path)
    Ledger(plain).admit()
    plain.unit(plain.store.count_commit)
    plain.store.write_mark(plain._connection)
    plain.close()


def test_a_new_store_is_its_own_original(store_path: Path) -> None:
    """Made, marked, and found again with the same incarnation; nothing is held and nothing lapses."""
    first = opened(store_path, "o1")
    assert (first.found.created, first.found.held, first.found.level) == (True, None, schema.LEVEL)
    first.close()
    again = opened(store_path, "o2")
    assert (again.found.created, again.found.held, again.found.level) == (False, None, schema.LEVEL)
    assert again.found.incarnation == first.found.incarnation == "inc-o1"
    again.close()


def test_a_second_opener_is_refused_with_the_holders_pid_and_socket(store_path: Path) -> None:
    """By a real flock, in one sentence; freed, the store opens."""
    holder = opened(store_path, state="serving", socket="/run/plane/control.sock")
    with pytest.raises(StoreLocked) as caught:
        opened(store_path)
    said = one_sentence(caught.value)
    assert f"pid {os.getpid()}" in said and "/run/plane/control.sock" in said and "serving" in said
    assert caught.value.details["pid"] == os.getpid()
    holder.lock.state("draining")
    with pytest.raises(StoreLocked, match="draining"):
        opened(store_path)
    assert not lock.is_free(store_path)
    holder.close()
    assert lock.is_free(store_path)
    opened(store_path).close()


def test_asking_whether_a_store_is_free_never_refuses_an_opener(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`status` holds the lock shared for an instant; a plane that starts at that instant still gets it."""
    opened(store_path).close()
    asking = os.open(lock.lock_path(store_path), os.O_RDONLY)
    fcntl.flock(asking, fcntl.LOCK_SH)
    waits: list[float] = []

    def instant(seconds: float) -> None:
        waits.append(seconds)
        fcntl.flock(asking, fcntl.LOCK_UN)

    monkeypatch.setattr(lock.time, "sleep", instant)
    opened(store_path).close()
    os.close(asking)
    assert len(waits) == 1


CHILD = """
import sys, time
sys.path[:0] = [{root!r}, {root!r} + "/tests"]
from pathlib import Path
from journal.stores import PlainStore, NOW
from agentplane.testkit.ledger import Ledger
plain = PlainStore(Path({path!r}))
one = Ledger(plain, opening=plain.store.identity.opening).admit()
print("holding", one.run, flush=True)
time.sleep(60)
"""


def test_the_leases_of_a_killed_process_lapse_at_the_next_opening(store_path: Path) -> None:
    """A real process, SIGKILLed while it holds a lease that has long to run."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD.format(root=str(ROOT), path=str(store_path))], stdout=subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        ready, _, _ = select.select([child.stdout], [], [], 30)
        assert ready and child.stdout.readline().startswith(b"holding run_")
        with pytest.raises(StoreLocked, match=f"pid {child.pid}"):
            opened(store_path, "o-next")
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate()
    store = opened(store_path, "o-next")
    assert (store.found.lapsed, store.found.clean, store.found.held) == (1, False, None)
    found = store.readers.read(lambda tx: leases.abandoned(tx, 10))
    assert [(entry.owner, entry.epoch) for entry in found] == [("p1", 1)]
    store.close()


@pytest.mark.parametrize(("closed_clean", "takeovers", "clean"), [(True, 0, True), (False, 1, False)])
def test_a_run_parked_by_a_drain_is_not_counted_as_a_death(
    store_path: Path, closed_clean: bool, takeovers: int, clean: bool
) -> None:
    """P4: a deploy never turns a run into a crash suspect; a crash does count.

    Spec: Drain.ParkedIsNoDeath.
    """
    plain = PlainStore(store_path)
    Ledger(plain, opening=plain.store.identity.opening).admit()
    if closed_clean:
        plain.unit(lambda tx: lists.set_state(tx, "closed_clean", plain.store.identity.opening))
    plain.close()
    after = PlainStore(store_path)
    assert (after.store.found.lapsed, after.store.found.clean) == (1, clean)
    assert Ledger(after, opening="o2").acquire().takeovers == takeovers
    after.close()


# --- what is not ours, or not readable ------------------------------------------------------------
def test_a_store_of_a_higher_level_is_refused_and_left_as_it_is(store_path: Path) -> None:
    """Both levels are named."""
    with_history(store_path)
    raw = apsw.Connection(str(store_path))
    raw.pragma("user_version", schema.LEVEL + 1)
    raw.close()
    before = store_path.read_bytes()
    with pytest.raises(StoreLevel) as caught:
        opened(store_path)
    assert f"level {schema.LEVEL + 1}" in one_sentence(caught.value)
    with pytest.raises(StoreLevel):
        read_only(store_path)
    assert store_path.read_bytes() == before and lock.is_free(store_path)


def test_another_programs_database_is_refused_and_left_as_it_is(store_path: Path) -> None:
    """Not a byte of it changes: no journal mode, no table, no log beside it."""
    raw = apsw.Connection(str(store_path))
    raw.execute("CREATE TABLE theirs (x)").fetchall()
    raw.close()
    before = store_path.read_bytes()
    with pytest.raises(StoreUnfit, match="another program") as caught:
        opened(store_path)
    one_sentence(caught.value)
    assert store_path.read_bytes() == before
    assert sorted(p.name for p in store_path.parent.iterdir()) == ["plane.db", "plane.db.lock"]
    assert lock.is_free(store_path)


@pytest.mark.parametrize("how", ["text", "half", "header", "zeroed page"])
def test_a_damaged_file_is_a_corrupt_journal_in_one_sentence(store_path: Path, how: str) -> None:
    """Not a database, cut in half, an overwritten header, a lost page: never a traceback of SQLite's."""
    with_history(store_path)
    for name in ("plane.db-wal", "plane.db-shm"):
        store_path.with_name(name).unlink(missing_ok=True)
    raw = store_path.read_bytes()
    damaged = {
        "text": b"this is no database, and it is long enough to be read as one" * 20,
        "half": raw[: len(raw) // 8192 * 4096],
        "header": b"\xff" * 100 + raw[100:],
        "zeroed page": raw[:4096] + bytes(len(raw) - 4096),
    }[how]
    store_path.write_bytes(damaged)
    with pytest.raises(JournalCorrupt, match="damaged") as caught:
        opened(store_path)
    one_sentence(caught.value)
    assert lock.is_free(store_path)


def test_another_tenants_store_is_refused(store_path: Path) -> None:
    """One store, one tenant, named at creation."""
    opened(store_path, tenant="acme").close()
    with pytest.raises(StoreUnfit, match="tenant 'acme', not to 'default'"):
        opened(store_path)
    assert read_only(store_path).read(lambda tx: tx.tenant) == "acme"


# --- restored copies ------------------------------------------------------------------------------
def copied(store_path: Path, name: str) -> Path:
    directory = store_path.parent / name
    directory.mkdir()
    for file in store_path.parent.glob(store_path.name + "*"):
        shutil.copy2(file, directory / file.name)
    return directory / store_path.name


def test_a_copied_directory_is_a_restored_store(store_path: Path) -> None:
    """Same bytes, same mark, another inode: held, a new incarnation, and its open runs are marked."""
    with_history(store_path)
    copy = copied(store_path, "copy")
    store = opened(copy, "o-copy")
    assert store.held is not None and "its file is not the one" in store.held
    assert store.found.incarnation == "inc-o-copy"
    row = store.readers.read(lambda tx: lists.runs(tx))[0]
    assert row.held
    gap = store.readers.read(lambda tx: tx.one("SELECT restored_ms, gap_from_ms FROM store"))
    assert gap == (NOW, NOW)
    store.close()
    again = opened(copy)
    assert again.held == store.held and again.found.incarnation == "inc-o-copy"
    again.close()
    original = opened(store_path)
    assert original.held is None
    original.close()


def test_history_without_a_mark_is_a_restored_store(store_path: Path) -> None:
    """Whoever copies only the database file is known for it; so is a mark that cannot be read."""
    with_history(store_path)
    mark = store_path.with_name("plane.db.mark")
    mark.write_bytes(b"{")
    store = opened(store_path)
    assert store.held == "it has history and no mark"
    store.close()


def test_an_empty_store_without_a_mark_is_no_copy(store_path: Path) -> None:
    """A crash between creation and the first mark loses nothing."""
    opened(store_path).close()
    store_path.with_name("plane.db.mark").unlink()
    store = opened(store_path)
    assert store.held is None and store_path.with_name("plane.db.mark").exists()
    store.close()


def test_a_store_behind_its_mark_is_a_restored_store(store_path: Path) -> None:
    """An older state put back into the same inode has seen fewer commits than its mark."""
    with_history(store_path)
    before = store_path.read_bytes()
    plain = PlainStore(store_path)
    for _ in range(3):
        plain.unit(plain.store.count_commit)
    plain.store.write_mark(plain._connection)
    plain.close()
    for name in ("plane.db-wal", "plane.db-shm"):
        store_path.with_name(name).unlink(missing_ok=True)
    with open(store_path, "r+b") as file:
        file.write(before)
        file.truncate(len(before))
    store = opened(store_path)
    assert store.held == "its mark has seen commit 4 and the store ends at 1"
    store.close()


def test_a_new_file_under_an_old_mark_is_held(store_path: Path) -> None:
    """Whoever lost the database and kept its mark does not start from nothing without being told."""
    with_history(store_path)
    for name in ("plane.db", "plane.db-wal", "plane.db-shm"):
        store_path.with_name(name).unlink(missing_ok=True)
    store = opened(store_path)
    assert store.found.created and store.held == "it is new, and its mark has seen commit 1"
    store.close()


# --- readers, and files that change under us ------------------------------------------------------
def test_a_reader_beside_a_serving_plane_takes_and_lapses_nothing(store_path: Path) -> None:
    """It sees committed rows, leaves lock and leases alone, and cannot write."""
    plain = PlainStore(store_path)
    one = Ledger(plain).admit()
    readers = read_only(store_path)
    assert [row.run for row in readers.read(lambda tx: lists.runs(tx))] == [one.run]
    with pytest.raises(StoreUnfit):
        readers.read(lambda tx: tx.run("DELETE FROM lease"))
    assert plain.unit(lambda tx: leases.holder(tx, one.run)) is not None
    readers.close()
    plain.close()


def test_what_is_not_there_or_empty_is_not_read(store_path: Path) -> None:
    """And reading makes no file."""
    with pytest.raises(NotFound, match="no store"):
        read_only(store_path)
    assert not store_path.exists()
    store_path.touch()
    with pytest.raises(NotFound, match="is empty"):
        read_only(store_path)


def test_a_reader_lent_while_the_store_closes_is_closed_when_it_comes_back(store_path: Path) -> None:
    """No descriptor of the database outlives the store (W10)."""
    plain = PlainStore(store_path)
    with plain.store.readers._lent() as connection:
        plain.store.readers.close()
    with pytest.raises(apsw.ConnectionClosedError):
        connection.execute("SELECT 1")
    plain.close()


@pytest.mark.parametrize("name", ["plane.db", "plane.db-wal", "plane.db.lock"])
@pytest.mark.parametrize("how", ["replaced", "removed"])
def test_a_file_that_was_replaced_under_the_plane_is_fail_stop(store_path: Path, name: str, how: str) -> None:
    """W10: database, log and lock are the ones that were opened, or nothing more is written."""
    plain = PlainStore(store_path)
    plain.store.same_files()
    victim = store_path.with_name(name)
    kept = victim.with_name("kept")
    os.rename(victim, kept)
    if how == "replaced":
        shutil.copyfile(kept, victim)
    with pytest.raises(StoreFailed, match=f"{name} was replaced") as caught:
        plain.store.same_files()
    one_sentence(caught.value)
    plain.close()


def test_every_open_copies_the_log_into_the_main_file(store_path: Path) -> None:
    """W9: what an earlier process left in the log is in the database before anything is admitted."""
    plain = PlainStore(store_path)
    run = Ledger(plain).admit().run
    copy = store_path.with_name("image.db")
    shutil.copyfile(store_path, copy)
    assert run.encode() not in copy.read_bytes()
    plain.close()
    opened(store_path).close()
    assert run.encode() in store_path.read_bytes()


def test_a_reader_that_pins_the_log_keeps_a_plane_from_starting(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W9: a log that could not be copied whole is not what a plane may stand on."""
    monkeypatch.setattr(store_module.bounds, "BUSY_WAIT_MS", 50)
    plain = PlainStore(store_path)
    pinning = apsw.Connection(str(store_path), flags=apsw.SQLITE_OPEN_READONLY)
    pinning.execute("BEGIN")
    pinning.execute("SELECT count(*) FROM run").fetchall()
    Ledger(plain).admit()
    plain.close()
    with pytest.raises(StoreBusy, match="A reader holds an old state") as caught:
        opened(store_path)
    one_sentence(caught.value)
    pinning.close()
    opened(store_path).close()


def test_the_version_of_sqlite_is_asserted(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier ones can corrupt a log that is reset under a reader."""
    monkeypatch.setattr(store_module, "SQLITE_LEAST", 4_000_000)
    with pytest.raises(StoreUnfit, match=r"older than 3\.51\.3"):
        Store.open(store_path, "default", identity=None)  # type: ignore[arg-type]
