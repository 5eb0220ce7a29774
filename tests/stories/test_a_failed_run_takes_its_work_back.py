"""Sagas: a failed run is undone forward, step by step, by what each step declares and by what the journal holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from agentplane import Recovery, skill
from agentplane.authoring.plan import PlanTemplate, node, plan
from agentplane.authoring.raising import Replan
from agentplane.authoring.skill import Compensation, Skill
from agentplane.core.errors import NotApplicable, SkillFault
from agentplane.core.records import EffectStarted, StepCompensated, StepFinished, StepKept, UnwindBegan
from agentplane.engine.plane import Outcome, Plane
from agentplane.journal import lists
from agentplane.testkit import FakeProvider
from agentplane.testkit.inline import trio_now_ms
from stories.scenes import ME, history, kinds, of_kind, opened, paying, undecided

UNDECLARED, PIVOT, UNNECESSARY = Compensation.UNDECLARED, Compensation.PIVOT, Compensation.UNNECESSARY
COMPENSATABLE = Compensation.COMPENSATABLE


class Order:
    """Steps over one provider: ``step`` makes one that does a deed of its name, which is taken back by another."""

    def __init__(self) -> None:
        self.provider = FakeProvider()
        self.skills: list[Skill] = []
        self.given: list[tuple[str, Any, Any]] = []

    def step(self, name: str, declared: Compensation = COMPENSATABLE, *, deeds: int = 1, fails: bool = False,
             waits: bool = False, undo_waits: bool = False, **terms: Any) -> Order:  # fmt: skip
        deed, back = paying(self.provider, f"deed.{name}", **terms), paying(self.provider, f"back.{name}-back")
        given = self.given

        @skill(f"step.{name}", compensation=declared)
        async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
            done = [await cx.do(deed(order=str(at))) for at in range(deeds)]
            if waits:
                await cx.sleep(hours=1)
            if fails:
                raise ValueError(f"{name} cannot be done")
            return {"of": name, "deeds": len(done)}

        if declared is COMPENSATABLE:

            @body.compensate
            async def undo(cx: Any, request: dict, output: Any) -> Any:  # type: ignore[type-arg]
                given.append((name, request, output))
                await cx.do(back(order="0"))
                if undo_waits:
                    await cx.sleep(hours=1)
                    await cx.do(back(order="1"))
                return f"{name} is back"

        self.skills.append(body)
        return self

    def chain(self) -> tuple[PlanTemplate, ...]:
        names = [each.name for each in self.skills]
        return (plan("order", [node(name, after=names[at - 1] if at else ()) for at, name in enumerate(names)]),)

    def wide(self) -> tuple[PlanTemplate, ...]:
        return (plan("order", [node(each.name) for each in self.skills]),)

    @property
    def book(self) -> list[str]:
        return [row.name for row in self.provider.book]


def undone(plane: Plane, run: str) -> list[tuple[int, str]]:
    """(step, how) in the order of the records."""
    found = list(history(plane, run).undone.values())
    return [(one.step or 0, one.compensation if isinstance(one, StepCompensated) else one.why)
            for one in sorted(found, key=lambda one: one.seq)]  # fmt: skip


async def ran(plane: Plane, request: Any = None) -> Outcome:
    return await plane.run("order", {} if request is None else request)


# --- order, and what each declaration means --------------------------------------------------------------------------


async def test_completed_steps_are_taken_back_in_reverse_order_of_completion(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """S18: Each by its own compensation, which is given the step's request and its output.

    Spec: Saga.UnwindIsReverse.
    """
    order = Order().step("a").step("b").step("c").step("end", UNDECLARED, deeds=0, fails=True)
    async with opened(tmp_path, *order.chain(), *order.skills) as plane:
        outcome = await ran(plane, {"id": 7})
        assert (outcome.status, outcome.reason) == ("failed", "end cannot be done")
        assert order.book == ["a", "b", "c", "c-back", "b-back", "a-back"]
        assert undone(plane, outcome.run) == [(2, "compensatable"), (1, "compensatable"), (0, "compensatable")]
        assert order.given[0] == ("c", {"id": 7}, {"of": "c", "deeds": 1})
        assert of_kind(plane, outcome.run, UnwindBegan)[0].steps == [2, 1, 0]
        assert of_kind(plane, outcome.run, StepCompensated)[0].outcome == "c is back"
        assert (await plane.replay(outcome.run, strict=True)).verdict == "verified"


async def test_the_order_is_that_of_completion_and_not_of_the_plan(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Of two side by side, the one that completed last is taken back first, whichever has the lower id."""
    order = Order().step("slow", waits=True).step("quick").step("end", UNDECLARED, deeds=0, fails=True)
    nodes = [node("step.slow"), node("step.quick"), node("step.end", after=["step.slow", "step.quick"])]
    async with opened(tmp_path, plan("order", nodes), *order.skills, recover=False) as plane:
        outcome = await ran(plane)
        assert outcome.status == "suspended"
        await plane.sweep.tick(trio_now_ms() + 3_600_000)
        await plane.runs.wait_idle()
        assert [step for step, _ in undone(plane, outcome.run)] == [0, 1]
        assert order.book[-2:] == ["slow-back", "quick-back"]


async def test_nothing_at_or_before_a_pivot_is_taken_back(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S49: The point of no return and what landed before it stand by right, on record.

    Spec: Saga.PivotHolds.
    """
    order = Order().step("a").step("pay", PIVOT).step("c").step("end", UNDECLARED, deeds=0, fails=True)
    async with opened(tmp_path, *order.chain(), *order.skills) as plane:
        outcome = await ran(plane)
        assert outcome.status == "failed" and order.book == ["a", "pay", "c", "c-back"]
        assert undone(plane, outcome.run) == [(2, "compensatable"), (1, "pivot"), (0, "pivot")]
        assert not history(plane, outcome.run).standing()


async def test_an_unnecessary_step_is_kept_and_the_walk_goes_on(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S50: What its author says may stand does."""
    order = Order().step("a").step("note", UNNECESSARY).step("end", UNDECLARED, deeds=0, fails=True)
    async with opened(tmp_path, *order.chain(), *order.skills) as plane:
        outcome = await ran(plane)
        assert undone(plane, outcome.run) == [(1, "unnecessary"), (0, "compensatable")]
        assert of_kind(plane, outcome.run, StepKept)[0].why == "unnecessary"


async def test_an_undeclared_step_without_landed_work_is_passed_over(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S19: The journal proves that there is nothing to undo: reads, and mutations that certainly did not happen."""
    order = Order().step("a").step("look", UNDECLARED, mutates=False).step("end", UNDECLARED, deeds=0, fails=True)
    async with opened(tmp_path, *order.chain(), *order.skills) as plane:
        outcome = await ran(plane)
        assert outcome.status == "failed" and undone(plane, outcome.run) == [(0, "compensatable")]


async def test_an_undeclared_step_with_landed_work_stops_the_unwind_by_name(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """S19: Forgetting to declare is loud: nothing before it is taken back around it.

    Spec: Saga.EvidenceStopsTheUnwind.
    """
    order = Order().step("a").step("charge", UNDECLARED).step("c").step("end", UNDECLARED, deeds=0, fails=True)
    async with opened(tmp_path, *order.chain(), *order.skills) as plane:
        outcome = await ran(plane)
        assert (outcome.status, outcome.code) == ("quarantined", "undeclared")
        assert "step 1 (step.charge)" in str(outcome.reason)
        assert order.book == ["a", "charge", "c", "c-back"]


# --- doubt -----------------------------------------------------------------------------------------------------------


async def test_a_run_in_doubt_is_never_unwound(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S51: Quarantined, it compensates nothing; a person supplies the fact, and the runtime goes on from it.

    Spec: Saga.NoUnwindUnderDoubt.
    """
    order = Order().step("a").step("pay", recovery=Recovery.REQUIRES_OPERATOR)
    order.step("end", UNDECLARED, deeds=0, fails=True)
    order.provider.tell("pay", "in_doubt_after_landing")
    async with opened(tmp_path, *order.chain(), *order.skills) as plane:
        outcome = await ran(plane)
        assert outcome.status == "quarantined" and "UnwindBegan" not in kinds(plane, outcome.run)
        assert order.book == ["a", "pay"] and len(undecided(plane, outcome.run)) == 1


async def test_a_failure_beside_a_doubt_unwinds_nothing(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Of two side by side one failed and one is in doubt: the doubt is worse, and nothing moves."""
    order = Order().step("a", recovery=Recovery.REQUIRES_OPERATOR).step("b", deeds=0, fails=True)
    order.provider.tell("a", "in_doubt_before")
    async with opened(tmp_path, *order.wide(), *order.skills) as plane:
        outcome = await ran(plane)
        assert outcome.status == "quarantined" and "UnwindBegan" not in kinds(plane, outcome.run)


async def test_an_exhausted_run_unwinds_nothing(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S52: It is a pause: what it did stands until a person raises the ceiling, or cancels."""
    order = Order().step("a").step("b")
    async with opened(tmp_path, *order.chain(), *order.skills) as plane:
        outcome = await plane.run("order", {}, budget={"max_effects": 1})
        assert outcome.status == "exhausted" and order.book == ["a"]
        assert "UnwindBegan" not in kinds(plane, outcome.run)


async def test_a_suspended_run_unwinds_nothing(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S52: It is at work."""
    order = Order().step("a").step("b", waits=True)
    async with opened(tmp_path, *order.chain(), *order.skills, recover=False) as plane:
        outcome = await ran(plane)
        assert outcome.status == "suspended" and order.book == ["a", "b"]


# --- the compensation ------------------------------------------------------------------------------------------------


async def test_a_compensation_has_a_phase_of_its_own(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S22: Its first effect is at ordinal 0 again and meets no record of the forward pass: the phase is in key and
    body."""
    order = Order().step("a").step("end", UNDECLARED, deeds=0, fails=True)
    async with opened(tmp_path, *order.chain(), *order.skills) as plane:
        outcome = await ran(plane)
        started = of_kind(plane, outcome.run, EffectStarted)
        assert [one.phase for one in started] == [None, "compensating"]
        forward, back = started
        assert (forward.step, forward.ordinal, forward.phase) == (0, 0, None)
        assert (back.step, back.ordinal, back.phase) == (0, 0, "compensating")
        assert forward.effect_key != back.effect_key and forward.idempotency_key != back.idempotency_key


async def test_a_compensation_may_wait_and_is_recorded_once(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S53: The run suspends in the middle of taking back, walks from the top when it wakes, and does nothing twice.

    Spec: Saga.CompensatedAtMostOnce.
    """
    order = Order().step("a").step("b", undo_waits=True).step("end", UNDECLARED, deeds=0, fails=True)
    async with opened(tmp_path, *order.chain(), *order.skills, recover=False) as plane:
        outcome = await ran(plane)
        assert outcome.status == "suspended" and order.book[2:] == ["b-back"]
        with pytest.raises(NotApplicable):
            await plane.replay(outcome.run)
        await plane.sweep.tick(trio_now_ms() + 3_600_000)
        await plane.runs.wait_idle()
        assert (await plane.outcome(outcome.run)).status == "failed"
        assert order.book[2:] == ["b-back", "b-back", "a-back"]
        assert [one.step for one in of_kind(plane, outcome.run, StepCompensated)] == [1, 0]
        assert len(of_kind(plane, outcome.run, UnwindBegan)) == 1


async def test_a_failed_compensation_stops_and_names_its_step(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S21: Nothing is taken back behind it; a person may have it asked again, and the rest follows.

    Spec: Saga.AFailedCompensationStops.
    """
    order = Order().step("a").step("b").step("end", UNDECLARED, deeds=0, fails=True)
    order.provider.tell("b-back", "refused_for_good")
    async with opened(tmp_path, *order.chain(), *order.skills) as plane:
        outcome = await ran(plane)
        assert (outcome.status, outcome.code) == ("quarantined", "compensation_failed")
        assert "step 1 (step.b)" in str(outcome.reason) and order.book == ["a", "b"]
        assert not undone(plane, outcome.run)
        assert (await plane.retry(outcome.run, ME, "the carrier is back")).status == "failed"
        assert order.book == ["a", "b", "b-back", "a-back"]


async def test_undoing_is_exempt_from_the_ceiling_and_counted(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S20: A run at its ceiling takes its work back all the same, over it, and its ledger says so."""
    order = Order().step("a").step("b").step("end", UNDECLARED, deeds=0, fails=True)
    async with opened(tmp_path, *order.chain(), *order.skills) as plane:
        outcome = await plane.run("order", {}, budget={"max_effects": 2})
        assert outcome.status == "failed" and order.book == ["a", "b", "b-back", "a-back"]
        assert history(plane, outcome.run).ledger.effects == 4


# --- siblings --------------------------------------------------------------------------------------------------------


async def test_a_sibling_that_completed_is_taken_back(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Every success is recorded before the stop is reported, so that it can be.

    Spec: Saga.UnwindIsComplete.
    """
    order = Order().step("end", UNDECLARED, deeds=0, fails=True).step("b").step("c")
    async with opened(tmp_path, *order.wide(), *order.skills) as plane:
        outcome = await ran(plane)
        assert outcome.status == "failed" and sorted(order.book) == ["b", "b-back", "c", "c-back"]
        assert {one.step for one in of_kind(plane, outcome.run, StepFinished)} == {0, 1, 2}


async def test_a_failure_outranks_a_wait_and_takes_back_what_it_interrupted(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """S55: The sibling waits with landed work and never completes: its work is taken back, though nothing completed.

    Spec: Saga.CompensationFollowsCompletion, Saga.FailureBeatsSuspension.
    """
    order = Order().step("wait", waits=True).step("end", UNDECLARED, deeds=0, fails=True)
    async with opened(tmp_path, *order.wide(), *order.skills) as plane:
        outcome = await ran(plane)
        assert outcome.status == "failed" and order.book == ["wait", "wait-back"]
        assert order.given == [("wait", {}, None)], "a step that never completed has no output"


async def test_the_failing_steps_own_work_stays_to_be_resumed(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S56: It is not asked: the run is failed, open, and findable as one with landed work."""
    order = Order().step("only", fails=True)
    async with opened(tmp_path, *order.chain(), *order.skills) as plane:
        outcome = await ran(plane)
        assert outcome.status == "failed" and order.book == ["only"]
        assert "UnwindBegan" not in kinds(plane, outcome.run)
        found = plane.store.readers.read(lambda tx: lists.failed_with_landed(tx))
        assert [row.run for row in found] == [outcome.run]
        assert (await plane.replay(outcome.run)).status == "failed", "it may be walked again"


async def test_the_unwind_resolves_from_what_ran_and_not_from_the_plan_in_force(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """S57: A step that a later plan dropped is taken back with the request that it had."""
    order = Order().step("a")

    @skill("step.rethink", compensation=UNNECESSARY)
    async def rethink(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        raise Replan("no stock", [node("step.end")])

    order.skills.append(rethink)
    first = order.chain()
    order.step("end", UNDECLARED, deeds=0, fails=True)
    async with opened(tmp_path, *first, *order.skills) as plane:
        outcome = await ran(plane, {"id": 9})
        assert outcome.status == "failed" and order.book == ["a", "a-back"]
        assert order.given == [("a", {"id": 9}, {"of": "a", "deeds": 1})]


async def test_what_has_begun_to_undo_is_not_walked_forward_any_more(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S58: Neither a replay nor a retry makes a run of it again."""
    order = Order().step("a").step("end", UNDECLARED, deeds=0, fails=True)
    async with opened(tmp_path, *order.chain(), *order.skills) as plane:
        outcome = await ran(plane)
        for again in (plane.replay(outcome.run), plane.retry(outcome.run, ME, "once more")):
            with pytest.raises(NotApplicable):
                await again


async def test_a_declaration_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    """A pivot with a compensation, and a compensatable step without one: one sentence with file and line, before
    anything runs."""

    @skill("step.pivot", compensation=Compensation.PIVOT)
    async def pivot(cx: Any, request: Any) -> None: ...

    with pytest.raises(SkillFault, match=r"pivot and has a compensation"):

        @pivot.compensate
        async def back(cx: Any, request: Any, output: Any) -> None: ...

    @skill("step.bare", compensation=Compensation.COMPENSATABLE)
    async def bare(cx: Any, request: Any) -> None: ...

    with pytest.raises(SkillFault, match=r"`@bare.compensate`"):
        async with opened(tmp_path, bare):
            raise AssertionError("the plane opened")
