"""P15: a cancel is heard before an announcement, first asker first, and what stands by then is taken back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from agentplane import Recovery, RetryPolicy, skill
from agentplane.core.errors import NotApplicable
from agentplane.core.records import Actor, Basis, EffectReconciled, EffectStarted, RunCancelled
from agentplane.engine.admission import Wanted
from agentplane.journal import lists
from agentplane.testkit import FakeProvider
from stories.scenes import ME, Points, history, inline, kinds, of_kind, one_call, opened, paying, until

OTHER = Actor(actor="nils", basis=Basis.ASSERTED)


async def test_a_run_stops_at_its_next_effect_boundary(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S17: What was read is read, nothing more is announced, and the run seals as cancelled by name and reason."""
    provider = FakeProvider()
    provider.tell("look", "hang")
    look, pay = paying(provider, "pay.look", mutates=False, recovery=Recovery.RETRY), paying(provider)

    @skill("story.run")
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        await cx.do(look())
        return await cx.do(pay())

    async with opened(tmp_path, body) as plane:
        admission = await plane.start(Wanted(capability="story.run", input={}))
        await provider.arrived.wait()
        first = await plane.cancel(admission.run, ME, "not wanted")
        second = await plane.cancel(admission.run, OTHER, "me too")
        assert (first.recorded, first.requested_by) == (True, "mara")
        assert (second.recorded, second.requested_by) == (False, "mara")
        provider.release()
        await plane.runs.wait_idle()
        assert (await plane.outcome(admission.run)).status == "cancelled"
        ended = of_kind(plane, admission.run, RunCancelled)[0]
        assert (ended.cancelled_by, ended.reason) == (ME, "not wanted")
        assert not provider.book[1:] and len(of_kind(plane, admission.run, EffectStarted)) == 1
        row = plane.store.readers.read(lambda tx: lists.get_run(tx, admission.run))
        assert row.log_index is not None


def taking_back(provider: FakeProvider, body: Any) -> Any:
    """The skill, with a compensation of one call."""
    back = paying(provider, "pay.back")

    @body.compensate
    async def undo(cx: Any, request: dict, output: Any) -> Any:  # type: ignore[type-arg]
        return await cx.do(back())

    return body


@pytest.mark.parametrize("declared", [True, False])
async def test_a_cancel_over_landed_work_is_recorded_and_heard_at_the_next_effect(
    autojump_clock: MockClock, tmp_path: Path, declared: bool
) -> None:
    """P15: What landed is taken back; a step that declares nothing about it has its run quarantined, by name."""
    provider = FakeProvider()
    provider.tell("late", "hang")
    pay, late, never = paying(provider), paying(provider, "pay.late"), paying(provider, "pay.never")

    @skill("story.run")
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return [await cx.do(pay()), await cx.do(late()), await cx.do(never())]

    async with opened(tmp_path, taking_back(provider, body) if declared else body) as plane:
        admission = await plane.start(Wanted(capability="story.run", input={}))
        await until(lambda: len(provider.asked) == 2)
        assert (await plane.cancel(admission.run, ME, "too late")).recorded
        provider.release()
        await plane.runs.wait_idle()
        outcome = await plane.outcome(admission.run)
        assert [row.name for row in provider.book] == ["refund", "late", *(["back"] if declared else [])]
        if declared:
            assert outcome.status == "cancelled" and not history(plane, admission.run).standing()
        else:
            assert (outcome.status, outcome.code) == ("quarantined", "undeclared")
            assert "step 0 (story.run)" in str(outcome.reason)


async def test_a_cancel_ends_a_wait_between_attempts(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A backoff is a boundary."""
    provider = FakeProvider()
    provider.tell("refund", *["did_not_happen"] * 9)
    pay = paying(provider, retry=RetryPolicy(base_ms=3_600_000, cap_ms=3_600_000))
    async with opened(tmp_path, one_call(pay)) as plane:
        admission = await plane.start(Wanted(capability="story.run", input={}))
        await until(lambda: "EffectFailed" in kinds(plane, admission.run))
        began = trio.current_time()
        await plane.cancel(admission.run, ME, "not wanted")
        await plane.runs.wait_idle()
        assert (await plane.outcome(admission.run)).status == "cancelled"
        assert len(provider.asked) == 1 and trio.current_time() - began < 60


async def test_a_cancel_that_may_not_be_heeded_does_not_shorten_a_wait(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """A run in doubt goes on asking in its own time: a cancel on record makes no hot loop of it."""
    provider = FakeProvider(honours_keys=False)
    provider.tell("refund", "in_doubt_before")
    pay = paying(provider, recovery=Recovery.RECONCILE, probed=True, timeout_s=20, settle_s=10)
    async with opened(tmp_path, one_call(pay)) as plane:
        admission = await plane.start(Wanted(capability="story.run", input={}))
        await until(lambda: "EffectFailed" in kinds(plane, admission.run))
        # As it is when the cancel was recorded while the announcement was on its way.
        live = plane.runs.live[admission.run]
        live.cancel = lists.Cancel("mara", "asserted", None, "not wanted")
        live.interrupt()
        await plane.runs.wait_idle()
        verdicts = of_kind(plane, admission.run, EffectReconciled)
        assert [one.early for one in verdicts] == [True, False]


async def test_a_cancel_heard_beside_an_announcement_in_the_writer_does_not_stand_over_it(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Of two members one hears the cancel while the other's announcement is being written: that one lands, and is taken
    back like whatever landed."""
    provider = FakeProvider()
    provider.tell("first", "did_not_happen")
    first = paying(provider, "pay.first", retry=RetryPolicy(base_ms=2_000))
    second = paying(provider, "pay.second")
    points = Points()

    @skill("story.run")
    async def together(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return await cx.gather(first(), second())

    async with opened(tmp_path, taking_back(provider, together), observe=points) as plane:
        held: list[str] = []
        queue = inline(plane).submit

        def keep_the_second(unit: Any) -> None:
            queue(unit)
            if points.count("effect.announcing") == 2 and not held:
                held.append("second")
                inline(plane).hold()

        plane.writer.submit = keep_the_second  # type: ignore[method-assign]
        admission = await plane.start(Wanted(capability="story.run", input={}))
        await until(lambda: bool(held))
        live = plane.runs.live[admission.run]
        live.cancel = lists.Cancel("mara", "asserted", None, "not wanted")
        inline(plane).let_go()
        await plane.runs.wait_idle()
        outcome = await plane.outcome(admission.run)
        landed = [row.name for row in provider.book]
        assert outcome.status == "cancelled" and not history(plane, admission.run).standing()
        assert landed in ([], ["second", "back"])


async def test_a_cancel_that_one_member_heard_does_not_stand_over_what_another_did(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """P15: one member hears it between its attempts while the writer holds the announcement of another; that one lands,
    and the run does not end before it is taken back."""
    provider = FakeProvider()
    provider.tell("first", "did_not_happen")
    provider.tell("second", "did_not_happen")
    first = paying(provider, "pay.first", retry=RetryPolicy(base_ms=10_000))
    second = paying(provider, "pay.second", retry=RetryPolicy(base_ms=1_000))
    points = Points()

    @skill("story.run")
    async def together(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return await cx.gather(first(), second())

    async with opened(tmp_path, taking_back(provider, together), observe=points) as plane:
        points.at["effect.announcing"] = lambda: (
            inline(plane).hold() if points.count("effect.announcing") == 3 else None
        )
        run = (await plane.start(Wanted(capability="story.run", input={}))).run
        for _ in range(100):
            if points.count("effect.announcing") == 3:
                break
            await trio.sleep(0.1)
        await until(lambda: len(inline(plane)._queue) > 0)
        live = plane.runs.live[run]
        live.cancel = lists.Cancel("mara", "asserted", None, "not wanted")
        live.interrupt()
        await wait_all_tasks_blocked()
        inline(plane).let_go()
        await plane.runs.wait_idle()
        assert (await plane.outcome(run)).status == "cancelled" and not history(plane, run).standing()
        assert [row.name for row in provider.book] == ["second", "back"]


async def test_a_failed_run_is_cancelled_at_once(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Nobody executes it: the act concludes and seals it; a sealed run refuses."""
    provider = FakeProvider()
    provider.tell("refund", "refused_for_good")
    async with opened(tmp_path, one_call(paying(provider))) as plane:
        outcome = await plane.run("story.run", {})
        answer = await plane.cancel(outcome.run, ME, "leave it")
        assert answer.concluded and (await plane.outcome(outcome.run)).status == "cancelled"
        with pytest.raises(NotApplicable, match="closed"):
            await plane.cancel(outcome.run, ME, "again")


async def test_a_quarantined_run_is_not_cancelled(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S12: A cancel would unwind around doubt."""
    provider = FakeProvider()
    provider.tell("refund", "in_doubt_before")
    async with opened(tmp_path, one_call(paying(provider, recovery=Recovery.REQUIRES_OPERATOR))) as plane:
        outcome = await plane.run("story.run", {})
        with pytest.raises(NotApplicable, match="reconcile"):
            await plane.cancel(outcome.run, ME, "not wanted")
