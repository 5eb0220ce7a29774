"""Orders that wait: for the carrier's word, for the day of settlement, and for a person who releases the deposit.

The third application of the crash lab, written as an author would write one. It owns the provider's calls and what is
promised to the customer. It refuses to invoice what was not shipped in time: such an order is told so, and its case is
left to a person. What acts on an approval does so once, with the arguments that were allowed.
"""

from __future__ import annotations

from typing import Any

import msgspec

from agentplane import Call, DidNotHappen, Landed, Proposal, Recovery, Step, WaitTimedOut, effect, skill
from agentplane.authoring.effect import Effect

# A provider that commits late may show a deed so long after it was asked: no earlier probe counts (P5).
ASK_TIMEOUT_S = 1
ASK_SETTLE_S = 0.5
SETTLE_EARLIER_MS = 12 * 3_600_000
"""How long before the settlement is due it is made."""
REVIEW_DAYS = 2


class Order(msgspec.Struct, forbid_unknown_fields=True):
    """One order; the deposit in minor units; ``recovery``: how its deeds recover; ``patience_h``: hours that the
    carrier has."""

    order: str
    amount_minor: int
    currency: str
    recovery: str
    patience_h: int


def _deed(kind: str, path: str, recovery: Recovery, timeout_s: float, settle_s: float) -> Effect:
    """An effect that posts a deed of an order, with a probe that asks for it by its key."""

    @effect(kind, recovery=recovery, timeout_s=timeout_s, settle_s=settle_s)
    async def post(call: Call, *, order: str) -> dict[str, Any]:
        return await _post(call, path, {"order": order})

    @post.reconcile
    async def landed(call: Call, *, order: str) -> Landed | DidNotHappen:
        return await _became_of(call, path)

    return post


def _refund(kind: str, recovery: Recovery, timeout_s: float, settle_s: float) -> Effect:
    @effect(kind, recovery=recovery, timeout_s=timeout_s, settle_s=settle_s)
    async def post(call: Call, *, order: str, amount_minor: int, currency: str) -> dict[str, Any]:
        return await _post(call, "/refunds", {"order": order, "amount_minor": amount_minor, "currency": currency})

    @post.reconcile
    async def landed(call: Call, *, order: str, amount_minor: int, currency: str) -> Landed | DidNotHappen:
        return await _became_of(call, "/refunds")

    return post


async def _post(call: Call, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await call.http.post(
        call.setting("provider_url") + path, json=body, headers={"Idempotency-Key": call.idempotency_key}
    )
    return answer.json()


async def _became_of(call: Call, path: str) -> Landed | DidNotHappen:
    answer = await call.http.get(call.setting("provider_url") + path, params={"key": call.idempotency_key})
    rows = answer.json()
    return Landed(rows[0]) if rows else DidNotHappen()


def _each(word: str, path: str) -> dict[str, Effect]:
    return {
        "keyed": _deed(f"{word}.keyed", path, Recovery.IDEMPOTENT, 5, 1),
        "asked": _deed(f"{word}.asked", path, Recovery.RECONCILE, ASK_TIMEOUT_S, ASK_SETTLE_S),
    }


RESERVE = _each("reserve", "/reservations")
INVOICE = _each("invoice", "/invoices")
NOTICE = _each("notice", "/notices")
REFUND = {
    "keyed": _refund("refund.keyed", Recovery.IDEMPOTENT, 5, 1),
    "asked": _refund("refund.asked", Recovery.RECONCILE, ASK_TIMEOUT_S, ASK_SETTLE_S),
}
TALLY = _deed("receipt.keyed", "/receipts", Recovery.IDEMPOTENT, 5, 1)


@skill("order.overnight")
async def overnight(cx: Step, order: Order) -> str:
    """One order from its reservation to its deposit, or to the day on which nobody had shipped it."""
    how = order.recovery
    await cx.do(RESERVE[how](order=order.order))
    await cx.deadline("shipped", hours=order.patience_h)
    await cx.case.set_status("awaiting_external")
    try:
        await cx.event("shipment.sent", correlation={"order": order.order}, deadline="shipped")
    except WaitTimedOut:
        await cx.do(NOTICE[how](order=order.order))
        return "late"
    await cx.met("shipped")
    due_ms = await cx.deadline("settled", working_days=2, at="17:00", tz="Europe/Berlin", holidays="DE-BE")
    await cx.sleep_until(due_ms - SETTLE_EARLIER_MS)
    await cx.do(INVOICE[how](order=order.order))
    await cx.met("settled")
    await cx.case.set_status("awaiting_human")
    call = REFUND[how](order=order.order, amount_minor=order.amount_minor, currency=order.currency)
    decision = await cx.task(
        Proposal(summary=f"Release the deposit of {order.order}?", action=call, due=REVIEW_DAYS * 86_400)
    )
    if decision.approved:
        await cx.do(call, approval=decision)
    await cx.case.close()
    return decision.outcome


@skill("night.tally")
async def tally(cx: Step, request: dict[str, Any]) -> str:
    """What is done every night: one receipt, under a name of its own."""
    made = await cx.do(TALLY(order=f"night-{await cx.uuid()}"))
    return str(made["id"])
