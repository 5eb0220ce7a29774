"""One incarnation of the appliance under test, seen from the driver.

Owns the child, its points and its death. Refuses to leave it behind: a driver that ends closes the pair, and
the child ends itself. Invariant: after ``kill`` the process has been reaped, and its death is stamped on both
sides.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from agentplane.lab.pipe import Point, PointStream
from agentplane.lab.windows import Kill

STOP_S = 20.0


def program(module: str, source: Path | None) -> tuple[list[str], dict[str, str]]:
    """What starts ``module`` as a program, and its environment: of this build, of a directory to import the package
    from first, or of an executable."""
    environ = dict(os.environ)
    if source is not None and source.is_file():
        return [str(source), "-m", module], environ
    if source is not None:
        environ["PYTHONPATH"] = str(source)
    return [sys.executable, "-m", module], environ


def now_us() -> int:
    return time.time_ns() // 1000


class Appliance:
    """A serving child. ``on_point`` decides at each point; it may call ``kill`` itself. ``source``: another build of
    the program than this one, as ``program`` takes it."""

    def __init__(
        self, directory: Path, log: Path, on_point: Callable[[Point], Iterable[int]], *, source: Path | None = None,
        command: list[str] | None = None, clock: Path | None = None,
    ) -> None:  # fmt: skip
        ours, theirs = socket.socketpair()
        os.set_inheritable(theirs.fileno(), True)
        start, environ = program("agentplane.lab.appliance_entry", source)
        self._log = open(log, "ab")  # noqa: SIM115 - closed by ``_reaped``
        self._stream = PointStream(ours, on_point)
        self._lock = threading.Lock()
        self.started_us = now_us()
        self.sent_us = self.dead_us = 0
        self._child = subprocess.Popen(
            [
                *(command or start),
                "--observe-fd",
                str(theirs.fileno()),
                *(() if clock is None else ("--clock", str(clock))),
                str(directory),
            ],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env=environ,
            cwd=directory,
        )
        theirs.close()
        self._stream.start()

    @property
    def alive(self) -> bool:
        return self._child.poll() is None

    @property
    def status(self) -> int | None:
        return self._child.poll()

    def kill(self) -> None:
        """SIGKILL, once; safe on any thread. ``wait_dead`` reaps."""
        with self._lock:
            if self.sent_us == 0:
                self.sent_us = now_us()
                self._child.send_signal(signal.SIGKILL)

    def go(self, numbers: Iterable[int]) -> None:
        self._stream.go(numbers)

    def wait_dead(self) -> None:
        """Reap it; may be called twice."""
        self._child.wait()
        if self.dead_us:
            return
        self.dead_us = now_us()
        self._stream.close()
        self._log.close()

    def killed(self, next_start_us: int, *, queued: bool) -> Kill:
        return Kill(self.sent_us, self.dead_us, next_start_us, queued)

    def stop(self) -> int:
        """SIGTERM, and after STOP_S SIGKILL; the exit status."""
        if self.alive:
            self._child.send_signal(signal.SIGTERM)
            try:
                self._child.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._child.kill()
        self.wait_dead()
        return self._child.returncode
