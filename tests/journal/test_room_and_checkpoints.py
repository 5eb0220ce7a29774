"""Room as a state, and checkpoints on a thread of their own."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentplane.core import bounds
from agentplane.core.errors import AgentplaneError, DiskLow, StoreFailed
from agentplane.journal.checkpoints import Checkpointer
from agentplane.journal.mark import Mark, read_mark, write_mark
from agentplane.journal.room import DiskRoom, Room, judge
from agentplane.testkit.ledger import Ledger
from journal.stores import PlainStore, opened

MIB = 1024 * 1024
HANG_S = 30


@pytest.mark.parametrize(
    ("free", "state"),
    [
        (bounds.ROOM_LOW_BYTES, Room.ENOUGH),
        (bounds.ROOM_LOW_BYTES - 1, Room.LOW),
        (bounds.ROOM_FLOOR_BYTES, Room.LOW),
        (bounds.ROOM_FLOOR_BYTES - 1, Room.FLOOR),
        (0, Room.FLOOR),
    ],
)
def test_room_has_three_states(free: int, state: Room) -> None:
    """Exactly at its mark a disk still has what the mark asks for."""
    assert judge(free) is state


def test_low_stops_admissions_and_the_floor_stops_announcements(store_path: Path) -> None:
    """Planted thresholds over the real disk: outcomes and decisions ask for no room at all."""
    enough = DiskRoom(store_path, low=2, floor=1, ballast=4096)
    assert enough.look() is Room.ENOUGH
    enough.admit()
    enough.announce()
    low = DiskRoom(store_path, low=2**62, floor=1, ballast=4096)
    assert low.look() is Room.LOW
    with pytest.raises(DiskLow, match="under the mark of"):
        low.admit()
    low.announce()
    floor = DiskRoom(store_path, low=2**62, floor=2**61, ballast=4096)
    assert floor.look() is Room.FLOOR
    for refused in (floor.admit, floor.announce):
        with pytest.raises(DiskLow) as caught:
            refused()
        assert caught.value.details["free"] == floor.free > 0


def test_the_ballast_is_given_back_at_the_floor_and_taken_again_above_it(store_path: Path) -> None:
    """A full disk leaves room for what has begun; between the marks the ballast stays as it is."""
    room = DiskRoom(store_path, low=2, floor=1, ballast=3 * 4096)
    ballast = store_path.with_name("plane.db.ballast")
    room.look()
    assert ballast.stat().st_size == 3 * 4096 and ballast.stat().st_blocks * 512 >= 3 * 4096
    room.low = 2**62
    room.look()
    assert ballast.exists()
    room.floor = 2**61
    assert room.look() is Room.FLOOR and not ballast.exists()
    room.floor = 1
    assert room.look() is Room.LOW and not ballast.exists()
    room.low = 2
    assert room.look() is Room.ENOUGH and ballast.exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB; only root may mount one."""
    if os.geteuid() != 0:
        pytest.skip("missing: a file system of its own (only root may mount one)")
    place = tmp_path / "small"
    place.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"none", str(place).encode(), b"tmpfs", 0, b"size=4m"):
        pytest.skip(f"missing: a file system of its own ({os.strerror(ctypes.get_errno())})")
    try:
        yield place
    finally:
        libc.umount2(str(place).encode(), 2)


def test_a_disk_that_fills_up_is_a_state_that_ends(small_disk: Path) -> None:
    """A real small file system: the states follow it both ways, and a failed ballast is no fault."""
    room = DiskRoom(small_disk / "plane.db", low=2 * MIB, floor=1 * MIB, ballast=MIB // 2)
    assert room.look() is Room.ENOUGH
    filler = small_disk / "filler"
    filler.write_bytes(bytes(5 * MIB // 2))
    assert room.look() is Room.LOW and (small_disk / "plane.db.ballast").exists()
    with open(filler, "ab", buffering=0) as file:
        with pytest.raises(OSError, match="No space left"):
            while True:
                file.write(bytes(4096))
    assert room.look() is Room.FLOOR and not (small_disk / "plane.db.ballast").exists()
    assert room.look() is Room.FLOOR and room.free >= MIB // 2
    filler.unlink()
    assert room.look() is Room.ENOUGH and (small_disk / "plane.db.ballast").exists()
    too_big = DiskRoom(small_disk / "other.db", low=2, floor=1, ballast=64 * MIB)
    assert too_big.look() is Room.ENOUGH and not (small_disk / "other.db.ballast").exists()


def test_a_full_disk_under_a_store_is_told_and_the_store_opens_again(small_disk: Path) -> None:
    """The write that found no room is fail-stop; nothing acknowledged is lost, and the store opens again."""
    plain = PlainStore(small_disk / "plane.db")
    run = Ledger(plain).admit().run
    plain.store.write_mark(plain._connection)

    def fill(tx: object) -> None:
        plain._connection.execute("INSERT INTO blob VALUES ('default', zeroblob(32), zeroblob(8000000))")

    with pytest.raises(StoreFailed, match="cannot be written any more"):
        plain.unit(fill)
    plain.close()
    store = opened(small_disk / "plane.db")
    assert store.held is None
    assert store.readers.read(lambda tx: tx.all("SELECT run FROM run")) == [(run,)]
    store.close()


# --- checkpoints ----------------------------------------------------------------------------------
class Watched:
    """A checkpointer over a plain store, and the errors it hands on."""

    def __init__(self, path: Path, pages: int) -> None:
        self.plain = PlainStore(path)
        self.failed: list[AgentplaneError] = []
        self.told = threading.Event()
        self.checkpointer = Checkpointer(self.plain.store, self.fail, pages=pages)
        self.checkpointer.watch(self.plain._connection)
        self.checkpointer.start()

    def fail(self, error: AgentplaneError) -> None:
        self.failed.append(error)
        self.told.set()

    def write(self) -> None:
        self.plain.unit(self.plain.store.count_commit)

    def close(self) -> None:
        self.checkpointer.stop()
        self.plain.close()


def wait_for(path: Path, wanted: int) -> Mark:
    """The mark once it has seen that commit; inotify is not worth it for a test that polls a rename."""
    pause = threading.Event()
    for _ in range(HANG_S * 200):
        mark = read_mark(path)
        if mark is not None and mark.commits >= wanted:
            return mark
        pause.wait(0.005)
    raise AssertionError(f"the mark never saw commit {wanted}")


def test_a_long_log_is_copied_and_the_mark_follows(store_path: Path) -> None:
    """W11: on another thread and connection; the mark then names a commit that is in the main file."""
    watched = Watched(store_path, pages=4)
    run = Ledger(watched.plain).admit().run
    for _ in range(10):
        watched.write()
    mark = wait_for(store_path, 1)
    assert mark == Mark(watched.plain.store.found.incarnation, mark.commits, store_path.stat().st_ino)
    assert run.encode() in store_path.read_bytes() and watched.failed == []
    watched.close()


def test_a_short_log_is_left_alone(store_path: Path) -> None:
    """Below its bound nothing is copied, so the mark stays."""
    watched = Watched(store_path, pages=10_000)
    before = read_mark(store_path)
    for _ in range(10):
        watched.write()
    watched.close()
    assert read_mark(store_path) == before and watched.failed == []


def test_a_checkpoint_finds_a_replaced_file_and_writes_no_mark(store_path: Path) -> None:
    """W10: the files are compared before anything is copied; a difference stops the plane."""
    watched = Watched(store_path, pages=1)
    before = read_mark(store_path)
    os.rename(store_path, store_path.with_name("kept"))
    store_path.touch()
    watched.write()
    assert watched.told.wait(HANG_S)
    assert "was replaced" in watched.failed[0].message and read_mark(store_path) == before
    watched.close()


def test_a_held_store_keeps_the_mark_it_was_found_with(store_path: Path) -> None:
    """Until somebody lets it go it is known for a copy at every opening."""
    plain = PlainStore(store_path)
    Ledger(plain).admit()
    plain.close()
    write_mark(store_path, Mark("another", 9, store_path.stat().st_ino))
    watched = Watched(store_path, pages=1)
    assert watched.plain.store.held == "its mark is of another incarnation"
    done = threading.Event()
    seen = watched.plain.store.same_files

    def counted() -> None:
        seen()
        done.set()

    watched.plain.store.same_files = counted  # type: ignore[method-assign]
    watched.write()
    assert done.wait(HANG_S)
    watched.close()
    assert read_mark(store_path) == Mark("another", 9, store_path.stat().st_ino)


def test_a_mark_that_cannot_be_written_is_told(store_path: Path) -> None:
    """And the old one stays whole: it is written beside, synced and renamed."""
    plain = PlainStore(store_path)
    before = read_mark(store_path)
    store_path.with_name("plane.db.mark.new").mkdir()
    with pytest.raises(StoreFailed, match=r"The mark .* cannot be written"):
        plain.store.write_mark(plain._connection)
    assert read_mark(store_path) == before
    plain.close()
