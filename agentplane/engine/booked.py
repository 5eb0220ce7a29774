"""Calls on the plane's own books: cases and their obligations, read and written only as effects.

Owns the one way such a call is made: its announcement, its outcome and the change of the row are one unit, so that
there is never doubt about one. Refuses to write over what somebody else wrote: a lost comparison is a recorded failure.
Invariant: a replay reads the outcome back and touches no row.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from agentplane.authoring.effect import Effect
from agentplane.authoring.types import CallDescription
from agentplane.core.dispositions import Disposition
from agentplane.core.errors import InvalidRequest, Refusal, Row
from agentplane.core.history import Series, Spot
from agentplane.core.records import EffectDone, EffectFailed, EffectStarted, Fault
from agentplane.core.recovery import Mode
from agentplane.core.retry import RetryPolicy
from agentplane.engine.dispatch import Bound, bind, is_asked_again
from agentplane.engine.linking import Spec, place_of
from agentplane.engine.stops import Quarantine, WouldPerform
from agentplane.journal.tx import Tx

if TYPE_CHECKING:
    from agentplane.engine.context import StepContext


class BookMoved(Refusal):
    """What was read before the unit is not what stands in it: the call is made again from what stands now."""

    row = Row("book_moved", "us", 4, 409, "Read again, and go on.")


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """What one call comes to: its output or its fault, the records beside it, and the change of the row.

    ``change`` raises BookMoved, or another declared refusal, where what the entry was made from does not stand any
    more."""

    output: object = None
    fault: Fault | None = None
    specs: tuple[Spec, ...] = ()
    change: Callable[[Tx], object] | None = None


Prepare = Callable[[Tx], Entry]


def refused(code: str, message: str) -> Entry:
    return Entry(fault=Fault(code=code, message=message))


async def booked(cx: StepContext, call: CallDescription, prepare: Prepare) -> Any:
    """The output of a call on the books. Raises EffectFailed with what refused it.

    ``prepare`` makes the entry from committed rows; it is asked again while the rows move under it.
    """
    cx.enter()
    bound = bind(call)
    spot = cx.take()
    series = cx.live.history.series.get(spot)
    if series is not None:
        if series.last.outcome is None:
            # No commit leaves it: the records are not what this build writes.
            half = f"step {spot.step}, ordinal {spot.ordinal}: half of an entry on the books"
            raise cx.latching(Quarantine(half, "journal_corrupt"))
        if not cx.live.strict and is_asked_again(cx.dispatcher, series, bound):
            # A person asked a refusal again: it is made from what stands now, as the first time.
            await cx.within(_enter_it, cx, spot, bound, prepare, series)
        return await cx.one(spot, bound)
    if cx.live.strict:
        raise cx.latching(WouldPerform(f"step {spot.step}, ordinal {spot.ordinal}: the history has nothing there"))
    await cx.within(_enter_it, cx, spot, bound, prepare)
    return await cx.one(spot, bound)


async def _enter_it(cx: StepContext, spot: Spot, bound: Bound, prepare: Prepare, series: Series | None = None) -> None:
    live, dispatcher = cx.live, cx.dispatcher
    live.hear_cancel(deaf=dispatcher.deaf)
    await live.room(deaf=dispatcher.deaf)
    await live.log.room()
    attempt = 1 if series is None else series.first.attempt + len(series.trials)
    members, _ = dispatcher.announcement(spot, bound, attempt, 0, series)
    dispatcher.within_budget(spot, members)
    try:
        await _append(live.read, live.log.barrier, members, prepare, live.world.now_ms)
    finally:
        if str(members["effect_key"]) not in live.history.by_key:
            live.history.ledger.unreserve_effect()


async def _append(
    read: Callable[[Prepare], Awaitable[Any]], barrier: Callable[..., Awaitable[Any]], members: dict[str, object],
    prepare: Prepare, now_ms: Callable[[], int],
) -> None:  # fmt: skip
    def at_its_time(tx: Tx) -> Entry:
        tx.now_ms = now_ms()
        return prepare(tx)

    while True:
        entry: Entry = await read(at_its_time)
        outcome: Spec = (EffectDone, place_of(members) | {"output": entry.output})
        if entry.fault is not None:
            outcome = (EffectFailed, place_of(members) | {
                "fault": entry.fault, "disposition": Disposition.DID_NOT_HAPPEN, "permanent": True,
            })  # fmt: skip
        try:
            await barrier((EffectStarted, members), outcome, *entry.specs, extra=entry.change)
            return
        except BookMoved:
            continue


def book_effect(kind: str, body: Any) -> Effect:
    """The effect of a call on the books."""
    return Effect(
        kind, body, mutates=False, recovery=Mode.RETRY, key_window_s=0, retry=RetryPolicy(), timeout_s=5, settle_s=0,
        local=True, secrets=(),
    )  # fmt: skip


async def unperformed() -> Any:
    """The body of what is done in a unit."""
    raise InvalidRequest("A call on the books is made by the plane, in one unit with its records.")
