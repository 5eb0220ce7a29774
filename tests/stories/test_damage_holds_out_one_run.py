"""A damaged record: its run is held out, named with its seq, at every start; the others conclude."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from agentplane.authoring.skill import Skill
from agentplane.core import bounds
from agentplane.core.errors import JournalCorrupt
from agentplane.engine.admission import Wanted
from agentplane.journal.store import connect
from agentplane.testkit import FakeProvider
from stories.scenes import one_call, opened, paying, recovered, until

DAMAGE = {
    "a flipped byte": "UPDATE record SET body = CAST(replace(CAST(body AS TEXT), 'A-1', 'B-1') AS BLOB) "
    "WHERE run = ? AND seq = 4",
    "bytes that are no JSON": "UPDATE record SET body = X'00FF' WHERE run = ? AND seq = 2",
    "a kind of no build": "UPDATE record SET body = CAST(replace(CAST(body AS TEXT), 'StepStarted', 'StepSmarted') "
    "AS BLOB) WHERE run = ? AND seq = 3",
    "a missing record": "DELETE FROM record WHERE run = ? AND seq = 3",
    "another head": "UPDATE run SET head_hash = zeroblob(32) WHERE run = ?",
}


async def two_open_runs(tmp_path: Path, once: Skill, provider: FakeProvider) -> tuple[str, str]:
    """A store whose process died with two runs in the act; their ids, in order."""
    provider.tell("refund", "hang", "hang")
    async with opened(tmp_path, once, recover=False) as plane:
        runs = [(await plane.start(Wanted(capability="story.run", input={}))).run for _ in range(2)]
        await until(lambda: len(provider.asked) == 2)
    return runs[0], runs[1]


@pytest.mark.parametrize("damage", DAMAGE)
async def test_one_damaged_run_does_not_stop_the_others(autojump_clock: MockClock, tmp_path: Path, damage: str) -> None:
    """Whatever is wrong with its records, it is named with run and seq, performs nothing, and nobody else waits."""
    provider = FakeProvider()
    once = one_call(paying(provider))
    bad, good = await two_open_runs(tmp_path, once, provider)
    connection = connect(tmp_path / "plane.db")
    connection.execute(DAMAGE[damage], (bad,))
    connection.close()
    asked = len(provider.asked)
    async with opened(tmp_path, once, recover=False) as plane:
        await recovered(plane)
        assert (await plane.outcome(good)).status == "succeeded"
        error = plane.runs.held_out[bad]
        assert isinstance(error, JournalCorrupt) and bad in error.message and error.details["run"] == bad
        assert error.details["seq"]
        assert (await plane.run("story.run", {})).status == "succeeded"
    assert len([row for row in provider.asked[asked:] if row.run == bad]) == 0


async def test_it_is_held_out_at_every_start(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Taken over again and again it becomes no crash suspect that would be written to, and the plane starts each
    time."""
    provider = FakeProvider()
    once = one_call(paying(provider))
    bad, good = await two_open_runs(tmp_path, once, provider)
    connection = connect(tmp_path / "plane.db")
    connection.execute(DAMAGE["a flipped byte"], (bad,))
    before: Any = connection.execute("SELECT count(*) FROM record WHERE run = ?", (bad,)).fetchall()
    connection.close()
    for _ in range(bounds.TAKEOVERS_WITHOUT_PROGRESS_MAX + 3):
        async with opened(tmp_path, once, recover=False) as plane:
            await recovered(plane)
            assert (await plane.outcome(good)).status == "succeeded"
            assert list(plane.runs.held_out) == [bad]
    connection = connect(tmp_path / "plane.db")
    assert connection.execute("SELECT count(*) FROM record WHERE run = ?", (bad,)).fetchall() == before
    connection.close()
