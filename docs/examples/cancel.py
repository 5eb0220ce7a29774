"""A person stops a run that waits: it is taken up, and what it did is taken back."""

import tempfile

import trio

from agentplane import Plane, Recovery, effect, skill
from agentplane.core.records import Actor, Basis

BOOK = []
MARA = Actor(actor="mara", basis=Basis.ASSERTED)


@effect("room.book", recovery=Recovery.IDEMPOTENT)
async def book(call, *, deed: str) -> dict:
    BOOK.append(deed)
    return {"id": "r-9"}


@skill("trip.plan")
async def trip(cx, request: dict) -> dict:
    room = await cx.do(book(deed="book"))
    await cx.sleep(days=30)
    return room


@trip.compensate
async def give_back(cx, request: dict, output: dict | None) -> None:
    await cx.do(book(deed="give back"))


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with Plane.open(f"{directory}/plane.db", skills=[trip]) as plane:
            run = (await plane.run("trip.plan", {})).run
            for reason in ("the trip is off", "me too"):
                answer = await plane.cancel(run, MARA, reason)
                print(f"recorded: {answer.recorded}, asked first by {answer.requested_by}")
            while (outcome := await plane.outcome(run)).status != "cancelled":
                await trio.sleep(0.05)
            print(outcome.status, "-", ", ".join(BOOK))


trio.run(main)
