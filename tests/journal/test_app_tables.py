"""An application's own tables in the journal's file: what their SQL may do, and what it may never touch."""

from __future__ import annotations

from typing import Any

import apsw
import pytest

from agentplane.authoring.sql import SqlDescription, sql
from agentplane.core import bounds
from agentplane.core.errors import AtomicRefused, InvalidRequest, StoreFailed
from agentplane.journal import schema
from agentplane.journal.application import Migrated, migrate_app
from agentplane.journal.atomic import check, run_members
from agentplane.journal.confine import Guard, ours
from agentplane.journal.tx import Tx
from agentplane.journal.units import Unit, run_alone
from journal.stores import PlainStore, one_sentence

LEDGER = """
-- An account and its moves.
CREATE TABLE app_account (name TEXT PRIMARY KEY, cents INTEGER NOT NULL CHECK (cents >= 0)) STRICT;
CREATE TABLE app_move (
    id INTEGER PRIMARY KEY AUTOINCREMENT, account TEXT NOT NULL REFERENCES app_account (name) DEFERRABLE INITIALLY
    DEFERRED, cents INTEGER NOT NULL
) STRICT;
CREATE INDEX app_move_account ON app_move (account);
CREATE VIEW app_total AS SELECT account, sum(cents) AS cents FROM app_move GROUP BY account;
CREATE TRIGGER app_moved AFTER INSERT ON app_move BEGIN
    UPDATE app_account SET cents = cents + new.cents WHERE name = new.account; -- not the end;
    SELECT CASE WHEN new.cents = 13 THEN RAISE(ABORT, 'thirteen') END;
END;
INSERT INTO app_account VALUES ('till; END;', 100), ('safe', 0);
"""


class Alone:
    """Units in a transaction of their own, on a store that has the ledger; what stands is read by another
    connection."""

    def __init__(self, plain: PlainStore) -> None:
        self.plain = plain
        self.connection = plain.store.writer_connection()
        self.failed: StoreFailed | None = None

    def unit(self, body: Any) -> Any:
        unit: Unit[Any] = Unit(body, lambda value, error: None, solo=True)
        self.connection.execute("BEGIN IMMEDIATE")
        self.failed = run_alone(unit, Tx(self.connection, "default", 5), lambda: None)
        assert not self.connection.in_transaction
        if unit.error is not None:
            raise unit.error
        return unit.value

    def members(self, *statements: SqlDescription, limit_ms: int = bounds.ATOMIC_MS_MAX) -> Any:
        return self.unit(lambda tx: run_members(tx, statements, limit_ms))

    def script(self, text: str, limit_ms: int = bounds.APP_SQL_MS_MAX) -> Migrated:
        done = self.unit(lambda tx: migrate_app(tx, text, limit_ms))
        assert isinstance(done, Migrated)
        return done

    def rows(self, query: str) -> list[Any]:
        return self.plain.store.readers.read(lambda tx: tx.all(query))

    def names(self) -> list[str]:
        return [str(row[0]) for row in self.rows("SELECT name FROM sqlite_schema WHERE name LIKE 'app%' ORDER BY name")]

    def everything(self) -> list[Any]:
        """All that stands, of schema and of rows."""
        tables = [str(row[0]) for row in self.rows("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")]
        return [self.rows("SELECT * FROM sqlite_schema"), *(self.rows(f'SELECT * FROM "{one}"') for one in tables)]


@pytest.fixture
def ledger(plain: PlainStore) -> Alone:
    """A store with the ledger's tables."""
    alone = Alone(plain)
    alone.script(LEDGER)
    return alone


def refused(act: Any, *args: Any, **members: Any) -> AtomicRefused:
    with pytest.raises(AtomicRefused) as told:
        act(*args, **members)
    one_sentence(told.value)
    return told.value


def test_a_script_makes_tables_and_says_how_many_statements_ran(ledger: Alone) -> None:
    """Tables, index, view, trigger and rows of one script stand; text in quotes and triggers ends no statement."""
    assert ledger.names() == ["app_account", "app_move", "app_move_account", "app_moved", "app_total"]
    done = ledger.script("ALTER TABLE app_account ADD COLUMN note TEXT; ;; -- done\n")
    assert done.statements == 1 and len(done.digest) == 64
    assert ledger.rows("SELECT name, note FROM app_account ORDER BY name") == [("safe", None), ("till; END;", None)]
    for text, count in {
        "ALTER TABLE app_account RENAME COLUMN note TO said; ALTER TABLE app_account DROP COLUMN said": 2,
        "ALTER TABLE app_account ADD COLUMN n INTEGER NOT NULL DEFAULT 1 CHECK (n > 0);": 1,
        "ALTER TABLE app_move RENAME TO app_step; DROP TRIGGER app_moved": 2,
        "DROP VIEW app_total; DROP TABLE app_step; /* and */ DROP TABLE IF EXISTS app_account": 3,
        "CREATE TABLE app_b AS SELECT 1 AS one; WITH n(x) AS (VALUES (2)) INSERT INTO app_b SELECT x FROM n": 2,
    }.items():
        assert ledger.script(text).statements == count
    assert ledger.names() == ["app_b"] and ledger.rows("SELECT one FROM app_b") == [(1,), (2,)]


def test_members_change_rows_and_are_counted(ledger: Alone) -> None:
    """Each member runs with its values in order, and what it changed is what it said; triggers are not counted."""
    done = ledger.members(
        sql("INSERT INTO app_move (account, cents) VALUES (?, ?)", "safe", 30, rows=1),
        sql("UPDATE app_account SET cents = cents - ?2 WHERE name = ?1", "till; END;", 30, rows=1),
        sql("DELETE FROM app_move WHERE cents = ?", 7.5, rows=0),
        sql("REPLACE INTO app_account VALUES (:name, :cents) RETURNING cents", "box", True, rows=1),
        sql("INSERT INTO app_account SELECT value, 0 FROM json_each(?)", '["a", "b"]', rows=2),
    )
    assert done == (1, 1, 0, 1, 2)
    assert ledger.rows("SELECT name, cents FROM app_account ORDER BY name") == [
        ("a", 0), ("b", 0), ("box", 1), ("safe", 30), ("till; END;", 70),
    ]  # fmt: skip
    assert ledger.rows("SELECT cents FROM app_total") == [(30,)]


NASTY = {
    "INSERT INTO record (tenant) VALUES (1)": "record",
    "UPDATE run SET landed = 0": "run",
    "DELETE FROM effect": "effect",
    "REPLACE INTO seal VALUES (1, 2, 3, 4, 5)": "seal",
    "INSERT INTO app_account SELECT run, 0 FROM run": "run",
    "INSERT INTO app_account SELECT 'n', count(*) FROM record": "record",
    "INSERT INTO app_account VALUES ((SELECT hex(body) FROM record LIMIT 1), 0)": "record",
    "UPDATE app_account SET cents = 1 FROM lease": "lease",
    "UPDATE app_account SET cents = (SELECT max(seq) FROM main.record)": "record",
    "DELETE FROM app_account WHERE EXISTS (SELECT 1 FROM cancel)": "cancel",
    "WITH x AS (SELECT value FROM plane_state) DELETE FROM app_account WHERE name IN x": "plane_state",
    "INSERT INTO app_account VALUES ('x', 0) ON CONFLICT DO UPDATE SET cents = (SELECT 1 FROM blob)": "blob",
    "INSERT INTO app_account VALUES ('x', 0) RETURNING (SELECT value FROM plane_state)": "plane_state",
    "INSERT INTO app_account SELECT sql, 0 FROM sqlite_schema": "sqlite_master",
    "INSERT INTO app_account SELECT sql, 0 FROM main.sqlite_master": "sqlite_master",
    "INSERT INTO app_account SELECT name, 0 FROM temp.sqlite_temp_master": "sqlite_temp_master",
    "UPDATE sqlite_schema SET sql = ''": "sqlite_master",
    "UPDATE sqlite_sequence SET seq = 0": "sqlite_sequence",
    "DELETE FROM sqlite_sequence": "sqlite_sequence",
    "INSERT INTO app_account SELECT name, 0 FROM pragma_table_info('record')": "pragma_table_info",
    "INSERT INTO app_account SELECT 'n', pageno FROM dbstat": "dbstat",
    "INSERT INTO app_account SELECT load_extension('x'), 0": "load_extension",
    "INSERT INTO app_account SELECT fts3_tokenizer('simple'), 0": "fts3_tokenizer",
    "INSERT INTO app_account VALUES (sqlite_compileoption_get(1), 0)": "sqlite_compileoption_get",
    "INSERT INTO app_account VALUES ('x', last_insert_rowid())": "last_insert_rowid",
    "PRAGMA foreign_keys = OFF": "pragma",
    "PRAGMA writable_schema = ON": "pragma",
    "ATTACH 'other.db' AS other": "attach",
    "DETACH main": "detach",
    "BEGIN": "transaction",
    "COMMIT": "transaction",
    "ROLLBACK": "transaction",
    "SAVEPOINT unit": "savepoint",
    "RELEASE unit": "savepoint",
    "VACUUM": "changes no table",
    "VACUUM INTO 'x.db'": "changes no table",
    "ANALYZE": "sqlite_master",
    "REINDEX app_move": "reindex",
    "CREATE TABLE app_x (a)": "sqlite_master",
    "CREATE TEMP TABLE app_x (a)": "sqlite_temp_master",
    "CREATE TEMP TRIGGER app_x AFTER INSERT ON record BEGIN SELECT 1; END": "create temp trigger",
    "CREATE VIRTUAL TABLE app_x USING fts5(a)": "sqlite_master",
    "DROP TABLE app_account": "sqlite_master",
    "ALTER TABLE app_account RENAME TO record2": "alter table",
    "SELECT * FROM app_account": "changes no table",
    "SELECT body FROM record": "record",
    "EXPLAIN DELETE FROM app_account": "changes no table",
    "DELETE FROM app_account; DELETE FROM record": "more than one",
    "DELETE FROM app_account; DELETE FROM app_move": "more than one",
    "-- nothing": "changes no table",
    "DELETE FROM application": "no such table",
    "DELETE FROM app_account WHERE name = \"safe\"": "no such column",
    "DELETE FROM app_account WHERE": "incomplete",
    "INSERT INTO app_account VALUES (?, 0)": "parameters",
}  # fmt: skip


@pytest.mark.parametrize("text", NASTY)
def test_a_member_is_one_change_of_the_applications_tables(ledger: Alone, text: str) -> None:
    """S80: No table of the journal, by whatever way it is reached, and nothing that acts on more than rows: it is told
    before anything runs, and again where it would run, and nothing stands."""
    before = ledger.everything()
    statement = SqlDescription(text, (), 1)
    with pytest.raises(InvalidRequest) as told:
        ledger.plain.store.readers.read(lambda tx: check(statement, tx))
    assert NASTY[text] in one_sentence(told.value)
    first = sql("UPDATE app_account SET cents = 1", rows=2)
    error = refused(ledger.members, first, statement)
    assert error.details["member"] == 1 and NASTY[text] in str(error)
    assert ledger.everything() == before and ledger.failed is None


def test_what_is_checked_is_not_run(ledger: Alone) -> None:
    """A member that may run is compiled over the store by a reader, which writes nothing."""
    before = ledger.everything()
    good = sql("DELETE FROM app_account -- all of it\n", rows=2)
    ledger.plain.store.readers.read(lambda tx: check(good, tx))
    assert ledger.everything() == before
    assert ledger.members(good) == (2,)


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        (sql("DELETE FROM app_account", rows=1), "changed 2 rows, where 1"),
        (sql("INSERT OR IGNORE INTO app_account VALUES ('safe', 1)", rows=1), "changed 0 rows, where 1"),
        (sql("INSERT INTO app_account VALUES (?, 1)", "safe", rows=1), "UNIQUE constraint failed: app_account.name"),
        (sql("UPDATE app_account SET cents = -?", 77123, rows=2), "CHECK constraint failed"),
        (sql("UPDATE app_account SET cents = ?", "secret-77123", rows=2), "cannot store TEXT"),
        (sql("INSERT INTO app_move (account, cents) VALUES ('safe', 13)", rows=1), "a trigger refuses it"),
        (sql("INSERT OR ROLLBACK INTO app_account VALUES (?, 1)", "safe", rows=1), "UNIQUE"),
        (sql("DELETE FROM app_account WHERE json_extract('{}', ?) = 1", "secret-77123", rows=0), "expression"),
        (sql("DELETE FROM app_account WHERE length(zeroblob(?)) > 1", 2**21, rows=0), "bytes"),
        (sql("DELETE FROM app_account WHERE name LIKE ?", "%a" * 200, rows=0), "expression"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_member_and_none_of_its_values(ledger: Alone, statement: SqlDescription, why: str) -> None:
    """A count that is not the one said, a constraint, a trigger, a wrong type: one sentence that holds no parameter,
    and nothing stands of the members before it either."""
    before = ledger.everything()
    first = sql("INSERT INTO app_account VALUES (?, 5)", "first", rows=1)
    second = sql("DELETE FROM app_account WHERE name = 'first'", rows=1)
    error = refused(ledger.members, first, second, statement)
    assert error.details["member"] == 2 and why in str(error)
    assert "77123" not in str(error) and "%a" not in str(error)
    assert ledger.everything() == before and ledger.failed is None


def test_a_deferred_constraint_is_the_units_own_refusal_at_its_commit(ledger: Alone) -> None:
    """A foreign key that is checked at COMMIT refuses the unit and nothing else; the next unit commits."""
    before = ledger.everything()
    orphan = sql("INSERT INTO app_move (account, cents) VALUES ('nobody', 1)", rows=1)
    error = refused(ledger.members, orphan)
    assert "constraint" in str(error) and "member" not in error.details
    assert ledger.everything() == before and ledger.failed is None
    settled = sql("INSERT INTO app_account VALUES ('nobody', 1)", rows=1)
    assert ledger.members(orphan, settled) == (1, 1)


ENDLESS = (
    "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) INSERT INTO app_account SELECT x || '', 0 FROM n"
)


def test_a_member_that_runs_too_long_is_interrupted_and_refused(ledger: Alone) -> None:
    """S80: The time is the unit's: an endless member ends in a refusal, and the connection goes on."""
    before = ledger.everything()
    error = refused(ledger.members, sql(ENDLESS, rows=1), limit_ms=20)
    assert "longer than 20 ms" in str(error) and error.details["member"] == 0
    assert ledger.everything() == before and ledger.failed is None
    assert "Statement 1 (line 1)" in str(refused(ledger.script, ENDLESS, limit_ms=20))
    assert ledger.members(sql("UPDATE app_account SET cents = 1", rows=2)) == (2,)


@pytest.mark.parametrize("end", ["done", "refused", "interrupted"])
def test_the_guard_holds_around_the_members_and_nothing_else(ledger: Alone, end: str) -> None:
    """Before and behind the members the same unit writes the journal's tables, however they ended; limits, authorizer
    and clock of the connection are what they were."""
    connection = ledger.connection
    kinds = apsw.SQLITE_LIMIT_LENGTH, apsw.SQLITE_LIMIT_LIKE_PATTERN_LENGTH
    quoting = apsw.SQLITE_DBCONFIG_DQS_DML, apsw.SQLITE_DBCONFIG_DQS_DDL

    def state() -> Any:
        limits = [connection.limit(kind) for kind in kinds]
        return connection.authorizer, limits, [connection.config(kind, -1) for kind in quoting]

    kept = state()
    put = "INSERT OR REPLACE INTO plane_state VALUES ('default', 'x', ?, 1)"
    statement = {
        "done": sql("UPDATE app_account SET cents = 1", rows=2),
        "refused": sql("UPDATE app_account SET cents = 1", rows=3),
        "interrupted": sql(ENDLESS, rows=1),
    }[end]

    def body(tx: Tx) -> None:
        tx.run(put, "before")
        try:
            run_members(tx, [statement], 20)
        finally:
            if connection.in_transaction:
                tx.run(put, "behind")

    try:
        ledger.unit(body)
    except AtomicRefused:
        assert end != "done"
    assert state() == kept
    assert ledger.rows("SELECT value FROM plane_state WHERE name = 'x'") == ([("behind",)] if end == "done" else [])
    slow = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 400000) SELECT count(*) FROM n"
    assert connection.execute(slow).fetchall() == [(400000,)]


def test_a_statement_compiled_before_is_not_run_under_the_guard(ledger: Alone) -> None:
    """The journal's own statement, in the connection's cache and permitted when it was compiled, is refused as a
    member."""
    text = "DELETE FROM plane_state"
    ledger.unit(lambda tx: tx.run(text))
    assert "plane_state" in str(refused(ledger.members, SqlDescription(text, (), 0)))
    ledger.unit(lambda tx: tx.run(text))


NASTY_SCRIPTS = {
    "CREATE TABLE other (a)": "asks for create table (other)",
    "CREATE TABLE app_x (a); DROP TABLE record": "asks for drop table (record)",
    "ALTER TABLE record ADD COLUMN a": "alter table (record)",
    "ALTER TABLE app_account RENAME TO record2": "does not begin with app_",
    "CREATE INDEX app_i ON record (run)": "create index",
    "CREATE INDEX other ON app_account (cents)": "create index",
    "CREATE TRIGGER app_x AFTER INSERT ON record BEGIN SELECT 1; END": "create trigger",
    "CREATE TRIGGER other AFTER INSERT ON app_account BEGIN SELECT 1; END": "create trigger",
    "CREATE TRIGGER app_x AFTER INSERT ON app_account BEGIN DELETE FROM record; END": "changes record",
    "CREATE TRIGGER app_x AFTER UPDATE OF cents ON app_account BEGIN UPDATE run SET landed = 0; END": "changes run",
    "CREATE TRIGGER app_x BEFORE DELETE ON app_account WHEN EXISTS (SELECT 1 FROM lease) BEGIN SELECT 1; END": "lease",
    "CREATE TRIGGER app_x INSTEAD OF INSERT ON app_total BEGIN DELETE FROM seal; END": "changes seal",
    "CREATE TRIGGER app_x AFTER INSERT ON app_account BEGIN DELETE FROM app_gone; END": "no such table",
    "CREATE VIEW app_x AS SELECT * FROM record": "reads record",
    "CREATE VIEW app_x AS SELECT sql FROM sqlite_schema": "sqlite_master",
    "CREATE VIEW app_x AS SELECT load_extension('x')": "load_extension",
    "CREATE TEMP VIEW app_x AS SELECT 1": "temp",
    "CREATE TEMP TABLE app_x (a)": "temp",
    "CREATE TABLE temp.app_x (a)": "temp",
    "CREATE VIRTUAL TABLE app_x USING fts5(a)": "vtable",
    "CREATE TABLE app_x AS SELECT * FROM record": "reads record",
    "CREATE TABLE app_x AS SELECT sql FROM sqlite_schema": "sqlite_master",
    "CREATE TABLE app_x (run REFERENCES run (run))": "refers to run",
    "CREATE TABLE app_x (a DEFAULT (load_extension('x')))": "load_extension",
    "CREATE TABLE app_x (a CHECK (a <> \"x\"))": "no such column",
    "INSERT INTO record (tenant) VALUES (1)": "changes record",
    "INSERT INTO app_account SELECT run, 0 FROM run": "reads run",
    "UPDATE sqlite_schema SET sql = ''": "sqlite_master",
    "INSERT INTO app_account VALUES (?, 1)": "parameters",
    "DROP VIEW app_total; DROP TABLE app_account; COMMIT": "begins with COMMIT",
    "PRAGMA writable_schema = ON": "begins with PRAGMA",
    "ATTACH 'x' AS y": "begins with ATTACH",
    "BEGIN; DROP TABLE app_move": "begins with BEGIN",
    "SELECT 1": "begins with SELECT",
    "EXPLAIN DROP TABLE app_move": "begins with EXPLAIN",
    "VACUUM": "begins with VACUUM",
    "ANALYZE": "begins with ANALYZE",
    "REINDEX": "begins with REINDEX",
    "END": "begins with END",
    "17": "begins with 17",
    "CREATE TABLE app_x (a": "syntax error",
    "CREATE TABLE app_x (a) STRICT": "datatype",
    "INSERT INTO app_account VALUES ('safe', 1)": "UNIQUE",
    "INSERT OR ROLLBACK INTO app_account VALUES ('safe', 1)": "UNIQUE",
}  # fmt: skip


@pytest.mark.parametrize("text", NASTY_SCRIPTS)
def test_a_script_touches_the_applications_objects_and_nothing_else(ledger: Alone, text: str) -> None:
    """S85: The journal's tables, SQLite's own and what would reach them later: the sentence says which statement, and
    nothing of the script stands."""
    before = ledger.everything()
    script = f"CREATE TABLE app_first (a);\n\n-- then\n{text};\n"
    error = refused(ledger.script, script)
    assert NASTY_SCRIPTS[text] in str(error)
    if "RENAME" not in text:
        assert error.details["line"] == 4 and f"Statement {error.details['statement']} (line 4)" in str(error)
    assert ledger.everything() == before and ledger.failed is None


def test_a_drop_that_leaves_something_broken_is_refused(ledger: Alone) -> None:
    """What refers to a table that is gone cannot be looked into, so it may not stay."""
    assert "cannot be used" in str(refused(ledger.script, "DROP TABLE app_move;"))


@pytest.mark.parametrize(
    "text", ["", "  \n ", ";;", "-- nothing", "x" * (bounds.APP_SQL_BYTES_MAX + 1), "a\0b", "\ud800"]
)
def test_text_that_is_no_script_is_one_sentence(ledger: Alone, text: str) -> None:
    """Empty, over the bound, or not text."""
    with pytest.raises(InvalidRequest) as told:
        ledger.script(text)
    one_sentence(told.value)


def test_a_script_has_a_bounded_number_of_statements(ledger: Alone) -> None:
    """One more than the bound is refused, naming it."""
    many = "UPDATE app_account SET cents = 1;" * (bounds.APP_SQL_STATEMENTS_MAX + 1)
    error = refused(ledger.script, many)
    assert error.details["statement"] == bounds.APP_SQL_STATEMENTS_MAX + 1


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ((1, 1.5, b"x"), "unhex"),
        ((2**63,), "64 bits"),
        ((float("nan"),), "finite"),
        ((float("inf"),), "finite"),
        ((object(),), "object"),
        (("x" * (bounds.ATOMIC_VALUE_BYTES_MAX + 1),), "bytes"),
        (("\ud800",), "surrogates"),
        ((1,) * (bounds.ATOMIC_PARAMS_MAX + 1), "parameters"),
    ],
)
def test_a_value_that_no_record_holds_is_refused_at_once(members: tuple[Any, ...], why: str) -> None:
    """Bytes, a number without a value, text over the bound: told where the statement is described."""
    with pytest.raises(InvalidRequest) as told:
        sql("DELETE FROM app_x", *members, rows=1)
    assert why in one_sentence(told.value)


@pytest.mark.parametrize(
    ("text", "rows"), [("", 1), ("x" * 20_000, 1), ("a\0", 1), (7, 1), ("x", -1), ("x", True), ("x", 10**7), ("x", "1")]
)
def test_a_statement_of_another_shape_is_refused_at_once(text: Any, rows: Any) -> None:
    """Its text, and how many rows it changes."""
    with pytest.raises(InvalidRequest) as told:
        sql(text, rows=rows)
    one_sentence(told.value)


def test_no_table_of_the_journal_is_taken_for_the_applications(plain: PlainStore) -> None:
    """The prefix divides them, whatever the case of its letters; the guard allows the one side alone."""
    rows = plain.store.readers.read(lambda tx: tx.all("SELECT name FROM sqlite_schema"))
    assert len(rows) > 15 and not [row[0] for row in rows if ours(str(row[0]))]
    assert "app_" not in schema.LEVEL_1 and ours("App_x") and not ours("apps") and not ours(None)
    guard = Guard()
    assert guard(apsw.SQLITE_READ, "record", "body", "main", "app_v") == apsw.SQLITE_DENY and guard.refused
