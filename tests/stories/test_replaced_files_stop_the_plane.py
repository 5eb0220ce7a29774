"""W10: a store whose file is replaced under the plane is not written to any more."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from agentplane.core.errors import StoreFailed
from agentplane.testkit import FakeProvider
from stories.scenes import one_call, opened, paying


@pytest.mark.parametrize("name", ["plane.db", "plane.db.lock"])
async def test_a_replaced_file_is_seen_at_the_next_tick(autojump_clock: MockClock, tmp_path: Path, name: str) -> None:
    """Whoever moves another file over the store, or its lock, stops the plane instead of splitting its history."""
    with pytest.raises(StoreFailed, match="replaced"):
        async with opened(tmp_path, one_call(paying(FakeProvider()))) as plane:
            assert (await plane.run("story.run", {})).status == "succeeded"
            shutil.copyfile(tmp_path / name, tmp_path / "other")
            (tmp_path / "other").rename(tmp_path / name)
            await trio.sleep(5)
