"""The provider of the kill sweeps: a process of its own whose books outlive every appliance that is killed.

Owns one append-only book a world (a line for each deed that took effect, synced before it is answered) and the ways to
misbehave. Refuses to know the runtime: a request is one JSON line over a Unix socket. Invariant: a deed that was
received takes effect whatever became of who sent it, and is in the book exactly as often as it took effect.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import socketserver
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

LINE_MAX = 64 * 1024


class Books:
    """Every world's book, and how often each order was asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[str, list[dict[str, Any]]] = {}
        self._asked: Counter[tuple[str, str, str]] = Counter()

    def land(self, asked: dict[str, Any]) -> dict[str, Any] | None:
        """Perform what is asked; None where no answer is given. ``refuse``: so many requests of the order are refused
        first, ``lose``: so many answers after those get lost, ``late_ms``: how long the deed is under way."""
        book, name, order = asked["book"], asked["name"], asked["order"]
        with self._lock:
            self._asked[book, name, order] += 1
            number = self._asked[book, name, order]
        if number <= asked.get("refuse", 0):
            return {"refused": number}
        time.sleep(asked.get("late_ms", 0) / 1000)
        with self._lock:
            row = self._landed(book, asked["key"]) if asked.get("honour", True) else None
            row = row or self._write(book, asked)
        if number <= asked.get("refuse", 0) + asked.get("lose", 0):
            return None
        time.sleep(asked.get("slow_ms", 0) / 1000)
        return {"id": row["id"]}

    def look(self, asked: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            row = self._landed(asked["book"], asked["key"])
        return {"id": None if row is None else row["id"]}

    def _landed(self, book: str, key: str) -> dict[str, Any] | None:
        return next((row for row in self._rows.get(book, []) if row["key"] == key), None)

    def _write(self, book: str, asked: dict[str, Any]) -> dict[str, Any]:
        rows = self._rows.setdefault(book, [])
        row = {name: asked[name] for name in ("key", "name", "order", "run", "attempt")} | {"id": f"d{len(rows)}"}
        descriptor = os.open(book, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, (json.dumps(row) + "\n").encode())
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        rows.append(row)
        return row


class Handler(socketserver.StreamRequestHandler):
    """One request a connection."""

    books: ClassVar[Books] = Books()

    def handle(self) -> None:
        line = self.rfile.readline(LINE_MAX)
        if not line.endswith(b"\n"):
            return  # killed while it was sending: nothing arrived
        asked = json.loads(line)
        answer: dict[str, Any] | None = {}
        if asked["verb"] == "quiet":
            assert isinstance(self.server, Server)
            self.server.wait_quiet()
        else:
            answer = self.books.look(asked) if asked["verb"] == "look" else self.books.land(asked)
        if answer is not None:
            try:
                self.wfile.write(json.dumps(answer).encode() + b"\n")
            except OSError:
                return  # who asked is gone; the deed stands


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Counts a connection from its acceptance on, so that ``quiet`` knows of every deed that is still under way."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, path: str) -> None:
        super().__init__(path, Handler)
        self.under_way = 0
        self.changed = threading.Condition()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._count(1)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._count(-1)

    def wait_quiet(self) -> None:
        """Until nothing but the question itself is under way."""
        with self.changed:
            self.changed.wait_for(lambda: self.under_way <= 1, timeout=10)

    def _count(self, change: int) -> None:
        with self.changed:
            self.under_way += change
            self.changed.notify_all()


class Provider:
    """The process, begun by a fork of a driver that has no threads; it ends when ``close`` is called or its driver
    dies."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "provider.sock"
        listening = Server(str(self.path))
        reader, self.leash = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.leash)
            threading.Thread(target=listening.serve_forever, daemon=True).start()
            os.read(reader, 1)  # returns when no process holds the other end any more
            os._exit(0)
        os.close(reader)
        listening.server_close()

    def close(self) -> None:
        os.close(self.leash)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def book_of(world: Path) -> Path:
    return world / "book"


def rows_of(world: Path) -> list[dict[str, Any]]:
    """The durable book of one world, in the order in which its deeds took effect."""
    path = book_of(world)
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def ask(path: str, asked: dict[str, Any]) -> bytes:
    """One request from a thread that may block; what was answered, or nothing."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(json.dumps(asked).encode() + b"\n")
        answer = b""
        while more := connection.recv(LINE_MAX):
            answer += more
        return answer


if __name__ == "__main__":
    sys.exit("The provider belongs to tests/crash/kills.py and is not started by hand.")
