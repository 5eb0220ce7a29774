"""A clock that the lab's driver moves: wall, boot and monotonic time together, by one offset that a file holds.

Owns the reading of the file by the appliance under test and its writing by the driver. Refuses to go back. Invariant:
between two turns of the loop the offset does not change, so that readings of two clocks in one task always agree; it
outlives the process, so that the next one begins where time stood.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

import trio

POLL_S: Final = 0.01
"""How long the loop sleeps at most: so soon it sees that time was moved."""
SEEN_S: Final = 2 * POLL_S


class MovedClock(trio.abc.Clock):
    """The loop's clock; ``now_ms`` and ``boot_ms`` are the plane's."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = (0, 0)
        self._offset_ms = 0
        self._look()

    def _look(self) -> None:
        """Called on the loop's own thread, between two turns of it."""
        found = os.stat(self._path)
        stamp = (found.st_ino, found.st_mtime_ns)
        if stamp != self._stamp:
            self._offset_ms = max(self._offset_ms, read(self._path))
            self._stamp = stamp

    def start_clock(self) -> None:
        """Nothing: the clock goes by itself."""

    def current_time(self) -> float:
        self._look()
        return time.monotonic() + self._offset_ms / 1000

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return min(POLL_S, deadline - self.current_time())

    def now_ms(self) -> int:
        """Wall time, ms UTC. From any thread."""
        return time.time_ns() // 1_000_000 + self._offset_ms

    def boot_ms(self) -> int:
        """Time since boot, ms. From any thread."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000 + self._offset_ms


def read(path: Path) -> int:
    """The offset in ms."""
    return int(path.read_text(encoding="ascii"))


def write(path: Path, offset_ms: int) -> None:
    """Move time to ``offset_ms`` from now: a reader sees the old offset or the new one."""
    beside = path.with_name(path.name + ".new")
    beside.write_text(str(offset_ms), encoding="ascii")
    beside.replace(path)
