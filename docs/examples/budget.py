"""A ceiling is a pause: the run stops before the call that would pass it, and goes on when a person gives more room."""

import tempfile

import trio

from agentplane import Budget, Plane, effect, skill
from agentplane.core.records import Actor, Basis

MARA = Actor(actor="mara", basis=Basis.ASSERTED)


@effect("llm.ask", mutates=False)
async def ask(call, *, question: int) -> int:
    call.spend(tokens=400)
    return question * question


@skill("report.write", budget=Budget(max_tokens=1_000))
async def write(cx, request: dict) -> list:
    return [await cx.do(ask(question=number)) for number in range(5)]


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with Plane.open(f"{directory}/plane.db", skills=[write]) as plane:
            outcome = await plane.run("report.write", {})
            print(outcome.status, "-", outcome.reason)
            outcome = await plane.raise_ceilings(outcome.run, {"max_tokens": 5_000}, MARA, "the report matters")
            print(outcome.status, "-", outcome.output)


trio.run(main)
