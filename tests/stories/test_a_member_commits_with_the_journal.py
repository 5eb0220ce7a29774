"""An atomic member: a row of the application's own, in the very commit that records it, and no doubt about it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from agentplane import Plane, skill, sql
from agentplane.core.budget import Budget
from agentplane.core.errors import AnswerLost
from agentplane.core.records import EffectDone, EffectStarted
from agentplane.engine.admission import Wanted
from agentplane.journal.units import Unit
from stories.checkouts import RESOURCES, Desk, asked, ending, entries, grouped, with_table
from stories.scenes import ME, Points, inline, kinds, of_kind, opened

INSERT = "INSERT INTO app_entries VALUES (?, ?)"


def posting(desk: Desk, *, wrong: Any = None, name: str = "story.run", **terms: Any) -> Any:
    """A hold, two rows and a mail; ``wrong`` is raised behind the group."""

    async def within(g: Any, cx: Any, request: Any) -> str:
        await desk.held(g)
        for at in request.get("rows", ["a", "b"]):
            g.atomic("ledger", sql(INSERT, f"{at}-{request.get('n', 0)}", 3, rows=1))
        g.deferred("notify", desk.mail())
        await g.commit()
        if wrong is not None:
            raise wrong
        return "posted"

    return grouped(within, name, **terms)


def of_sql(plane: Plane, run: str) -> tuple[int, int]:
    """How many members of the run are announced, and how many of them have done."""
    started = [one.effect_key for one in of_kind(plane, run, EffectStarted) if one.role == "atomic"]
    done = [one for one in of_kind(plane, run, EffectDone) if one.effect_key in started]
    return len(started), len(done)


async def test_rows_and_their_records_are_one_commit(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S25: at every commit of the run as many rows stand as records say so; two members are one transaction, and cost
    one commit together."""
    desk, points = Desk(), Points()
    async with opened(tmp_path, posting(desk), observe=points) as plane:
        await with_table(plane)
        seen: list[tuple[int, tuple[int, int], int]] = []
        run = ""

        def look() -> None:
            if run:
                seen.append((len(entries(plane)), of_sql(plane, run), len(kinds(plane, run))))

        points.at["writer.committed"] = look
        run = (await plane.start(Wanted(capability="story.run", input={}))).run
        await plane.runs.wait_idle()
        assert (await plane.outcome(run)).status == "succeeded" and desk.deeds() == ["hold", "mail"]
        assert {one[:2] for one in seen} == {(0, (0, 0)), (2, (2, 2))}, "never one without the other"
        at = next(at for at, one in enumerate(seen) if one[0])
        assert seen[at][2] - seen[at - 1][2] == 4, "a commit of its own: two announcements, two outcomes"
        done = [one for one in of_kind(plane, run, EffectDone) if one.output == {"rows": 1}]
        assert len(done) == 2 and (await plane.replay(run, strict=True)).verdict == "verified"


async def test_a_replay_applies_nothing(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S25, S84: neither a strict one nor a real walk of the same step: what is recorded has happened.

    Spec: EffectGroup.EachOnce.
    """
    desk = Desk()
    async with opened(tmp_path, posting(desk, wrong=ValueError("behind it"))) as plane:
        await with_table(plane)
        outcome = await plane.run("story.run", {})
        assert outcome.status == "failed" and entries(plane) == [("a-0", 3), ("b-0", 3)]
        before = asked(plane, outcome.run)
        assert (await plane.replay(outcome.run, strict=True)).verdict == "verified"
        assert (await plane.replay(outcome.run)).status == "failed"
        assert asked(plane, outcome.run) == before and desk.deeds() == ["hold", "mail"]
        assert entries(plane) == [("a-0", 3), ("b-0", 3)]
        # Even where its table is gone since: what the journal holds was checked when it was made.
        await with_table(plane, "DROP TABLE app_entries;")
        assert (await plane.replay(outcome.run, strict=True)).verdict == "verified"


async def test_behind_the_transaction_the_cheap_abort_is_gone(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S24, S25, S75: a row stands that nothing takes back: a deferred member that fails first quarantines all the
    same."""
    desk = Desk()
    desk.provider.tell("mail", "refused_for_good")
    async with opened(tmp_path, posting(desk)) as plane:
        await with_table(plane)
        outcome = await plane.run("story.run", {})
        assert (outcome.status, outcome.code) == ("quarantined", "group_quarantined")
        assert desk.deeds() == ["hold"] and len(entries(plane)) == 2
        assert ending(plane, outcome.run) == (
            "quarantined",
            "the deferred member 3 on notify failed: the provider refused",
        )
        outcome = await plane.retry(outcome.run, ME, "the mail works again")
        assert outcome.status == "succeeded" and desk.deeds() == ["hold", "mail"] and len(entries(plane)) == 2


async def test_a_ceiling_is_asked_before_the_transaction(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Each member is an effect and takes its slot; refused, nothing of the transaction ran, and with more room all of
    it does."""
    desk = Desk()
    async with opened(tmp_path, posting(desk, budget=Budget(max_effects=2))) as plane:
        await with_table(plane)
        outcome = await plane.run("story.run", {})
        assert outcome.status == "exhausted" and entries(plane) == [] and of_sql(plane, outcome.run) == (0, 0)
        outcome = await plane.raise_ceilings(outcome.run, {"max_effects": 3}, ME, "go on")
        assert outcome.status == "exhausted" and len(entries(plane)) == 2 and desk.deeds() == ["hold"]
        outcome = await plane.raise_ceilings(outcome.run, {"max_effects": 4}, ME, "go on")
        assert outcome.status == "succeeded" and len(entries(plane)) == 2 and desk.deeds() == ["hold", "mail"]


@pytest.mark.parametrize("now", [("a", 4), ("c", 3), ("a", 3.5)])
async def test_another_statement_at_a_recorded_place_diverges(
    autojump_clock: MockClock, tmp_path: Path, now: tuple[str, float]
) -> None:
    """P18, S84: its SQL and its values are what the place holds; the run is quarantined and nothing is applied."""
    values: tuple[str, float] = ("a", 3)

    async def within(g: Any, cx: Any, request: Any) -> None:
        g.atomic("ledger", sql(INSERT, *values, rows=1))
        await g.commit()
        raise ValueError("behind it")

    async with opened(tmp_path, grouped(within)) as plane:
        await with_table(plane)
        outcome = await plane.run("story.run", {})
        values = now
        again = await plane.replay(outcome.run)
        assert (again.status, again.code) == ("quarantined", "diverged")
        assert "recorded app.sql, asked another statement" in str(again.reason)
        assert entries(plane) == [("a", 3)]
        verdict = await plane.replay(outcome.run, strict=True)
        assert verdict.verdict != "verified"


def losing(plane: Plane, *, commits: bool) -> None:
    """The plane's store from now on is one that is reached over a network: it takes the next unit that has members,
    commits it or not, and its answer is lost."""
    submit, armed = inline(plane).submit, [True]

    def over_the_network(unit: Unit[Any]) -> None:
        if not unit.solo or not armed:
            return submit(unit)
        armed.clear()
        deliver, body = unit.deliver, unit.body

        def lost(value: Any, error: BaseException | None) -> None:
            deliver(None, AnswerLost("The connection was gone before the store said what became of the commit."))

        unit.deliver = lost
        if not commits:
            unit.body = lambda tx: (body(tx), refuse())
        submit(unit)

    def refuse() -> None:
        raise AnswerLost("gone before the commit")

    plane.writer.submit = over_the_network  # type: ignore[method-assign]


@pytest.mark.parametrize("commits", [True, False])
async def test_a_store_whose_answer_is_lost_quarantines(
    autojump_clock: MockClock, tmp_path: Path, commits: bool
) -> None:
    """S25, S83: of a store that may or may not have committed nobody knows: the run is set aside, nothing is asked or
    taken back, and when a person lets it go on the row stands once, whichever it was."""
    desk = Desk()
    async with opened(tmp_path, posting(desk)) as plane:
        await with_table(plane)
        losing(plane, commits=commits)
        outcome = await plane.run("story.run", {})
        assert (outcome.status, outcome.code) == ("quarantined", "answer_lost"), outcome
        assert "before the store said" in str(outcome.reason)
        assert desk.deeds() == ["hold"] and ending(plane, outcome.run) is None
        assert len(entries(plane)) == (2 if commits else 0)
        assert of_sql(plane, outcome.run) == ((2, 2) if commits else (0, 0))
        assert (await plane.run("story.run", {"n": 1})).status == "succeeded", "a neighbour is not concerned"
        outcome = await plane.reopen(outcome.run, ME, "I looked")
        assert outcome.status == "succeeded" and desk.deeds() == ["hold", "hold", "mail", "mail"]
        assert entries(plane) == [("a-0", 3), ("a-1", 3), ("b-0", 3), ("b-1", 3)]
        assert of_sql(plane, outcome.run) == (2, 2)


async def test_a_neighbour_waits_for_that_one_commit_at_most(tmp_path: Path) -> None:
    """The real writer: an announcement that is queued behind the members is in the very next commit after theirs."""
    desk, neighbour = Desk(), Desk()
    neighbour.provider.tell("note", "hang")
    blocked, inside = threading.Event(), trio.Event()
    commits: list[tuple[bool, bool]] = []
    other = ""

    @skill("story.other")
    async def beside(cx: Any, request: dict) -> None:  # type: ignore[type-arg]
        await cx.do(neighbour.note())
        await cx.do(neighbour.charge())

    def hold_up() -> None:
        # On the loop, just before the members are queued: the writer is busy until the neighbour has come.
        plane.writer.submit(Unit(lambda tx: blocked.wait(20), lambda value, error: None))
        inside.set()

    points = Points()
    points.at["group.transacting"] = hold_up
    async with Plane.open(tmp_path / "plane.db", skills=[posting(desk), beside], observe=points) as plane:
        await with_table(plane)
        before = vars(plane.writer)["_before_commit"]

        def seen(tx: Any) -> None:
            before(tx)
            announced = tx.one(
                "SELECT count(*) FROM record WHERE run = ? AND kind = 'EffectStarted' AND seq > 5", other
            )
            commits.append((tx.one("SELECT count(*) FROM app_entries")[0] > 0, announced[0] > 0))

        vars(plane.writer)["_before_commit"] = seen
        with trio.fail_after(30):
            other = (await plane.start(Wanted(capability="story.other", input={}))).run
            await neighbour.provider.arrived.wait()
            run = (await plane.start(Wanted(capability="story.run", input={}))).run
            await inside.wait()
            announcing = points.count("effect.announcing")
            neighbour.provider.release()
            while points.count("effect.announcing") == announcing:
                await trio.lowlevel.checkpoint()
            blocked.set()
            await plane.runs.wait_idle()
        for one in (run, other):
            assert (await plane.outcome(one)).status == "succeeded"
        members, theirs = commits.index((True, False)), commits.index((True, True))
        assert theirs - members == 1 and (False, True) not in commits
        assert kinds(plane, other).count("EffectStarted") == 2


async def test_a_store_without_the_table_refuses_the_member_before_anything_is_written(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """What the open store does not have is told where the member is named, and the group is taken back."""
    desk = Desk()

    @skill("story.run")
    async def body(cx: Any, request: dict) -> None:  # type: ignore[type-arg]
        async with cx.group("checkout", RESOURCES) as g:
            await desk.held(g)
            g.atomic("ledger", sql(INSERT, "a", 3, rows=1))

    async with opened(tmp_path, body) as plane:
        outcome = await plane.run("story.run", {})
        assert outcome.code == "invalid_request" and "no such table: app_entries" in str(outcome.reason)
        assert desk.deeds() == ["hold", "release"] and of_sql(plane, outcome.run) == (0, 0)
