"""The lock file: who has the store, for as long as the process lives.

Owns ``<store>.lock``, a ``flock`` on it, the note inside, and the wait for a holder that drains. Refuses to judge by
the note: *down* means that the lock is free, nothing else; the note only says whether waiting is worth it. Invariant:
the descriptor that holds the lock is never closed before the journal is; a forked child has it no longer, or it would
hold the store for as long as it lives.
"""

from __future__ import annotations

import fcntl
import os
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from agentplane.core.errors import StoreFailed, StoreLocked, StoreUnfit

NOTE_BYTES_MAX = 4096
CUT_BYTES_MAX = 1024
"""Of runs that an end names: the note holds two ends, and what is longer than a note is none."""
_TRIES, _TRY_S = 10, 0.005
POLL_S = 0.02
"""How often a lock that is waited for is tried: what a restart waits at most behind its predecessor's end."""
TORN_TRIES = 5
"""How often a note that cannot be read is read again: its holder may be writing it."""


class Ended(msgspec.Struct, kw_only=True):
    """How a process ended: the first runs that it cut, each with where it stood, of ``cut_count``."""

    pid: int
    cut: dict[str, str]
    cut_count: int


class Note(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What the holder says of itself. ``state``: serving, draining or cli; ``started`` in ms UTC; ``ended`` None while
    it lives, and of one that was killed; ``before``: the last end that was said before it took the lock."""

    host: str
    boot: str
    pid: int
    pid_ns: str
    started: int
    build: str
    state: str
    socket: str | None = None
    ended: Ended | None = None
    before: Ended | None = None


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """How long a store is waited for whose holder drains, in seconds. ``said`` is told once of whom it is waited for;
    ``ended`` says that whoever waits was told to stop; ``now_ms`` is the clock that is read again behind the wait."""

    seconds: float = 0.0
    said: Callable[[Note], object] = lambda note: None
    ended: Callable[[], bool] = lambda: False
    now_ms: Callable[[], int] | None = None


class WaitEnded(Exception):
    """Whoever waited for the lock was told to stop: nothing was opened."""


def lock_path(store: Path) -> Path:
    return store.with_name(store.name + ".lock")


class StoreLock:
    """An exclusive hold of one store. ``take`` raises StoreLocked naming the holder, StoreUnfit where it
    cannot be made."""

    def __init__(self, store: Path) -> None:
        self.path = lock_path(store)
        self._fd: int | None = None
        self._note: Note | None = None

    def take(self, note: Note, patience: Patience | None = None) -> None:
        """Take the lock and write ``note``; of a holder that drains, wait for it as ``patience`` says. Raises WaitEnded
        besides."""
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
        except OSError as error:
            raise StoreUnfit(f"The lock file {self.path} cannot be opened: {error.strerror}.") from None
        try:
            _wait(fd, self.path, patience or Patience())
        except OSError as error:
            os.close(fd)
            raise StoreUnfit(f"The file system of {self.path} cannot lock: {error.strerror}.") from None
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        _taken.add(self)
        said = read_note(self.path)
        # Whoever waits for an end may look when the next has the store already.
        self.write(msgspec.structs.replace(note, before=said and (said.ended or said.before)))

    def write(self, note: Note) -> None:
        """Replace the note; readers see the old or the new one, or a torn one that they treat as absent."""
        if self._fd is None:
            return
        self._note = note
        data = msgspec.json.encode(note)
        try:
            os.pwrite(self._fd, data.ljust(NOTE_BYTES_MAX, b" "), 0)
        except OSError as error:
            raise StoreFailed(f"The lock file {self.path} cannot be written: {error.strerror}.") from None

    def state(self, state: str) -> None:
        if self._note is not None:
            self.write(msgspec.structs.replace(self._note, state=state))

    def ended(self, cut: Mapping[str, str]) -> None:
        """Say how the end went, for whoever waits for it; the file keeps it until the next holder. Raises
        StoreFailed."""
        if self._note is None:
            return
        ended = Ended(pid=self._note.pid, cut={}, cut_count=len(cut))
        for run, where in cut.items():
            ended.cut[run] = where
            if len(msgspec.json.encode(ended.cut)) > CUT_BYTES_MAX:
                del ended.cut[run]
                break
        self.write(msgspec.structs.replace(self._note, ended=ended))

    @property
    def held(self) -> bool:
        return self._fd is not None

    def inode(self) -> int:
        return -1 if self._fd is None else os.fstat(self._fd).st_ino

    def free(self) -> None:
        """Let go. The file stays: removing it would let two processes lock two files of one name."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


_taken: weakref.WeakSet[StoreLock] = weakref.WeakSet()


def _in_child() -> None:
    # A copy of the descriptor is closed: the lock stays with whoever took it.
    for lock in list(_taken):
        lock.free()


os.register_at_fork(after_in_child=_in_child)


def _wait(fd: int, path: Path, patience: Patience) -> None:
    """Take the lock, or wait for it. Raises StoreLocked for a holder that does not drain, or drains too long."""
    until = time.monotonic() + patience.seconds
    attempt, told, torn = _flock, False, 0
    while True:
        try:
            return attempt(fd)
        except BlockingIOError:
            note = read_note(path)
            torn = torn + 1 if note is None else 0
            drains = note is not None and note.state == "draining"
            if not (drains or 0 < torn <= TORN_TRIES) or time.monotonic() >= until:
                raise locked(path, waited_s=patience.seconds if drains else 0.0) from None
            if note is not None and not told:
                told = True
                patience.said(note)
        if patience.ended():
            raise WaitEnded
        time.sleep(POLL_S)
        attempt = _once


def _once(fd: int) -> None:
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _flock(fd: int) -> None:
    """Take the lock. Whoever asks ``is_free`` holds it shared for an instant: one refusal is no answer."""
    for _ in range(_TRIES):
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_TRY_S)
    return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def read_note(path: Path) -> Note | None:
    """The holder's note, or None where there is none that can be read."""
    try:
        with open(path, "rb") as file:
            raw = file.read(NOTE_BYTES_MAX + 1)
    except OSError:
        return None
    try:
        return msgspec.json.decode(raw.strip(b" \x00"), type=Note)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def locked(path: Path, *, waited_s: float = 0.0) -> StoreLocked:
    """``waited_s``: for so long it was waited for, in vain."""
    note = read_note(path)
    if note is None:
        return StoreLocked(f"The store is held by another process, which {path} does not name.")
    where = f", socket {note.socket}" if note.socket else ""
    waited = f", and still after {waited_s:g} s" if waited_s else ""
    return StoreLocked(
        f"The store is held by pid {note.pid} on {note.host} ({note.state}{where}){waited}.",
        pid=note.pid, host=note.host, socket=note.socket, state=note.state,
    )  # fmt: skip


def is_free(store: Path) -> bool:
    """Whether nobody holds the store now: *down*, in one question that takes nothing."""
    path = lock_path(store)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError as error:
        raise StoreUnfit(f"The lock file {path} cannot be read: {error.strerror}.") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True
