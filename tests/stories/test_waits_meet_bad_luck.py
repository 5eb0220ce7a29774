"""What somebody who wished ill to a run that waits found: a promise made again under its name, an end that passed while
nothing could be woken, a refusal of the books asked again, a secret that comes back from outside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from agentplane import Recovery, effect, skill
from agentplane.authoring.proposal import Proposal
from agentplane.authoring.waiting import WaitTimedOut
from agentplane.core.errors import Excluded, InvalidEvent, InvalidRequest
from agentplane.core.records import EffectDone, EffectFailed
from agentplane.engine.scheduling import Schedule
from agentplane.engine.worklist import Verdict
from agentplane.work.cron import Cron
from stories.scenes import ME, all_runs, of_kind, opened
from stories.waiting_scenes import (
    ALICE,
    BOB,
    asking,
    awaiting,
    buffered,
    decided,
    deliver,
    pending,
    refunding,
    reviewer,
    settled,
)

KEYS = {"order": "O-1"}
SECRET = "hunter2-hunter2-hunter2"


async def test_who_is_kept_out_by_group_or_role_is_kept_out(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S131."""
    skill_ = asking(refunding([]), excluded=["group:traders", "operator"])
    async with opened(tmp_path, skill_) as plane:
        await plane.run("story.ask", {"order": "O-1", "amount": 5}, actor=ALICE)
        (row,) = await pending(plane)
        for who in (reviewer(BOB, groups=("group:traders",)), reviewer(BOB, "reviewer", "operator")):
            with pytest.raises(Excluded):
                await plane.worklist.claim(row.task, who, BOB)
        assert (await plane.worklist.claim(row.task, reviewer(BOB), BOB)).state == "claimed"


async def test_a_promise_made_again_under_its_name_leaves_earlier_waits_as_they_were(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Asked, waited, asked again: each walk waits at the first place for the first instant. (S128)"""

    @skill("story.chase")
    async def chase(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        for attempt in range(3):
            await cx.deadline("reply", minutes=1)
            try:
                found = await cx.event("reply", correlation=KEYS, deadline="reply")
            except WaitTimedOut:
                await cx.waive("reply")
                continue
            return attempt, found.id
        decision = await cx.task(Proposal(summary="give up?"))
        return decision.outcome

    async with opened(tmp_path, chase) as plane:
        run = (await plane.run("story.chase", {}, correlate=KEYS)).run
        await trio.sleep(100)
        assert (await deliver(plane, "O-1", "late", kind="reply")).delivery == "resumed"
        assert await settled(plane, run) == "succeeded"
        assert (await plane.outcome(run)).output == [1, "late"]
        assert (await plane.replay(run, strict=True)).verdict == "verified"


async def test_what_came_before_the_end_of_a_wait_is_before_it(autojump_clock: MockClock, tmp_path: Path) -> None:
    """More events than a pass of redelivery takes came while nothing could be woken, and the ends passed: each wait has
    its event all the same. (S127)
    """
    async with opened(tmp_path, awaiting(minutes=10), recover=False) as plane:
        runs = [(await plane.run("story.await", {"order": f"O-{n}"})).run for n in range(140)]
        await plane.state.pause(ME, "looking")
        for n in range(140):
            await deliver(plane, f"O-{n}", f"e-{n}")
        await plane.state.release_paused(ME, "looked")
        for _ in range(3):
            await plane.sweep.tick(plane.world.now_ms() + 3_600_000)
            await plane.runs.wait_idle()
        assert {(await plane.outcome(run)).status for run in runs} == {"succeeded"} and buffered(plane) == 0


async def test_a_refusal_of_the_books_that_a_person_asks_again_is_made_from_what_stands_now(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Never in doubt, whatever it came to before. (S129)"""

    @skill("story.close")
    async def close(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        await cx.case.close()
        return "closed"

    @skill("story.owe")
    async def owe(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return await cx.deadline("reply", days=1)

    @skill("story.meet")
    async def meet(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return await cx.met("reply")

    async with opened(tmp_path, close, owe, meet) as plane:
        await plane.run("story.owe", {}, correlate=KEYS)
        run = (await plane.run("story.close", {}, correlate=KEYS)).run
        assert await settled(plane, run) == "failed"
        again = await plane.retry(run, ME, "try once more")
        assert again.status == "failed"
        await plane.run("story.meet", {}, correlate=KEYS)
        again = await plane.retry(run, ME, "it was met")
        assert (again.status, again.output) == ("succeeded", "closed")
        said = [(one.fault.code, one.disposition.value) for one in of_kind(plane, run, EffectFailed)]
        assert said == [("obligations_open", "did_not_happen")] * 2
        assert (await plane.replay(run, strict=True)).verdict == "verified"


async def test_a_secret_that_comes_back_from_outside_is_written_by_nobody(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Refused where it comes in, and withheld where it was there before anybody knew that it was one: the run goes on,
    and learns that something came. (S130)
    """
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "KEY").write_text(SECRET)

    @effect("story.sign", recovery=Recovery.RETRY, secrets=["KEY"])
    async def sign(call: Any) -> int:
        return len(call.secret("KEY"))

    @skill("story.signed")
    async def signed(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        await cx.do(sign())
        found = await cx.event("parcel.delivered", correlation={"order": request["order"]}, days=1)
        decision = await cx.task(Proposal(summary="go on?"))
        return [found.payload, decision.outcome]

    async with opened(tmp_path, signed, secrets=secrets) as plane:
        await deliver(plane, "O-1", "before", payload={"echo": SECRET})
        run = (await plane.run("story.signed", {"order": "O-1"}, actor=ALICE)).run
        ended = [one for one in of_kind(plane, run, EffectDone) if one.source is not None]
        assert len(ended) == 1, "the run never took what was there before"
        outcome = ended[0]
        assert outcome.output["payload"] is None and "payload" in outcome.withheld
        with pytest.raises(InvalidEvent):
            await deliver(plane, "O-1", "behind", payload={"echo": SECRET})
        (row,) = await pending(plane)
        with pytest.raises(InvalidRequest):
            await plane.worklist.decide(row.task, reviewer(BOB), BOB, Verdict(said="approve", reason=SECRET))
        await decided(plane, row.task)
        assert await settled(plane, run) == "succeeded"
        assert (await plane.outcome(run)).output == [None, "approved"]


async def test_a_drain_in_the_middle_of_a_tick_begins_nothing_more(autojump_clock: MockClock, tmp_path: Path) -> None:
    @skill("story.nightly")
    async def nightly(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return await cx.now()

    schedule = Schedule(name="books", cron=Cron("0 * * * *", "UTC"), capability="story.nightly", missed="all")

    def drains(point: str, **_: object) -> None:
        if point == "run.admitted":
            plane.runs.gate.parking = True

    async with opened(tmp_path, nightly, schedules=[schedule], observe=drains, recover=False) as plane:
        began_ms = plane.world.now_ms()
        await plane.sweep.tick(began_ms)
        await plane.sweep.tick(began_ms + 10 * 3_600_000)
        assert len(all_runs(plane)) == 1
        plane.runs.gate.parking = False
        await plane.sweep.tick(began_ms + 10 * 3_600_000)
        await plane.runs.wait_idle()
        assert len(all_runs(plane)) >= 2
