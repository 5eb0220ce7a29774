"""Opening one store: the only way to its file.

Owns the order in which a store is locked, opened, healed and recognised as its own original or a restored copy.
Refuses what it cannot be sure of, and to migrate: a new file gets this build's tables, any other is used at its own
level. Invariant: when ``Store.open`` returns, what an earlier process acknowledged is in the main file and synced (W9),
and no lease of a process that is gone is live.
"""

from __future__ import annotations

import os
import platform
import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import apsw
import msgspec

from agentplane.core import bounds
from agentplane.core.errors import (
    AgentplaneError,
    JournalCorrupt,
    NotFound,
    StoreBusy,
    StoreFailed,
    StoreUnfit,
)
from agentplane.journal import leases, lists, schema
from agentplane.journal.lock import Note, Patience, StoreLock
from agentplane.journal.mark import Mark, read_mark, restored, write_mark
from agentplane.journal.place import check_place
from agentplane.journal.room import DiskRoom
from agentplane.journal.tx import Tx, number, text

T = TypeVar("T")
LOG_PART = 65_536
"""Bytes of the log written at a time: SQLite's own way to write a file takes less than 128 KiB, and calls the disk
full at more."""
SQLITE_LEAST = 3_051_003
"""Earlier ones can corrupt a WAL database when the log is reset under a reader."""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What the opener is: ``opening`` is unique to this opening, ``owner`` names the process in leases."""

    opening: str
    owner: str
    build: str
    now_ms: int
    new_incarnation: str
    state: str = "cli"
    socket: str | None = None


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """What was found at opening. ``level``: the one in force, at most this build's; code that needs a higher one asks
    it. ``held``: why the store is held, or None. ``clean``: the last opener drained. ``last_ms``: the store's clock at
    its last commit, ms UTC."""

    incarnation: str
    created: bool
    level: int
    held: str | None
    clean: bool
    lapsed: int
    last_ms: int | None = None


def connect(path: Path, *, read_only: bool = False, vfs: str | None = None) -> apsw.Connection:
    """A connection with our pragmas.

    Raises StoreBusy, JournalCorrupt, StoreUnfit, StoreLevel or StoreFailed.
    """
    flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    connection: apsw.Connection | None = None
    ready = False
    try:
        connection = apsw.Connection(str(path), flags=flags, vfs=vfs)
        connection.set_busy_timeout(bounds.BUSY_WAIT_MS)
        if read_only:
            connection.pragma("query_only", True)
        else:
            # Before the first pragma that writes: another program's database is not turned into ours.
            schema.level_of(connection)
            if connection.pragma("journal_mode", "wal") != "wal":
                raise StoreUnfit(f"The store {path} cannot have a write-ahead log on this file system.")
            connection.pragma("synchronous", "full")
            connection.pragma("wal_autocheckpoint", 0)
            # The journal has no foreign keys; an application's tables may, and what they say is to hold.
            connection.pragma("foreign_keys", True)
            connection.file_control("main", apsw.SQLITE_FCNTL_PERSIST_WAL, _one())
        connection.pragma("trusted_schema", False)
        ready = True
        return connection
    except apsw.Error as error:
        raise from_sqlite(path, error) from None
    finally:
        if connection is not None and not ready:
            connection.close()


def _one() -> int:
    """The address of a C int 1 that lives as long as the program, as the file control wants it."""
    import ctypes

    global _PERSIST
    _PERSIST = ctypes.c_int(1)
    return ctypes.addressof(_PERSIST)


_PERSIST: object = None


def from_sqlite(path: Path, error: apsw.Error) -> AgentplaneError:
    """The error of the table that an SQLite error on opening or reading is."""
    if isinstance(error, apsw.NotADBError | apsw.CorruptError):
        return JournalCorrupt(f"The store {path} is damaged: {error}.")
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return StoreBusy(f"The store {path} is busy: {error}.")
    if isinstance(error, apsw.CantOpenError | apsw.ReadOnlyError | apsw.PermissionsError):
        return StoreUnfit(f"The store {path} cannot be opened: {error}.")
    return StoreFailed(f"The store {path} failed: {type(error).__name__}: {error}.")


class Readers:
    """Read-only connections, lent one at a time to any thread. Every read is one short transaction of
    committed rows."""

    def __init__(self, path: Path, tenant: str, vfs: str | None = None) -> None:
        self._path = path
        self._tenant = tenant
        self._vfs = vfs
        self._idle: queue.SimpleQueue[apsw.Connection] = queue.SimpleQueue()
        self._closed = False

    def read(self, body: Callable[[Tx], T]) -> T:
        """Run ``body`` in one read transaction. Raises what it raises, and StoreFailed or JournalCorrupt."""
        with self._lent() as connection:
            try:
                connection.execute("BEGIN")
                return body(Tx(connection, self._tenant, 0))
            except apsw.Error as error:
                raise from_sqlite(self._path, error) from None
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    @contextmanager
    def _lent(self) -> Iterator[apsw.Connection]:
        try:
            connection = self._idle.get_nowait()
        except queue.Empty:
            connection = connect(self._path, read_only=True, vfs=self._vfs)
        try:
            yield connection
        finally:
            self._idle.put(connection)
            if self._closed:
                self.close()

    def close(self) -> None:
        """Close what is idle now, and what is lent when it comes back."""
        self._closed = True
        while True:
            try:
                self._idle.get_nowait().close()
            except queue.Empty:
                return


class Store:
    """An opened store: its path, lock, readers and room. Made by ``Store.open``; the writer is made over
    ``connection``."""

    def __init__(self, path: Path, tenant: str, lock: StoreLock, identity: Identity, vfs: str | None) -> None:
        self.path = path
        self.tenant = tenant
        self.lock = lock
        self.identity = identity
        self.vfs = vfs
        self.readers = Readers(path, tenant, vfs)
        self.room = DiskRoom(path)
        self.found: Opened
        self.held: str | None = None
        self._inodes: dict[str, int] = {}

    @classmethod
    def open(
        cls,
        path: Path,
        tenant: str,
        identity: Identity,
        *,
        create: bool = True,
        vfs: str | None = None,
        patience: Patience | None = None,
    ) -> Store:
        """Take the lock, open, heal and recognise. Raises StoreLocked, StoreUnfit, StoreLevel, JournalCorrupt, and
        WaitEnded where ``patience`` waits."""
        path = path.absolute()
        _check_sqlite()
        check_place(path, create=create)
        lock = StoreLock(path)
        lock.take(_note(identity), patience)
        if patience is not None and patience.now_ms is not None:
            # What was read before the wait may lie before the holder's last commit.
            identity = msgspec.structs.replace(identity, now_ms=patience.now_ms())
        store = cls(path, tenant, lock, identity, vfs)
        try:
            store._open()
        except apsw.Error as error:
            lock.free()
            raise from_sqlite(path, error) from None
        except BaseException:
            lock.free()
            raise
        return store

    def _open(self) -> None:
        if not self.path.exists():
            # SQLite would make it readable by all; the log and the index take the mode of the file.
            os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640))
        # On a full disk the ballast's bytes are what the log is copied into.
        self.room.look(take=False)
        connection = connect(self.path, vfs=self.vfs)
        try:
            # It is known now to be a store of ours, and the lock of SQLite keeps any other writer out of its log.
            connection.execute("BEGIN IMMEDIATE")
            try:
                rewrite_log(self.path, self.vfs)
            finally:
                connection.execute("ROLLBACK")
            # W9: what an earlier process left in the log becomes part of the main file and is synced, or
            # fails now.
            _, frames, copied = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0]
            if frames != copied:
                raise StoreBusy(f"A reader holds an old state of {self.path}; end it, so that the log can be copied.")
            created = schema.level_of(connection) == 0
            if created:
                schema.migrate(connection, self.tenant, self.identity.now_ms, self.identity.build)
            level = schema.level_of(connection)
            connection.execute("BEGIN IMMEDIATE")
            try:
                self.found = self._recognise(Tx(connection, self.tenant, self.identity.now_ms), created, level)
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            self.room.look()
            self.held = self.found.held
            if self.held is None:
                self.write_mark(connection)
            self._inodes = self._stat()
        finally:
            connection.close()

    def _recognise(self, tx: Tx, created: bool, level: int) -> Opened:
        """The store row, made or compared with the mark; a restored store is held with a new incarnation."""
        identity = self.identity
        row = tx.one("SELECT incarnation, commits, last_ms FROM store WHERE tenant = ?", tx.tenant)
        if row is None:
            other = tx.one("SELECT tenant FROM store LIMIT 1")
            if other is not None:
                raise StoreUnfit(f"The store belongs to the tenant {text(other[0])!r}, not to {tx.tenant!r}.")
            tx.run(
                "INSERT INTO store (tenant, incarnation, commits, created_ms) VALUES (?, ?, 0, ?)",
                tx.tenant, identity.new_incarnation, tx.now_ms,
            )  # fmt: skip
            mark, why = read_mark(self.path), None
            if mark is not None and mark.commits:
                # A mark that is ahead of a store that has nothing: what was here is gone, or elsewhere.
                why = f"it is new, and its mark has seen commit {mark.commits}"
                lists.set_state(tx, "held", why)
            return Opened(
                incarnation=identity.new_incarnation,
                created=True,
                level=level,
                held=why,
                clean=True,
                lapsed=0,
            )
        incarnation, commits = text(row[0]), number(row[1])
        last_ms = None if row[2] is None else number(row[2])
        has_history = tx.one("SELECT 1 FROM record WHERE tenant = ? LIMIT 1", tx.tenant) is not None
        why = restored(read_mark(self.path), incarnation, commits, self.path.stat().st_ino, has_history=has_history)
        held = lists.get_state(tx, "held")
        if why is not None and held is None:
            incarnation = identity.new_incarnation
            tx.run(
                "UPDATE store SET incarnation = ?, restored_ms = ?, gap_from_ms = ? WHERE tenant = ?",
                incarnation, tx.now_ms, last_ms, tx.tenant,
            )  # fmt: skip
            tx.run("UPDATE run SET held = 1 WHERE tenant = ? AND log_index IS NULL AND own = 0", tx.tenant)
            held = why
            lists.set_state(tx, "held", why)
        clean_opening = lists.get_state(tx, "closed_clean")
        owned = tx.one("SELECT count(*) FROM lease WHERE tenant = ? AND owner IS NOT NULL AND opening <> ?",
                       tx.tenant, clean_opening or "")  # fmt: skip
        lists.set_state(tx, "closed_clean", None)
        lapsed = leases.lapse_foreign(tx, identity.opening, closed_clean=clean_opening)
        clean = owned is None or not owned[0]
        return Opened(
            incarnation=incarnation, created=created, level=level, held=held, clean=clean, lapsed=lapsed,
            last_ms=last_ms,
        )  # fmt: skip

    # --- what the writer calls --------------------------------------------------------------------

    def writer_connection(self) -> apsw.Connection:
        return connect(self.path, vfs=self.vfs)

    def count_commit(self, tx: Tx) -> None:
        tx.run("UPDATE store SET commits = commits + 1, last_ms = ? WHERE tenant = ?", tx.now_ms, tx.tenant)

    def write_mark(self, connection: apsw.Connection) -> None:
        """Repeat incarnation, commit count and inode beside the store; the commit it names is on disk
        already."""
        row = connection.execute("SELECT incarnation, commits FROM store WHERE tenant = ?", (self.tenant,)).fetchone()
        if row is None:
            raise NotFound("The store has no row of its tenant.")
        write_mark(self.path, Mark(text(row[0]), number(row[1]), self.path.stat().st_ino))

    def mark_now(self) -> None:
        """Write the mark from a connection of its own: a hold was let go."""
        connection = connect(self.path, vfs=self.vfs)
        try:
            self.write_mark(connection)
        finally:
            connection.close()

    def _stat(self) -> dict[str, int]:
        found = {"lock": self.lock.inode()}
        for name in ("", "-wal"):
            try:
                found[name] = os.stat(self.path.with_name(self.path.name + name)).st_ino
            except OSError:
                found[name] = -1
        return found

    def same_files(self) -> None:
        """W10: raises StoreFailed when file, log or lock are not the ones that were opened."""
        now = self._stat()
        try:
            now["lock"] = os.stat(self.lock.path).st_ino
        except OSError:
            now["lock"] = -1
        for name, inode in self._inodes.items():
            if now[name] != inode and not (name == "-wal" and inode == -1):
                file = f"{self.path.name}{'.lock' if name == 'lock' else name}"
                raise StoreFailed(f"The file {file} was replaced under the plane.")

    def close(self) -> None:
        self.readers.close()
        self.lock.free()


def read_only(path: Path, tenant: str | None = None) -> Readers:
    """Readers of a store that somebody else may hold; takes no lock, lapses nothing. Raises NotFound,
    StoreLevel."""
    path = path.absolute()
    if not path.is_file():
        raise NotFound(f"There is no store {path}.")
    connection = connect(path, read_only=True)
    try:
        if schema.level_of(connection) == 0:
            raise NotFound(f"The store {path} is empty.")
        row = connection.execute("SELECT tenant FROM store LIMIT 1").fetchone()
    except apsw.Error as error:
        raise from_sqlite(path, error) from None
    finally:
        connection.close()
    if tenant is None:
        tenant = "default" if row is None else text(row[0])
    return Readers(path, tenant)


def rewrite_log(path: Path, vfs: str | None) -> None:
    """Write what the log holds once more, and sync it, before it is copied. Raises StoreUnfit, StoreFailed,
    apsw.Error.

    After a sync that failed, a kernel may call pages clean that never reached the disk: they can be read, and no later
    sync writes them. Copied from there, half of a copy would stand in the main file with nothing behind it.
    """
    log = path.with_name(path.name + "-wal")
    try:
        size = log.stat().st_size
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreFailed(f"The log {log} cannot be looked at: {error.strerror}.") from None
    if not size:
        return
    if not os.access(log, os.R_OK | os.W_OK):
        raise StoreUnfit(f"The log {log} cannot be read and written by this user.")
    file = apsw.VFSFile(vfs or "", str(log), [apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_READWRITE, 0])
    try:
        for at in range(0, size, LOG_PART):
            file.xWrite(file.xRead(min(LOG_PART, size - at), at), at)
        file.xSync(apsw.SQLITE_SYNC_FULL)
    finally:
        file.xClose()


def _check_sqlite() -> None:
    if apsw.SQLITE_VERSION_NUMBER < SQLITE_LEAST:
        raise StoreUnfit(f"This build carries SQLite {apsw.sqlite_lib_version()}, older than 3.51.3.")


def _note(identity: Identity) -> Note:
    return Note(
        host=platform.node(),
        boot=_read("/proc/sys/kernel/random/boot_id"),
        pid=os.getpid(),
        pid_ns=_link("/proc/self/ns/pid"),
        started=identity.now_ms,
        build=identity.build,
        state=identity.state,
        socket=identity.socket,
    )


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return "unknown"


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return "unknown"
