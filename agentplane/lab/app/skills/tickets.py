"""Settle a support ticket: look the order up, refund or reship it, and tell the customer.

The application of the crash lab, written as an author would write one. It owns the provider's calls and says
of each how it recovers: most are recognised by their key, some can only be asked after, one needs a person.
It refuses to guess: an answer that names no reference is an error of the effect, not of the ticket. A refund above the
ceiling is a person's to allow; what acts on that is written carelessly on purpose and acts twice, so that a plane
which let one approval pay twice would pay twice here.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec

from agentplane import ApprovalRefused, Call, DidNotHappen, Landed, Proposal, Recovery, Step, effect, skill
from agentplane.authoring.types import CallDescription

# A provider that commits late may show a refund so long after it was asked: no earlier probe counts (P5).
ASK_TIMEOUT_S = 2
ASK_SETTLE_S = 1
CEILING_MINOR = 30_000
REVIEW_S = 5
"""How long a reviewer has before their supervisors are asked as well."""


class Ticket(msgspec.Struct, forbid_unknown_fields=True):
    """One ticket; the amount in minor units of the currency."""

    ticket: str
    order: str
    kind: str
    amount_minor: int
    currency: str
    recovery: str


async def _post(call: Call, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await call.http.post(
        call.setting("provider_url") + path, json=body, headers={"Idempotency-Key": call.idempotency_key}
    )
    return answer.json()


async def _became_of(call: Call, path: str) -> Landed | DidNotHappen:
    answer = await call.http.get(call.setting("provider_url") + path, params={"key": call.idempotency_key})
    rows = answer.json()
    return Landed(rows[0]) if rows else DidNotHappen()


@effect("order.look", mutates=False, recovery=Recovery.RETRY, timeout_s=5)
async def look(call: Call, *, order: str) -> dict[str, Any]:
    """What the provider knows of an order."""
    answer = await call.http.get(call.setting("provider_url") + "/orders/" + order)
    return answer.json()


@effect("refund.keyed", recovery=Recovery.IDEMPOTENT, key_window_s=72_000, timeout_s=5)
async def refund_keyed(call: Call, *, order: str, amount_minor: int, currency: str) -> dict[str, Any]:
    """A refund by a provider that recognises the key."""
    return await _post(call, "/refunds", {"order": order, "amount_minor": amount_minor, "currency": currency})


@effect("refund.asked", recovery=Recovery.RECONCILE, timeout_s=ASK_TIMEOUT_S, settle_s=ASK_SETTLE_S)
async def refund_asked(call: Call, *, order: str, amount_minor: int, currency: str) -> dict[str, Any]:
    """A refund by a provider that pays again when told again, and can be asked."""
    return await _post(call, "/refunds", {"order": order, "amount_minor": amount_minor, "currency": currency})


@refund_asked.reconcile
async def refund_landed(call: Call, *, order: str, amount_minor: int, currency: str) -> Landed | DidNotHappen:
    """Ask for the refund by its key."""
    return await _became_of(call, "/refunds")


@effect("refund.manual", timeout_s=5)
async def refund_manual(call: Call, *, order: str, amount_minor: int, currency: str) -> dict[str, Any]:
    """A refund of which only a person may say what became of it: no recovery is named, so none is assumed."""
    return await _post(call, "/refunds", {"order": order, "amount_minor": amount_minor, "currency": currency})


@effect("reship.keyed", recovery=Recovery.IDEMPOTENT, key_window_s=72_000, timeout_s=5)
async def reship_keyed(call: Call, *, order: str) -> dict[str, Any]:
    """Send the goods again, recognised by the key."""
    return await _post(call, "/reships", {"order": order})


@effect("reship.asked", recovery=Recovery.RECONCILE, timeout_s=ASK_TIMEOUT_S, settle_s=ASK_SETTLE_S)
async def reship_asked(call: Call, *, order: str) -> dict[str, Any]:
    """Send the goods again, where every request is a parcel."""
    return await _post(call, "/reships", {"order": order})


@reship_asked.reconcile
async def reship_landed(call: Call, *, order: str) -> Landed | DidNotHappen:
    """Ask for the parcel by its key."""
    return await _became_of(call, "/reships")


@effect("notice.keyed", recovery=Recovery.IDEMPOTENT, key_window_s=72_000, timeout_s=5)
async def notice_keyed(call: Call, *, order: str, text: str) -> dict[str, Any]:
    """Tell the customer, recognised by the key."""
    return await _post(call, "/notices", {"order": order, "text": text})


@effect("notice.asked", recovery=Recovery.RECONCILE, timeout_s=ASK_TIMEOUT_S, settle_s=ASK_SETTLE_S)
async def notice_asked(call: Call, *, order: str, text: str) -> dict[str, Any]:
    """Tell the customer, where every request is a letter."""
    return await _post(call, "/notices", {"order": order, "text": text})


@notice_asked.reconcile
async def notice_landed(call: Call, *, order: str, text: str) -> Landed | DidNotHappen:
    """Ask for the letter by its key."""
    return await _became_of(call, "/notices")


REFUNDS = {"idempotent": refund_keyed, "reconcile": refund_asked, "operator": refund_manual}
RESHIPS = {"idempotent": reship_keyed, "reconcile": reship_asked}
NOTICES = {"idempotent": notice_keyed, "reconcile": notice_asked, "operator": notice_keyed}


async def allowed(cx: Step, ticket: Ticket, call: CallDescription) -> dict[str, Any]:
    """A refund that a person allows, as they allow it; without a reference where they do not."""
    decision = await cx.task(
        Proposal(
            summary=f"Refund order {ticket.order}: it is above the ceiling.", action=call, cost=ticket.amount_minor,
            due=REVIEW_S, on_expiry="escalate", escalate_to=["supervisor"],
        )
    )  # fmt: skip
    if not decision.approved:
        return {"id": None}
    done: dict[str, Any] = await cx.do(call, approval=decision)
    with suppress(ApprovalRefused):
        await cx.do(call, approval=decision)  # the careless second act: one approval is one refund
    return done


@skill("tickets.settle")
async def settle(cx: Step, ticket: Ticket) -> dict[str, Any]:
    """Settle one ticket; answers the provider's references."""
    await cx.do(look(order=ticket.order))
    if ticket.kind == "refund":
        refund = REFUNDS[ticket.recovery]
        call = refund(order=ticket.order, amount_minor=ticket.amount_minor, currency=ticket.currency)
        done = await (cx.do(call) if ticket.amount_minor <= CEILING_MINOR else allowed(cx, ticket, call))
        text = f"Your refund is {done['id']}."
    elif ticket.kind == "reship":
        done = await cx.do(RESHIPS[ticket.recovery](order=ticket.order))
        text = f"Your parcel is {done['id']}."
    else:
        done = {"id": None}
        text = "A person will look at your order."
    notice = await cx.do(NOTICES[ticket.recovery](order=ticket.order, text=text))
    return {"ticket": ticket.ticket, "reference": done["id"], "notice": notice["id"]}
