"""P5, S6: what a probe could not settle is on record with its reason, so that nobody repeats it by hand to learn it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trio.testing import MockClock

from agentplane import Inconclusive, Recovery, effect
from agentplane.core.records import EffectReconciled
from agentplane.testkit import FakeProvider
from stories.scenes import AT_ONCE, of_kind, one_call, opened


async def test_an_inconclusive_verdict_is_recorded_with_its_reason(autojump_clock: MockClock, tmp_path: Path) -> None:
    """P5, S6: the probe's own words, or the type and words of what it raised; and the run names a person's work."""
    provider = FakeProvider()
    provider.tell("refund", "in_doubt_before")
    answers: list[Any] = [ConnectionError("the lookup is down"), Inconclusive("two payments match")]

    @effect("pay.refund", recovery=Recovery.RECONCILE, retry=AT_ONCE)
    async def refund(call: Any, *, order: str) -> Any:
        return await provider.call(call, "refund", {"order": order})

    @refund.reconcile
    async def probe(call: Any, *, order: str) -> Any:
        answer = answers.pop(0) if answers else Inconclusive("still two")
        if isinstance(answer, Exception):
            raise answer
        return answer

    async with opened(tmp_path, one_call(refund)) as plane:
        outcome = await plane.run("story.run", {})
        assert outcome.status == "quarantined" and len(provider.asked) == 1
        said = of_kind(plane, outcome.run, EffectReconciled)
        assert {verdict.verdict for verdict in said} == {"inconclusive"}
        assert said[0].detail == "ConnectionError: the lookup is down"
        assert [verdict.detail for verdict in said[1:3]] == ["two payments match", "still two"]
