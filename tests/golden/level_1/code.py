"""The code that the golden journals of level 1 were made by. It is never changed: a change here is a divergence there.

Each skill is one kind of history. What their effects answer is in the journals; replayed, they are not performed.
"""

from __future__ import annotations

from typing import Any

import msgspec
import trio

from agentplane import (
    Budget,
    DidNotHappenError,
    EffectFailed,
    GroupAborted,
    Invariant,
    Proposal,
    Recovery,
    Replan,
    RetryPolicy,
    WaitTimedOut,
    effect,
    node,
    plan,
    skill,
    sql,
)

AT_ONCE = RetryPolicy(max_attempts=3, base_ms=1)


class Order(msgspec.Struct, forbid_unknown_fields=True):
    order: str
    lines: list[str] = []


@effect("gold.hold", recovery=Recovery.RETRY)
async def hold(call: Any, *, item: str) -> Any:
    return {"hold": f"h-{item}"}


@effect("gold.release", recovery=Recovery.RETRY)
async def release(call: Any, *, hold: str) -> Any:
    return {"released": hold}


@effect("gold.look", mutates=False)
async def look(call: Any, *, item: str) -> Any:
    return {"stock": len(item)}


@effect("gold.mail", recovery=Recovery.RETRY)
async def mail(call: Any, *, to: str) -> Any:
    return None


@effect("gold.flaky", recovery=Recovery.IDEMPOTENT, key_window_s=3600, retry=AT_ONCE)
async def flaky(call: Any, *, item: str) -> Any:
    if call.attempt == 1:
        raise DidNotHappenError("busy")
    return {"attempt": call.attempt}


@effect("gold.refused", recovery=Recovery.RETRY)
async def refused(call: Any, *, item: str) -> Any:
    raise DidNotHappenError("there is none", permanent=True)


@effect("gold.lost")
async def lost(call: Any, *, item: str) -> Any:
    raise RuntimeError("the line went dead")


@effect("gold.huge", mutates=False)
async def huge(call: Any, *, size: int) -> Any:
    return "x" * size


@effect("gold.hangs", recovery=Recovery.RETRY)
async def hangs(call: Any, *, item: str) -> Any:
    await trio.sleep_forever()


@skill("gold.plain")
async def plain(cx: Any, request: Order) -> Any:
    at, token, chance = await cx.now(), await cx.uuid(), await cx.random()
    seen = await cx.gather(*[look(item=line) for line in request.lines])
    tried = await cx.do(flaky(item=request.order))
    fresh = await cx.changed("a-later-thought")
    try:
        await cx.do(refused(item=request.order))
    except EffectFailed as failed:
        why = failed.fault.message
    large = await cx.do(huge(size=300_000))
    return {"at": at, "token": token, "chance": chance, "seen": seen, "tried": tried, "fresh": fresh, "why": why,
            "large": len(large)}  # fmt: skip


@skill("gold.thread")
def thread(cx: Any, request: Order) -> Any:
    return [cx.do(hold(item=line)) for line in request.lines]


@skill("gold.reserve")
async def reserve(cx: Any, request: Order) -> Any:
    return await cx.do(hold(item=request.order))


@reserve.compensate
async def reserve_back(cx: Any, request: Order, output: Any) -> Any:
    return await cx.do(release(hold=output["hold"]))


@skill("gold.charge")
async def charge(cx: Any, request: Order) -> Any:
    return await cx.do(hold(item=f"money-{request.order}"))


@charge.compensate
async def charge_back(cx: Any, request: Order, output: Any) -> Any:
    await cx.do(look(item="ledger"))
    return await cx.do(release(hold=output["hold"]))


@skill("gold.ship")
async def ship(cx: Any, request: Order) -> Any:
    return await cx.do(refused(item=request.order))


SAGA = plan(
    "gold.saga",
    [node("gold.reserve"), node("gold.charge", after="gold.reserve"), node("gold.ship", after="gold.charge")],
)


@skill("gold.lend")
async def lend(cx: Any, request: Order) -> Any:
    return await cx.do(hold(item=request.order))


@lend.compensate
async def lend_back(cx: Any, request: Order, output: Any) -> Any:
    await cx.do(look(item="before"))
    await cx.sleep(hours=1)
    return await cx.do(release(hold=output["hold"]))


LENT = plan("gold.lent", [node("gold.lend"), node("gold.ship", after="gold.lend")])


@skill("gold.nap")
async def nap(cx: Any, request: Order) -> Any:
    await cx.sleep(hours=1)
    return None


STAY = plan("gold.stay", [node("gold.reserve"), node("gold.nap", after="gold.reserve")])


@skill("gold.killed")
async def killed(cx: Any, request: Order) -> Any:
    first = await cx.do(hold(item=request.order))
    return [first, await cx.do(hangs(item=request.order))]


@skill("gold.think")
async def think(cx: Any, request: Order) -> Any:
    await cx.do(look(item=request.order))
    raise Replan("another way", [node("gold.reserve")])


AGAIN = plan("gold.again", [node("gold.think")], budget=Budget(max_replans=1))


@skill("gold.group")
async def group(cx: Any, request: Order) -> Any:
    ended = []
    for name, holds in (("first", True), ("second", False)):
        try:
            async with cx.group(name, ["stock", "books", "post"]) as g:
                held = await g.reversible("stock", hold(item=name), undo=lambda output: release(hold=output["hold"]))
                seen = await g.read("stock", look(item=name))
                g.atomic("books", sql("INSERT INTO app_gold VALUES (?, ?)", cx.run, name, rows=1))
                g.deferred("post", mail(to=name))
                await g.commit(Invariant("enough", holds and seen["stock"] > 0))
            ended.append(held["hold"])
        except GroupAborted as aborted:
            ended.append(aborted.row.code)
    return ended


@skill("gold.sleeper")
async def sleeper(cx: Any, request: Order) -> Any:
    before = await cx.do(hold(item="before"))
    await cx.sleep(hours=2)
    return [before, await cx.do(hold(item="behind"))]


@skill("gold.awaiting")
async def awaiting(cx: Any, request: Order) -> Any:
    held = await cx.do(hold(item=request.order))
    try:
        found = await cx.event("gold.arrived", correlation={"order": request.order}, days=1)
    except WaitTimedOut:
        return "it never came"
    return [held, found.payload]


@skill("gold.asking")
async def asking(cx: Any, request: Order) -> Any:
    call = hold(item=request.order)
    decision = await cx.task(Proposal(summary=f"Hold {request.order}?", action=call))
    if not decision.approved:
        return decision.outcome
    return [decision.by, await cx.do(call, approval=decision)]


@skill("gold.matter")
async def matter(cx: Any, request: Order) -> Any:
    seen = await cx.case.read()
    await cx.deadline("answer", working_days=5, at="17:00", tz="UTC", holidays="DE-BE")
    version = await cx.case.write({"order": request.order}, expected=seen.version)
    await cx.do(mail(to=request.order))
    met = await cx.met("answer")
    await cx.case.close()
    return [version, met]


@skill("gold.doubtful")
async def doubtful(cx: Any, request: Order) -> Any:
    await cx.do(hold(item=request.order))
    return await cx.do(lost(item=request.order))


@skill("gold.dear", budget=Budget(max_effects=2))
async def dear(cx: Any, request: Order) -> Any:
    return [await cx.do(look(item=str(at))) for at in range(4)]


CODE = [
    plain, thread, reserve, charge, ship, SAGA, lend, LENT, nap, STAY, killed, think, AGAIN, group, sleeper, awaiting,
    asking, matter, doubtful, dear,
]  # fmt: skip
