"""A store that was grown verifies like any other, its waits are woken like any others, and what a tick does to it is
bounded: a hundredth of the size that docs/measured.md has figures of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from agentplane import Plane, skill
from agentplane.core import bounds
from agentplane.core.records import EffectDone
from agentplane.engine.plane import wall_ms
from agentplane.journal import lists
from agentplane.testkit.grow import grow
from agentplane.work import tasks
from stories.waiting_scenes import BOB, decided
from waits import scale


@skill("grown.run")
async def grown_run(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
    found = await cx.event("grown.came", correlation={"grown": str(request["n"])}, until=1)
    return found.payload


async def _made(path: Path) -> None:
    async with Plane.open(path):
        pass


async def test_a_grown_store_is_a_store(tmp_path: Path) -> None:
    """Chains verify, the runs that ended are sealed, a wait takes its event, and a task its decision."""
    store = tmp_path / "plane.db"
    await _made(store)
    due_ms = wall_ms() + 86_400_000
    grown = grow(store, events=20, tasks=20, sleeps=5, concluded=50, now_ms=wall_ms(), due_ms=due_ms)
    assert grown.runs == 95
    async with Plane.open(store, skills=[grown_run], recover=False) as plane:
        read = plane.store.readers.read
        for row in lists.every_run(read):
            stored = lists.read_history(read, row.run)
            assert lists.verify(row.run, stored) and (row.log_index is not None) == (row.status == "succeeded")
        assert (await plane.sweep.tick(plane.world.now_ms())).rearmed == []
        told = await plane.deliver("grown.came", 1, id="e", correlation={"grown": "7"}, source="peer:test")
        assert told.delivery == "resumed"
        row = (await plane.read(lambda tx: tasks.queue(tx, 5)))[0]
        assert (await decided(plane, row.task, BOB)).delivery == "resumed"
        await plane.runs.wait_idle()
        for run in (told.run, row.run):
            done = [one.record for one in lists.read_history(read, str(run))]
            assert sum(isinstance(one, EffectDone) for one in done) == 1


async def test_many_timers_at_once_hold_the_writer_for_a_row_each(tmp_path: Path) -> None:
    """Each wake is a unit of its own, a batch of them a tick, and nobody who announces waits for more than one commit
    beyond the one that he waits for alone."""
    store = tmp_path / "plane.db"
    await _made(store)
    count = 2 * bounds.SWEEP_TIMERS + 10
    grow(store, capability="grown.sleep", sleeps=count, now_ms=wall_ms(), due_ms=wall_ms() + 1)
    await trio.sleep(0.01)
    units: list[float] = []
    waited: list[int] = []
    async with Plane.open(store, skills=[scale.sleeper, scale.work], recover=False) as plane:
        scale._watch(plane, units, waited)
        fired = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(plane.run, "grown.work", {"times": 50})
            while sum(fired) < count:
                ticked = await plane.sweep.tick(plane.world.now_ms())
                assert len(ticked.fired) <= bounds.SWEEP_TIMERS + bounds.RECOVERY_BATCH
                assert ticked.saturated == (len(ticked.fired) >= bounds.SWEEP_TIMERS)
                fired.append(len(ticked.fired))
        await plane.runs.wait_idle()
    assert len(units) > count and max(waited) <= 2


@pytest.mark.heavy
def test_the_scale_is_measured(tmp_path: Path) -> None:
    """The measurement runs through, at a hundredth, and every list had its page."""
    found = scale.measure(tmp_path, 100)
    assert found["lists"].keys() == scale.LISTS.keys() and found["timers"]["with"]["fired"] == 100
    assert found["timers"]["with"]["most_commits_waited"] <= found["timers"]["without"]["most_commits_waited"] + 1
