"""The tables of an application, in the journal's own file: how they are made and changed.

Owns the migration of what is named ``app_...``. Refuses whatever touches the journal's tables, now or when it is used
later (a view, a trigger, a foreign key). Invariant: after a migration every object of the journal is the one it was,
and everything else compiles under the guard that members run under.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Final

import apsw
import msgspec

from agentplane.core import bounds
from agentplane.core.errors import AtomicRefused, InvalidRequest
from agentplane.journal.atomic import one_line, said
from agentplane.journal.confine import DEFINING, PREFIX, Clock, Guard, confined, ours
from agentplane.journal.tx import Row, Tx, text


class Migrated(msgspec.Struct, frozen=True):
    """How many statements ran, and the SHA-256 of the script's UTF-8 bytes in hexadecimal."""

    statements: int
    digest: str


class _Piece(msgspec.Struct):
    """One statement of a script. ``line`` counts from 1, ``number`` too."""

    sql: str
    keyword: str
    number: int
    line: int


CHANGING: Final = frozenset({"INSERT", "UPDATE", "DELETE", "REPLACE", "WITH"})
_LEAD: Final = re.compile(r"(?:\s+|--[^\n]*|/\*.*?\*/|;)*+", re.DOTALL)
_WORD: Final = re.compile(r"[A-Za-z_]*")


def check_script(script: str) -> None:
    """Raises InvalidRequest for what is no script, whatever the tables are."""
    try:
        size = len(script.encode())
    except UnicodeEncodeError:
        raise InvalidRequest("A script's text has no lone surrogates.") from None
    if not 0 < size <= bounds.APP_SQL_BYTES_MAX or "\0" in script:
        raise InvalidRequest(f"A script has 1 to {bounds.APP_SQL_BYTES_MAX} bytes, and no NUL.")


def migrate_app(tx: Tx, script: str, limit_ms: int = bounds.APP_SQL_MS_MAX) -> Migrated:
    """Run a script that makes, changes or fills tables named ``app_...`` and their indexes, views and triggers.

    Raises InvalidRequest for text that is no script, and AtomicRefused naming the statement's number and line. To be
    called in a solo unit, whose rollback leaves nothing standing of a script that was refused.
    """
    check_script(script)
    connection, guard, clock = tx.connection, Guard(), Clock(limit_ms)
    before, count, by = _journal(tx), 0, dict[str, _Piece]()
    with confined(connection, guard, clock):
        for piece in _pieces(script):
            guard.begin(piece.keyword if piece.keyword in DEFINING else None)
            why = _refusal(connection, guard, clock, limit_ms, piece.sql)
            if why is not None:
                raise _refused(piece, why)
            count = piece.number
            for name in _names(piece.sql):
                by[name] = piece
    if not count:
        raise InvalidRequest("The script has no statement.")
    if _journal(tx) != before:
        raise AtomicRefused(f"The script makes something whose name does not begin with {PREFIX}.")
    _check_sound(tx, clock, by)
    return Migrated(count, hashlib.sha256(script.encode()).hexdigest())


def _refused(piece: _Piece | None, why: str) -> AtomicRefused:
    if piece is None:
        return AtomicRefused(f"The script was refused: {why}.")
    sentence = f"Statement {piece.number} (line {piece.line}) was refused: {why}."
    return AtomicRefused(sentence, statement=piece.number, line=piece.line)


def _pieces(script: str) -> Iterator[_Piece]:
    """The statements of a script. The guard must know what kind of statement comes before SQLite compiles it, so they
    are taken apart here; whoever runs a piece holds that SQLite finds one statement in it."""
    at, number = 0, 0
    while True:
        lead = _LEAD.match(script, at)
        at = at if lead is None else lead.end()
        if at >= len(script) or script.startswith("/*", at):
            return
        number += 1
        line = script.count("\n", 0, at) + 1
        word = _WORD.match(script, at)
        keyword = "" if word is None else word.group().upper()
        piece = _Piece("", keyword, number, line)
        if keyword not in DEFINING | CHANGING:
            what = keyword[:40] or one_line(script[at : at + 20].split("\n")[0])
            raise _refused(piece, f"it begins with {what}; a script has CREATE, DROP, ALTER and changes of rows")
        if number > bounds.APP_SQL_STATEMENTS_MAX:
            raise _refused(piece, f"a script has at most {bounds.APP_SQL_STATEMENTS_MAX} statements")
        end = _end(script, at)
        piece.sql = script[at:end]
        at = end
        yield piece


_TOKEN: Final = re.compile(
    r"'(?:[^']|'')*+'?|\"(?:[^\"]|\"\")*+\"?|`(?:[^`]|``)*+`?|\[[^\]]*+\]?|--[^\n]*+|/\*.*?(?:\*/|\Z)|;|\w++|[^\w\s]|\s++",
    re.DOTALL,
)


def _end(script: str, start: int) -> int:
    """Behind the ``;`` that ends the statement at ``start``: of a trigger, the one behind its END."""
    words: list[str] = []
    trigger = False
    for token in _TOKEN.finditer(script, start):
        found = token.group()
        if found == ";":
            if not trigger or words[-2:] == [";", "END"]:
                return token.end()
            words.append(found)
        elif not found.isspace() and not found.startswith(("--", "/*")):
            words.append(found.upper())
            if len(words) <= 4 and words[0] == "CREATE" and words[-1] == "TRIGGER":
                trigger = True
    return len(script)


def _refusal(connection: apsw.Connection, guard: Guard, clock: Clock, limit_ms: int, sql: str) -> str | None:
    """Run one statement; why it was refused, or None. Raises what only the store is to blame for."""
    compiled, first = False, True

    def watch(cursor: apsw.Cursor, traced: str, bindings: object) -> bool:
        nonlocal compiled, first
        # What the splitting took for one statement is one, or nothing of the rest runs.
        if not first and cursor.has_vdbe:
            return False
        compiled, first = True, False
        return True

    cursor = connection.cursor()
    cursor.exec_trace = watch
    try:
        for _ in cursor.execute(sql, can_cache=False):
            pass
        return None
    except apsw.ExecTraceAbort:
        return "it is more than one statement"
    except apsw.BindingsError:
        return "it has parameters, and a script has no values for them"
    except apsw.Error as error:
        if guard.refused is not None:
            return guard.refused
        if not compiled and isinstance(error, apsw.SQLError | apsw.TooBigError):
            return one_line(str(error))
        why = said(error, clock, limit_ms)
        # A script has no parameters: what SQLite says is about its own text.
        if why is not None and isinstance(error, apsw.SQLError):
            return one_line(str(error))
        if why is None:
            raise
        return why
    finally:
        cursor.close()


_NAME: Final = re.compile(r"\bapp_\w+", re.IGNORECASE)


def _names(sql: str) -> set[str]:
    return {name.lower() for name in _NAME.findall(sql)}


def _journal(tx: Tx) -> list[Row]:
    """Every object that is not the application's: nothing of it may change, and nothing may be added."""
    rows = tx.all("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name")
    return [row for row in rows if not _is_apps(text(row[1]), text(row[2])) and row[1] != "sqlite_sequence"]


def _is_apps(name: str, table: str) -> bool:
    return ours(table) and (ours(name) or name.startswith("sqlite_autoindex_"))


def _check_sound(tx: Tx, clock: Clock, by: dict[str, _Piece]) -> None:
    """Raises AtomicRefused where something of the application's could touch the journal when it is used: each table,
    view, trigger and foreign key is compiled as a member would use it."""
    objects = tx.all("SELECT type, name FROM sqlite_schema WHERE type IN ('table', 'view') ORDER BY name")
    for kind, name in ((text(row[0]), text(row[1])) for row in objects):
        if not ours(name):
            continue
        triggers = [text(row[0]) for row in tx.all(
            "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = ? COLLATE NOCASE", name
        )]  # fmt: skip
        blamed = next((by[one.lower()] for one in (*triggers, name) if one.lower() in by), None)
        parents = [text(row[0]) for row in tx.all('SELECT "table" FROM pragma_foreign_key_list(?)', name)]
        strange = next((one for one in parents if not ours(one)), None)
        if strange is not None:
            raise _refused(blamed, f"{name} refers to {strange}, which is not the application's")
        why = _unusable(tx, clock, f"SELECT * FROM {_quoted(name)}")
        if why is None and (kind == "table" or triggers):
            # Asked for only now: the columns of a view are found out by looking into it.
            columns = [text(row[0]) for row in tx.all("SELECT name FROM pragma_table_xinfo(?) WHERE hidden = 0", name)]
            why = _unusable(tx, clock, *_changes(name, columns))
        if why is not None:
            raise _refused(blamed, f"{name} cannot be used: {why}")


def _changes(name: str, columns: list[str]) -> Iterator[str]:
    quoted = _quoted(name)
    yield f"INSERT INTO {quoted} DEFAULT VALUES"
    yield f"DELETE FROM {quoted}"
    if columns:
        yield f"UPDATE {quoted} SET " + ", ".join(f"{_quoted(one)} = {_quoted(one)}" for one in columns)


def _unusable(tx: Tx, clock: Clock, *uses: str) -> str | None:
    """Why one of these does not compile as a member's would; None where all do."""
    guard = Guard()
    with confined(tx.connection, guard, clock):
        for sql in uses:
            guard.begin()
            why = _does_not_compile(tx.connection, guard, sql)
            if why is not None:
                return why
    return None


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _does_not_compile(connection: apsw.Connection, guard: Guard, sql: str) -> str | None:
    cursor = connection.cursor()
    cursor.exec_trace = lambda cursor, sql, bindings: False
    try:
        cursor.execute(sql, can_cache=False)
    except apsw.ExecTraceAbort:
        return None
    except (apsw.AuthError, apsw.SQLError) as error:
        if guard.refused is None and "because it is a view" in str(error):
            # No trigger answers this kind of change.
            return None
        return guard.refused or one_line(str(error))
    finally:
        cursor.close()
    return None
