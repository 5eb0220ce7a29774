"""P9: a person may ask a failure again only where its series is without doubt, whatever the run was concluded as."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from agentplane import Recovery, RetryPolicy
from agentplane.core.errors import AgentplaneError, UndecidedEffect
from agentplane.core.records import EffectFailed, Fault, RetryGranted, RunConcluded, StepFinished
from agentplane.engine.linking import link
from agentplane.journal import lists
from agentplane.journal.appends import Head
from agentplane.journal.lists import Stored
from agentplane.testkit import FakeProvider
from agentplane.testkit.inline import EPOCH_MS
from agentplane.testkit.worlds import replant
from stories.scenes import ME, of_kind, one_call, opened, paying


async def test_a_failure_in_doubt_is_not_asked_again(autojump_clock: MockClock, tmp_path: Path) -> None:
    """P9: planted, since no build concludes so: a failed run whose last effect may have landed is not retried."""
    provider = FakeProvider()
    provider.tell("refund", "in_doubt_after_landing")
    once = one_call(paying(provider, recovery=Recovery.REQUIRES_OPERATOR))
    async with opened(tmp_path, once) as plane:
        run = (await plane.run("story.run", {})).run
        stored = plane.store.readers.read(lambda tx: lists.whole_history(tx, run))
    kept = [item for item in stored if not isinstance(item.record, RunConcluded)]
    assert isinstance(kept[-1].record, EffectFailed)
    fault = Fault(code="effect_failed", message="it failed")
    specs: list[Any] = [
        (StepFinished, {"step": 0, "outcome": "failed", "fault": fault}),
        (RunConcluded, {"outcome": "failed"}),
    ]
    head = Head(kept[-1].record.seq, kept[-1].hash)
    ending = [Stored(item.record, item.body, item.hash) for item in link(run, 1, head, specs, EPOCH_MS)]
    replant(tmp_path / "planted" / "plane.db", kept + ending, now_ms=EPOCH_MS)
    async with opened(tmp_path / "planted", once, recover=False) as plane:
        assert (await plane.outcome(run)).status == "failed"
        with pytest.raises(AgentplaneError) as told:
            await plane.retry(run, ME, "try again")
        assert type(told.value) is UndecidedEffect
        assert not of_kind(plane, run, RetryGranted) and len(provider.asked) == 1


async def test_a_failure_that_a_probe_settled_is_asked_again(autojump_clock: MockClock, tmp_path: Path) -> None:
    """P9: the probe said that it did not happen, so that the series is a failure without doubt like any other."""
    provider = FakeProvider()
    provider.tell("refund", "in_doubt_before")
    pay = paying(provider, recovery=Recovery.RECONCILE, probed=True, retry=RetryPolicy(max_attempts=1), settle_s=0)
    async with opened(tmp_path, one_call(pay)) as plane:
        outcome = await plane.run("story.run", {})
        assert outcome.status == "failed", outcome
        assert (await plane.retry(outcome.run, ME, "the bank answers again")).status == "succeeded"
        assert len(of_kind(plane, outcome.run, RetryGranted)) == 1 and len(provider.book) == 1
