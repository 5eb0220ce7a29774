"""W2 and room: a barrier refused by its gate leaves the run where it was, and what stood behind it is linked again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from agentplane import skill
from agentplane.core.errors import DiskLow
from agentplane.core.records import EffectStarted, StepStarted
from agentplane.engine.admission import Wanted
from agentplane.journal.room import Room
from agentplane.testkit import FakeProvider
from stories.scenes import Points, inline, of_kind, one_call, opened, paying, until


class Disk:
    """The room of a plane's store, as a test says it is."""

    def __init__(self, plane: Any) -> None:
        self.room = plane.store.room
        self.room.look = lambda: self.room.state

    def is_full(self, full: bool) -> None:
        self.room.state = Room.FLOOR if full else Room.ENOUGH


async def test_nothing_is_admitted_when_there_is_little_room(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A full disk is a state that a caller is told of."""
    async with opened(tmp_path, one_call(paying(FakeProvider()))) as plane:
        Disk(plane).is_full(True)
        with pytest.raises(DiskLow):
            await plane.run("story.run", {})


@pytest.mark.parametrize("members", [1, 2, 3, 7])
async def test_a_gather_goes_on_when_there_is_room_again(
    autojump_clock: MockClock, tmp_path: Path, members: int
) -> None:
    """Every member's announcement was refused: each is made again, once, and the chain holds."""
    provider = FakeProvider()
    pay, points = paying(provider), Points()

    @skill("story.run")
    async def together(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return len(await cx.gather(*[pay(order=str(index)) for index in range(members)]))

    async with opened(tmp_path, together, observe=points) as plane:
        disk = Disk(plane)
        points.at["step.started"] = lambda: disk.is_full(True)
        admission = await plane.start(Wanted(capability="story.run", input={}))
        await until(lambda: inline(plane).refused["DiskLow"] >= members)
        assert not provider.asked
        disk.is_full(False)
        await plane.runs.wait_idle()
        outcome = await plane.outcome(admission.run)
        assert (outcome.status, outcome.output) == ("succeeded", members)
        assert len(provider.book) == len(of_kind(plane, admission.run, EffectStarted)) == members


@pytest.mark.parametrize(
    ("count", "refused"),
    [(6, (0,)), (6, (0, 2)), (6, (2,)), (6, (0, 2, 4)), (6, (0, 4)), (1, (0,)), (3, (0, 2)), (5, (0, 4)), (5, (2, 4))],
)
async def test_what_was_queued_behind_a_refusal_is_linked_again(
    autojump_clock: MockClock, tmp_path: Path, count: int, refused: tuple[int, ...]
) -> None:
    """W2: of barriers (even) and riders (odd) in one queue only the refused are missing; order and chain hold."""
    provider = FakeProvider()
    provider.tell("refund", "hang")
    async with opened(tmp_path, one_call(paying(provider)), recover=False) as plane:
        admission = await plane.start(Wanted(capability="story.run", input={}))
        await provider.arrived.wait()
        log = plane.runs.live[admission.run].log
        answers: dict[int, BaseException | None] = {}

        def gate(_: Any) -> None:
            raise DiskLow("no room")

        async def barrier(index: int) -> None:
            extra = gate if index in refused else None
            try:
                await log.barrier((StepStarted, {"step": index, "skill": "s"}), extra=extra)
                answers[index] = None
            except DiskLow as error:
                answers[index] = error

        inline(plane).hold()
        async with trio.open_nursery() as nursery:
            for index in range(count):
                if index % 2:
                    log.ride((StepStarted, {"step": index, "skill": "s"}))
                else:
                    nursery.start_soon(barrier, index)
                    await until(lambda index=index: log.uncommitted == index + 1)  # type: ignore[misc]
            inline(plane).let_go()
        await log.settle()
        assert {index for index, error in answers.items() if error is not None} == set(refused)
        steps = [record.step for record in of_kind(plane, admission.run, StepStarted)]
        assert steps == [0, *(index for index in range(count) if index not in refused)]
        await log.barrier((StepStarted, {"step": 9, "skill": "s"}))
        provider.release()
        await plane.runs.wait_idle()
        assert (await plane.outcome(admission.run)).status == "succeeded"


async def test_a_key_window_that_closes_while_the_disk_is_full_is_heeded(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """P7: a repeat that was allowed before the wait is decided again after it, and not sent under a key that died."""
    provider = FakeProvider(honours_keys=False)
    provider.tell("refund", "in_doubt_after_landing")
    points = Points()
    async with opened(tmp_path, one_call(paying(provider, key_window_s=3_600)), observe=points) as plane:
        disk = Disk(plane)
        points.at["effect.recorded"] = lambda: disk.is_full(True)
        admission = await plane.start(Wanted(capability="story.run", input={}))
        await trio.sleep(3_700)
        points.at.clear()
        disk.is_full(False)
        await plane.runs.wait_idle()
        assert (await plane.outcome(admission.run)).status == "quarantined" and len(provider.book) == 1


async def test_a_drain_parks_a_run_that_waits_for_room(autojump_clock: MockClock, tmp_path: Path) -> None:
    """It stands at a boundary: the next process takes it from there."""
    provider = FakeProvider()
    points = Points()
    once = one_call(paying(provider))
    async with opened(tmp_path, once, observe=points) as plane:
        disk = Disk(plane)
        points.at["step.started"] = lambda: disk.is_full(True)
        admission = await plane.start(Wanted(capability="story.run", input={}))
        await until(lambda: inline(plane).refused["DiskLow"] >= 1)
        assert await plane.drain(25) == []
        assert plane.runs.parked == [admission.run] and not provider.asked
    async with opened(tmp_path, once) as plane:
        await until(lambda: len(provider.book) == 1)
        await plane.runs.wait_idle()
        assert (await plane.outcome(admission.run)).status == "succeeded"
