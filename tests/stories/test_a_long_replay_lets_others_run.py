"""W8: a step that is served from its history for long is interrupted, so that the rest of the plane goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from agentplane import skill
from agentplane.engine import context
from stories.scenes import opened

CALLS = 300


async def turns_during_a_replay(where: Path) -> int:
    """How often another task ran while a run of CALLS recorded calls was walked."""
    turns = [0]
    where.mkdir()

    @skill("story.run")
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return [await cx.uuid() for _ in range(CALLS)]

    async def beside() -> None:
        while True:
            turns[0] += 1
            await trio.lowlevel.checkpoint()

    async with opened(where, body) as plane:
        run = (await plane.run("story.run", {})).run
        async with trio.open_nursery() as nursery:
            nursery.start_soon(beside)
            assert (await plane.replay(run, strict=True)).verdict == "verified"
            nursery.cancel_scope.cancel()
    return turns[0]


async def test_calls_served_from_history_are_checkpoints(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W8: one a millisecond, and where every call is later than that, every call."""
    assert context.CHECKPOINT_S <= 0.001
    monkeypatch.setattr(context, "CHECKPOINT_S", 0.0)
    assert await turns_during_a_replay(tmp_path / "often") >= CALLS
    monkeypatch.setattr(context, "CHECKPOINT_S", 3_600.0)
    assert await turns_during_a_replay(tmp_path / "seldom") < CALLS / 2
