"""The members of an atomic unit: statements of an application, in the transaction that records them.

Owns what a member is, how it is checked before anything runs, and how members run. Refuses anything but one INSERT,
UPDATE, DELETE or REPLACE each, over tables named ``app_...``. Invariant: a refusal names the member and the reason and
holds no value of a parameter; after it the unit's own rollback leaves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import apsw

from agentplane.authoring.sql import SqlDescription, check_shape
from agentplane.core import bounds
from agentplane.core.errors import AtomicRefused, InvalidRequest
from agentplane.journal.confine import Clock, Guard, confined
from agentplane.journal.tx import Tx

Statement = SqlDescription
"""One member: its SQL, the values of its parameters in order, and how many rows it must change."""


def check(statement: Statement, tx: Tx | None = None) -> None:
    """Raise InvalidRequest, in one sentence, for what can be no member; with ``tx`` (a read is enough) the statement is
    compiled over the store's own tables as well, and not run."""
    check_shape(statement)
    if tx is None:
        return
    guard = Guard()
    with confined(tx.connection, guard, Clock(bounds.ATOMIC_MS_MAX)):
        why = _compiled(tx.connection, guard, statement)
    if why is not None:
        raise InvalidRequest(f"The statement cannot be a member: {why}.")


def run_members(tx: Tx, statements: Sequence[Statement], limit_ms: int = bounds.ATOMIC_MS_MAX) -> tuple[int, ...]:
    """Run the members in order, all of them within ``limit_ms``; the rows that each changed, which are those it said.

    Raises AtomicRefused naming the member (counted from 0), and SQLite's error where the disk or memory failed. To be
    called in a solo unit: an interrupt and a full disk roll its whole transaction back.
    """
    if len(statements) > bounds.ATOMIC_MEMBERS_MAX:
        raise AtomicRefused(f"An atomic unit has at most {bounds.ATOMIC_MEMBERS_MAX} members, not {len(statements)}.")
    guard, clock = Guard(), Clock(limit_ms)
    with confined(tx.connection, guard, clock):
        for index, statement in enumerate(statements):
            guard.begin()
            try:
                check_shape(statement)
                why = _run(tx.connection, guard, statement)
            except InvalidRequest as error:
                why = error.message.removesuffix(".")
            except apsw.Error as error:
                why = said(error, clock, limit_ms)
                if why is None:
                    raise
            if why is not None:
                raise AtomicRefused(f"Member {index} was refused: {why}.", member=index)
    return tuple(statement.rows for statement in statements)


class _Refused(Exception):
    """Raised out of SQLite's callback before a statement's first step; ``why`` says what is wrong with it."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class _Watch:
    """Looks at a compiled statement before its first step."""

    def __init__(self, guard: Guard, statement: Statement, *, run: bool) -> None:
        self._guard = guard
        self._sql = statement.sql
        self._run = run
        self.compiled = False

    def __call__(self, cursor: apsw.Cursor, sql: str, bindings: object) -> bool:
        if not self._sql.startswith(sql) or self._sql[len(sql) :].strip():
            raise _Refused("it is more than one statement")
        if not self._guard.wrote or cursor.is_readonly or cursor.is_explain:
            raise _Refused("it changes no table of the application's")
        self.compiled = True
        return self._run


def _compiled(connection: apsw.Connection, guard: Guard, statement: Statement) -> str | None:
    """Compile and go no further; why it cannot be a member, or None."""
    return _watched(connection, guard, statement, _Watch(guard, statement, run=False))


def _run(connection: apsw.Connection, guard: Guard, statement: Statement) -> str | None:
    why = _watched(connection, guard, statement, _Watch(guard, statement, run=True))
    if why is not None:
        return why
    changed = connection.changes()
    if changed != statement.rows:
        return f"it changed {changed} rows, where {statement.rows} were expected"
    return None


def _watched(connection: apsw.Connection, guard: Guard, statement: Statement, watch: _Watch) -> str | None:
    cursor = connection.cursor()
    cursor.exec_trace = watch
    try:
        # Never from the cache of statements: what was compiled without the guard is not to be run under it.
        for _ in cursor.execute(statement.sql, statement.params, can_cache=False):
            pass
        return None if watch.compiled else "it is no statement"
    except apsw.ExecTraceAbort:
        return None
    except _Refused as refused:
        return refused.why
    except apsw.BindingsError:
        return f"it does not have {len(statement.params)} parameters"
    except apsw.AuthError:
        return guard.refused or "it is not allowed"
    except apsw.Error as error:
        if guard.refused is not None:
            return guard.refused
        # Before its first step nothing of a value can be in SQLite's words; after it, something may be.
        if not watch.compiled and isinstance(error, apsw.SQLError | apsw.TooBigError):
            return one_line(str(error))
        raise
    finally:
        cursor.close()


def one_line(text: str) -> str:
    return " ".join(text.split())[:200].rstrip(".")


_WORDS: Final[dict[type[apsw.Error], str]] = {
    apsw.MismatchError: "a value has another type than its column",
    apsw.TooBigError: f"a value of it is over {bounds.ATOMIC_VALUE_BYTES_MAX} bytes",
    apsw.SQLError: "an expression of it fails",
    apsw.RangeError: "an expression of it fails",
    apsw.FullError: "the disk is full",
    apsw.LockedError: "a table of it is in use",
    apsw.AuthError: "it is not allowed",
}


def said(error: apsw.Error, clock: Clock, limit_ms: int) -> str | None:
    """What an application's own statement is refused with; None where the error is the store's."""
    if isinstance(error, apsw.InterruptError):
        return f"it runs longer than {limit_ms} ms" if clock.passed else "it was interrupted"
    if isinstance(error, apsw.ConstraintError):
        # A trigger words its own refusal, perhaps out of values.
        by_trigger = getattr(error, "extendedresult", 0) == apsw.SQLITE_CONSTRAINT_TRIGGER
        return "a trigger refuses it" if by_trigger else one_line(str(error))
    return _WORDS.get(type(error))
