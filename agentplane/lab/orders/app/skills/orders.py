"""Take an order: reserve, authorise, book and confirm as one group; pack and invoice side by side; ship; a receipt.

The second application of the crash lab, written as an author would write one. It owns the provider's calls, what takes
each back, and which step is the point of no return. It refuses to take anything back from memory: a compensation asks
the provider what stands, since the step that it undoes may never have returned. One kind of order is written wrongly on
purpose: its step returns and forgets the group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from agentplane import (
    Call,
    Compensation,
    DidNotHappen,
    Invariant,
    Landed,
    Recovery,
    Step,
    effect,
    node,
    plan,
    skill,
    sql,
)
from agentplane.authoring.effect import Effect
from agentplane.authoring.types import CallDescription, Group

# A provider that commits late may show a deed so long after it was asked: no earlier probe counts (P5).
ASK_TIMEOUT_S = 1
ASK_SETTLE_S = 0.5
SLOW_TIMEOUT_S = 1
SLOW_SETTLE_S = 3
PICKING_S = 0.2

SALE = "INSERT INTO app_ledger (order_id, kind, amount_minor) VALUES (?, 'sale', ?)"
RETURN = (
    "INSERT INTO app_ledger (order_id, kind, amount_minor) "
    "SELECT order_id, 'return', -amount_minor FROM app_ledger WHERE order_id = ? AND kind = 'sale'"
)


class Order(msgspec.Struct, forbid_unknown_fields=True):
    """One order; amounts in minor units. ``recovery``: how its deeds recover; ``waits``: where it sleeps."""

    order: str
    amount_minor: int
    limit_minor: int
    recovery: str
    slow: bool = False
    forgets: bool = False
    waits: str = ""


async def _post(call: Call, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await call.http.post(
        call.setting("provider_url") + path, json=body, headers={"Idempotency-Key": call.idempotency_key}
    )
    return answer.json()


async def _became_of(call: Call, path: str) -> Landed | DidNotHappen:
    answer = await call.http.get(call.setting("provider_url") + path, params={"key": call.idempotency_key})
    rows = answer.json()
    return Landed(rows[0]) if rows else DidNotHappen()


def _deed(kind: str, path: str, recovery: Recovery, timeout_s: float, settle_s: float) -> Effect:
    """An effect that posts a deed of an order, with a probe where a machine may ask."""

    @effect(kind, recovery=recovery, timeout_s=timeout_s, settle_s=settle_s)
    async def post(call: Call, *, order: str) -> dict[str, Any]:
        return await _post(call, path, {"order": order})

    if recovery is not Recovery.REQUIRES_OPERATOR:

        @post.reconcile
        async def landed(call: Call, *, order: str) -> Landed | DidNotHappen:
            return await _became_of(call, path)

    return post


def _reversal(kind: str, path: str, recovery: Recovery, timeout_s: float, settle_s: float) -> Effect:
    """An effect that takes back the deed ``of``."""

    @effect(kind, recovery=recovery, timeout_s=timeout_s, settle_s=settle_s)
    async def post(call: Call, *, order: str, of: str) -> dict[str, Any]:
        return await _post(call, path, {"order": order, "of": of})

    if recovery is not Recovery.REQUIRES_OPERATOR:

        @post.reconcile
        async def landed(call: Call, *, order: str, of: str) -> Landed | DidNotHappen:
            return await _became_of(call, path)

    return post


def _each(make: Callable[..., Effect], word: str, path: str) -> dict[str, Effect]:
    """By how an order recovers: recognised by its key, asked after, or a person's."""
    return {
        "keyed": make(f"{word}.keyed", path, Recovery.IDEMPOTENT, 5, 1),
        "asked": make(f"{word}.asked", path, Recovery.RECONCILE, ASK_TIMEOUT_S, ASK_SETTLE_S),
        "manual": make(f"{word}.manual", path, Recovery.REQUIRES_OPERATOR, 5, 1),
    }


RESERVE = _each(_deed, "reserve", "/reservations")
AUTHORISE = _each(_deed, "authorise", "/authorisations")
NOTICE = _each(_deed, "notice", "/notices")
PACK = _each(_deed, "pack", "/parcels")
INVOICE = _each(_deed, "invoice", "/invoices")
SHIP = _each(_deed, "ship", "/shipments")
RECEIPT = _each(_deed, "receipt", "/receipts")
PACK_SLOWLY = _deed("pack.slow", "/parcels", Recovery.RECONCILE, SLOW_TIMEOUT_S, SLOW_SETTLE_S)

BACK = {
    "/reservations": _each(_reversal, "release", "/releases"),
    "/authorisations": _each(_reversal, "void", "/voids"),
    "/parcels": _each(_reversal, "return", "/returns"),
    "/invoices": _each(_reversal, "credit", "/credits"),
    "/notices": _each(_reversal, "retract", "/retractions"),
}


@effect("deeds.look", mutates=False, recovery=Recovery.RETRY, timeout_s=5)
async def deeds(call: Call, *, order: str) -> list[dict[str, Any]]:
    """Every deed of an order at the provider, oldest first."""
    answer = await call.http.get(call.setting("provider_url") + "/deeds", params={"order": order})
    return answer.json()


def _standing(rows: list[dict[str, Any]], *paths: str) -> list[dict[str, Any]]:
    undone = {row.get("of") for row in rows}
    return [row for row in rows if row["path"] in paths and row["id"] not in undone]


def _back(order: Order, row: dict[str, Any]) -> CallDescription:
    return BACK[row["path"]][order.recovery](order=order.order, of=row["id"])


@skill("order.checkout")
async def checkout(cx: Step, order: Order) -> dict[str, Any]:
    """Reserve, authorise, enter the sale and tell the customer: all of it, or none."""
    how = order.recovery
    if order.forgets:
        group = await cx.group("checkout", ["inventory", "payments", "ledger", "mail"])
        return await _held(group, order)
    async with cx.group("checkout", ["inventory", "payments", "ledger", "mail"]) as group:
        await group.read("inventory", deeds(order=order.order))
        held = await _held(group, order)
        if order.waits == "group":
            await cx.sleep(seconds=PICKING_S)
        group.atomic("ledger", sql(SALE, order.order, order.amount_minor, rows=1))
        group.deferred("mail", NOTICE[how](order=order.order))
        await group.commit(Invariant("the amount is within the limit", order.amount_minor <= order.limit_minor))
    return held


async def _held(group: Group, order: Order) -> dict[str, Any]:
    how = order.recovery
    reserved = await group.reversible(
        "inventory", RESERVE[how](order=order.order),
        undo=lambda made: BACK["/reservations"][how](order=order.order, of=made["id"]),
    )  # fmt: skip
    authorised = await group.reversible(
        "payments", AUTHORISE[how](order=order.order),
        undo=lambda made: BACK["/authorisations"][how](order=order.order, of=made["id"]),
    )  # fmt: skip
    return {"reservation": reserved["id"], "authorisation": authorised["id"]}


@checkout.compensate
async def take_back(cx: Step, order: Order, output: object) -> str:
    """Enter the return, then release, void and retract: a group again, past its frontier with the ledger."""
    rows = await cx.do(deeds(order=order.order))
    async with cx.group("take back", ["inventory", "payments", "ledger", "mail"]) as group:
        group.atomic("ledger", sql(RETURN, order.order, rows=1))
        for row in _standing(rows, "/notices", "/authorisations", "/reservations"):
            group.deferred("mail" if row["path"] == "/notices" else "payments", _back(order, row))
        if order.waits == "back":
            await cx.sleep(seconds=PICKING_S)
        await group.commit()
    return "taken back"


@skill("order.pack")
async def pack(cx: Step, order: Order) -> str:
    if order.waits == "pack":
        await cx.sleep(seconds=PICKING_S)
    post = PACK_SLOWLY if order.slow else PACK[order.recovery]
    parcel = await cx.do(post(order=order.order))
    return str(parcel["id"])


@pack.compensate
async def unpack(cx: Step, order: Order, output: object) -> int:
    return await _undo(cx, order, "/parcels")


@skill("order.invoice")
async def invoice(cx: Step, order: Order) -> str:
    made = await cx.do(INVOICE[order.recovery](order=order.order))
    return str(made["id"])


@invoice.compensate
async def credit(cx: Step, order: Order, output: object) -> int:
    if order.waits == "back":
        await cx.sleep(seconds=PICKING_S)
    return await _undo(cx, order, "/invoices")


async def _undo(cx: Step, order: Order, path: str) -> int:
    rows = _standing(await cx.do(deeds(order=order.order)), path)
    for row in rows:
        await cx.do(_back(order, row))
    return len(rows)


@skill("order.ship", compensation=Compensation.PIVOT)
async def ship(cx: Step, order: Order) -> str:
    shipped = await cx.do(SHIP[order.recovery](order=order.order))
    return str(shipped["id"])


@skill("order.receipt", compensation=Compensation.UNNECESSARY)
async def receipt(cx: Step, order: Order) -> str:
    made = await cx.do(RECEIPT[order.recovery](order=order.order))
    return str(made["id"])


take = plan(
    "order.take",
    nodes=[
        node("checkout", "order.checkout"),
        node("pack", "order.pack", after="checkout"),
        node("invoice", "order.invoice", after="checkout"),
        node("ship", "order.ship", after=["pack", "invoice"]),
        node("receipt", "order.receipt", after="ship"),
    ],
    request=Order,
)
