"""A wait has one outcome and its timer goes with it, whoever notices that it is due; and a stop that comes while a
compensation waits does not take the run up again and again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio
from trio.testing import MockClock

from agentplane import skill
from agentplane.authoring.plan import node, plan
from agentplane.core.records import EffectDone, RunSuspended
from agentplane.engine.plane import Plane
from agentplane.journal import timers
from agentplane.testkit import FakeProvider
from stories.scenes import ME, of_kind, opened, paying


def armed(plane: Plane, run: str) -> int:
    return len(plane.store.readers.read(lambda tx: timers.of_run(tx, run)))


async def test_a_wait_found_due_by_the_unit_that_would_suspend_leaves_no_timer(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Two waits fall due together and one wake takes one; the other is ended as the run would suspend again, with its
    row, so that its timer never gives it a second outcome while the run waits for something else."""

    @skill("wait.short")
    async def short(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return await cx.sleep(seconds=10)

    @skill("wait.same")
    async def same(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return await cx.sleep(seconds=10)

    @skill("wait.again")
    async def again(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return await cx.sleep(hours=1)

    both = plan("wait.both", nodes=[
        node("short", "wait.short"), node("same", "wait.same"), node("again", "wait.again", after=["short", "same"]),
    ])  # fmt: skip
    async with opened(tmp_path, short, same, again, both) as plane:
        run = (await plane.run("wait.both", {})).run
        assert armed(plane, run) == 2
        await trio.sleep(60)
        await plane.runs.wait_idle()
        # Only the hour that is left has a timer.
        assert (await plane.outcome(run)).status == "suspended" and armed(plane, run) == 1
        await trio.sleep(3600)
        await plane.runs.wait_idle()
        assert (await plane.outcome(run)).status == "succeeded"
        sleeps = [one for one in of_kind(plane, run, EffectDone) if one.phase is None]
        assert len({one.effect_key for one in sleeps}) == len(sleeps)


async def test_a_stop_of_a_run_that_waits_while_it_undoes_is_heard_when_the_wait_is_over(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """The unwind of a failure waits in a compensation; a stop leaves it asleep, one suspension a wait, and the run ends
    cancelled when what was begun is done."""
    provider = FakeProvider()
    hold, release = paying(provider, "pay.hold"), paying(provider, "pay.release")

    @skill("stock.hold")
    async def held(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return await cx.do(hold(order="A"))

    @held.compensate
    async def given_back(cx: Any, request: dict, output: Any) -> str:  # type: ignore[type-arg]
        await cx.sleep(minutes=10)
        await cx.do(release(order="A"))
        return "released"

    @skill("stock.fail")
    async def fails(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        raise ValueError("no truck")

    whole = plan("stock.take", nodes=[node("held", "stock.hold"), node("fails", "stock.fail", after="held")])
    async with opened(tmp_path, held, fails, whole, recover=False) as plane:
        run = (await plane.run("stock.take", {})).run
        due_ms = plane.store.readers.read(lambda tx: timers.of_run(tx, run))[0].due_ms
        assert (await plane.cancel(run, ME, "no more")).recorded
        for _ in range(3):
            ticked = await plane.sweep.tick(due_ms - 1)
            await plane.runs.wait_idle()
            assert (ticked.fired, ticked.cancels) == ([], []) and len(of_kind(plane, run, RunSuspended)) == 1
        await plane.sweep.tick(due_ms)
        await plane.runs.wait_idle()
        assert (await plane.outcome(run)).status == "cancelled"
        assert armed(plane, run) == 0 and [one.name for one in provider.book] == ["hold", "release"]
