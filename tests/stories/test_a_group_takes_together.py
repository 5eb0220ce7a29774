"""An effect group: several calls of one step that all stand, or all are taken back, or a person is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from agentplane import Invariant, RetryPolicy, skill, sql
from agentplane.authoring.raising import EffectFailed, OutsideFootprint, OutsideGroup
from agentplane.core.budget import Budget
from agentplane.core.errors import InvalidRequest
from agentplane.core.records import EffectStarted, GroupOpened, GroupSettled
from stories.checkouts import RESOURCES, Desk, asked, ending, entries, grouped, with_table
from stories.scenes import history, kinds, of_kind, opened, paying


async def test_a_reversal_is_captured_from_what_the_member_answered(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S23: each is made from its own member's real output; and they run the last landed first."""
    desk = Desk()

    async def within(g: Any, cx: Any, request: Any) -> str:
        await desk.held(g, "A")
        await desk.held(g, "B")
        await g.reversible("money", desk.charge(order="C"), undo=desk.note(order="fixed"))
        await g.abort("not today")
        return "taken back"

    async with opened(tmp_path, grouped(within)) as plane:
        outcome = await plane.run("story.run", {})
        assert (outcome.status, outcome.output) == ("succeeded", "taken back")
        references = [row.reference for row in desk.provider.book[:2]]
        assert desk.told()[3:] == [("note", "fixed"), ("release", references[1]), ("release", references[0])]
        assert ending(plane, outcome.run) == ("aborted", "not today")


async def test_a_reversal_goes_the_way_of_any_effect(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Retried as its effect says, under a key of its own, journaled beside its member; and a replay reads it
    back."""
    desk = Desk()
    desk.provider.tell("release", "did_not_happen", "in_doubt_after_landing")

    async def within(g: Any, cx: Any, request: Any) -> None:
        await desk.held(g)
        await g.abort()

    async with opened(tmp_path, grouped(within)) as plane:
        outcome = await plane.run("story.run", {})
        assert outcome.status == "succeeded" and desk.deeds() == ["hold", "release"]
        tried = [one for one in of_kind(plane, outcome.run, EffectStarted) if one.role == "reversal"]
        assert [one.attempt for one in tried] == [1, 2, 3] and {one.group for one in tried} == {0}
        keys = {one.key for one in desk.provider.asked if one.name == "release"}
        assert keys == {tried[0].idempotency_key} and not keys & {desk.provider.asked[0].key}
        requests = len(desk.provider.asked)
        assert (await plane.replay(outcome.run, strict=True)).verdict == "verified"
        assert len(desk.provider.asked) == requests


async def test_a_reversal_is_counted_and_not_refused(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S20, S78: a ceiling that the members used up strands nothing: what undoes is exempt, and metered all the same, so
    that the next effect finds all of it used."""
    desk = Desk()

    async def within(g: Any, cx: Any, request: Any) -> None:
        await desk.held(g, "A")
        await desk.held(g, "B")
        await g.abort()
        if request.get("on"):
            await cx.do(desk.note())

    async with opened(tmp_path, grouped(within, budget=Budget(max_effects=2))) as plane:
        outcome = await plane.run("story.run", {})
        assert outcome.status == "succeeded" and desk.deeds() == ["hold", "hold", "release", "release"]
        assert history(plane, outcome.run).ledger.effects == 4
        outcome = await plane.run("story.run", {"on": True})
        assert outcome.status == "exhausted" and "4 of 2 are used" in str(outcome.reason)


@pytest.mark.parametrize("role", ["reversible", "read", "deferred", "atomic"])
async def test_a_member_outside_the_footprint_is_refused_before_it_runs(
    autojump_clock: MockClock, tmp_path: Path, role: str
) -> None:
    """S66: Nothing is sent or announced for it, the step fails in one sentence, and what landed before is taken
    back."""
    desk = Desk()

    async def within(g: Any, cx: Any, request: Any) -> None:
        await desk.held(g)
        match role:
            case "reversible":
                await g.reversible("bank", desk.charge(), undo=desk.note())
            case "read":
                await g.read("bank", desk.look())
            case "deferred":
                g.deferred("bank", desk.mail())
            case _:
                g.atomic("bank", sql("INSERT INTO app_entries VALUES ('x', 1)", rows=1))

    async with opened(tmp_path, grouped(within)) as plane:
        await with_table(plane)
        outcome = await plane.run("story.run", {})
        assert (outcome.status, outcome.code) == ("failed", OutsideFootprint.row.code)
        assert str(outcome.reason).startswith("A member of the group checkout touches bank")
        assert desk.deeds() == ["hold", "release"] and len(asked(plane, outcome.run)) == 2
        assert ending(plane, outcome.run) == ("aborted", "the step ended failed with the group open")


@pytest.mark.parametrize("way", ["do", "gather"])
async def test_a_mutation_beside_an_open_group_is_refused(autojump_clock: MockClock, tmp_path: Path, way: str) -> None:
    """S67: No abort would take it back. A read beside it leaves nothing, and is served."""
    desk = Desk()

    async def within(g: Any, cx: Any, request: Any) -> Any:
        beside = await cx.do(desk.look())
        with pytest.raises(OutsideGroup, match=r"desk\.charge mutates beside the open group checkout"):
            await (cx.do(desk.charge()) if way == "do" else cx.gather(desk.look(), desk.charge()))
        await g.commit()
        return [beside, await cx.gather(desk.look(), desk.charge())]

    async with opened(tmp_path, grouped(within)) as plane:
        outcome = await plane.run("story.run", {})
        assert outcome.status == "succeeded" and outcome.output[0] == 7
        assert desk.deeds() == ["charge"], "refused while the group was open, and served behind it"
        assert (await plane.replay(outcome.run, strict=True)).verdict == "verified"


async def test_a_read_that_mutates_is_no_read(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S68: It would leave something standing that an abort does not know of."""
    desk = Desk()

    async def within(g: Any, cx: Any, request: Any) -> Any:
        with pytest.raises(InvalidRequest, match="mutates is no read"):
            await g.read("money", desk.charge())
        looked = await g.read("money", desk.look())
        await g.commit()
        return looked

    async with opened(tmp_path, grouped(within)) as plane:
        outcome = await plane.run("story.run", {})
        assert outcome.output == 7 and desk.deeds() == [] and asked(plane, outcome.run) == [("desk.look", "read")]


async def test_one_group_of_a_step_is_open_at_a_time(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A second is refused while one is open, a settled one takes nothing more, and the next has its own number."""
    desk = Desk()

    @skill("story.run")
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        first = await cx.group("one", ["stock"])
        with pytest.raises(InvalidRequest, match="'one' of this step is open"):
            await cx.group("two", ["stock"])
        await first.commit()
        for late in (lambda: first.deferred("stock", desk.mail()), lambda: first.atomic("stock", sql("x", rows=0))):
            with pytest.raises(InvalidRequest, match="'one' is settled"):
                late()
        for late in (first.commit, first.abort, lambda: first.read("stock", desk.look())):
            with pytest.raises(InvalidRequest, match="'one' is settled"):
                await late()
        async with cx.group("two", ["stock"]) as second:
            await desk.held(second)
            await second.commit()

    async with opened(tmp_path, body) as plane:
        outcome = await plane.run("story.run", {})
        assert outcome.status == "succeeded", outcome
        assert [(one.group, one.index) for one in of_kind(plane, outcome.run, GroupOpened)] == [("one", 0), ("two", 1)]
        assert [one.index for one in of_kind(plane, outcome.run, GroupSettled)] == [0, 1]


@pytest.mark.parametrize("name, resources", [("", ["a"]), (7, ["a"]), ("g", []), ("g", "stock"), ("g", [1])])
async def test_a_group_without_a_name_or_a_footprint_is_none(
    autojump_clock: MockClock, tmp_path: Path, name: Any, resources: Any
) -> None:
    """One sentence, and no group is recorded."""

    @skill("story.run")
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        await cx.group(name, resources)

    async with opened(tmp_path, body) as plane:
        outcome = await plane.run("story.run", {})
        assert outcome.code == "invalid_request" and "A group has a name and a list" in str(outcome.reason)
        assert "GroupOpened" not in kinds(plane, outcome.run)


@pytest.mark.parametrize("undo, why", [
    (lambda out: 7, "it gives int, which is no call"),
    (lambda out: out["no such member"], "'no such member'"),
    (lambda out: paying(Desk().provider)(order="\ud800"), "arguments of pay.refund are not data"),
])  # fmt: skip
async def test_a_reversal_that_cannot_be_made_quarantines(
    autojump_clock: MockClock, tmp_path: Path, undo: Any, why: str
) -> None:
    """The member has landed and nothing takes it back: aborted would be a lie. It is named."""
    desk = Desk()

    async def within(g: Any, cx: Any, request: Any) -> None:
        await g.reversible("stock", desk.hold(), undo=undo)
        await g.commit()

    async with opened(tmp_path, grouped(within)) as plane:
        outcome = await plane.run("story.run", {})
        assert (outcome.status, outcome.code) == ("quarantined", "group_quarantined")
        assert "desk.hold landed and its reversal cannot be made: " in str(outcome.reason)
        assert why in str(outcome.reason) and (ending(plane, outcome.run) or ("",))[0] == "quarantined"
        assert desk.deeds() == ["hold"]


@pytest.mark.parametrize("undo", [7, None, "release"])
async def test_a_reversal_that_is_no_call_is_refused_before_its_member_runs(
    autojump_clock: MockClock, tmp_path: Path, undo: Any
) -> None:
    """One sentence, and nothing is sent."""
    desk = Desk()

    async def within(g: Any, cx: Any, request: Any) -> None:
        await g.reversible("stock", desk.hold(), undo=undo)

    async with opened(tmp_path, grouped(within)) as plane:
        outcome = await plane.run("story.run", {})
        assert outcome.code == "invalid_request" and "A reversal is a call such as" in str(outcome.reason)
        assert desk.deeds() == [] and asked(plane, outcome.run) == []


async def test_a_member_that_failed_for_certain_is_no_member_of_what_is_taken_back(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """The skill may go on without it and commit: there is nothing of it to take back."""
    desk = Desk(retry=RetryPolicy(max_attempts=1))
    desk.provider.tell("hold", "ok", "did_not_happen")

    async def within(g: Any, cx: Any, request: Any) -> None:
        await desk.held(g, "A")
        with pytest.raises(EffectFailed):
            await desk.held(g, "B")
        await (g.commit() if request["commits"] else g.abort())

    async with opened(tmp_path, grouped(within)) as plane:
        assert (await plane.run("story.run", {"commits": True})).status == "succeeded" and desk.deeds() == ["hold"]
        desk.provider.tell("hold", "ok", "did_not_happen")
        assert (await plane.run("story.run", {"commits": False})).status == "succeeded"
        assert desk.deeds() == ["hold", "hold", "release"]


async def test_of_a_group_that_commits_nothing_is_lost_and_nothing_is_asked_twice(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Holds, a read, a row and a mail: each once, each with its role, and a strict replay performs nothing.

    Spec: EffectGroup.CommitIsComplete.
    """
    desk = Desk()

    async def within(g: Any, cx: Any, request: Any) -> int:
        await desk.held(g, "A")
        looked: int = await g.read("stock", desk.look())
        g.atomic("ledger", sql("INSERT INTO app_entries VALUES (?, ?)", "A", looked, rows=1))
        g.deferred("notify", desk.mail())
        await g.commit(Invariant("seven", looked == 7))
        return looked

    async with opened(tmp_path, grouped(within)) as plane:
        await with_table(plane)
        outcome = await plane.run("story.run", {})
        assert (outcome.status, outcome.output) == ("succeeded", 7) and desk.deeds() == ["hold", "mail"]
        assert entries(plane) == [("A", 7)]
        assert [role for _, role in asked(plane, outcome.run)] == ["reversible", "read", "atomic", "deferred"]
        recorded = of_kind(plane, outcome.run, GroupOpened)[0]
        assert (recorded.group, tuple(recorded.resources)) == ("checkout", RESOURCES)
        assert (await plane.replay(outcome.run, strict=True)).verdict == "verified"
        assert len(desk.provider.asked) == 2 and entries(plane) == [("A", 7)]
