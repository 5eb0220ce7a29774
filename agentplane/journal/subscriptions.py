"""The subscriptions: which wait of which run an event may end.

Owns the table of open event waits, and the search of it. Refuses to claim an event: that is a unit's of ``work`` and of
the engine. Invariant: a wait is found under one of its keys, the one that the fewest waits are found by, and it is
matched by an event of its kind, from its sender, whose keys include every one of its own; the oldest comes first.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from agentplane.core import canonical
from agentplane.core.records import Key
from agentplane.journal.tx import Row, Tx, Value, number, raw, text

COUNTED_UP_TO = 256
"""Waits under one key that are counted before it is called crowded: enough to choose the better of two keys by."""
LOOKED_AT = 256
"""Waits under one key that one read fetches."""


class Waiter(msgspec.Struct, frozen=True):
    """One open event wait: its announcement's key (32 bytes), what the event must be about, who must have sent it
    (None: anybody), and when it was armed, ms UTC."""

    run: str
    key: bytes
    kind: str
    keys: tuple[Key, ...]
    sender: str | None
    armed_ms: int

    @property
    def cursor(self) -> tuple[int, str, bytes]:
        return self.armed_ms, self.run, self.key


COLUMNS = "run, key, kind, keys, sender, armed_ms"


def keys_text(keys: Iterable[Key]) -> str:
    """Business keys as a column holds them: canonical JSON of [namespace, value] pairs, sorted."""
    return canonical.encode([list(pair) for pair in sorted({(key.namespace, key.value) for key in keys})]).decode()


def keys_of(column: Value) -> tuple[Key, ...]:
    """The keys of a column that ``keys_text`` made."""
    return tuple(Key(namespace=namespace, value=value) for namespace, value in json.loads(text(column)))


def _waiter(row: Row) -> Waiter:
    sender = None if row[4] is None else text(row[4])
    return Waiter(text(row[0]), raw(row[1]), text(row[2]), keys_of(row[3]), sender, number(row[5]))


def arm(tx: Tx, run: str, key: bytes, kind: str, keys: Sequence[Key], sender: str | None) -> None:
    """Have the wait announced under ``key`` be found by events of ``kind`` about all of ``keys``; armed before, it
    stays in its place in the order."""
    under = _least_crowded(tx, kind, keys)
    tx.run(
        "INSERT INTO subscription (tenant, run, key, kind, namespace, value, keys, sender, armed_ms) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (tenant, run, key) DO NOTHING",
        tx.tenant, run, key, kind, under.namespace, under.value, keys_text(keys), sender, tx.now_ms,
    )  # fmt: skip


def _least_crowded(tx: Tx, kind: str, keys: Sequence[Key]) -> Key:
    """A hundred thousand waits of one customer, each about an order of its own, are looked for by their order."""
    ordered = sorted(keys, key=lambda key: (key.namespace, key.value))
    if len(ordered) == 1:
        return ordered[0]
    return min(ordered, key=lambda key: _crowd(tx, kind, key))


def _crowd(tx: Tx, kind: str, key: Key) -> int:
    row = tx.one(
        "SELECT count(*) FROM (SELECT 1 FROM subscription WHERE tenant = ? AND kind = ? AND namespace = ? "
        "AND value = ? LIMIT ?)",
        tx.tenant, kind, key.namespace, key.value, COUNTED_UP_TO,
    )  # fmt: skip
    return 0 if row is None else number(row[0])


def disarm(tx: Tx, run: str, key: bytes) -> bool:
    """Take one subscription away; False when it is not there."""
    return tx.run("DELETE FROM subscription WHERE tenant = ? AND run = ? AND key = ?", tx.tenant, run, key) > 0


def disarm_run(tx: Tx, run: str) -> int:
    """Take every subscription of the run away; how many there were."""
    return tx.run("DELETE FROM subscription WHERE tenant = ? AND run = ?", tx.tenant, run)


def of_run(tx: Tx, run: str) -> list[Waiter]:
    """Every subscription of the run, by key."""
    rows = tx.all(
        f"SELECT {COLUMNS} FROM subscription WHERE tenant = ? AND run = ? ORDER BY key", tx.tenant, run
    )  # fmt: skip
    return [_waiter(row) for row in rows]


def waiters(
    tx: Tx, kind: str, keys: Sequence[Key], source: str, limit: int, after: tuple[int, str, bytes] | None = None
) -> list[Waiter]:
    """Waits that an event of ``kind`` from ``source`` about ``keys`` would end, oldest first by (armed, run, key);
    ``after`` is the last one's ``cursor``."""
    about = {(key.namespace, key.value) for key in keys}
    found = heapq.merge(
        *(
            _under(tx, kind, namespace, value, sender, after)
            for namespace, value in sorted(about)
            for sender in (None, source)
        ),
        key=lambda waiter: waiter.cursor,
    )
    chosen: list[Waiter] = []
    for waiter in found:
        if about.issuperset((key.namespace, key.value) for key in waiter.keys):
            chosen.append(waiter)
            if len(chosen) == limit:
                break
    return chosen


def _under(
    tx: Tx, kind: str, namespace: str, value: str, sender: str | None, after: tuple[int, str, bytes] | None
) -> Iterator[Waiter]:
    """Waits found under one key and asking for one sender (None: for none), oldest first, a page at a time."""
    at = after or (-1, "", b"")
    while True:
        rows = tx.all(
            f"SELECT {COLUMNS} FROM subscription WHERE tenant = ? AND kind = ? AND namespace = ? AND value = ? "
            "AND sender IS ? AND (armed_ms, run, key) > (?, ?, ?) ORDER BY armed_ms, run, key LIMIT ?",
            tx.tenant, kind, namespace, value, sender, *at, LOOKED_AT,
        )  # fmt: skip
        for row in rows:
            yield _waiter(row)
        if len(rows) < LOOKED_AT:
            return
        at = number(rows[-1][5]), text(rows[-1][0]), raw(rows[-1][1])
