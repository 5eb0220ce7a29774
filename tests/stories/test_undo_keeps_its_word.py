"""What an adversary found in the undoing, one story each: a reversal that was refused once, a stop that skill code
renamed, a plan that was asked for beside a wait, a ceiling before a frontier."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from agentplane import Budget, Compensation, skill
from agentplane.authoring.plan import node, plan
from agentplane.authoring.raising import EffectFailed, Replan
from agentplane.authoring.skill import Skill
from agentplane.core.records import GroupSettled, PlanFrozen, RetryGranted, StepCompensated, StepKept
from agentplane.engine.plane import Plane
from agentplane.journal import lists
from agentplane.testkit import FakeProvider
from stories.checkouts import Desk, ending, grouped
from stories.scenes import ME, history, kinds, of_kind, opened, paying, until

WAIT_S = 90
BOOM = ValueError("no")


async def passes(plane: Plane, seconds: float = 5) -> None:
    """The clock goes on, and what it woke comes to its end."""
    await trio.sleep(seconds)
    await plane.runs.wait_idle()


def step(name: str, effects: dict[str, Any], raises: Exception | None = None, **terms: Any) -> Skill:
    """The skill ``t.NAME``: it performs the effect of its name, then raises; compensatable where ``undo_NAME`` is an
    effect too."""

    @skill(f"t.{name}", **terms)
    async def body(cx: Any, request: Any) -> Any:
        if name in effects:
            await cx.do(effects[name]())
        if raises is not None:
            raise raises
        return name

    if f"undo_{name}" in effects:

        @body.compensate
        async def undo(cx: Any, request: Any, output: Any) -> None:
            await cx.do(effects[f"undo_{name}"]())

    return body


def names(provider: FakeProvider) -> list[str]:
    return [deed.name for deed in provider.book]


# --- a reversal that failed ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("declared", ["compensatable", "unnecessary", "undeclared"])
async def test_a_reversal_that_failed_is_asked_again_before_the_seal(
    autojump_clock: MockClock, tmp_path: Path, declared: str
) -> None:
    """A cancelled run whose reversal failed is retried: that reversal alone is asked again, the group is settled before
    the seal whatever its step declares, and nothing is released twice."""
    desk = Desk()

    async def within(g: Any, cx: Any, request: Any) -> None:
        await desk.held(g, "A")
        await desk.held(g, "B")
        await cx.sleep(hours=1)
        await g.commit()

    terms = {"compensation": Compensation(declared)} if declared != "compensatable" else {}
    body = grouped(within, **terms)
    if declared == "compensatable":

        @body.compensate
        async def undo(cx: Any, request: Any, output: Any) -> None:
            await cx.do(desk.release(order="again"))

    async with opened(tmp_path, body) as plane:
        run = (await plane.run("story.run", {})).run
        desk.provider.tell("release", "ok", "refused_for_good")
        await plane.cancel(run, ME, "stop")
        await passes(plane)
        outcome = await plane.outcome(run)
        assert (outcome.status, outcome.code) == ("quarantined", "group_quarantined")
        outcome = await plane.retry(run, ME, "the desk is back")
        assert (outcome.status, outcome.code) == ("cancelled", None)
        assert desk.told()[2:] == [("release", "ref-2"), ("release", "ref-1")]
        assert [one.outcome for one in of_kind(plane, run, GroupSettled)] == ["quarantined", "aborted"]
        tail = kinds(plane, run)
        assert tail.index("RunCancelled") > len(tail) - 1 - tail[::-1].index("GroupSettled")


async def test_a_retry_asks_the_failure_at_the_frontier(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A later failure that a finished step swallowed is no frontier: what is asked again is what the run failed of."""
    provider = FakeProvider()
    first, optional, fallback = (paying(provider, f"pay.{name}") for name in ("first", "optional", "fallback"))
    provider.tell("first", "refused_for_good")
    provider.tell("optional", "refused_for_good")

    @skill("t.a")
    async def needed(cx: Any, request: Any) -> Any:
        return await cx.do(first())

    @skill("t.b", compensation=Compensation.UNNECESSARY)
    async def careful(cx: Any, request: Any) -> Any:
        await until(lambda: any(call.name == "first" for call in provider.asked))
        try:
            return await cx.do(optional())
        except EffectFailed:
            return await cx.do(fallback())

    both = plan("t.plan", nodes=[node("a", "t.a"), node("b", "t.b")])
    async with opened(tmp_path, needed, careful, both) as plane:
        outcome = await plane.run("t.plan", {})
        assert outcome.status == "failed" and names(provider) == ["fallback"]
        outcome = await plane.retry(outcome.run, ME, "again")
        assert outcome.status == "succeeded" and names(provider) == ["fallback", "first"]
        assert [granted.step for granted in of_kind(plane, outcome.run, RetryGranted)] == [0]


# --- a stop that became another exception ----------------------------------------------------------------------------


async def in_a_handler(cut: Callable[[], Any]) -> None:
    try:
        await cut()
    except BaseException:
        raise ValueError("the cleanup failed") from None


async def in_a_finally(cut: Callable[[], Any]) -> None:
    whole = False
    try:
        await cut()
        whole = True
    finally:
        if not whole:
            raise ValueError("the cleanup failed")


async def in_a_nursery(cut: Callable[[], Any]) -> None:
    async with trio.open_nursery():
        await cut()


@pytest.mark.parametrize("stop", ["suspended", "exhausted"])
@pytest.mark.parametrize("around", [in_a_handler, in_a_finally, in_a_nursery])
async def test_a_stop_in_another_coat_takes_no_group_back(
    autojump_clock: MockClock, tmp_path: Path, around: Callable[..., Any], stop: str
) -> None:
    """A pause that skill code turned into another exception is a pause: the group stays open, and commits when the run
    wakes or is given more room."""
    desk = Desk()

    async def within(g: Any, cx: Any, request: Any) -> str:
        await desk.held(g, "A")
        if stop == "suspended":
            await around(lambda: cx.sleep(seconds=WAIT_S))
        else:
            await around(lambda: desk.held(g, "B"))
        await g.commit()
        return "done"

    budget = Budget(max_effects=1) if stop == "exhausted" else None
    async with opened(tmp_path, grouped(within, budget=budget)) as plane:
        outcome = await plane.run("story.run", {})
        assert outcome.status == stop and desk.deeds() == ["hold"] and ending(plane, outcome.run) is None
        if stop == "suspended":
            await passes(plane, WAIT_S + 5)
        else:
            await plane.raise_ceilings(outcome.run, {"max_effects": 9}, ME, "more")
        outcome = await plane.outcome(outcome.run)
        assert (outcome.status, outcome.output) == ("succeeded", "done") and "release" not in desk.deeds()


async def test_a_stop_in_another_coat_takes_no_blocking_group_back(tmp_path: Path) -> None:
    """The same from a skill's own thread: real threads and the real writer."""
    desk = Desk()

    @skill("story.run", budget=Budget(max_effects=1))
    def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        with cx.group("checkout", ["stock"]) as g:
            g.reversible("stock", desk.hold(order="A"), undo=lambda out: desk.release(order="A"))
            try:
                g.reversible("stock", desk.hold(order="B"), undo=lambda out: desk.release(order="B"))
            except BaseException:
                raise ValueError("the cleanup failed") from None
            g.commit()
        return "done"

    async with Plane.open(tmp_path / "plane.db", skills=[body]) as plane:
        outcome = await plane.run("story.run", {}, wait_s=30)
        assert outcome.status == "exhausted" and ending(plane, outcome.run) is None
        outcome = await plane.raise_ceilings(outcome.run, {"max_effects": 9}, ME, "more")
        assert (outcome.status, outcome.output) == ("succeeded", "done") and desk.deeds() == ["hold", "hold"]


# --- plans -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asks_first", [True, False])
async def test_a_sibling_that_waits_keeps_its_id(autojump_clock: MockClock, tmp_path: Path, asks_first: bool) -> None:
    """A step that waits with its charge landed and is named again as it was goes on under its id, whatever the order of
    the nodes: one charge, and not two."""
    provider = FakeProvider()
    charge, refund = paying(provider, "pay.charge"), paying(provider, "pay.refund")

    @skill("t.charge")
    async def charging(cx: Any, request: Any) -> int:
        await cx.do(charge())
        await cx.sleep(seconds=WAIT_S)
        return 1

    @charging.compensate
    async def undo(cx: Any, request: Any, output: Any) -> None:
        await cx.do(refund())

    moved = Replan("prices moved", nodes=[node("charge", "t.charge"), node("end", "t.end", after="charge")])
    nodes = [node("check", "t.check"), node("charge", "t.charge")]
    first = plan(
        "t.plan", nodes=[*(nodes if asks_first else nodes[::-1]), node("z", "t.end", after=["check", "charge"])]
    )
    async with opened(tmp_path, charging, step("check", {}, moved), step("end", {}), first) as plane:
        run = (await plane.run("t.plan", {})).run
        await passes(plane, 2 * WAIT_S)
        assert (await plane.outcome(run)).status == "succeeded" and names(provider) == ["charge"]
        ids = [
            {each["name"]: each["id"] for each in frozen.plan["nodes"]}["charge"]
            for frozen in of_kind(plane, run, PlanFrozen)
        ]
        assert ids == [1 if asks_first else 0] * 2


@pytest.mark.parametrize("declared", ["pivot", "compensatable"])
async def test_a_step_that_asked_for_another_plan_is_undone_in_its_turn(
    autojump_clock: MockClock, tmp_path: Path, declared: str
) -> None:
    """What it landed stands since it ended: it is undone in the order of that end, and as a pivot it holds what ended
    before it and nothing that came after."""
    provider = FakeProvider()
    ways = ["a", "b", "c", "undo_a", "undo_c", *(["undo_b"] if declared == "compensatable" else [])]
    effects = {name: paying(provider, f"pay.{name}") for name in ways}
    terms = {"compensation": Compensation.PIVOT} if declared == "pivot" else {}
    more = Replan("more", nodes=[node("a", "t.a"), node("c", "t.c", after="a"), node("f", "t.f", after="c")])
    skills = [step("a", effects), step("b", effects, more, **terms), step("c", effects), step("f", effects, BOOM)]
    first = plan("t.plan", nodes=[node("a", "t.a"), node("b", "t.b", after="a")])
    async with opened(tmp_path, *skills, first) as plane:
        outcome = await plane.run("t.plan", {})
        undone = ["undo_c"] if declared == "pivot" else ["undo_c", "undo_b", "undo_a"]
        assert outcome.status == "failed" and names(provider) == ["a", "b", "c", *undone]
        kept = sorted((one.step, one.why) for one in of_kind(plane, outcome.run, StepKept))
        assert kept == ([(0, "pivot"), (1, "pivot")] if declared == "pivot" else [])


async def test_what_a_compensation_returns_is_no_part_of_what_it_undid(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """A compensation that returns what is not data has undone all the same."""
    provider = FakeProvider()
    effects = {name: paying(provider, f"pay.{name}") for name in ("x", "release")}
    taking = step("x", effects)

    @taking.compensate
    async def undo(cx: Any, request: Any, output: Any) -> object:
        await cx.do(effects["release"]())
        return object()

    both = plan("t.plan", nodes=[node("x", "t.x"), node("f", "t.f", after="x")])
    async with opened(tmp_path, taking, step("f", effects, BOOM), both) as plane:
        outcome = await plane.run("t.plan", {})
        assert (outcome.status, outcome.reason) == ("failed", "no") and names(provider) == ["x", "release"]
        assert [one.step for one in of_kind(plane, outcome.run, StepCompensated)] == [0]
        assert not history(plane, outcome.run).standing()


# --- a ceiling in a group --------------------------------------------------------------------------------------------


async def test_a_cancel_settles_the_group_of_an_exhausted_run_first(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A group in which nothing landed is open all the same: it is settled before the run that a ceiling stopped is
    sealed."""
    desk = Desk()

    async def within(g: Any, cx: Any, request: Any) -> None:
        await desk.held(g)
        await g.commit()

    async with opened(tmp_path, grouped(within, budget=Budget(max_effects=0))) as plane:
        run = (await plane.run("story.run", {})).run
        assert ending(plane, run) is None and not desk.provider.asked
        await plane.cancel(run, ME, "stop")
        await passes(plane)
        row = plane.store.readers.read(lambda tx: lists.get_run(tx, run))
        assert row.status == "cancelled" and row.log_index is not None
        assert kinds(plane, run)[-3:] == ["GroupSettled", "RunCancelled", "RunConcluded"]
        assert (ending(plane, run) or ("",))[0] == "aborted"


async def test_more_room_leads_out_of_a_group_past_its_frontier(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A ceiling stopped the group between two deferred members and a cancel found it there: it is for a person, and a
    raised ceiling is the way on, to the whole group and then to the cancel."""
    desk = Desk()

    async def within(g: Any, cx: Any, request: Any) -> None:
        g.deferred("notify", desk.mail())
        g.deferred("notify", desk.note())
        await g.commit()

    once = grouped(within, budget=Budget(max_effects=1), compensation=Compensation.UNNECESSARY)
    async with opened(tmp_path, once) as plane:
        run = (await plane.run("story.run", {})).run
        assert desk.deeds() == ["mail"]
        await plane.cancel(run, ME, "stop")
        await passes(plane)
        outcome = await plane.outcome(run)
        assert (outcome.status, outcome.code) == ("quarantined", "group_open")
        assert "where a ceiling stops it, raise it" in str(outcome.reason)
        outcome = await plane.raise_ceilings(run, {"max_effects": 5}, ME, "more")
        assert outcome.status == "cancelled" and desk.deeds() == ["mail", "note"]
        assert (ending(plane, run) or ("",))[0] == "committed"
