"""Paused, draining, parked: nothing is begun, nothing is lost, and the next process goes on from where it stood."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from agentplane import RetryPolicy, skill
from agentplane.core.errors import Draining, Paused
from agentplane.engine.admission import Wanted
from agentplane.journal import leases
from agentplane.testkit import FakeProvider
from stories.scenes import ME, all_runs, kinds, one_call, opened, paying, until


async def test_a_pause_survives_restarts(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Nothing is admitted or resumed until a person lets go; then what waited is taken at once."""
    provider = FakeProvider()
    provider.tell("refund", "hang")
    once = one_call(paying(provider))
    async with opened(tmp_path, once) as plane:
        admission = await plane.start(Wanted(capability="story.run", input={}))
        await provider.arrived.wait()
        assert await plane.state.pause(ME, "an incident") and not await plane.state.pause(ME, "again")
        with pytest.raises(Paused):
            await plane.run("story.run", {})
    async with opened(tmp_path, once) as plane:
        assert plane.state.paused == "an incident"
        with pytest.raises(Paused):
            await plane.run("story.run", {})
        with pytest.raises(Paused):
            await plane.replay(admission.run)
        await trio.sleep(120)
        assert len(provider.asked) == 1 and len(all_runs(plane)) == 1
        assert await plane.state.release_paused(ME, "it is over")
        plane.begin_recovery()
        await until(lambda: len(provider.asked) == 2)
        await plane.runs.wait_idle()
        assert (await plane.outcome(admission.run)).status == "succeeded"


async def test_a_drain_waits_for_what_fits(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Runs end within the grace, admission is closed with the word to come again, and nothing is cut."""
    provider = FakeProvider()
    provider.tell("refund", "hang")
    async with opened(tmp_path, one_call(paying(provider, timeout_s=5))) as plane:
        admission = await plane.start(Wanted(capability="story.run", input={}))
        await provider.arrived.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(plane.drain)
            await until(lambda: plane.draining)
            with pytest.raises(Draining):
                await plane.run("story.run", {})
            provider.release()
        assert (await plane.outcome(admission.run)).status == "succeeded" and not plane.runs.parked


@pytest.mark.parametrize("park", [True, False])
async def test_what_does_not_fit_is_parked_without_a_word(
    autojump_clock: MockClock, tmp_path: Path, park: bool
) -> None:
    """At its next boundary, nothing in flight, nothing written, lease kept; the next process counts no death.

    Spec: Drain.ParkedIsWhole.
    """
    provider = FakeProvider()
    provider.tell("first", "hang")
    first, second = paying(provider, "pay.first", timeout_s=5), paying(provider, "pay.second", timeout_s=60)

    @skill("story.run")
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return [await cx.do(first()), await cx.do(second())]

    async with opened(tmp_path, body) as plane:
        admission = await plane.start(Wanted(capability="story.run", input={}))
        await provider.arrived.wait()
        async with trio.open_nursery() as nursery:

            async def drain() -> None:
                assert await plane.drain(25, park=park) == []

            nursery.start_soon(drain)
            await until(lambda: plane.draining)
            provider.release()
        assert plane.runs.parked == [admission.run]
        assert kinds(plane, admission.run)[-1] == "EffectDone" and len(provider.asked) == 1
        held = plane.store.readers.read(lambda tx: leases.holder(tx, admission.run))
        assert held is not None and held.epoch == 1
    async with opened(tmp_path, body) as plane:
        assert plane.store.found.clean
        await until(lambda: len(provider.asked) == 2)
        await plane.runs.wait_idle()
        assert (await plane.outcome(admission.run)).status == "succeeded"


async def test_a_drain_parks_a_wait_between_attempts(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A backoff longer than the grace does not hold a deploy up, and one within it is not shortened."""
    provider = FakeProvider()
    provider.tell("refund", *["did_not_happen"] * 2)
    pay = paying(provider, timeout_s=5, retry=RetryPolicy(base_ms=4_000))
    async with opened(tmp_path, one_call(pay)) as plane:
        admission = await plane.start(Wanted(capability="story.run", input={}))
        await until(lambda: "EffectFailed" in kinds(plane, admission.run))
        began = trio.current_time()
        assert await plane.drain(25) == []
        assert (await plane.outcome(admission.run)).status == "succeeded"
        assert trio.current_time() - began >= 6, "both waits were kept"
    provider.tell("refund", "did_not_happen")
    async with opened(tmp_path, one_call(pay)) as plane:
        admission = await plane.start(Wanted(capability="story.run", input={}))
        await until(lambda: "EffectFailed" in kinds(plane, admission.run))
        assert await plane.drain(6) == []
        assert plane.runs.parked == [admission.run]


async def test_what_remains_when_the_grace_ends_is_cut_and_named(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Nothing is written of it: exactly as if the process had been killed.

    Spec: Drain.CutWritesNothing.
    """
    provider = FakeProvider()
    provider.tell("refund", "hang")
    once = one_call(paying(provider, timeout_s=5))
    async with opened(tmp_path, once) as plane:
        admission = await plane.start(Wanted(capability="story.run", input={}))
        await provider.arrived.wait()
        assert await plane.drain(1) == [admission.run]
    async with opened(tmp_path, once, recover=False) as plane:
        assert not plane.store.found.clean
        assert kinds(plane, admission.run)[-1] == "EffectStarted"
