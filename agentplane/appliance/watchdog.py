"""How a plane stands, told to its service manager again and again.

Owns the sign of life, the line that `systemctl status` shows, and the plea for more time. Refuses to say that the plane
lives while its writer stands, and to ask for more time while nothing moves. Invariant: every sign of life was sent from
the plane's own loop, with its writer's oldest unit younger than the manager's period: a loop that is stuck, and a disk
that takes nothing, are silent alike.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import trio

from agentplane.appliance.drain import Drain
from agentplane.appliance.systemd import Notifier
from agentplane.engine.plane import Plane
from agentplane.journal import lists

SIGNS: Final = 3
"""Signs of life in a period: two may be lost or late."""
STATUS_EVERY_S: Final = 5.0
EXTEND_EVERY_S: Final = 5.0
EXTEND_S: Final = 30.0
"""What is asked for each time something moved: a disk under load may stand still for longer than one look."""
READY_TRIES: Final = 30
READY_PAUSE_S: Final = 1.0

Moved = Callable[[], object]
"""Answers another value than before when something moved."""


class Standing:
    """What the manager is told of one serving plane, from READY to its last run."""

    def __init__(self, notifier: Notifier, plane: Plane, drain: Drain) -> None:
        self._notifier = notifier
        self._plane = plane
        self._drain = drain
        self._line = f"serving, pid {os.getpid()}"
        self._told = ""
        self._seen: object = None
        self._waiting = 0
        self._silent = False
        self._unheard = False

    def ready(self) -> None:
        """Store and descriptors are held."""
        self._told = self._line
        self._unheard = not self._notifier.ready(self._line) and self._notifier.listened_to

    def stopping(self) -> None:
        """The drain has begun, by whomever."""
        self._told = "draining"
        self._notifier.stopping(self._told)

    def reload(self, hang_up: Callable[[], object]) -> None:
        """A HUP: carried out between RELOADING and READY; while it drains the manager waits for no READY."""
        if self._drain.begun.is_set():
            hang_up()
            return
        self._notifier.reloading(time.monotonic_ns() // 1000)
        try:
            hang_up()
        finally:
            self._notifier.ready(self._told)

    def moved(self) -> object:
        """A commit, or a run that ended."""
        runs = self._plane.runs
        return self._plane.writer.commits, len(runs.live), len(runs.parked), len(self._drain.cut)

    async def forever(self) -> None:
        """Signs of life and the line, until cancelled; nothing where no manager listens."""
        if self._notifier.listened_to:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._ready_again)
                nursery.start_soon(self._signs_of_life)
                nursery.start_soon(self._lines)

    async def _ready_again(self) -> None:
        """The manager's queue may have been full, and a READY that is lost is a start that failed."""
        for _ in range(READY_TRIES):
            if not self._unheard or self._drain.begun.is_set():
                return
            await trio.sleep(READY_PAUSE_S)
            self.ready()

    async def _signs_of_life(self) -> None:
        period_s = self._notifier.watchdog_s
        while period_s is not None:
            age_s = self._plane.writer.oldest_unit_age_s()
            if age_s < period_s:
                self._silent = False
                self._notifier.alive()
            elif not self._silent:
                self._silent = True
                self._told = f"no sign of life: the writer stands, at one batch for over {period_s:g} s"
                self._notifier.status(self._told)
            await trio.sleep(period_s / SIGNS)

    async def _lines(self) -> None:
        while True:
            await trio.sleep(STATUS_EVERY_S)
            if self._silent:
                continue
            line = await self._now()
            if line != self._told:
                self._told = line
                self._notifier.status(line)

    async def _now(self) -> str:
        """The line as it is now. What waits is counted in the store, and only when something was committed."""
        if self._plane.writer.commits != self._seen:
            self._seen = self._plane.writer.commits
            self._waiting = (await self._plane.read(lists.count_by_status)).get("suspended", 0)
        state = self._plane.state
        word = "held" if state.held else "paused" if state.paused else "serving"
        if self._drain.begun.is_set():
            word = "draining"
        return f"{word}, running {len(self._plane.runs.live)}, waiting {self._waiting}"


class MoreTime:
    """Asks the manager for more time, in a thread, each time only because ``moved`` answers another value than
    before. From ``begin`` to ``end``; nothing where no manager listens."""

    def __init__(self, notifier: Notifier, moved: Moved, *, every_s: float = EXTEND_EVERY_S) -> None:
        self._notifier = notifier
        self._moved = moved
        self._every_s = every_s
        self._ended = threading.Event()

    def begin(self) -> MoreTime:
        if self._notifier.listened_to:
            threading.Thread(target=self._ask, args=(self._moved(),), name="more-time", daemon=True).start()
        return self

    def end(self) -> None:
        self._ended.set()

    def _ask(self, before: object) -> None:
        while not self._ended.wait(self._every_s):
            now = self._moved()
            if now != before:
                self._notifier.extend(EXTEND_S)
            before = now


def disk_of(store: Path) -> Moved:
    """What moves while a store is opened, healed or raised to a level: the files beside it, and the bytes between this
    process and its disks. The lock is none of them: whoever waits for it moves nothing."""

    def moved() -> object:
        found = []
        with contextlib.suppress(OSError):
            for one in os.scandir(store.parent):
                if one.name.startswith(store.name) and not one.name.endswith(".lock"):
                    with contextlib.suppress(OSError):
                        stat = one.stat(follow_symlinks=False)
                        found.append((one.name, stat.st_size, stat.st_mtime_ns))
        return sorted(found), _transferred()

    return moved


def _transferred() -> list[str]:
    """What the kernel counts of this process, read from disks and written to them; nothing where it does not."""
    with contextlib.suppress(OSError), open("/proc/self/io", encoding="ascii") as file:
        return [line for line in file if line.startswith(("read_bytes", "write_bytes"))]
    return []


def say_where_it_stood(notifier: Notifier, fd: int = 2) -> None:
    """Have SIGABRT, with which a manager ends a process that gave no sign of life, name the place of every thread on
    ``fd`` first: files and lines, no values."""
    if notifier.watchdog_s is not None:
        faulthandler.enable(file=fd, all_threads=True)
