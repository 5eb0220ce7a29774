"""The obligations: what was promised for when, in a case, or in a run that has none.

Owns the table, its moves and its lists. Refuses a name that is open already, an obligation of a closed case, and a move
from a state that is not the stored one. Invariant: one obligation of a name is open in a subject; met, cancelled and
breached are final, and a breach stays one after its account and after its case.
"""

from __future__ import annotations

from typing import Final

import msgspec

from agentplane.core.errors import CaseConflict, NotFound, NotPending
from agentplane.core.records import Actor, Basis
from agentplane.journal.tx import Row, Tx, number, text

OPEN: Final = "state IN ('pending', 'warned')"
"""Obligations that can still be met; as their partial index says it."""


class Obligation(msgspec.Struct, frozen=True, kw_only=True):
    """The ``nth`` obligation of its name (from 1) in ``subject``, a case or a run; ``run`` registered it. Times: ms
    UTC.

    ``state``: pending, warned, breached, met, cancelled. ``noted``: whether the sweep has accounted for a breach."""

    subject: str
    name: str
    nth: int
    run: str
    state: str
    due_ms: int
    warn_ms: int
    next_ms: int | None
    calendar: str
    noted: bool
    acknowledged: Actor | None = None
    note: str | None = None
    acknowledged_ms: int | None = None

    @property
    def acknowledged_by(self) -> str | None:
        return None if self.acknowledged is None else self.acknowledged.actor

    @property
    def cursor(self) -> tuple[int, str, str, int]:
        """Its place among the breached."""
        return self.due_ms, self.subject, self.name, self.nth


COLUMNS = (
    "subject, name, nth, run, state, due_ms, warn_ms, next_ms, calendar, noted, ack_by, ack_basis, ack_uid, "
    "ack_note, ack_ms"
)


def _obligation(row: Row) -> Obligation:
    by = None
    if row[10] is not None:
        by = Actor(
            actor=text(row[10]), basis=Basis(text(row[11])), uid=None if row[12] is None else number(row[12])
        )  # fmt: skip
    return Obligation(
        subject=text(row[0]), name=text(row[1]), nth=number(row[2]), run=text(row[3]), state=text(row[4]),
        due_ms=number(row[5]), warn_ms=number(row[6]), next_ms=None if row[7] is None else number(row[7]),
        calendar=text(row[8]), noted=bool(row[9]), acknowledged=by, note=None if row[13] is None else text(row[13]),
        acknowledged_ms=None if row[14] is None else number(row[14]),
    )  # fmt: skip


# --- moves ------------------------------------------------------------------------------------------------------------


def register(tx: Tx, subject: str, name: str, due_ms: int, warn_ms: int, run: str, calendar: str) -> int:
    """Take on an obligation; which of its name in ``subject`` it is, from 1. Raises CaseConflict where one of that name
    is open, or the case is closed."""
    if is_closed(tx, subject):
        raise CaseConflict(f"The case {subject} is closed and takes on no obligation.", case=subject)
    row = tx.one(
        "SELECT max(nth) FROM obligation WHERE tenant = ? AND subject = ? AND name = ?", tx.tenant, subject, name
    )  # fmt: skip
    nth = 1 + (0 if row is None or row[0] is None else number(row[0]))
    try:
        tx.run(
            "INSERT INTO obligation (tenant, subject, name, nth, run, state, due_ms, warn_ms, next_ms, calendar) "
            "VALUES (?, ?, ?, ?, ?, 'pending', ?, ?, ?, ?)",
            tx.tenant, subject, name, nth, run, due_ms, warn_ms, min(due_ms, warn_ms), calendar,
        )  # fmt: skip
    except tx.dialect.unique_violation:
        raise CaseConflict(f"The deadline {name} of {subject} is open already.", subject=subject) from None
    return nth


def is_closed(tx: Tx, subject: str) -> bool:
    """Whether it is a case, and closed."""
    row = tx.one("SELECT status FROM matter WHERE tenant = ? AND case_id = ?", tx.tenant, subject)
    return row is not None and row[0] == "closed"


def move(tx: Tx, subject: str, name: str, before: str, to: str) -> None:
    """Move the open obligation of that name from ``before`` to ``to``: met or cancelled. Raises CaseConflict where it
    is not in that state."""
    moved = tx.run(
        "UPDATE obligation SET state = ?, next_ms = NULL "
        f"WHERE tenant = ? AND subject = ? AND name = ? AND state = ? AND {OPEN}",
        to, tx.tenant, subject, name, before,
    )  # fmt: skip
    if not moved:
        raise CaseConflict(f"The deadline {name} of {subject} is not {before} any more.", subject=subject)


def warn(tx: Tx, subject: str, name: str, nth: int) -> bool:
    """A pending obligation is near; False where it is not pending any more."""
    return tx.run(
        "UPDATE obligation SET state = 'warned', next_ms = due_ms "
        "WHERE tenant = ? AND subject = ? AND name = ? AND nth = ? AND state = 'pending'",
        tx.tenant, subject, name, nth,
    ) == 1  # fmt: skip


def breach(tx: Tx, subject: str, name: str, nth: int, state: str) -> bool:
    """An obligation in ``state`` (pending or warned) was not met in its time, and this unit accounts for it; False
    where it moved since that was read."""
    return tx.run(
        "UPDATE obligation SET state = 'breached', next_ms = NULL, noted = 1 "
        f"WHERE tenant = ? AND subject = ? AND name = ? AND nth = ? AND state = ? AND {OPEN}",
        tx.tenant, subject, name, nth, state,
    ) == 1  # fmt: skip


def mark_noted(tx: Tx, subject: str, name: str, nth: int) -> bool:
    """This unit accounts for a breach that was applied without its account; False where it has one."""
    return tx.run(
        "UPDATE obligation SET noted = 1 WHERE tenant = ? AND subject = ? AND name = ? AND nth = ? AND noted = 0",
        tx.tenant, subject, name, nth,
    ) == 1  # fmt: skip


def acknowledge(tx: Tx, subject: str, name: str, actor: Actor, note: str) -> tuple[bool, str]:
    """Account for a breach of that name, the oldest that nobody has accounted for; it stays a breach: (whether it was
    recorded, who did it first). Raises NotFound, and NotPending where nothing of that name was breached."""
    breach_of = tx.one(
        "SELECT nth FROM obligation WHERE tenant = ? AND subject = ? AND name = ? AND state = 'breached' "
        "AND ack_ms IS NULL ORDER BY nth LIMIT 1",
        tx.tenant, subject, name,
    )  # fmt: skip
    if breach_of is not None:
        tx.run(
            "UPDATE obligation SET ack_by = ?, ack_basis = ?, ack_uid = ?, ack_note = ?, ack_ms = ? "
            "WHERE tenant = ? AND subject = ? AND name = ? AND nth = ?",
            actor.actor, actor.basis.value, actor.uid, note, tx.now_ms, tx.tenant, subject, name, number(breach_of[0]),
        )  # fmt: skip
        return True, actor.actor
    last = tx.one(
        "SELECT ack_by FROM obligation WHERE tenant = ? AND subject = ? AND name = ? AND state = 'breached' "
        "ORDER BY nth DESC LIMIT 1",
        tx.tenant, subject, name,
    )  # fmt: skip
    if last is not None:
        return False, text(last[0])
    if latest(tx, subject, name) is None:
        raise NotFound(f"There is no deadline {name} of {subject}.", subject=subject)
    raise NotPending(f"The deadline {name} of {subject} was not breached; there is nothing to account for.")


# --- one, and lists --------------------------------------------------------------------------------------------------


def latest(tx: Tx, subject: str, name: str) -> Obligation | None:
    """The last obligation of that name; None where there never was one."""
    row = tx.one(
        f"SELECT {COLUMNS} FROM obligation WHERE tenant = ? AND subject = ? AND name = ? ORDER BY nth DESC LIMIT 1",
        tx.tenant, subject, name,
    )  # fmt: skip
    return None if row is None else _obligation(row)


def open_one(tx: Tx, subject: str, name: str) -> Obligation | None:
    """The open obligation of that name."""
    found = latest(tx, subject, name)
    return found if found is not None and found.state in ("pending", "warned") else None


def of_subject(tx: Tx, subject: str, limit: int = 1_000) -> list[Obligation]:
    """Obligations of a case or a run, by (name, nth)."""
    rows = tx.all(
        f"SELECT {COLUMNS} FROM obligation WHERE tenant = ? AND subject = ? ORDER BY name, nth LIMIT ?",
        tx.tenant, subject, limit,
    )  # fmt: skip
    return [_obligation(row) for row in rows]


def open_of(tx: Tx, subject: str) -> int:
    """How many obligations of the subject can still be met, or missed."""
    row = tx.one(f"SELECT count(*) FROM obligation WHERE tenant = ? AND subject = ? AND {OPEN}", tx.tenant, subject)
    return 0 if row is None else number(row[0])


def due(
    tx: Tx, now_ms: int, limit: int, after: tuple[int, str, str, int] | None = None
) -> list[Obligation]:  # fmt: skip
    """Open obligations with something to do at ``now_ms``, a warning or a breach, by (next instant, subject, name,
    nth): one that was warned stands behind those that are nearer. ``after``: those four of the last row."""
    rows = tx.all(
        f"SELECT {COLUMNS} FROM obligation WHERE tenant = ? AND next_ms IS NOT NULL AND next_ms <= ? "
        "AND (next_ms, subject, name, nth) > (?, ?, ?, ?) ORDER BY next_ms, subject, name, nth LIMIT ?",
        tx.tenant, now_ms, *(after or (-(2**63), "", "", 0)), limit,
    )  # fmt: skip
    return [_obligation(row) for row in rows]


def next_due_ms(tx: Tx) -> int | None:
    """When there is next something to do; None where nothing is promised."""
    row = tx.one("SELECT min(next_ms) FROM obligation WHERE tenant = ? AND next_ms IS NOT NULL", tx.tenant)
    return None if row is None or row[0] is None else number(row[0])


def owed(tx: Tx, limit: int) -> list[Obligation]:
    """Breaches that were applied and not accounted for, by (subject, name, nth): the shape of a store of two."""
    rows = tx.all(
        f"SELECT {COLUMNS} FROM obligation INDEXED BY obligation_owed WHERE tenant = ? AND noted = 0 "
        "ORDER BY subject, name, nth LIMIT ?",
        tx.tenant, limit,
    )  # fmt: skip
    return [_obligation(row) for row in rows]


def breached(
    tx: Tx, limit: int, after: tuple[int, str, str, int] | None = None
) -> list[Obligation]:  # fmt: skip
    """Breaches that nobody has accounted for, the longest overdue first; ``after``: the last one's ``cursor``."""
    rows = tx.all(
        f"SELECT {COLUMNS} FROM obligation WHERE tenant = ? AND state = 'breached' AND ack_ms IS NULL "
        "AND (due_ms, subject, name, nth) > (?, ?, ?, ?) ORDER BY due_ms, subject, name, nth LIMIT ?",
        tx.tenant, *(after or (-(2**63), "", "", 0)), limit,
    )  # fmt: skip
    return [_obligation(row) for row in rows]
