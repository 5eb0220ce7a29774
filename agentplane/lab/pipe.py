"""Observer points over a socket pair: the appliance says where it is and waits for leave; the driver gives it
or kills.

It owns both ends of the protocol. It refuses to let the appliance under test outlive its driver: when the
driver's end closes, the process ends on the spot. Its invariant: a thread that reported a point does nothing
more until leave for that very point has come, so that a kill decided upon a point happens at that point.

The protocol is lines of JSON. Appliance to driver: ``{"n": 7, "at": "effect.acted", "run": "run_…", "step":
0, "effect": "refund.keyed", …}``, where ``n`` counts up, ``at`` is the observer point and the rest are the
observer's fields. Driver to appliance: ``{"go": [7]}``. Points come from the trio thread and from the
writer's thread, so leave names what it is for. Standard library only.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

LINE_MAX = 64 * 1024
DRIVER_GONE = 70  # the status of an appliance under test whose driver closed its end


@dataclass(frozen=True)
class Point:
    """One observer point as reported: its number, its name, and the observer's fields."""

    number: int
    at: str
    fields: dict[str, Any]

    @property
    def run(self) -> str | None:
        """The run it belongs to; None for points of the writer."""
        return self.fields.get("run")

    @property
    def kind(self) -> str:
        """The effect's kind, or nothing."""
        return str(self.fields.get("kind") or self.fields.get("effect") or "")


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | None) else str(value)


class PointReporter:
    """The appliance's end. ``observe`` is the observer callback; any thread may call it."""

    def __init__(self, end: socket.socket, leave_process: Callable[[int], Any] = os._exit) -> None:
        self._end = end
        self._leave_process = leave_process
        self._lock = threading.Lock()
        self._last = 0
        self._waiting: dict[int, threading.Event] = {}
        threading.Thread(target=self._listen, name="lab-leave", daemon=True).start()

    def observe(self, point: str, **fields: Any) -> None:
        """Reports the point and waits for leave. The wait has no end of its own: a held point is held, and a
        driver that is gone ends the process."""
        leave = threading.Event()
        with self._lock:
            self._last += 1
            self._waiting[self._last] = leave
            told = {"n": self._last, "at": point} | {name: _plain(value) for name, value in fields.items()}
            try:
                self._end.sendall(json.dumps(told).encode() + b"\n")
            except OSError:
                self._leave_process(DRIVER_GONE)
        leave.wait()

    def _listen(self) -> None:
        try:
            for line in self._end.makefile("rb"):
                for number in json.loads(line)["go"]:
                    with self._lock:
                        leave = self._waiting.pop(number, None)
                    if leave is not None:
                        leave.set()
        except OSError:
            pass
        self._leave_process(DRIVER_GONE)


class PointStream:
    """The driver's end: calls ``on_point`` for each reported point, on a thread of its own, so that a
    decision to kill is carried out within microseconds of the report. ``on_point`` answers the numbers that
    have leave."""

    def __init__(self, end: socket.socket, on_point: Callable[[Point], Iterable[int]]) -> None:
        self._end = end
        self._on_point = on_point
        self._lock = threading.Lock()
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="lab-points", daemon=True)

    def start(self) -> PointStream:
        """Begins to listen."""
        self._thread.start()
        return self

    def go(self, numbers: Iterable[int]) -> None:
        """Gives leave; an appliance that is dead meanwhile does not mind."""
        numbers = list(numbers)
        if not numbers:
            return
        with self._lock:
            try:
                self._end.sendall(json.dumps({"go": numbers}).encode() + b"\n")
            except OSError:
                pass

    def close(self) -> None:
        """Closes this end and waits for the listener; an appliance that is still there ends itself."""
        try:
            self._end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._thread.join()
        self._end.close()

    def _listen(self) -> None:
        try:
            with self._end.makefile("rb") as lines:
                while line := lines.readline(LINE_MAX):
                    told = json.loads(line)
                    self.go(self._on_point(Point(told.pop("n"), told.pop("at"), told)))
        except (OSError, ValueError):
            pass  # a line cut by SIGKILL is the last one, and no report
        finally:
            self.ended.set()
