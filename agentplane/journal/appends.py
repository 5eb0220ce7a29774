"""Appending records to a run behind its head, by the owner that holds it.

Owns the append, the fence in front of it, admission, cancel and seal; what a record implies elsewhere is ``derive``'s.
Refuses a writer whose epoch or head is not the stored one, and a sealed run. Invariant: the records of a run and what
follows from them are written by one statement list in one transaction, or not at all.
"""

from __future__ import annotations

from typing import Final

import msgspec

from agentplane.core import bounds, chain
from agentplane.core.errors import (
    AgentplaneError,
    DuplicateAdmission,
    Fenced,
    HeadMoved,
    LeaseNotHeld,
    NotFound,
    PayloadTooLarge,
    RunSealed,
    ensure,
    violated,
)
from agentplane.core.instants import from_text
from agentplane.core.records import (
    CLOSING,
    EffectFailed,
    EffectStarted,
    Record,
    RunConcluded,
    RunSuspended,
    StepStarted,
)
from agentplane.journal.derive import COUNTED, DERIVE, NO_CHANGE, Change
from agentplane.journal.derive import open_effects as open_effects
from agentplane.journal.derive import resumed as resumed
from agentplane.journal.tx import Tx, number, raw, text


class Linked(msgspec.Struct, frozen=True):
    """A record with its bytes and its place in the chain, made by the run's owner before it is queued (W5).

    ``at_ms``: the instant of the record's ``at``, ms UTC, when whoever linked it had it; else it is read from there.
    """

    record: Record
    body: bytes
    hash: bytes
    at_ms: int | None = None


class Head(msgspec.Struct, frozen=True):
    """The last record of a run: its ``seq`` and ``hash`` (0 and the genesis hash before the first). ``case``: the case
    that the run is bound to, which every record of it names."""

    seq: int = 0
    hash: bytes = chain.GENESIS
    case: str | None = None


def append(
    tx: Tx,
    run: str,
    epoch: int,
    head: Head,
    linked: tuple[Linked, ...],
    blobs: dict[bytes, bytes] | None = None,
) -> Head:
    """Append ``linked`` to ``run`` behind ``head``; the whole or nothing. Returns the new head.

    Raises Fenced (another epoch), LeaseNotHeld (no lease was ever taken, or it was released), HeadMoved (W2),
    RunSealed, NotFound (the run was never admitted), DuplicateEffect, OpenEffects, PayloadTooLarge; and
    InvariantViolation for records that are not linked to one another.
    """
    at, landed, opened, announces = head, 0, 0, False
    try:
        for digest, value in (blobs or {}).items():
            tx.run("INSERT OR IGNORE INTO blob (tenant, digest, bytes) VALUES (?, ?, ?)", tx.tenant, digest, value)
        for item in linked:
            record = item.record
            if isinstance(record, COUNTED) and (landed or opened):
                # These ask for the counts, and so they find them as the records before them left them.
                tx.run(COUNT, landed, opened, tx.tenant, run)
                landed = opened = 0
            more_landed, more_open = _insert(tx, run, epoch, at, item)
            landed += more_landed
            opened += more_open
            # What concludes or suspends the run behind an announcement has the last word about its status.
            announces = more_open > 0 or (announces and not isinstance(record, RunConcluded | RunSuspended))
            at = Head(record.seq, item.hash, record.case)
    except AgentplaneError:
        # Whether this writer may append at all is the first question, whatever else is wrong with what it brings.
        _may_append(tx, run, epoch, head)
        raise
    moved = tx.run(
        MOVE, at.seq, at.hash, landed, opened, tx.tenant, run, head.seq, head.hash, announces, tx.tenant, run, epoch
    )
    if not moved:
        _may_append(tx, run, epoch, head)
        if any(is_progress(item.record) for item in linked):
            tx.run("UPDATE lease SET takeovers = 0 WHERE tenant = ? AND run = ?", tx.tenant, run)
        tx.run(MOVE_ANYWAY, at.seq, at.hash, landed, opened, tx.tenant, run)
        if announces:
            tx.run("UPDATE run SET status = 'running' WHERE tenant = ? AND run = ?", tx.tenant, run)
    return at


COUNT: Final = "UPDATE run SET landed = landed + ?, open = open + ? WHERE tenant = ? AND run = ?"
MOVE_ANYWAY: Final = (
    "UPDATE run SET head_seq = ?, head_hash = ?, landed = landed + ?, open = open + ? WHERE tenant = ? AND run = ?"
)
MOVE: Final = MOVE_ANYWAY + (
    " AND head_seq = ? AND head_hash = ? AND log_index IS NULL AND (status = 'running' OR NOT ?)"
    " AND EXISTS (SELECT 1 FROM lease WHERE tenant = ? AND run = ? AND epoch = ? AND owner IS NOT NULL"
    " AND takeovers = 0)"
)
"""The fence, the head and the seal, judged by the statement that moves the head: it moves nothing where one of them
does not hold, or where more than the head has to change."""


def is_progress(record: Record) -> bool:
    """Whether a run that was taken over got further (P4). That a step began, that an attempt was lost with its process
    and is made again: a step that kills its process writes all of that at every life."""
    if isinstance(record, EffectFailed):
        return record.lost_epoch is None
    return not isinstance(record, StepStarted) and not (isinstance(record, EffectStarted) and record.attempt > 1)


def _may_append(tx: Tx, run: str, epoch: int, head: Head) -> None:
    """Raises what keeps a writer at ``epoch`` from appending behind ``head``, if anything does."""
    lease = tx.one("SELECT epoch, owner FROM lease WHERE tenant = ? AND run = ?", tx.tenant, run)
    if lease is None:
        raise LeaseNotHeld(f"No lease of {run} was ever taken.", run=run)
    at_epoch = number(lease[0])
    if at_epoch != epoch:
        raise Fenced(f"The run {run} is at epoch {at_epoch}; this writer has {epoch}.", run=run, epoch=epoch)
    if lease[1] is None:
        # Not held by an expiry: an expired lease that nobody took still writes (L1), a released one does not.
        raise LeaseNotHeld(f"The lease of {run} at epoch {epoch} was released.", run=run)
    stored = tx.one("SELECT head_seq, head_hash, log_index FROM run WHERE tenant = ? AND run = ?", tx.tenant, run)
    if stored is None:
        raise NotFound(f"There is no run {run}.", run=run)
    if stored[2] is not None:
        raise RunSealed(f"The run {run} is sealed.", run=run)
    at = Head(number(stored[0]), raw(stored[1]), head.case)
    if at != head:
        raise HeadMoved(f"The run {run} ends at record {at.seq}; this append follows {head.seq}.", run=run, seq=at.seq)


def _insert(tx: Tx, run: str, epoch: int, head: Head, item: Linked) -> Change:
    """Insert one record and what follows from it; how it changes what is counted."""
    record = item.record
    ensure(
        record.run == run and record.epoch == epoch,
        "INV-02 a record names the run and epoch it is appended under",
    )
    if record.seq != head.seq + 1:
        raise HeadMoved(f"Record {record.seq} cannot follow record {head.seq} of {run}.", run=run, seq=head.seq)
    if len(item.body) > bounds.RECORD_BYTES_MAX:
        raise PayloadTooLarge(f"A record of {len(item.body)} bytes is over the bound of {bounds.RECORD_BYTES_MAX}.")
    if chain.link(head.hash, item.body) != item.hash:
        violated(f"INV-08 a record's hash covers its body and the hash before it ({run}, record {record.seq})")
    derive = DERIVE.get(type(record))
    change = None if derive is None else derive(tx, record)
    try:
        tx.run(
            "INSERT INTO record (tenant, run, seq, epoch, kind, case_id, at_ms, hash, body) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            tx.tenant,
            run,
            record.seq,
            epoch,
            type(record).__name__,
            record.case,
            from_text(record.at) if item.at_ms is None else item.at_ms,
            item.hash,
            item.body,
        )
    except tx.dialect.unique_violation:
        raise HeadMoved(f"The run {run} has a record {record.seq} already.", run=run, seq=record.seq) from None
    return change or NO_CHANGE


def admit(tx: Tx, run: str, *, capability: str, incarnation: str, at_ms: int, own: bool = False) -> None:
    """Make the run's row, before its first record. ``own``: a run of the plane's (sweep, acts), left out of
    lists."""
    tx.run(
        "INSERT INTO run "
        "(tenant, run, capability, status, admitted_ms, head_seq, head_hash, incarnation, own) "
        "VALUES (?, ?, ?, 'running', ?, 0, ?, ?, ?)",
        tx.tenant,
        run,
        capability,
        at_ms,
        chain.GENESIS,
        incarnation,
        int(own),
    )


def claim_key(tx: Tx, key: str, run: str, digest: bytes) -> None:
    """Claim an admission key for ``run``; ``digest`` covers what was asked. Raises DuplicateAdmission with
    the holder."""
    held = tx.one("SELECT run, digest FROM admission WHERE tenant = ? AND key = ?", tx.tenant, key)
    if held is not None:
        raise DuplicateAdmission(
            f"The admission key is held by {text(held[0])}.", run=text(held[0]), same=raw(held[1]) == digest
        )
    tx.run(
        "INSERT INTO admission (tenant, key, run, digest, at_ms) VALUES (?, ?, ?, ?, ?)",
        tx.tenant, key, run, digest, tx.now_ms,
    )  # fmt: skip


def seal(tx: Tx, run: str) -> int:
    """Give a concluded run the next dense ``log_index``; sealing twice answers the first. Raises NotFound.

    Only a conclusion that nothing may resume seals; anything else is an invariant. Not fenced by itself: it
    belongs into the unit that appends the conclusion, or that acquires the lease.
    """
    row = tx.one("SELECT status, head_hash, log_index FROM run WHERE tenant = ? AND run = ?", tx.tenant, run)
    if row is None:
        raise NotFound(f"There is no run {run}.", run=run)
    if row[2] is not None:
        return number(row[2])
    last = tx.one("SELECT kind FROM record WHERE tenant = ? AND run = ? ORDER BY seq DESC LIMIT 1", tx.tenant, run)
    ensure(
        row[0] in CLOSING and last == ("RunConcluded",),
        f"INV-06 only a closed conclusion seals ({run}: {row[0]!r})",
    )
    top = tx.one("SELECT max(log_index) FROM seal WHERE tenant = ?", tx.tenant)
    index = 0 if top is None or top[0] is None else number(top[0]) + 1
    tx.run(
        "INSERT INTO seal (tenant, log_index, run, hash, at_ms) VALUES (?, ?, ?, ?, ?)",
        tx.tenant, index, run, raw(row[1]), tx.now_ms,
    )  # fmt: skip
    tx.run("UPDATE run SET log_index = ? WHERE tenant = ? AND run = ?", index, tx.tenant, run)
    return index


def request_cancel(tx: Tx, run: str, actor: str, basis: str, uid: int | None, reason: str) -> tuple[bool, str]:
    """Ask for a stop, without a lease; the first asker stays. Returns (recorded, who asked first)."""
    first = tx.one("SELECT actor FROM cancel WHERE tenant = ? AND run = ?", tx.tenant, run)
    if first is not None:
        return False, text(first[0])
    tx.run(
        "INSERT INTO cancel (tenant, run, actor, basis, uid, reason, at_ms) VALUES (?, ?, ?, ?, ?, ?, ?)",
        tx.tenant, run, actor, basis, uid, reason, tx.now_ms,
    )  # fmt: skip
    return True, actor
