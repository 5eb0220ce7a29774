"""What is shown of a run is what its store holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trio.testing import MockClock

from agentplane import skill
from agentplane.engine.plane import Plane
from agentplane.testkit.fakes import FakeProvider
from stories.scenes import inline, kinds, opened, paying


async def test_a_page_shows_what_is_committed_and_not_what_is_known(autojump_clock: MockClock, tmp_path: Path) -> None:
    """W6: an outcome that only waits for its commit is in the run's memory and on no page.

    Spec: EffectProtocol.ShownIsDurable.
    """
    pay = paying(FakeProvider())
    planes: list[Plane] = []
    shown: list[list[str]] = []
    waiting: list[int] = []

    @skill("story.run")
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        plane = planes[0]
        run = next(iter(plane.runs.live))
        inline(plane).hold()
        # A rider: the run goes on with it at once, behind a disk that takes nothing.
        await cx.uuid()
        shown.append(kinds(plane, run))
        waiting.append(plane.runs.live[run].log.uncommitted)
        inline(plane).let_go()
        answer = await cx.do(pay())
        shown.append(kinds(plane, run))
        return answer

    async with opened(tmp_path, body) as plane:
        planes.append(plane)
        outcome = await plane.run("story.run", {})
        shown.append(kinds(plane, outcome.run))
    assert waiting[0] >= 1
    assert [row.count("EffectStarted") for row in shown] == [0, 2, 2]
    assert [row.count("EffectDone") for row in shown][::2] == [0, 2]
