"""The lock file: who has the store, for as long as the process lives.

Owns ``<store>.lock``, a ``flock`` on it and the note inside. Refuses to judge by the note: *down* means that
the lock is free, nothing else. Invariant: the descriptor that holds the lock is never closed before the
journal is.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import msgspec

from agentplane.core.errors import StoreFailed, StoreLocked, StoreUnfit

NOTE_BYTES_MAX = 4096
_TRIES, _TRY_S = 10, 0.005


class Note(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What the holder says of itself. ``state``: serving, draining or cli; ``started`` in ms UTC."""

    host: str
    boot: str
    pid: int
    pid_ns: str
    started: int
    build: str
    state: str
    socket: str | None = None


def lock_path(store: Path) -> Path:
    return store.with_name(store.name + ".lock")


class StoreLock:
    """An exclusive hold of one store. ``take`` raises StoreLocked naming the holder, StoreUnfit where it
    cannot be made."""

    def __init__(self, store: Path) -> None:
        self.path = lock_path(store)
        self._fd: int | None = None
        self._note: Note | None = None

    def take(self, note: Note) -> None:
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
        except OSError as error:
            raise StoreUnfit(f"The lock file {self.path} cannot be opened: {error.strerror}.") from None
        try:
            _flock(fd)
        except BlockingIOError:
            os.close(fd)
            raise locked(self.path) from None
        except OSError as error:
            os.close(fd)
            raise StoreUnfit(f"The file system of {self.path} cannot lock: {error.strerror}.") from None
        self._fd = fd
        self.write(note)

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


def locked(path: Path) -> StoreLocked:
    note = read_note(path)
    if note is None:
        return StoreLocked(f"The store is held by another process, which {path} does not name.")
    where = f", socket {note.socket}" if note.socket else ""
    return StoreLocked(
        f"The store is held by pid {note.pid} on {note.host} ({note.state}{where}).",
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
