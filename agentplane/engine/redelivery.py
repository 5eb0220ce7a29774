"""What came for a run and was left: messages that are waited for, decisions not told, claims without an outcome.

Owns the passes that finish a delivery, and the ageing of what nobody claims. Refuses to walk every wait: only what was
marked when it came is looked at. Invariant: an event leaves the buffer once, to a wait or to the dead letters, and a
decision reaches a run that waits for it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import trio

from agentplane.core import bounds
from agentplane.engine.delivery import Delivery
from agentplane.engine.waits import Ending, came
from agentplane.engine.waking import May, Trying
from agentplane.journal.leases import Lease
from agentplane.journal.tx import Tx
from agentplane.work import events, tasks

if TYPE_CHECKING:
    from agentplane.engine.sweep import Ticked


class Redelivery:
    """Of one plane. ``kept_s``: how long an event waits for somebody to claim it."""

    def __init__(self, delivery: Delivery, kept_s: int = bounds.EVENT_KEPT_S) -> None:
        self.delivery = delivery
        self.waker = delivery.waker
        self.kept_s = kept_s
        self._after = ""
        self._claimed = ""
        self._decided: tuple[int, str] | None = None

    async def once(self, ticked: Ticked) -> None:
        """Finish what can be finished; what cannot is passed over, so that it never stands before what can."""
        read = self.waker.runs.read
        claimed = await read(partial(events.claimed, limit=bounds.SWEEP_DELIVERIES, after=self._claimed))
        self._claimed = claimed[-1].event if len(claimed) == bounds.SWEEP_DELIVERIES else ""
        for letter in claimed:
            if self.waker.is_free(letter.run or "") and await self.waker.take(
                letter.run or "", partial(self._finish, event=letter.event)
            ):
                ticked.redelivered.append(letter.run or "")
        await self._parked(ticked)
        undelivered = await read(partial(tasks.undelivered, limit=bounds.SWEEP_DELIVERIES, after=self._decided))
        full = len(undelivered) == bounds.SWEEP_DELIVERIES
        self._decided = (undelivered[-1].decided_ms or 0, undelivered[-1].task) if full else None
        for row in undelivered:
            if self.waker.is_free(row.run) and await self.waker.take(row.run, partial(self._tell, task=row.task)):
                ticked.redelivered.append(row.run)
        # From where this pass ended the next goes on, at once, as long as any of it could be delivered.
        if ticked.redelivered and (self._claimed or self._after or full):
            ticked.full.redeliveries = True

    async def _parked(self, ticked: Ticked) -> None:
        """A batch of the events that somebody waits for, from where the last pass ended."""
        page = await self.waker.runs.read(partial(events.parked, limit=bounds.SWEEP_DELIVERIES, after=self._after))
        self._after = page[-1].event if len(page) == bounds.SWEEP_DELIVERIES else ""
        for row in page:
            with trio.CancelScope(shield=True):
                lease = await self.waker.do(partial(self._match, row.event))
                if lease is not None and await self.waker.begin(lease):
                    ticked.redelivered.append(lease.run)

    def _match(self, event: str, tx: Tx, trying: Trying) -> Lease | None:
        return self.delivery.match(tx, event, trying) if events.is_buffered(tx, event) else None

    async def age_out(self, now_ms: int, ticked: Ticked) -> None:
        """Events that nobody claimed in their time are dead letters, told and kept."""
        before_ms = now_ms - self.kept_s * 1000
        if not await self.waker.runs.read(partial(events.has_older, before_ms=before_ms)):
            return
        moved = await self.waker.runs.writer.do(
            lambda tx: events.age_out(tx, before_ms, bounds.SWEEP_UNIT, "nobody waited for it in its time")
        )
        ticked.dead_lettered += moved
        ticked.full.dead_letters = moved == bounds.SWEEP_UNIT

    def _finish(self, tx: Tx, event: str) -> Lease | None:
        """A claim whose outcome was not recorded, in a store of two: the outcome now."""
        row = events.get(tx, event)
        if row.run is None or row.key is None or row.state != "claimed":
            return None
        if not events.is_open_wait(tx, row.run, row.key):
            events.retire(tx, event)
            return None
        if self.waker.may(tx, row.run) is not May.NOW:
            return None
        return self.waker.wake(tx, row.run, row.key, came(row))

    def _tell(self, tx: Tx, task: str) -> Lease | None:
        row = tasks.get(tx, task)
        if row.decision is None or row.delivered or self.waker.may(tx, row.run) is not May.NOW:
            return None
        return self.waker.wake(tx, row.run, row.key, Ending(output=row.decision, by=row.decided_by))
