"""What SQL of an application may touch, and for how long.

Owns the authorizer, the time bound and the limits that hold around an application's statements, and around nothing
else. Refuses every table that is not named ``app_...``, and whatever acts on more than rows. Invariant: the connection
leaves ``confined`` with the authorizer, limits and handlers that it came with, however it ends.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import apsw

from agentplane.core import bounds

PREFIX: Final = "app_"
STEPS: Final = 1_000
"""Instructions of SQLite's between two looks at the time: some tens of microseconds."""

FUNCTIONS: Final = frozenset({
    "->", "->>", "abs", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "avg", "cast", "ceil",
    "ceiling", "char", "coalesce", "concat", "concat_ws", "cos", "cosh", "count", "cume_dist", "current_date",
    "current_time", "current_timestamp", "date", "datetime", "degrees", "dense_rank", "exp", "first_value",
    "floor", "format", "glob", "group_concat", "hex", "if", "ifnull", "iif", "instr", "json", "json_array",
    "json_array_insert", "json_array_length", "json_error_position", "json_extract", "json_group_array",
    "json_group_object", "json_insert", "json_object", "json_patch", "json_pretty", "json_quote", "json_remove",
    "json_replace", "json_set", "json_type", "json_valid", "jsonb", "jsonb_array", "jsonb_array_insert",
    "jsonb_extract", "jsonb_group_array", "jsonb_group_object", "jsonb_insert", "jsonb_object", "jsonb_patch",
    "jsonb_remove", "jsonb_replace", "jsonb_set", "julianday", "lag", "last_value", "lead", "length", "like",
    "likelihood", "likely", "ln", "log", "log10", "log2", "lower", "ltrim", "max", "min", "mod", "nth_value",
    "ntile", "nullif", "octet_length", "percent_rank", "pi", "pow", "power", "printf", "quote", "radians",
    "random", "randomblob", "rank", "replace", "round", "row_number", "rtrim", "sign", "sin", "sinh", "soundex",
    "sqrt", "strftime", "string_agg", "substr", "substring", "sum", "tan", "tanh", "time", "timediff", "total",
    "trim", "trunc", "typeof", "unhex", "unicode", "unistr", "unixepoch", "unlikely", "upper", "zeroblob",
})  # fmt: skip
"""What computes and nothing else. Any other is refused: what a later SQLite adds is not known to be harmless."""
TABLE_FUNCTIONS: Final = frozenset({"json_each", "json_tree"})
CATALOG: Final = frozenset({"sqlite_master", "sqlite_schema", "sqlite_temp_master", "sqlite_sequence", "sqlite_stat1",
                            "sqlite_stat4"})  # fmt: skip
"""What SQLite itself reads and writes when a schema is changed; it refuses them to anybody's own statement."""
DEFINING: Final = frozenset({"CREATE", "DROP", "ALTER"})
_ROWS: Final = {
    apsw.SQLITE_READ: "reads",
    apsw.SQLITE_INSERT: "changes",
    apsw.SQLITE_UPDATE: "changes",
    apsw.SQLITE_DELETE: "changes",
}
_DEFINES: Final = frozenset({
    apsw.SQLITE_CREATE_TABLE, apsw.SQLITE_CREATE_INDEX, apsw.SQLITE_CREATE_VIEW, apsw.SQLITE_CREATE_TRIGGER,
    apsw.SQLITE_DROP_TABLE, apsw.SQLITE_DROP_INDEX, apsw.SQLITE_DROP_VIEW, apsw.SQLITE_DROP_TRIGGER,
    apsw.SQLITE_REINDEX,
})  # fmt: skip


def ours(name: str | None) -> bool:
    """Whether a table, index, view or trigger of that name is the application's."""
    return name is not None and name.lower().startswith(PREFIX)


class Guard:
    """The authorizer of one statement. ``keyword``: CREATE, DROP or ALTER where the schema may be changed, else None.

    ``refused`` says what was not allowed, in words; ``wrote``, whether the statement itself changes rows.
    """

    def __init__(self, keyword: str | None = None) -> None:
        self.begin(keyword)

    def begin(self, keyword: str | None = None) -> None:
        """Another statement comes."""
        self.keyword = keyword
        self.refused: str | None = None
        self.wrote = False

    def __call__(
        self, action: int, first: str | None, second: str | None, database: str | None, inside: str | None
    ) -> int:
        why = self._why(action, first, second, database, inside)
        if why is None:
            return apsw.SQLITE_OK
        self.refused = self.refused or why
        return apsw.SQLITE_DENY

    def _why(
        self, action: int, first: str | None, second: str | None, database: str | None, inside: str | None
    ) -> str | None:
        """Why it is refused; None where it is allowed. ``inside``: the view or trigger that asks."""
        if action in (apsw.SQLITE_SELECT, apsw.SQLITE_RECURSIVE):
            return None
        if action == apsw.SQLITE_FUNCTION:
            name = (second or "").lower()
            # Those of a rename are SQLite's own: it lets nobody else call them.
            allowed = name in FUNCTIONS or (self.keyword == "ALTER" and name.startswith("sqlite_"))
            return None if allowed else f"it calls the function {name}, which may do more than compute"
        if action in _ROWS:
            if ours(first) and database in (None, "main"):
                self.wrote = self.wrote or (action != apsw.SQLITE_READ and inside is None)
                return None
            if self._by_sqlite(action, (first or "").lower(), second):
                return None
            return f"it {_ROWS[action]} {first}, and only tables named {PREFIX}... are the application's"
        if self.keyword is not None and self._may_define(action, first, second, database):
            return None
        words = str(apsw.mapping_authorizer_function[action]).removeprefix("SQLITE_").replace("_", " ").lower()
        what = second if action == apsw.SQLITE_ALTER_TABLE else first
        place = "" if database in (None, "main") else f"{database}."
        return f"it asks for {words} ({place}{what}), which is not allowed"

    def _by_sqlite(self, action: int, table: str, column: str | None) -> bool:
        """Whether it is one of the rows that SQLite touches by itself for this kind of statement."""
        if action == apsw.SQLITE_READ and table in TABLE_FUNCTIONS:
            return True
        if self.keyword is None:
            return False
        if self.keyword == "ALTER" and table == "pragma_quick_check":
            return True
        if self.keyword == "CREATE" and action == apsw.SQLITE_READ:
            # Anything else is a query that a table is to be made from.
            return table == "sqlite_master" and column == "ROWID"
        return table in CATALOG

    def _may_define(self, action: int, first: str | None, second: str | None, database: str | None) -> bool:
        if action == apsw.SQLITE_ALTER_TABLE:
            return first == "main" and ours(second)
        if action == apsw.SQLITE_PRAGMA:
            return self.keyword == "ALTER" and first == "quick_check" and ours(second)
        if action not in _DEFINES or database != "main":
            return False
        if action == apsw.SQLITE_CREATE_TABLE and first == "sqlite_sequence":
            return True
        if not ours((first or "").removeprefix("sqlite_autoindex_")):
            return False
        return second is None or ours(second)


class Clock:
    """The time that a piece of SQL has; ``passed`` once it was interrupted for it."""

    def __init__(self, limit_ms: int) -> None:
        self._until = time.monotonic() + limit_ms / 1000
        self.passed = False

    def __call__(self) -> bool:
        self.passed = self.passed or time.monotonic() > self._until
        return self.passed


@contextmanager
def confined(connection: apsw.Connection, guard: Guard, clock: Clock) -> Iterator[None]:
    """Within it, ``connection`` compiles only what ``guard`` allows, runs until ``clock``, makes no large values, and
    takes a name in double quotes for a name. Every statement compiled before is compiled anew when it is next used."""
    with ExitStack() as back:
        back.callback(setattr, connection, "authorizer", connection.authorizer)
        back.callback(connection.limit, apsw.SQLITE_LIMIT_LENGTH, connection.limit(apsw.SQLITE_LIMIT_LENGTH))
        pattern = connection.limit(apsw.SQLITE_LIMIT_LIKE_PATTERN_LENGTH)
        back.callback(connection.limit, apsw.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, pattern)
        quoted = (
            connection.config(apsw.SQLITE_DBCONFIG_DQS_DML, -1),
            connection.config(apsw.SQLITE_DBCONFIG_DQS_DDL, -1),
        )
        back.callback(connection.config, apsw.SQLITE_DBCONFIG_DQS_DML, quoted[0])
        back.callback(connection.config, apsw.SQLITE_DBCONFIG_DQS_DDL, quoted[1])
        back.callback(connection.set_progress_handler, None, id=PREFIX)
        connection.set_progress_handler(clock, STEPS, id=PREFIX)
        connection.limit(apsw.SQLITE_LIMIT_LENGTH, bounds.ATOMIC_VALUE_BYTES_MAX)
        connection.limit(apsw.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 256)
        connection.config(apsw.SQLITE_DBCONFIG_DQS_DML, 0)
        connection.config(apsw.SQLITE_DBCONFIG_DQS_DDL, 0)
        connection.authorizer = guard
        yield
