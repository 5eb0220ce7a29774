"""What PID 1 owes the processes that nobody else waits for.

Owns the zombies that the kernel handed to this process, as it hands orphans to PID 1. Refuses to take the status of a
child that was started here: whoever started it asks for it, and an answer taken from under a ``wait`` reads as status
0. Invariant: a process id that a call of Python's started is reaped by its starter alone; one that is known to nobody
has been dead for ``PATIENCE_S`` when it is reaped here, for the sake of a library that forks by itself.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import trio

EVERY_S: Final = 0.5
PATIENCE_S: Final = 2.0


class Started:
    """The process ids that this process's own Python code started and nobody has waited for yet. Bounded by what the
    kernel lets live at once: an id that is no child any more is forgotten at the next look."""

    def __init__(self) -> None:
        self.pids: set[int] = set()

    def watch(self) -> None:
        """From now on note every start. Python has no hook that tells the id, so the calls themselves are wrapped."""
        import _posixsubprocess

        fork_exec = _posixsubprocess.fork_exec
        noted = self._noted(fork_exec)
        _posixsubprocess.fork_exec = noted
        # Both modules took their own reference when they were imported.
        if hasattr(subprocess, "_fork_exec"):
            subprocess._fork_exec = noted
        for name in ("fork", "posix_spawn", "posix_spawnp"):
            setattr(os, name, self._noted(getattr(os, name)))

    def _noted(self, start: Callable[..., int]) -> Callable[..., int]:
        def started(*given: Any, **named: Any) -> int:
            pid = start(*given, **named)
            if pid > 0:
                self.pids.add(pid)
            return pid

        return started


STARTED: Final = Started()
"""Of this process."""


def to_reap(zombies: Collection[int], own: Collection[int], seen: Mapping[int, float], now: float) -> list[int]:
    """Which zombies are nobody's: not of our own starting, and dead for long enough. ``seen``: since when, by id."""
    return sorted(pid for pid in zombies if pid not in own and now - seen.get(pid, now) >= PATIENCE_S)


def is_needed() -> bool:
    """Whether the kernel hands orphans to this process."""
    return os.getpid() == 1


async def forever(started: Started) -> None:
    """Reap what is nobody's, until cancelled."""
    seen: dict[int, float] = {}
    while True:
        await trio.sleep(EVERY_S)
        if not _is_any():
            seen.clear()
            continue
        found = children()
        zombies = [pid for pid, state in found.items() if state == "Z"]
        started.pids &= found.keys()
        now = trio.current_time()
        seen = {pid: seen.get(pid, now) for pid in zombies}
        for pid in to_reap(zombies, started.pids, seen, now):
            try:
                os.waitpid(pid, os.WNOHANG)  # noqa: ASYNC222 - it is dead already
            except ChildProcessError:
                continue  # somebody was first


def _is_any() -> bool:
    """Whether any child is dead and unasked, in one call that takes nothing."""
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def children() -> dict[int, str]:
    """The state of every child of this process, by id, as /proc says it."""
    own, found = os.getpid(), {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    # After the command, which may hold anything: state and parent.
                    state, parent = file.read(4096).rpartition(b")")[2].split()[:2]
            except (OSError, ValueError):
                continue
            if int(parent) == own:
                found[int(name)] = state.decode()
    return found
