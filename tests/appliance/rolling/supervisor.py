"""The service manager that the harness plays: it holds the listening socket, starts the program and tells it to stop.

Owns one program at a time (two while one waits for the other's store) by its pid and a descriptor of it. Refuses to go
on when a start fails. Invariant: the listening socket is open from the first start to the last end, except where a
mode says otherwise, and everything that was started has ended when the supervisor is closed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import trio

BACKLOG: Final = 4096
PORTS: Final = range(20_000, 30_000)
FIRST_FD: Final = 3
START_S: Final = 60.0
END_S: Final = 60.0
TCP_INFO_UNACKED: Final = 24
"""Where TCP_INFO of a listening socket has the length of its accept queue, and four bytes further its bound."""


class StartFailed(Exception):
    """The program ended before it was ready; with its status and last words."""


@dataclass
class Process:
    """One start of the program. ``status`` once it has ended: an exit status, or minus a signal."""

    pid: int
    watched: int
    words: Path
    notify: socket.socket
    started_at: float
    status: int | None = None
    ended_at: float = 0.0
    ready_at: float = 0.0
    ended: trio.Event = field(default_factory=trio.Event)

    def said(self, event: str) -> dict[str, object]:
        """The last thing of a kind in its log; empty when there is none."""
        found: dict[str, object] = {}
        for line in self.words.read_text().splitlines():
            if line.startswith("{") and f'"event":"{event}"' in line:
                found = json.loads(line)
        return found

    def tell(self, what: signal.Signals) -> None:
        os.kill(self.pid, what)


class Supervisor:
    """Starts ``argv`` in ``directory``. ``held``: the listening socket is kept here and passed on; else the program
    binds the port itself."""

    def __init__(self, argv: list[str], directory: Path, *, held: bool) -> None:
        self._argv = argv
        self._directory = directory
        self.held = held
        self._count = 0
        self._standing: list[Process] = []
        self.sock: socket.socket | None = self._somewhere()
        self.where: tuple[str, int] = self.sock.getsockname()
        if not held:
            self.drop()

    def _somewhere(self) -> socket.socket:
        # Below the ports that the kernel gives to clients: one of those, connecting while nothing listens, could meet
        # itself.
        for port in random.sample(PORTS, 100):
            try:
                return self._bound(port)
            except OSError:
                continue
        raise StartFailed("no port is free to listen at")

    def _bound(self, port: int) -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
            sock.listen(BACKLOG)
        except OSError:
            sock.close()
            raise
        return sock

    def drop(self) -> None:
        """Close the listening socket."""
        if self.sock is not None:
            self.sock.close()
            self.sock = None

    def bind_again(self) -> None:
        """Listen at the same port anew."""
        self.sock = self._bound(self.where[1])

    def queue(self) -> tuple[int, int]:
        """Connections that nobody has accepted yet, and how many the kernel would hold."""
        if self.sock is None:
            return 0, 0
        info = self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_UNACKED + 8)
        waiting, bound = struct.unpack_from("=II", info, TCP_INFO_UNACKED)
        return waiting, bound

    def start(self, nursery: trio.Nursery, *more: str) -> Process:
        """Begin the program with ``more`` of its flags; ``ready`` waits for it."""
        self._count += 1
        words = self._directory / f"log{self._count}"
        address = self._directory / f"notify{self._count}"
        notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        notify.bind(str(address))
        environ = {name: value for name, value in os.environ.items() if not name.startswith("AGENTPLANE_")}
        environ["NOTIFY_SOCKET"] = str(address)
        actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(words), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        line = 'exec "$@"'
        if self.held:
            assert self.sock is not None
            environ |= {"LISTEN_FDS": "1", "LISTEN_FDNAMES": "operator"}
            # The shell becomes the program, so that its pid is the one that the variable has to name.
            line = "LISTEN_PID=$$; export LISTEN_PID; " + line
            actions.append((os.POSIX_SPAWN_DUP2, self.sock.fileno(), FIRST_FD))
        pid = os.posix_spawn(
            "/bin/sh", ["sh", "-c", line, "sh", *self._argv, *more], environ, file_actions=actions, setpgroup=0
        )
        process = Process(pid, os.pidfd_open(pid), words, notify, trio.current_time())
        self._standing.append(process)
        nursery.start_soon(self._watch, process)
        return process

    async def _watch(self, process: Process) -> None:
        await trio.lowlevel.wait_readable(process.watched)
        self._reap(process)

    def _reap(self, process: Process) -> None:
        process.ended_at = trio.current_time()
        process.status = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])
        process.ended.set()
        os.close(process.watched)
        process.notify.close()
        self._standing.remove(process)

    async def ready(self, process: Process) -> None:
        """Until it says READY. Raises StartFailed."""
        with trio.move_on_after(START_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._until_over, process, nursery.cancel_scope)
                while not process.ready_at:
                    await trio.lowlevel.wait_readable(process.notify)
                    if "READY=1" in process.notify.recv(4096).decode().split("\n"):
                        process.ready_at = trio.current_time()
                nursery.cancel_scope.cancel()
        if not process.ready_at:
            words = process.words.read_text()[-1000:]
            raise StartFailed(f"the program was not ready (status {process.status}): {words}")

    async def _until_over(self, process: Process, scope: trio.CancelScope) -> None:
        await process.ended.wait()
        scope.cancel()

    async def over(self, process: Process) -> None:
        """Until it has ended. Raises TooSlowError after twice a drain's grace."""
        with trio.fail_after(END_S):
            await process.ended.wait()

    def close(self) -> None:
        """End what still runs, and close the socket."""
        for process in list(self._standing):
            process.tell(signal.SIGKILL)
            os.waitpid(process.pid, 0)
            os.close(process.watched)
            process.notify.close()
        self._standing.clear()
        self.drop()
