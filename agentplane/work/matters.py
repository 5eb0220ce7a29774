"""Cases: the matters that many runs share, known by business keys.

Owns correlation, a case's state by compare-and-set, its status, and what happened to it over all its runs. Refuses keys
that name two open cases, a state over one that moved, closing over an open obligation. Invariant: an open case's keys
are its alone; a closed one's are free, and reopening takes back only those that still are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from agentplane.core import bounds, canonical
from agentplane.core.errors import CaseConflict, InvalidRequest, NotFound, ObligationOpen
from agentplane.core.records import Key
from agentplane.journal import lists, obligations
from agentplane.journal.lists import RunRow, Stored
from agentplane.journal.tx import Row, Tx, Value, number, raw, text

CLOSED: Final = "closed"


class Bound(msgspec.Struct, frozen=True):
    """The case that a run is of: whether the run opened it, and its kind (the capability of the run that opened it)."""

    case: str
    opened: bool
    kind: str


class Matter(msgspec.Struct, frozen=True, kw_only=True):
    """One case. ``state``: plain data, None at first, and in a list; ``version`` counts its writes; ``keys``: those
    that it is known by, or was when it was closed. Times: ms UTC."""

    case: str
    kind: str
    status: str
    state: object
    version: int
    opened_ms: int
    closed_ms: int | None
    keys: tuple[Key, ...]

    @property
    def cursor(self) -> tuple[int, str]:
        return self.opened_ms, self.case


COLUMNS: Final = "case_id, kind, status, version, opened_ms, closed_ms"


def _matter(tx: Tx, row: Row, state: Value = None) -> Matter:
    case, status = text(row[0]), text(row[2])
    return Matter(
        case=case, kind=text(row[1]), status=status, version=number(row[3]), opened_ms=number(row[4]),
        closed_ms=None if row[5] is None else number(row[5]), keys=keys_of(tx, case, held=status != CLOSED),
        state=None if state is None else canonical.decode(raw(state), max_bytes=bounds.CASE_STATE_BYTES_MAX),
    )  # fmt: skip


# --- correlation ------------------------------------------------------------------------------------------------------


def correlate(tx: Tx, keys: Sequence[Key], kind: str, new_id: str) -> Bound:
    """The open case that ``keys`` name; the free ones among them become its own. Where they name none, ``new_id`` is
    opened with all of them. Raises CaseConflict where they name two or more, InvalidRequest where the case would get
    more keys than a case has."""
    wanted = sorted({(key.namespace, key.value) for key in keys})
    held = [(pair, _holder(tx, *pair)) for pair in wanted]
    named = sorted({case for _, case in held if case is not None})
    if len(named) > 1:
        raise CaseConflict(
            f"The keys name {len(named)} open cases ({', '.join(named[:4])}); correlate by keys of one.", cases=named
        )
    if not named:
        tx.run(
            "INSERT INTO matter (tenant, case_id, kind, status, opened_ms) VALUES (?, ?, ?, 'open', ?)",
            tx.tenant, new_id, kind, tx.now_ms,
        )  # fmt: skip
        _take_keys(tx, new_id, wanted)
        return Bound(new_id, True, kind)
    case = named[0]
    free = [pair for pair, holder in held if holder is None]
    if free and len(keys_of(tx, case, held=True)) + len(free) > bounds.CASE_KEYS_MAX:
        raise InvalidRequest(
            f"The case {case} would have more than {bounds.CASE_KEYS_MAX} keys; correlate by those it has."
        )
    _take_keys(tx, case, free)
    row = tx.one("SELECT kind FROM matter WHERE tenant = ? AND case_id = ?", tx.tenant, case)
    return Bound(case, False, "" if row is None else text(row[0]))


def _holder(tx: Tx, namespace: str, value: str) -> str | None:
    row = tx.one(
        "SELECT case_id FROM matter_key WHERE tenant = ? AND namespace = ? AND value = ? AND open = 1",
        tx.tenant, namespace, value,
    )  # fmt: skip
    return None if row is None else text(row[0])


def _take_keys(tx: Tx, case: str, pairs: Sequence[tuple[str, str]]) -> None:
    for namespace, value in pairs:
        tx.run(
            "INSERT INTO matter_key (tenant, case_id, namespace, value, open) VALUES (?, ?, ?, ?, 1) "
            "ON CONFLICT (tenant, case_id, namespace, value) DO UPDATE SET open = 1",
            tx.tenant, case, namespace, value,
        )  # fmt: skip


def keys_of(tx: Tx, case: str, *, held: bool = False) -> tuple[Key, ...]:
    """The keys that the case is or was known by, by (namespace, value); ``held``: that it is known by."""
    rows = tx.all(
        "SELECT namespace, value FROM matter_key WHERE tenant = ? AND case_id = ? AND open >= ? "
        "ORDER BY namespace, value",
        tx.tenant, case, int(held),
    )  # fmt: skip
    return tuple(Key(namespace=text(row[0]), value=text(row[1])) for row in rows)


def by_key(tx: Tx, key: Key) -> str | None:
    """The open case known by ``key``."""
    return _holder(tx, key.namespace, key.value)


# --- state and status -------------------------------------------------------------------------------------------------


def get(tx: Tx, case: str) -> Matter:
    """Raises NotFound."""
    row = tx.one(f"SELECT {COLUMNS}, state FROM matter WHERE tenant = ? AND case_id = ?", tx.tenant, case)
    if row is None:
        raise NotFound(f"There is no case {case}.", case=case)
    return _matter(tx, row, row[6])


def state_of(tx: Tx, case: str) -> tuple[object, int, str]:
    """State, version and status. Raises NotFound."""
    row = get(tx, case)
    return row.state, row.version, row.status


def put_state(tx: Tx, case: str, state: bytes, expected: int) -> bool:
    """Write canonical ``state`` over version ``expected``; False where the case is closed or at another version. Raises
    NotFound."""
    written = tx.run(
        "UPDATE matter SET state = ?, version = version + 1 "
        "WHERE tenant = ? AND case_id = ? AND version = ? AND status <> 'closed'",
        state, tx.tenant, case, expected,
    )  # fmt: skip
    if not written:
        _exists(tx, case)
    return written == 1


def _exists(tx: Tx, case: str) -> None:
    """A write against a missing row is no lost comparison. Raises NotFound."""
    if tx.one("SELECT 1 FROM matter WHERE tenant = ? AND case_id = ?", tx.tenant, case) is None:
        raise NotFound(f"There is no case {case}.", case=case)


def would_set(tx: Tx, case: str, before: str, to: str) -> tuple[Key, ...]:
    """The keys that moving the case from ``before`` to ``to`` leaves behind, held by another open case by now; writes
    nothing. Raises ObligationOpen where it would close over an open obligation, and CaseConflict where a closed one
    would become anything but open."""
    if to == CLOSED and before != CLOSED:
        still = obligations.open_of(tx, case)
        if still:
            raise ObligationOpen(
                f"The case {case} has {still} open obligation{'s' if still > 1 else ''}; meet or waive before closing.",
                case=case,
            )
    if before != CLOSED or to == CLOSED:
        return ()
    if to != "open":
        raise CaseConflict(f"The case {case} is closed; reopen it first.", case=case)
    return tuple(key for key in keys_of(tx, case) if _holder(tx, key.namespace, key.value) not in (None, case))


def set_status(tx: Tx, case: str, before: str, to: str) -> tuple[Key, ...] | None:
    """Move the case from ``before`` to ``to``; the keys that it left behind, or None where it is not at ``before`` any
    more. Closing frees its keys, reopening takes back those that are free. Raises what ``would_set`` does, and
    NotFound."""
    lost = would_set(tx, case, before, to)
    closed_ms: Value = tx.now_ms if to == CLOSED else None
    moved = tx.run(
        "UPDATE matter SET status = ?, closed_ms = CASE WHEN status = 'closed' AND ? = 'closed' THEN closed_ms ELSE ? "
        "END WHERE tenant = ? AND case_id = ? AND status = ?",
        to, to, closed_ms, tx.tenant, case, before,
    )  # fmt: skip
    if not moved:
        _exists(tx, case)
        return None
    if to == CLOSED and before != CLOSED:
        tx.run("UPDATE matter_key SET open = 0 WHERE tenant = ? AND case_id = ?", tx.tenant, case)
    elif before == CLOSED and to != CLOSED:
        for key in keys_of(tx, case):
            if key not in lost:
                tx.run(
                    "UPDATE matter_key SET open = 1 WHERE tenant = ? AND case_id = ? AND namespace = ? AND value = ?",
                    tx.tenant, case, key.namespace, key.value,
                )  # fmt: skip
    return lost


def escalate(tx: Tx, case: str) -> bool:
    """Have a person look at the case; False where one is asked to already, or it is closed."""
    return tx.run(
        "UPDATE matter SET status = 'escalated' WHERE tenant = ? AND case_id = ? "
        "AND status NOT IN ('escalated', 'closed')",
        tx.tenant, case,
    ) == 1  # fmt: skip


# --- lists ------------------------------------------------------------------------------------------------------------


def by_status(
    tx: Tx, status: str | None, limit: int = bounds.LIST_PAGE, after: tuple[int, str] | None = None
) -> list[Matter]:
    """Cases of a status (None: all), newest first by (opened, case), without their states; ``after``: the last one's
    ``cursor``."""
    where = "" if status is None else "AND status = ? "
    rows = tx.all(
        f"SELECT {COLUMNS} FROM matter WHERE tenant = ? {where}AND (opened_ms, case_id) < (?, ?) "
        "ORDER BY opened_ms DESC, case_id DESC LIMIT ?",
        tx.tenant, *(() if status is None else (status,)), *(after or (2**62, "")), lists.page_limit(limit),
    )  # fmt: skip
    return [_matter(tx, row) for row in rows]


def census(tx: Tx) -> dict[str, int]:
    """How many cases there are of each status that any has."""
    rows = tx.all("SELECT status, count(*) FROM matter WHERE tenant = ? GROUP BY status", tx.tenant)
    return {text(row[0]): number(row[1]) for row in rows}


def history(
    tx: Tx, case: str, limit: int = bounds.HISTORY_PAGE, after: tuple[int, str, int] | None = None
) -> list[Stored]:
    """What happened to the case, over all its runs, by (at, run, seq): one scan of one index; ``after``: those three of
    the last one. Raises JournalCorrupt naming run and seq."""
    rows = tx.all(
        "SELECT seq, kind, hash, body, run FROM record WHERE tenant = ? AND case_id = ? "
        "AND (at_ms, run, seq) > (?, ?, ?) ORDER BY at_ms, run, seq LIMIT ?",
        tx.tenant, case, *(after or (-(2**62), "", 0)), lists.page_limit(limit),
    )  # fmt: skip
    return [lists.stored(text(row[4]), row) for row in rows]


def runs_of(
    tx: Tx, case: str, limit: int = bounds.LIST_PAGE, before: tuple[int, str] | None = None
) -> list[RunRow]:  # fmt: skip
    """Runs of the case, newest first by (admitted, run); ``before``: that pair of the last one."""
    return lists.runs_of_case(tx, case, limit, before)
