"""Raising a store's level: what it would take, and the act.

Owns ``upgrade``: the only way in which a store that has tables gets others. Refuses a store that somebody holds, that
is held as a restored one, or of which no verified copy could be made first. Invariant: before the first byte of a
migration there is a copy of the store as it was, checked and on the disk, under a name that says level and time.
"""

from __future__ import annotations

import glob
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import apsw
import msgspec

from agentplane.core.errors import Held, NotFound
from agentplane.journal import copy, lists, schema
from agentplane.journal.store import Identity, Store, connect, from_sqlite
from agentplane.journal.tx import Tx

RAISING: Final = "raising"
"""The row of the plane's own state that says so."""


class Step(msgspec.Struct, frozen=True):
    """One migration that is to be run: the level that it raises the store to, its name and kind."""

    level: int
    name: str
    kind: str


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """What ``commit`` would do. ``level``: the store's; ``known``: the highest that this build knows."""

    level: int
    floor: int
    known: int
    steps: tuple[Step, ...]
    copy: Path
    copy_bytes: int


class Begun(msgspec.Struct, frozen=True):
    """A commit whose copy is there and whose record is not: the level it found, and the copy's name."""

    level: int
    copy: str


class Raised(msgspec.Struct, frozen=True, kw_only=True):
    """What ``commit`` did; ``copy`` is None where there was nothing to do."""

    before: int
    level: int
    steps: tuple[Step, ...]
    copy: Path | None


def steps_from(level: int) -> tuple[Step, ...]:
    """The migrations between ``level`` and this build's."""
    return tuple(
        Step(at, one.name, one.kind) for at, one in enumerate(schema.MIGRATIONS[level:], start=level + 1)
    )  # fmt: skip


def level_in(path: Path) -> int:
    """The level of a store that somebody may hold. Raises NotFound, StoreLevel, and what a read does."""
    if not path.is_file():
        raise NotFound(f"There is no store {path}.")
    connection = connect(path, read_only=True)
    try:
        level = schema.level_of(connection)
    except apsw.Error as error:
        raise from_sqlite(path, error) from None
    finally:
        connection.close()
    if level == 0:
        raise NotFound(f"The store {path} is empty.")
    return level


def copy_name(path: Path, level: int, now_ms: int) -> Path:
    """Where the copy of a store at ``level`` is kept: beside it."""
    at = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
    return path.with_name(f"{path.name}.level-{level}.{at}.copy")


def outlook(path: Path, now_ms: int) -> Outlook:
    """What a commit would do now; takes no lock and writes nothing."""
    level = level_in(path)
    return Outlook(
        level=level, floor=schema.FLOOR, known=schema.LEVEL, steps=steps_from(level),
        copy=copy_name(path, level, now_ms), copy_bytes=copy.needed_bytes(path),
    )  # fmt: skip


def commit(
    path: Path,
    tenant: str,
    identity: Identity,
    *,
    vfs: str | None = None,
    said: Callable[[str], object] = lambda _: None,
    act: Callable[[Tx, Store, Raised], object] | None = None,
) -> Raised:
    """Raise the store to this build's level; ``act`` records behind it who had it raised. Stopped half way it is at a
    level between, and its copy is there; asked again, the rest is done. Raises what ``Store.open`` does, Held, DiskLow,
    and what the disk says."""
    store = Store.open(path, tenant, identity, create=False, vfs=vfs)
    try:
        before = store.found.level
        steps = steps_from(before)
        if store.held is not None:
            raise Held(f"The store was restored ({store.held}) and is held; its level stays until it is let go.")
        # Of a commit that was killed behind its first migration: what it began is what is recorded.
        begun = store.readers.read(_begun)
        done = Raised(before=before, level=before, steps=(), copy=None)
        if begun is not None and begun.level < before:
            done = _recorded(store, act, begun, before)
        if not steps:
            return done
        kept = copy_name(store.path, before, identity.now_ms)
        for part in store.path.parent.glob(f"{glob.escape(store.path.name)}.level-*{copy.PART}"):
            # Of a commit that was killed: nobody else makes one while the store is held.
            part.unlink(missing_ok=True)
        said(f"copying the store to {kept}")
        copy.verified(store.path, kept)
        begun = Begun(level=before, copy=kept.name)
        state = msgspec.json.encode(begun).decode()
        _unit(store, lambda tx: lists.set_state(tx, RAISING, state))
        said(f"raising the store from level {before} to {schema.LEVEL}")
        raise_level(store)
        return _recorded(store, act, begun, schema.LEVEL)
    except apsw.Error as error:
        raise from_sqlite(path, error) from None
    finally:
        store.close()


def _begun(tx: Tx) -> Begun | None:
    said = lists.get_state(tx, RAISING)
    return None if said is None else msgspec.json.decode(said, type=Begun)


def _recorded(
    store: Store, act: Callable[[Tx, Store, Raised], object] | None, begun: Begun, level: int
) -> Raised:  # fmt: skip
    """What was begun is done; who did it is recorded in the unit that forgets that it was begun."""
    steps = tuple(step for step in steps_from(begun.level) if step.level <= level)
    raised = Raised(before=begun.level, level=level, steps=steps, copy=store.path.with_name(begun.copy))

    def unit(tx: Tx) -> None:
        if act is not None:
            act(tx, store, raised)
        lists.set_state(tx, RAISING, None)

    _unit(store, unit)
    return raised


def _unit(store: Store, work: Callable[[Tx], object]) -> None:
    connection = store.writer_connection()
    try:
        connection.execute("BEGIN IMMEDIATE")
        tx = Tx(connection, store.tenant, store.identity.now_ms)
        work(tx)
        store.count_commit(tx)
        connection.execute("COMMIT")
        store.write_mark(connection)
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        connection.close()


def raise_level(store: Store) -> None:
    """Run what is left of the migrations over an opened store, of which a copy is there. Raises apsw.Error."""
    connection = store.writer_connection()
    try:
        schema.migrate(connection, store.tenant, store.identity.now_ms, store.identity.build)
        # What was raised is in the main file, and synced, before anybody is told so.
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    finally:
        connection.close()


def raise_copy(path: Path, now_ms: int, build: str) -> tuple[int, int]:
    """Raise a copy that is nobody's store; its level before and behind. Raises StoreLevel, NotFound for an empty one,
    and what the disk says."""
    connection = connect(path)
    try:
        before = schema.level_of(connection)
        row = connection.execute("SELECT tenant FROM store LIMIT 1").fetchone() if before else None
        if row is None:
            raise NotFound(f"The copy {path} holds no store.")
        schema.migrate(connection, str(row[0]), now_ms, build)
        return before, schema.level_of(connection)
    except apsw.Error as error:
        raise from_sqlite(path, error) from None
    finally:
        connection.close()
