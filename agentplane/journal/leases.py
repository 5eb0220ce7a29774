"""Who owns a run: leases with an epoch.

Owns acquire, renew, release, lapse and the list of abandoned runs. Refuses every live lease to every asker,
its own holder included. Invariant: an epoch never falls, and the row that holds it is never deleted (a
release only frees it).
"""

from __future__ import annotations

import msgspec

from agentplane.core import bounds
from agentplane.core.errors import InvalidRequest, LeaseHeld, LeaseNotHeld
from agentplane.journal.tx import Tx, number, text


class Lease(msgspec.Struct, frozen=True):
    """What an owner holds: the run, the exact epoch, and how often it was taken over without progress."""

    run: str
    owner: str
    epoch: int
    takeovers: int = 0


class Abandoned(msgspec.Struct, frozen=True):
    """A lapsed lease that still names an owner: somebody died holding this run."""

    run: str
    owner: str
    epoch: int
    expires_ms: int
    takeovers: int


def check_ttl(ttl_s: float) -> None:
    """Raises InvalidRequest for a TTL that no renewal can be relied on to keep."""
    if ttl_s < bounds.LEASE_TTL_MIN_S:
        raise InvalidRequest(f"A lease TTL of {ttl_s:g} s is under the least of {bounds.LEASE_TTL_MIN_S} s; raise it.")


def acquire(tx: Tx, run: str, owner: str, opening: str, ttl_ms: int, *, progress: bool = False) -> Lease:
    """Take a free lease at epoch + 1. Raises LeaseHeld naming the holder of a live one.

    A lapsed lease that still names an owner is a takeover and counts as one, until the run's own next record;
    ``progress`` says that a person decided something, so the count starts again.
    """
    check_ttl(ttl_ms / 1000)
    row = tx.one("SELECT owner, epoch, expires_ms, takeovers FROM lease WHERE tenant = ? AND run = ?", tx.tenant, run)
    if row is None:
        tx.run(
            "INSERT INTO lease (tenant, run, owner, opening, epoch, expires_ms) VALUES (?, ?, ?, ?, 1, ?)",
            tx.tenant, run, owner, opening, tx.now_ms + ttl_ms,
        )  # fmt: skip
        return Lease(run, owner, 1)
    holder, epoch, expires_ms, takeovers = row[0], number(row[1]), number(row[2]), number(row[3])
    if holder is not None and expires_ms > tx.now_ms:
        raise LeaseHeld(
            f"The run {run} is held by {text(holder)} at epoch {epoch}.", run=run, holder=holder, epoch=epoch
        )
    takeovers = 0 if progress else takeovers + (holder is not None)
    tx.run(
        "UPDATE lease SET owner = ?, opening = ?, epoch = ?, expires_ms = ?, takeovers = ? "
        "WHERE tenant = ? AND run = ?",
        owner,
        opening,
        epoch + 1,
        tx.now_ms + ttl_ms,
        takeovers,
        tx.tenant,
        run,
    )
    return Lease(run, owner, epoch + 1, takeovers)


def renew(tx: Tx, lease: Lease, ttl_ms: int) -> None:
    """Move the expiry of exactly this lease, expired or not; raises LeaseNotHeld when anybody has taken or
    freed it."""
    changed = tx.run(
        "UPDATE lease SET expires_ms = ? WHERE tenant = ? AND run = ? AND owner = ? AND epoch = ?",
        tx.now_ms + ttl_ms, tx.tenant, lease.run, lease.owner, lease.epoch,
    )  # fmt: skip
    if not changed:
        raise LeaseNotHeld(f"The lease of {lease.run} at epoch {lease.epoch} is not held any more.", run=lease.run)


def renew_all(tx: Tx, leases: list[Lease], ttl_ms: int) -> list[Lease]:
    """Renew every lease in one unit; returns those that are gone."""
    gone: list[Lease] = []
    for lease in leases:
        try:
            renew(tx, lease, ttl_ms)
        except LeaseNotHeld:
            gone.append(lease)
    return gone


def release(tx: Tx, lease: Lease) -> bool:
    """Free the lease, keeping its epoch; False when it was not held (releasing twice is no error)."""
    return bool(tx.run(
        "UPDATE lease SET owner = NULL, opening = NULL, expires_ms = 0 "
        "WHERE tenant = ? AND run = ? AND owner = ? AND epoch = ?",
        tx.tenant, lease.run, lease.owner, lease.epoch,
    ))  # fmt: skip


def lapse_foreign(tx: Tx, opening: str, *, closed_clean: str | None = None) -> int:
    """At opening: every lease of another opening of this one-opener store belongs to a process that is gone.

    ``closed_clean`` is the opening that ended by a drain: runs it parked did not die, so their next takeover
    is not counted against them (P4); they pass to this opening, so that a terminal which opens the store in
    between and ends well leaves them as it found them.
    """
    return tx.run(
        "UPDATE lease SET expires_ms = 0, takeovers = takeovers - (opening = ?), "
        "opening = CASE WHEN opening = ? THEN ? ELSE opening END "
        "WHERE tenant = ? AND owner IS NOT NULL AND opening <> ? AND expires_ms <> 0",
        closed_clean or "", closed_clean or "", opening, tx.tenant, opening,
    )  # fmt: skip


def abandoned(tx: Tx, limit: int, after: tuple[int, str] = (-1, "")) -> list[Abandoned]:
    """Lapsed leases that name an owner, oldest first by (expiry, run), after a cursor of that pair."""
    rows = tx.all(
        "SELECT run, owner, epoch, expires_ms, takeovers FROM lease "
        "WHERE tenant = ? AND owner IS NOT NULL AND expires_ms <= ? AND (expires_ms, run) > (?, ?) "
        "ORDER BY expires_ms, run LIMIT ?",
        tx.tenant, tx.now_ms, after[0], after[1], limit,
    )  # fmt: skip
    return [Abandoned(text(r[0]), text(r[1]), number(r[2]), number(r[3]), number(r[4])) for r in rows]


def holder(tx: Tx, run: str) -> Abandoned | None:
    """Who holds the run now, lapsed or not; None when it is free."""
    row = tx.one(
        "SELECT run, owner, epoch, expires_ms, takeovers FROM lease WHERE tenant = ? AND run = ? AND owner IS NOT NULL",
        tx.tenant,
        run,
    )
    return (
        None if row is None else Abandoned(text(row[0]), text(row[1]), number(row[2]), number(row[3]), number(row[4]))
    )
