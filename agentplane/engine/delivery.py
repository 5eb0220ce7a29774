"""Taking in what comes from outside for a run: a message, a person's decision.

Owns the units that store, match and claim, and what the deliverer is told. Refuses a restored store that is held.
Invariant: an event is durable before it is matched, it ends one wait at most, and whoever delivers it again is told of
the first time; a decision is recorded once, and reaches its run once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec
import trio

from agentplane.core import ids
from agentplane.core.canonical import encode
from agentplane.core.cloudevents import Incoming
from agentplane.core.correlation import event_dedup
from agentplane.core.errors import Held, InvalidEvent
from agentplane.engine.waits import came
from agentplane.engine.waking import May, Trying, Waker
from agentplane.journal import lists
from agentplane.journal.leases import Lease
from agentplane.journal.subscriptions import Waiter
from agentplane.journal.tx import Tx
from agentplane.work import events

WAITERS_A_PAGE = 32
WAITERS_PAGES = 16
"""Pages of waiters that one unit looks at; behind so many that cannot be woken an event waits in the buffer."""


class Delivered(msgspec.Struct, frozen=True, kw_only=True):
    """``delivery``: resumed (``run`` goes on), buffered, or duplicate (``run`` took the first, if one did)."""

    event: str
    delivery: str
    run: str | None = None


class Delivery:
    """Of one plane."""

    def __init__(self, waker: Waker) -> None:
        self.waker = waker

    async def deliver(self, incoming: Incoming, source: str) -> Delivered:
        """Take an event in from ``source``, the authenticated deliverer. Raises Held."""
        world = self.waker.runs.world
        event = ids.new_id("evt", world.now_ms(), os.urandom(10))
        payload = encode(incoming.payload)
        if any(secret in payload for secret in world.secrets.handed_out()):
            raise InvalidEvent("The event holds a secret that this plane was handed; nothing of it was stored.")
        dedup = event_dedup(source, incoming.producer, incoming.id)

        def unit(tx: Tx, trying: Trying) -> tuple[Delivered, Lease | None]:
            if lists.get_state(tx, "held") is not None:
                raise Held("The store was restored and is held; no event is taken in before it is released.")
            seen = events.store(
                tx, event, dedup, source, incoming.producer, incoming.id, incoming.kind, incoming.keys, payload,
                tx.now_ms,
            )  # fmt: skip
            if seen is not None:
                return Delivered(event=seen.event, delivery="duplicate", run=seen.run), None
            lease = self.match(tx, event, trying)
            if lease is None:
                return Delivered(event=event, delivery="buffered"), None
            return Delivered(event=event, delivery="resumed", run=lease.run), lease

        # Cut between the commit and the beginning, a woken run's lease would be left to lapse.
        with trio.CancelScope(shield=True):
            told, lease = await self.waker.do(unit)
            world.observe("event.stored", effect=told.event)
            if lease is not None:
                await self.waker.begin(lease)
        return told

    def _waiters(self, tx: Tx, row: events.Buffered) -> Iterator[Waiter]:
        """Whom the event would wake, the oldest first, up to a bound."""
        after: tuple[int, str, bytes] | None = None
        for _ in range(WAITERS_PAGES):
            page = events.waiters(tx, row.kind, row.keys, row.source, WAITERS_A_PAGE, after)
            yield from page
            if len(page) < WAITERS_A_PAGE:
                return
            after = page[-1].cursor

    def match(self, tx: Tx, event: str, trying: Trying) -> Lease | None:
        """Inside a unit: the oldest wait that the event ends, ended; None where it stays in the buffer, marked when
        somebody waits for it."""
        row = events.get(tx, event)
        waited_for = False
        for waiter in self._waiters(tx, row):
            waited_for = True
            may = self.waker.may(tx, waiter.run)
            if may is May.NOW:
                ending = came(row)
                return self.waker.wake(tx, waiter.run, waiter.key, ending, trying)
            if may is May.LATER:
                break  # it is the oldest, and looks itself before it suspends
        events.park(tx, event, waited_for)
        return None
