"""A refund that a person approves with a smaller amount."""

import tempfile
from pathlib import Path

import trio

from agentplane import Plane, Proposal, Recovery, effect, skill
from agentplane.core.records import Actor, Basis
from agentplane.core.tasks import Reviewer
from agentplane.engine.worklist import Verdict


@effect("payments.refund", recovery=Recovery.IDEMPOTENT)
async def refund(call, *, order: str, amount_minor: int) -> str:
    return f"{amount_minor} for {order}"


@skill("refunds.issue")
async def issue(cx, request: dict) -> str:
    call = refund(order=request["order"], amount_minor=request["amount_minor"])
    decision = await cx.task(Proposal(summary=f"Refund {request['order']}?", action=call, due=3600))
    if not decision.approved:
        return f"{decision.outcome}: {decision.reason}"
    return await cx.do(call, approval=decision)


async def main() -> None:
    mara = Actor(actor="mara", basis=Basis.AUTHENTICATED)
    with tempfile.TemporaryDirectory() as directory:
        async with Plane.open(Path(directory) / "plane.db", skills=[issue]) as plane:
            outcome = await plane.run("refunds.issue", {"order": "A-1", "amount_minor": 4200})
            print(outcome.status)
            (task,) = await plane.tasks()
            print(task.proposal["summary"], task.proposal["action"]["args"])
            who = Reviewer(actor=mara.actor, basis=mara.basis, roles=("reviewer",))
            said = Verdict(said="approve", reason="half of it", amendment={"order": "A-1", "amount_minor": 2100})
            await plane.worklist.decide(task.task, who, mara, said)
            await plane.runs.wait_for(outcome.run)
            print((await plane.outcome(outcome.run)).output)


trio.run(main)
