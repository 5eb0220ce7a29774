"""A step that waits: for an instant, and, beside this module, for a message or a person.

Owns a wait's place, its announcement, and whether it has ended. Refuses to hold a task, a thread or a lease for it:
the step stops, and is walked to this place again when there is something to read back. Invariant: what is waited for is
recorded, so that every walk waits for the same.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import trio

from agentplane.authoring.effect import Effect
from agentplane.authoring.types import CallDescription
from agentplane.core import bounds
from agentplane.core.errors import InvalidRequest
from agentplane.core.history import SLEEP as KIND
from agentplane.core.history import Spot
from agentplane.core.instants import MAX_MS, to_text
from agentplane.core.recovery import Mode
from agentplane.core.retry import RetryPolicy
from agentplane.engine.dispatch import Bound, bind
from agentplane.engine.stops import Stop, Suspended, WouldPerform
from agentplane.engine.waits import Wait

if TYPE_CHECKING:
    from agentplane.engine.context import StepContext

Members = dict[str, object]


async def sleep(cx: StepContext, total_s: float) -> int:
    """Wait ``total_s`` seconds from a recorded now; the instant that was waited for, ms UTC."""
    return await sleep_until(cx, await instant_in(cx, total_s, "A sleep"))


async def sleep_until(cx: StepContext, instant: int | datetime) -> int:
    """Wait until ``instant``; it again, ms UTC. Raises Suspended, which latches, while it has not come."""
    cx.enter()
    due_ms = instant_ms(instant, "cx.sleep_until")

    def wait(members: Members, announced: bool) -> Wait:
        return Wait(
            members=members, kind=KIND, announced=announced, due_ms=due_ms, reason=f"waits until {to_text(due_ms)}"
        )

    await ended(cx, SLEEP(until=to_text(due_ms)), wait)
    return due_ms


async def ended(cx: StepContext, call: CallDescription, wait: Callable[[Members, bool], Wait]) -> Any:
    """The output of the wait that ``call`` describes. Raises Suspended, which latches, while it has not ended; ``wait``
    makes what the run is suspended on, from the announcement's members and whether it is recorded already."""
    bound = bind(call)
    spot = cx.take()
    series = cx.live.history.series.get(spot)
    if series is not None:
        cx.same_as_recorded([spot], [bound])
        if not series.waits:
            # It has its outcome: read back, or raised, as any other.
            return await cx.one(spot, bound)
    await trio.lowlevel.checkpoint()
    try:
        raise _waiting(cx, spot, bound, wait)
    except Stop as stop:
        raise cx.latching(stop) from None


def _waiting(cx: StepContext, spot: Spot, bound: Bound, wait: Callable[[Members, bool], Wait]) -> Suspended:
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
    one = wait(members, known is not None)
    return Suspended(one.reason, one)


async def instant_in(cx: StepContext, total_s: float, what: str) -> int:
    """The instant ``total_s`` seconds from a recorded now, ms UTC."""
    if isinstance(total_s, bool) or not 0 <= total_s <= bounds.SLEEP_MAX_S:
        raise InvalidRequest(f"{what} takes 0 to {bounds.SLEEP_MAX_S} seconds in all, not {total_s!r:.40}.")
    return await cx.now() + round(total_s * 1000)


def instant_ms(instant: object, what: str) -> int:
    """Raises InvalidRequest for what is no instant within the bounds of a record's time."""
    if isinstance(instant, datetime):
        if instant.tzinfo is None:
            raise InvalidRequest(f"{what} takes an aware datetime: give it a time zone, such as UTC.")
        instant = round(instant.timestamp() * 1000)
    if isinstance(instant, bool) or not isinstance(instant, int) or not 0 <= instant <= MAX_MS:
        raise InvalidRequest(f"{what} takes milliseconds UTC as a whole number, or an aware datetime.")
    return instant


def waiting_effect(kind: str, body: Any) -> Effect:
    """The effect of a wait: announced and ended, never performed."""
    return Effect(
        kind, body, mutates=False, recovery=Mode.RETRY, key_window_s=0, retry=RetryPolicy(), timeout_s=5,
        settle_s=0, local=True, secrets=(),
    )  # fmt: skip


async def never(*_: object, **__: object) -> Any:
    """The body of what is ended by the plane."""
    raise InvalidRequest("A wait is ended by the plane, never performed.")


async def _sleep(call: object, *, until: str) -> Any:
    await never()


SLEEP = waiting_effect(KIND, _sleep)
