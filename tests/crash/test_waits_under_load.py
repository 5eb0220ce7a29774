"""Many runs that wait at once, over the real writer: events come in any order, twice, before and behind their waits, a
person decides whatever is there, and timers fire; every run ends with what was meant for it."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from agentplane import Plane, Proposal, skill
from agentplane.core.errors import Refusal
from stories.waiting_scenes import BOB, decided, status

RUNS, WAITS = 60, 3


@skill("load.run")
async def load_run(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
    came = []
    for i in range(WAITS):
        found = await cx.event("load.came", correlation={"n": str(request["n"]), "i": str(i)}, days=1)
        came.append(found.payload)
    decision = await cx.task(Proposal(summary="go on?"))
    await cx.sleep(seconds=0.01)
    return [*came, decision.outcome]


async def settled_at_last(plane: Plane, run: str) -> None:
    """Until the run has ended, however often it waits before."""
    while True:
        await plane.runs.wait_for(run)
        if await status(plane, run) == "succeeded":
            return
        await trio.sleep(0.02)


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(3))
async def test_every_run_gets_what_was_meant_for_it(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    runs: dict[int, str] = {}
    async with Plane.open(tmp_path / "plane.db", skills=[load_run], max_running=chance.choice((2, 16, 256))) as plane:

        async def begin(n: int) -> None:
            await trio.sleep(chance.random() * 0.2)
            runs[n] = (await plane.run("load.run", {"n": n}, wait_s=0)).run

        async def come(n: int, i: int) -> None:
            for _ in range(2):
                await trio.sleep(chance.random() * 0.4)
                about = {"n": str(n), "i": str(i)}
                await plane.deliver("load.came", [n, i], id=f"{n}-{i}", correlation=about, source="peer:load")

        async def judge() -> None:
            while True:
                for row in await plane.tasks():
                    with suppress(Refusal):
                        await decided(plane, row.task, BOB)
                await trio.sleep(0.02)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(judge)
            async with trio.open_nursery() as outside:
                for n in range(RUNS):
                    outside.start_soon(begin, n)
                    for i in range(WAITS):
                        outside.start_soon(come, n, i)
            with trio.fail_after(120):
                for run in runs.values():
                    await settled_at_last(plane, run)
            nursery.cancel_scope.cancel()
        for n, run in runs.items():
            assert (await plane.outcome(run)).output == [*([n, i] for i in range(WAITS)), "approved"]
        assert plane.runs.held_out == {}
