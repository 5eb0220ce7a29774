"""What an adversary met the undoing with, one story each: a value that was lost, a disk that is full, code that is not
here, a cancel in the one moment when nobody listened, names that cannot be written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

from agentplane import Recovery, effect, skill
from agentplane.authoring.plan import given, node, output_of, plan
from agentplane.authoring.raising import Replan
from agentplane.authoring.skill import Skill
from agentplane.authoring.sql import sql
from agentplane.core.records import GroupSettled, RunConcluded, StepFinished
from agentplane.engine import acts
from agentplane.engine.admission import Wanted
from agentplane.engine.plane import Plane
from agentplane.journal import lists
from agentplane.journal.room import Room
from agentplane.journal.store import connect
from agentplane.journal.units import Unit
from agentplane.testkit import FakeProvider
from agentplane.testkit.worlds import fit_mark
from stories.checkouts import Desk, ending, entries, grouped, with_table
from stories.scenes import AT_ONCE, ME, Points, frozen_at, inline, kinds, of_kind, opened, paying, records, until

WAIT_S = 90
SECRET = "sk-live-0123456789abcdef"


async def passes(plane: Plane, seconds: float = 5) -> None:
    """The clock goes on, and what it woke comes to its end."""
    await trio.sleep(seconds)
    await plane.runs.wait_idle()


def answering(name: str, output: Any = 1) -> Skill:
    @skill(name)
    async def body(cx: Any, request: Any) -> Any:
        return output

    return body


def waiting(desk: Desk, name: str = "t.x") -> Skill:
    """A step that waits with a hold in its open group."""

    async def within(g: Any, cx: Any, request: Any) -> None:
        await desk.held(g)
        await cx.sleep(hours=1)
        await g.commit()

    return grouped(within, name)


# --- what the store lost, and a disk that is full --------------------------------------------------------------------


async def test_a_lost_value_sets_aside_the_run_that_needs_it_alone(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A cancel must walk a waiting group again whose input is no longer in the store: that run is quarantined, its
    neighbour succeeds, and so does the next life."""
    desk = Desk()
    nodes = [node("big", "t.big"), node("x", "t.x", after="big", args={"v": output_of("big")})]
    skills = [answering("t.big", "x" * 1_100_000), waiting(desk), answering("t.other"), plan("t.plan", nodes=nodes)]
    async with opened(tmp_path, *skills) as plane:
        run = (await plane.run("t.plan", {})).run
        connection = connect(tmp_path / "plane.db")
        connection.execute("DELETE FROM blob")
        connection.close()
        await plane.cancel(run, ME, "stop")
        await passes(plane)
        outcome = await plane.outcome(run)
        assert (outcome.status, outcome.code) == ("quarantined", "journal_corrupt")
        assert "step 1 (t.x)" in str(outcome.reason)
        assert (await plane.run("t.other", {})).status == "succeeded" and desk.deeds() == ["hold"]
    async with opened(tmp_path, *skills) as plane:
        await passes(plane)
        assert (await plane.outcome(run)).code == "journal_corrupt"
        assert (await plane.run("t.other", {})).status == "succeeded"


async def test_a_full_disk_at_the_frontier_is_waited_out(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A group whose members cannot be written for want of room waits with what it holds, and commits when there is
    room."""
    desk = Desk()
    points = Points()

    async def within(g: Any, cx: Any, request: Any) -> None:
        await desk.held(g)
        g.atomic("ledger", sql("INSERT INTO app_entries VALUES (?, ?)", "1", 5, rows=1))
        await g.commit()

    async with opened(tmp_path, grouped(within), observe=points) as plane:
        await with_table(plane)
        room = plane.store.room
        room.look = lambda: room.state  # type: ignore[method-assign]
        points.at["group.transacting"] = lambda: setattr(room, "state", Room.FLOOR)
        run = (await plane.start(Wanted(capability="story.run", input={}))).run
        await until(lambda: inline(plane).refused["DiskLow"] >= 1)
        await trio.sleep(5)
        assert (await plane.outcome(run)).status == "running" and ending(plane, run) is None
        room.state = Room.ENOUGH
        await plane.runs.wait_idle()
        assert (await plane.outcome(run)).status == "succeeded"
        assert desk.deeds() == ["hold"] and entries(plane) == [("1", 5)]


# --- a cancel in the moment when nobody listens ----------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["behind the read", "before the read"])
async def test_a_cancel_is_heard_by_a_run_that_is_being_taken_up(
    autojump_clock: MockClock, tmp_path: Path, moment: str
) -> None:
    """A request that commits between the read of a resume and its registration, or was asked before it and commits
    behind it, is heard at the first boundary of the run that wakes."""
    provider = FakeProvider()
    pay = paying(provider)

    @skill("story.run")
    async def body(cx: Any, request: Any) -> str:
        await cx.sleep(seconds=WAIT_S)
        for at in range(9):
            await cx.do(pay(order=str(at)))
        return "all of it"

    async with opened(tmp_path, body) as plane, trio.open_nursery() as nursery:
        run = (await plane.run("story.run", {})).run
        resume, read = plane.runs.resume, plane.runs._read_run

        async def asked_before(which: str, lease: Any) -> Any:
            inline(plane).hold()
            nursery.start_soon(plane.cancel, run, ME, "stop")
            await until(lambda: bool(inline(plane)._queue))
            live = await resume(which, lease)
            inline(plane).let_go()
            return live

        def asked_behind(which: str) -> Any:
            found = read(which)
            # Committed here and now; who asked looks for the run before it is registered, and finds nobody to tell.
            inline(plane).submit(Unit(acts.cancel(run, ME, "stop", plane.owner), lambda value, error: None))
            inline(plane)._flush()
            return found

        if moment == "before the read":
            plane.runs.resume = asked_before  # type: ignore[method-assign]
        else:
            plane.runs._read_run = asked_behind  # type: ignore[method-assign]
        await passes(plane, WAIT_S + 5)
        assert (await plane.outcome(run)).status == "cancelled" and not provider.asked
        heard = plane.store.readers.read(lambda tx: tx.all("SELECT run, heard FROM cancel"))
        assert heard == [(run, 1)]


# --- code that is not here, or no longer fits ------------------------------------------------------------------------


async def test_runs_whose_code_is_missing_are_left_in_peace(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Due and asked to stop, but not ours to take: the writer is not asked about them at every tick."""

    @skill("t.s")
    async def short(cx: Any, request: Any) -> None:
        await cx.sleep(seconds=30)

    async with opened(tmp_path, short) as plane:
        for _ in range(6):
            await plane.run("t.s", {})
    async with opened(tmp_path, answering("t.other")) as plane:
        units: list[Any] = []
        do = inline(plane).do

        async def counted(body: Any, **terms: Any) -> Any:
            units.append(body)
            return await do(body, **terms)

        await trio.sleep(35)
        inline(plane).do = counted  # type: ignore[method-assign]
        await trio.sleep(20)
        assert len(units) < 20, len(units)
    async with opened(tmp_path, short) as plane:
        await passes(plane)
        rows = plane.store.readers.read(lambda tx: lists.runs(tx))
        assert [row.status for row in rows] == ["succeeded"] * 6


class Asked(msgspec.Struct):
    order: str


class AskedMore(msgspec.Struct):
    order: str
    currency: str


async def test_a_request_that_no_longer_fits_its_compensation_is_for_a_person(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """The run is quarantined by that name at once, and not taken over again and again until it looks like a crash."""
    desk = Desk()

    def skills(shape: type[msgspec.Struct]) -> list[Skill]:
        async def body(cx: Any, request: Any) -> None:
            await cx.do(desk.hold())

        body.__annotations__["request"] = shape
        taking = skill("t.x")(body)

        @taking.compensate
        async def undo(cx: Any, request: Any, output: Any) -> None:
            await cx.do(desk.release())

        @skill("t.w")
        async def sleeping(cx: Any, request: Any) -> None:
            await cx.sleep(hours=1)

        return [taking, sleeping, plan("t.plan", nodes=[node("x", "t.x"), node("w", "t.w", after="x")])]

    async with opened(tmp_path, *skills(Asked)) as plane:
        run = (await plane.run("t.plan", {"order": "A"})).run
    async with opened(tmp_path, *skills(AskedMore)) as plane:
        await plane.cancel(run, ME, "stop")
        await passes(plane)
        outcome = await plane.outcome(run)
        assert (outcome.status, outcome.code) == ("quarantined", "compensation_failed")
        assert "step 0 (t.x)" in str(outcome.reason) and "currency" in str(outcome.reason)
        before = records(plane, run)
        await passes(plane, 130)
        assert records(plane, run) == before and len(of_kind(plane, run, RunConcluded)) == 1
        assert desk.deeds() == ["hold"]


async def test_a_group_of_which_nothing_landed_waits_for_its_code(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A cancelled run that holds deferred members alone is left by a build without its skill, and settled by one that
    has it."""
    desk = Desk()

    async def within(g: Any, cx: Any, request: Any) -> None:
        g.deferred("notify", desk.mail())
        await cx.sleep(hours=1)
        await g.commit()

    whole = [grouped(within, "t.x"), plan("t.plan", nodes=[node("x", "t.x")])]
    async with opened(tmp_path, *whole) as plane:
        run = (await plane.run("t.plan", {})).run
    async with opened(tmp_path, answering("t.other")) as plane:
        await plane.cancel(run, ME, "stop")
        await passes(plane)
        assert (await plane.outcome(run)).status == "suspended" and kinds(plane, run)[-1] == "RunSuspended"
    async with opened(tmp_path, *whole) as plane:
        await passes(plane)
        assert (await plane.outcome(run)).status == "cancelled" and not desk.provider.asked
        assert (ending(plane, run) or ("",))[0] == "aborted"


# --- what cannot be written ------------------------------------------------------------------------------------------


async def test_a_reversal_that_cannot_be_announced_is_named(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A reversal with a secret in its arguments is never recorded: the run is quarantined naming the member, without
    the secret, and what its sibling did is recorded."""
    desk = Desk()
    directory = tmp_path / "secrets"
    directory.mkdir()
    (directory / "KEY").write_text(SECRET)

    @effect("desk.open", recovery=Recovery.IDEMPOTENT, secrets=["KEY"], retry=AT_ONCE)
    async def opening(call: Any) -> Any:
        call.secret("KEY")
        return await desk.provider.call(call, "open", {})

    @skill("t.x")
    async def holding(cx: Any, request: dict) -> None:  # type: ignore[type-arg]
        async with cx.group("checkout", ["stock"]) as g:
            await g.reversible("stock", opening(), undo=desk.release(order=request["key"]))
            raise ValueError("boom")

    @skill("t.y")
    async def sibling(cx: Any, request: Any) -> None:
        for at in range(3):
            await cx.do(desk.note(order=str(at)))

    both = plan("t.plan", nodes=[node("x", "t.x"), node("y", "t.y")])
    async with opened(tmp_path, holding, sibling, both, secrets=directory) as plane:
        outcome = await plane.run("t.plan", {"key": SECRET})
        assert (outcome.status, outcome.code) == ("quarantined", "group_quarantined")
        assert "the reversal of member 0 cannot be sent" in str(outcome.reason) and SECRET not in str(outcome.reason)
        assert [one.outcome for one in of_kind(plane, outcome.run, GroupSettled)] == ["quarantined"]
        assert [(done.step, done.outcome) for done in of_kind(plane, outcome.run, StepFinished)] == [(1, "succeeded")]
        assert sorted(desk.deeds()) == ["note", "note", "note", "open"]


BROKEN: dict[str, Any] = {
    "the reason": lambda: Replan("bad \ud800 reason", nodes=[node("b", "t.b")]),
    "the name": lambda: Replan("x", nodes=[node("b\ud800", "t.b")]),
    "an argument": lambda: Replan("x", nodes=[node("b", "t.b", args={"k\ud800": given("m")})]),
    "a path": lambda: Replan("x", nodes=[node("b", "t.b", args={"k": given("m\ud800")})]),
}


@pytest.mark.parametrize("where", BROKEN)
async def test_a_plan_that_cannot_be_written_fails_its_step(
    autojump_clock: MockClock, tmp_path: Path, where: str
) -> None:
    """A lone surrogate in what a Replan brings fails the step that asked, in a sentence."""

    @skill("t.a")
    async def asking(cx: Any, request: Any) -> None:
        raise BROKEN[where]()

    async with opened(tmp_path, asking, answering("t.b"), plan("t.plan", nodes=[node("a", "t.a")])) as plane:
        outcome = await plane.run("t.plan", {})
        assert outcome.status == "failed" and "lone surrogate" in str(outcome.reason)
        assert kinds(plane, outcome.run)[-2:] == ["StepFinished", "RunConcluded"]


async def test_a_run_that_recovery_takes_up_is_not_passed_over_by_its_next_wait(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """A timer that was due while nobody executed its run is no reason to leave the run's later waits alone."""
    provider = FakeProvider()
    pay = paying(provider, "pay.a")

    @skill("two.a")
    async def first(cx: Any, request: Any) -> None:
        await cx.sleep(seconds=10)
        await cx.do(pay())

    @skill("two.b")
    async def second(cx: Any, request: Any) -> None:
        await cx.sleep(seconds=20)
        await cx.sleep(seconds=5)

    both = plan("two.waits", nodes=[node("a", "two.a"), node("b", "two.b")])
    (tmp_path / "first").mkdir()
    async with opened(tmp_path / "first", first, second, both) as plane:
        provider.tell("a", "hang")
        run = (await plane.run("two.waits", {})).run
        await trio.sleep(11)
        assert len(provider.asked) == 1
        left = frozen_at(plane, tmp_path)
        fit_mark(left / "plane.db")
        provider.release()
    await trio.sleep(30)
    async with opened(left, first, second, both) as plane:
        await trio.sleep(15)
        assert (await plane.outcome(run)).status == "succeeded"
