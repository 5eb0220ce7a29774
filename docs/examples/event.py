"""A run that waits for a message, and one that nobody wrote to in time."""

import tempfile
from pathlib import Path

import trio

from agentplane import Plane, WaitTimedOut, skill


@skill("parcel.follow")
async def follow(cx, request: dict) -> str:
    try:
        found = await cx.event("parcel.delivered", correlation={"order": request["order"]}, seconds=request["patience"])
    except WaitTimedOut:
        return "nobody wrote"
    return f"delivered at {found.payload['door']}"


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with Plane.open(Path(directory) / "plane.db", skills=[follow]) as plane:
            waits = await plane.run("parcel.follow", {"order": "A-1", "patience": 60})
            hasty = await plane.run("parcel.follow", {"order": "A-2", "patience": 0.2})
            for _ in range(2):
                told = await plane.deliver(
                    "parcel.delivered", {"door": 7}, id="e-1", correlation={"order": "A-1"}, source="peer:carrier"
                )
                print(told.delivery)
            for run in (waits.run, hasty.run):
                while (outcome := await plane.outcome(run)).status in ("suspended", "running"):
                    await trio.sleep(0.05)
                print(outcome.status, "-", outcome.output)


trio.run(main)
