"""W9: what is wrong with one run is said of that run; its neighbours, and the caller of the plane, are not made to pay
for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from agentplane import Recovery, RetryPolicy, skill
from agentplane.core import bounds
from agentplane.core.errors import DiskLow, LandedWork
from agentplane.core.records import EffectStarted, RunConcluded
from agentplane.engine.linking import link
from agentplane.engine.plane import Plane
from agentplane.journal import appends, leases, rows
from agentplane.journal.room import Room
from agentplane.testkit import FakeProvider
from stories.scenes import ME, all_runs, history, of_kind, one_call, opened, paying, reconcile, recovered, undecided


async def test_a_defect_of_the_engine_quarantines_its_run_alone(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is named with the place of the defect; a run beside it, and the next one, conclude."""
    from agentplane.engine import execute

    provider = FakeProvider()
    whole = execute.run_plan

    async def broken(live: Any, *rest: Any) -> Any:
        if live.history.admitted.input.get("order") == "broken":
            raise ZeroDivisionError
        return await whole(live, *rest)

    monkeypatch.setattr(execute, "run_plan", broken)
    async with opened(tmp_path, one_call(paying(provider))) as plane:
        outcome = await plane.run("story.run", {"order": "broken"})
        assert (outcome.status, outcome.code) == ("quarantined", "invariant")
        assert "ZeroDivisionError" in str(outcome.reason)
        assert (await plane.run("story.run", {"order": "fine"})).status == "succeeded"


async def test_what_the_body_of_a_plane_raises_comes_out_as_it_is(autojump_clock: MockClock, tmp_path: Path) -> None:
    """No group of groups around an author's own error, and the store is closed behind it."""
    with pytest.raises(KeyError, match="mine"):
        async with opened(tmp_path, one_call(paying(FakeProvider()))) as plane:
            await plane.run("story.run", {})
            raise KeyError("mine")
    async with opened(tmp_path, one_call(paying(FakeProvider()))) as plane:
        assert [row.status for row in all_runs(plane)] == ["succeeded"]


async def test_a_repeat_of_acknowledged_work_is_answered_on_a_full_disk(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """The key is looked up before the room: what was promised is not refused."""
    async with opened(tmp_path, one_call(paying(FakeProvider()))) as plane:
        first = await plane.run("story.run", {}, key="ticket")
        plane.store.room.look = lambda: plane.store.room.state  # type: ignore[method-assign]
        plane.store.room.state = Room.FLOOR
        again = await plane.run("story.run", {}, key="ticket")
        assert (again.run, again.admitted) == (first.run, False)
        with pytest.raises(DiskLow):
            await plane.run("story.run", {}, key="another")


async def test_a_run_is_never_sealed_cancelled_over_landed_work(autojump_clock: MockClock, tmp_path: Path) -> None:
    """P15 as a constraint in the unit: whoever appends it, the store refuses."""
    provider = FakeProvider()
    pay = paying(provider)

    @skill("story.run")
    async def failing(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        await cx.do(pay())
        raise RuntimeError("after the refund")

    async with opened(tmp_path, failing) as plane:
        run = (await plane.run("story.run", {})).run

        def unit(tx: Any) -> None:
            lease = leases.acquire(tx, run, "somebody", "some opening", 30_000)
            head = rows.head_of(tx, run)
            linked = link(run, lease.epoch, head, [(RunConcluded, {"outcome": "cancelled"})], tx.now_ms)
            appends.append(tx, run, lease.epoch, head, linked)

        with pytest.raises(LandedWork):
            await plane.writer.do(unit)
        assert (await plane.outcome(run)).status == "failed"


async def test_a_read_that_was_lost_too_often_can_be_answered(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P3: past its bound of deaths an effect escalates, a read too, and then a person's answer is taken."""
    # A run that got further in some of these lives is no suspect of P4, whose bound would else come first.
    monkeypatch.setattr(bounds, "TAKEOVERS_WITHOUT_PROGRESS_MAX", 99)
    provider = FakeProvider()
    look = paying(provider, "pay.look", recovery=Recovery.RETRY, mutates=False)
    async with opened(tmp_path, one_call(look)) as plane:
        run = await _lost_six_times(plane, provider)
        assert [one.kind for one in undecided(plane, run)] == ["pay.look"]
        assert await reconcile(plane, run, "landed", output={"seen": True}) == []
        outcome = await plane.reopen(run, ME, "answered")
        assert (outcome.status, outcome.output) == ("succeeded", {"seen": True})


async def _lost_six_times(plane: Plane, provider: FakeProvider) -> str:
    """A run whose one effect was announced by six owners that died, each time before an answer."""
    from agentplane.engine.admission import Wanted

    provider.tell("look", *["hang"] * 7)
    run = (await plane.start(Wanted(capability="story.run", input={}))).run
    for number in range(1, 8):
        while len(of_kind(plane, run, EffectStarted)) < min(number, 6):
            await _tick()
        live = plane.runs.live.get(run)
        if live is None:
            break
        live.stop()
        await live.ended.wait()
        await plane.writer.do(lambda tx: _lapse(tx, run))
        await plane.recovery.once()
    await plane.runs.wait_idle()
    await recovered(plane)
    assert history(plane, run).conclusion is not None
    return run


def _lapse(tx: Any, run: str) -> None:
    held = leases.holder(tx, run)
    if held is not None:
        leases.renew(tx, leases.Lease(run, held.owner, held.epoch), -1)


async def _tick() -> None:
    import trio

    await trio.sleep(0.01)


async def test_a_key_window_that_closes_during_the_wait_is_seen_after_it(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """P7: the decision is taken again after the backoff, so a dead key is not sent; the probe is asked instead."""
    provider = FakeProvider()
    provider.tell("refund", "in_doubt_after_landing")
    slow = RetryPolicy(base_ms=60_000, cap_ms=60_000)
    pay = paying(provider, probed=True, key_window_s=20, retry=slow, timeout_s=1, settle_s=1)
    async with opened(tmp_path, one_call(pay)) as plane:
        outcome = await plane.run("story.run", {})
        assert outcome.status == "succeeded"
        assert len(of_kind(plane, outcome.run, EffectStarted)) == 1 and len(provider.book) == 1


async def test_a_doubt_of_unknown_age_is_waited_out_before_a_refusal_counts(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """P5, L3: with a clock that cannot be believed the probe's no counts once timeout and settle were waited out
    here."""
    provider = FakeProvider()
    provider.tell("refund", "in_doubt_before")
    pay = paying(provider, recovery=Recovery.RECONCILE, probed=True, timeout_s=5, settle_s=10)
    async with opened(tmp_path, one_call(pay)) as plane:
        plane.clock._set("a test says so")
        plane.world.clock_suspect = True
        before = autojump_clock.current_time()
        outcome = await plane.run("story.run", {})
        assert outcome.status == "succeeded" and len(provider.book) == 1
        assert autojump_clock.current_time() - before >= 15
        assert len(of_kind(plane, outcome.run, EffectStarted)) == 2
