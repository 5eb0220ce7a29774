"""The tables, and the migrations that make them.

Owns all DDL of the file; ``user_version`` is one line of levels for the whole of it. Refuses a file of another program
and a store of a level that this build does not know. Invariant: a migration and its own row are one transaction, and
only a file without tables, or ``agentplane upgrade --commit``, runs one: whatever else opens a store uses it at the
level that it is at.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import apsw

from agentplane.core.errors import StoreLevel, StoreUnfit, ensure

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
CREATE INDEX record_case ON record (tenant, case_id, at_ms, run, seq) WHERE case_id IS NOT NULL;
CREATE TABLE run (
    tenant TEXT NOT NULL, run TEXT NOT NULL, capability TEXT NOT NULL, status TEXT NOT NULL, reason TEXT,
    code TEXT, admitted_ms INTEGER NOT NULL, concluded_ms INTEGER, head_seq INTEGER NOT NULL,
    head_hash BLOB NOT NULL, incarnation TEXT NOT NULL, log_index INTEGER, held INTEGER NOT NULL DEFAULT 0,
    landed INTEGER NOT NULL DEFAULT 0, open INTEGER NOT NULL DEFAULT 0, own INTEGER NOT NULL DEFAULT 0,
    case_id TEXT, until_ms INTEGER NOT NULL DEFAULT 281474976710655,
    PRIMARY KEY (tenant, run)
) STRICT;
CREATE INDEX run_admitted ON run (tenant, own, admitted_ms, run);
CREATE INDEX run_status ON run (tenant, status, admitted_ms, run, own);
CREATE INDEX run_case ON run (tenant, case_id, admitted_ms, run) WHERE case_id IS NOT NULL;
CREATE INDEX run_waiting ON run (tenant, until_ms, run) WHERE status = 'suspended';
CREATE INDEX run_standing ON run (tenant, admitted_ms, run) WHERE status = 'failed' AND landed > 0;
CREATE INDEX run_held ON run (tenant, run) WHERE held = 1;
CREATE TABLE effect (
    tenant TEXT NOT NULL, run TEXT NOT NULL, key BLOB NOT NULL, step INTEGER NOT NULL, phase INTEGER NOT NULL,
    ordinal INTEGER NOT NULL, attempt INTEGER NOT NULL, mutates INTEGER NOT NULL, state TEXT NOT NULL,
    grp INTEGER, wait TEXT, lacks INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, run, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX effect_wait ON effect (tenant, run, key) WHERE wait IS NOT NULL AND state = 'announced';
CREATE INDEX effect_lacks ON effect (tenant, run, key) WHERE lacks > 0 AND state = 'announced';
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
CREATE INDEX timer_run ON timer (tenant, run, due_ms, key);
CREATE TABLE lease (
    tenant TEXT NOT NULL, run TEXT NOT NULL, owner TEXT, opening TEXT, epoch INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL, takeovers INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (tenant, run)
) STRICT, WITHOUT ROWID;
CREATE INDEX lease_owned ON lease (tenant, expires_ms, run) WHERE owner IS NOT NULL;
CREATE TABLE admission (
    tenant TEXT NOT NULL, key TEXT NOT NULL, run TEXT NOT NULL, digest BLOB NOT NULL, at_ms INTEGER NOT NULL,
    PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX admission_run ON admission (tenant, run);
CREATE TABLE cancel (
    tenant TEXT NOT NULL, run TEXT NOT NULL, actor TEXT NOT NULL, basis TEXT NOT NULL, uid INTEGER,
    reason TEXT NOT NULL, at_ms INTEGER NOT NULL, heard INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (tenant, run)
) STRICT, WITHOUT ROWID;
CREATE INDEX cancel_unheard ON cancel (tenant, run) WHERE heard = 0;
CREATE TABLE seal (
    tenant TEXT NOT NULL, log_index INTEGER NOT NULL, run TEXT NOT NULL, hash BLOB NOT NULL,
    at_ms INTEGER NOT NULL, PRIMARY KEY (tenant, log_index), UNIQUE (tenant, run)
) STRICT, WITHOUT ROWID;
CREATE TABLE blob (
    tenant TEXT NOT NULL, digest BLOB NOT NULL, bytes BLOB NOT NULL, PRIMARY KEY (tenant, digest)
) STRICT;
"""

WORK: Final = """
CREATE TABLE matter (
    tenant TEXT NOT NULL, case_id TEXT NOT NULL, kind TEXT NOT NULL, status TEXT NOT NULL,
    version INTEGER NOT NULL DEFAULT 0, opened_ms INTEGER NOT NULL, closed_ms INTEGER, state BLOB,
    PRIMARY KEY (tenant, case_id)
) STRICT;
CREATE INDEX matter_status ON matter (tenant, status, opened_ms, case_id);
CREATE INDEX matter_opened ON matter (tenant, opened_ms, case_id);
CREATE TABLE matter_key (
    tenant TEXT NOT NULL, case_id TEXT NOT NULL, namespace TEXT NOT NULL, value TEXT NOT NULL,
    open INTEGER NOT NULL, PRIMARY KEY (tenant, case_id, namespace, value)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX matter_key_open ON matter_key (tenant, namespace, value) WHERE open = 1;
CREATE TABLE obligation (
    tenant TEXT NOT NULL, subject TEXT NOT NULL, name TEXT NOT NULL, nth INTEGER NOT NULL, run TEXT NOT NULL,
    state TEXT NOT NULL, due_ms INTEGER NOT NULL, warn_ms INTEGER NOT NULL, next_ms INTEGER, calendar TEXT NOT NULL,
    noted INTEGER NOT NULL DEFAULT 1, ack_by TEXT, ack_basis TEXT, ack_uid INTEGER, ack_note TEXT, ack_ms INTEGER,
    PRIMARY KEY (tenant, subject, name, nth)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX obligation_open ON obligation (tenant, subject, name) WHERE state IN ('pending', 'warned');
CREATE INDEX obligation_next ON obligation (tenant, next_ms, subject, name, nth) WHERE next_ms IS NOT NULL;
CREATE INDEX obligation_owed ON obligation (tenant, subject, name, nth) WHERE noted = 0;
CREATE INDEX obligation_breached ON obligation (tenant, due_ms, subject, name, nth)
    WHERE state = 'breached' AND ack_ms IS NULL;
CREATE TABLE event (
    tenant TEXT NOT NULL, event TEXT NOT NULL, dedup BLOB NOT NULL, source TEXT NOT NULL, producer TEXT NOT NULL,
    producer_id TEXT NOT NULL, kind TEXT NOT NULL, keys TEXT NOT NULL, received_ms INTEGER NOT NULL,
    state TEXT NOT NULL, parked INTEGER NOT NULL DEFAULT 0, run TEXT, key BLOB, ended_ms INTEGER, why TEXT,
    payload BLOB NOT NULL, PRIMARY KEY (tenant, event)
) STRICT;
CREATE UNIQUE INDEX event_dedup ON event (tenant, dedup);
CREATE INDEX event_unclaimed ON event (tenant, received_ms, event) WHERE state = 'buffered' AND parked = 0;
CREATE INDEX event_parked ON event (tenant, event) WHERE state = 'buffered' AND parked = 1;
CREATE INDEX event_claimed ON event (tenant, event) WHERE state = 'claimed';
CREATE INDEX event_dead ON event (tenant, ended_ms, event) WHERE state = 'dead';
CREATE TABLE event_key (
    tenant TEXT NOT NULL, kind TEXT NOT NULL, namespace TEXT NOT NULL, value TEXT NOT NULL,
    received_ms INTEGER NOT NULL, event TEXT NOT NULL, source TEXT NOT NULL,
    PRIMARY KEY (tenant, kind, namespace, value, received_ms, event)
) STRICT, WITHOUT ROWID;
CREATE TABLE subscription (
    tenant TEXT NOT NULL, run TEXT NOT NULL, key BLOB NOT NULL, kind TEXT NOT NULL, namespace TEXT NOT NULL,
    value TEXT NOT NULL, keys TEXT NOT NULL, sender TEXT, armed_ms INTEGER NOT NULL, PRIMARY KEY (tenant, run, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX subscription_key ON subscription (tenant, kind, namespace, value, sender, armed_ms, run, key);
CREATE TABLE task (
    tenant TEXT NOT NULL, task TEXT NOT NULL, run TEXT NOT NULL, key BLOB NOT NULL, case_id TEXT, kind TEXT NOT NULL,
    priority INTEGER NOT NULL, state TEXT NOT NULL, created_ms INTEGER NOT NULL, due_ms INTEGER,
    on_expiry TEXT NOT NULL, escalate_to TEXT NOT NULL, audience TEXT NOT NULL, excluded TEXT NOT NULL,
    least_basis TEXT NOT NULL, four_eyes INTEGER NOT NULL, assignee TEXT, assignee_basis TEXT, assignee_uid INTEGER,
    claimed_ms INTEGER, digest TEXT, approved INTEGER, decided_by TEXT, decided_basis TEXT, decided_uid INTEGER,
    decided_ms INTEGER, delivered INTEGER NOT NULL DEFAULT 0, used_step INTEGER, used_phase INTEGER,
    used_ordinal INTEGER, decision BLOB, proposal BLOB NOT NULL, PRIMARY KEY (tenant, task)
) STRICT;
CREATE UNIQUE INDEX task_wait ON task (tenant, run, key);
CREATE INDEX task_case ON task (tenant, case_id, created_ms, task) WHERE case_id IS NOT NULL;
CREATE INDEX task_queue ON task (tenant, priority, created_ms, task, state)
    WHERE state IN ('open', 'claimed', 'escalated');
CREATE INDEX task_due ON task (tenant, due_ms, task) WHERE state IN ('open', 'claimed') AND due_ms IS NOT NULL;
CREATE INDEX task_half ON task (tenant, (created_ms + due_ms) / 2)
    WHERE state IN ('open', 'claimed') AND due_ms IS NOT NULL;
CREATE INDEX task_escalated ON task (tenant, due_ms, task) WHERE state = 'escalated';
CREATE INDEX task_created ON task (tenant, created_ms, task);
CREATE INDEX task_expired ON task (tenant, decided_ms, task) WHERE state = 'expired';
CREATE INDEX task_undelivered ON task (tenant, decided_ms, task) WHERE decided_ms IS NOT NULL AND delivered = 0;
CREATE TABLE task_audience (
    tenant TEXT NOT NULL, task TEXT NOT NULL, role TEXT NOT NULL, priority INTEGER NOT NULL,
    created_ms INTEGER NOT NULL, PRIMARY KEY (tenant, task, role)
) STRICT, WITHOUT ROWID;
CREATE INDEX task_audience_queue ON task_audience (tenant, role, priority, created_ms, task);
CREATE TABLE schedule (
    tenant TEXT NOT NULL, name TEXT NOT NULL, last_ms INTEGER NOT NULL, PRIMARY KEY (tenant, name)
) STRICT, WITHOUT ROWID;
"""
"""What outlives a run."""

KEPT: Final = """
CREATE TRIGGER timer_armed AFTER INSERT ON timer BEGIN
    UPDATE run SET until_ms = NEW.due_ms WHERE tenant = NEW.tenant AND run = NEW.run AND until_ms > NEW.due_ms;
    UPDATE effect SET lacks = lacks - 1
        WHERE tenant = NEW.tenant AND run = NEW.run AND key = NEW.key AND wait IN ('timer.sleep', 'event.await');
END;
CREATE TRIGGER timer_moved AFTER UPDATE OF due_ms ON timer BEGIN
    UPDATE run SET until_ms = ifnull((SELECT min(due_ms) FROM timer WHERE tenant = NEW.tenant AND run = NEW.run),
        281474976710655) WHERE tenant = NEW.tenant AND run = NEW.run;
END;
CREATE TRIGGER timer_gone AFTER DELETE ON timer BEGIN
    UPDATE run SET until_ms = ifnull((SELECT min(due_ms) FROM timer WHERE tenant = OLD.tenant AND run = OLD.run),
        281474976710655) WHERE tenant = OLD.tenant AND run = OLD.run AND until_ms = OLD.due_ms;
    UPDATE effect SET lacks = lacks + 1
        WHERE tenant = OLD.tenant AND run = OLD.run AND key = OLD.key AND wait IN ('timer.sleep', 'event.await')
        AND state = 'announced';
END;
CREATE TRIGGER subscription_armed AFTER INSERT ON subscription BEGIN
    UPDATE effect SET lacks = lacks - 1
        WHERE tenant = NEW.tenant AND run = NEW.run AND key = NEW.key AND wait = 'event.await';
END;
CREATE TRIGGER subscription_gone AFTER DELETE ON subscription BEGIN
    UPDATE effect SET lacks = lacks + 1
        WHERE tenant = OLD.tenant AND run = OLD.run AND key = OLD.key AND wait = 'event.await'
        AND state = 'announced';
END;
CREATE TRIGGER task_opened AFTER INSERT ON task BEGIN
    UPDATE effect SET lacks = lacks - 1
        WHERE tenant = NEW.tenant AND run = NEW.run AND key = NEW.key AND wait = 'task.open';
END;
CREATE TRIGGER task_gone AFTER DELETE ON task BEGIN
    UPDATE effect SET lacks = lacks + 1
        WHERE tenant = OLD.tenant AND run = OLD.run AND key = OLD.key AND wait = 'task.open'
        AND state = 'announced';
END;
"""
"""What the index says of a wait, kept by the file itself: ``run.until_ms`` is the first instant at which a timer of the
run is due (``ids.MAX_MS`` where it has none), and ``effect.lacks`` counts the rows that an open wait should have and
has not, whoever took them away."""


Kind = Literal["expanding", "contracting"]


class Migration(NamedTuple):
    """What raises a store by one level. ``kind``: an expanding one only adds, so that the code of the level below finds
    all that it knew; a contracting one takes away what no code of the level before it reads or writes any more."""

    name: str
    ddl: str
    kind: Kind = "expanding"


PLANTED: Final = "agentplane._planted"
"""Further levels for tests of upgrades: a build has them where a module of this name was put into it, with
``MIGRATIONS``, (name, ddl, kind) each. A released build has none."""


def _planted() -> tuple[Migration, ...]:
    if importlib.util.find_spec(PLANTED) is None:
        return ()
    return tuple(Migration(*one) for one in importlib.import_module(PLANTED).MIGRATIONS)


MIGRATIONS: Final[Sequence[Migration]] = (Migration("the first tables", LEVEL_1 + WORK + KEPT), *_planted())
"""Entry n raises a store from level n to n + 1."""

LEVEL: Final = len(MIGRATIONS)
"""The highest level that this build knows; a new store is made at it."""
FLOOR: Final = 1
"""The lowest: the level of the release before this one, at which a store is used as it is."""


def level_of(connection: apsw.Connection) -> int:
    """The store's level, 0 for an empty file. Raises StoreUnfit for another program's, StoreLevel for one that this
    build does not know."""
    level = int(connection.pragma("user_version"))
    application = int(connection.pragma("application_id"))
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()[0][0]
    if application != APPLICATION_ID and (application or level or tables):
        raise StoreUnfit("The file is an SQLite database of another program; name another store.")
    if level > LEVEL:
        raise StoreLevel(
            f"The store is at level {level}; this build knows levels up to {LEVEL}.", level=level, known=LEVEL
        )
    if 0 < level < FLOOR:
        raise StoreLevel(
            f"The store is at level {level}; this build knows levels from {FLOOR}: raise it with a build between them.",
            level=level, floor=FLOOR,
        )  # fmt: skip
    return level


def migrate(
    connection: apsw.Connection, tenant: str, now_ms: int, build: str, *, steps: Sequence[Migration] = MIGRATIONS
) -> int:
    """Raise the store to the level of ``steps``, each in one transaction with its row; returns how many ran. Raises
    InvariantViolation for an expanding one that takes something away; nothing of it is left."""
    level = int(connection.pragma("user_version"))
    ran = 0
    for number, (name, ddl, kind) in enumerate(steps[level:], start=level + 1):
        connection.execute("BEGIN IMMEDIATE")
        try:
            before = _columns(connection) if kind == "expanding" else frozenset()
            connection.execute(ddl).fetchall()
            gone = before - _columns(connection)
            ensure(not gone, f"INV-14 the expanding migration {name!r} takes nothing away: {sorted(gone)[:1]}")
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


def _columns(connection: apsw.Connection) -> frozenset[tuple[str, str, str]]:
    """Every column of the store's own tables: (table, column, type)."""
    return frozenset(
        (str(table), str(column), str(kind))
        for table, column, kind in connection.execute(
            "SELECT m.name, c.name, c.type FROM sqlite_schema m, pragma_table_info(m.name) c "
            "WHERE m.type = 'table' AND m.name NOT LIKE 'app!_%' ESCAPE '!'"
        )
    )
