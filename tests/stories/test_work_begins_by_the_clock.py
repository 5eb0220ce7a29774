"""A schedule admits each of its instants at most once: under a key that is made of its name and the instant, whatever
was killed between the admission and the note of it, and as it was told to treat what it missed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from agentplane import skill
from agentplane.core.instants import to_text
from agentplane.core.records import RunAdmitted
from agentplane.engine.plane import Plane
from agentplane.engine.scheduling import Schedule
from agentplane.work import schedules
from agentplane.work.cron import Cron
from stories.scenes import ME, all_runs, of_kind, opened

HOUR_MS = 3_600_000


@skill("story.nightly")
async def nightly(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
    return request["what"]


def hourly(**more: Any) -> Schedule:
    more = {"capability": "story.nightly", "input": {"what": "books"}, "missed": "all"} | more
    return Schedule(name="books", cron=Cron("0 * * * *", "UTC"), **more)


def admitted(plane: Plane) -> list[str]:
    found = [of_kind(plane, row.run, RunAdmitted)[0] for row in all_runs(plane)]
    return sorted(str(one.idempotency_key) for one in found)


def key(ms: int) -> str:
    return f"schedule:books:{to_text(ms - ms % HOUR_MS)}"


async def test_an_instant_is_admitted_once(autojump_clock: MockClock, tmp_path: Path) -> None:
    """From the moment the schedule is first seen, at each of its instants, by the schedule's own name."""
    async with opened(tmp_path, nightly, schedules=[hourly()]) as plane:
        began_ms = plane.world.now_ms()
        assert (await plane.sweep.tick(began_ms)).admitted == []
        first = began_ms - began_ms % HOUR_MS + HOUR_MS
        assert (await plane.sweep.tick(first - 1)).admitted == []
        assert len((await plane.sweep.tick(first)).admitted) == 1
        assert (await plane.sweep.tick(first)).admitted == [] and (await plane.sweep.tick(first + 1000)).admitted == []
        await plane.runs.wait_idle()
        assert admitted(plane) == [key(first)]
        (row,) = all_runs(plane)
        assert of_kind(plane, row.run, RunAdmitted)[0].admitted_by.actor == "schedule:books"


async def test_a_kill_between_the_admission_and_the_note_repeats_a_key_and_not_the_work(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S120."""
    async with opened(tmp_path, nightly, schedules=[hourly()]) as plane:
        began_ms = plane.world.now_ms()
        await plane.sweep.tick(began_ms)
        first = began_ms - began_ms % HOUR_MS + HOUR_MS
        kept = began_ms
        await plane.sweep.tick(first)
        # As a process killed behind the admission leaves it: the schedule has not moved.
        await plane.writer.do(lambda tx: tx.run("UPDATE schedule SET last_ms = ? WHERE tenant = ?", kept, tx.tenant))
        plane.sweep.scheduler._next.clear()
        assert (await plane.sweep.tick(first + 1000)).admitted == []
        assert admitted(plane) == [key(first)]


@pytest.mark.parametrize(("policy", "expected"), [("skip", [5]), ("last", [5]), ("all", [1, 2, 3, 4, 5])])
async def test_what_was_missed_is_treated_as_told(
    policy: str, expected: list[int], autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Five hours pass while nobody looks; the last of them is now."""
    async with opened(tmp_path, nightly, schedules=[hourly(missed=policy)]) as plane:
        began_ms = plane.world.now_ms()
        await plane.sweep.tick(began_ms)
        first = began_ms - began_ms % HOUR_MS + HOUR_MS
        await plane.sweep.tick(first + 4 * HOUR_MS + 1000)
        await plane.runs.wait_idle()
        assert admitted(plane) == [key(first + (n - 1) * HOUR_MS) for n in expected]


async def test_long_missed_instants_are_skipped_or_the_last_is_taken(autojump_clock: MockClock, tmp_path: Path) -> None:
    for policy, count in (("skip", 0), ("last", 1)):
        where = tmp_path / policy
        where.mkdir()
        async with opened(where, nightly, schedules=[hourly(missed=policy)]) as plane:
            began_ms = plane.world.now_ms()
            await plane.sweep.tick(began_ms)
            first = began_ms - began_ms % HOUR_MS + HOUR_MS
            await plane.sweep.tick(first + 4 * HOUR_MS + HOUR_MS // 2)
            assert len(admitted(plane)) == count
            # And what comes next is on time again.
            await plane.sweep.tick(first + 5 * HOUR_MS)
            assert len(admitted(plane)) == count + 1


async def test_a_schedule_that_cannot_be_admitted_is_told_and_nothing_is_passed(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """S121."""
    async with opened(tmp_path, nightly, schedules=[Schedule(
        name="wrong", cron=Cron("0 * * * *", "UTC"), capability="story.none", missed="all"
    )]) as plane:  # fmt: skip
        began_ms = plane.world.now_ms()
        await plane.sweep.tick(began_ms)
        first = began_ms - began_ms % HOUR_MS + HOUR_MS
        ticked = await plane.sweep.tick(first)
        assert ticked.schedules_failed == ["wrong"] and "story.none" in plane.sweep.scheduler.faults["wrong"]
        assert (await plane.read(lambda tx: schedules.last(tx, "wrong"))) == began_ms


async def test_nothing_begins_while_the_plane_is_paused(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with opened(tmp_path, nightly, schedules=[hourly()]) as plane:
        began_ms = plane.world.now_ms()
        await plane.sweep.tick(began_ms)
        await plane.state.pause(ME, "looking")
        first = began_ms - began_ms % HOUR_MS + HOUR_MS
        assert (await plane.sweep.tick(first)).admitted == []
        await plane.state.release_paused(ME, "looked")
        assert len((await plane.sweep.tick(first + 1000)).admitted) == 1
