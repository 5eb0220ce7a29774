"""A store that was restored, by whomever, opens held; and what its original paid after the copy is not paid again.

The original goes on and pays; the copy does not know. See "Incarnation" in the journal's design and P6.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from agentplane import Recovery, skill
from agentplane.core.errors import Held, NotApplicable
from agentplane.engine.admission import Wanted
from agentplane.journal import obligations
from agentplane.testkit import FakeProvider
from agentplane.testkit.worlds import copy_store
from stories.scenes import (
    ME,
    all_runs,
    kinds,
    of_kind,
    one_call,
    opened,
    paying,
    reconcile,
    recovered,
    undecided,
    until,
)


async def copied_before_it_paid(
    tmp_path: Path, provider: FakeProvider, body: Any, *, key: str | None = None
) -> tuple[Path, str]:
    """A copy of the store, taken while a run waits to pay; the original then pays. The copy's directory and the
    run."""
    provider.tell("look", "hang")
    async with opened(tmp_path, body) as plane:
        admission = await plane.start(Wanted(capability="story.run", input={}, key=key))
        await provider.arrived.wait()
        copy_store(plane.store.path, tmp_path / "copy" / "plane.db")
        provider.release()
        await plane.runs.wait_idle()
        assert (await plane.outcome(admission.run)).status == "succeeded"
    return tmp_path / "copy", admission.run


def look_and_pay(provider: FakeProvider, **terms: Any) -> Any:
    look = paying(provider, "pay.look", mutates=False, recovery=Recovery.RETRY)
    terms.setdefault("recovery", Recovery.IDEMPOTENT)
    pay = paying(provider, **terms)

    @skill("story.run")
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        await cx.do(look())
        return await cx.do(pay())

    return body


def paid(provider: FakeProvider) -> int:
    return sum(row.name == "refund" for row in provider.book)


async def test_a_copy_opens_held(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Nothing is admitted or resumed, what it holds is listed with its gap, and it stays so over restarts.

    Spec: RestoreHeld.HeldIsSilent.
    """
    provider = FakeProvider()
    body = look_and_pay(provider)
    where, run = await copied_before_it_paid(tmp_path, provider, body)
    for _ in range(2):
        async with opened(where, body) as plane:
            assert plane.state.held is not None
            with pytest.raises(Held):
                await plane.run("story.run", {})
            with pytest.raises(Held):
                await plane.replay(run)
            gap = await plane.read(plane.state.gap)
            assert gap.open_runs == [run] and gap.gap_from_ms is not None and gap.keyless == 1
            assert not plane.runs.live and paid(provider) == 1


async def test_the_original_is_not_held(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Its mark fits, also after a kill.

    Spec: RestoreHeld.OriginalIsNotHeld.
    """
    provider = FakeProvider()
    body = look_and_pay(provider)
    await copied_before_it_paid(tmp_path, provider, body)
    async with opened(tmp_path, body) as plane:
        assert plane.state.held is None


@pytest.mark.parametrize(
    ("terms", "ends"),
    [
        ({"recovery": Recovery.IDEMPOTENT}, "succeeded"),
        ({"recovery": Recovery.RECONCILE, "probed": True}, "succeeded"),
        ({"recovery": Recovery.RECONCILE}, "quarantined"),
        ({"recovery": Recovery.REQUIRES_OPERATOR}, "quarantined"),
    ],
)
async def test_what_the_original_paid_is_not_paid_again(
    autojump_clock: MockClock, tmp_path: Path, terms: dict[str, Any], ends: str
) -> None:
    """In a run that the copy holds, a payment looks like a first call and is decided as an orphan would be.

    Spec: RestoreHeld.UnknowableIsNotRepeated, RestoreHeld.DoubtIsRecordedFirst.
    """
    honours = terms["recovery"] is Recovery.IDEMPOTENT
    provider = FakeProvider(honours_keys=honours)
    body = look_and_pay(provider, **terms)
    where, run = await copied_before_it_paid(tmp_path, provider, body)
    async with opened(where, body) as plane:
        assert await plane.state.release_held(ME, "the original is gone") == [run]
        plane.begin_recovery()
        await until(lambda: bool(plane.runs.live) or bool(plane.recovery.passes > 1))
        await recovered(plane)
        outcome = await plane.outcome(run)
        assert outcome.status == ends, outcome
        assert paid(provider) == 1, "the refund was paid after the copy was taken, and once"
        if ends == "quarantined":
            assert [one.kind for one in undecided(plane, run)] == ["pay.refund"]
            await reconcile(plane, run, "landed", output={"reference": "in the book"})
            assert (await plane.reopen(run, ME, "seen in the book")).status == "succeeded"
            assert paid(provider) == 1


async def test_a_key_whose_window_may_have_passed_is_not_sent(autojump_clock: MockClock, tmp_path: Path) -> None:
    """P7 in a copy: the key may be as old as the copy's last record, whatever the copy's own announcement says.

    Spec: RestoreHeld.KeyedDeedOnce.
    """
    from agentplane.testkit.inline import trio_now_ms

    provider = FakeProvider(honours_keys=False)
    body = look_and_pay(provider, key_window_s=3_600)
    where, run = await copied_before_it_paid(tmp_path, provider, body)
    async with opened(where, body, recover=False, now_ms=lambda: trio_now_ms() + 3_700_000) as plane:
        await plane.state.release_held(ME, "restored an hour late")
        await recovered(plane)
        assert (await plane.outcome(run)).status == "quarantined"
        assert paid(provider) == 1


async def test_what_is_new_after_the_release_is_not_doubted(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A run admitted by the copy itself is its own.

    Spec: RestoreHeld.NewRunsAreNotDoubted.
    """
    provider = FakeProvider()
    body = look_and_pay(provider, recovery=Recovery.REQUIRES_OPERATOR)
    where, run = await copied_before_it_paid(tmp_path, provider, body)
    async with opened(where, body) as plane:
        await plane.state.release_held(ME, "the original is gone")
        outcome = await plane.run("story.run", {})
        assert outcome.status == "succeeded" and outcome.run != run


async def test_runs_are_let_go_one_by_one(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A run that was let go runs while the store stays held; a run that is not held is refused."""
    provider = FakeProvider()
    body = look_and_pay(provider)
    where, run = await copied_before_it_paid(tmp_path, provider, body)
    async with opened(where, body, recover=False) as plane:
        with pytest.raises(NotApplicable):
            await plane.state.release_held(ME, "no such", ["run_x"])
        assert await plane.state.release_held(ME, "this one", [run]) == [run]
        await recovered(plane)
        assert (await plane.outcome(run)).status == "succeeded" and plane.state.held is not None
        with pytest.raises(Held):
            await plane.run("story.run", {})


async def test_what_was_let_go_wakes_and_the_rest_waits(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A wait of a run that was let go ends in its time; its neighbour sleeps on, and no promise of the copy is judged:
    the original may have kept it."""

    @skill("story.run")
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        await cx.deadline("delivered", minutes=1)
        await cx.sleep(minutes=10)
        return "woke"

    async with opened(tmp_path, body, recover=False) as plane:
        runs = [(await plane.start(Wanted(capability="story.run", input={}))).run for _ in range(2)]
        await plane.runs.wait_idle()
        copy_store(plane.store.path, tmp_path / "copy" / "plane.db")
    async with opened(tmp_path / "copy", body) as plane:
        await plane.state.release_held(ME, "this one", runs[:1])
        await trio.sleep(3_600)
        assert (await plane.outcome(runs[0])).status == "succeeded" and plane.state.held is not None
        assert [row.status for row in all_runs(plane) if row.run == runs[1]] == ["suspended"]
        assert plane.sweep.last.breached == 0
        assert await plane.read(obligations.next_due_ms) is not None, "the promise stands"
        await plane.state.release_held(ME, "and all the others")
        await trio.sleep(3_600)
        assert (await plane.outcome(runs[1])).status == "succeeded"
        assert await plane.read(obligations.next_due_ms) is None, "both were judged"


async def test_a_run_that_the_copy_lost_reaches_the_provider_under_its_key(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """P6: submitted again under its admission key, the same work is the same deed to a provider that honours keys.

    Spec: RestoreHeld.ResubmittedDeedOnce.
    """
    provider = FakeProvider()
    once = one_call(paying(provider))
    async with opened(tmp_path, once) as plane:
        await plane.run("story.run", {"order": "6"}, key="order-6")
        copy_store(plane.store.path, tmp_path / "copy" / "plane.db")
        await plane.run("story.run", {"order": "7"}, key="order-7")
    async with opened(tmp_path / "copy", once) as plane:
        assert plane.state.held is not None
        await plane.state.release_held(ME, "the original is gone")
        again = await plane.run("story.run", {"order": "7"}, key="order-7")
        assert again.admitted and again.status == "succeeded"
        assert len({row.key for row in provider.asked if row.body == {"order": "7"}}) == 1
        assert len(provider.book) == 2, "nothing was paid twice"
        assert kinds(plane, again.run)[-1] == "RunConcluded" and of_kind
