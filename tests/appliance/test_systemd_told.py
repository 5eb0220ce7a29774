"""What a service manager hears of a plane: signs of life, a line, a plea for time, each only while it is true."""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import trio

from agentplane.appliance import watchdog
from agentplane.appliance.systemd import Notifier
from agentplane.appliance.watchdog import MoreTime, Standing
from agentplane.journal.units import Unit
from surface.doors import Door, Gate, door

PATIENCE_S = 10


class Manager:
    """The other end of NOTIFY_SOCKET, which keeps what it heard."""

    def __init__(self, directory: Path) -> None:
        self.path = str(directory / "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.socket.setblocking(False)
        self.heard: list[str] = []

    def listen(self) -> list[str]:
        """All that it has been told by now."""
        while True:
            try:
                self.heard.append(self.socket.recv(4096).decode())
            except BlockingIOError:
                return self.heard

    async def hears(self, holds: Callable[[str], bool]) -> str:
        """Wait until it is told something that ``holds``; forget all before."""
        with trio.move_on_after(PATIENCE_S):
            while True:
                for index, one in enumerate(self.listen()):
                    if holds(one):
                        del self.heard[: index + 1]
                        return one
                await trio.sleep(0.002)
        pytest.fail(f"not told; heard: {self.heard[-5:]}")


@contextmanager
def listening(directory: Path) -> Iterator[Manager]:
    manager = Manager(directory)
    try:
        yield manager
    finally:
        manager.socket.close()


@asynccontextmanager
async def standing(
    directory: Path, monkeypatch: pytest.MonkeyPatch, watchdog_s: float | None = None
) -> AsyncIterator[tuple[Manager, Standing, Door]]:
    """A plane and its manager; looks are milliseconds apart."""
    monkeypatch.setattr(watchdog, "STATUS_EVERY_S", 0.005)
    monkeypatch.setattr(watchdog, "READY_PAUSE_S", 0.005)
    with listening(directory) as manager:
        async with door(directory) as desk, trio.open_nursery() as nursery:
            told = Standing(Notifier(manager.path, watchdog_s), desk.plane, desk.drain)
            nursery.start_soon(told.forever)
            yield manager, told, desk
            nursery.cancel_scope.cancel()


def is_alive(text: str) -> bool:
    return text == "WATCHDOG=1"


async def test_a_writer_that_stands_is_no_sign_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S142: while its oldest unit is older than the period nothing is said but why; then it goes on."""
    async with standing(tmp_path, monkeypatch, 0.3) as (manager, _, desk):
        for _ in range(3):
            await manager.hears(is_alive)
        released = threading.Event()
        desk.plane.writer.submit(Unit(lambda tx: released.wait(PATIENCE_S), lambda value, error: None))
        why = await manager.hears(lambda text: text.startswith("STATUS=no sign of life"))
        assert "writer" in why and "0.3 s" in why
        await trio.sleep(0.35)
        assert manager.listen() == [], "silent, and the reason is not overwritten"
        released.set()
        await manager.hears(is_alive)
        await manager.hears(lambda text: text.startswith("STATUS=serving"))


async def test_who_asked_for_no_sign_hears_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S142: no WatchdogSec=, no WATCHDOG=1; no manager, no task at all."""
    async with standing(tmp_path, monkeypatch) as (manager, told, desk):
        told.ready()
        await manager.hears(lambda text: "running 0" in text)
        assert not [one for one in manager.listen() if is_alive(one)]
        await Standing(Notifier(None, 0.001), desk.plane, desk.drain).forever()


async def test_the_line_is_told_when_it_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs, what state it is in, and nothing twice."""
    async with standing(tmp_path, monkeypatch) as (manager, told, desk):
        told.ready()
        assert (await manager.hears(lambda text: "READY=1" in text)).startswith("READY=1\nSTATUS=serving, pid ")
        await manager.hears(lambda text: text == "STATUS=serving, running 0, waiting 0")
        run = (await desk.post({"capability": "desk.waiting", "input": {}})).body["run"]
        await manager.hears(lambda text: text == "STATUS=serving, running 1, waiting 0")
        await trio.sleep(0.05)
        assert manager.listen() == []
        desk.drain.begin()
        told.stopping()
        assert await manager.hears(lambda text: "STOPPING" in text) == "STOPPING=1\nSTATUS=draining"
        await manager.hears(lambda text: text == "STATUS=draining, running 1, waiting 0")
        Gate.opened.set()
        await desk.plane.runs.wait_for(run)
        await manager.hears(lambda text: text == "STATUS=draining, running 0, waiting 0")


async def test_ready_is_said_until_the_manager_took_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S144: its queue may be full at that moment; a READY that is lost would be a start that failed."""
    async with standing(tmp_path, monkeypatch) as (manager, told, _):
        filler = Notifier(manager.path)
        while filler.status("somebody else speaks much"):
            pass
        told.ready()
        told_again = trio.Event()

        async def again() -> None:
            await told._ready_again()
            told_again.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(again)
            await manager.hears(lambda text: "READY=1" in text)
            await told_again.wait()


async def test_a_reload_is_between_two_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S148: RELOADING with the monotonic clock, then READY, also when it failed; no READY once it drains."""
    async with standing(tmp_path, monkeypatch) as (manager, told, desk):
        told.ready()
        seen: list[list[str]] = []

        def hang_up() -> None:
            seen.append(manager.listen())

        told.reload(hang_up)
        assert seen[0][-1].startswith("RELOADING=1\nMONOTONIC_USEC=") and int(seen[0][-1].rpartition("=")[2]) > 0
        assert manager.listen()[-1].startswith("READY=1")
        desk.drain.begin()
        manager.heard.clear()
        told.reload(hang_up)
        assert len(seen) == 2 and not [one for one in manager.listen() if "RELOADING" in one or "READY" in one]


async def test_a_commit_and_the_end_of_a_run_move_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S143: these two, and not the passing of time, are what more time is asked for."""
    async with standing(tmp_path, monkeypatch) as (_, told, desk):
        before = told.moved()
        await trio.sleep(0.02)
        assert told.moved() == before
        run = (await desk.post({"capability": "desk.waiting", "input": {}})).body["run"]
        begun = told.moved()
        assert begun != before
        Gate.opened.set()
        await desk.plane.runs.wait_for(run)
        assert told.moved() != begun


def test_more_time_is_asked_for_only_when_something_moved(tmp_path: Path) -> None:
    """S143: a start or an end in which nothing moves is left to the manager's own patience."""
    looked, answers = threading.Semaphore(0), iter([1, 1, 1, 2, 2, 3])

    def moved() -> int:
        looked.release()
        return next(answers, 3)

    with listening(tmp_path) as manager:
        asking = MoreTime(Notifier(manager.path), moved, every_s=0.001).begin()
        for _ in range(8):
            assert looked.acquire(timeout=PATIENCE_S)
        asking.end()
        assert manager.listen() == [f"EXTEND_TIMEOUT_USEC={round(watchdog.EXTEND_S * 1_000_000)}"] * 2


def test_without_a_manager_nobody_looks() -> None:
    """No thread, and nothing asked."""
    before = threading.active_count()
    MoreTime(Notifier(None), lambda: pytest.fail("looked"), every_s=0.001).begin().end()
    assert threading.active_count() == before


def test_what_is_written_beside_the_store_moves_and_its_lock_does_not(tmp_path: Path) -> None:
    """S143: a copy that grows is progress; who polls a lock is waiting."""
    store = tmp_path / "plane.db"
    store.write_bytes(b"x")
    (tmp_path / "plane.db.lock").write_bytes(b"x")
    moved = watchdog.disk_of(store)
    files = [moved()[0]]  # type: ignore[index]
    for change in ("plane.db.lock", "other", "plane.db.copy"):
        (tmp_path / change).write_bytes(b"xx")
        files.append(moved()[0])  # type: ignore[index]
    assert files[0] == files[1] == files[2] != files[3]
    assert watchdog.disk_of(tmp_path / "none" / "plane.db")() is not None
