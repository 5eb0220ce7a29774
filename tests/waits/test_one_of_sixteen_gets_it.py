"""Sixteen ask at once, over the real writer and store: one gets it, and the others are told so.

Every claim is one unit that looks and takes; the last story takes the look out of the unit, and several win.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio

from agentplane.core.effects import Phase
from agentplane.core.errors import (
    AgentplaneError,
    AlreadyAnswered,
    AlreadyClaimed,
    ApprovalRefused,
    CaseConflict,
    HeadMoved,
    LeaseHeld,
    ObligationOpen,
)
from agentplane.core.history import SLEEP
from agentplane.core.records import Actor, Basis, EffectDone, RunSuspended
from agentplane.journal import appends, leases, obligations, rows, subscriptions, timers, worklist
from agentplane.journal.tx import Tx
from agentplane.journal.writer import Writer
from agentplane.testkit.cases_hold import case_id, keys
from agentplane.testkit.events_hold import ORDER, announced, event_id, wait_key
from agentplane.testkit.ledger import TTL_MS, Ledger, key_of, run_id
from agentplane.testkit.tasks_hold import DIGEST, PEOPLE, actor, opened, reviewer, task_of
from agentplane.work import events, matters, tasks
from journal.stores import NOW, PlainStore

T = TypeVar("T")
SIXTEEN = range(16)


class Arena:
    """A store with its writer's thread. ``plain`` is for what is there before the race: it is of the same store."""

    def __init__(self, plain: PlainStore, writer: Writer) -> None:
        self.plain = plain
        self.writer = writer

    async def race(self, *bodies: Callable[[Tx], T]) -> tuple[list[T], list[AgentplaneError]]:
        """Every body as a unit, all queued at once: what was answered, and what was refused."""
        won: list[T] = []
        lost: list[AgentplaneError] = []

        async def one(body: Callable[[Tx], T]) -> None:
            try:
                won.append(await self.writer.do(body))
            except AgentplaneError as error:
                lost.append(error)

        async with trio.open_nursery() as nursery:
            for body in bodies:
                nursery.start_soon(one, body)
        return won, lost

    async def ask(self, body: Callable[[Tx], T]) -> T:
        return await self.writer.do(body)


@asynccontextmanager
async def arena(tmp_path: Path, before: Callable[[PlainStore], object] = lambda plain: None) -> AsyncIterator[Arena]:
    """``before`` makes what is raced for."""
    plain = PlainStore(tmp_path / "plane.db")
    before(plain)
    plain._connection.close()  # one connection writes: the writer's
    writer = Writer(plain.store.writer_connection, "default", lambda: NOW, before_commit=plain.store.count_commit)
    writer.start()
    try:
        yield Arena(plain, writer)
    finally:
        await writer.close()
        plain.store.close()


async def test_two_messages_open_one_matter(tmp_path: Path) -> None:
    """One is opened, and the others join it."""
    async with arena(tmp_path) as at:
        won, lost = await at.race(*(
            lambda tx, n=n: matters.correlate(tx, keys(order="1"), "kind", case_id(n)) for n in SIXTEEN
        ))  # fmt: skip
        assert not lost and len({bound.case for bound in won}) == 1
        assert sum(bound.opened for bound in won) == 1
        assert await at.ask(matters.census) == {"open": 1}


async def test_two_runs_write_one_state(tmp_path: Path) -> None:
    """One write is taken over the version that all of them read."""
    async with arena(tmp_path, lambda plain: plain.unit(open_case)) as at:
        won, _ = await at.race(*(
            lambda tx, n=n: (n, matters.put_state(tx, case_id(1), b"%d" % n, 0)) for n in SIXTEEN
        ))  # fmt: skip
        (winner,) = [n for n, written in won if written]
        assert await at.ask(lambda tx: matters.state_of(tx, case_id(1))) == (winner, 1, "open")


def open_case(tx: Tx) -> None:
    matters.correlate(tx, keys(order="1"), "kind", case_id(1))


@pytest.mark.parametrize("first", ["a promise", "a closing", "anybody"])
async def test_a_case_is_closed_or_promises_something(tmp_path: Path, first: str) -> None:
    """Closings and promises at once: never an open obligation in a closed case, whoever comes first."""
    async with arena(tmp_path, lambda plain: plain.unit(open_case)) as at:

        def promise(tx: Tx, n: int) -> object:
            return obligations.register(tx, case_id(1), f"d{n}", NOW + 9, NOW, run_id(1), "")

        def closing(tx: Tx) -> object:
            return matters.set_status(tx, case_id(1), "open", "closed")

        if first != "anybody":
            await at.ask(closing if first == "a closing" else lambda tx: promise(tx, 99))
        _, lost = await at.race(
            *(closing for _ in range(8)), *(lambda tx, n=n: promise(tx, n) for n in range(8)),
        )  # fmt: skip
        assert {type(error) for error in lost} == {CaseConflict if await closed(at) else ObligationOpen}
        still = await at.ask(lambda tx: obligations.open_of(tx, case_id(1)))
        assert await closed(at) == (still == 0) and (first == "anybody" or await closed(at) == (first == "a closing"))


async def closed(at: Arena) -> bool:
    return (await at.ask(lambda tx: matters.get(tx, case_id(1)))).status == "closed"


async def test_one_message_ends_one_wait(tmp_path: Path) -> None:
    """Sixteen waits, one event: consumed by one, and its key rows are gone."""
    async with arena(tmp_path, lambda plain: plain.unit(store_event)) as at:
        won, lost = await at.race(*(
            lambda tx, n=n: events.consume(tx, event_id(1), run_id(n), wait_key(1)) for n in SIXTEEN
        ))  # fmt: skip
        assert not lost and sum(won) == 1


def store_event(tx: Tx, number: int = 1) -> object:
    return events.store(tx, event_id(number), bytes([9]) * 32, "s", "", "i", "paid", ORDER, b"{}", NOW)


async def test_a_message_that_is_delivered_sixteen_times_is_stored_once(tmp_path: Path) -> None:
    """And every other delivery is told of the first."""
    async with arena(tmp_path) as at:
        won, lost = await at.race(*(lambda tx, n=n: store_event(tx, n + 1) for n in SIXTEEN))
        seen = [one for one in won if one is not None]
        assert not lost and len(seen) == 15 and len({one.event for one in seen}) == 1  # type: ignore[attr-defined]
        assert (await at.ask(events.counts))["buffered"] == 1


def waiting_run(plain: PlainStore) -> Ledger:
    """A run that sleeps, without a lease."""
    one = Ledger(plain).admit()
    one.append(announced(one, 1, SLEEP), one.record(RunSuspended, seq=3, reason="it sleeps"))
    plain.unit(lambda tx: timers.arm(tx, one.run, wait_key(1), NOW))
    plain.unit(lambda tx: leases.release(tx, one.lease))
    return one


async def test_one_wake_is_made_by_one_of_sixteen_sweeps(tmp_path: Path) -> None:
    """Timer, lease, outcome and mark in one unit: one sweep gets all of them, and one outcome is recorded.

    Spec: Timers.OneWakePerTimer.
    """
    ledgers: list[Ledger] = []
    async with arena(tmp_path, lambda plain: ledgers.append(waiting_run(plain))) as at:
        (one,) = ledgers

        def wake(tx: Tx, n: int) -> bool:
            if not timers.disarm(tx, one.run, wait_key(1)):
                return False
            return outcome(tx, n)

        def outcome(tx: Tx, n: int) -> bool:
            lease = leases.acquire(tx, one.run, f"sweep{n}", "o", TTL_MS)
            mine = Ledger(at.plain, owner=f"sweep{n}")
            mine.lease, mine.head = lease, one.head
            done = mine.record(EffectDone, step=0, effect_key=key_of(1))
            appends.append(tx, one.run, lease.epoch, rows.head_of(tx, one.run), mine.link(done))
            return True

        won, lost = await at.race(*(lambda tx, n=n: wake(tx, n) for n in SIXTEEN))
        assert sum(won) == 1 and not lost
        # Without the row to claim it is the lease that lets nobody in.
        _, lost = await at.race(*(lambda tx, n=n: outcome(tx, n) for n in SIXTEEN))
        assert [type(error) for error in lost] == [LeaseHeld] * 16
        count = await at.ask(
            lambda tx: tx.one("SELECT count(*) FROM record WHERE run = ? AND kind = 'EffectDone'", one.run)
        )
        assert count == (1,)


async def test_one_of_sixteen_outcomes_ends_a_wait(tmp_path: Path) -> None:
    """Sixteen events come for one wait while its owner is awake: what the head refuses was not claimed either."""
    ledgers: list[Ledger] = []

    def before(plain: PlainStore) -> None:
        one = Ledger(plain).admit()
        one.append(announced(one, 1, "event.await"))
        plain.unit(lambda tx: subscriptions.arm(tx, one.run, wait_key(1), "paid", ORDER, None))
        for n in SIXTEEN:
            plain.unit(lambda tx, n=n: events.store(  # type: ignore[misc]
                tx, event_id(n), bytes([n]) * 32, "s", "", "i", "paid", ORDER, b"{}", NOW
            ))  # fmt: skip
        ledgers.append(one)

    async with arena(tmp_path, before) as at:
        (one,) = ledgers

        def end(tx: Tx, n: int) -> int:
            assert events.consume(tx, event_id(n), one.run, wait_key(1))
            done = one.link(one.record(EffectDone, step=0, effect_key=key_of(1)))
            appends.append(tx, one.run, one.lease.epoch, one.head, done)
            return n

        won, lost = await at.race(*(lambda tx, n=n: end(tx, n) for n in SIXTEEN))
        assert len(won) == 1 and {type(error) for error in lost} == {HeadMoved}
        counted = await at.ask(events.counts)
        assert counted["buffered"] == 15
        assert await at.ask(lambda tx: subscriptions.of_run(tx, one.run)) == []


async def test_one_of_sixteen_reviewers_gets_the_claim(tmp_path: Path) -> None:
    async with arena(tmp_path, lambda plain: opened(plain, number=1)) as at:
        won, lost = await at.race(*(
            lambda tx, n=n: tasks.claim(tx, task_of(1), reviewer(f"r{n}"), actor(f"r{n}"), PEOPLE) for n in SIXTEEN
        ))  # fmt: skip
        assert len(won) == 1 and [type(error) for error in lost] == [AlreadyClaimed] * 15
        assert {error.details["holder"] for error in lost} == {won[0].assignee}


async def test_one_of_sixteen_decisions_is_the_decision(tmp_path: Path) -> None:
    """Approved by some and rejected by others, at once: what stands is what one of them was answered."""
    async with arena(tmp_path, lambda plain: opened(plain, number=1)) as at:

        def decide(tx: Tx, n: int) -> tasks.TaskRow:
            return tasks.decide(
                tx, task_of(1), reviewer(f"r{n}"), actor(f"r{n}"), PEOPLE, said=("approve", "reject")[n % 2],
                reason=f"{n}",
            )  # fmt: skip

        won, lost = await at.race(*(lambda tx, n=n: decide(tx, n) for n in SIXTEEN))
        assert len(won) == 1 and [type(error) for error in lost] == [AlreadyAnswered] * 15
        assert await at.ask(lambda tx: tasks.get(tx, task_of(1))) == won[0]


async def test_a_task_expires_or_is_decided(tmp_path: Path) -> None:
    """Eight sweeps and eight people: one of them, once.

    Spec: TaskDelivery.OneDecisionPerTask.
    """
    async with arena(tmp_path, lambda plain: opened(plain, number=1, due_ms=NOW)) as at:
        acts: list[Callable[[Tx], Any]] = []
        for n in range(8):
            acts.append(lambda tx: tasks.expire(tx, task_of(1)))
            acts.append(lambda tx, n=n: tasks.decide(  # type: ignore[misc]
                tx, task_of(1), reviewer(f"r{n}"), actor(f"r{n}"), PEOPLE, said="approve", reason="r"
            ).approved)  # fmt: skip
        won, lost = await at.race(*acts)
        assert sum(bool(one) for one in won) == 1
        assert {error.row.code for error in lost} <= {"already_answered", "not_pending"}


async def test_an_approval_is_consumed_by_one_of_sixteen_places(tmp_path: Path) -> None:
    def before(plain: PlainStore) -> None:
        opened(plain, run_id(1), number=1)
        plain.unit(lambda tx: tasks.decide(
            tx, task_of(1), reviewer("ben"), actor("ben"), PEOPLE, said="approve", reason="r"
        ))  # fmt: skip
        plain.unit(lambda tx: worklist.settle(tx, run_id(1), wait_key(1), told=True))

    async with arena(tmp_path, before) as at:

        def use(tx: Tx, n: int) -> int:
            worklist.consume(tx, task_of(1), run_id(1), worklist.Place(0, Phase.forward, n), DIGEST)
            return n

        won, lost = await at.race(*(lambda tx, n=n: use(tx, n) for n in SIXTEEN))
        assert len(won) == 1 and [type(error) for error in lost] == [ApprovalRefused] * 15
        assert (await at.ask(lambda tx: tasks.get(tx, task_of(1)))).consumed == (0, 0, won[0])


async def test_an_obligation_is_met_or_breached(tmp_path: Path) -> None:
    """Eight sweeps say breached, eight runs say met: one word stands, and it is somebody's.

    Spec: Timers.OneBreach.
    """

    def register(tx: Tx) -> object:
        return obligations.register(tx, case_id(1), "reply", NOW, NOW - 9, run_id(1), "")

    async with arena(tmp_path, lambda plain: plain.unit(register)) as at:
        acts: list[Callable[[Tx], object]] = []
        for _ in range(8):
            acts.append(lambda tx: obligations.breach(tx, case_id(1), "reply", 1, "pending"))
            acts.append(lambda tx: obligations.move(tx, case_id(1), "reply", "pending", "met"))
        won, lost = await at.race(*acts)
        breached = sum(one is True for one in won)
        met = sum(one is None for one in won)
        assert (breached, met) in ((1, 0), (0, 1))
        assert {type(error) for error in lost} <= {CaseConflict} and len(won) + len(lost) == 16
        row = await at.ask(lambda tx: obligations.latest(tx, case_id(1), "reply"))
        assert row is not None and row.state == ("breached" if breached else "met")


async def test_one_name_is_promised_and_one_breach_is_acknowledged_once(tmp_path: Path) -> None:
    async with arena(tmp_path) as at:
        won, lost = await at.race(*(
            lambda tx: obligations.register(tx, case_id(1), "reply", NOW, NOW, run_id(1), "") for _ in SIXTEEN
        ))  # fmt: skip
        assert won == [1] and [type(error) for error in lost] == [CaseConflict] * 15
        await at.ask(lambda tx: obligations.breach(tx, case_id(1), "reply", 1, "pending"))
        told, _ = await at.race(*(
            lambda tx, n=n: obligations.acknowledge(
                tx, case_id(1), "reply", Actor(actor=f"p{n}", basis=Basis.CONNECTED), "n"
            ) for n in SIXTEEN
        ))  # fmt: skip
        assert sum(recorded for recorded, _ in told) == 1 and len({first for _, first in told}) == 1


@pytest.mark.parametrize("apart", [False, True], ids=["in one unit", "in two"])
async def test_a_look_that_is_not_in_the_unit_lets_several_win(tmp_path: Path, apart: bool) -> None:
    """What the races above would show: the same claim, its look before its unit, is won by all sixteen."""
    async with arena(tmp_path, lambda plain: plain.unit(store_event)) as at:
        ready = trio.Event()
        looked: list[int] = []

        async def claim(n: int, won: list[int]) -> None:
            free = not apart or await at.ask(lambda tx: events.is_buffered(tx, event_id(1)))
            looked.append(n)
            if len(looked) == 16:
                ready.set()
            await ready.wait()

            def take(tx: Tx) -> bool:
                if not apart and not events.is_buffered(tx, event_id(1)):
                    return False
                tx.run("UPDATE event SET state = 'consumed', run = ? WHERE event = ?", run_id(n), event_id(1))
                return free

            if await at.ask(take):
                won.append(n)

        winners: list[int] = []
        async with trio.open_nursery() as nursery:
            for n in SIXTEEN:
                nursery.start_soon(claim, n, winners)
        assert len(winners) == (16 if apart else 1)
