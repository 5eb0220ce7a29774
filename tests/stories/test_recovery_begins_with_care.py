"""P4, L2: what a recovery pass takes at once, and what it waits for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio
from trio.testing import MockClock

from agentplane import skill
from agentplane.core import bounds
from agentplane.engine import recovery
from agentplane.engine.admission import Wanted
from agentplane.engine.plane import Plane
from agentplane.testkit import FakeProvider
from stories.scenes import Points, all_runs, one_call, opened, paying, until


@skill("story.silent")
async def silent(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
    """Makes no record of its own, at any life."""
    await trio.sleep_forever()


async def left_behind(plane: Plane, points: Points, capability: str, count: int) -> None:
    """Runs that execute when their process dies."""
    for _ in range(count):
        await plane.start(Wanted(capability=capability, input={}))
    await until(lambda: points.count("step.started") == count)


async def test_after_an_unclean_start_one_run_goes_first(autojump_clock: MockClock, tmp_path: Path) -> None:
    """P4: whichever run killed the process convicts itself: for its time nobody is resumed beside the first."""
    points = Points()
    async with opened(tmp_path, silent, recover=False, observe=points) as plane:
        await left_behind(plane, points, "story.silent", 3)
    async with opened(tmp_path, silent, recover=False) as plane:
        began = trio.current_time()
        found = await plane.recovery.once()
        assert len(found.took_over) == 1 and len(plane.runs.live) == 1
        assert trio.current_time() - began >= recovery.PROVING_S, "it was watched alone"


async def test_a_saturated_pass_is_followed_at_once(autojump_clock: MockClock, tmp_path: Path) -> None:
    """L2: a start takes up everything that was left, pass behind pass, and waits for no tick in between."""
    provider = FakeProvider()
    count = 2 * bounds.RECOVERY_BATCH + 5
    provider.tell("refund", *["hang"] * count)
    points = Points()
    once = one_call(paying(provider))
    async with opened(tmp_path, once, recover=False, observe=points) as plane:
        await left_behind(plane, points, "story.run", count)
        await until(lambda: len(provider.asked) == count)
    async with opened(tmp_path, once) as plane:
        began = trio.current_time()
        await until(lambda: plane.recovery.passes > 0)
        for _ in range(600):
            if all(row.status != "running" for row in all_runs(plane)):
                break
            await trio.sleep(0.1)
        assert {row.status for row in all_runs(plane)} == {"succeeded"}
        assert trio.current_time() - began < recovery.TICK_S
        assert plane.recovery.passes >= 3


async def test_a_pass_does_not_wait_for_its_runs(autojump_clock: MockClock, tmp_path: Path) -> None:
    """L2: a run that hangs for ever holds up nobody who was left behind with it."""
    provider = FakeProvider()
    provider.tell("refund", *["hang"] * 4)
    points = Points()
    once = one_call(paying(provider))
    async with opened(tmp_path, once, recover=False, observe=points) as plane:
        await left_behind(plane, points, "story.run", 2)
        await until(lambda: len(provider.asked) == 2)
    async with opened(tmp_path, once, recover=False) as plane:
        plane.recovery.cautious = False
        with trio.move_on_after(5) as waited:
            await plane.recovery.once()
        assert not waited.cancelled_caught
        await until(lambda: len(provider.asked) == 4)
        assert len(plane.runs.live) == 2
