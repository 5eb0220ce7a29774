"""Standard error, written by one thread.

Owns the descriptor once started. Refuses to let whoever reads it slowly, or not at all, hold up the plane.
Invariant: saying a line takes no system call and never waits; a line that found no room is counted, and the
count is said as soon as a line goes out.
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, TextIO

LINES_MAX: Final = 1024
"""Lines that wait to be written; the oldest stay, since the first lines of a fault say what it was."""
LINE_CHARS_MAX: Final = 16 * 1024
"""Longer lines are cut, so that what waits stays under LINES_MAX times this."""
CLOSE_S: Final = 1.0
# What a terminal would act on. Line breaks and tabs stay, for tracebacks.
CONTROLS: Final = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if code not in (0x09, 0x0A)}

Put = Callable[[str, str], None]
"""Told which stream something was printed to (``stdout`` or ``stderr``), and whole lines of it."""


def unread(count: int) -> str:
    """What is said in the place of ``count`` lines that found no room."""
    return f"agentplane: {count} lines were dropped here, because standard error was not read in time"


class StderrWriter:
    """Lines in, bytes out. Lines said before ``start`` wait; after ``close`` they are dropped and counted."""

    def __init__(
        self, fd: int = 2, *, lines_max: int = LINES_MAX, dropped_line: Callable[[int], str] = unread
    ) -> None:  # fmt: skip
        self._fd = fd
        self._dropped_line = dropped_line
        self._lines_max = lines_max
        self._waiting: deque[str] = deque()
        self._more = threading.Condition()
        self._closing = False
        self._ended = False
        self._unsaid = 0
        self._dropped = 0
        self._thread = threading.Thread(target=self._write, name="stderr", daemon=True)
        self._before: tuple[TextIO, TextIO] | None = None

    @property
    def dropped(self) -> int:
        """Lines lost since the start, said or not."""
        return self._dropped

    def start(self, *, take_over: bool = False, printed: Put | None = None) -> None:
        """Begin to write. With ``take_over`` what Python itself, libraries and skills print to ``sys.stderr`` and
        ``sys.stdout`` goes the same way, through ``printed`` where that is given.
        """
        self._thread.start()
        if take_over:
            # A serving plane has nothing to say on standard output; a full pipe there would hold up the loop as well.
            self._before = sys.stdout, sys.stderr
            put = printed or (lambda stream, text: self.line(text))
            sys.stdout, sys.stderr = _Lines(self, "stdout", put), _Lines(self, "stderr", put)

    def line(self, text: str) -> None:
        """Say one line (or several, as a traceback is). From any thread; never waits, never raises."""
        shown = text if len(text) <= LINE_CHARS_MAX else f"{text[:LINE_CHARS_MAX]} … ({len(text)} characters)"
        with self._more:
            if self._closing or len(self._waiting) >= self._lines_max:
                self._dropped += 1
                self._unsaid += 1
                return
            self._waiting.append(shown.rstrip("\n").translate(CONTROLS) + "\n")
            self._more.notify()

    def close(self, timeout_s: float = CLOSE_S) -> bool:
        """Take no more and write what waits, for at most ``timeout_s``; whether all of it went out."""
        if self._before is not None:
            (sys.stdout, sys.stderr), self._before = self._before, None
        with self._more:
            self._closing = True
            self._more.notify()
        if self._thread.ident is None:
            return not self._waiting
        self._thread.join(timeout_s)
        return not self._thread.is_alive() and not self._dropped

    def fileno(self) -> int:
        return self._fd

    def _write(self) -> None:
        while (taken := self._next()) is not None:
            line, unsaid = taken
            if not self._put((self._dropped_line(unsaid) + "\n" if unsaid else "") + line):
                with self._more:
                    self._dropped += bool(line)
                    self._unsaid += unsaid + bool(line)

    def _next(self) -> tuple[str, int] | None:
        """The next line and how many were lost before it; at the end what was lost after the last, once."""
        with self._more:
            while not self._waiting and not self._closing:
                self._more.wait()
            unsaid, self._unsaid = self._unsaid, 0
            if self._waiting:
                return self._waiting.popleft(), unsaid
            if not unsaid or self._ended:
                return None
            self._ended = True
            return "", unsaid

    def _put(self, text: str) -> bool:
        left = memoryview(text.encode("utf-8", "backslashreplace"))
        while left:
            try:
                left = left[os.write(self._fd, left) :]
            except OSError as error:
                if error.errno != errno.EAGAIN:
                    # The reader is gone. Each line tries again: a terminal may come back, and nobody else
                    # waits here.
                    return False
                # Whoever shares the descriptor made it non-blocking.
                poll = select.poll()
                poll.register(self._fd, select.POLLOUT)
                poll.poll()
        return True


class _Lines(io.TextIOBase):
    """``sys.stdout`` and ``sys.stderr`` while the writer has them: whole lines are passed on, the rest waits for its
    end."""

    encoding = "utf-8"

    def __init__(self, writer: StderrWriter, stream: str, put: Put) -> None:
        self._writer = writer
        self._stream = stream
        self._tell = put
        self._begun = threading.local()

    def write(self, text: str) -> int:
        # Per thread, so that two that print at once do not share a line.
        begun: str = getattr(self._begun, "text", "") + text
        whole, newline, rest = begun.rpartition("\n")
        if newline:
            self._tell(self._stream, whole)
        if len(rest) > LINE_CHARS_MAX:
            self._tell(self._stream, rest)
            rest = ""
        self._begun.text = rest
        return len(text)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._writer.fileno()

    def isatty(self) -> bool:
        return os.isatty(self._writer.fileno())
