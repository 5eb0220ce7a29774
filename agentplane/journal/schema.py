"""The tables, and the migrations that make them.

Owns all DDL of the file; ``user_version`` is one line of levels for the whole of it. Refuses a file of
another program and a store of a higher level. Invariant: a migration and its own row are one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import apsw

from agentplane.core.errors import StoreLevel, StoreUnfit

APPLICATION_ID: Final = 0x61_70_6C_6E
"""``apln``, in the file's header: another program's database is refused."""

LEVEL_1: Final = """
CREATE TABLE store (
    tenant TEXT PRIMARY KEY, incarnation TEXT NOT NULL, commits INTEGER NOT NULL,
    created_ms INTEGER NOT NULL, last_ms INTEGER,
    restored_ms INTEGER, gap_from_ms INTEGER
) STRICT;
CREATE TABLE plane_state (
    tenant TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, at_ms INTEGER NOT NULL,
    PRIMARY KEY (tenant, name)
) STRICT, WITHOUT ROWID;
CREATE TABLE migration (
    tenant TEXT NOT NULL, level INTEGER NOT NULL, name TEXT NOT NULL, at_ms INTEGER NOT NULL,
    build TEXT NOT NULL,
    PRIMARY KEY (tenant, level)
) STRICT, WITHOUT ROWID;
CREATE TABLE record (
    tenant TEXT NOT NULL, run TEXT NOT NULL, seq INTEGER NOT NULL, epoch INTEGER NOT NULL, kind TEXT NOT NULL,
    case_id TEXT, at_ms INTEGER NOT NULL, hash BLOB NOT NULL, body BLOB NOT NULL, key_id TEXT, signature BLOB,
    PRIMARY KEY (tenant, run, seq)
) STRICT;
CREATE TABLE run (
    tenant TEXT NOT NULL, run TEXT NOT NULL, capability TEXT NOT NULL, status TEXT NOT NULL, reason TEXT,
    code TEXT, admitted_ms INTEGER NOT NULL, concluded_ms INTEGER, head_seq INTEGER NOT NULL,
    head_hash BLOB NOT NULL, incarnation TEXT NOT NULL, log_index INTEGER, held INTEGER NOT NULL DEFAULT 0,
    landed INTEGER NOT NULL DEFAULT 0, open INTEGER NOT NULL DEFAULT 0, own INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, run)
) STRICT;
CREATE INDEX run_admitted ON run (tenant, own, admitted_ms, run);
CREATE INDEX run_status ON run (tenant, status, admitted_ms, run);
CREATE TABLE effect (
    tenant TEXT NOT NULL, run TEXT NOT NULL, key BLOB NOT NULL, step INTEGER NOT NULL, phase INTEGER NOT NULL,
    ordinal INTEGER NOT NULL, attempt INTEGER NOT NULL, mutates INTEGER NOT NULL, state TEXT NOT NULL,
    grp INTEGER,
    PRIMARY KEY (tenant, run, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX effect_open ON effect (tenant, run, step) WHERE state = 'announced' AND step > 0;
CREATE TABLE grp (
    tenant TEXT NOT NULL, run TEXT NOT NULL, step INTEGER NOT NULL, phase INTEGER NOT NULL, idx INTEGER NOT NULL,
    name TEXT NOT NULL, outcome TEXT,
    PRIMARY KEY (tenant, run, step, phase, idx)
) STRICT, WITHOUT ROWID;
CREATE INDEX grp_open ON grp (tenant, run) WHERE outcome IS NULL;
CREATE TABLE timer (
    tenant TEXT NOT NULL, run TEXT NOT NULL, key BLOB NOT NULL, due_ms INTEGER NOT NULL,
    PRIMARY KEY (tenant, run, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX timer_due ON timer (tenant, due_ms, run, key);
CREATE TABLE lease (
    tenant TEXT NOT NULL, run TEXT NOT NULL, owner TEXT, opening TEXT, epoch INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL, takeovers INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (tenant, run)
) STRICT, WITHOUT ROWID;
CREATE INDEX lease_owned ON lease (tenant, expires_ms, run) WHERE owner IS NOT NULL;
CREATE TABLE admission (
    tenant TEXT NOT NULL, key TEXT NOT NULL, run TEXT NOT NULL, digest BLOB NOT NULL, at_ms INTEGER NOT NULL,
    PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;
CREATE TABLE cancel (
    tenant TEXT NOT NULL, run TEXT NOT NULL, actor TEXT NOT NULL, basis TEXT NOT NULL, uid INTEGER,
    reason TEXT NOT NULL, at_ms INTEGER NOT NULL, heard INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (tenant, run)
) STRICT, WITHOUT ROWID;
CREATE TABLE seal (
    tenant TEXT NOT NULL, log_index INTEGER NOT NULL, run TEXT NOT NULL, hash BLOB NOT NULL,
    at_ms INTEGER NOT NULL, PRIMARY KEY (tenant, log_index), UNIQUE (tenant, run)
) STRICT, WITHOUT ROWID;
CREATE TABLE blob (
    tenant TEXT NOT NULL, digest BLOB NOT NULL, bytes BLOB NOT NULL, PRIMARY KEY (tenant, digest)
) STRICT;
"""

MIGRATIONS: Final[Sequence[tuple[str, str]]] = (("the first tables", LEVEL_1),)
"""Entry n raises a store from level n to n + 1. Expanding ones run at start; contracting ones wait for
``upgrade``."""

LEVEL: Final = len(MIGRATIONS)


def level_of(connection: apsw.Connection) -> int:
    """The store's level, 0 for an empty file. Raises StoreUnfit for another program's, StoreLevel for a
    higher one."""
    level = int(connection.pragma("user_version"))
    application = int(connection.pragma("application_id"))
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()[0][0]
    if application != APPLICATION_ID and (application or level or tables):
        raise StoreUnfit("The file is an SQLite database of another program; name another store.")
    if level > LEVEL:
        raise StoreLevel(
            f"The store is at level {level}; this build knows levels up to {LEVEL}.", level=level, known=LEVEL
        )
    return level


def migrate(
    connection: apsw.Connection,
    tenant: str,
    now_ms: int,
    build: str,
    *,
    before: Callable[[int], None] | None = None,
    steps: Sequence[tuple[str, str]] = MIGRATIONS,
) -> int:
    """Raise the store to this build's level, each step in one transaction with its row; returns how many ran.

    ``before`` is called with the level about to be left (the place for a verified copy).
    """
    level = int(connection.pragma("user_version"))
    ran = 0
    for number, (name, ddl) in enumerate(steps[level:], start=level + 1):
        if before is not None and level:
            before(level)
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.execute(ddl).fetchall()
            connection.execute(
                "INSERT INTO migration (tenant, level, name, at_ms, build) VALUES (?, ?, ?, ?, ?)",
                (tenant, number, name, now_ms, build),
            )
            connection.pragma("application_id", APPLICATION_ID)
            connection.pragma("user_version", number)
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        ran += 1
    return ran
