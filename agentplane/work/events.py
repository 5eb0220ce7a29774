"""Messages from outside: stored once, matched with a wait, consumed once, or dead.

Owns the buffer, its search, the claim of an event by a wait, and the dead letters. Refuses to store the same message
twice, and to retire what somebody waits for. Invariant: an event leaves the buffer by one conditional statement, to one
wait or to the dead letters, and is found in it under all of its keys until then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from agentplane.core import bounds, canonical
from agentplane.core.codec import decode_body
from agentplane.core.correlation import keys_data
from agentplane.core.errors import NotFound
from agentplane.core.instants import to_text
from agentplane.core.records import CLOSING, EffectDone, Key
from agentplane.journal import subscriptions
from agentplane.journal.subscriptions import Waiter as Waiter
from agentplane.journal.subscriptions import keys_of, keys_text
from agentplane.journal.tx import Row, Tx, number, raw, text

CROWDED: Final = 256
"""Events under one key that are counted before it is called crowded."""


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """One event without what it says. ``source``: the authenticated deliverer; ``producer`` and ``producer_id``: what
    it says of itself; ``state``: buffered, claimed, consumed, dead; ``run`` and ``key``: the wait that took it;
    ``parked``: somebody waited for it when it was last looked at. Times: ms UTC."""

    event: str
    source: str
    producer: str
    producer_id: str
    kind: str
    keys: tuple[Key, ...]
    received_ms: int
    state: str
    parked: bool
    run: str | None
    key: bytes | None
    ended_ms: int | None
    why: str | None


class Buffered(Letter, frozen=True, kw_only=True):
    """One event whole; ``payload`` is canonical bytes."""

    payload: bytes


class Seen(msgspec.Struct, frozen=True):
    """The first of a message that came again, and the run that took it, if one did."""

    event: str
    run: str | None


COLUMNS: Final = "event, source, producer, producer_id, kind, keys, received_ms, state, parked, run, key, ended_ms, why"


def _letter(row: Row) -> Letter:
    return Letter(
        event=text(row[0]), source=text(row[1]), producer=text(row[2]), producer_id=text(row[3]), kind=text(row[4]),
        keys=keys_of(row[5]), received_ms=number(row[6]), state=text(row[7]), parked=bool(row[8]),
        run=None if row[9] is None else text(row[9]), key=None if row[10] is None else raw(row[10]),
        ended_ms=None if row[11] is None else number(row[11]), why=None if row[12] is None else text(row[12]),
    )  # fmt: skip


def get(tx: Tx, event: str) -> Buffered:
    """Raises NotFound."""
    row = tx.one(f"SELECT {COLUMNS}, payload FROM event WHERE tenant = ? AND event = ?", tx.tenant, event)
    if row is None:
        raise NotFound(f"There is no event {event}.", event=event)
    letter = _letter(row)
    return Buffered(**{name: getattr(letter, name) for name in letter.__struct_fields__}, payload=raw(row[13]))


def as_output(row: Buffered) -> dict[str, object]:
    """What a wait that the event ends has as its output. ``id`` is the producer's."""
    return {
        "id": row.producer_id, "source": row.source, "kind": row.kind, "correlation": keys_data(row.keys),
        "payload": canonical.decode(row.payload, max_bytes=bounds.EVENT_BYTES_MAX),
        "received": to_text(row.received_ms),
    }  # fmt: skip


# --- in, and out ------------------------------------------------------------------------------------------------------


def store(
    tx: Tx, event: str, dedup: bytes, source: str, producer: str, producer_id: str, kind: str, keys: Sequence[Key],
    payload: bytes, now_ms: int,
) -> Seen | None:  # fmt: skip
    """Put an event into the buffer under ``event``, or say that it came before; ``dedup`` is the digest of where it is
    from (32 bytes), ``payload`` canonical bytes."""
    known = tx.one("SELECT event, run FROM event WHERE tenant = ? AND dedup = ?", tx.tenant, dedup)
    if known is not None:
        return Seen(text(known[0]), None if known[1] is None else text(known[1]))
    tx.run(
        "INSERT INTO event (tenant, event, dedup, source, producer, producer_id, kind, keys, received_ms, state, "
        "payload) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 'buffered', ?)",
        tx.tenant, event, dedup, source, producer, producer_id, kind, keys_text(keys), now_ms, payload,
    )  # fmt: skip
    _list_keys(tx, event, kind, keys, now_ms, source)
    return None


def _list_keys(tx: Tx, event: str, kind: str, keys: Sequence[Key], received_ms: int, source: str) -> None:
    for key in keys:
        tx.run(
            "INSERT INTO event_key (tenant, kind, namespace, value, received_ms, event, source) "
            "VALUES (?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (tenant, kind, namespace, value, received_ms, event) DO NOTHING",
            tx.tenant, kind, key.namespace, key.value, received_ms, event, source,
        )  # fmt: skip


def _unlist_keys(tx: Tx, event: str, kind: str, keys: Sequence[Key], received_ms: int) -> None:
    for key in keys:
        tx.run(
            "DELETE FROM event_key WHERE tenant = ? AND kind = ? AND namespace = ? AND value = ? AND received_ms = ? "
            "AND event = ?",
            tx.tenant, kind, key.namespace, key.value, received_ms, event,
        )  # fmt: skip


def consume(tx: Tx, event: str, run: str, key: bytes) -> bool:
    """Claim the event for the wait announced under ``key`` of ``run``, whose outcome is in this unit; False where it is
    not in the buffer any more, nor claimed by that very wait."""
    rows = tx.all(
        "UPDATE event SET state = 'consumed', parked = 0, run = ?1, key = ?2, ended_ms = ?3 "
        "WHERE tenant = ?4 AND event = ?5 AND (state = 'buffered' OR (state = 'claimed' AND run = ?1 AND key = ?2)) "
        "RETURNING kind, keys, received_ms",
        run, key, tx.now_ms, tx.tenant, event,
    )  # fmt: skip
    for kind, keys, received_ms in rows:
        _unlist_keys(tx, event, text(kind), keys_of(keys), number(received_ms))
    return bool(rows)


def park(tx: Tx, event: str, waited_for: bool = True) -> None:
    """Whether somebody waits for the event, who cannot have it now: the redelivery looks at those, the ageing at the
    others."""
    tx.run(
        "UPDATE event SET parked = ? WHERE tenant = ? AND event = ? AND state = 'buffered' AND parked <> ?",
        int(waited_for), tx.tenant, event, int(waited_for),
    )  # fmt: skip


def age_out(tx: Tx, before_ms: int, limit: int, why: str) -> int:
    """Make dead letters of events that came at ``before_ms`` or earlier and that nobody waits for, oldest first, at
    most ``limit``; how many."""
    rows = tx.all(
        "SELECT event, kind, keys, received_ms FROM event WHERE tenant = ? AND state = 'buffered' AND parked = 0 "
        "AND received_ms <= ? ORDER BY received_ms, event LIMIT ?",
        tx.tenant, before_ms, limit,
    )  # fmt: skip
    for event, kind, keys, received_ms in rows:
        tx.run(
            "UPDATE event SET state = 'dead', ended_ms = ?, why = ? WHERE tenant = ? AND event = ?",
            tx.now_ms, why, tx.tenant, text(event),
        )  # fmt: skip
        _unlist_keys(tx, text(event), text(kind), keys_of(keys), number(received_ms))
    return len(rows)


def has_older(tx: Tx, before_ms: int) -> bool:
    """Whether ``age_out`` would find one."""
    row = tx.one(
        "SELECT 1 FROM event WHERE tenant = ? AND state = 'buffered' AND parked = 0 AND received_ms <= ? LIMIT 1",
        tx.tenant, before_ms,
    )  # fmt: skip
    return row is not None


# --- the search -------------------------------------------------------------------------------------------------------


def waiters(
    tx: Tx, kind: str, keys: Sequence[Key], source: str, limit: int, after: tuple[int, str, bytes] | None = None
) -> list[Waiter]:
    """Waits that an event of ``kind`` from ``source`` about ``keys`` would end, the one that was armed first first."""
    return subscriptions.waiters(tx, kind, keys, source, limit, after)


def oldest(tx: Tx, kind: str, keys: Sequence[Key], sender: str | None) -> Buffered | None:
    """What a wait for ``kind`` about all of ``keys`` (from ``sender``, or from anybody) would take from the buffer: the
    oldest by (received, event)."""
    first, *others = sorted(keys, key=lambda key: _crowd(tx, kind, key)) if len(keys) > 1 else keys
    also = (
        " AND EXISTS (SELECT 1 FROM event_key o WHERE o.tenant = k.tenant AND o.kind = k.kind AND o.namespace = ? "
        "AND o.value = ? AND o.received_ms = k.received_ms AND o.event = k.event)"
    ) * len(others)
    by = "" if sender is None else " AND k.source = ?"
    row = tx.one(
        "SELECT k.event FROM event_key k WHERE k.tenant = ? AND k.kind = ? AND k.namespace = ? AND k.value = ?"
        f"{by}{also} AND EXISTS (SELECT 1 FROM event e WHERE e.tenant = k.tenant AND e.event = k.event "
        "AND e.state = 'buffered') ORDER BY k.received_ms, k.event LIMIT 1",
        tx.tenant, kind, first.namespace, first.value, *(() if sender is None else (sender,)),
        *(part for key in others for part in (key.namespace, key.value)),
    )  # fmt: skip
    return None if row is None else get(tx, text(row[0]))


def _crowd(tx: Tx, kind: str, key: Key) -> int:
    row = tx.one(
        "SELECT count(*) FROM (SELECT 1 FROM event_key WHERE tenant = ? AND kind = ? AND namespace = ? AND value = ? "
        "LIMIT ?)",
        tx.tenant, kind, key.namespace, key.value, CROWDED,
    )  # fmt: skip
    return 0 if row is None else number(row[0])


# --- a claim without its outcome: the shape that only a store of two is left in --------------------------------------


def claimed(tx: Tx, limit: int, after: str = "") -> list[Letter]:
    """Events that a wait claimed and that no outcome was recorded for, by event."""
    return _page(tx, "state = 'claimed'", limit, after)


def is_open_wait(tx: Tx, run: str, key: bytes) -> bool:
    """Whether the wait announced under ``key`` has no outcome yet, in a run that may still go on."""
    row = tx.one(
        "SELECT r.status FROM effect e JOIN run r ON r.tenant = e.tenant AND r.run = e.run "
        "WHERE e.tenant = ? AND e.run = ? AND e.key = ? AND e.wait IS NOT NULL AND e.state = 'announced'",
        tx.tenant, run, key,
    )  # fmt: skip
    return row is not None and row[0] not in CLOSING


def retire(tx: Tx, event: str) -> str:
    """Settle a claim whose wait has ended: consumed where that wait ended by this very event, else back in the buffer,
    for whoever waits next: a wait that ended otherwise eats nothing. The state it is in now. Raises NotFound."""
    row = get(tx, event)
    if row.state != "claimed" or row.run is None or row.key is None:
        return row.state
    if any(done.output == as_output(row) for done in _outcomes(tx, row.run, row.key)):
        consume(tx, event, row.run, row.key)
        return "consumed"
    tx.run(
        "UPDATE event SET state = 'buffered', parked = 1, run = NULL, key = NULL WHERE tenant = ? AND event = ?",
        tx.tenant, event,
    )  # fmt: skip
    _list_keys(tx, event, row.kind, row.keys, row.received_ms, row.source)
    return "buffered"


def _outcomes(tx: Tx, run: str, key: bytes) -> Iterator[EffectDone]:
    rows = tx.all(
        "SELECT body FROM record WHERE tenant = ? AND run = ? AND kind = 'EffectDone' ORDER BY seq", tx.tenant, run
    )  # fmt: skip
    for row in rows:
        record = decode_body(raw(row[0]))
        if isinstance(record, EffectDone) and record.effect_key == key.hex():
            yield record


# --- lists ------------------------------------------------------------------------------------------------------------


def parked(tx: Tx, limit: int, after: str = "") -> list[Letter]:
    """Buffered events that somebody waits for, by event."""
    return _page(tx, "state = 'buffered' AND parked = 1", limit, after)


def _page(tx: Tx, where: str, limit: int, after: str) -> list[Letter]:
    rows = tx.all(
        f"SELECT {COLUMNS} FROM event WHERE tenant = ? AND {where} AND event > ? ORDER BY event LIMIT ?",
        tx.tenant, after, limit,
    )  # fmt: skip
    return [_letter(row) for row in rows]


def is_buffered(tx: Tx, event: str) -> bool:
    return tx.one(
        "SELECT 1 FROM event WHERE tenant = ? AND event = ? AND state = 'buffered'", tx.tenant, event
    ) is not None  # fmt: skip


def dead_letters(tx: Tx, limit: int, after: tuple[int, str] | None = None) -> list[Letter]:
    """Events that nobody claimed in their time, newest first by (ended, event); ``after``: that pair of the last
    one."""
    rows = tx.all(
        f"SELECT {COLUMNS} FROM event WHERE tenant = ? AND state = 'dead' AND (ended_ms, event) < (?, ?) "
        "ORDER BY ended_ms DESC, event DESC LIMIT ?",
        tx.tenant, *(after or (2**62, "")), limit,
    )  # fmt: skip
    return [_letter(row) for row in rows]


def counts(tx: Tx) -> dict[str, int]:
    """How many events are ``buffered``, ``parked`` among them, ``claimed`` and ``dead``."""
    found: dict[str, int] = {}
    for name, where in (
        ("unparked", "state = 'buffered' AND parked = 0"), ("parked", "state = 'buffered' AND parked = 1"),
        ("claimed", "state = 'claimed'"), ("dead", "state = 'dead'"),
    ):  # fmt: skip
        row = tx.one(f"SELECT count(*) FROM event WHERE tenant = ? AND {where}", tx.tenant)
        found[name] = 0 if row is None else number(row[0])
    return {"buffered": found.pop("unparked") + found["parked"], **found}
