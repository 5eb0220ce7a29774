"""A step that waits for an instant.

Owns the wait's place, its announcement, and whether it has ended. Refuses to hold a task, a thread or a lease for it:
the step stops, and is walked to this place again when it is time. Invariant: the instant is recorded, so that every
walk waits for the same one.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import trio

from agentplane.authoring.effect import Effect
from agentplane.authoring.types import Call
from agentplane.core import bounds
from agentplane.core.errors import InvalidRequest
from agentplane.core.history import Spot
from agentplane.core.instants import MAX_MS, to_text
from agentplane.core.recovery import Mode
from agentplane.core.retry import RetryPolicy
from agentplane.engine.dispatch import Bound, bind
from agentplane.engine.stops import Stop, Suspended, WouldPerform
from agentplane.engine.waits import Wait

if TYPE_CHECKING:
    from agentplane.engine.context import StepContext


async def sleep(cx: StepContext, total_s: float) -> int:
    """Wait ``total_s`` seconds from a recorded now; the instant that was waited for, ms UTC."""
    if not 0 <= total_s <= bounds.SLEEP_MAX_S:
        raise InvalidRequest(f"A sleep takes 0 to {bounds.SLEEP_MAX_S} seconds in all, not {total_s!r:.40}.")
    return await sleep_until(cx, await cx.now() + round(total_s * 1000))


async def sleep_until(cx: StepContext, instant: int | datetime) -> int:
    """Wait until ``instant``; it again, ms UTC. Raises Suspended, which latches, while it has not come."""
    cx.enter()
    due_ms = _instant_ms(instant)
    bound = bind(SLEEP(until=to_text(due_ms)))
    spot = cx.take()
    series = cx.live.history.series.get(spot)
    if series is not None:
        cx.same_as_recorded([spot], [bound])
        if not series.waits:
            # It has its outcome: read back, or raised, as any other.
            await cx.one(spot, bound)
            return due_ms
    await trio.lowlevel.checkpoint()
    try:
        raise _waiting(cx, spot, bound, due_ms)
    except Stop as stop:
        raise cx.latching(stop) from None


def _waiting(cx: StepContext, spot: Spot, bound: Bound, due_ms: int) -> Suspended:
    """The stop of a step that reached an open wait. Raises the stops of a boundary instead, where one is due."""
    live = cx.live
    known = live.history.series.get(spot)
    if live.strict:
        raise WouldPerform(f"step {spot.step}, ordinal {spot.ordinal}: the recorded wait has not ended")
    live.hear_cancel(deaf=cx.dispatcher.deaf)
    members, key = cx.dispatcher.announcement(spot, bound, 1, 0, known)
    if known is None and key not in live.reserved_waits:
        # Once, however often the step is walked before the run suspends.
        cx.dispatcher.within_budget(spot, members)
        live.reserved_waits.add(key)
    return Suspended(f"waits until {to_text(due_ms)}", Wait(members, due_ms, known is not None))


def _instant_ms(instant: object) -> int:
    """Raises InvalidRequest for what is no instant within the bounds of a record's time."""
    if isinstance(instant, datetime):
        if instant.tzinfo is None:
            raise InvalidRequest("cx.sleep_until takes an aware datetime: give it a time zone, such as UTC.")
        instant = round(instant.timestamp() * 1000)
    if isinstance(instant, bool) or not isinstance(instant, int) or not 0 <= instant <= MAX_MS:
        raise InvalidRequest("cx.sleep_until takes milliseconds UTC as a whole number, or an aware datetime.")
    return instant


async def _never(call: Call, *, until: str) -> int:
    raise InvalidRequest("A wait is ended by the plane, never performed.")


SLEEP = Effect(
    "timer.sleep", _never, mutates=False, recovery=Mode.RETRY, key_window_s=0, retry=RetryPolicy(), timeout_s=5,
    settle_s=0, local=True, secrets=(),
)  # fmt: skip
