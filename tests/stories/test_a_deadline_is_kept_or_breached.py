"""A promise with a date: reckoned once and recorded, warned of, breached when nobody kept it, and accounted for by a
person; never twice, and never by a clock that nobody believes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from agentplane import EffectFailed, skill
from agentplane.core.errors import InvalidRequest, NotFound, NotPending
from agentplane.core.instants import from_text
from agentplane.core.records import DeadlineRegistered, DeadlineTransition, EffectDone, PlaneActed, Swept
from agentplane.engine.plane import Plane
from agentplane.journal import lists, obligations
from agentplane.journal.tx import Tx
from agentplane.work import matters
from stories.scenes import ME, of_kind, opened
from stories.waiting_scenes import DAY_MS


@skill("story.promise")
async def promise(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
    due = await cx.deadline("reply", **request.get("rule", {"hours": 2}))
    await cx.sleep(hours=request.get("wait", 1))
    return {"due": due, "met": await cx.met("reply")}


HOUR_MS = 3_600_000
KEYS = {"order": "O-1"}


def swept(plane: Plane, runs: list[str]) -> list[tuple[str, str]]:
    return [(one.subject, one.action) for run in runs for one in of_kind(plane, run, Swept)]


def held(plane: Plane, case: str) -> list[str]:
    return [one.state for one in plane.store.readers.read(lambda tx: obligations.of_subject(tx, case))]


async def one_case(plane: Plane) -> str:
    (row,) = await plane.read(lambda tx: matters.by_status(tx, None, 10))
    return row.case


async def test_a_promise_kept_in_time_is_met(autojump_clock: MockClock, tmp_path: Path) -> None:
    """The instant and the calendar's digest are recorded with it, and read back by a replay."""
    async with opened(tmp_path, promise) as plane:
        run = (await plane.run("story.promise", {}, correlate=KEYS)).run
        case = await one_case(plane)
        (registered,) = of_kind(plane, run, DeadlineRegistered)
        resolved = next(one for one in of_kind(plane, run, EffectDone) if isinstance(one.output, dict))
        assert registered.resolved_at == resolved.output["due"] and registered.calendar_digest
        assert from_text(registered.resolved_at) - from_text(resolved.output["base"]) == 2 * HOUR_MS
        await trio.sleep(3600 + 5)
        await plane.runs.wait_idle()
        outcome = await plane.outcome(run)
        assert outcome.output == {"due": from_text(registered.resolved_at), "met": True}
        assert held(plane, case) == ["met"]
        (moved,) = of_kind(plane, run, DeadlineTransition)
        assert (moved.before, moved.to) == ("pending", "met")
        assert not (await plane.sweep.tick(plane.world.now_ms() + 30 * DAY_MS)).breached
        assert (await plane.replay(run, strict=True)).verdict == "verified"


async def test_a_promise_nobody_kept_is_warned_of_and_breached_once(autojump_clock: MockClock, tmp_path: Path) -> None:
    """With the account in a sealed run of the sweep, the case escalated, and what comes too late told so. (S115)"""
    async with opened(tmp_path, promise) as plane:
        run = (await plane.run("story.promise", {"wait": 5}, correlate=KEYS)).run
        case = await one_case(plane)
        now_ms = plane.world.now_ms()
        assert (await plane.sweep.tick(now_ms + HOUR_MS)).records == []
        ticked = await plane.sweep.tick(now_ms + 2 * HOUR_MS - 60_000)
        assert (ticked.warned, ticked.breached) == (1, 0)
        assert swept(plane, ticked.records) == [(f"{case} reply", "deadline_warned")]
        ticked = await plane.sweep.tick(now_ms + 2 * HOUR_MS + 60_000)
        assert (ticked.warned, ticked.breached) == (0, 1) and ticked.needs_attention
        assert swept(plane, ticked.records) == [(f"{case} reply", "deadline_breached"), (case, "case_escalated")]
        assert plane.store.readers.read(lambda tx: lists.get_run(tx, ticked.records[0])).log_index is not None
        assert (await plane.sweep.tick(now_ms + 3 * HOUR_MS)).records == []
        assert (await plane.read(lambda tx: matters.get(tx, case))).status == "escalated"
        await trio.sleep(5 * 3600 + 5)
        await plane.runs.wait_idle()
        outcome = await plane.outcome(run)
        assert outcome.status == "succeeded" and outcome.output["met"] is False  # type: ignore[index]
        assert held(plane, case) == ["breached"]


async def test_a_breach_that_lost_is_noted_as_not_applied(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run met it between the sweep's look and its unit. (S116)"""
    async with opened(tmp_path, promise) as plane:
        await plane.run("story.promise", {"wait": 5}, correlate=KEYS)
        case = await one_case(plane)

        found = await plane.read(lambda tx: obligations.due(tx, plane.world.now_ms() + 9 * DAY_MS, 10))
        await plane.writer.do(lambda tx: obligations.move(tx, case, "reply", found[0].state, "met"))
        monkeypatch.setattr(obligations, "due", lambda *args, **more: found)
        ticked = await plane.sweep.tick(plane.world.now_ms() + 9 * DAY_MS)
        assert (ticked.breached, ticked.not_applied) == (0, 1)
        assert swept(plane, ticked.records) == [(f"{case} reply", "not_applied")]
        assert held(plane, case) == ["met"]


async def test_a_breach_without_its_account_is_accounted_for_once(autojump_clock: MockClock, tmp_path: Path) -> None:
    """The state that only a store of two can be left in, planted: applied, and the note owed. (S115)"""
    async with opened(tmp_path, promise) as plane:
        await plane.run("story.promise", {"wait": 5}, correlate=KEYS)
        case = await one_case(plane)

        def plant(tx: Tx) -> None:
            tx.run("UPDATE obligation SET state = 'breached', noted = 0 WHERE tenant = ?", tx.tenant)

        await plane.writer.do(plant)
        ticked = await plane.sweep.tick(plane.world.now_ms())
        assert swept(plane, ticked.records) == [(f"{case} reply", "deadline_breached"), (case, "case_escalated")]
        assert (await plane.sweep.tick(plane.world.now_ms())).records == []


async def test_no_breach_under_a_clock_that_nobody_believes(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S117.

    Spec: Timers.NothingFiresUnderASuspectClock.
    """
    async with opened(tmp_path, promise) as plane:
        await plane.run("story.promise", {"wait": 5}, correlate=KEYS)
        plane.world.clock_suspect = True
        ticked = await plane.sweep.tick(plane.world.now_ms() + 9 * DAY_MS)
        assert (ticked.warned, ticked.breached, ticked.fired) == (0, 0, [])


async def test_a_breach_is_accounted_for_by_the_first_who_does(autojump_clock: MockClock, tmp_path: Path) -> None:
    """It stays breached: what ends is the question. (S118)"""
    async with opened(tmp_path, promise) as plane:
        await plane.run("story.promise", {"wait": 5}, correlate=KEYS)
        case = await one_case(plane)
        with pytest.raises(NotPending):
            await plane.worklist.acknowledge(case, "reply", ME, "too early")
        await plane.sweep.tick(plane.world.now_ms() + 9 * DAY_MS)
        assert await plane.worklist.acknowledge(case, "reply", ME, "called them") == (True, ME.actor)
        other = type(ME)(actor="os:bob", basis=ME.basis)
        assert await plane.worklist.acknowledge(case, "reply", other, "me too") == (False, ME.actor)
        assert held(plane, case) == ["breached"]
        assert await plane.read(lambda tx: obligations.breached(tx, 10)) == []
        own = plane.store.readers.read(lambda tx: lists.runs(tx, own=True))
        acts = [one for row in own for one in of_kind(plane, row.run, PlaneActed)]
        assert [(one.action, one.subject, one.reason) for one in acts] == [
            ("obligation.acknowledged", f"{case} reply", "called them")
        ]
        with pytest.raises(NotFound):
            await plane.worklist.acknowledge(case, "other", ME, "what")


async def test_a_run_without_a_case_has_its_promise_in_its_own_name(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S119."""
    async with opened(tmp_path, promise) as plane:
        run = (await plane.run("story.promise", {"wait": 5})).run
        ticked = await plane.sweep.tick(plane.world.now_ms() + 9 * DAY_MS)
        assert swept(plane, ticked.records) == [(f"{run} reply", "deadline_breached")]


async def test_a_deadline_that_no_calendar_can_reckon_is_refused_and_nothing_is_registered(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    faults: list[str] = []

    @skill("story.wrong")
    async def wrong(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        for rule in (
            {"working_days": 5, "holidays": "XX-YY"}, {"on": "9999-12-31", "working_days": 1}, {"days": -1},
            {"on": "2026-02-30"}, {"working_days": 1, "tz": "Mars/Olympus"}, {}, {"days": 10**9},
        ):  # fmt: skip
            try:
                await cx.deadline("reply", **rule)
            except InvalidRequest as error:
                faults.append(error.message)

    async with opened(tmp_path, wrong) as plane:
        run = (await plane.run("story.wrong", {}, correlate=KEYS)).run
        assert len(faults) == 7, faults
        assert of_kind(plane, run, DeadlineRegistered) == []
        assert held(plane, await one_case(plane)) == []


async def test_a_name_that_is_open_is_refused_a_second_time(autojump_clock: MockClock, tmp_path: Path) -> None:
    @skill("story.two")
    async def two(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        await cx.deadline("reply", days=1)
        try:
            await cx.deadline("reply", days=2)
        except EffectFailed as error:
            first = error.fault.code
        assert await cx.waive("reply") and await cx.waive("reply") is not None
        await cx.deadline("reply", days=3)
        return first

    async with opened(tmp_path, two) as plane:
        outcome = await plane.run("story.two", {}, correlate=KEYS)
        assert outcome.output == "deadline_open"
        assert held(plane, await one_case(plane)) == ["cancelled", "pending"]
        assert (await plane.replay(outcome.run, strict=True)).verdict == "verified"


async def test_a_year_of_promises_is_driven_in_seconds(autojump_clock: MockClock, tmp_path: Path) -> None:
    """``now`` is an argument: four hundred promises over a year, a tick a day, each warned of once and breached once,
    in its own day, and every account sealed."""

    @skill("story.year")
    async def year(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        for day in range(request["from"], request["from"] + 40):
            await cx.deadline(f"day-{day}", days=day % 364 + 1)

    async with opened(tmp_path, year) as plane:
        for start in range(0, 400, 40):
            await plane.run("story.year", {"from": start}, correlate={"batch": f"B-{start}"})
        began_ms = plane.world.now_ms()
        warned = breached = 0
        for day in range(1, 367):
            ticked = await plane.sweep.tick(began_ms + day * DAY_MS + 3_600_000)
            assert not ticked.saturated
            warned += ticked.warned
            breached += ticked.breached
        # What is due within a day of its promise is breached in the tick that would have warned of it.
        assert breached == 400 and 390 <= warned < 400
        own = plane.store.readers.read(lambda tx: lists.runs(tx, own=True, limit=1000))
        assert own and all(row.log_index is not None for row in own)
