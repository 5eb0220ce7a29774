"""Single rows that the engine asks for inside its units.

Owns the small statements over the index that are neither a list nor an append. Refuses decisions. Invariant:
each is one statement.
"""

from __future__ import annotations

from typing import Final

import msgspec

from agentplane.core.effects import Phase
from agentplane.core.errors import NotFound
from agentplane.journal.appends import Head
from agentplane.journal.tx import Tx, number, raw, text


class Candidate(msgspec.Struct, frozen=True):
    """What a takeover needs to know of a run."""

    capability: str
    status: str
    sealed: bool


class Restored(msgspec.Struct, frozen=True):
    """When the store was recognised as a restored one, and the last instant it knows of; ms UTC."""

    restored_ms: int | None
    gap_from_ms: int | None


def head_of(tx: Tx, run: str) -> Head:
    """The stored head. Raises NotFound."""
    row = tx.one("SELECT head_seq, head_hash, case_id FROM run WHERE tenant = ? AND run = ?", tx.tenant, run)
    if row is None:
        raise NotFound(f"There is no run {run}.", run=run)
    return Head(number(row[0]), raw(row[1]), None if row[2] is None else text(row[2]))


def open_runs(tx: Tx) -> int:
    """How many runs are admitted and have not concluded."""
    row = tx.one("SELECT count(*) FROM run WHERE tenant = ? AND status = 'running' AND own = 0", tx.tenant)
    return 0 if row is None else number(row[0])


def candidate(tx: Tx, run: str) -> Candidate | None:
    """None where a lease stands over a run that was never admitted."""
    row = tx.one("SELECT capability, status, log_index FROM run WHERE tenant = ? AND run = ?", tx.tenant, run)
    return None if row is None else Candidate(text(row[0]), text(row[1]), row[2] is not None)


def clear_empty_lease(tx: Tx, run: str) -> None:
    """Admission died before its first append: no run exists, and freeing its lease is the whole recovery."""
    tx.run(
        "UPDATE lease SET owner = NULL, opening = NULL, expires_ms = 0 WHERE tenant = ? AND run = ?",
        tx.tenant,
        run,
    )


def restored(tx: Tx) -> Restored:
    row = tx.one("SELECT restored_ms, gap_from_ms FROM store WHERE tenant = ?", tx.tenant)
    if row is None:
        return Restored(None, None)
    return Restored(None if row[0] is None else number(row[0]), None if row[1] is None else number(row[1]))


def held_runs(tx: Tx) -> list[str]:
    """Runs that a restored store holds, by id."""
    return [text(row[0]) for row in tx.all("SELECT run FROM run WHERE tenant = ? AND held = 1 ORDER BY run", tx.tenant)]


def held_without_key(tx: Tx) -> int:
    """How many of them were admitted without an admission key."""
    row = tx.one(
        "SELECT count(*) FROM run r WHERE r.tenant = ? AND r.held = 1 AND NOT EXISTS "
        "(SELECT 1 FROM admission a WHERE a.tenant = r.tenant AND a.run = r.run)",
        tx.tenant,
    )
    return 0 if row is None else number(row[0])


def let_go(tx: Tx, runs: list[str]) -> None:
    for run in runs:
        tx.run("UPDATE run SET held = 0 WHERE tenant = ? AND run = ?", tx.tenant, run)


def unheard_cancels(tx: Tx, limit: int, after: str = "") -> list[str]:
    """Runs that somebody asked to stop and that no process executes, by id: those that wait, failed or are
    exhausted. One that waits in a compensation is undoing already, and hears it when its wait is over."""
    found = tx.all(
        "SELECT c.run FROM cancel c CROSS JOIN run r ON r.tenant = c.tenant AND r.run = c.run "
        "WHERE c.tenant = ? AND c.heard = 0 AND c.run > ? AND r.log_index IS NULL "
        "AND r.status IN ('suspended', 'failed', 'exhausted') AND NOT (r.status = 'suspended' AND EXISTS ("
        "SELECT 1 FROM effect e INDEXED BY effect_wait WHERE e.tenant = c.tenant AND e.run = c.run "
        "AND e.wait IS NOT NULL AND e.state = 'announced' AND e.phase = ?)) ORDER BY c.run LIMIT ?",
        tx.tenant, after, Phase.compensating, limit,
    )  # fmt: skip
    return [text(row[0]) for row in found]


def place_of(tx: Tx, run: str, key: bytes) -> tuple[int, str | None]:
    """Step of an announced effect, and its phase as records name it (None: forward). Raises NotFound."""
    row = tx.one("SELECT step, phase FROM effect WHERE tenant = ? AND run = ? AND key = ?", tx.tenant, run, key)
    if row is None:
        raise NotFound(f"The run {run} has not announced the effect {key.hex()}.", run=run)
    phase = Phase(number(row[1]))
    return number(row[0]), None if phase is Phase.forward else phase.wire


UNARMED: Final = (
    "SELECT DISTINCT e.run FROM effect e INDEXED BY effect_lacks "
    "CROSS JOIN run r ON r.tenant = e.tenant AND r.run = e.run "
    "WHERE e.tenant = ? AND e.lacks > 0 AND e.state = 'announced' AND r.status = 'suspended' "
)


def suspended_without_timer(tx: Tx, limit: int, after: str = "") -> list[str]:
    """Runs that wait for something that nothing would bring to them (a timer, a subscription or a task that is not
    there), by id."""
    found = tx.all(UNARMED + "AND e.run > ? ORDER BY e.run LIMIT ?", tx.tenant, after, limit)
    return [text(row[0]) for row in found]


def is_unarmed(tx: Tx, run: str) -> bool:
    """Whether the run is one of those."""
    return tx.one(UNARMED + "AND e.run = ?", tx.tenant, run) is not None
