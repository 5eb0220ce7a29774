"""A plan whose last step fails: what was done before it is taken back, the latest first."""

import tempfile

import trio

from agentplane import Plane, Recovery, effect, node, plan, skill

BOOK = []


@effect("shop.move", recovery=Recovery.IDEMPOTENT)
async def move(call, *, deed: str, order: str) -> dict:
    BOOK.append(deed)
    return {"deed": deed, "key": call.idempotency_key}


@skill("stock.reserve")
async def reserve(cx, request: dict) -> dict:
    return await cx.do(move(deed="reserve", order=request["order"]))


@reserve.compensate
async def unreserve(cx, request: dict, output: dict | None) -> None:
    await cx.do(move(deed="release", order=request["order"]))


@skill("card.authorise")
async def authorise(cx, request: dict) -> dict:
    return await cx.do(move(deed="authorise", order=request["order"]))


@authorise.compensate
async def void(cx, request: dict, output: dict | None) -> None:
    await cx.do(move(deed="void", order=request["order"]))


@skill("parcel.ship")
async def ship(cx, request: dict) -> dict:
    raise ValueError("no truck today")


ORDER = plan(
    "order.take",
    nodes=[
        node("reserve", "stock.reserve"),
        node("authorise", "card.authorise", after="reserve"),
        node("ship", "parcel.ship", after="authorise"),
    ],
)


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with Plane.open(f"{directory}/plane.db", skills=[reserve, authorise, ship, ORDER]) as plane:
            outcome = await plane.run("order.take", {"order": "A-1"})
            print(outcome.status, "-", outcome.reason)
            print(", ".join(BOOK))


trio.run(main)
