"""Another build as a child of this process: started in an environment of its own, bounded in time and in words.

Owns what may be started at all (a program of this machine's kind) and the reading of its lines. Refuses to wait for
one that says nothing. Invariant: when ``ask`` returns or raises, nothing of the child is left.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Set
from pathlib import Path
from typing import IO, Final

import msgspec

from agentplane.appliance import reaper

LINE_BYTES_MAX: Final = 1 << 20
SAID_BYTES_MAX: Final = 256 << 20
WORDS_BYTES: Final = 8_192
PART: Final = 65_536
END_S: Final = 10.0
"""How long a child may take to be gone behind its last line."""
ROUNDS_MAX: Final = 1_000
ROUND_S: Final = 0.002
"""How often what a child left behind is looked for: of one that starts others faster than they are ended."""
SET_CHILD_SUBREAPER: Final = 36
"""Linux, prctl."""
MACHINES: Final = {3: "i386", 8: "mips", 21: "ppc64", 22: "s390", 40: "arm", 62: "x86-64", 183: "aarch64", 243: "riscv"}
OURS: Final = ("PYTHONHASHSEED", "NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "WATCHDOG_USEC",
               "WATCHDOG_PID", "AGENTPLANE_PLANE", "_MEIPASS2")  # fmt: skip


class CannotTell(Exception):
    """Nothing was found out, and why: one sentence."""


class Asked(msgspec.Struct, frozen=True):
    """How a child ended: its status (negative: the signal), and the last line of its standard error."""

    status: int
    last_words: str


def check_program(path: Path) -> Path:
    """The absolute path of a program that this machine may start. Raises CannotTell."""
    found = path.absolute()
    try:
        # Nobody waits for whoever would write a pipe.
        with open(os.open(found, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            head = file.read(20)
    except OSError as error:
        raise CannotTell(f"{path} cannot be read: {error.strerror}.") from None
    if not found.is_file() or not os.access(found, os.X_OK):
        raise CannotTell(f"{path} is not executable; `chmod +x` it, or name the program itself.")
    machine = _machine(head)
    here = _machine_here()
    if machine is not None and here is not None and machine != here:
        names = [MACHINES.get(one, f"machine {one}") for one in (machine, here)]
        raise CannotTell(f"{path} is built for {names[0]}; this machine is {names[1]}.")
    return found


def _machine(head: bytes) -> int | None:
    """Of an ELF file's first bytes, the machine; None for anything else."""
    if len(head) < 20 or head[:4] != b"\x7fELF":
        return None
    return int.from_bytes(head[18:20], "big" if head[5] == 2 else "little")


def _machine_here() -> int | None:
    try:
        with open("/proc/self/exe", "rb") as file:
            return _machine(file.read(20))
    except OSError:
        return None


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Ours, without what is said to this process alone: its supervisor's sockets, and what a frozen program tells the
    processes that it takes for parts of itself."""
    kept = {name: value for name, value in environ.items() if name not in OURS and not name.startswith("_PYI_")}
    if getattr(sys, "frozen", False):
        before = kept.pop("LD_LIBRARY_PATH_ORIG", None)
        kept.pop("LD_LIBRARY_PATH", None)
        if before is not None:
            kept["LD_LIBRARY_PATH"] = before
    return kept | {"PYTHONHASHSEED": "0", "PYINSTALLER_RESET_ENVIRONMENT": "1"}


def ask(
    command: list[str], silent_s: float, line: Callable[[bytes], None], *, whole_s: float = math.inf
) -> Asked:  # fmt: skip
    """Run ``command`` to its end, with ``line`` called for each line of its standard output. Raises CannotTell when it
    cannot be started, says no line for ``silent_s`` seconds, takes more than ``whole_s``, or says too much; and what
    ``line`` raises."""
    with _whole():
        return _ask(command, silent_s, line, whole_s)


def _ask(command: list[str], silent_s: float, line: Callable[[bytes], None], whole_s: float) -> Asked:
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=environment(os.environ), start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise CannotTell(f"{command[0]} cannot be started: {error.strerror}.") from None
    words = bytearray()
    try:
        _read(child, command[0], silent_s, whole_s, line, words)
        try:
            status = child.wait(END_S)
        except subprocess.TimeoutExpired:
            raise CannotTell(f"{command[0]} closed its output and did not end.") from None
    finally:
        # Its session at once; whatever left that comes after.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        for stream in (child.stdout, child.stderr):
            if stream is not None:
                stream.close()
    last = words.decode(errors="replace").strip().splitlines()
    return Asked(status, last[-1][-300:] if last else "")


@contextlib.contextmanager
def _whole() -> Iterator[None]:
    """Whatever loses its parent in the block is handed to this process by the kernel, and ended behind it."""
    ours, kernel = _children(), ctypes.CDLL(None)
    kernel.prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        _end_what_is_left(ours)
        kernel.prctl(SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _end_what_is_left(ours: Set[int]) -> None:
    """End every child that is none of ``ours``: each round's dead hand their own children to the next."""
    for _ in range(ROUNDS_MAX):
        left = _children() - ours
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(ROUND_S)


def _children() -> Set[int]:
    try:
        return reaper.children().keys()
    except OSError:
        # Without /proc the session is all that is known of it.
        return frozenset()


def _read(
    child: subprocess.Popen[bytes], name: str, silent_s: float, whole_s: float, line: Callable[[bytes], None],
    words: bytearray,
) -> None:  # fmt: skip
    """Hand on every line until both streams end; only lines count as a sign of life."""
    pending, said = bytearray(), 0
    ends_at = time.monotonic() + whole_s
    deadline = time.monotonic() + silent_s
    with selectors.DefaultSelector() as selector:
        for stream, is_out in ((child.stdout, True), (child.stderr, False)):
            selector.register(_given(stream), selectors.EVENT_READ, is_out)
        while selector.get_map():
            left = min(deadline, ends_at) - time.monotonic()
            if left <= 0:
                what = (
                    f"said nothing for {silent_s:g}"
                    if deadline <= ends_at + 0.1
                    else f"was not done within {whole_s:g}"
                )
                raise CannotTell(f"{name} {what} seconds and was ended.")
            for key, _ in selector.select(left):
                data = os.read(key.fd, PART)
                if not data:
                    selector.unregister(key.fileobj)
                elif not key.data:
                    words += data
                    del words[:-WORDS_BYTES]
                else:
                    said += len(data)
                    pending += data
                    *lines, rest = pending.split(b"\n")
                    if lines:
                        deadline = time.monotonic() + silent_s
                    pending = bytearray(rest)
                    if len(pending) > LINE_BYTES_MAX or said > SAID_BYTES_MAX:
                        raise CannotTell(f"{name} says too much to be an answer, and was ended.")
                    for one in lines:
                        line(bytes(one))
    if pending:
        line(bytes(pending))


def _given(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:  # pragma: no cover - both were asked for
        raise CannotTell("The child has no output.")
    return stream
