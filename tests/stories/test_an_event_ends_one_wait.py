"""A message from outside reaches one wait, once: whether it comes before the wait or behind it, while the run sleeps or
is awake, and however often it is delivered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from agentplane import skill
from agentplane.authoring.plan import node, plan
from agentplane.authoring.waiting import WaitTimedOut
from agentplane.core.errors import Held, InvalidInput, InvalidRequest
from agentplane.core.records import EffectDone, RunSuspended
from agentplane.journal.tx import Tx
from stories.scenes import ME, of_kind, opened
from stories.waiting_scenes import DAY_MS, awaiting, buffered, deliver, settled, status


async def test_a_run_that_waits_is_woken_by_the_event_about_all_of_its_keys(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Of its kind and with more keys than asked for: the run goes on with the payload, and the outcome says who sent
    it. (S94)
    """
    async with opened(tmp_path, awaiting()) as plane:
        run = (await plane.run("story.await", {"order": "O-1"})).run
        assert await status(plane, run) == "suspended"
        assert (await deliver(plane, "O-2", "other order")).delivery == "buffered"
        assert (await deliver(plane, "O-1", "other kind", kind="parcel.lost")).delivery == "buffered"
        told = await deliver(plane, "O-1", "this", keys={"parcel": "P-9"})
        assert (told.delivery, told.run) == ("resumed", run)
        assert await settled(plane, run) == "succeeded"
        assert (await plane.outcome(run)).output == {"id": "this"}
        outcome = of_kind(plane, run, EffectDone)[-1]
        assert outcome.source == "peer:shop" and outcome.output["correlation"] == {"order": "O-1", "parcel": "P-9"}
        assert buffered(plane) == 2


async def test_an_event_that_came_first_is_found_by_the_unit_that_would_suspend(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """The buffer is taken oldest first, and the run never suspends. (S95)"""
    async with opened(tmp_path, awaiting()) as plane:
        for name in ("first", "second"):
            assert (await deliver(plane, "O-1", name)).delivery == "buffered"
            await trio.sleep(1)
        run = (await plane.run("story.await", {"order": "O-1"})).run
        outcome = await plane.outcome(run)
        assert (outcome.status, outcome.output) == ("succeeded", {"id": "first"})
        assert not of_kind(plane, run, RunSuspended) and buffered(plane) == 1


async def test_an_event_delivered_again_is_a_duplicate_and_names_who_took_the_first(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """By authenticated source, producer's source and id: the same id of another source is another event, and no two
    triples are joined into one name. (S96)

    Spec: Delivery.CollidingIdsAreDistinct, Delivery.DuplicateIsTold.
    """
    async with opened(tmp_path, awaiting()) as plane:
        run = (await plane.run("story.await", {"order": "O-1"})).run
        await deliver(plane, "O-1", "e")
        await plane.runs.wait_for(run)
        again = await deliver(plane, "O-1", "e")
        assert (again.delivery, again.run) == ("duplicate", run)
        assert (await deliver(plane, "O-1", "e", source="peer:bank")).delivery == "buffered"
        assert (await deliver(plane, "O-1", "b", producer="a:")).delivery == "buffered"
        assert (await deliver(plane, "O-1", ":b", producer="a")).delivery == "buffered"
        assert (await deliver(plane, "O-1", ":b", producer="a")).delivery == "duplicate"


async def test_of_two_waiters_the_older_takes_the_first_event(autojump_clock: MockClock, tmp_path: Path) -> None:
    """One event, one wait: the second event is the second waiter's. (S94)"""
    async with opened(tmp_path, awaiting()) as plane:
        older = (await plane.run("story.await", {"order": "O-1"})).run
        await trio.sleep(1)
        younger = (await plane.run("story.await", {"order": "O-1"})).run
        assert (await deliver(plane, "O-1", "first")).run == older
        assert await settled(plane, older) == "succeeded" and await status(plane, younger) == "suspended"
        assert (await deliver(plane, "O-1", "second")).run == younger
        assert await settled(plane, younger) == "succeeded"


async def test_a_wait_whose_time_is_over_ends_so_and_never_eats_the_next_event(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Outcome and subscription go in one unit: what comes later stays for somebody else. (S99)

    Spec: Delivery.TimedOutWaiterEatsNothing.
    """

    @skill("story.patient")
    async def patient(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        try:
            await cx.event("parcel.delivered", correlation={"order": "O-1"}, hours=2)
        except WaitTimedOut as over:
            return f"gave up: {over}"

    async with opened(tmp_path, patient, awaiting()) as plane:
        run = (await plane.run("story.patient", {})).run
        await trio.sleep(2 * 3600 + 5)
        await plane.runs.wait_idle()
        outcome = await plane.outcome(run)
        assert outcome.status == "succeeded" and "gave up" in str(outcome.output)
        assert (await deliver(plane, "O-1", "late")).delivery == "buffered"
        other = (await plane.run("story.await", {"order": "O-1"})).run
        assert (await plane.outcome(other)).output == {"id": "late"}
        assert (await plane.replay(run, strict=True)).verdict == "verified"


async def test_a_wait_whose_time_is_over_fails_its_step_when_nobody_catches_it(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with opened(tmp_path, awaiting(hours=1)) as plane:
        run = (await plane.run("story.await", {"order": "O-1"})).run
        await trio.sleep(3605)
        await plane.runs.wait_idle()
        assert await status(plane, run) == "failed"


async def test_what_comes_while_the_run_is_awake_waits_for_the_look_in_its_own_suspension(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """The run was woken by a timer and holds its lease: the event stays in the buffer, nobody younger takes it, and the
    run finds it before it would sleep again. (S97)
    """

    @skill("story.short")
    async def short(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        await cx.sleep(hours=1)
        busy.set()
        await let_go.wait()

    busy, let_go = trio.Event(), trio.Event()
    both = plan("story.both", nodes=[node("short", "story.short"), node("await", "story.await")])
    async with opened(tmp_path, short, awaiting(), both) as plane:
        run = (await plane.run("story.both", {"order": "O-1"})).run
        with trio.fail_after(7200):
            await busy.wait()
        younger = (await plane.run("story.await", {"order": "O-1"})).run
        assert (await deliver(plane, "O-1", "e")).delivery == "buffered"
        await plane.sweep.tick(plane.world.now_ms())
        assert await status(plane, younger) == "suspended"
        let_go.set()
        assert await settled(plane, run) == "succeeded"
        assert await status(plane, younger) == "suspended" and buffered(plane) == 0


async def test_what_comes_while_the_plane_is_paused_is_kept_and_told_when_it_is_released(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """S98."""
    async with opened(tmp_path, awaiting()) as plane:
        run = (await plane.run("story.await", {"order": "O-1"})).run
        await plane.state.pause(ME, "looking")
        assert (await deliver(plane, "O-1")).delivery == "buffered"
        await trio.sleep(10)
        assert await status(plane, run) == "suspended"
        await plane.state.release_paused(ME, "looked")
        plane.begin_recovery()
        await trio.sleep(5)
        assert await settled(plane, run) == "succeeded"


async def test_an_event_nobody_claims_is_a_dead_letter_by_the_sweep_and_never_on_arrival(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """And not under a clock that nobody believes. (S100)"""
    async with opened(tmp_path, awaiting(), event_kept_s=3600) as plane:
        await deliver(plane, "O-1", "old")
        assert buffered(plane) == 1
        now_ms = plane.world.now_ms()
        assert (await plane.sweep.tick(now_ms + 3_599_000)).dead_lettered == 0
        plane.world.clock_suspect = True
        assert (await plane.sweep.tick(now_ms + 2 * DAY_MS)).dead_lettered == 0
        plane.world.clock_suspect = False
        ticked = await plane.sweep.tick(now_ms + 3_601_000)
        assert ticked.dead_lettered == 1 and ticked.needs_attention and buffered(plane) == 0
        # A dead letter is nobody's any more.
        run = (await plane.run("story.await", {"order": "O-1"})).run
        assert await status(plane, run) == "suspended"
        assert (await deliver(plane, "O-1", "old")).delivery == "duplicate"


async def test_a_claim_whose_outcome_was_not_recorded_is_finished_by_the_sweep(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """The state that only a store of two can be left in, planted: the wait is given the event that was claimed for it,
    once, and no second one. (S101)
    """
    async with opened(tmp_path, awaiting()) as plane:
        run = (await plane.run("story.await", {"order": "O-1"})).run
        await plane.state.pause(ME, "so that nothing is matched")
        told = await deliver(plane, "O-1", "claimed")

        def plant(tx: Tx) -> None:
            row = tx.one("SELECT key FROM effect WHERE tenant = ? AND run = ? AND wait IS NOT NULL", tx.tenant, run)
            assert row is not None
            tx.run("UPDATE event SET state = 'claimed', parked = 0, run = ?, key = ? WHERE tenant = ? AND event = ?",
                   run, row[0], tx.tenant, told.event)  # fmt: skip

        await plane.writer.do(plant)
        await plane.state.release_paused(ME, "planted")
        ticked = await plane.sweep.tick(plane.world.now_ms())
        assert ticked.redelivered == [run]
        assert await settled(plane, run) == "succeeded"
        assert (await plane.outcome(run)).output == {"id": "claimed"}
        assert (await plane.sweep.tick(plane.world.now_ms())).redelivered == []


async def test_a_run_that_was_stopped_takes_no_event(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A cancel ends the wait with its subscription; what comes then is in the buffer.

    Spec: Delivery.NoAnswerAfterConclusion.
    """
    async with opened(tmp_path, awaiting()) as plane:
        run = (await plane.run("story.await", {"order": "O-1"})).run
        await plane.cancel(run, ME, "not wanted")
        await plane.sweep.tick(plane.world.now_ms())
        assert await settled(plane, run) == "cancelled"
        assert (await deliver(plane, "O-1")).delivery == "buffered"


async def test_a_store_that_is_held_takes_in_nothing(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S102."""
    async with opened(tmp_path, awaiting()) as plane:
        await plane.writer.do(lambda tx: tx.run("INSERT INTO plane_state VALUES (?, 'held', 'planted', 0)", tx.tenant))
        with pytest.raises(Held):
            await deliver(plane, "O-1")


async def test_a_wait_says_about_what_and_until_when(autojump_clock: MockClock, tmp_path: Path) -> None:
    """What nothing bounds, what is about nothing, and the plane's own kinds are refused in a sentence, and nothing is
    announced."""
    faults: list[str] = []

    @skill("story.wrong")
    async def wrong(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        for kind, more in (
            ("a.b", {"correlation": {"order": "O"}}),
            ("a.b", {"correlation": {}, "days": 1}),
            ("agentplane.task", {"correlation": {"order": "O"}, "days": 1}),
            ("a.b", {"correlation": {"order": "O"}, "deadline": "none"}),
            ("a.b", {"correlation": {"order": "O"}, "days": 1, "until": 5}),
        ):
            try:
                await cx.event(kind, **more)
            except (InvalidRequest, InvalidInput) as error:
                faults.append(error.message)

    async with opened(tmp_path, wrong) as plane:
        run = (await plane.run("story.wrong", {})).run
        assert len(faults) == 5, faults
        assert await status(plane, run) == "succeeded" and not of_kind(plane, run, RunSuspended)
