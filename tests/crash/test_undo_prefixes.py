"""Whatever undoes may die at every commit, and is found again: each prefix is resumed, and each rule of undoing holds.

The worlds are those of ``agentplane.testkit.crash_at_every_commit``; the rules are in ``agentplane.testkit
.prefix_rules``, and each test names those that it must have put to the test.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import apsw
import pytest
from trio.testing import MockClock

from agentplane import Recovery, skill
from agentplane.core import canonical
from agentplane.core.budget import Budget
from agentplane.core.effects import Phase, Place, effect_key
from agentplane.core.records import Undecided
from agentplane.engine.plane import Outcome, Plane
from agentplane.testkit import FakeProvider, crash_at_every_commit
from crash.undo_workloads import (
    TWO_DAYS,
    all_or_nothing,
    cancelled,
    cancelled_after,
    chain,
    grouped,
    held,
    loop,
    replanned,
    side_by_side,
    step,
    taken_back,
    with_a_pivot,
    with_entries,
)
from stories.scenes import ME, paying

UNWOUND = ("no unwind under doubt", "nothing is unwound twice")

# --- sagas -----------------------------------------------------------------------------------------------------------


async def test_a_saga_that_unwinds_to_its_pivot(autojump_clock: MockClock) -> None:
    """Six steps: what stands behind the pivot is taken back or kept by right, what stands before it stays."""
    provider = FakeProvider()
    order, beside = with_a_pivot(provider)
    also = taken_back(provider, ("ship", "ship-back"))
    report = await crash_at_every_commit(order, {}, beside=beside, provider=provider, also=also)
    held(report, least=12, ends={"failed", "running"}, looked_at=(*UNWOUND, "the order is reverse", "a pivot holds"))
    assert "reserve-back" not in {row.name for row in provider.book}


async def test_a_saga_that_unwinds_to_its_beginning(autojump_clock: MockClock) -> None:
    """Three steps are taken back, the last completed first."""
    provider = FakeProvider()
    names = ("reserve", "authorise", "ship")
    order, beside = chain("order.all", *(step(provider, name) for name in names), step(provider, "end", fails=True))
    also = taken_back(provider, *((name, f"{name}-back") for name in names))
    report = await crash_at_every_commit(order, {}, beside=beside, provider=provider, also=also)
    held(report, least=12, ends={"failed", "running"}, looked_at=(*UNWOUND, "the order is reverse"))


async def test_a_compensation_that_waits(autojump_clock: MockClock) -> None:
    """It suspends in the middle of taking back, and is recorded once when it is done."""
    provider = FakeProvider()
    order, beside = chain("order.wait", step(provider, "reserve", undo_days=TWO_DAYS),
                          step(provider, "close", fails=True))  # fmt: skip
    also = taken_back(provider, ("reserve", "reserve-back"), ("reserve", "reserve-settle"))
    report = await crash_at_every_commit(order, {}, beside=beside, provider=provider, also=also)
    held(report, least=9, ends={"failed", "running"}, looked_at=(*UNWOUND, "timers are the open waits"))


async def test_a_compensation_that_fails_and_is_asked_again(autojump_clock: MockClock) -> None:
    """The run is quarantined half unwound, naming the step; a person has it asked again, and the rest is taken back."""
    provider = FakeProvider()
    provider.tell("ship-back", "refused_for_good")
    order, beside = chain("order.stuck", step(provider, "reserve"), step(provider, "ship"),
                          step(provider, "close", fails=True))  # fmt: skip

    async def asked_again(plane: Plane, outcome: Outcome) -> None:
        assert (outcome.status, outcome.code) == ("quarantined", "compensation_failed") and "step 1" in str(
            outcome.reason
        )
        assert (await plane.retry(outcome.run, ME, "the carrier is back")).status == "failed"

    also = taken_back(provider, ("reserve", "reserve-back"), ("ship", "ship-back"))
    report = await crash_at_every_commit(
        order, {}, beside=beside, provider=provider, after=asked_again, also=also, as_well=("quarantined",)
    )
    held(report, least=12, ends={"failed", "quarantined", "running"}, looked_at=UNWOUND)


async def test_a_failure_beside_a_sibling_that_waits(autojump_clock: MockClock) -> None:
    """The sibling never completed, and what it landed is taken back; its wait ends with it."""
    provider = FakeProvider()
    order, beside = side_by_side("order.beside", step(provider, "hold", days=TWO_DAYS),
                                 step(provider, "fall", fails=True))  # fmt: skip
    also = taken_back(provider, ("hold", "hold-back"))
    report = await crash_at_every_commit(order, {}, beside=beside, provider=provider, also=also)
    held(report, least=5, ends={"failed", "running"}, looked_at=UNWOUND)


async def test_a_replan_and_then_an_unwind(autojump_clock: MockClock) -> None:
    """What the new plan dropped ran all the same, and is taken back."""
    provider = FakeProvider()
    order, beside = replanned(provider)
    also = taken_back(provider, ("reserve", "reserve-back"))
    report = await crash_at_every_commit(order, {}, beside=beside, provider=provider, also=also)
    held(report, least=7, ends={"failed", "running"}, looked_at=UNWOUND)


# --- cancel ----------------------------------------------------------------------------------------------------------


def waiting_order(provider: FakeProvider) -> Any:
    return chain("order.slow", step(provider, "reserve"), step(provider, "hold", days=TWO_DAYS))


PAIRS = (("reserve", "reserve-back"), ("hold", "hold-back"))


async def test_a_run_cancelled_while_it_waits(autojump_clock: MockClock) -> None:
    """Nobody executed it; it is resumed by itself, and the interrupted step is taken back first."""
    provider = FakeProvider()
    order, beside = waiting_order(provider)
    report = await crash_at_every_commit(
        order, {}, beside=beside, provider=provider, after=cancelled_after, also=taken_back(provider, *PAIRS),
        as_well=("succeeded",),
    )  # fmt: skip
    looked_at = (*UNWOUND, "the order is reverse", "nothing stands under a cancelled run", "timers are the open waits")
    held(report, least=12, ends={"cancelled", "succeeded", "running"}, looked_at=looked_at)
    assert report.outcome.status == "cancelled"


async def test_a_run_cancelled_in_every_prefix(autojump_clock: MockClock) -> None:
    """Asked with the plane down, at every commit of a run that waits and succeeds: it is heard, whatever it was at."""
    provider = FakeProvider()
    order, beside = waiting_order(provider)
    report = await crash_at_every_commit(
        order, {}, beside=beside, provider=provider, meanwhile=cancelled, also=taken_back(provider, *PAIRS),
        as_well=("cancelled",),
    )  # fmt: skip
    held(report, least=8, ends={"cancelled", "succeeded", "running"}, looked_at=UNWOUND)
    assert report.ends["cancelled"] > report.worlds / 2


async def test_a_cancel_in_a_loop_of_a_hundred(autojump_clock: MockClock) -> None:
    """Heard at the next effect boundary of a step with a hundred; a sample of its prefixes (all are heavy)."""
    provider = FakeProvider()
    also = taken_back(provider, ("one", "all-back"))
    report = await crash_at_every_commit(
        loop(provider, 100), {}, provider=provider, at_commit=(60, cancelled), also=also, as_well=("succeeded",),
        keep=lambda commit: commit % 9 == 0 or 58 <= commit <= 66,
    )  # fmt: skip
    held(report, least=60, ends={"cancelled", "succeeded"}, looked_at=UNWOUND)
    assert report.outcome.status == "cancelled" and report.commits < 80


@pytest.mark.heavy
async def test_a_cancel_at_every_prefix_of_a_loop_of_a_hundred(autojump_clock: MockClock) -> None:
    """Recorded with the plane down at every single commit of a step of a hundred effects."""
    provider = FakeProvider()
    also = taken_back(provider, ("one", "all-back"))
    report = await crash_at_every_commit(
        loop(provider, 100), {}, provider=provider, meanwhile=cancelled, also=also, as_well=("cancelled",)
    )
    held(report, least=100, ends={"cancelled", "succeeded", "running"}, looked_at=UNWOUND)
    assert report.ends["cancelled"] > 150


@pytest.mark.heavy
async def test_a_cancel_at_thirty_prefixes_of_a_loop_of_ten_thousand(autojump_clock: MockClock) -> None:
    """Thirty of its commits by a seed: heard without walking the ten thousand to their end."""
    provider = FakeProvider()
    chosen = set(random.Random(4).sample(range(2, 10_000), 30))
    report = await crash_at_every_commit(
        loop(provider, 10_000), {}, provider=provider, meanwhile=cancelled, keep=chosen.__contains__,
        also=taken_back(provider, ("one", "all-back")), as_well=("cancelled",),
    )  # fmt: skip
    held(report, least=10_000, ends={"cancelled"}, looked_at=UNWOUND)
    assert report.worlds >= 30


# --- groups ----------------------------------------------------------------------------------------------------------


async def test_a_group_that_commits(autojump_clock: MockClock) -> None:
    """Two holds, a read and a mail behind the frontier: all of it in every world, and no release."""
    provider = FakeProvider()
    report = await crash_at_every_commit(grouped(provider), {}, provider=provider, also=all_or_nothing(provider))
    held(report, least=6, ends={"succeeded", "running"}, looked_at=("a group that is committed",))


@pytest.mark.parametrize("raises", [False, True])
async def test_a_group_that_aborts(autojump_clock: MockClock, raises: bool) -> None:
    """A false invariant, or a step that fails before the frontier: every hold is released, and no mail is sent."""
    provider = FakeProvider()
    report = await crash_at_every_commit(
        grouped(provider, holds=False, raises=raises), {}, provider=provider, also=all_or_nothing(provider)
    )
    held(report, least=7, ends={"failed", "running"}, looked_at=("a group that is aborted",))


def by_the_book(provider: FakeProvider) -> Callable[[Undecided], tuple[str, object]]:
    """An operator who knows which order an announced hold was for, and looks whether it is in the book."""
    orders = {
        effect_key(Place(0, Phase.forward, at, attempt), "deed.hold", canonical.encode({"order": str(at + 1)})).hex():
        str(at + 1) for at in (0, 1) for attempt in range(1, 9)
    }  # fmt: skip

    def answer(one: Undecided) -> tuple[str, object]:
        landed = any(row.name == "hold" and row.body["order"] == orders[one.effect] for row in provider.book)
        return ("landed", {"reference": "seen"}) if landed else ("did-not-happen", None)

    return answer


@pytest.mark.parametrize("answered", [False, True])
async def test_a_group_in_doubt(autojump_clock: MockClock, answered: bool) -> None:
    """Nobody knows of one hold: nothing of the group is reversed and nothing is sent. When a person has said what
    became of it the group goes on to its frontier."""
    provider = FakeProvider(honours={"hold": False})
    provider.tell("hold", "ok", "in_doubt_after_landing")
    checkout = grouped(provider, recovery=Recovery.REQUIRES_OPERATOR)

    def untouched(kept: Any, store: Any) -> Any:
        deeds = {row.name for row in provider.book}
        if kept.row.status == "quarantined" and deeds & {"release", "mail"}:
            yield f"in doubt, and the book says {sorted(deeds)}"

    report = await crash_at_every_commit(
        checkout, {}, provider=provider, also=untouched, inside_units=False,
        operator=by_the_book(provider) if answered else None,
        as_well=() if answered else ("quarantined", "succeeded"),
    )  # fmt: skip
    looked_at = ("a group that is committed",) if answered else ()
    held(report, least=5, ends={"succeeded"} if answered else {"quarantined", "succeeded"}, looked_at=looked_at)
    assert report.outcome.status == ("succeeded" if answered else "quarantined")


async def test_a_group_across_a_wait(autojump_clock: MockClock) -> None:
    """It is rebuilt from the journal when the run wakes, and commits."""
    provider = FakeProvider()
    report = await crash_at_every_commit(
        grouped(provider, days=TWO_DAYS), {}, provider=provider, also=all_or_nothing(provider)
    )
    looked_at = ("a group that is committed", "timers are the open waits")
    held(report, least=8, ends={"succeeded", "running"}, looked_at=looked_at)


async def test_a_group_cancelled_across_a_wait(autojump_clock: MockClock) -> None:
    """Its members are taken back in its own step; nothing is left for the unwind."""
    provider = FakeProvider()
    report = await crash_at_every_commit(
        grouped(provider, days=TWO_DAYS), {}, provider=provider, after=cancelled_after, as_well=("succeeded",),
        also=all_or_nothing(provider),
    )  # fmt: skip
    looked_at = ("a group that is aborted", "nothing stands under a cancelled run")
    held(report, least=9, ends={"cancelled", "succeeded", "running"}, looked_at=looked_at)
    assert report.outcome.status == "cancelled"


@pytest.mark.parametrize("rows", [0, 1])
async def test_a_group_with_an_atomic_member(autojump_clock: MockClock, rows: int) -> None:
    """The row and the record that says so are one commit: both are there in every world, or neither is. With a row in
    its way the member is refused, and the group is taken back."""
    provider = FakeProvider()

    async def prepare(plane: Plane) -> None:
        await with_entries(plane)
        if rows:
            await plane.writer.do(lambda tx: tx.run(
                "CREATE TRIGGER app_no BEFORE INSERT ON app_entries BEGIN SELECT raise(ABORT, 'closed'); END"
            ))  # fmt: skip

    def together(kept: Any, store: Any) -> Any:
        yield from all_or_nothing(provider)(kept, store)
        connection = apsw.Connection(str(store), flags=apsw.SQLITE_OPEN_READONLY)
        count = next(iter(connection.execute("SELECT count(*) FROM app_entries")))[0]
        connection.close()
        started = {item.record.effect_key for item in kept.stored if getattr(item.record, "role", None) == "atomic"}
        done = sum(type(item.record).__name__ == "EffectDone" and item.record.effect_key in started
                   for item in kept.stored)  # fmt: skip
        if count != done or (kept.row.status == "succeeded") != bool(count):
            yield f"{count} rows, {done} records that say so, and the run is {kept.row.status}"

    report = await crash_at_every_commit(
        grouped(provider, atomic=True), {}, provider=provider, prepare=prepare, also=together, inside_units=False
    )
    end = "failed" if rows else "succeeded"
    looked_at = ("a group that is aborted" if rows else "a group that is committed",)
    held(report, least=7, ends={end}, looked_at=looked_at)


# --- ceilings --------------------------------------------------------------------------------------------------------


async def test_an_exhausted_run_that_is_given_more(autojump_clock: MockClock) -> None:
    """Refused at the third effect, raised by a person, and walked to its end; nothing of it is asked twice."""
    provider = FakeProvider()
    pay = paying(provider)

    @skill("step.spend", budget=Budget(max_effects=3))
    async def spend(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return [await cx.do(pay(order=str(at))) for at in range(5)]

    async def raised(plane: Plane, outcome: Outcome) -> None:
        assert outcome.status == "exhausted"
        assert (await plane.raise_ceilings(outcome.run, {"max_effects": 9}, ME, "go on")).status == "succeeded"

    report = await crash_at_every_commit(spend, {}, provider=provider, after=raised)
    held(report, least=8, ends={"succeeded", "exhausted", "running"}, looked_at=("the ledger is the records",))
    assert report.outcome.status == "succeeded"


async def test_an_exhausted_run_that_is_cancelled(autojump_clock: MockClock) -> None:
    """Its work is taken back over its ceiling: undoing is exempt, and counted."""
    provider = FakeProvider()
    order, beside = chain("order.dear", step(provider, "reserve"), step(provider, "hold"), step(provider, "ship"))
    report = await crash_at_every_commit(
        order, {}, beside=beside, provider=provider, after=cancelled_after, asked={"budget": {"max_effects": 2}},
        also=lambda kept, store: [] if kept.row.status == "exhausted" else taken_back(provider, *PAIRS)(kept, store),
    )  # fmt: skip
    looked_at = (*UNWOUND, "the ledger is the records", "nothing stands under a cancelled run")
    held(report, least=9, ends={"cancelled", "exhausted", "running"}, looked_at=looked_at)
    assert report.outcome.status == "cancelled"
