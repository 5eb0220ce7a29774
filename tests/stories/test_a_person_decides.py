"""What a machine may not do alone: a task is claimed by one person who may, decided once, on the version that was read,
and what was approved is done once, with the arguments that were approved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from agentplane import skill
from agentplane.authoring.proposal import Proposal
from agentplane.core.errors import (
    AlreadyAnswered,
    AlreadyClaimed,
    AmendmentRefused,
    ApprovalRefused,
    BasisTooWeak,
    Excluded,
    InvalidRequest,
    NotFound,
    NotHeld,
    NotPending,
    StaleVersion,
    WrongRole,
)
from agentplane.core.records import Actor, Basis, EffectDone, EffectStarted, PlaneActed, Swept
from agentplane.engine.worklist import Verdict
from agentplane.testkit.worlds import fit_mark
from stories.scenes import ME, frozen_at, of_kind, opened, recovered
from stories.waiting_scenes import (
    ALICE,
    BOB,
    CAROL,
    DAY_MS,
    asking,
    decided,
    pending,
    refunding,
    reviewer,
    settled,
    status,
)

ASK = {"order": "O-1", "amount": 5000}


async def test_an_approved_call_is_done_with_what_was_approved(autojump_clock: MockClock, tmp_path: Path) -> None:
    """The run sleeps without a lease, the decision wakes it, its outcome names who decided, and the announcement names
    the approval that it consumes. (S106)
    """
    done: list[Any] = []
    async with opened(tmp_path, asking(refunding(done))) as plane:
        run = (await plane.run("story.ask", ASK, actor=ALICE)).run
        assert await status(plane, run) == "suspended" and done == []
        (row,) = await pending(plane)
        assert row.run == run and row.proposal["action"]["args"] == {"order": "O-1", "amount": 5000}
        told = await decided(plane, row.task)
        assert told.delivery == "resumed"
        assert await settled(plane, run) == "succeeded" and done == [("O-1", 5000)]
        outcome = next(one for one in of_kind(plane, run, EffectDone) if one.by is not None)
        assert outcome.by == BOB and outcome.output["outcome"] == "approved"
        announced = next(one for one in of_kind(plane, run, EffectStarted) if one.approval is not None)
        assert announced.approval.task == row.task and announced.approval.digest == row.proposal["action"]["digest"]
        assert (await plane.replay(run, strict=True)).verdict == "verified"
        assert await pending(plane) == []


async def test_an_amended_decision_is_the_call(autojump_clock: MockClock, tmp_path: Path) -> None:
    """What the reviewer wrote is performed in the place of what was proposed; what does not fit the effect is refused
    before anything is recorded. (S107)
    """
    done: list[Any] = []
    async with opened(tmp_path, asking(refunding(done))) as plane:
        run = (await plane.run("story.ask", ASK, actor=ALICE)).run
        (row,) = await pending(plane)
        for wrong in ({"order": "O-1"}, {"order": "O-1", "amount": "much"}, {"order": "O-1", "amount": 1, "to": "me"}):
            with pytest.raises(AmendmentRefused):
                await decided(plane, row.task, amendment=wrong)
        await decided(plane, row.task, amendment={"order": "O-1", "amount": 3000})
        assert await settled(plane, run) == "succeeded" and done == [("O-1", 3000)]
        assert (await plane.replay(run, strict=True)).verdict == "verified"


async def test_a_rejected_call_is_not_done(autojump_clock: MockClock, tmp_path: Path) -> None:
    done: list[Any] = []
    async with opened(tmp_path, asking(refunding(done))) as plane:
        run = (await plane.run("story.ask", ASK, actor=ALICE)).run
        (row,) = await pending(plane)
        await decided(plane, row.task, said="reject")
        assert await settled(plane, run) == "succeeded" and done == []
        assert (await plane.outcome(run)).output == {"outcome": "rejected", "by": "os:bob"}


async def test_the_refusals_of_a_claim_come_in_one_order(autojump_clock: MockClock, tmp_path: Path) -> None:
    """What will never be is said before what is not now: unknown, excluded, of another role, too weakly known, not
    pending, held by another. (S103)

    Spec: TaskDelivery.OnlyTheHolderDecides.
    """
    async with opened(tmp_path, asking(refunding([]), least_basis="authenticated")) as plane:
        run = (await plane.run("story.ask", ASK, actor=ALICE)).run
        (row,) = await pending(plane)
        claim = plane.worklist.claim
        sure = Actor(actor="bob", basis=Basis.AUTHENTICATED)
        other = Actor(actor="carol", basis=Basis.AUTHENTICATED)
        with pytest.raises(NotFound):
            await claim("0" * 64, reviewer(sure), sure)
        with pytest.raises(Excluded):
            await claim(row.task, reviewer(ALICE, "author"), ALICE)
        with pytest.raises(WrongRole):
            await claim(row.task, reviewer(BOB, "author"), BOB)
        with pytest.raises(BasisTooWeak):
            await claim(row.task, reviewer(BOB), BOB)
        held = await claim(row.task, reviewer(sure), sure)
        assert (held.state, held.assignee) == ("claimed", "bob")
        assert (await claim(row.task, reviewer(sure), sure)).state == "claimed"
        with pytest.raises(AlreadyClaimed):
            await claim(row.task, reviewer(other), other)
        with pytest.raises(NotHeld):
            await plane.worklist.release(row.task, reviewer(other), other)
        taken = await plane.worklist.take_over(row.task, reviewer(other), other, "bob", "bob is away")
        assert taken.assignee == "carol"
        with pytest.raises(AlreadyClaimed):
            await decided(plane, row.task, sure)
        await decided(plane, row.task, other)
        await plane.runs.wait_for(run)
        with pytest.raises(AlreadyAnswered):
            await decided(plane, row.task, other)
        with pytest.raises(NotPending):
            await claim(row.task, reviewer(sure), sure)


async def test_four_eyes_are_those_of_two_people(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Who started the work may not approve it, under none of their names; a machine is nobody's second pair. (S104)

    Spec: TaskDelivery.FourEyes.
    """
    people = {"Alice": ["os:alice", "a.smith@example.org"]}
    async with opened(tmp_path, asking(refunding([])), people=people) as plane:
        await plane.run("story.ask", ASK, actor=ALICE)
        (row,) = await pending(plane)
        same = (
            Actor(actor="a.smith@example.org", basis=Basis.AUTHENTICATED),
            Actor(actor="alice", basis=Basis.AUTHENTICATED),
            Actor(actor="os:root", basis=Basis.CONNECTED, uid=0),
        )
        for who in same:
            with pytest.raises(Excluded):
                await plane.worklist.claim(row.task, reviewer(who), who)
        assert (await plane.worklist.claim(row.task, reviewer(BOB), BOB)).assignee == "os:bob"


async def test_a_decision_names_the_version_it_was_made_on(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A claim does not change what is decided; an escalation does, and the digest that was read before it is stale.
    (S105)

    Spec: TaskDelivery.StaleVersionRefused.
    """
    skill_ = asking(refunding([]), due=3600, on_expiry="escalate", escalate_to=["supervisor"])
    async with opened(tmp_path, skill_) as plane:
        await plane.run("story.ask", ASK, actor=ALICE)
        (row,) = await pending(plane)
        held = await plane.worklist.claim(row.task, reviewer(BOB), BOB)
        assert held.version() == row.version()
        ticked = await plane.sweep.tick(plane.world.now_ms() + 3_601_000)
        assert (ticked.tasks_escalated, ticked.tasks_expired) == (1, 0)
        (now,) = await pending(plane)
        assert (now.state, now.assignee) == ("escalated", None) and now.version() != row.version()
        with pytest.raises(StaleVersion):
            await decided(plane, row.task, version=row.version())
        # The audience is wider, who was barred stays so, and the window is not over a second time.
        boss = Actor(actor="os:dora", basis=Basis.CONNECTED)
        with pytest.raises(Excluded):
            await plane.worklist.claim(row.task, reviewer(ALICE, "supervisor"), ALICE)
        assert (await plane.worklist.claim(row.task, reviewer(boss, "supervisor"), boss)).assignee == "os:dora"
        assert (await plane.sweep.tick(plane.world.now_ms() + 2 * DAY_MS)).tasks_escalated == 0


@pytest.mark.parametrize(("policy", "paid"), [("deny", False), ("proceed", True)])
async def test_a_window_that_nobody_answered_in_ends_as_the_task_says(
    policy: str, paid: bool, autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Noted in a sealed run of the sweep; to go on without a person is opted into, and still is an approval that is
    consumed once. Under a clock that nobody believes no window is over. (S108)
    """
    done: list[Any] = []
    async with opened(tmp_path, asking(refunding(done), due=3600, on_expiry=policy)) as plane:
        run = (await plane.run("story.ask", ASK, actor=ALICE)).run
        (row,) = await pending(plane)
        later_ms = plane.world.now_ms() + 3_601_000
        plane.world.clock_suspect = True
        assert (await plane.sweep.tick(later_ms)).tasks_expired == 0
        plane.world.clock_suspect = False
        ticked = await plane.sweep.tick(later_ms)
        assert ticked.tasks_expired == 1 and ticked.needs_attention
        assert await settled(plane, run) == "succeeded"
        assert bool(done) is paid
        (record,) = ticked.records
        noted = of_kind(plane, record, Swept)
        assert [(one.subject, one.action, one.detail) for one in noted] == [(row.task, "task_expired", policy)]
        with pytest.raises(NotPending):
            await decided(plane, row.task)


async def test_a_decision_made_while_nothing_executes_the_run_reaches_it_later(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Recorded at once by a process that runs no skills; the next one that does finds it, and there is one outcome.
    (S109)

    Spec: TaskDelivery.DeciderToldTheTruth.
    """
    done: list[Any] = []
    asks = asking(refunding(done))
    async with opened(tmp_path, asks) as plane:
        run = (await plane.run("story.ask", ASK, actor=ALICE)).run
        (row,) = await pending(plane)
        there = frozen_at(plane, tmp_path)
    fit_mark(there / "plane.db")
    async with opened(there, recover=False) as down:
        assert (await decided(down, row.task)).delivery == "recorded"
        with pytest.raises(AlreadyAnswered):
            await decided(down, row.task, CAROL)
        assert await pending(down) == []
    async with opened(there, asks) as plane:
        await recovered(plane)
        await plane.sweep.tick(plane.world.now_ms())
        assert await settled(plane, run) == "succeeded" and done == [("O-1", 5000)]
        assert sum(one.by is not None for one in of_kind(plane, run, EffectDone)) == 1


async def test_a_task_goes_with_its_run(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A stopped run leaves no task: it cannot be decided any more. (S110)"""
    async with opened(tmp_path, asking(refunding([]))) as plane:
        run = (await plane.run("story.ask", ASK, actor=ALICE)).run
        (row,) = await pending(plane)
        await plane.cancel(run, ME, "not wanted")
        await plane.sweep.tick(plane.world.now_ms())
        assert await settled(plane, run) == "cancelled" and await pending(plane) == []
        with pytest.raises(NotPending):
            await decided(plane, row.task)


async def test_an_approval_is_consumed_once_and_for_what_it_was_given(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Other arguments, another effect, and a second place are refused, and nothing is performed. (S106)

    Spec: TaskDelivery.ApprovalConsumedOnce, TaskDelivery.OnlyWhatWasApproved.
    """
    done: list[Any] = []
    refund = refunding(done)
    refused: list[str] = []

    @skill("story.twice")
    async def twice(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        call = refund(order="O-1", amount=5)
        decision = await cx.task(Proposal(summary="once?", action=call))
        for wanted in (refund(order="O-1", amount=6), refund(order="O-2", amount=5)):
            try:
                await cx.do(wanted, approval=decision)
            except ApprovalRefused as error:
                refused.append(error.message)
        await cx.do(call, approval=decision)
        try:
            await cx.do(call, approval=decision)
        except ApprovalRefused as error:
            refused.append(error.message)

    async with opened(tmp_path, twice) as plane:
        run = (await plane.run("story.twice", {}, actor=ALICE)).run
        (row,) = await pending(plane)
        await decided(plane, row.task)
        assert await settled(plane, run) == "succeeded"
        assert done == [("O-1", 5)] and len(refused) == 3
        assert (await plane.replay(run, strict=True)).verdict == "verified"


async def test_what_a_person_does_to_a_task_is_recorded_with_who_and_how_we_know(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """S111."""
    async with opened(tmp_path, asking(refunding([]))) as plane:
        await plane.run("story.ask", ASK, actor=ALICE)
        (row,) = await pending(plane)
        await plane.worklist.claim(row.task, reviewer(BOB), BOB)
        await plane.worklist.take_over(row.task, reviewer(CAROL), CAROL, "os:bob", "bob sleeps")
        await plane.worklist.release(row.task, reviewer(CAROL), CAROL)
        from agentplane.journal import lists

        own = plane.store.readers.read(lambda tx: lists.runs(tx, own=True))
        acts = [one for run in own for one in of_kind(plane, run.run, PlaneActed)]
        told = sorted((one.action, one.acted_by.actor, one.acted_by.basis.value, one.subject) for one in acts)
        assert told == [
            ("task.claimed", "os:bob", "connected", row.task),
            ("task.released", "os:carol", "connected", row.task),
            ("task.taken_over", "os:carol", "connected", row.task),
        ]


async def test_a_proposal_that_contradicts_itself_is_refused_before_anything_is_registered(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    for wrong in (
        {"on_expiry": "escalate", "due": 60}, {"on_expiry": "proceed"}, {"audience": []}, {"confidence": 2.0},
        {"summary": ""}, {"least_basis": "rumour"}, {"priority": "whenever"}, {"on_expiry": "forget", "due": 60},
    ):  # fmt: skip
        with pytest.raises(InvalidRequest):
            Proposal(**{"summary": "why", **wrong})


async def test_a_question_without_an_action_is_answered_with_data(autojump_clock: MockClock, tmp_path: Path) -> None:
    @skill("story.question")
    async def question(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        decision = await cx.task(Proposal(summary="which carrier?"))
        return {"outcome": decision.outcome, "answer": decision.answer}

    async with opened(tmp_path, question) as plane:
        run = (await plane.run("story.question", {}, actor=ALICE)).run
        (row,) = await pending(plane)
        await plane.worklist.decide(
            row.task, reviewer(BOB), BOB, Verdict(said="answer", reason="cheapest", answer={"carrier": "north"})
        )
        assert await settled(plane, run) == "succeeded"
        assert (await plane.outcome(run)).output == {"outcome": "answered", "answer": {"carrier": "north"}}
