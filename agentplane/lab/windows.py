"""Which crash window a kill fell into: read from both books afterwards, never from what was aimed at.

It owns the attribution, as a pure function of the kill's times, the run's last durable record and the
provider's times for that effect. It refuses what the clocks cannot decide: an arrival or commit stamped
between the signal and the death of the process, or a request that was on the wire at that moment, is
attributed to no window. Its invariant: at most one window a kill.

    W1  the lease is held and the run has announced nothing
    W2  an announcement is durable and its request never arrived
    W3  the request arrived before the kill and had not been committed
    W4  the provider committed before the kill and no outcome is durable (two halves: the outcome was not
    queued yet,
        or it was queued and its commit had not come)

Both clocks are the machine's wall clock. The journal stamps milliseconds, rounded down; the stamp of an
announcement is therefore never after the first byte that was sent because of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from agentplane.core.records import EffectStarted, Record
from agentplane.lab.books import HALVES

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Kill:
    """One SIGKILL, in microseconds since 1970: read before the signal was sent, after the process was reaped,
    and before its successor was started (later requests are that one's). ``outcome_queued`` is what the
    observer said last about the effect: its outcome had been handed to the writer."""

    sent_us: int
    dead_us: int
    next_start_us: int
    outcome_queued: bool = False


@dataclass(frozen=True)
class AtKill:
    """One run as the store shows it between the death and the next start.

    ``key`` is the open announcement's idempotency key and ``announced_us`` its time, when the run's last
    record is the announcement of an effect that changes something; otherwise both are empty.
    """

    lease_held: bool
    ever_announced: bool
    last_kind: str
    key: str | None = None
    announced_us: int | None = None


class Attribution(NamedTuple):
    """The window, or None with the reason; ``half`` for W4."""

    window: str | None
    half: str | None
    reason: str


def instant_us(at: str) -> int:
    """A record's ``at`` (RFC 3339, UTC, milliseconds) in microseconds since 1970."""
    return (datetime.fromisoformat(at) - _EPOCH) // timedelta(microseconds=1)


def at_kill(records: Sequence[Record], *, lease_held: bool) -> AtKill:
    """The state of one run from its durable records, in order."""
    ever = any(isinstance(each, EffectStarted) for each in records)
    last = records[-1] if records else None
    if isinstance(last, EffectStarted) and last.mutates:
        return AtKill(lease_held, ever, "EffectStarted", last.idempotency_key, instant_us(last.at))
    return AtKill(lease_held, ever, type(last).__name__ if last is not None else "")


def attribute(kill: Kill, run: AtKill, arrivals: Iterable[int], commits: Iterable[int]) -> Attribution:
    """The window of one kill for one run. ``arrivals`` and ``commits`` are the provider's times, in
    microseconds since 1970, for the announced key (all attempts of it, before and after the kill)."""
    if not run.lease_held:
        return Attribution(None, None, "the run held no lease")
    if run.key is None or run.announced_us is None:
        if not run.ever_announced and run.last_kind:
            return Attribution("W1", None, f"lease held, nothing announced, last record {run.last_kind}")
        return Attribution(None, None, f"no announcement was open, last record {run.last_kind or 'none'}")
    arrived = [at for at in arrivals if at < kill.next_start_us]
    of_this = [at for at in arrived if at >= run.announced_us]
    committed = [at for at in commits if at < kill.next_start_us]
    if not of_this:
        if arrived or committed:
            return Attribution(None, None, "an earlier attempt had arrived, this one had not")
        return Attribution("W2", None, "announced, never arrived")
    if min(of_this) > kill.sent_us:
        return Attribution(None, None, "the request was on the wire when the process died")
    if any(at <= kill.sent_us for at in committed):
        # An earlier attempt's commit counts: this attempt was sent into a provider that had already paid.
        half = HALVES[1] if kill.outcome_queued else HALVES[0]
        return Attribution("W4", half, "committed at the provider, no outcome in the journal")
    if any(kill.sent_us < at <= kill.dead_us for at in committed):
        return Attribution(None, None, "committed between the signal and the death")
    return Attribution("W3", None, "arrived, not committed before the kill")
