"""A run whose records do not hold is that run's trouble: what comes from outside for others, and for the worklist, is
taken in all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio
from trio.testing import MockClock

from agentplane.engine.plane import Plane
from agentplane.journal.tx import Tx
from stories.scenes import opened
from stories.waiting_scenes import ALICE, asking, awaiting, decided, deliver, pending, refunding, settled, status


async def damaged(plane: Plane, run: str) -> None:
    """The index says that the wait of the run has its outcome; its records say that it has none."""

    def plant(tx: Tx) -> None:
        tx.run("UPDATE effect SET state = 'done' WHERE tenant = ? AND run = ? AND wait IS NOT NULL", tx.tenant, run)

    await plane.writer.do(plant)


async def test_an_event_passes_a_waiter_that_cannot_be_woken(autojump_clock: MockClock, tmp_path: Path) -> None:
    """The older one is held out, by name, and the younger one has the event, in the same delivery."""
    async with opened(tmp_path, awaiting()) as plane:
        older = (await plane.run("story.await", {"order": "O-1"})).run
        await trio.sleep(1)
        younger = (await plane.run("story.await", {"order": "O-1"})).run
        await damaged(plane, older)
        told = await deliver(plane, "O-1")
        assert (told.delivery, told.run) == ("resumed", younger)
        assert await settled(plane, younger) == "succeeded" and older in plane.runs.held_out


async def test_a_decision_for_a_run_that_cannot_be_woken_is_recorded(autojump_clock: MockClock, tmp_path: Path) -> None:
    done: list[Any] = []
    async with opened(tmp_path, asking(refunding(done))) as plane:
        run = (await plane.run("story.ask", {"order": "O-1", "amount": 5}, actor=ALICE)).run
        (row,) = await pending(plane)
        await damaged(plane, run)
        assert (await decided(plane, row.task)).delivery == "recorded"
        assert await pending(plane) == [] and run in plane.runs.held_out and await status(plane, run) == "suspended"


async def test_a_window_of_a_bad_run_holds_up_no_other(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Both are over in one tick; the good one goes on, and the tick comes to its end."""
    done: list[Any] = []
    async with opened(tmp_path, asking(refunding(done), due=3600)) as plane:
        bad = (await plane.run("story.ask", {"order": "O-1", "amount": 5}, actor=ALICE)).run
        good = (await plane.run("story.ask", {"order": "O-2", "amount": 5}, actor=ALICE)).run
        await damaged(plane, bad)
        ticked = await plane.sweep.tick(plane.world.now_ms() + 2 * 3_600_000)
        assert ticked.tasks_expired == 2 and bad in plane.runs.held_out
        assert await settled(plane, good) == "succeeded"
