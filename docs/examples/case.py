"""Two runs of one matter, its state, and a promise with a date."""

import tempfile
from datetime import UTC, datetime
from pathlib import Path

import trio

from agentplane import EffectFailed, Plane, skill


@skill("claim.open")
async def open_claim(cx, request: dict) -> str:
    due = await cx.deadline(
        "answer", working_days=5, at="17:00", tz="Europe/Berlin", cut_off="12:00", holidays="DE-BE"
    )  # fmt: skip
    await cx.case.write({"letters": 1}, expected=0)
    return datetime.fromtimestamp(due / 1000, UTC).strftime("%H:%M")


@skill("claim.close")
async def close_claim(cx, request: dict) -> str:
    seen = await cx.case.read()
    await cx.case.write({"letters": seen.state["letters"] + 1}, expected=seen.version)
    try:
        await cx.case.close()
    except EffectFailed as refused:
        print("not yet:", refused.fault.code)
    kept = await cx.met("answer")
    await cx.case.close()
    return f"{seen.state['letters'] + 1} letters, answered in time: {kept}"


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with Plane.open(Path(directory) / "plane.db", skills=[open_claim, close_claim]) as plane:
            matter = {"claim": "C-7"}
            opened = await plane.run("claim.open", {}, correlate=matter)
            print("due at five in Berlin:", opened.output in ("15:00", "16:00"))
            print((await plane.run("claim.close", {}, correlate=matter)).output)


trio.run(main)
