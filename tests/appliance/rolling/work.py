"""The skill of the rolling deploys: chains of effects of 50 ms to 5 s that a provider outside performs.

Copied into the plane of the harness, it knows nothing of it. It writes when an effect began and ended, by process, so
that what was in flight and what was cut is read from outside. Half of the effects are recognised by their key at the
provider; the others it would perform again when told again, and can be asked about.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import trio

from agentplane import Call, DidNotHappen, Landed, Recovery, Step, effect, skill


def note(call: Call, what: str, order: str) -> None:
    """One line in one write: a kill leaves all of it or none."""
    line = f"{what} {os.getpid()} {order} {time.monotonic():.6f}\n"
    descriptor = os.open(call.setting("flights"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


async def ask(call: Call, asked: dict[str, Any]) -> dict[str, Any]:
    """One request to the provider, a line each way."""
    stream = await trio.open_unix_socket(call.setting("provider"))
    async with stream:
        await stream.send_all(json.dumps(asked | {"book": call.setting("book")}).encode() + b"\n")
        answer = b""
        while more := await stream.receive_some(65536):
            answer += more
    return dict(json.loads(answer))


async def perform(call: Call, order: str, ms: int, *, honour: bool) -> str:
    note(call, "begun", order)
    await trio.sleep(ms / 2000)
    deed = {"name": "deed", "order": order, "run": "", "attempt": 0}
    answer = await ask(call, {"verb": "land", "key": call.idempotency_key, "honour": honour} | deed)
    await trio.sleep(ms / 2000)
    note(call, "ended", order)
    return str(answer["id"])


@effect("deed.keyed", recovery=Recovery.IDEMPOTENT, timeout_s=8)
async def keyed(call: Call, *, order: str, ms: int) -> str:
    """Recognised by its key."""
    return await perform(call, order, ms, honour=True)


@effect("deed.asked", recovery=Recovery.RECONCILE, timeout_s=8, settle_s=0.2)
async def asked(call: Call, *, order: str, ms: int) -> str:
    """The provider performs it as often as it is told to, and can be asked."""
    return await perform(call, order, ms, honour=False)


@asked.reconcile
async def landed(call: Call, *, order: str, ms: int) -> Landed | DidNotHappen:
    """Ask by the key."""
    found = (await ask(call, {"verb": "look", "key": call.idempotency_key}))["id"]
    return DidNotHappen() if found is None else Landed(found)


@skill("rolling.work")
async def work(cx: Step, request: dict[str, Any]) -> dict[str, Any]:
    for number, ms in enumerate(request["ms"]):
        order = f"{request['order']}-{number}"
        await cx.do(keyed(order=order, ms=ms) if number % 2 else asked(order=order, ms=ms))
    return {"order": request["order"], "deeds": len(request["ms"])}
