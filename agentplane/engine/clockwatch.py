"""Watching the clock of a plane.

Owns the readings and the latch. Refuses to let go by itself while the kernel's clock is not synchronised. Invariant:
once suspect, the clock stays so until a person or a synchronised kernel lets go.
"""

from __future__ import annotations

import ctypes
import time

import trio

from agentplane.core.clock import suspect_at_start, suspect_while_running
from agentplane.engine.world import World

TICK_S = 10.0
STA_UNSYNC = 0x0040
TIME_ERROR = 5
_STATUS_AT = 10
"""Where ``status`` stands in ``struct timex``, in ints from its beginning, on 64-bit Linux."""


def boot_ms() -> int:
    """Milliseconds since boot, suspended time included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def kernel_synchronised() -> bool:
    """Whether the kernel says that its clock is kept by somebody; False where it cannot be asked."""
    buffer = (ctypes.c_int * 64)()
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(buffer))
    except (OSError, AttributeError):
        return False
    return state not in (-1, TIME_ERROR) and not buffer[_STATUS_AT] & STA_UNSYNC


class ClockWatch:
    """``why`` is None while the clock is believed. ``look`` compares, ``release`` is a person's word."""

    def __init__(self, world: World, last_record_ms: int | None) -> None:
        self._world = world
        self._wall, self._boot = world.now_ms(), (world.boot_ms or boot_ms)()
        self.why: str | None = None
        self._set(suspect_at_start(self._wall, last_record_ms))

    def look(self) -> None:
        wall, boot = self._world.now_ms(), (self._world.boot_ms or boot_ms)()
        if self.why is None:
            self._set(suspect_while_running(wall, boot, self._wall, self._boot))
        elif kernel_synchronised():
            self.release()

    def release(self) -> bool:
        """Believe the clock from now on; False when it was believed already."""
        was = self.why is not None
        self._wall, self._boot = self._world.now_ms(), (self._world.boot_ms or boot_ms)()
        self.why = None
        self._world.clock_suspect = False
        return was

    async def forever(self) -> None:
        while True:
            self.look()
            await trio.sleep(TICK_S)

    def _set(self, why: str | None) -> None:
        if why is not None and not kernel_synchronised():
            self.why = why
            self._world.clock_suspect = True
