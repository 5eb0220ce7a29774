"""A first skill: refund an order, effectively once."""

from __future__ import annotations

import msgspec

from agentplane import Call, DidNotHappen, Landed, Recovery, Step, effect, skill


class RefundRequest(msgspec.Struct, forbid_unknown_fields=True):
    order: str
    amount_minor: int
    currency: str = "EUR"


@effect("payments.refund", recovery=Recovery.IDEMPOTENT, key_window_s=72_000, timeout_s=10)
async def refund(call: Call, *, order: str, amount_minor: int, currency: str) -> dict:
    """Ask the provider for one refund; the key makes a repeat harmless."""
    answer = await call.http.post(
        call.setting("payments_url") + "/refunds",
        json={"order": order, "amount_minor": amount_minor, "currency": currency},
        headers={"Idempotency-Key": call.idempotency_key},
    )
    return answer.json()


@refund.reconcile
async def refund_landed(call: Call, *, order: str, amount_minor: int, currency: str) -> Landed | DidNotHappen:
    """Ask the provider what became of it, by the key it was sent under."""
    answer = await call.http.get(call.setting("payments_url") + "/refunds", params={"key": call.idempotency_key})
    rows = answer.json()
    return Landed(rows[0]) if rows else DidNotHappen()


@skill("refunds.issue")
async def issue(cx: Step, request: RefundRequest) -> dict:
    receipt = await cx.do(refund(order=request.order, amount_minor=request.amount_minor, currency=request.currency))
    return {"refund": receipt["id"], "order": request.order}
