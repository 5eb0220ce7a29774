"""Two branches side by side, a step that needs both, and another plan when the first does not work out."""

import tempfile

import trio

from agentplane import Plane, Replan, effect, given, node, output_of, plan, skill


@effect("price.ask", mutates=False)
async def price(call, *, shop: str) -> int:
    return {"north": 30, "south": 20}[shop]


@skill("offer.get")
async def offer(cx, request: dict) -> dict:
    return {"shop": request["shop"], "price": await cx.do(price(shop=request["shop"]))}


@skill("offer.choose")
async def choose(cx, request: dict) -> dict:
    best = min(request["offers"], key=lambda one: one["price"])
    if best["price"] > request["limit"]:
        raise Replan(f"{best['price']} is more than {request['limit']}")
    return best


@skill("offer.decline")
async def decline(cx, request: dict) -> dict:
    return {"declined": request["best"]}


NORTH = node("north", "offer.get", args={"shop": "north"})
SOUTH = node("south", "offer.get", args={"shop": "south"})
BUY = plan(
    "offer.buy",
    nodes=[
        NORTH,
        SOUTH,
        node("pair", "offer.pair", after=["north", "south"], args={"a": output_of("north"), "b": output_of("south")}),
        node("choose", "offer.choose", after="pair", args={"offers": output_of("pair"), "limit": given("limit")}),
    ],
)


@skill("offer.pair")
async def pair(cx, request: dict) -> list:
    return [request["a"], request["b"]]


@BUY.replan
def give_up(reason: str, request: dict, finished: dict) -> list:
    return [SOUTH, node("decline", "offer.decline", after="south", args={"best": output_of("south", "price")})]


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with Plane.open(f"{directory}/plane.db", skills=[offer, choose, decline, pair, BUY]) as plane:
            for limit in (25, 10):
                outcome = await plane.run("offer.buy", {"limit": limit})
                print(limit, outcome.status, outcome.output)


trio.run(main)
