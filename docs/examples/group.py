"""A step that does three things, and gives back the two that can be given back: the mail was never sent."""

import tempfile

import trio

from agentplane import GroupAborted, Invariant, Plane, Recovery, effect, skill

BOOK = []


@effect("shop.move", recovery=Recovery.IDEMPOTENT)
async def move(call, *, deed: str) -> dict:
    BOOK.append(deed)
    return {"id": f"{deed}-7"}


@effect("shop.look", mutates=False)
async def look(call) -> int:
    return 1


@skill("order.checkout")
async def checkout(cx, request: dict) -> str:
    try:
        async with cx.group("checkout", ["inventory", "payments", "notify"]) as g:
            await g.reversible("inventory", move(deed="hold"), undo=lambda out: move(deed=f"release {out['id']}"))
            await g.reversible("payments", move(deed="authorise"), undo=lambda out: move(deed=f"void {out['id']}"))
            in_stock = await g.read("inventory", look())
            g.deferred("notify", move(deed="mail"))
            await g.commit(Invariant("the shelf has what was asked for", in_stock >= request["pieces"]))
    except GroupAborted as stopped:
        return f"not today: {stopped.stopped_by}"
    return "confirmed"


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with Plane.open(f"{directory}/plane.db", skills=[checkout]) as plane:
            for pieces in (1, 2):
                BOOK.clear()
                outcome = await plane.run("order.checkout", {"pieces": pieces})
                print(outcome.output)
                print("  " + ", ".join(BOOK))


trio.run(main)
