"""The load of the sweeps: a skill whose effects take 50 to 500 ms, a third of them such that only a person
may settle them."""

from __future__ import annotations

from typing import Any

import trio

from agentplane import Call, DidNotHappen, Landed, Recovery, Step, effect, skill


async def post(call: Call, path: str, order: str, ms: int) -> dict[str, Any]:
    await trio.sleep(ms / 2000)
    body: dict[str, Any] = {"order": order}
    if path == "/refunds":
        body |= {"amount_minor": 100, "currency": "EUR"}
    answer = await call.http.post(
        call.setting("provider_url") + path, json=body, headers={"Idempotency-Key": call.idempotency_key}
    )
    await trio.sleep(ms / 2000)
    return dict(answer.json())


@effect("notice.keyed", recovery=Recovery.IDEMPOTENT, timeout_s=5)
async def keyed(call: Call, *, order: str, ms: int) -> dict[str, Any]:
    """Recognised by its key."""
    return await post(call, "/notices", order, ms)


@effect("reship.asked", recovery=Recovery.RECONCILE, timeout_s=1, settle_s=0.5)
async def asked(call: Call, *, order: str, ms: int) -> dict[str, Any]:
    """The provider pays again when told again, and can be asked."""
    return await post(call, "/reships", order, ms)


@asked.reconcile
async def landed(call: Call, *, order: str, ms: int) -> Landed | DidNotHappen:
    """Ask by the key."""
    answer = await call.http.get(call.setting("provider_url") + "/reships", params={"key": call.idempotency_key})
    rows = answer.json()
    return Landed(rows[0]) if rows else DidNotHappen()


@effect("refund.manual", timeout_s=5)
async def manual(call: Call, *, order: str, ms: int) -> dict[str, Any]:
    """Only a person may say what became of it."""
    return await post(call, "/refunds", order, ms)


@skill("load.work")
async def work(cx: Step, request: dict[str, Any]) -> dict[str, Any]:
    order, ms = request["order"], request["ms"]
    await cx.do(keyed(order=order, ms=5))
    slow = {"manual": manual, "asked": asked, "keyed": keyed}[request["kind"]]
    if request["kind"] == "keyed":
        order += "-2"
    done = await cx.do(slow(order=order, ms=ms))
    return {"id": done["id"]}
