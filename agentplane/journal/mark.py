"""The mark beside the store: how a restored copy is known for one.

Owns ``<store>.mark`` and the comparison of it with the store. Refuses to call a store its own original when
anything says otherwise. Invariant: the mark is never ahead of a store that was not restored, because it is
written after the commit it names is on disk.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from agentplane.core.errors import StoreFailed, StoreUnfit


class Mark(msgspec.Struct, frozen=True):
    """The store's incarnation, its commit count when this was written, and the inode number of its file."""

    incarnation: str
    commits: int
    inode: int


def mark_path(store: Path) -> Path:
    return store.with_name(store.name + ".mark")


def read_mark(store: Path) -> Mark | None:
    """The mark, or None where there is none that says anything. Raises StoreUnfit for one that may not be read: to take
    it for missing would be to take the store for a restored one."""
    try:
        with open(mark_path(store), "rb") as file:
            return msgspec.json.decode(file.read(4096), type=Mark)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreUnfit(
            f"The mark {mark_path(store)} cannot be read by uid {os.geteuid()}: {error.strerror}; give it to whom "
            f"{store} belongs to."
        ) from None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def write_mark(store: Path, mark: Mark) -> None:
    """Write beside, sync, rename, sync the directory. Raises StoreFailed."""
    path = mark_path(store)
    beside = path.with_name(path.name + ".new")
    try:
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        try:
            os.write(fd, msgspec.json.encode(mark))
            owned_as(store, fd)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(beside, path)
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise StoreFailed(f"The mark {path} cannot be written: {error.strerror}.") from None


def owned_as(store: Path, fd: int) -> None:
    """Give a file beside the store to whom the store belongs: root, who raises a level, is not who serves it. Raises
    OSError."""
    found = os.stat(store)
    if os.geteuid() == 0 and (found.st_uid, found.st_gid) != (0, 0):
        os.fchown(fd, found.st_uid, found.st_gid)


def restored(mark: Mark | None, incarnation: str, commits: int, inode: int, *, has_history: bool) -> str | None:
    """Why this store must be a restored one, in a sentence; None when it is its own original."""
    if mark is None:
        return "it has history and no mark" if has_history else None
    if mark.incarnation != incarnation:
        return "its mark is of another incarnation"
    if mark.commits > commits:
        return f"its mark has seen commit {mark.commits} and the store ends at {commits}"
    if mark.inode != inode:
        return "its file is not the one that its mark was written for"
    return None
