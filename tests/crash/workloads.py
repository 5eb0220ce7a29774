"""What is run under the kill sweeps: fourteen small workloads, each with what is asked of it and how its runs may end.

Owns the effects, which tell ``kills_provider`` over a socket, and the skills over them. Refuses anything that differs
between two lives of a world, but for what the workload is about. Invariant: every deed has an order of its own, so that
two rows of one order are a duplicate whatever their keys.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from agentplane import Call, DidNotHappen, DidNotHappenError, InDoubtError, Landed, Recovery, RetryPolicy, effect, skill
from agentplane.authoring.effect import Effect
from agentplane.authoring.plan import PlanTemplate, node, plan
from agentplane.authoring.proposal import Proposal
from agentplane.authoring.skill import Skill
from crash.kills_provider import ask

NOTE: list[Callable[[str], None]] = []
"""Whoever is told where an act stands at the provider: the killer of a life."""
QUICKLY = RetryPolicy(max_attempts=8, base_ms=2, cap_ms=8)


def note(point: str) -> None:
    for told in NOTE:
        told(point)


def _request(call: Call, verb: str, body: dict[str, Any]) -> dict[str, Any]:
    said = {"verb": verb, "book": call.setting("book"), "key": call.idempotency_key, "run": call.run}
    return said | {"attempt": call.attempt} | body


def _read(raw: bytes) -> dict[str, Any]:
    if not raw:
        raise InDoubtError("the line went dead")
    answer: dict[str, Any] = json.loads(raw)
    if "refused" in answer:
        raise DidNotHappenError("refused for now")
    return answer


async def tell(call: Call, verb: str, **body: Any) -> dict[str, Any]:
    """One request to the provider, on the loop."""
    async with await trio.open_unix_socket(call.setting("provider")) as stream:
        await stream.send_all(json.dumps(_request(call, verb, body)).encode() + b"\n")
        note("provider.sent")
        raw = b""
        async for more in stream:
            raw += more
    note("provider.answered")
    return _read(raw)


def tell_blocking(call: Call, verb: str, **body: Any) -> dict[str, Any]:
    """The same from a thread."""
    raw = ask(call.setting("provider"), _request(call, verb, body))
    note("provider.answered")
    return _read(raw)


def paying(kind: str, recovery: Recovery, *, probed: bool = False, **terms: Any) -> Effect:
    """An effect that performs a deed at the provider, and its probe; ``way`` is how the provider misbehaves."""
    terms = {"retry": QUICKLY, "timeout_s": 10} | terms

    @effect(kind, recovery=recovery, **terms)
    async def body(call: Call, *, order: str, way: dict[str, Any]) -> Any:
        honour = recovery is Recovery.IDEMPOTENT
        return await tell(call, "land", name=kind, order=order, honour=honour, **way)

    if probed:

        @body.reconcile
        async def probe(call: Call, *, order: str, way: dict[str, Any]) -> Landed | DidNotHappen:
            found = await tell(call, "look", name=kind, order=order)
            return DidNotHappen() if found["id"] is None else Landed({"id": found["id"]})

    return body


refund = paying("refund.keyed", Recovery.IDEMPOTENT)
notice = paying("notice.keyed", Recovery.IDEMPOTENT)
reship = paying("reship.asked", Recovery.RECONCILE, probed=True, timeout_s=0.1, settle_s=0.1)
manual = paying("refund.manual", Recovery.REQUIRES_OPERATOR)


@effect("order.read", mutates=False, retry=QUICKLY)
async def read(call: Call, *, order: str) -> Any:
    """Harmless, and announced like every external effect."""
    await trio.lowlevel.checkpoint()
    return {"order": order}


@effect("refund.thread", recovery=Recovery.IDEMPOTENT, retry=QUICKLY)
def in_thread(call: Call, *, order: str) -> Any:
    """A deed done in a thread."""
    return tell_blocking(call, "land", name="refund.thread", order=order)


@skill("kill.refund")
async def refunding(cx: Any, request: dict[str, Any]) -> Any:
    order = (await cx.do(read(order=request["order"])))["order"]
    paid = await cx.do(refund(order=order, way={}))
    return [paid["id"], (await cx.do(notice(order=order, way={})))["id"]]


@skill("kill.gather")
async def gathering(cx: Any, request: dict[str, Any]) -> Any:
    order = request["order"]
    calls = [refund(order=f"{order}-a", way={}), reship(order=f"{order}-b", way={}), in_thread(order=f"{order}-c")]
    return [done["id"] for done in await cx.gather(*calls, refund(order=f"{order}-d", way={"slow_ms": 5}))]


@skill("kill.retry")
async def retrying(cx: Any, request: dict[str, Any]) -> Any:
    first = await cx.do(refund(order=f"{request['order']}-1", way={"refuse": 2}))
    return [first["id"], (await cx.do(notice(order=f"{request['order']}-2", way={"refuse": 1, "lose": 1})))["id"]]


@skill("kill.probe")
async def probing(cx: Any, request: dict[str, Any]) -> Any:
    lost = await cx.do(reship(order=f"{request['order']}-1", way={"lose": 1}))
    return [lost["id"], (await cx.do(reship(order=f"{request['order']}-2", way={"late_ms": 120})))["id"]]


@skill("kill.local")
async def local(cx: Any, request: dict[str, Any]) -> Any:
    name, chance, at = await cx.uuid(), await cx.random(), await cx.now()
    order = f"{request['order']}-{name}-{chance}-{at}" if await cx.changed("named") else request["order"]
    paid = await cx.do(refund(order=order, way={}))
    return [paid["id"], (await cx.do(notice(order=await cx.uuid(), way={})))["id"]]


@skill("kill.manual")
async def by_hand(cx: Any, request: dict[str, Any]) -> Any:
    first = await cx.do(manual(order=f"{request['order']}-1", way={}))
    return [first["id"], (await cx.do(manual(order=f"{request['order']}-2", way={})))["id"]]


@skill("kill.blocking")
def blocking(cx: Any, request: dict[str, Any]) -> Any:
    order = request["order"]
    first = cx.do(in_thread(order=f"{order}-1"))
    rest = cx.gather(in_thread(order=f"{order}-2"), refund(order=order, way={}))
    return [first["id"], *(done["id"] for done in rest)]


@skill("kill.short")
async def short(cx: Any, request: dict[str, Any]) -> Any:
    return [(await cx.do(refund(order=request["order"], way={"slow_ms": request.get("slow_ms", 0)})))["id"]]


@skill("kill.pair")
async def pair(cx: Any, request: dict[str, Any]) -> Any:
    way = {"slow_ms": request["slow_ms"]}
    return [(await cx.do(refund(order=f"{request['order']}-{n}", way=way)))["id"] for n in range(2)]


@effect("poison.begun", local=True)
async def begun(call: Call) -> None:
    """Counts a start of the poison where the audit finds it."""
    descriptor = os.open(Path(call.setting("book")).with_name("starts"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, b"x")
    os.close(descriptor)
    os.abort()


@skill("kill.poison")
async def poison(cx: Any, request: dict[str, Any]) -> Any:
    await cx.do(begun())


@skill("kill.event")
async def eventful(cx: Any, request: dict[str, Any]) -> Any:
    """Waits for its message and acts on it."""
    found = await cx.event("kill.came", correlation={"order": request["order"]}, days=1)
    return [(await cx.do(refund(order=found.payload["order"], way={})))["id"]]


@skill("kill.nap")
async def napping(cx: Any, request: dict[str, Any]) -> Any:
    """Sleeps, acts slowly, sleeps again: what comes for its sibling meanwhile meets a run that is awake."""
    await cx.sleep(seconds=0.01)
    first = await cx.do(refund(order=f"{request['order']}-nap", way={"slow_ms": 20}))
    await cx.sleep(seconds=0.01)
    return [first["id"]]


@skill("kill.ask")
async def asking(cx: Any, request: dict[str, Any]) -> Any:
    """Acts on what a person approved, with attempts that share the approval."""
    call = refund(order=request["order"], way={"refuse": 2})
    decision = await cx.task(Proposal(summary="refund?", action=call, due=3600))
    return [(await cx.do(call, approval=decision))["id"]]


@skill("kill.promise")
async def promising(cx: Any, request: dict[str, Any]) -> Any:
    """A promise that the sweep would breach while it is being kept."""
    await cx.deadline("done", minutes=1)
    view = await cx.case.read()
    await cx.case.write({"began": True}, expected=view.version)
    paid = await cx.do(refund(order=request["order"], way={"slow_ms": 5}))
    await cx.met("done")
    return [paid["id"]]


BESIDE = plan("kill.beside", nodes=[node("nap", "kill.nap"), node("event", "kill.event")])


@dataclass(frozen=True)
class Workload:
    """``requests``: (key, capability, input) in the order of their admission. ``ends``: how its runs may end, by
    capability; what is not named there has to succeed. ``drains``: its first life is asked to drain at that
    occurrence of a point. ``aborts``: its own code kills the process. ``outside``: what else a life brings: events
    about each order (before its requests and behind them), a person who decides, a sweep of a later hour."""

    name: str
    requests: tuple[tuple[str, str, dict[str, Any]], ...]
    ends: tuple[tuple[str, frozenset[str]], ...] = ()
    drains: tuple[str, int] | None = None
    aborts: bool = False
    outside: frozenset[str] = frozenset()

    def may_end(self, capability: str) -> frozenset[str]:
        return dict(self.ends).get(capability, frozenset({"succeeded"}))


def _one(name: str, capability: str, *ends: str) -> Workload:
    allowed = ((capability, frozenset(ends)),) if ends else ()
    return Workload(name, ((f"{name}-1", capability, {"order": f"{name}-1"}),), allowed)


def _many(name: str, capability: str, count: int, **more: Any) -> tuple[tuple[str, str, dict[str, Any]], ...]:
    return tuple((f"{name}-{n}", capability, {"order": f"{name}-{n}"} | more) for n in range(count))


SKILLS: tuple[Skill, ...] = (
    refunding, gathering, retrying, probing, local, by_hand, blocking, short, pair, poison, eventful, napping, asking,
    promising,
)  # fmt: skip
CAPABILITIES: tuple[Skill | PlanTemplate, ...] = (*SKILLS, BESIDE)

WORKLOADS: dict[str, Workload] = {
    each.name: each
    for each in (
        _one("refund", "kill.refund"),
        _one("gather", "kill.gather"),
        _one("retry", "kill.retry"),
        _one("probe", "kill.probe"),
        _one("local", "kill.local"),
        _one("manual", "kill.manual", "succeeded", "quarantined"),
        _one("blocking", "kill.blocking"),
        Workload("eight", _many("eight", "kill.pair", 8, slow_ms=2)),
        Workload(
            "suspect",
            (*_many("near", "kill.short", 2, slow_ms=5), ("poison", "kill.poison", {}), *_many("far", "kill.short", 1)),
            (("kill.poison", frozenset({"quarantined"})),),
            aborts=True,
        ),
        Workload("event", _many("event", "kill.event", 2), outside=frozenset({"events"})),
        Workload("beside", _many("beside", "kill.beside", 1), outside=frozenset({"events"})),
        Workload("ask", _many("ask", "kill.ask", 1), outside=frozenset({"person"})),
        Workload("promise", _many("promise", "kill.promise", 1), outside=frozenset({"sweep"})),
        Workload("drain", _many("drain", "kill.pair", 4, slow_ms=8), drains=("effect.acted", 2)),
    )
}
