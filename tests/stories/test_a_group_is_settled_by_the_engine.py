"""A group that its step leaves open is settled by the engine: it is taken back, and never committed by being
forgotten."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from agentplane import Invariant, Plane, effect, skill
from agentplane.authoring.plan import node, plan
from agentplane.authoring.raising import Replan
from agentplane.core.effects import Phase
from agentplane.core.history import GroupSpot
from agentplane.core.records import EffectStarted, GroupSettled, StepCompensated, UnwindBegan
from agentplane.engine.admission import Wanted
from stories.checkouts import RESOURCES, Desk, asked, ending, grouped
from stories.scenes import ME, history, kinds, of_kind, opened, recovered, until

LEFT_OPEN = "the step ended {} with the group open"


async def test_a_step_that_fails_has_its_group_taken_back(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S71: What it raised is what it fails with, and nothing is left to undo: not even by a cancel."""
    desk = Desk()

    async def within(g: Any, cx: Any, request: Any) -> None:
        await desk.held(g)
        g.deferred("notify", desk.mail())
        raise ValueError("no such order")

    async with opened(tmp_path, grouped(within)) as plane:
        outcome = await plane.run("story.run", {})
        assert (outcome.status, outcome.reason) == ("failed", "no such order")
        assert desk.deeds() == ["hold", "release"] and not history(plane, outcome.run).standing()
        assert ending(plane, outcome.run) == ("aborted", LEFT_OPEN.format("failed"))
        assert (await plane.replay(outcome.run, strict=True)).verdict == "verified"
        assert (await plane.cancel(outcome.run, ME, "leave it")).concluded


@pytest.mark.parametrize("way", ["block", "handle"])
async def test_a_step_that_returns_with_its_group_open_fails_loudly(
    autojump_clock: MockClock, tmp_path: Path, way: str
) -> None:
    """S70: Forgetting to settle is not a commit: its members are taken back, and the step fails, whichever way the
    group was opened.

    Spec: EffectGroup.NoSilentCommit.
    """
    desk = Desk()

    @skill("story.run")
    async def body(cx: Any, request: dict) -> str:  # type: ignore[type-arg]
        if way == "block":
            async with cx.group("checkout", RESOURCES) as g:
                await desk.held(g)
                g.deferred("notify", desk.mail())
                return "fine"
        g = await cx.group("checkout", RESOURCES)
        await desk.held(g)
        g.deferred("notify", desk.mail())
        return "fine"

    async with opened(tmp_path, body) as plane:
        outcome = await plane.run("story.run", {})
        assert (outcome.status, outcome.code) == ("failed", "group_forgotten")
        assert "left its group checkout open" in str(outcome.reason) and outcome.output is None
        assert desk.deeds() == ["hold", "release"]
        assert ending(plane, outcome.run) == ("aborted", LEFT_OPEN.format("succeeded"))
        assert (await plane.replay(outcome.run, strict=True)).verdict == "verified"


async def test_a_step_that_is_stopped_has_its_group_taken_back(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S71: A cancel is heard at the next effect; the group is settled, and the undeclared step has nothing to be judged
    by."""
    desk = Desk()

    async def within(g: Any, cx: Any, request: Any) -> None:
        await desk.held(g, "A")
        await desk.held(g, "B")
        await desk.held(g, "never")

    desk.provider.tell("hold", "ok", "hang")
    async with opened(tmp_path, grouped(within)) as plane:
        run = (await plane.start(Wanted(capability="story.run", input={}))).run
        await until(lambda: len(desk.provider.asked) == 2)
        await plane.cancel(run, ME, "not wanted")
        desk.provider.release()
        await plane.runs.wait_idle()
        assert (await plane.outcome(run)).status == "cancelled"
        assert desk.deeds() == ["hold", "hold", "release", "release"]
        assert ending(plane, run) == ("aborted", LEFT_OPEN.format("cancelled"))


async def test_a_step_that_asks_for_another_plan_has_its_group_taken_back(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """S71: It has ended; its group is settled before the successor is frozen."""
    desk = Desk()

    @skill("step.first")
    async def asks(cx: Any, request: dict) -> None:  # type: ignore[type-arg]
        g = await cx.group("checkout", RESOURCES)
        await desk.held(g)
        raise Replan("the carrier is gone", [node("step.instead")])

    @skill("step.instead")
    async def instead(cx: Any, request: dict) -> str:  # type: ignore[type-arg]
        return "by hand"

    first = plan("story.plan", [node("step.first")])
    async with opened(tmp_path, first, asks, instead) as plane:
        outcome = await plane.run("story.plan", {})
        assert (outcome.status, outcome.output) == ("succeeded", "by hand") and desk.deeds() == ["hold", "release"]
        assert ending(plane, outcome.run) == ("aborted", LEFT_OPEN.format("replanning"))
        seen = kinds(plane, outcome.run)
        assert seen.index("GroupSettled") < len(seen) - 1 - seen[::-1].index("PlanFrozen")
        assert (await plane.replay(outcome.run, strict=True)).verdict == "verified"


async def test_of_an_aborted_group_there_is_nothing_left_to_unwind(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S73: A completed step that declares nothing is not quarantined for it, when a later one fails."""
    desk = Desk()

    async def within(g: Any, cx: Any, request: Any) -> str:
        await desk.held(g)
        await g.abort("not today")
        return "went without"

    @skill("step.last")
    async def last(cx: Any, request: dict) -> None:  # type: ignore[type-arg]
        raise ValueError("no truck")

    first = plan("story.plan", [node("step.first"), node("step.last", after="step.first")])
    async with opened(tmp_path, first, grouped(within, "step.first"), last) as plane:
        outcome = await plane.run("story.plan", {})
        assert (outcome.status, outcome.reason) == ("failed", "no truck")
        assert desk.deeds() == ["hold", "release"] and not of_kind(plane, outcome.run, UnwindBegan)
        assert (await plane.cancel(outcome.run, ME, "leave it")).recorded
        await trio.sleep(2)
        await plane.runs.wait_idle()
        assert (await plane.outcome(outcome.run)).status == "cancelled" and desk.deeds() == ["hold", "release"]


@pytest.mark.parametrize("completes", [True, False])
async def test_a_compensation_finds_only_what_stands(
    autojump_clock: MockClock, tmp_path: Path, completes: bool
) -> None:
    """A step whose group was taken back and which completed is given its output, and undoes what that says; one that
    was stopped with its group open has nothing left, and its compensation is not asked."""
    desk = Desk()

    async def within(g: Any, cx: Any, request: Any) -> Any:
        await desk.held(g)
        if not completes:
            await cx.sleep(hours=1)
        await g.abort("not today")
        return (await cx.do(desk.charge(order="instead")))["reference"]

    first = grouped(within, "step.first")

    @first.compensate
    async def undo(cx: Any, request: Any, output: Any) -> None:
        await cx.do(desk.note(order=output))

    @skill("step.last")
    async def last(cx: Any, request: dict) -> None:  # type: ignore[type-arg]
        await cx.sleep(hours=1)

    whole = plan("story.plan", [node("step.first"), node("step.last", after="step.first")])
    async with opened(tmp_path, whole, first, last) as plane:
        run = (await plane.run("story.plan", {})).run
        await plane.cancel(run, ME, "not wanted")
        await trio.sleep(2)
        await plane.runs.wait_idle()
        assert (await plane.outcome(run)).status == "cancelled" and not history(plane, run).standing()
        assert desk.deeds() == ["hold", "release", *(["charge", "note"] if completes else [])]
        assert [row.body["order"] for row in desk.provider.book if row.name == "note"] == ["ref-3"][: int(completes)]
        assert len(of_kind(plane, run, StepCompensated)) == int(completes)


@pytest.mark.parametrize("settles", [True, False])
async def test_a_compensation_may_work_in_a_group(autojump_clock: MockClock, tmp_path: Path, settles: bool) -> None:
    """In the compensating phase, with keys and a group of its own; one that forgets it has it taken back, and is a
    failed compensation."""
    desk = Desk()

    @skill("step.first")
    async def first(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        async with cx.group("checkout", ["stock"]) as g:
            held = await desk.held(g)
            await g.commit()
            return held

    @first.compensate
    async def undo(cx: Any, request: Any, output: Any) -> None:
        async with cx.group("return", ["money", "notify"]) as g:
            await g.reversible("money", desk.charge(order="fee"), undo=desk.note(order="fee back"))
            g.deferred("notify", desk.release(order=output["reference"]))
            if settles:
                await g.commit(Invariant("it was held", True))

    @skill("step.last")
    async def last(cx: Any, request: dict) -> None:  # type: ignore[type-arg]
        raise ValueError("no truck")

    whole = plan("story.plan", [node("step.first"), node("step.last", after="step.first")])
    async with opened(tmp_path, whole, first, last) as plane:
        outcome = await plane.run("story.plan", {})
        found = history(plane, outcome.run)
        state = found.groups[GroupSpot(0, Phase.compensating, 0)]
        assert state.opened.group == "return" and state.settled is not None
        assert found.groups[GroupSpot(0, Phase.forward, 0)].settled is not None
        if settles:
            assert outcome.status == "failed" and state.settled.outcome == "committed"
            assert desk.told()[1:] == [("charge", "fee"), ("release", "ref-1")]
            assert (await plane.replay(outcome.run, strict=True)).verdict == "verified"
        else:
            assert (outcome.status, outcome.code) == ("quarantined", "compensation_failed")
            assert "left its group return open" in str(outcome.reason) and state.settled.outcome == "aborted"
            assert desk.told()[1:] == [("charge", "fee"), ("note", "fee back")]


async def test_a_blocking_skill_has_groups_without_await(tmp_path: Path) -> None:
    """The same names and the same endings, from the skill's own thread: real threads and the real writer."""
    desk = Desk()

    @effect("desk.see", mutates=False)
    def see(call: Any) -> int:
        return 7

    @skill("story.run")
    def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        with cx.group("checkout", ["stock", "notify"]) as g:
            g.reversible("stock", desk.hold(order="1"), undo=lambda out: desk.release(order=out["reference"]))
            seen = g.read("stock", see())
            g.deferred("notify", desk.mail())
            match request["how"]:
                case "commit":
                    g.commit(Invariant("seven", seen == 7))
                case "abort":
                    g.abort("no")
                case "raise":
                    raise ValueError("boom")
        return seen

    async with Plane.open(tmp_path / "plane.db", skills=[body]) as plane:
        expected: dict[str, tuple[Any, ...]] = {
            "commit": ("succeeded", None, ["hold", "mail"], "committed"),
            "abort": ("succeeded", None, ["hold", "release"], "aborted"),
            "raise": ("failed", "skill_raised", ["hold", "release"], "aborted"),
            "forget": ("failed", "group_forgotten", ["hold", "release"], "aborted"),
        }
        for how, (status, code, deeds, settled) in expected.items():
            desk.provider.book.clear()
            outcome = await plane.run("story.run", {"how": how}, wait_s=30)
            assert (outcome.status, outcome.code, desk.deeds()) == (status, code, deeds), how
            assert of_kind(plane, outcome.run, GroupSettled)[0].outcome == settled
            assert (await plane.replay(outcome.run, strict=True)).verdict == "verified"


async def test_a_group_of_which_nothing_landed_is_aborted_all_the_same(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Opened is settled, whatever there was in it."""

    async def within(g: Any, cx: Any, request: Any) -> None:
        g.deferred("notify", Desk().mail())
        raise ValueError("boom")

    async with opened(tmp_path, grouped(within)) as plane:
        outcome = await plane.run("story.run", {})
        assert ending(plane, outcome.run) == ("aborted", LEFT_OPEN.format("failed"))
        assert asked(plane, outcome.run) == [] and not of_kind(plane, outcome.run, EffectStarted)
        await recovered(plane)
        assert (await plane.outcome(outcome.run)).status == "failed"
