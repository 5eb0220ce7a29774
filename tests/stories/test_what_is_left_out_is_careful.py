"""S3: an effect whose author says nothing of its recovery is handled as if repeating it were harmful."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trio.testing import MockClock

from agentplane import effect
from agentplane.testkit import FakeProvider
from stories.scenes import one_call, opened, undecided


async def test_a_mutation_that_declares_nothing_asks_a_person(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S3: in doubt it is not sent again, whatever the provider would make of it; a read that declares nothing is."""
    provider = FakeProvider()

    @effect("pay.refund")
    async def refund(call: Any, *, order: str) -> Any:
        return await provider.call(call, "refund", {"order": order})

    @effect("pay.look", mutates=False)
    async def look(call: Any, *, order: str) -> Any:
        return await provider.call(call, "look", {"order": order})

    provider.tell("refund", "in_doubt_after_landing")
    provider.tell("look", "in_doubt_before")
    async with opened(tmp_path, one_call(refund), one_call(look, "story.look")) as plane:
        outcome = await plane.run("story.run", {})
        assert outcome.status == "quarantined" and len(provider.asked) == 1
        assert [one.kind for one in undecided(plane, outcome.run)] == ["pay.refund"]
        assert (await plane.run("story.look", {})).status == "succeeded"
