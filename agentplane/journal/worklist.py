"""The rows of tasks, as far as a run's own records change them: told, withdrawn, consumed.

Owns the end of a task's row in the unit of its wait's outcome and of its run's conclusion, and the consumption of an
approval in the unit of the announcement that it is for. Refuses to consume what was not approved, what is not what was
approved, and what was consumed elsewhere; a decision is ``work``'s. Invariant: what is withdrawn stays withdrawn, an
approval is consumed at one place of the run it was asked by, and nobody is asked for a run that has ended for good.
"""

from __future__ import annotations

from typing import Final, NoReturn

import msgspec

from agentplane.core.effects import Phase
from agentplane.core.errors import ApprovalRefused
from agentplane.journal.tx import Tx, number, text

PENDING: Final = "state IN ('open', 'claimed', 'escalated')"
"""Tasks that wait for a decision; as their partial index says it."""

TOLD: Final = 1
NEVER: Final = 2
"""``task.delivered``: 0 not yet, 1 its run was told, 2 its wait ended otherwise and the run never will be."""


class Place(msgspec.Struct, frozen=True):
    """Where an effect stands in its run; the attempts of one series share it."""

    step: int
    phase: Phase
    ordinal: int


def settle(tx: Tx, run: str, key: bytes, *, told: bool) -> None:
    """The wait announced under ``key`` has its outcome: a decision was told with it (or never will be), and a task that
    nobody decided is withdrawn."""
    decided = tx.run(
        "UPDATE task SET delivered = ? WHERE tenant = ? AND run = ? AND key = ? AND decided_ms IS NOT NULL "
        "AND delivered = 0",
        TOLD if told else NEVER, tx.tenant, run, key,
    )  # fmt: skip
    if not decided:
        withdraw(tx, run, key)


def withdraw(tx: Tx, run: str, key: bytes) -> bool:
    """Nobody is asked any more for the wait announced under ``key``; False when nobody was."""
    rows = tx.all(
        f"UPDATE task SET state = 'withdrawn' WHERE tenant = ? AND run = ? AND key = ? AND {PENDING} RETURNING task",
        tx.tenant, run, key,
    )  # fmt: skip
    for row in rows:
        unlist(tx, text(row[0]))
    return bool(rows)


def withdraw_run(tx: Tx, run: str) -> int:
    """The run has ended for good: nobody is asked for it, and no decision will be told to it; how many were asked."""
    rows = tx.all(
        f"UPDATE task SET state = 'withdrawn' WHERE tenant = ? AND run = ? AND {PENDING} RETURNING task",
        tx.tenant, run,
    )  # fmt: skip
    for row in rows:
        unlist(tx, text(row[0]))
    tx.run(
        "UPDATE task INDEXED BY task_wait SET delivered = ? WHERE tenant = ? AND run = ? AND decided_ms IS NOT NULL "
        "AND delivered = 0",
        NEVER, tx.tenant, run,
    )  # fmt: skip
    return len(rows)


def unlist(tx: Tx, task: str) -> None:
    """Take the task off every role's list."""
    tx.run("DELETE FROM task_audience WHERE tenant = ? AND task = ?", tx.tenant, task)


def consume(tx: Tx, task: str, run: str, place: Place, digest: str) -> None:
    """Consume the approval of ``task`` for the action of ``digest`` at ``place``; again at the same place is the same
    consumption. Raises ApprovalRefused."""
    consumed = tx.run(
        "UPDATE task SET used_step = ?1, used_phase = ?2, used_ordinal = ?3 WHERE tenant = ?4 AND task = ?5 "
        "AND run = ?6 AND digest = ?7 AND approved = 1 AND delivered = 1 AND (used_step IS NULL "
        "OR (used_step = ?1 AND used_phase = ?2 AND used_ordinal = ?3))",
        place.step, place.phase, place.ordinal, tx.tenant, task, run, digest,
    )  # fmt: skip
    if not consumed:
        _refuse(tx, task, run, digest)


def _refuse(tx: Tx, task: str, run: str, digest: str) -> NoReturn:
    row = tx.one(
        "SELECT run, approved, delivered, digest, used_step, used_ordinal FROM task WHERE tenant = ? AND task = ?",
        tx.tenant, task,
    )  # fmt: skip
    if row is None or row[0] != run:
        why = f"The run {run} has asked for no approval {task}."
    elif not row[1] or row[2] != TOLD:
        why = f"The task {task} approved no action."
    elif row[3] != digest:
        why = f"The task {task} approved another action: the arguments are not those that were approved."
    else:
        why = f"The approval {task} was consumed by step {number(row[4])}, ordinal {number(row[5])}."
    raise ApprovalRefused(why, task=task)
