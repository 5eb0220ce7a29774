"""A group outlives a pause of its step: it is rebuilt from the journal by whoever walks the step again, and is settled
before anything else of the run is taken back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from agentplane import Invariant, skill
from agentplane.authoring.plan import node, plan
from agentplane.core.budget import Budget
from agentplane.core.records import GroupOpened, UnwindBegan
from agentplane.engine.admission import Wanted
from agentplane.testkit.worlds import fit_mark
from stories.checkouts import Desk, ending, grouped
from stories.scenes import ME, frozen_at, kinds, of_kind, opened, recovered, until

LEFT_OPEN = "the step ended {} with the group open"


def across_a_wait(desk: Desk, holds: bool = True) -> Any:
    async def within(g: Any, cx: Any, request: Any) -> str:
        await desk.held(g)
        g.deferred("notify", desk.mail())
        await cx.sleep(hours=1)
        await desk.held(g, "2")
        await g.commit(Invariant("it still holds", holds))
        return "done"

    return grouped(within)


@pytest.mark.parametrize("holds", [True, False])
async def test_a_group_may_span_a_wait(autojump_clock: MockClock, tmp_path: Path, holds: bool) -> None:
    """S72: A suspension abandons nothing: the group is rebuilt from the journal, each reversal from the recorded
    output, and nothing is asked twice."""
    desk = Desk()
    async with opened(tmp_path, across_a_wait(desk, holds)) as plane:
        run = (await plane.run("story.run", {})).run
        assert ending(plane, run) is None and desk.deeds() == ["hold"]
        await trio.sleep(3_601)
        await plane.runs.wait_idle()
        outcome = await plane.outcome(run)
        assert outcome.status == ("succeeded" if holds else "failed")
        back = [("release", "ref-2"), ("release", "ref-1")]
        assert desk.told() == [("hold", "1"), ("hold", "2"), *([("mail", "A-1")] if holds else back)]
        assert len(of_kind(plane, run, GroupOpened)) == 1
        assert (await plane.replay(run, strict=True)).verdict == "verified"


async def test_a_group_is_taken_back_where_its_run_is_cancelled_while_it_waits(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """The run is taken up for it, walked to where it waited and no further, and its group settled there."""
    desk = Desk()
    async with opened(tmp_path, across_a_wait(desk)) as plane:
        run = (await plane.run("story.run", {})).run
        await plane.cancel(run, ME, "not wanted")
        await trio.sleep(2)
        await plane.runs.wait_idle()
        assert (await plane.outcome(run)).status == "cancelled" and desk.deeds() == ["hold", "release"]
        assert ending(plane, run) == ("aborted", LEFT_OPEN.format("cancelled"))


async def test_another_process_settles_the_group_that_waits(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Members, deferred calls and reversals are in the journal and in the code, and in no process."""
    desk = Desk()
    async with opened(tmp_path, across_a_wait(desk)) as plane:
        run = (await plane.run("story.run", {})).run
        second = frozen_at(plane, tmp_path)
        fit_mark(second / "plane.db")
    async with opened(second, across_a_wait(desk, holds=False)) as plane:
        await trio.sleep(3_601)
        await plane.runs.wait_idle()
        assert (await plane.outcome(run)).status == "failed"
        assert desk.told()[1:] == [("hold", "2"), ("release", "ref-2"), ("release", "ref-1")]


async def test_a_siblings_failure_takes_a_waiting_group_back_before_the_unwind(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """The step that waits with its group open is walked to its wait for that and no further; behind it there is nothing
    of it to undo."""
    desk = Desk()
    charged = Desk()

    @skill("step.paid")
    async def paid(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return await cx.do(charged.charge())

    @paid.compensate
    async def undo(cx: Any, request: Any, output: Any) -> None:
        await cx.do(charged.note())

    @skill("step.fails")
    async def fails(cx: Any, request: dict) -> None:  # type: ignore[type-arg]
        raise ValueError("no truck")

    async def within(g: Any, cx: Any, request: Any) -> None:
        await desk.held(g)
        await cx.sleep(hours=1)
        await g.commit()

    nodes = [node("step.paid"), node("step.waits"), node("step.fails", after="step.paid")]
    whole = plan("story.plan", nodes)
    async with opened(tmp_path, whole, paid, fails, grouped(within, "step.waits")) as plane:
        outcome = await plane.run("story.plan", {})
        assert (outcome.status, outcome.reason) == ("failed", "no truck")
        assert desk.deeds() == ["hold", "release"] and charged.deeds() == ["charge", "note"]
        seen = kinds(plane, outcome.run)
        assert seen.index("GroupSettled") < seen.index("UnwindBegan") < seen.index("StepCompensated")
        assert of_kind(plane, outcome.run, UnwindBegan)[0].steps == [0]


async def test_past_the_frontier_a_cancel_waits_until_the_group_is_settled(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """S77: Something is out that nothing takes back, so the rest goes out too; the stop is heard behind the settlement,
    and judges the step by what stands."""
    desk = Desk()
    desk.provider.tell("mail", "hang")

    async def within(g: Any, cx: Any, request: Any) -> None:
        g.deferred("notify", desk.note(order="first"))
        g.deferred("notify", desk.mail(order="second"))
        g.deferred("notify", desk.note(order="third"))
        await g.commit()
        await cx.do(desk.charge(order="never"))

    async with opened(tmp_path, grouped(within)) as plane:
        run = (await plane.start(Wanted(capability="story.run", input={}))).run
        await until(lambda: len(desk.provider.asked) == 2)
        await plane.cancel(run, ME, "too late")
        desk.provider.release()
        await plane.runs.wait_idle()
        assert [order for _, order in desk.told()] == ["first", "second", "third"]
        assert (ending(plane, run) or ("",))[0] == "committed"
        outcome = await plane.outcome(run)
        assert (outcome.status, outcome.code) == ("quarantined", "undeclared")


@pytest.mark.parametrize("name", ["mail", "release"])
async def test_what_a_death_left_in_flight_is_asked_before_anything_else_of_the_group(
    autojump_clock: MockClock, tmp_path: Path, name: str
) -> None:
    """A deferred member, or a reversal, that was sent and not heard of: it is settled as any effect is, and the group
    goes on from there; it is neither taken back for it nor quarantined."""
    desk = Desk()

    async def within(g: Any, cx: Any, request: Any) -> None:
        await desk.held(g, "A")
        await desk.held(g, "B")
        g.deferred("notify", desk.mail())
        await (g.commit() if name == "mail" else g.abort())

    desk.provider.tell(name, "hang_after_landing")
    async with opened(tmp_path, grouped(within)) as plane:
        run = (await plane.start(Wanted(capability="story.run", input={}))).run
        await until(lambda: bool(desk.provider.asked) and desk.provider.asked[-1].name == name)
        second = frozen_at(plane, tmp_path)
        fit_mark(second / "plane.db")
    async with opened(second, grouped(within)) as plane:
        await recovered(plane)
        assert (await plane.outcome(run)).status == "succeeded"
        assert desk.deeds() == ["hold", "hold", *(["mail"] if name == "mail" else ["release", "release"])]
        assert (ending(plane, run) or ("",))[0] == ("committed" if name == "mail" else "aborted")


async def test_a_group_whose_run_is_exhausted_stays_open_and_goes_on(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S28: a pause abandons nothing: given more room, the members are read back and the group commits."""
    desk = Desk()

    async def within(g: Any, cx: Any, request: Any) -> str:
        for order in "ABC":
            await desk.held(g, order)
        g.deferred("notify", desk.mail())
        await g.commit()
        return "done"

    async with opened(tmp_path, grouped(within, budget=Budget(max_effects=2))) as plane:
        outcome = await plane.run("story.run", {})
        assert outcome.status == "exhausted" and ending(plane, outcome.run) is None and desk.deeds() == ["hold"] * 2
        outcome = await plane.raise_ceilings(outcome.run, {"max_effects": 4}, ME, "go on")
        assert outcome.output == "done" and desk.deeds() == [*["hold"] * 3, "mail"]
        again = await plane.run("story.run", {})
        await plane.cancel(again.run, ME, "no")
        await trio.sleep(2)
        await plane.runs.wait_idle()
        assert (await plane.outcome(again.run)).status == "cancelled"
        assert desk.deeds()[4:] == ["hold", "hold", "release", "release"]
