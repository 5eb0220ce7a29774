"""The frontier of an effect group: what must hold is checked there, and only then is sent what cannot be taken back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from agentplane import GroupAborted, Invariant
from agentplane.core.errors import InvalidRequest
from agentplane.core.records import GroupSettled
from stories.checkouts import Desk, asked, ending, grouped
from stories.scenes import history, kinds, of_kind, opened


@pytest.mark.parametrize("how, left", [
    ("commit", ["hold", "mail"]), ("abort", ["hold", "release"]), ("stuck", ["hold"]),
])  # fmt: skip
async def test_a_group_ends_in_one_of_three_ways(
    autojump_clock: MockClock, tmp_path: Path, how: str, left: list[str]
) -> None:
    """S23: committed: everything stands. Aborted: nothing does. Quarantined: what stands is for a person to say."""
    desk = Desk()
    if how == "stuck":
        desk.provider.tell("release", "refused_for_good")

    async def within(g: Any, cx: Any, request: Any) -> None:
        await desk.held(g)
        g.deferred("notify", desk.mail())
        await (g.commit() if how == "commit" else g.abort("no"))

    async with opened(tmp_path, grouped(within)) as plane:
        outcome = await plane.run("story.run", {})
        settled = (ending(plane, outcome.run) or ("open",))[0]
        assert desk.deeds() == left
        if how == "stuck":
            assert (outcome.status, outcome.code, settled) == ("quarantined", "group_quarantined", "quarantined")
            assert "group 'checkout' of step 0: Member 0: its reversal failed" in str(outcome.reason)
        else:
            assert (outcome.status, settled) == ("succeeded", "committed" if how == "commit" else "aborted")


@pytest.mark.parametrize("value", [1, 0, None, "yes", [True]])
async def test_an_invariant_that_is_no_bool_is_refused_with_nothing_run(
    autojump_clock: MockClock, tmp_path: Path, value: Any
) -> None:
    """S65: Truth that somebody guesses is no condition: nothing is sent, nothing settled, and the commit may be asked
    again."""
    desk = Desk()

    async def within(g: Any, cx: Any, request: Any) -> str:
        g.deferred("notify", desk.mail())
        with pytest.raises(InvalidRequest, match=f"'enough' is {type(value).__name__}, not a bool"):
            await g.commit(Invariant("whole", True), Invariant("enough", value))
        with pytest.raises(InvalidRequest, match=r"commit takes Invariant\(name, condition\), not tuple"):
            await g.commit(("enough", True))
        assert desk.deeds() == []
        await g.commit(Invariant("enough", True))
        return "sent"

    async with opened(tmp_path, grouped(within)) as plane:
        outcome = await plane.run("story.run", {})
        assert outcome.output == "sent" and desk.deeds() == ["mail"]
        assert len(of_kind(plane, outcome.run, GroupSettled)) == 1


async def test_a_false_invariant_names_itself_on_the_record(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S24, S64: Which condition stopped the group stands there, nothing deferred was sent, and the skill may go on.

    Spec: EffectGroup.AbortIsComplete.
    """
    desk = Desk()

    async def within(g: Any, cx: Any, request: Any) -> Any:
        await desk.held(g)
        g.deferred("notify", desk.mail())
        try:
            await g.commit(Invariant("one", True), Invariant("the hold covers it", False), Invariant("three", False))
        except GroupAborted as stopped:
            return [stopped.group, stopped.stopped_by, (await cx.do(desk.note()))["reference"] != ""]

    async with opened(tmp_path, grouped(within)) as plane:
        outcome = await plane.run("story.run", {})
        assert outcome.output == ["checkout", "the hold covers it", True]
        assert ending(plane, outcome.run) == ("aborted", "the hold covers it")
        assert desk.deeds() == ["hold", "release", "note"], "a deferred member of an aborted group is never sent"
        assert (await plane.replay(outcome.run, strict=True)).verdict == "verified"


async def test_deferred_members_go_last_in_their_order(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S24: they wait at the gate until everything else has been done and the frontier is crossed.

    Spec: EffectGroup.DeferredOnlyPastTheFrontier.
    """
    desk = Desk()

    async def within(g: Any, cx: Any, request: Any) -> None:
        g.deferred("notify", desk.mail(order="first"))
        await desk.held(g)
        g.deferred("notify", desk.note(order="second"))
        g.deferred("notify", desk.mail(order="third"))
        assert desk.deeds() == ["hold"]
        await g.commit(Invariant("held", True))

    async with opened(tmp_path, grouped(within)) as plane:
        outcome = await plane.run("story.run", {})
        assert desk.told()[1:] == [("mail", "first"), ("note", "second"), ("mail", "third")]
        assert [role for _, role in asked(plane, outcome.run)] == ["reversible", "deferred", "deferred", "deferred"]
        assert kinds(plane, outcome.run)[-3:] == ["GroupSettled", "StepFinished", "RunConcluded"]


async def test_a_deferred_member_that_fails_first_costs_nothing(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S24: nothing is out yet: the group is taken back, and what stopped it is named with its reason."""
    desk = Desk()
    desk.provider.tell("mail", "refused_for_good")

    async def within(g: Any, cx: Any, request: Any) -> None:
        await desk.held(g)
        g.deferred("notify", desk.mail())
        g.deferred("notify", desk.note())
        await g.commit()

    async with opened(tmp_path, grouped(within)) as plane:
        outcome = await plane.run("story.run", {})
        assert (outcome.status, outcome.code) == ("failed", "group_aborted")
        assert desk.deeds() == ["hold", "release"]
        assert ending(plane, outcome.run) == (
            "aborted", "the deferred member 1 on notify failed: the provider refused"
        )  # fmt: skip
        assert not history(plane, outcome.run).standing()


async def test_a_deferred_member_that_fails_behind_another_is_for_a_person(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """S24, S75: something is out that nothing takes back: nothing more is sent, nothing is taken back.

    Spec: EffectGroup.NoUnwindPastAnExternalisedDeferred.
    """
    desk = Desk()
    desk.provider.tell("note", "refused_for_good")

    async def within(g: Any, cx: Any, request: Any) -> None:
        await desk.held(g)
        g.deferred("notify", desk.mail())
        g.deferred("notify", desk.note())
        g.deferred("notify", desk.mail(order="late"))
        await g.commit()

    async with opened(tmp_path, grouped(within)) as plane:
        outcome = await plane.run("story.run", {})
        assert (outcome.status, outcome.code) == ("quarantined", "group_quarantined")
        assert desk.deeds() == ["hold", "mail"]
        assert ending(plane, outcome.run) == (
            "quarantined",
            "the deferred member 2 on notify failed: the provider refused",
        )
