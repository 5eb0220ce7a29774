"""P11: between an act's return and the queueing of its outcome there is no instant at which a cut could fall."""

from __future__ import annotations

from pathlib import Path

import pytest
from trio.testing import MockClock

from agentplane import Recovery
from agentplane.engine.admission import Wanted
from agentplane.testkit import FakeProvider
from stories.scenes import Points, kinds, one_call, opened, paying


@pytest.mark.parametrize("recovery", [Recovery.IDEMPOTENT, Recovery.REQUIRES_OPERATOR])
async def test_a_cut_at_the_return_of_an_act_loses_no_outcome(
    autojump_clock: MockClock, tmp_path: Path, recovery: Recovery
) -> None:
    """P11: the run is cut as its act returns; what it answered is recorded all the same, as a rider or a barrier."""
    points = Points()
    async with opened(tmp_path, one_call(paying(FakeProvider(), recovery=recovery)), observe=points) as plane:
        points.at["effect.acted"] = lambda: [live.stop() for live in plane.runs.live.values()]
        run = (await plane.start(Wanted(capability="story.run", input={}))).run
        await plane.runs.wait_idle()
        await plane.writer.do(lambda tx: None)
        assert points.count("effect.acted") == 1
        assert kinds(plane, run)[-2:] == ["EffectStarted", "EffectDone"]
