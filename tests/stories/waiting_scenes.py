"""What the stories of waiting share: people, a skill for each kind of wait, and the shorthand for what comes from
outside.

Nothing here asserts: a story says what it holds in its own words.
"""

from __future__ import annotations

from typing import Any

import trio

from agentplane import Recovery, effect, skill
from agentplane.authoring.effect import Effect
from agentplane.authoring.proposal import Proposal
from agentplane.authoring.skill import Skill
from agentplane.core.records import Actor, Basis
from agentplane.core.tasks import Reviewer
from agentplane.engine.delivery import Delivered
from agentplane.engine.plane import Plane
from agentplane.engine.worklist import Decided, Verdict
from agentplane.work import events, tasks
from agentplane.work.tasks import TaskRow

ALICE = Actor(actor="os:alice", basis=Basis.CONNECTED)
BOB = Actor(actor="os:bob", basis=Basis.CONNECTED)
CAROL = Actor(actor="os:carol", basis=Basis.CONNECTED)
DAY_MS = 86_400_000


def reviewer(who: Actor, *roles: str, groups: tuple[str, ...] = (), machine: bool = False) -> Reviewer:
    return Reviewer(actor=who.actor, basis=who.basis, roles=roles or ("reviewer",), groups=groups, machine=machine)


def awaiting(kind: str = "parcel.delivered", name: str = "story.await", **more: Any) -> Skill:
    """A skill that waits for one event about its order, for a day unless told otherwise."""
    more = more or {"days": 1}

    @skill(name)
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        found = await cx.event(kind, correlation={"order": request["order"]}, **more)
        return found.payload

    return body


async def deliver(plane: Plane, order: str, id: str = "e-1", *, kind: str = "parcel.delivered", payload: Any = None,
                  source: str = "peer:shop", **more: Any) -> Delivered:  # fmt: skip
    keys = {"order": order} | more.pop("keys", {})
    return await plane.deliver(kind, payload or {"id": id}, id=id, correlation=keys, source=source, **more)


def refunding(done: list[Any]) -> Effect:
    """An effect that notes in ``done`` what it was performed with."""

    @effect("pay.refund", recovery=Recovery.RETRY)
    async def refund(call: Any, *, order: str, amount: int) -> Any:
        done.append((order, amount))
        return {"order": order, "amount": amount}

    return refund


def asking(refund: Effect, name: str = "story.ask", **proposal: Any) -> Skill:
    """A skill that asks a person before it refunds, and acts on what was approved."""

    @skill(name)
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        call = refund(order=request["order"], amount=request["amount"])
        decision = await cx.task(Proposal(summary=f"Refund {request['order']}?", action=call, **proposal))
        if not decision.approved:
            return {"outcome": decision.outcome, "by": decision.by}
        return {"paid": await cx.do(call, approval=decision), "by": decision.by}

    return body


async def pending(plane: Plane) -> list[TaskRow]:
    return await plane.read(lambda tx: tasks.queue(tx, 100))


async def decided(plane: Plane, task: str, who: Actor = BOB, said: str = "approve", **more: Any) -> Decided:
    return await plane.worklist.decide(task, reviewer(who), who, Verdict(said=said, reason="I looked", **more))


async def status(plane: Plane, run: str) -> str:
    return (await plane.outcome(run)).status


async def settled(plane: Plane, run: str) -> str:
    """The run's status once nothing of it executes."""
    while True:
        await plane.runs.wait_for(run)
        found = await status(plane, run)
        if found != "running":
            return found
        await trio.sleep(0.1)


def buffered(plane: Plane) -> int:
    return plane.store.readers.read(lambda tx: events.counts(tx)).get("buffered", 0)
