"""A death between two attempts of a group's member, or of its reversal, is no failure of it: the next life goes on with
the attempts that are left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from agentplane import RetryPolicy, skill
from agentplane.core.records import EffectFailed, GroupSettled
from agentplane.testkit import FakeProvider
from agentplane.testkit.worlds import fit_mark
from stories.scenes import frozen_at, of_kind, opened, paying


@pytest.mark.parametrize(("refused", "settled", "book"), [
    ("release", "aborted", ["hold", "release"]), ("mail", "committed", ["hold", "mail"]),
])  # fmt: skip
async def test_a_death_in_a_backoff_settles_nothing(
    refused: str, settled: str, book: list[str], autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Refused once, for certain and not for good, and killed before it is asked again: the reversal takes back, and the
    deferred member is sent, in the next process."""
    provider = FakeProvider()
    slow = RetryPolicy(base_ms=60_000, cap_ms=60_000)
    hold = paying(provider, "pay.hold")
    release, mail = paying(provider, "pay.release", retry=slow), paying(provider, "pay.mail", retry=slow)
    provider.tell(refused, "did_not_happen")

    @skill("group.go")
    async def go(cx: Any, request: dict) -> str:  # type: ignore[type-arg]
        async with cx.group("checkout", ["stock", "mail"]) as group:
            await group.reversible("stock", hold(order="A"), undo=release(order="A"))
            group.deferred("mail", mail(order="A"))
            await (group.abort() if refused == "release" else group.commit())
        return "done"

    async with opened(tmp_path, go) as plane, trio.open_nursery() as nursery:
        nursery.start_soon(plane.run, "group.go", {})
        await trio.sleep(10)
        run = next(iter(plane.runs.live))
        assert len(of_kind(plane, run, EffectFailed)) == 1
        killed = frozen_at(plane, tmp_path)
        nursery.cancel_scope.cancel()
    fit_mark(killed / "plane.db")
    landed = [one.name for one in provider.book]
    assert landed == ["hold"]
    async with opened(killed, go) as plane:
        await trio.sleep(120)
        await plane.runs.wait_idle()
        assert (await plane.outcome(run)).status == "succeeded"
        assert [one.outcome for one in of_kind(plane, run, GroupSettled)] == [settled]
        assert [one.name for one in provider.book] == book
