"""W8, P17: a walk over the history hears the skill's own scopes where the first walk heard them; what is held back is
written for whoever waits for all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio
from trio.testing import MockClock

from agentplane import Recovery, effect, skill
from agentplane.core.records import EffectStarted
from agentplane.testkit.worlds import fit_mark
from stories.scenes import Points, frozen_at, inline, kinds, of_kind, opened, recovered


async def test_a_resume_asks_for_nothing_that_the_first_walk_did_not(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A scope that the skill cancelled lets its first call through and none after it, live, strict and resumed."""
    paid: list[str] = []

    @effect("pay.refund", recovery=Recovery.IDEMPOTENT)
    async def pay(call: Any, *, order: str) -> Any:
        paid.append(order)

    @skill("story.run")
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        await cx.do(pay(order="first"))
        with trio.CancelScope() as scope:
            scope.cancel()
            await cx.do(pay(order="A"))
            await cx.do(pay(order="B"))
        await cx.do(pay(order="last"))
        return scope.cancelled_caught

    points, cuts = Points(), []
    async with opened(tmp_path, body, recover=False, observe=points) as plane:
        runs: list[str] = []

        def look() -> None:
            if runs and not cuts and kinds(plane, runs[0]).count("EffectDone") == 2:
                cuts.append(frozen_at(plane, tmp_path))

        points.at["writer.committed"] = look
        points.at["run.admitted"] = lambda: runs.extend(list(plane.runs.live) or [])
        points.at["step.started"] = lambda: runs.extend(plane.runs.live)
        outcome = await plane.run("story.run", {})
        assert outcome.output is True and paid == ["first", "A", "last"]
        assert (await plane.replay(outcome.run, strict=True)).verdict == "verified"
    fit_mark(cuts[0] / "plane.db")
    async with opened(cuts[0], body, recover=False) as plane:
        await recovered(plane)
        assert (await plane.outcome(outcome.run)).status == "succeeded"
        assert [one.descriptor.args["order"] for one in of_kind(plane, outcome.run, EffectStarted)] == paid[:3]  # type: ignore[index]
    assert "B" not in paid


async def test_nothing_is_held_back_from_a_sibling_that_waits_for_all(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """A local effect beside an outward one whose answer is kept beside its record: the wait for that record is a wait
    for the local one too, and no renewal has to end it."""
    kept: list[Any] = []

    @effect("pay.refund", recovery=Recovery.IDEMPOTENT)
    async def pay(call: Any) -> Any:
        inline(kept[0]).hold()
        return "x" * 1_200 * 1024

    @effect("calc.local", local=True)
    async def calc(call: Any) -> Any:
        await trio.sleep(0.01)
        return 1

    @skill("story.run")
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return len(await cx.gather(pay(), calc()))

    async def let_go() -> None:
        await trio.sleep(0.02)
        inline(kept[0]).let_go()

    async with opened(tmp_path, body, recover=False) as plane, trio.open_nursery() as nursery:
        kept.append(plane)
        began = trio.current_time()
        nursery.start_soon(let_go)
        assert (await plane.run("story.run", {})).output == 2
        assert trio.current_time() - began < 1
