"""A plan is frozen data whose ready set runs side by side: proven by steps that can only end together, not by time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

from agentplane import skill
from agentplane.authoring.effect import Effect, effect
from agentplane.authoring.plan import given, node, output_of, plan
from agentplane.authoring.raising import Replan
from agentplane.authoring.skill import Skill
from agentplane.core import bounds
from agentplane.core import plan as plans
from agentplane.core.errors import InvalidInput, PlanRefused
from agentplane.core.records import PlanFrozen, StepFinished, StepStarted
from agentplane.engine.plane import Plane
from agentplane.testkit import FakeProvider
from agentplane.testkit.inline import trio_now_ms
from agentplane.testkit.worlds import fit_mark
from stories.scenes import all_runs, frozen_at, kinds, of_kind, opened, paying, recovered


class Order(msgspec.Struct):
    id: str


class Rendezvous:
    """Effects that all wait for each other: ``wanted`` of them must be in flight at once, or none ever ends."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.here = 0
        self.most = 0
        self._all = trio.Event()

    def effect(self) -> Effect:
        @effect("meet.all", mutates=False, timeout_s=3600)
        async def meet(call: Any, *, who: str) -> Any:
            self.here += 1
            self.most = max(self.most, self.here)
            if self.here >= self.wanted:
                self._all.set()
            await self._all.wait()
            self.here -= 1
            return who

        return meet


def meeting(meet: Effect) -> Skill:
    @skill("story.meet")
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return await cx.do(meet(who=str(cx.step)))

    return body


def echo(name: str = "story.echo") -> Skill:
    @skill(name)
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return request

    return body


def raising(name: str = "story.fail") -> Skill:
    @skill(name)
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        raise ValueError("no truck")

    return body


def finished(plane: Plane, run: str) -> dict[int, str]:
    return {one.step or 0: one.outcome for one in of_kind(plane, run, StepFinished)}


# --- concurrency -----------------------------------------------------------------------------------------------------


async def test_all_that_is_ready_is_in_flight_at_once(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S39: Fifty steps whose effects wait for each other end; one fewer at a time, and none would."""
    meet = Rendezvous(50)
    wide = plan("story.wide", [node(f"n{at}", "story.meet") for at in range(50)])
    async with opened(tmp_path, wide, meeting(meet.effect())) as plane:
        outcome = await plane.run("story.wide", {}, wait_s=60)
        assert (outcome.status, outcome.output) == ("succeeded", "0") and meet.most == 50
        started = [one.step for one in of_kind(plane, outcome.run, StepStarted)]
        assert started == list(range(50)), "admitted one after the other, by ascending id"


@pytest.mark.parametrize("ceiling", [1, 3, 7])
async def test_the_ceiling_on_steps_side_by_side_is_exact(
    autojump_clock: MockClock, tmp_path: Path, ceiling: int
) -> None:
    """S40: As many as it says are in flight together, and never one more."""
    meet = Rendezvous(ceiling)
    wide = plan("story.wide", [node(f"n{at}", "story.meet") for at in range(7)])
    async with opened(tmp_path, wide, meeting(meet.effect())) as plane:
        outcome = await plane.run("story.wide", {}, wait_s=60, budget={"max_parallel_steps": ceiling})
        assert outcome.status == "succeeded" and meet.most == ceiling


async def test_a_failure_lets_its_siblings_end_and_be_recorded(autojump_clock: MockClock, tmp_path: Path) -> None:
    """P10, S41: nobody is cut because a sibling failed; its success is recorded before the failure is reported, and
    nothing of the next wave begins."""
    provider = FakeProvider()
    pay = paying(provider)

    @skill("story.pay")
    async def paid(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return await cx.do(pay())

    wave = plan("story.wave", [node("a", "story.fail"), node("b", "story.pay"), node("c", "story.echo", after="b")])
    async with opened(tmp_path, wave, raising(), paid, echo()) as plane:
        outcome = await plane.run("story.wave", {})
        assert finished(plane, outcome.run) == {0: "failed", 1: "succeeded"}
        assert [one.step for one in of_kind(plane, outcome.run, StepStarted)] == [0, 1]


async def test_independent_work_goes_on_beside_a_wait(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S42: A step that waits holds up what comes after it, and nothing else."""

    @skill("story.wait")
    async def wait(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return await cx.sleep(hours=1)

    branches = plan("story.branches", [
        node("slow", "story.wait"), node("quick", "story.echo"), node("then", "story.echo", after="quick"),
        node("end", "story.echo", after=["slow", "then"]),
    ])  # fmt: skip
    async with opened(tmp_path, branches, wait, echo(), recover=False) as plane:
        outcome = await plane.run("story.branches", {})
        assert outcome.status == "suspended" and finished(plane, outcome.run) == {1: "succeeded", 2: "succeeded"}
        await plane.sweep.tick(trio_now_ms() + 3_600_000)
        await plane.runs.wait_idle()
        assert (await plane.outcome(outcome.run)).status == "succeeded"


# --- what is refused, and how arguments arrive -----------------------------------------------------------------------


async def test_every_fault_is_listed_and_nothing_is_written(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S38: A plan that is handed in is held to the whole contract before a record of it exists."""
    nodes = [
        {"id": 0, "name": "a", "capability": "story.echo", "after": [1]},
        {"id": 1, "name": "b", "capability": "story.echo", "after": [0], "terminal": True},
        {"id": 2, "name": "c", "capability": "story.none", "after": [9], "terminal": True},
        {"id": 3, "name": "d", "capability": "story.echo", "args": {"x": {"node": 2, "path": []}}, "terminal": True},
        {"id": 4, "name": "e", "capability": "story.echo"},
    ]
    async with opened(tmp_path, echo()) as plane:
        with pytest.raises(PlanRefused) as refused:
            await plane.run("story.echo", {}, plan={"nodes": nodes})
        found = " | ".join(map(str, refused.value.details["faults"]))
        for part in ("circle", "story.none", "step 9, which does not exist", "step 2, which it does not depend on",
                     "leads to no terminal"):  # fmt: skip
            assert part in found, (part, found)
        assert not all_runs(plane)


async def test_arguments_come_from_input_output_and_constants(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S43: Each as data of its own, along its path; the run's output is the lowest terminal's."""
    bound = plan("story.bound", [
        node("first", "story.echo", args={"order": given("order", "id"), "lines": given("lines", 1)}),
        node("second", "story.echo", after="first",
             args={"of": output_of("first", "order"), "whole": given(), "fixed": {"a": [1, None]}}),
        node("third", "story.echo", after="first"),
    ])  # fmt: skip
    request = {"order": {"id": "A-1"}, "lines": ["x", "y"]}
    async with opened(tmp_path, bound, echo()) as plane:
        outcome = await plane.run("story.bound", request)
        assert outcome.output == {"of": "A-1", "whole": request, "fixed": {"a": [1, None]}}
        first = of_kind(plane, outcome.run, StepFinished)[0]
        assert first.output == {"order": "A-1", "lines": "y"}


async def test_an_argument_that_is_not_there_fails_its_step(autojump_clock: MockClock, tmp_path: Path) -> None:
    """The binding is named with its path; nothing of the step's code ran."""
    bound = plan("story.bound", [node("first", "story.echo", args={"order": given("order", "id")})])
    async with opened(tmp_path, bound, echo()) as plane:
        outcome = await plane.run("story.bound", {"order": {}})
        assert (outcome.status, outcome.code) == ("failed", "unbound")
        assert "'order'" in str(outcome.reason) and "id" in str(outcome.reason)


async def test_a_plan_may_be_handed_in(autojump_clock: MockClock, tmp_path: Path) -> None:
    """As data: frozen with the admission, and found by the next process without a word of it in its code."""
    handed = {"nodes": [{"id": 3, "name": "a", "capability": "story.echo", "terminal": True,
                         "args": {"x": {"constant": 7}}}]}  # fmt: skip
    async with opened(tmp_path, echo()) as plane:
        outcome = await plane.run("story.echo", {}, plan=handed)
        assert outcome.output == {"x": 7} and finished(plane, outcome.run) == {3: "succeeded"}
        frozen = of_kind(plane, outcome.run, PlanFrozen)[0]
        assert frozen.digest == plans.digest(plans.from_data(frozen.plan))
        assert kinds(plane, outcome.run)[:2] == ["RunAdmitted", "PlanFrozen"]
        with pytest.raises(PlanRefused):
            await plane.run("story.echo", {}, plan={"nodes": handed["nodes"], "version": 2})


async def test_a_request_that_does_not_fit_its_step_fails_it(autojump_clock: MockClock, tmp_path: Path) -> None:
    """What a node binds is read into the type that its skill names."""

    @skill("story.typed")
    async def typed(cx: Any, request: Order) -> Any:
        return request.id

    async with opened(tmp_path, plan("story.bound", [node("t", "story.typed", args={"id": given("id")})]),
                      typed) as plane:  # fmt: skip
        assert (await plane.run("story.bound", {"id": "A"})).output == "A"
        outcome = await plane.run("story.bound", {"id": 7})
        assert outcome.status == "failed" and outcome.code == InvalidInput.row.code


# --- replanning ------------------------------------------------------------------------------------------------------


def rethinking(times: int) -> Skill:
    """Asks ``times`` for another plan of itself, then answers how often it was asked."""
    asked = 0

    @skill("story.rethink")
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        nonlocal asked
        asked += 1
        if asked <= times:
            raise Replan(f"the carrier is gone, {asked}", [node("story.echo"), node("story.rethink")])
        return asked

    return body


async def test_a_replan_is_a_versioned_successor_that_keeps_what_is_finished(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """S45, S47: It names parent and reason in the unit that ends the asking step; a finished step keeps its id and is
    not run again, and an id is given once."""
    first = plan("story.first", [node("story.echo"), node("story.rethink")])
    async with opened(tmp_path, first, rethinking(1), echo()) as plane:
        outcome = await plane.run("story.first", {})
        assert outcome.status == "succeeded"
        one, two = of_kind(plane, outcome.run, PlanFrozen)
        second = plans.from_data(two.plan)
        assert (second.version, second.derived_from, second.reason) == (2, one.digest, "the carrier is gone, 1")
        assert [node.id for node in second.nodes] == [0, 2]
        assert finished(plane, outcome.run) == {0: "succeeded", 1: "replanned", 2: "succeeded"}
        assert [item.step for item in of_kind(plane, outcome.run, StepStarted)] == [0, 1, 2]


async def test_a_successor_is_read_back_and_not_made_again(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S47: Killed behind the replan, the next process goes on with the recorded plan, whatever its code would ask
    now."""
    first = plan("story.first", [node("story.echo"), node("story.rethink")])

    @skill("story.rethink")
    async def never_again(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return "as planned"

    async with opened(tmp_path, first, rethinking(1), echo(), observe=(killed := _Killed("run.replanned"))) as plane:
        killed.watch(plane, tmp_path)
        run = (await plane.run("story.first", {})).run
    assert killed.where is not None
    fit_mark(killed.where / "plane.db")
    async with opened(killed.where, first, never_again, echo()) as plane:
        await recovered(plane)
        outcome = await plane.outcome(run)
        assert (outcome.status, len(of_kind(plane, run, PlanFrozen))) == ("succeeded", 2)


class _Killed:
    """A copy of the store as a process that died at ``point`` would have left it."""

    def __init__(self, point: str) -> None:
        self.point = point
        self.where: Path | None = None
        self._plane: Plane | None = None
        self._tmp = Path()

    def watch(self, plane: Plane, tmp: Path) -> None:
        self._plane, self._tmp = plane, tmp

    def __call__(self, point: str, **_: object) -> None:
        if point == self.point and self._plane is not None and self.where is None:
            self.where = frozen_at(self._plane, self._tmp)


async def test_replanning_is_bounded(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S48: A run that asks for another plan for ever fails by name; a ceiling pauses it before."""
    first = plan("story.first", [node("story.echo"), node("story.rethink")])
    async with opened(tmp_path, first, rethinking(10_000), echo()) as plane:
        outcome = await plane.run("story.first", {})
        assert (outcome.status, outcome.code) == ("failed", "replans")
        assert len(of_kind(plane, outcome.run, PlanFrozen)) == bounds.REPLANS_MAX + 1
        outcome = await plane.run("story.first", {}, budget={"max_replans": 2})
        assert outcome.status == "exhausted" and "max_replans" in str(outcome.reason)
        assert len(of_kind(plane, outcome.run, PlanFrozen)) == 3


async def test_the_plan_itself_may_answer_a_replan(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A pure function of reason, request and what is finished; without one, or with a plan that cannot run, the step
    that asked fails with every fault."""

    @skill("story.rethink")
    async def ask(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        raise Replan("no stock")

    first = plan("story.first", [node("story.echo"), node("story.rethink", after="story.echo")])
    bare = plan("story.bare", [node("story.rethink")])
    seen: list[Any] = []

    @first.replan
    def again(reason: str, request: object, outputs: dict[str, object]) -> Any:
        seen.append((reason, request, outputs))
        return [node("story.echo"), node("other", "story.echo" if request == {"ok": True} else "story.none")]

    async with opened(tmp_path, first, bare, ask, echo()) as plane:
        assert (await plane.run("story.first", {"ok": True})).status == "succeeded"
        assert seen == [("no stock", {"ok": True}, {"story.echo": {"ok": True}})]
        outcome = await plane.run("story.first", {})
        assert outcome.status == "failed" and "story.none" in str(outcome.reason)
        outcome = await plane.run("story.bare", {})
        assert outcome.status == "failed" and "another plan" in str(outcome.reason)


async def test_a_dropped_wait_takes_no_slot(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A step that reached a wait and is not in the new plan never announced it: no ceiling counts it."""
    provider = FakeProvider()
    pay = paying(provider)

    @skill("story.wait")
    async def wait(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        await cx.sleep_until(trio_now_ms() + 3_600_000)

    @skill("story.ask")
    async def ask(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        raise Replan("no stock", [node("story.pay")])

    @skill("story.pay")
    async def paid(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return await cx.do(pay())

    first = plan("story.first", [node("story.ask"), node("story.wait")])
    async with opened(tmp_path, first, wait, ask, paid, recover=False) as plane:
        outcome = await plane.run("story.first", {}, budget={"max_effects": 1})
        assert outcome.status == "succeeded", outcome
