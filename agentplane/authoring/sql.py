"""Statements over the application's own tables, as data: what an effect group's ``atomic`` takes.

Owns what one may look like before any database is asked. Refuses values that a record cannot hold as they are.
Invariant: a description is frozen, and making one performs nothing.
"""

from __future__ import annotations

import msgspec

from agentplane.core import bounds
from agentplane.core.errors import InvalidRequest

Param = None | int | float | str


class SqlDescription(msgspec.Struct, frozen=True):
    """One INSERT, UPDATE, DELETE or REPLACE over tables named ``app_...``: its SQL, the values of its parameters in
    order, and how many rows it must change."""

    sql: str
    params: tuple[Param, ...]
    rows: int


def sql(text: str, *params: Param, rows: int) -> SqlDescription:
    """Describe a statement whose ``?`` stand for ``params`` in order, and which must change exactly ``rows`` rows
    (those that a trigger changes are not counted). Raises InvalidRequest, in one sentence, for what cannot be one.

    Nothing is written here: ``group.atomic`` runs it in the transaction that records it.
    """
    described = SqlDescription(text, tuple(int(one) if isinstance(one, bool) else one for one in params), rows)
    check_shape(described)
    return described


def check_shape(statement: SqlDescription) -> None:
    """Raises InvalidRequest for text, parameters or a count that no statement may have."""
    if not isinstance(statement.sql, str):
        raise InvalidRequest(f"A statement is SQL text, not {type(statement.sql).__name__}.")
    try:
        size = len(statement.sql.encode())
        for value in statement.params:
            _check_param(value)
    except UnicodeEncodeError:
        raise InvalidRequest("A statement's text has no lone surrogates.") from None
    if not 0 < size <= bounds.ATOMIC_SQL_BYTES_MAX or "\0" in statement.sql:
        raise InvalidRequest(f"A statement's SQL has 1 to {bounds.ATOMIC_SQL_BYTES_MAX} bytes, and no NUL.")
    if len(statement.params) > bounds.ATOMIC_PARAMS_MAX:
        raise InvalidRequest(f"A statement has at most {bounds.ATOMIC_PARAMS_MAX} parameters.")
    if type(statement.rows) is not int or not 0 <= statement.rows <= bounds.ATOMIC_ROWS_MAX:
        raise InvalidRequest(f"A statement says how many rows it changes, 0 to {bounds.ATOMIC_ROWS_MAX}.")


def _check_param(value: object) -> None:
    if value is None:
        return
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise InvalidRequest("A parameter that is an integer has 64 bits.")
    elif isinstance(value, float):
        # SQLite keeps a NaN as NULL, and no record holds an infinity.
        if value != value or value in (float("inf"), float("-inf")):
            raise InvalidRequest("A parameter that is a number is finite.")
    elif isinstance(value, str):
        if (size := len(value.encode())) > bounds.ATOMIC_VALUE_BYTES_MAX:
            raise InvalidRequest(f"A parameter has at most {bounds.ATOMIC_VALUE_BYTES_MAX} bytes, not {size}.")
    else:
        hint = "; send bytes as hexadecimal text to unhex(?)" if isinstance(value, bytes | bytearray) else ""
        raise InvalidRequest(f"A parameter is None, a number or text, not {type(value).__name__}{hint}.")
