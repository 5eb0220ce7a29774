"""Copies of a store's file: made in one pass, checked against what they were made from, synced.

Owns the room that a copy needs, the making of one beside others who read and write, and the comparison. Refuses to
begin without room, and to call a copy good that was not compared. Invariant: a file under the name that was asked for
is whole, checked and on the disk; what is not yet so has another name.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import apsw
import msgspec

from agentplane.core import bounds
from agentplane.core.errors import DiskLow, JournalCorrupt, StoreUnfit
from agentplane.journal.mark import owned_as
from agentplane.journal.store import connect, from_sqlite
from agentplane.journal.tx import number

SPARE_BYTES: Final = 64 * 1024 * 1024
HANDLE_EVERY: Final = 1_000
"""Steps of SQLite's machine between two looks at what else there is to do, such as a signal."""
PART: Final = ".part"
"""What the name of a copy ends with until it is whole and checked."""


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """What two files of one store agree in: level, rows of every table by name, and one digest over the head of every
    run."""

    level: int
    rows: dict[str, int]
    heads: str


def needed_bytes(store: Path) -> int:
    """What a copy of ``store`` may take, with what is written beside it while it is used, in bytes."""
    size = 0
    for name in (store, store.with_name(store.name + "-wal")):
        with suppress(FileNotFoundError):
            size += os.stat(name).st_size
    return size + size // 5 + SPARE_BYTES


def check_room(store: Path, directory: Path) -> int:
    """The bytes that a copy of ``store`` in ``directory`` needs. Raises DiskLow, before anything is written, where they
    are not free; beside a store, also where its plane would be left under its own mark."""
    needed = needed_bytes(store)
    try:
        stat = os.statvfs(directory)
        same = os.stat(directory).st_dev == os.stat(store).st_dev
    except OSError as error:
        raise StoreUnfit(f"The directory {directory} cannot be looked at: {error.strerror}.") from None
    free = stat.f_bavail * stat.f_frsize
    wanted = needed + (bounds.ROOM_LOW_BYTES if same else 0)
    if free < wanted:
        beside = ", with what the store's plane keeps free there" if same else ""
        raise DiskLow(
            f"A copy of {store.name} takes {needed} bytes in {directory}{beside}: {wanted}; {free} are free, "
            "so nothing was written.",
            needed=wanted, free=free,
        )  # fmt: skip
    return needed


def take(
    store: Path, target: Path, *, mode: int = 0o600, keep_owner: bool = False, tick: Callable[[], object] = lambda: None
) -> None:
    """Copy the committed state of ``store`` to ``target``, which is not there yet, in one transaction that only reads.

    ``mode`` and, with ``keep_owner``, the store's owner are the copy's. ``tick`` is called now and then on this
    thread, and what it raises ends the copy; so does a signal's handler. Raises
    JournalCorrupt, StoreBusy, StoreUnfit and StoreFailed. What was written of a copy that failed is removed.
    """
    try:
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            if keep_owner:
                owned_as(store, fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise StoreUnfit(f"The copy {target} cannot be made: {error.strerror}.") from None
    whole = False
    try:
        source = connect(store, read_only=True)
        try:
            # It writes to no file but the copy, and says so itself: the connection is read-only.
            source.pragma("query_only", False)
            source.set_progress_handler(lambda: bool(tick()) and False, HANDLE_EVERY)
            source.execute("VACUUM INTO ?", (str(target),))
        finally:
            source.set_progress_handler(None)
            source.close()
        _sync(target)
        _sync(target.parent)
        whole = True
    except apsw.Error as error:
        raise from_sqlite(store, error) from None
    finally:
        if not whole:
            target.unlink(missing_ok=True)


def count(path: Path) -> Counted:
    """What is compared of a file, read in one transaction. Raises JournalCorrupt, StoreBusy and StoreFailed."""
    connection = connect(path, read_only=True)
    try:
        connection.execute("BEGIN")
        tables = [
            str(name)
            for (name,) in connection.execute(
                "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite!_%' ESCAPE '!' "
                "ORDER BY name"
            )
        ]
        rows: dict[str, int] = {}
        for table in tables:
            named = '"' + table.replace('"', '""') + '"'
            rows[table] = number(connection.execute(f"SELECT count(*) FROM {named}").fetchall()[0][0])
        heads = hashlib.sha256()
        for tenant, run, seq, head in connection.execute(
            "SELECT tenant, run, head_seq, head_hash FROM run ORDER BY tenant, run"
        ):
            heads.update(f"{tenant}\0{run}\0{seq}\0".encode() + bytes(head))
        return Counted(level=int(connection.pragma("user_version")), rows=rows, heads=heads.hexdigest())
    except apsw.Error as error:
        raise from_sqlite(path, error) from None
    finally:
        connection.close()


def check_whole(path: Path) -> None:
    """SQLite's own check of every page and index. Raises JournalCorrupt with its first finding."""
    connection = connect(path, read_only=True)
    try:
        found = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(1)")]
    except apsw.Error as error:
        raise from_sqlite(path, error) from None
    finally:
        connection.close()
    if found != ["ok"]:
        raise JournalCorrupt(f"The file {path} is damaged: {found[0][:200] if found else 'no answer'}.")


def verified(store: Path, target: Path, *, tick: Callable[[], object] = lambda: None) -> Counted:
    """A copy of a store that nobody writes to meanwhile, under ``target``: opened, checked, compared, synced. Raises
    DiskLow before anything is written, JournalCorrupt for a copy that is not what it was made from."""
    check_room(store, target.parent)
    if target.exists():
        raise StoreUnfit(f"There is a file {target} already; move it away.")
    part = target.with_name(target.name + PART)
    part.unlink(missing_ok=True)
    take(store, part, mode=os.stat(store).st_mode & 0o777, keep_owner=True, tick=tick)
    whole = False
    try:
        check_whole(part)
        found, wanted = count(part), count(store)
        if found != wanted:
            raise JournalCorrupt(f"The copy {part} is not what {store} holds: {_difference(found, wanted)}.")
        os.rename(part, target)
        _sync(target.parent)
        whole = True
    except OSError as error:
        raise StoreUnfit(f"The copy {target} cannot be kept: {error.strerror}.") from None
    finally:
        if not whole:
            part.unlink(missing_ok=True)
    return found


def _difference(found: Counted, wanted: Counted) -> str:
    if found.level != wanted.level:
        return f"level {found.level} for {wanted.level}"
    for table in sorted(found.rows.keys() | wanted.rows.keys()):
        if found.rows.get(table) != wanted.rows.get(table):
            return f"{found.rows.get(table)} rows of {table} for {wanted.rows.get(table)}"
    return "another head of a run"


def _sync(path: Path) -> None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise StoreUnfit(f"{path} cannot be synced: {error.strerror}.") from None
