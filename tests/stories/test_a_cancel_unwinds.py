"""A cancel stops a run from outside: asked beside the chain, heard at a boundary, and answered with work taken back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from agentplane import Recovery, skill
from agentplane.authoring.group import Invariant
from agentplane.authoring.plan import node, plan
from agentplane.authoring.skill import Skill
from agentplane.core.errors import NotApplicable, NotFound
from agentplane.core.records import (
    Actor,
    Basis,
    EffectStarted,
    GroupSettled,
    RunCancelled,
    StepCompensated,
    UnwindBegan,
)
from agentplane.engine.admission import Wanted
from agentplane.engine.plane import Plane
from agentplane.journal import lists, timers
from agentplane.testkit import FakeProvider
from agentplane.testkit.inline import trio_now_ms
from agentplane.testkit.worlds import fit_mark
from stories.scenes import ME, frozen_at, history, kinds, of_kind, opened, paying, recovered, until

OTHER = Actor(actor="nils", basis=Basis.ASSERTED)


def doing(provider: FakeProvider, name: str, *, times: int = 1, waits: bool = False, fails: bool = False,
          **terms: Any) -> Skill:  # fmt: skip
    """A step of some deeds, taken back by one of its name and ``-back``."""
    deed, back = paying(provider, f"deed.{name}", **terms), paying(provider, f"deed.{name}-back")

    @skill(f"step.{name}")
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        for at in range(times):
            await cx.do(deed(order=str(at)))
        if waits:
            await cx.sleep(hours=1)
        if fails:
            raise ValueError(f"{name} cannot be done")
        return name

    @body.compensate
    async def undo(cx: Any, request: dict, output: Any) -> Any:  # type: ignore[type-arg]
        return await cx.do(back())

    return body


def names(provider: FakeProvider) -> list[str]:
    return [row.name for row in provider.book]


async def swept(plane: Plane) -> None:
    """One tick at this instant, and rest."""
    await plane.sweep.tick(trio_now_ms())
    await plane.runs.wait_idle()


async def comes_to(plane: Plane, run: str, status: str) -> None:
    """Let the plane's own sweep take the run there."""
    for _ in range(50):
        if (await plane.outcome(run)).status == status:
            return
        await trio.sleep(0.1)
    raise AssertionError(f"the run is {(await plane.outcome(run)).status}")


async def killed(plane: Plane, tmp_path: Path) -> Path:
    """The store as a process killed now leaves it, to be opened as its own."""
    where = frozen_at(plane, tmp_path)
    fit_mark(where / "plane.db")
    return where


async def test_who_asked_and_why_stand_beside_the_chain_and_then_in_it(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """S59: The request needs no lease and appends nothing; the owner journals it when it is heard. A second asker is
    told who was first, and changes nothing."""
    provider = FakeProvider()
    async with opened(tmp_path, doing(provider, "a", waits=True), recover=False) as plane:
        run = (await plane.run("step.a", {})).run
        before = kinds(plane, run)
        first = await plane.cancel(run, ME, "not wanted")
        second = await plane.cancel(run, OTHER, "me too")
        assert (first.recorded, first.requested_by, first.concluded) == (True, "mara", False)
        assert (second.recorded, second.requested_by) == (False, "mara")
        assert kinds(plane, run) == before
        await swept(plane)
        said = of_kind(plane, run, RunCancelled)
        assert [(one.cancelled_by, one.reason) for one in said] == [(ME, "not wanted")]
        assert (await plane.outcome(run)).status == "cancelled"


async def test_a_waiting_run_is_taken_up_by_itself(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S60: Nobody executes it and nobody asks again: the plane resumes it to stop it, long before its timer."""
    provider = FakeProvider()
    async with opened(tmp_path, doing(provider, "a", waits=True)) as plane:
        run = (await plane.run("step.a", {})).run
        await plane.cancel(run, ME, "not wanted")
        began = trio.current_time()
        await comes_to(plane, run, "cancelled")
        assert trio.current_time() - began < 5 and names(provider) == ["a", "a-back"]
        row = plane.store.readers.read(lambda tx: lists.get_run(tx, run))
        assert row.log_index is not None and row.landed == 0


async def test_a_loop_is_left_at_its_next_effect(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Of a step with ten thousand effects, the one in flight is recorded, no other begins, and all is taken back."""
    provider = FakeProvider()
    provider.tell("a", *["ok"] * 40, "hang")
    async with opened(tmp_path, doing(provider, "a", times=10_000)) as plane:
        run = (await plane.start(Wanted(capability="step.a", input={}))).run
        await until(lambda: len(provider.asked) == 41)
        await plane.cancel(run, ME, "not wanted")
        provider.release()
        await plane.runs.wait_idle()
        assert (await plane.outcome(run)).status == "cancelled"
        assert names(provider) == ["a"] * 41 + ["a-back"]


async def test_the_interrupted_step_is_taken_back_first(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S27: It never completed; the completed ones follow in reverse."""
    provider = FakeProvider()
    steps = [doing(provider, "a"), doing(provider, "b"), doing(provider, "c", waits=True)]
    order = plan("order", [node("step.a"), node("step.b", after="step.a"), node("step.c", after="step.b")])
    async with opened(tmp_path, order, *steps, recover=False) as plane:
        run = (await plane.run("order", {})).run
        await plane.cancel(run, ME, "not wanted")
        await swept(plane)
        assert names(provider) == ["a", "b", "c", "c-back", "b-back", "a-back"]
        began = of_kind(plane, run, UnwindBegan)[0]
        assert (began.cause, began.steps) == ("cancelled", [2, 1, 0])
        assert [one.step for one in of_kind(plane, run, StepCompensated)] == [2, 1, 0]


async def test_a_cancel_of_a_plane_that_is_down_is_served_when_it_is_up(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Recorded by whoever opened the store to say it; heard by the process that takes the run over."""
    provider = FakeProvider()
    provider.tell("a", "ok", "hang")
    steps = doing(provider, "a", times=3)
    async with opened(tmp_path, steps) as plane:
        run = (await plane.start(Wanted(capability="step.a", input={}))).run
        await until(lambda: len(provider.asked) == 2)
        where = await killed(plane, tmp_path)
    async with opened(where, steps, recover=False) as plane:
        assert (await plane.cancel(run, ME, "not wanted")).recorded
        assert (await plane.outcome(run)).status == "running"
    async with opened(where, steps, recover=False) as plane:
        await recovered(plane)
        assert (await plane.outcome(run)).status == "cancelled"
        assert names(provider) == ["a", "a", "a-back"], "the second was in doubt, and settled; a third never began"


@pytest.mark.parametrize("recovery", [Recovery.IDEMPOTENT, Recovery.REQUIRES_OPERATOR])
async def test_a_doubt_that_a_machine_can_settle_is_settled_before_the_unwind(
    autojump_clock: MockClock, tmp_path: Path, recovery: Recovery
) -> None:
    """P15, S61: a plain resume would have finished it, so a cancel quarantines no such run; one whose doubt needs a
    person is quarantined, and nothing of it is taken back."""
    provider = FakeProvider()
    provider.tell("b", "hang_after_landing")
    steps = [doing(provider, "a"), doing(provider, "b", recovery=recovery)]
    order = plan("order", [node("step.a"), node("step.b", after="step.a")])
    async with opened(tmp_path, order, *steps) as plane:
        run = (await plane.start(Wanted(capability="order", input={}))).run
        await until(lambda: len(provider.book) == 2)
        where = await killed(plane, tmp_path)
    async with opened(where, order, *steps, recover=False) as plane:
        await plane.cancel(run, ME, "not wanted")
        await recovered(plane)
        outcome = await plane.outcome(run)
        if recovery is Recovery.IDEMPOTENT:
            assert outcome.status == "cancelled" and names(provider) == ["a", "b", "b-back", "a-back"]
        else:
            assert outcome.status == "quarantined" and names(provider) == ["a", "b"]
            assert "UnwindBegan" not in kinds(plane, run)
            with pytest.raises(NotApplicable) as refused:
                await plane.cancel(run, ME, "again")
            assert "agentplane reconcile" in refused.value.message and "agentplane quarantine" in refused.value.message


async def test_a_read_that_died_with_its_process_holds_no_cancel_up(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Nobody walks to it again: it is given its outcome, and what landed beside it is taken back."""
    provider = FakeProvider()
    provider.tell("look", "hang")
    look, pay, back = paying(provider, "deed.look", mutates=False), paying(provider), paying(provider, "deed.back")

    @skill("story.run")
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        await cx.do(pay())
        return await cx.do(look())

    @body.compensate
    async def undo(cx: Any, request: dict, output: Any) -> Any:  # type: ignore[type-arg]
        return await cx.do(back())

    async with opened(tmp_path, body) as plane:
        run = (await plane.start(Wanted(capability="story.run", input={}))).run
        await until(lambda: len(provider.asked) == 2)
        where = await killed(plane, tmp_path)
    async with opened(where, body, recover=False) as plane:
        await plane.cancel(run, ME, "not wanted")
        await recovered(plane)
        assert (await plane.outcome(run)).status == "cancelled"
        assert names(provider) == ["refund", "back"] and len(of_kind(plane, run, EffectStarted)) == 3


async def test_a_failed_run_with_landed_work_is_taken_back_and_sealed(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Its failure did not ask the step that failed; the cancel does.

    Spec: Saga.NoSealOverStandingWork.
    """
    provider = FakeProvider()
    async with opened(tmp_path, doing(provider, "a", fails=True)) as plane:
        outcome = await plane.run("step.a", {})
        assert outcome.status == "failed" and names(provider) == ["a"]
        assert not (await plane.cancel(outcome.run, ME, "leave it")).concluded
        await comes_to(plane, outcome.run, "cancelled")
        assert names(provider) == ["a", "a-back"] and not history(plane, outcome.run).standing()
        row = plane.store.readers.read(lambda tx: lists.get_run(tx, outcome.run))
        assert row.log_index is not None


async def test_an_exhausted_run_is_taken_back_over_its_ceiling(autojump_clock: MockClock, tmp_path: Path) -> None:
    """The other honest answer to a ceiling: the work is undone, exempt from it."""
    provider = FakeProvider()
    async with opened(tmp_path, doing(provider, "a", times=3)) as plane:
        outcome = await plane.run("step.a", {}, budget={"max_effects": 2})
        assert outcome.status == "exhausted"
        await plane.cancel(outcome.run, ME, "too dear")
        await comes_to(plane, outcome.run, "cancelled")
        assert names(provider) == ["a", "a", "a-back"]


async def test_a_cancel_during_the_unwind_of_a_failure_takes_the_rest_back_too(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """S63: What the failure had left to a resume is nobody's to resume any more."""
    provider = FakeProvider()
    provider.tell("a-back", "hang")
    order = plan("order", [node("step.a"), node("step.b", after="step.a")])
    async with opened(tmp_path, order, doing(provider, "a"), doing(provider, "b", fails=True)) as plane:
        run = (await plane.start(Wanted(capability="order", input={}))).run
        await until(lambda: len(provider.asked) == 3)
        await plane.cancel(run, ME, "all of it")
        provider.release()
        await plane.runs.wait_idle()
        assert (await plane.outcome(run)).status == "cancelled"
        assert names(provider) == ["a", "b", "a-back", "b-back"]
        assert [one.cause for one in of_kind(plane, run, UnwindBegan)] == ["failed", "cancelled"]


async def test_a_compensation_that_waits_is_woken_by_its_own_timer_alone(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """The wait that the cancel interrupted has ended, and its timer with it: the unwind is not woken by it."""
    provider = FakeProvider()
    pay, back = paying(provider), paying(provider, "deed.back")

    @skill("story.run")
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        await cx.do(pay())
        await cx.sleep(hours=1)

    @body.compensate
    async def undo(cx: Any, request: dict, output: Any) -> Any:  # type: ignore[type-arg]
        await cx.sleep(hours=2)
        return await cx.do(back())

    async with opened(tmp_path, body, recover=False) as plane:
        run = (await plane.run("story.run", {})).run
        began = trio_now_ms()
        await plane.cancel(run, ME, "not wanted")
        await swept(plane)
        armed = plane.store.readers.read(lambda tx: timers.of_run(tx, run))
        assert [timer.due_ms - began for timer in armed] == [2 * 3_600_000]
        for hours, status in ((1, "suspended"), (2, "cancelled")):
            await plane.sweep.tick(began + hours * 3_600_000)
            await plane.runs.wait_idle()
            assert (await plane.outcome(run)).status == status


async def test_a_group_past_its_frontier_is_settled_before_the_cancel_is_heard(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Once something is out that nothing takes back, half of it is no place to stop."""
    provider = FakeProvider()
    provider.tell("mail", "hang")
    hold, release = paying(provider, "deed.hold"), paying(provider, "deed.release")
    mail, last, back = paying(provider, "deed.mail"), paying(provider, "deed.last"), paying(provider, "deed.back")

    @skill("story.run")
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        async with cx.group("checkout", ["stock", "notify"]) as group:
            await group.reversible("stock", hold(), undo=release())
            group.deferred("notify", mail(order="1"))
            group.deferred("notify", mail(order="2"))
            await group.commit(Invariant("it fits", True))
        return await cx.do(last())

    @body.compensate
    async def undo(cx: Any, request: dict, output: Any) -> Any:  # type: ignore[type-arg]
        return await cx.do(back())

    async with opened(tmp_path, body) as plane:
        run = (await plane.start(Wanted(capability="story.run", input={}))).run
        await until(lambda: len(provider.asked) == 2)
        await plane.cancel(run, ME, "not wanted")
        provider.release()
        await plane.runs.wait_idle()
        settled = of_kind(plane, run, GroupSettled)[0].outcome
        assert settled == "committed" and (await plane.outcome(run)).status == "cancelled"
        assert names(provider) == ["hold", "mail", "mail", "back"], "the step's own undoing, and no release"


async def test_what_cannot_be_cancelled_is_refused_in_a_sentence(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S62: An unknown run, one that is closed, and a reason that is none; nothing is recorded."""
    provider = FakeProvider()
    async with opened(tmp_path, doing(provider, "a")) as plane:
        with pytest.raises(NotFound):
            await plane.cancel("run_01MCC5RM00AAAAAAAAAAAAAAAA", ME, "no such")
        outcome = await plane.run("step.a", {})
        with pytest.raises(NotApplicable, match="closed"):
            await plane.cancel(outcome.run, ME, "too late")
        assert plane.store.readers.read(lambda tx: lists.cancellation(tx, outcome.run)) is None
