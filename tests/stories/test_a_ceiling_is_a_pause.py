"""A ceiling is exact; what reaches it pauses where it stands, and goes on from there when a person raises it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from agentplane import Budget, DidNotHappenError, RetryPolicy, effect, skill
from agentplane.authoring.effect import Effect
from agentplane.authoring.plan import node, plan
from agentplane.authoring.skill import Skill
from agentplane.core.budget import Ledger
from agentplane.core.errors import BudgetFault, NotApplicable
from agentplane.core.records import (
    BudgetRaised,
    BudgetReadmitted,
    BudgetRefused,
    EffectStarted,
    RunConcluded,
    StepStarted,
)
from agentplane.engine.live import LiveRun
from agentplane.engine.plane import Plane
from agentplane.testkit import FakeProvider
from stories.scenes import ME, all_runs, history, kinds, of_kind, opened, paying


def looping(provider: FakeProvider, times: int = 8, name: str = "story.run", budget: Budget | None = None) -> Skill:
    pay = paying(provider)

    @skill(name, budget=budget)
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return [await cx.do(pay(order=f"{cx.step}-{at}")) for at in range(times)]

    return body


def dear(tokens: int, minor_units: int = 0, fails: int = 0) -> Effect:
    """A read that costs this much an attempt, and fails for certain so many times first."""

    @effect("chat.ask", mutates=False, retry=RetryPolicy(max_attempts=9, base_ms=1))
    async def body(call: Any, *, at: int = 0) -> Any:
        call.spend(tokens=tokens, minor_units=minor_units)
        if call.attempt <= fails:
            raise DidNotHappenError("busy")
        return at

    return body


def announced(plane: Plane, run: str) -> int:
    return len(of_kind(plane, run, EffectStarted))


def used(ledger: Ledger) -> dict[str, Any]:
    return {name: getattr(ledger, name) for name in Ledger.__slots__}


# --- exact -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ceiling", [0, 1, 4, 9])
async def test_effects_are_exact_in_a_gather(autojump_clock: MockClock, tmp_path: Path, ceiling: int) -> None:
    """S86: Ten side by side, each takes its slot as it is announced: as many as the ceiling says, and not one more."""
    provider = FakeProvider()
    pay = paying(provider)

    @skill("story.run")
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return await cx.gather(*(pay(order=str(at)) for at in range(10)))

    async with opened(tmp_path, body) as plane:
        outcome = await plane.run("story.run", {}, budget={"max_effects": ceiling})
        assert outcome.status == "exhausted" and outcome.code == "exhausted"
        assert announced(plane, outcome.run) == len(provider.asked) == ceiling
        assert f"{ceiling} of {ceiling}" in str(outcome.reason)


async def test_effects_are_exact_over_parallel_steps(autojump_clock: MockClock, tmp_path: Path) -> None:
    """One count for the whole run, whichever step asks."""
    provider = FakeProvider()
    wide = plan("story.wide", [node(f"n{at}", "story.run") for at in range(4)])
    async with opened(tmp_path, wide, looping(provider, 5)) as plane:
        outcome = await plane.run("story.wide", {}, budget={"max_effects": 11})
        assert outcome.status == "exhausted" and announced(plane, outcome.run) == len(provider.asked) == 11


async def test_local_effects_and_waits_take_slots_too(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Whatever is announced is an effect."""

    @skill("story.run")
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        await cx.uuid()
        await cx.sleep(hours=1)

    async with opened(tmp_path, body, recover=False) as plane:
        outcome = await plane.run("story.run", {}, budget={"max_effects": 2})
        assert outcome.status == "exhausted" and announced(plane, outcome.run) == 2, "uuid and now; the wait is refused"
        assert (await plane.run("story.run", {}, budget={"max_effects": 3})).status == "suspended"


async def test_steps_are_exact_in_a_wave(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S87: Of five that are ready three begin, in ascending id, and are finished and recorded."""
    provider = FakeProvider()
    wide = plan("story.wide", [node(f"n{at}", "story.run") for at in range(5)])
    async with opened(tmp_path, wide, looping(provider, 1)) as plane:
        outcome = await plane.run("story.wide", {}, budget={"max_steps": 3})
        assert outcome.status == "exhausted"
        assert [one.step for one in of_kind(plane, outcome.run, StepStarted)] == [0, 1, 2]
        assert [(one.limit, one.step, one.ordinal) for one in of_kind(plane, outcome.run, BudgetRefused)] == [
            ("max_steps", 3, None)
        ]


@pytest.mark.parametrize("side_by_side", [1, 3])
async def test_what_is_spent_overshoots_by_one_operation_a_step(
    autojump_clock: MockClock, tmp_path: Path, side_by_side: int
) -> None:
    """S89: Nobody knows what an operation takes until it has ended: one of each step in flight may pass the ceiling,
    also where a step asks for ten at once."""
    ask = dear(100)

    @skill("story.ask")
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return await cx.gather(*(ask(at=at) for at in range(10)))

    wide = plan("story.wide", [node(f"n{at}", "story.ask") for at in range(side_by_side)])
    async with opened(tmp_path, wide, body) as plane:
        outcome = await plane.run("story.wide", {}, budget={"max_tokens": 250})
        assert outcome.status == "exhausted"
        assert 250 <= history(plane, outcome.run).ledger.tokens < 250 + 100 * side_by_side


async def test_every_attempt_is_billed(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S88: A failed one too, against tokens, money and effects: a retry storm meets the ceiling."""
    ask = dear(10, 3, fails=2)

    @skill("story.run")
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return await cx.do(ask())

    async with opened(tmp_path, body) as plane:
        outcome = await plane.run("story.run", {})
        assert outcome.status == "succeeded" and announced(plane, outcome.run) == 3
        spent = of_kind(plane, outcome.run, RunConcluded)[0].live_spend
        assert (spent.tokens, spent.minor_units) == (30, 9)
        for budget in ({"max_effects": 2}, {"max_tokens": 20}, {"max_minor_units": 5}):
            outcome = await plane.run("story.run", {}, budget=budget)
            assert outcome.status == "exhausted" and announced(plane, outcome.run) == 2, budget


async def test_time_is_what_the_journal_read(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S92: Every announcement records the clock under such a ceiling; a later walk holds the recorded readings against
    it and no clock of its own."""
    provider = FakeProvider()
    pay = paying(provider)

    @skill("story.run")
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        await cx.do(pay(order="1"))
        await cx.sleep(seconds=30)
        return await cx.do(pay(order="2"))

    async with opened(tmp_path, body) as plane:
        for ceiling, ends in ((31, "succeeded"), (20, "exhausted")):
            run = (await plane.run("story.run", {}, budget={"max_wallclock_s": ceiling})).run
            await trio.sleep(60)
            await plane.runs.wait_idle()
            outcome = await plane.outcome(run)
            assert outcome.status == ends, outcome
            assert all(one.clock_s is not None for one in of_kind(plane, run, EffectStarted))
            if ends == "succeeded":
                await trio.sleep(3600)
                assert (await plane.replay(run, strict=True)).verdict == "verified"
        run = (await plane.run("story.run", {})).run
        assert all(one.clock_s is None for one in of_kind(plane, run, EffectStarted)), "nobody asked for readings"


# --- a pause ---------------------------------------------------------------------------------------------------------


async def test_a_raised_ceiling_asks_the_frontier_again_and_nothing_else(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """S28: Refused on record; raised with who and why; readmitted at that one place; what was done is read back."""
    provider = FakeProvider()
    async with opened(tmp_path, looping(provider, 8)) as plane:
        outcome = await plane.run("story.run", {}, budget={"max_effects": 5})
        run = outcome.run
        assert outcome.status == "exhausted"
        refused = of_kind(plane, run, BudgetRefused)[0]
        assert (refused.limit, refused.allowed, refused.used, refused.ordinal) == ("max_effects", 5, 5, 5)
        assert of_kind(plane, run, RunConcluded)[0].exhaustion.limit == "max_effects"
        outcome = await plane.raise_ceilings(run, {"max_effects": 7}, ME, "go on")
        assert outcome.status == "exhausted" and len(provider.asked) == 7
        outcome = await plane.raise_ceilings(run, {"max_effects": 8}, ME, "and on")
        assert outcome.status == "succeeded" and len(provider.asked) == 8
        raised = of_kind(plane, run, BudgetRaised)
        assert [(one.raised_by, one.ceilings, one.reason) for one in raised] == [
            (ME, {"max_effects": 7}, "go on"), (ME, {"max_effects": 8}, "and on"),
        ]  # fmt: skip
        assert [one.ordinal for one in of_kind(plane, run, BudgetReadmitted)] == [5, 7]
        assert (await plane.replay(run, strict=True)).verdict == "verified"


async def test_a_resume_that_changes_nothing_appends_nothing(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S91: Walked again under the same ceilings it meets the same refusal, which is recorded already."""
    provider = FakeProvider()
    async with opened(tmp_path, looping(provider, 8)) as plane:
        run = (await plane.run("story.run", {}, budget={"max_effects": 5})).run
        before = kinds(plane, run)
        assert (await plane.replay(run)).status == "exhausted"
        assert kinds(plane, run) == before and len(provider.asked) == 5


async def test_a_groups_reversals_are_exempt_and_counted(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S78: At its ceiling a run can still release the hold that it placed, though the phase is forward."""
    provider = FakeProvider()
    hold, release = paying(provider, "deed.hold"), paying(provider, "deed.release")

    @skill("story.run")
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        async with cx.group("g", ["stock"]) as group:
            for order in ("1", "2"):
                await group.reversible("stock", hold(order=order), undo=release(order=order))
            raise ValueError("no stock")

    async with opened(tmp_path, body) as plane:
        outcome = await plane.run("story.run", {}, budget={"max_effects": 2})
        assert outcome.status == "failed" and history(plane, outcome.run).ledger.effects == 4
        assert [row.name for row in provider.book] == ["hold", "hold", "release", "release"]


async def test_the_figure_is_the_same_live_and_replayed(autojump_clock: MockClock, tmp_path: Path) -> None:
    """What an execution counted as it went is what reading its records counts, over ceilings, retries and waits."""
    provider = FakeProvider()
    provider.tell("refund", "ok", "did_not_happen", "ok", "did_not_happen")
    pay, ask = paying(provider), dear(10, 3, fails=1)
    lives: list[LiveRun] = []

    @skill("story.run")
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        await cx.gather(*(pay(order=str(at)) for at in range(3)))
        await cx.do(ask())
        await cx.sleep(seconds=2)
        return await cx.gather(ask(at=1), pay(order="4"))

    async with opened(tmp_path, body) as plane:
        begin = plane.runs.begin

        def kept(*args: Any, **kwargs: Any) -> LiveRun:
            lives.append(begin(*args, **kwargs))
            return lives[-1]

        plane.runs.begin = kept  # type: ignore[method-assign]
        run = (await plane.run("story.run", {}, budget={"max_effects": 11, "max_wallclock_s": 99})).run
        await trio.sleep(10)
        assert (await plane.outcome(run)).status in ("succeeded", "exhausted")
        assert used(lives[-1].history.ledger) == used(history(plane, run).ledger)
        assert lives[-1].history.ledger.reserved == 0 and len(lives) == 2


# --- what is asked for -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "part"),
    [({"max_effects": -1}, "max_effects"), ({"max_effects": True}, "max_effects"), ({"max_love": 3}, "max_love"),
     ({"max_effects": 9}, "narrow"), ({"max_parallel_steps": 0}, "max_parallel_steps")],
)  # fmt: skip
async def test_a_budget_that_is_none_is_refused_before_anything_is_written(
    autojump_clock: MockClock, tmp_path: Path, asked: dict[str, int], part: str
) -> None:
    """S90: A request may only narrow what the capability declares, in natural numbers, by names there are."""
    provider = FakeProvider()
    async with opened(tmp_path, looping(provider, budget=Budget(max_effects=5))) as plane:
        with pytest.raises(BudgetFault) as refused:
            await plane.run("story.run", {}, budget=asked)
        assert part in refused.value.message and not all_runs(plane)


async def test_the_declared_ceiling_holds_where_nobody_asks(autojump_clock: MockClock, tmp_path: Path) -> None:
    """And a narrower one where somebody does."""
    provider = FakeProvider()
    async with opened(tmp_path, looping(provider, budget=Budget(max_effects=5, max_steps=9))) as plane:
        for asked, count in ((None, 5), ({"max_effects": 2}, 2)):
            outcome = await plane.run("story.run", {}, budget=asked)
            assert outcome.status == "exhausted" and announced(plane, outcome.run) == count


async def test_a_raise_that_raises_nothing_is_refused(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A ceiling that the run does not have, one that would not be higher, a run that is not exhausted, no reason."""
    provider = FakeProvider()
    async with opened(tmp_path, looping(provider, 3)) as plane:
        run = (await plane.run("story.run", {}, budget={"max_effects": 2})).run
        before = kinds(plane, run)
        for ceilings in ({"max_steps": 9}, {"max_effects": 2}, {"max_effects": 1}, {"max_love": 1}, {}):
            with pytest.raises(BudgetFault):
                await plane.raise_ceilings(run, ceilings, ME, "go on")
        assert kinds(plane, run) == before
        other = (await plane.run("story.run", {})).run
        with pytest.raises(NotApplicable):
            await plane.raise_ceilings(other, {"max_effects": 9}, ME, "go on")
