"""Waiting, killed at every commit: whatever was durable, the run is woken once, by one event, one instant or one
decision; what was approved is consumed once; a promise is met or breached, and told once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trio.testing import MockClock

from agentplane import Plane, Recovery, effect, skill
from agentplane.authoring.plan import node, plan
from agentplane.authoring.proposal import Proposal
from agentplane.authoring.raising import DidNotHappenError
from agentplane.authoring.waiting import WaitTimedOut
from agentplane.core.instants import to_text
from agentplane.core.records import EffectStarted, RunAdmitted
from agentplane.engine.scheduling import Schedule
from agentplane.journal.store import connect
from agentplane.journal.tx import Tx
from agentplane.testkit import FakeProvider, crash_at_every_commit
from agentplane.testkit.worlds import Kept, copy_store, fit_mark
from agentplane.work.cron import Cron
from crash.undo_workloads import held
from stories.scenes import AT_ONCE, all_runs, of_kind, opened, paying, recovered
from stories.waiting_scenes import awaiting, decided, deliver

DAY_MS = 86_400_000
ORDER = {"order": "O-1"}
ENDS = {"succeeded", "running"}
"""A world in which only half an admission was left stays running, to be refused."""


def rows(store: Path, sql: str) -> list[tuple[Any, ...]]:
    connection = connect(store, read_only=True)
    try:
        return [tuple(row) for row in Tx(connection, "default", 0).all(sql)]
    finally:
        connection.close()


def told_once(kept: Kept, store: Path) -> Iterable[str]:
    """No event ended two waits, none is claimed without an outcome, and nothing that waits outlives its run."""
    taken = Counter(row[0] for row in rows(store, "SELECT key FROM event WHERE state = 'consumed'"))
    if any(times > 1 for times in taken.values()):
        yield "a wait took two events"
    if rows(store, "SELECT 1 FROM event WHERE state = 'claimed'"):
        yield "an event is claimed and its wait has no outcome"
    if kept.row.log_index is not None:
        if rows(store, "SELECT 1 FROM task WHERE state IN ('open', 'claimed', 'escalated')"):
            yield "a task outlived its run"
        if rows(store, "SELECT 1 FROM subscription") or rows(store, "SELECT 1 FROM timer"):
            yield "a subscription or a timer outlived its run"
    for item in kept.stored:
        record = item.record
        if isinstance(record, EffectStarted) and record.approval is not None and record.attempt == 1:
            used = rows(store, "SELECT used_ordinal FROM task WHERE approved = 1")
            if (record.ordinal,) not in used:
                yield "an approval that was acted on is not consumed"


async def one_event(plane: Plane, run: str) -> bool:
    return (await deliver(plane, "O-1", "the one")).delivery != "duplicate"


async def a_decision(plane: Plane, run: str) -> bool:
    """BOB decides whatever waits for him."""
    from stories.waiting_scenes import pending

    found = await pending(plane)
    for row in found:
        await decided(plane, row.task)
    return bool(found)


async def test_an_event_behind_the_wait(autojump_clock: MockClock) -> None:
    """Stored, matched and told in one unit: in every world the wait ends by it once, or waits with its rows.

    Spec: Delivery.DurableBeforeMatch, Timers.NoSuspendedRunWithoutOne.
    """
    report = await crash_at_every_commit(
        awaiting(), ORDER, outside=one_event, also=told_once, asked={"correlate": {"order": "O-1"}}
    )  # fmt: skip
    held(report, least=4, ends=ENDS, looked_at=("timers are the open waits",))


async def test_an_event_before_the_wait(autojump_clock: MockClock) -> None:
    """Delivered before the run was admitted, and again in every world: a duplicate."""

    async def first(plane: Plane) -> None:
        await deliver(plane, "O-1", "the one")

    held_report = await crash_at_every_commit(awaiting(), ORDER, prepare=first, outside=one_event, also=told_once)
    assert held_report.check().ends.keys() <= ENDS and held_report.worlds >= 6


async def test_an_event_that_comes_while_the_run_is_awake(autojump_clock: MockClock) -> None:
    """A sibling step acts behind a sleep while the event arrives: the claim waits for the suspension's own look.

    Spec: Delivery.EveryMessageReachesAWaiter.
    """
    provider = FakeProvider()
    pay = paying(provider)

    @skill("story.act")
    async def act(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        await cx.sleep(hours=1)
        first = await cx.do(pay(order="A-1"))
        await cx.sleep(hours=1)
        return first

    both = plan("story.both", nodes=[node("act", "story.act"), node("await", "story.await")])
    report = await crash_at_every_commit(
        both, ORDER, beside=[act, awaiting()], provider=provider, outside=one_event, also=told_once
    )
    held(report, least=9, ends=ENDS, looked_at=("one deed a key",))


async def test_a_wait_that_nothing_comes_to_is_over_during_downtime(autojump_clock: MockClock) -> None:
    """The worlds are opened a day and a half late: the wait ends by its time, once.

    Spec: Timers.NoTimerWithoutAWait.
    """

    @skill("story.patient")
    async def patient(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        try:
            await cx.event("parcel.delivered", correlation={"order": "O-1"}, days=1)
        except WaitTimedOut:
            return await cx.sleep(hours=1)

    report = await crash_at_every_commit(patient, {}, also=told_once, later_ms=DAY_MS + DAY_MS // 2)
    held(report, least=6, ends=ENDS, looked_at=("timers are the open waits",))


async def test_a_decision_and_an_approval_that_is_retried(autojump_clock: MockClock) -> None:
    """Consumed in the announcement's unit, shared by the attempts of that place, killed between any two of them.

    Spec: TaskDelivery.AttemptsShareTheApproval.
    """
    provider = FakeProvider()

    def flaky() -> Any:
        @effect("pay.refund", recovery=Recovery.IDEMPOTENT, retry=AT_ONCE)
        async def refund(call: Any, *, order: str, amount: int) -> Any:
            if call.attempt < 3:
                raise DidNotHappenError("busy")
            return await provider.call(call, "refund", {"order": order, "amount": amount})

        return refund

    refund = flaky()

    @skill("story.ask")
    async def ask(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        call = refund(order="O-1", amount=5)
        decision = await cx.task(Proposal(summary="refund?", action=call, due=3600))
        return await cx.do(call, approval=decision) if decision.approved else decision.outcome

    report = await crash_at_every_commit(ask, {}, provider=provider, outside=a_decision, also=told_once)
    held(report, least=8, ends=ENDS, looked_at=("one deed a key",))


async def test_a_task_decided_while_the_run_is_down(autojump_clock: MockClock) -> None:
    """In every world a person decides before anything is resumed; what no process executes is told when one does."""
    provider = FakeProvider()
    pay = paying(provider)

    @skill("story.ask")
    async def ask(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        await cx.do(pay(order="A-1"))
        decision = await cx.task(Proposal(summary="go on?", due=3600))
        return decision.outcome

    async def meanwhile(plane: Plane, run: str) -> None:
        await a_decision(plane, run)

    report = await crash_at_every_commit(
        ask, {}, provider=provider, meanwhile=meanwhile, outside=a_decision, also=told_once
    )
    held(report, least=6, ends=ENDS)


async def test_a_window_that_is_over_during_downtime(autojump_clock: MockClock) -> None:
    """Every world opens behind it: the expiry is the decision, and there is one."""

    @skill("story.ask")
    async def ask(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        decision = await cx.task(Proposal(summary="go on?", due=3600))
        return decision.outcome

    async def nobody(plane: Plane, run: str) -> bool:
        """The window passes."""
        before = len(await plane.read(lambda tx: tx.all("SELECT 1 FROM task WHERE decided_ms IS NOT NULL")))
        await plane.sweep.tick(plane.world.now_ms() + 2 * DAY_MS)
        return before != len(await plane.read(lambda tx: tx.all("SELECT 1 FROM task WHERE decided_ms IS NOT NULL")))

    report = await crash_at_every_commit(ask, {}, outside=nobody, also=told_once, later_ms=DAY_MS)
    held(report, least=4, ends=ENDS)


async def test_a_promise_is_met_or_breached_and_told_once(autojump_clock: MockClock) -> None:
    """Killed around the promise, its keeping and the sweep; opened late, a breach is one, and the account of it too.
    (Half of an entry on the books is left by no commit, and is not tried.)

    Spec: Timers.BreachIsAccountedFor.
    """

    @skill("story.promise")
    async def promise(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        await cx.deadline("reply", hours=2)
        view = await cx.case.read()
        await cx.case.write({"asked": True}, expected=view.version)
        await cx.sleep(hours=1)
        return await cx.met("reply")

    def one_word(kept: Kept, store: Path) -> Iterable[str]:
        yield from told_once(kept, store)
        states = [row[0] for row in rows(store, "SELECT state FROM obligation")]
        if len(states) != 1 or states[0] not in ("met", "breached"):
            yield f"the promise is {states}"
        bodies = [row[0] for row in rows(store, "SELECT body FROM record WHERE kind = 'Swept'")]
        breaches = sum(b'"deadline_breached"' in body for body in bodies)
        if breaches != states.count("breached"):
            yield f"{breaches} accounts of {states}"
        versions = [row[0] for row in rows(store, "SELECT version FROM matter")]
        if versions != [1]:
            yield f"the state was written {versions} times"

    for later_ms in (0, DAY_MS):
        report = await crash_at_every_commit(
            promise, {}, asked={"correlate": {"order": "O-1"}}, also=one_word, later_ms=later_ms, inside_units=False
        )
        held(report, least=6, ends=ENDS)


async def test_a_schedule_due_during_downtime_is_admitted_once(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Killed at every commit of the tick that admits three missed instants, and looked at again by the next process."""

    @skill("story.nightly")
    async def nightly(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return await cx.now()

    schedule = Schedule(name="books", cron=Cron("0 * * * *", "UTC"), capability="story.nightly", missed="all")
    copies: list[Path] = []

    def cut(point: str, **_: object) -> None:
        if point == "writer.committed" and copies is not None:
            target = tmp_path / f"cut-{len(copies)}" / "plane.db"
            copy_store(tmp_path / "plane.db", target)
            copies.append(target)

    async with opened(tmp_path, nightly, schedules=[schedule], observe=cut, recover=False) as plane:
        now_ms = plane.world.now_ms()
        await plane.sweep.tick(now_ms)
        copies.clear()
        first = now_ms - now_ms % 3_600_000 + 3_600_000
        await plane.sweep.tick(first + 2 * 3_600_000 + 60_000)
        await plane.runs.wait_idle()
        wanted = sorted(f"schedule:books:{to_text(first + n * 3_600_000)}" for n in range(3))
    assert len(copies) >= 6
    for store in list(copies):
        fit_mark(store)
        async with opened(store.parent, nightly, schedules=[schedule], recover=False) as plane:
            await recovered(plane)
            await plane.sweep.tick(first + 2 * 3_600_000 + 120_000)
            await plane.runs.wait_idle()
            await recovered(plane)
            keys = sorted(str(of_kind(plane, row.run, RunAdmitted)[0].idempotency_key) for row in all_runs(plane))
            assert keys == wanted, store.parent.name
            assert {row.status for row in all_runs(plane)} == {"succeeded"}
