"""The provider's process: arguments, the ready line, and an end that leaves nothing behind.

It owns start and stop. It refuses a database whose directory does not exist. Its invariant: when whoever
started it is gone, by whatever death, the lifeline reports end of file and this process ends.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import sqlite3
import sys
import threading
from collections.abc import Sequence
from types import FrameType

from agentplane.lab.provider.book import Book
from agentplane.lab.provider.service import Service
from agentplane.lab.provider.wire import Server


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="lab-provider", description="The crash lab's payment provider.")
    parser.add_argument("--db", required=True, help="the provider's own database file")
    parser.add_argument("--port", type=int, default=0, help="the port on 127.0.0.1; 0 takes a free one")
    parser.add_argument(
        "--ready-fd", type=int, default=None, help="where the ready line goes (default: standard output)"
    )
    parser.add_argument("--lifeline-fd", type=int, default=None, help="a pipe whose end of file ends this process")
    return parser.parse_args(argv)


def _watch_lifeline(fd: int, stop: threading.Event) -> None:
    try:
        while os.read(fd, 512):
            pass  # nobody writes to a lifeline; its end is the message
    except OSError:
        pass
    stop.set()


def _announce(ready: dict[str, object], fd: int | None) -> None:
    line = json.dumps(ready) + "\n"
    if fd is None:
        sys.stdout.write(line)
        sys.stdout.flush()
        return
    os.write(fd, line.encode())
    os.close(fd)


def main(argv: Sequence[str]) -> int:
    """Serves until SIGTERM or the lifeline's end. Answers 0, or 4 with one sentence when it cannot start."""
    told = _arguments(argv)
    stop = threading.Event()

    def ask_to_stop(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, ask_to_stop)
    # Ctrl-C reaches the whole foreground group; with a lifeline its other end decides when this process ends.
    signal.signal(signal.SIGINT, ask_to_stop if told.lifeline_fd is None else signal.SIG_IGN)
    token = secrets.token_hex(16)
    try:
        service = Service(Book(told.db))
        server = Server(told.port, service, token)
    except (OSError, OverflowError, sqlite3.Error) as wrong:
        print(f"lab-provider: cannot start: {wrong}", file=sys.stderr)
        return 4
    if told.lifeline_fd is not None:
        threading.Thread(target=_watch_lifeline, args=(told.lifeline_fd, stop), daemon=True).start()
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    serving.start()
    _announce({"port": server.server_port, "control_token": token, "pid": os.getpid(), "db": told.db}, told.ready_fd)
    stop.wait()
    server.shutdown()
    server.server_close()
    service.book.close()
    return 0
