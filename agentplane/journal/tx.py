"""What a unit may touch: one open transaction, its clock and its tenant.

Owns the small surface that the SQL of units is written over, and the differences between SQL dialects.
Refuses to begin, commit or roll back: the writer does. Invariant: every statement is parameterised, and
``now_ms`` is the store's clock, one value a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import apsw

Value = None | int | float | str | bytes
Row = tuple[Value, ...]


class Dialect:
    """What differs between engines: SQLite's way."""

    name: Final = "sqlite"
    unique_violation: Final = apsw.ConstraintError


class Tx:
    """One transaction as a unit sees it."""

    __slots__ = ("_execute", "connection", "dialect", "now_ms", "tenant")

    def __init__(self, connection: apsw.Connection, tenant: str, now_ms: int) -> None:
        self.connection = connection
        self.tenant = tenant
        self.now_ms = now_ms
        self.dialect = Dialect
        # One cursor for all of it: making one costs as much as a small statement.
        self._execute: Callable[..., apsw.Cursor] = connection.cursor().execute

    def all(self, sql: str, *params: Value) -> list[Row]:
        """Every row, fetched before anything else is done."""
        return self._execute(sql, params).fetchall()

    def one(self, sql: str, *params: Value) -> Row | None:
        """The first row, or None."""
        # Not over the shared cursor: a statement that is not read to its end holds its snapshot for as long as anything
        # (an exception's frames) knows its cursor, and the next reader of the connection would be shown an old state.
        cursor = self.connection.execute(sql, params)
        try:
            return cursor.fetchone()
        finally:
            cursor.close()

    def run(self, sql: str, *params: Value) -> int:
        """Perform a statement; the number of rows it changed."""
        self._execute(sql, params)
        return self.connection.changes()


def text(value: Value) -> str:
    """A column that the schema declares TEXT NOT NULL."""
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {type(value).__name__}")
    return value


def number(value: Value) -> int:
    """A column that the schema declares INTEGER NOT NULL."""
    if not isinstance(value, int):
        raise TypeError(f"expected an integer, found {type(value).__name__}")
    return value


def raw(value: Value) -> bytes:
    """A column that the schema declares BLOB NOT NULL."""
    if not isinstance(value, bytes):
        raise TypeError(f"expected bytes, found {type(value).__name__}")
    return value
