"""Room on the disk, as a state.

Owns the two marks and the ballast file. Refuses work before the disk does. Invariant: announcing needs room
for the outcome, so the floor stops announcements while outcomes and decisions still find the ballast's bytes.
"""

from __future__ import annotations

import os
from contextlib import suppress
from enum import IntEnum
from pathlib import Path

from agentplane.core import bounds
from agentplane.core.errors import DiskLow


class Room(IntEnum):
    FLOOR = 0
    LOW = 1
    ENOUGH = 2


def judge(free_bytes: int, low: int = bounds.ROOM_LOW_BYTES, floor: int = bounds.ROOM_FLOOR_BYTES) -> Room:
    """Which state ``free_bytes`` is."""
    if free_bytes < floor:
        return Room.FLOOR
    return Room.LOW if free_bytes < low else Room.ENOUGH


class DiskRoom:
    """Watches the file system of the store. ``look`` asks it; ``admit`` and ``announce`` raise DiskLow by the
    last look."""

    def __init__(self, store: Path, *, low: int = bounds.ROOM_LOW_BYTES, floor: int = bounds.ROOM_FLOOR_BYTES,
                 ballast: int = bounds.BALLAST_BYTES) -> None:  # fmt: skip
        self._directory = store.parent
        self._ballast = store.with_name(store.name + ".ballast")
        self._size = ballast
        self.low = low
        self.floor = floor
        self.free = 0
        self.state = Room.ENOUGH
        self._packed = False

    def look(self, *, take: bool = True) -> Room:
        """Ask the file system; at the floor give the ballast back, above it take it again (not without ``take``: of a
        store that is not recognised yet)."""
        self.free = self._free()
        self.state = judge(self.free, self.low, self.floor)
        if self.state is Room.FLOOR:
            # A ballast that stays is a smaller margin, not a fault: the disk says by itself when it is full.
            with suppress(OSError):
                self._ballast.unlink(missing_ok=True)
        elif take and self.state is Room.ENOUGH and not self._is_whole():
            self._fill()
        return self.state

    def _is_whole(self) -> bool:
        """Whether the ballast holds its bytes: one that was cut short, or copied with holes, gives nothing back."""
        try:
            found = os.stat(self._ballast)
        except OSError:
            return False
        return found.st_size >= self._size and (self._packed or found.st_blocks * 512 >= self._size)

    def _free(self) -> int:
        stat = os.statvfs(self._directory)
        return stat.f_bavail * stat.f_frsize

    def _fill(self) -> None:
        try:
            fd = os.open(self._ballast, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError:
            return
        try:
            os.posix_fallocate(fd, 0, self._size)
            # A file system that packs zeros never says that it holds them: it is not filled anew at every look.
            self._packed = os.fstat(fd).st_blocks * 512 < self._size
        except OSError:
            # No ballast is a smaller margin, not a fault; the next look tries again.
            self._ballast.unlink(missing_ok=True)
        finally:
            os.close(fd)

    def admit(self) -> None:
        if self.state < Room.ENOUGH:
            raise DiskLow(
                f"The disk of the store has {self.free} bytes free, under the mark of {self.low}.",
                free=self.free,
            )

    def announce(self) -> None:
        if self.state is Room.FLOOR:
            raise DiskLow(
                f"The disk of the store has {self.free} bytes free, under the floor of {self.floor}.",
                free=self.free,
            )
