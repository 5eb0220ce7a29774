"""Room as a state of a whole plane: what is refused at each mark, what is still recorded, and how it ends by itself.

The reading of free bytes is the test's; marks, ballast and planes are the product's.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from agentplane import Recovery, skill
from agentplane.core import bounds
from agentplane.core.errors import DiskLow
from agentplane.core.records import EffectDone, EffectReconciled, EffectStarted
from agentplane.engine.admission import Wanted
from agentplane.engine.plane import Plane
from agentplane.journal.room import DiskRoom, Room
from agentplane.testkit import FakeProvider
from stories.scenes import ME, Points, inline, of_kind, one_call, opened, paying, reconcile, until

ENOUGH = bounds.ROOM_LOW_BYTES
LOW = bounds.ROOM_LOW_BYTES - 1
FLOOR = bounds.ROOM_FLOOR_BYTES - 1


def free(plane: Plane, count: int) -> DiskRoom:
    """From now on the disk has ``count`` bytes free, and a tick has seen it."""
    room = plane.store.room
    room._free = lambda: count  # type: ignore[method-assign]
    room.look()
    return room


def ballast(plane: Plane) -> Path:
    return plane.store.path.with_name(plane.store.path.name + ".ballast")


async def test_under_low_runs_go_on_and_none_is_admitted(autojump_clock: MockClock, tmp_path: Path) -> None:
    """The first mark: a new run is refused with the number, one that repeats its key is answered, one under way
    announces."""
    provider = FakeProvider()
    provider.tell("refund", "hang")
    async with opened(tmp_path, one_call(paying(provider))) as plane:
        admission = await plane.start(Wanted(capability="story.run", input={}, key="k"))
        await provider.arrived.wait()
        assert free(plane, LOW).state is Room.LOW and ballast(plane).exists()
        with pytest.raises(DiskLow) as refused:
            await plane.run("story.run", {"order": "B-2"})
        assert refused.value.details["free"] == LOW and refused.value.row.exit == 4 and refused.value.row.http == 507
        again = await plane.start(Wanted(capability="story.run", input={}, key="k"))
        assert (again.run, again.admitted) == (admission.run, False)
        provider.tell("refund", "did_not_happen")
        provider.release()
        await plane.runs.wait_idle()
        assert (await plane.outcome(admission.run)).status == "succeeded"


async def test_at_the_floor_an_outcome_and_a_conclusion_find_their_room(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """What was announced is recorded to its end, and the ballast's bytes are there for it."""
    provider = FakeProvider()
    provider.tell("refund", "hang")
    async with opened(tmp_path, one_call(paying(provider))) as plane:
        admission = await plane.start(Wanted(capability="story.run", input={}))
        await provider.arrived.wait()
        assert ballast(plane).exists()
        assert free(plane, FLOOR).state is Room.FLOOR and not ballast(plane).exists()
        provider.release()
        await plane.runs.wait_idle()
        assert (await plane.outcome(admission.run)).status == "succeeded"
        assert len(of_kind(plane, admission.run, EffectDone)) == 1


async def test_at_the_floor_a_person_still_decides_and_the_run_waits_for_room(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """A decision is recorded; the announcement that follows from it is made when there is room again, once."""
    provider = FakeProvider()
    provider.tell("refund", "in_doubt_before")
    once = one_call(paying(provider, recovery=Recovery.REQUIRES_OPERATOR))
    async with opened(tmp_path, once) as plane:
        run = (await plane.run("story.run", {})).run
        assert (await plane.outcome(run)).status == "quarantined"
        free(plane, FLOOR)
        assert await reconcile(plane, run, "did-not-happen") == []
        assert len(of_kind(plane, run, EffectReconciled)) == 1
        async with _reopened(plane, run):
            await until(lambda: inline(plane).refused["DiskLow"] >= 1)
            assert not provider.book and len(of_kind(plane, run, EffectStarted)) == 1
            assert free(plane, ENOUGH).state is Room.ENOUGH and ballast(plane).exists()
        assert (await plane.outcome(run)).status == "succeeded" and len(provider.book) == 1


@asynccontextmanager
async def _reopened(plane: Plane, run: str) -> AsyncIterator[None]:
    """The run reopened by a person beside the body, and awaited at its end."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(plane.reopen, run, ME, "I looked")
        yield


async def test_a_plane_at_the_floor_says_so_and_recovers_by_its_own_tick(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Nobody has to tell it: the tick asks the disk, gives the ballast back, and takes it again."""
    async with opened(tmp_path, one_call(paying(FakeProvider()))) as plane:
        room = plane.store.room
        for count, state, kept in ((FLOOR, Room.FLOOR, False), (LOW, Room.LOW, False), (ENOUGH, Room.ENOUGH, True)):
            room._free = lambda count=count: count  # type: ignore[method-assign, misc]
            await _ticked(room)
            assert (room.state, ballast(plane).exists()) == (state, kept)
        assert (await plane.run("story.run", {})).status == "succeeded"


async def _ticked(room: DiskRoom) -> None:
    """Until the plane has looked again by itself."""
    looked, look = trio.Event(), room.look

    def looking() -> Room:
        try:
            return look()
        finally:
            looked.set()

    room.look = looking  # type: ignore[method-assign]
    await looked.wait()
    room.look = look  # type: ignore[method-assign]


def test_a_ballast_that_was_cut_short_is_made_whole(tmp_path: Path) -> None:
    """A process killed while it took the ballast leaves a part, a copy may leave holes; neither would give room."""
    room = DiskRoom(tmp_path / "plane.db", low=2, floor=1, ballast=16 * 4096)
    file = tmp_path / "plane.db.ballast"
    for spoil in (4096, 16 * 4096):
        file.unlink(missing_ok=True)
        file.touch()
        os.truncate(file, spoil)
        assert room.look() is Room.ENOUGH
        assert file.stat().st_size == 16 * 4096 <= file.stat().st_blocks * 512


def test_a_ballast_that_cannot_be_given_back_is_no_fault(tmp_path: Path) -> None:
    """The disk says by itself when it is full; a smaller margin stops nobody."""
    file = tmp_path / "plane.db.ballast"
    file.mkdir()
    room = DiskRoom(tmp_path / "plane.db", low=2**62, floor=2**61, ballast=4096)
    assert room.look() is Room.FLOOR and file.exists()


async def test_under_the_floor_a_skill_of_local_effects_waits_too(autojump_clock: MockClock, tmp_path: Path) -> None:
    """They announce nothing outside, and would eat the ballast's bytes all the same: what was begun goes on when there
    is room."""

    @skill("story.run")
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        for _ in range(50):
            await cx.uuid()

    points = Points()
    async with opened(tmp_path, body, observe=points) as plane:
        points.at["step.started"] = lambda: free(plane, FLOOR)
        admission = await plane.start(Wanted(capability="story.run", input={}))
        await trio.sleep(10)
        assert of_kind(plane, admission.run, EffectStarted) == [] and admission.run in plane.runs.live
        free(plane, ENOUGH)
        await plane.runs.wait_idle()
        assert (await plane.outcome(admission.run)).status == "succeeded"
        assert len(of_kind(plane, admission.run, EffectStarted)) == 50
