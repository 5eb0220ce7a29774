"""What an operator has to know of is told to the observer once it is true, so that a log can say it in its hour."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from agentplane import Recovery
from agentplane.core import bounds
from agentplane.journal.room import Room
from agentplane.testkit import FakeProvider
from stories.scenes import Points, all_runs, one_call, opened, paying


def told(points: Points, point: str) -> list[dict[str, object]]:
    return [fields for name, fields in points.seen if name == point]


@pytest.mark.parametrize("defect", [False, True])
async def test_a_quarantine_is_told_behind_its_record(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defect: bool
) -> None:
    """W6: by its run and its code, whether the run concluded so itself or was set aside; a success is not."""
    from agentplane.engine import execute

    provider, points, states = FakeProvider(), Points(), []
    if not defect:
        provider.tell("refund", "in_doubt_before")
    whole = execute.run_plan

    async def broken(live: Any, *rest: Any) -> Any:
        if defect and live.history.admitted.input.get("order") == "B-1":
            raise ZeroDivisionError
        return await whole(live, *rest)

    monkeypatch.setattr(execute, "run_plan", broken)
    once = paying(provider, recovery=Recovery.REQUIRES_OPERATOR)
    async with opened(tmp_path, one_call(once), observe=points) as plane:
        points.at["run.quarantined"] = lambda: states.extend(row.status for row in all_runs(plane))
        outcome = await plane.run("story.run", {"order": "B-1"})
        assert outcome.status == "quarantined"
        assert (await plane.run("story.run", {"order": "B-2"})).status == "succeeded"
    assert told(points, "run.quarantined") == [{"run": outcome.run, "code": outcome.code}]
    assert states == ["quarantined"]


async def test_the_room_on_the_disk_is_told_when_it_changes(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Once a change, however often it is looked at, with the bytes that were free."""
    points = Points()
    async with opened(tmp_path, one_call(paying(FakeProvider())), observe=points) as plane:
        room = plane.store.room
        for count in (bounds.ROOM_LOW_BYTES - 1, bounds.ROOM_FLOOR_BYTES - 1, bounds.ROOM_LOW_BYTES):
            room._free = lambda count=count: count  # type: ignore[method-assign, misc]
            await trio.sleep(10)
        assert room.state is Room.ENOUGH
    assert told(points, "store.room") == [
        {"state": "low", "free": bounds.ROOM_LOW_BYTES - 1},
        {"state": "floor", "free": bounds.ROOM_FLOOR_BYTES - 1},
        {"state": "enough", "free": bounds.ROOM_LOW_BYTES},
    ]
