"""A real plane process over a small file system of its own, which is filled up under it and emptied again.

This file is also the program of that process: it refunds three orders one after the other into a book outside of the
disk, and waits for a line of its parent when the first has landed.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from agentplane import Plane, Recovery, RetryPolicy, effect, skill
from agentplane.core.errors import AgentplaneError, DiskLow
from agentplane.journal import store as stores
from agentplane.journal.room import DiskRoom

MIB = 1024 * 1024
MARKS = {"low": 8 * MIB, "floor": 4 * MIB, "ballast": MIB}
NO_MARKS = {"low": 0, "floor": 0, "ballast": 4096}


# --- the process -----------------------------------------------------------------------------------------------------


def say(**members: object) -> None:
    # One write: the writer's thread and the loop both speak, and `print` writes a line and its end in two.
    os.write(1, (json.dumps(members) + "\n").encode())


class Told(DiskRoom):
    """The room of the product, which says what it saw and what it refused."""

    def look(self, *, take: bool = True) -> Any:
        state = super().look(take=take)
        say(room=state.name)
        return state

    def announce(self) -> None:
        try:
            super().announce()
        except DiskLow:
            say(refused="announcement")
            raise


def refunds(book: Path) -> Any:
    @effect("pay.refund", recovery=Recovery.IDEMPOTENT, retry=RetryPolicy(base_ms=1))
    async def refund(call: Any, *, order: int) -> Any:
        rows = [json.loads(line) for line in book.read_text().splitlines()]
        if call.idempotency_key not in [row["key"] for row in rows]:
            with open(book, "a", encoding="utf-8") as file:
                file.write(json.dumps({"key": call.idempotency_key, "order": order}) + "\n")
            say(landed=order)
            if order == 0:
                await trio.to_thread.run_sync(sys.stdin.readline)
        return order

    @skill("orders.three")
    async def three(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return [await cx.do(refund(order=order)) for order in range(3)]

    return three


async def process(where: Path, book: Path, marks: dict[str, int]) -> None:
    stores.DiskRoom = functools.partial(Told, **marks)  # type: ignore[misc, assignment]
    async with Plane.open(where / "plane.db", skills=[refunds(book)]) as plane:
        say(opened=True)
        # So large that the main file has to grow for it when the log is copied.
        outcome = await plane.run("orders.three", {"pad": "x" * 400_000}, key="once")
        while outcome.status == "running":
            # A run of the process before is answered as it stands, until recovery has taken it over.
            await trio.sleep(0.02)
            outcome = await plane.outcome(outcome.run)
        say(ended=outcome.status)


# --- the tests -------------------------------------------------------------------------------------------------------


class SmallDisk:
    """A file system at ``place``, its bytes in 24 MiB at ``bytes_at`` (the same, unless it lies on another), a book
    beside it, and processes over it."""

    def __init__(self, place: Path, book: Path, bytes_at: Path | None = None) -> None:
        self.place = place
        self.book = book
        self.bytes_at = bytes_at or place
        self.filler = self.bytes_at / "filler"
        book.touch()

    def start(self, marks: dict[str, int]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, __file__, str(self.place), str(self.book), json.dumps(marks)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_environment(),
        )  # fmt: skip

    def fill(self, leave: int) -> None:
        """Until ``leave`` bytes are free, to a page."""
        with open(self.filler, "ab", buffering=0) as file:
            while (stat := os.statvfs(self.bytes_at)).f_bavail * stat.f_frsize > leave:
                file.write(bytes(min(MIB, max(4096, stat.f_bavail * stat.f_frsize - leave))))

    def empty(self) -> None:
        self.filler.unlink()

    def landed(self) -> Counter[int]:
        return Counter(json.loads(line)["order"] for line in self.book.read_text().splitlines())


def _environment() -> dict[str, str]:
    root = Path(__file__).resolve().parents[2]
    return {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'tests'}", "PYTHONHASHSEED": "0"}


@contextmanager
def small_file_system(place: Path) -> Iterator[None]:
    if os.geteuid() != 0:
        pytest.skip("missing: a file system of its own (only root may mount one)")
    place.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"none", str(place).encode(), b"tmpfs", 0, b"size=24m"):
        pytest.skip(f"missing: a file system of its own ({os.strerror(ctypes.get_errno())})")
    try:
        yield
    finally:
        libc.umount2(str(place).encode(), 2)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_file_system(tmp_path / "small"):
        yield SmallDisk(tmp_path / "small", tmp_path / "book")


class Thin:
    """An ext4 of 64 MiB in a file with holes, on the small file system: when that is full, the kernel has nowhere to
    put what it took, and says EIO at the sync."""

    def __init__(self, image: Path, place: Path) -> None:
        self.image = image
        self.place = place
        place.mkdir()

    def mount(self) -> bool:
        return subprocess.run(["mount", "-o", "loop", self.image, self.place], capture_output=True).returncode == 0

    def unmount(self) -> None:
        subprocess.run(["umount", self.place], capture_output=True, check=False)


@pytest.fixture
def thin(tmp_path: Path, need_tool: Callable[[str], str]) -> Iterator[Thin]:
    for tool in ("mkfs.ext4", "mount", "umount"):
        need_tool(tool)
    with small_file_system(tmp_path / "small"):
        made = Thin(tmp_path / "small" / "image", tmp_path / "thin")
        made.image.touch()
        os.truncate(made.image, 64 * MIB)
        subprocess.run(["mkfs.ext4", "-q", "-F", made.image], check=True)
        if not made.mount():
            pytest.skip("this kernel offers no loop device, and so no disk that fails")
        try:
            yield made
        finally:
            made.unmount()


@pytest.fixture
def started() -> Iterator[Callable[[SmallDisk, dict[str, int]], subprocess.Popen[str]]]:
    children: list[subprocess.Popen[str]] = []

    def start(disk: SmallDisk, marks: dict[str, int]) -> subprocess.Popen[str]:
        children.append(disk.start(marks))
        return children[-1]

    yield start
    for child in children:
        child.kill()
        child.communicate()


def hear(child: subprocess.Popen[str], **members: object) -> None:
    """Read on until the process says this; its own words when it ended instead."""
    assert child.stdout is not None and child.stderr is not None
    said: list[object] = []
    for line in child.stdout:
        said.append(json.loads(line))
        if said[-1] == members:
            return
    raise AssertionError(f"it never said {members}, but {said}: {child.stderr.read()}")


def go_on(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


def test_a_run_waits_at_the_floor_and_concludes_when_there_is_room(disk: SmallDisk, started: Any) -> None:
    """The marks are met first: the outcome is recorded, nothing more is announced, and nobody has to start anything."""
    child = started(disk, MARKS)
    hear(child, landed=0)
    disk.fill(MARKS["floor"] // 2)
    hear(child, room="FLOOR")
    go_on(child)
    hear(child, refused="announcement")
    assert disk.landed() == {0: 1} and child.poll() is None
    disk.empty()
    hear(child, ended="succeeded")
    assert child.wait() == 0 and disk.landed() == {0: 1, 1: 1, 2: 1}


def test_a_disk_that_is_full_at_once_stops_the_plane_and_the_next_start_concludes(
    disk: SmallDisk, started: Any
) -> None:
    """Real ENOSPC in a commit, no mark in its way: status 4 and one sentence; the landed refund is not paid again."""
    child = started(disk, NO_MARKS)
    hear(child, landed=0)
    disk.fill(0)
    go_on(child)
    hear(child, error="store_failed")
    assert child.wait() == 4 and disk.landed() == {0: 1}
    disk.empty()
    child = started(disk, NO_MARKS)
    hear(child, ended="succeeded")
    assert child.wait() == 0 and disk.landed() == {0: 1, 1: 1, 2: 1}


def test_a_sync_that_fails_stops_the_plane_and_the_next_start_concludes(
    thin: Thin, tmp_path: Path, started: Any
) -> None:
    """Real EIO from a sync: status 4, no second try; once the disk is whole, what had landed is not paid again."""
    disk = SmallDisk(thin.place, tmp_path / "book", thin.image.parent)
    child = started(disk, NO_MARKS)
    hear(child, landed=0)
    disk.fill(0)
    go_on(child)
    hear(child, error="store_failed")
    assert child.wait() == 4 and disk.landed() == {0: 1}
    disk.empty()
    # Its journal was given up: only a new mount writes to it again.
    thin.unmount()
    assert thin.mount()
    child = started(disk, NO_MARKS)
    hear(child, ended="succeeded")
    assert child.wait() == 0 and disk.landed() == {0: 1, 1: 1, 2: 1}


def test_a_plane_starts_on_a_full_disk_with_the_bytes_of_its_ballast(disk: SmallDisk, started: Any) -> None:
    """Killed, and not a byte free: the ballast is given back before anything is copied, so that the store opens at its
    floor; what was under way concludes when there is room."""
    child = started(disk, MARKS)
    hear(child, landed=0)
    child.kill()
    child.wait()
    disk.fill(0)
    assert (disk.place / "plane.db.ballast").exists()
    child = started(disk, MARKS)
    hear(child, opened=True)
    hear(child, refused="announcement")
    disk.empty()
    hear(child, ended="succeeded")
    assert child.wait() == 0 and disk.landed() == {0: 1, 1: 1, 2: 1}


if __name__ == "__main__":
    try:
        trio.run(process, Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))
    except AgentplaneError as error:
        print(error, file=sys.stderr)
        say(error=error.row.code)
        sys.exit(error.row.exit)
