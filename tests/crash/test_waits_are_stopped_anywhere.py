"""A stop that comes at any commit of a run that waits, and a kill at any commit behind it: the run ends, nothing that
waits outlives it, and what came from outside for it is still there for somebody else."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from agentplane import skill
from agentplane.authoring.plan import node, plan
from agentplane.authoring.proposal import Proposal
from agentplane.testkit import FakeProvider, crash_at_every_commit
from agentplane.testkit.worlds import Kept
from crash.test_wait_prefixes import a_decision, one_event, rows, told_once
from crash.undo_workloads import cancelled
from stories.scenes import paying
from stories.waiting_scenes import awaiting

COMMITS = range(1, 13)


def nothing_left(kept: Kept, store: Path) -> Iterable[str]:
    yield from told_once(kept, store)
    if kept.row.status == "cancelled" and rows(store, "SELECT 1 FROM event WHERE state = 'claimed'"):
        yield "an event is claimed by a run that was stopped"


@pytest.mark.heavy
@pytest.mark.parametrize("at", COMMITS)
async def test_a_run_that_waits_for_an_event_is_stopped(at: int, autojump_clock: MockClock) -> None:
    """A sibling acts and sleeps beside the wait, and its work is taken back."""
    provider = FakeProvider()
    pay, back = paying(provider, "deed.pay"), paying(provider, "deed.back")

    @skill("story.act")
    async def act(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        await cx.sleep(hours=1)
        return await cx.do(pay(order="A-1"))

    @act.compensate
    async def undo(cx: Any, request: dict, output: Any) -> None:  # type: ignore[type-arg]
        await cx.do(back(order="A-1"))

    both = plan("story.both", nodes=[node("act", "story.act"), node("await", "story.await")])
    report = await crash_at_every_commit(
        both, {"order": "O-1"}, beside=[act, awaiting()], provider=provider, outside=one_event, also=nothing_left,
        at_commit=(at, cancelled), keep=lambda commit: commit >= at,
        as_well=("succeeded", "cancelled", "running"),
    )  # fmt: skip
    report.check()


@pytest.mark.heavy
@pytest.mark.parametrize("at", COMMITS)
async def test_a_run_that_waits_for_a_person_is_stopped(at: int, autojump_clock: MockClock) -> None:
    """Before the decision its task goes with it; behind it the deed that was approved is taken back, or stands."""
    provider = FakeProvider()
    pay, back = paying(provider, "deed.pay"), paying(provider, "deed.back")

    @skill("story.ask")
    async def ask(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        call = pay(order="A-1")
        decision = await cx.task(Proposal(summary="pay?", action=call, due=3600))
        if decision.approved:
            await cx.do(call, approval=decision)
        await cx.sleep(hours=1)

    @ask.compensate
    async def undo(cx: Any, request: dict, output: Any) -> None:  # type: ignore[type-arg]
        await cx.do(back(order="A-1"))

    report = await crash_at_every_commit(
        ask, {}, provider=provider, outside=a_decision, also=nothing_left, at_commit=(at, cancelled),
        keep=lambda commit: commit >= at, as_well=("succeeded", "cancelled", "running"),
    )  # fmt: skip
    report.check()


@pytest.mark.heavy
async def test_a_person_stops_every_world_before_it_goes_on(autojump_clock: MockClock) -> None:
    report = await crash_at_every_commit(
        awaiting(), {"order": "O-1"}, outside=one_event, meanwhile=cancelled, also=nothing_left,
        as_well=("cancelled", "running"),
    )  # fmt: skip
    assert report.check().ends.get("cancelled")
