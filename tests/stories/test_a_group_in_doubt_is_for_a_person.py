"""Doubt is the one condition under which nothing of a group is taken back: it is left open, a person is told, and what
the person says is what the group goes on from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from agentplane import Invariant, Recovery, RetryPolicy
from agentplane.authoring.raising import EffectFailed
from agentplane.core.errors import NotApplicable
from agentplane.core.records import EffectStarted, GroupSettled
from agentplane.engine import acts
from agentplane.journal import lists
from agentplane.testkit import FakeProvider
from stories.checkouts import Desk, asked, ending, grouped
from stories.scenes import ME, history, of_kind, one_call, opened, paying, reconcile, undecided

BY_HAND = {"recovery": Recovery.REQUIRES_OPERATOR, "retry": RetryPolicy(max_attempts=1)}


def holding(desk: Desk, holds: bool = True) -> Any:
    async def within(g: Any, cx: Any, request: Any) -> Any:
        await desk.held(g, "A")
        second = await desk.held(g, "B")
        g.deferred("notify", desk.mail())
        await g.commit(Invariant("it holds", holds))
        return second

    return grouped(within)


async def in_doubt(plane: Any, desk: Desk) -> str:
    """A run whose second hold nobody can account for; it landed."""
    desk.provider.tell("hold", "ok", "in_doubt_after_landing")
    outcome = await plane.run("story.run", {})
    assert (outcome.status, outcome.code) == ("quarantined", "undecided"), outcome
    return str(outcome.run)


async def test_a_member_in_doubt_leaves_the_group_open(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S74: Nothing is taken back around it, nothing is settled, and the run is quarantined naming the effect.

    Spec: EffectGroup.NothingIsReversedInDoubt.
    """
    desk = Desk(**BY_HAND)
    async with opened(tmp_path, holding(desk)) as plane:
        run = await in_doubt(plane, desk)
        assert ending(plane, run) is None and desk.deeds() == ["hold", "hold"]
        assert [one.kind for one in undecided(plane, run)] == ["desk.hold"]
        with pytest.raises(NotApplicable, match="reconcile"):
            await plane.cancel(run, ME, "stop")
        with pytest.raises(NotApplicable):
            await plane.replay(run)


@pytest.mark.parametrize("holds", [True, False])
async def test_an_answer_lets_the_group_go_on(autojump_clock: MockClock, tmp_path: Path, holds: bool) -> None:
    """Landed, with what it gave: the group is rebuilt, commits or is taken back whole, and no member is asked twice;
    the reversal is made from the person's output."""
    desk = Desk(**BY_HAND)
    async with opened(tmp_path, holding(desk, holds)) as plane:
        run = await in_doubt(plane, desk)
        assert await reconcile(plane, run, "landed", output={"reference": "by phone"}) == []
        outcome = await plane.reopen(run, ME, "answered")
        assert outcome.status == ("succeeded" if holds else "failed")
        rest = [("mail", "A-1")] if holds else [("release", "by phone"), ("release", "ref-1")]
        assert desk.told()[2:] == rest
        assert (ending(plane, run) or ("",))[0] == ("committed" if holds else "aborted")
        assert (await plane.replay(run, strict=True)).verdict == "verified"


async def test_an_answer_that_it_did_not_happen_asks_the_member_again(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Under its own key, and the group goes on with what it answers then."""
    desk = Desk(recovery=Recovery.REQUIRES_OPERATOR)
    async with opened(tmp_path, holding(desk)) as plane:
        desk.provider.tell("hold", "ok", "in_doubt_before")
        run = (await plane.run("story.run", {})).run
        assert desk.deeds() == ["hold"]
        await reconcile(plane, run, "did-not-happen")
        assert (await plane.reopen(run, ME, "answered")).status == "succeeded"
        assert desk.deeds() == ["hold", "hold", "mail"]
        keys = [one.key for one in desk.provider.asked if one.name == "hold"]
        assert keys[1] == keys[2] != keys[0]


@pytest.mark.parametrize("name", ["release", "mail"])
async def test_a_reversal_and_a_deferred_member_in_doubt_are_left_alone(
    autojump_clock: MockClock, tmp_path: Path, name: str
) -> None:
    """The same holds of what undoes and of what waits at the gate: open until somebody has said, settled then."""
    desk = Desk()
    setattr(desk, name, paying(desk.provider, f"desk.{name}", **BY_HAND))
    desk.provider.tell(name, "in_doubt_after_landing")
    async with opened(tmp_path, holding(desk, holds=name == "mail")) as plane:
        run = (await plane.run("story.run", {})).run
        assert (await plane.outcome(run)).code == "undecided" and ending(plane, run) is None
        assert desk.deeds() == ["hold", "hold", name], "the other hold is not released around it"
        await reconcile(plane, run, "landed", output={"reference": "seen"})
        outcome = await plane.reopen(run, ME, "answered")
        if name == "mail":
            assert outcome.status == "succeeded" and desk.deeds() == ["hold", "hold", "mail"]
        else:
            assert outcome.code == "group_aborted" and desk.deeds() == ["hold", "hold", "release", "release"]
        assert (ending(plane, run) or ("",))[0] == ("committed" if name == "mail" else "aborted")


@pytest.mark.parametrize("known", [True, False])
async def test_what_landed_and_cannot_be_used_is_taken_back_only_by_a_call_that_is_known(
    autojump_clock: MockClock, tmp_path: Path, known: bool
) -> None:
    """Its reversal would be made from an answer that nobody has: quarantined, naming the member. A call that needs no
    answer takes it back."""
    desk = Desk(retry=RetryPolicy(max_attempts=1))
    desk.provider.tell("hold", "ok", "landed_unusable")

    async def within(g: Any, cx: Any, request: Any) -> None:
        await desk.held(g, "A")
        with pytest.raises(EffectFailed, match="landed"):
            if known:
                await g.reversible("stock", desk.hold(order="B"), undo=desk.release(order="B"))
            else:
                await desk.held(g, "B")
        await g.abort("useless")

    async with opened(tmp_path, grouped(within)) as plane:
        outcome = await plane.run("story.run", {})
        if known:
            assert outcome.status == "succeeded" and desk.told()[2:] == [("release", "B"), ("release", "ref-1")]
        else:
            assert (outcome.status, outcome.code) == ("quarantined", "group_quarantined")
            assert ending(plane, outcome.run) == ("quarantined", "Member 1: it landed and has no reversal.")
            assert desk.deeds() == ["hold", "hold"], "what stands around it is what the person will find"


async def test_a_person_has_a_failed_reversal_asked_again(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S76: The group was quarantined for it; with the reversal done, it is aborted: the last word of two on the
    record."""
    desk = Desk()
    desk.provider.tell("release", "refused_for_good")
    async with opened(tmp_path, holding(desk, holds=False)) as plane:
        outcome = await plane.run("story.run", {})
        assert (outcome.status, outcome.code) == ("quarantined", "group_quarantined")
        assert desk.deeds() == ["hold", "hold"]
        outcome = await plane.retry(outcome.run, ME, "the warehouse answers again")
        assert (outcome.status, outcome.code) == ("failed", "group_aborted")
        assert desk.told()[2:] == [("release", "ref-2"), ("release", "ref-1")]
        assert [one.outcome for one in of_kind(plane, outcome.run, GroupSettled)] == ["quarantined", "aborted"]
        assert not history(plane, outcome.run).standing()
        assert (await plane.replay(outcome.run, strict=True)).verdict == "verified"


async def test_a_retry_does_not_ask_a_group_again_that_was_taken_back(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """It is settled; a plain walk ends where the first did, and nothing is sent."""
    desk = Desk(retry=RetryPolicy(max_attempts=1))
    desk.provider.tell("hold", "ok", "did_not_happen")
    async with opened(tmp_path, holding(desk)) as plane:
        outcome = await plane.run("story.run", {})
        assert outcome.code == "effect_failed" and desk.deeds() == ["hold", "release"]
        with pytest.raises(NotApplicable, match="did not fail in an effect"):
            await plane.retry(outcome.run, ME, "look again")
        before = asked(plane, outcome.run)
        assert (await plane.replay(outcome.run)).status == "failed"
        assert desk.deeds() == ["hold", "release"] and asked(plane, outcome.run) == before


async def test_a_group_that_nobody_will_settle_is_found(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S79: Closed by a person with its group open, a run is never resumed: whether its members were taken back is for
    somebody to find out, and it is listed."""
    desk = Desk(**BY_HAND)
    async with opened(tmp_path, holding(desk)) as plane:
        run = await in_doubt(plane, desk)

        def unsettled() -> list[tuple[str, str]]:
            return [(one.run, one.name) for one in plane.store.readers.read(lists.unsettled_groups)]

        assert unsettled() == []
        await plane.writer.do(acts.abandon(run, ME, "nobody knows", plane.owner))
        assert unsettled() == [(run, "checkout")]
        assert (await plane.outcome(run)).status == "abandoned" and ending(plane, run) is None


async def test_a_retry_of_a_failed_effect_is_no_business_of_groups(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Beside the refusal above: outside of a group the same failure is asked again."""
    provider = FakeProvider()
    provider.tell("refund", "refused_for_good")
    async with opened(tmp_path, one_call(paying(provider))) as plane:
        outcome = await plane.run("story.run", {})
        assert (await plane.retry(outcome.run, ME, "look again")).status == "succeeded"
        assert [one.attempt for one in of_kind(plane, outcome.run, EffectStarted)] == [1, 2]
