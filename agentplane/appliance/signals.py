"""TERM, INT and HUP, heard whatever the loop is doing.

Owns these three signals from ``install`` on, and the thread that hears them. Refuses to lose one that arrives
before the loop runs, or to wait for the loop with the second. Invariant: the first TERM or INT runs
``on_first`` on the loop, any later one runs ``on_second`` in the thread and ends the process, even while the
main thread is stuck in a call that never returns to Python. HUP ends like TERM where it says that the terminal of
this process is gone, and asks for a reload where there is none; one that was ignored from the start stays so.

A handler in Python runs on the main thread between two bytecodes, so a stuck main thread is deaf to it. The
interpreter's own handler, in C, writes the signal's number to the wakeup descriptor at once, and a thread
reads it there. Trio takes that descriptor when its loop starts, so between ``hand_over`` and ``watch`` the
handlers in Python write the number themselves, to the same place. Blocking the signals until then would be
simpler, and every child process started meanwhile would be born deaf to them. A child that was forked has both,
the handlers and the other end of that socket: it is given the signals as they were found, or what ends it would
be heard here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import Final

import trio

from agentplane.core import bounds
from agentplane.core.errors import EXIT_PARTIAL

ENDS: Final = frozenset({signal.SIGTERM, signal.SIGINT})
HEARD: Final = ENDS | {signal.SIGHUP}
READ_BYTES: Final = 512
STOP: Final = b"\0"


class Signals:
    """The signals of one process, PID 1 or not. ``on_second`` is called in a thread of its own and may end
    the process by itself; when it has not within ``leave_s`` seconds, the process leaves with status 5 (work
    was cut). ``patience_s``, asked at the first signal, says after how many seconds that happens by itself.
    """

    def __init__(
        self,
        on_second: Callable[[], object],
        *,
        leave_s: float = bounds.FLUSH_MAX_S,
        patience_s: Callable[[], float] | None = None,
    ) -> None:
        self._on_second = on_second
        self._leave_s = leave_s
        self._patience_s = patience_s
        self._ends = 0
        self._hups = 0
        self._hup_ends = False
        self._armed = False
        self._news = trio.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._ours, self._wakeup = socket.socketpair()
        self._wakeup.setblocking(False)
        self._thread = threading.Thread(target=self._hear, name="signals", daemon=True)
        self._before: dict[signal.Signals, object] = {}

    @property
    def told(self) -> bool:
        """Whether a TERM or INT has been heard."""
        return self._ends > 0

    def install(self) -> None:
        """From here on no signal is lost; the first acts from ``watch`` on. On the main thread, before the loop."""
        self._thread.start()
        self._hup_ends = has_terminal()
        for number in HEARD:
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # nohup
            # Explicit handlers: for PID 1 the kernel drops a signal whose action is the default.
            self._before[number] = signal.signal(number, self._early)
        self._before[signal.SIGPIPE] = signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        os.register_at_fork(after_in_child=self._forget)
        # The executable's launcher held them, for the same reason; here they are let through.
        self._arm()

    def hand_over(self) -> None:
        """Immediately before the loop, which takes the wakeup descriptor for itself."""
        self._arm(on=False)

    async def watch(
        self, on_first: Callable[[], object], on_hup: Callable[[], object],
        *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:  # fmt: skip
        """Carry out what was heard, until cancelled. Both callbacks run on the loop. Several HUPs at once are
        one reload.
        """
        self._token = trio.lowlevel.current_trio_token()
        self._arm()
        task_status.started()
        begun, reloaded = False, 0
        while True:
            self._news = trio.Event()
            if self._ends and not begun:
                begun = True
                on_first()
            if self._hups != reloaded:
                reloaded = self._hups
                on_hup()
            await self._news.wait()

    def close(self) -> None:
        """Give the signals back as they were found, for a process that goes on without a plane. After the
        loop.
        """
        _restore(self._before)
        self._wakeup.setblocking(True)
        self._wakeup.send(STOP)
        if self._thread.ident is not None:
            self._thread.join()
        self._ours.close()
        self._wakeup.close()

    def _forget(self) -> None:
        """In a forked child, whose only thread is the one that forked."""
        if self._before:
            signal.set_wakeup_fd(-1)
            _restore(self._before)

    def _arm(self, *, on: bool = True) -> None:
        # pthread_sigmask runs the handlers of what has arrived, so that each signal is told by one of the two
        # ways, never both.
        signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
        try:
            signal.set_wakeup_fd(self._wakeup.fileno() if on else -1, warn_on_full_buffer=False)
            self._armed = on
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)

    def _early(self, number: int, frame: FrameType | None) -> None:
        if not self._armed:
            try:
                self._wakeup.send(bytes([number]))
            except BlockingIOError:
                # Hundreds wait unread already: one more says nothing new.
                return

    def _hear(self) -> None:
        while True:
            for number in self._ours.recv(READ_BYTES):
                if number == STOP[0]:
                    return
                if number == signal.SIGHUP and not self._hup_ends:
                    self._hups += 1
                elif number in HEARD:
                    self._ends += 1
                    if self._ends > 1:
                        self._leave()
                    elif self._patience_s is not None:
                        self._lose_patience(self._patience_s())
                # For every other signal too: trio's own descriptor would have woken its loop, so that the
                # handler runs.
                self._wake()

    def _wake(self) -> None:
        if self._token is not None:
            try:
                self._token.run_sync_soon(self._tell, idempotent=True)
            except trio.RunFinishedError:
                return

    def _tell(self) -> None:
        self._news.set()

    def _lose_patience(self, seconds: float) -> None:
        """A loop that is stuck ends no grace of its own: then the first signal is acted on as a second one would be."""
        timer = threading.Timer(seconds, self._leave)
        timer.daemon = True
        # No thread may be left to be had; the drain goes on without, and a second signal is heard.
        with contextlib.suppress(RuntimeError):
            timer.start()

    def _leave(self) -> None:
        last = threading.Thread(target=self._on_second, name="leave", daemon=True)
        # Where no thread is to be had nobody says what was cut; the journal knows.
        with contextlib.suppress(RuntimeError):
            last.start()
            last.join(self._leave_s)
        os._exit(EXIT_PARTIAL)


def _restore(before: dict[signal.Signals, object]) -> None:
    """Each signal as it was found; nothing is left to be given back then."""
    while before:
        number, handler = before.popitem()
        signal.signal(number, handler)  # type: ignore[arg-type]


def has_terminal() -> bool:
    """Whether this process has a controlling terminal, whose end the kernel tells with HUP."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
