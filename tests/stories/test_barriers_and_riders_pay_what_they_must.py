"""W5, W7, W8: which records are waited for, what a refused rider does to its run, and what a local effect costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from agentplane import Recovery, effect, skill
from agentplane.core.errors import InvariantViolation
from agentplane.core.records import EffectDone, EffectStarted
from agentplane.journal.units import Unit
from agentplane.testkit import FakeProvider
from stories.scenes import AT_ONCE, Points, history, kinds, one_call, opened, paying, recovered


class Waited:
    """Which records were queued as barriers, by kind."""

    def __init__(self, plane: Any) -> None:
        self.barriers = 0
        self.riders = 0
        submit = plane.writer.submit

        def counting(unit: Unit[Any]) -> None:
            self.barriers += unit.barrier
            self.riders += not unit.barrier
            submit(unit)

        plane.writer.submit = counting


@pytest.mark.parametrize(
    ("recovery", "probed", "barriers"),
    [
        (Recovery.IDEMPOTENT, False, 1), (Recovery.RETRY, False, 1), (Recovery.RECONCILE, True, 1),
        (Recovery.RECONCILE, False, 2), (Recovery.REQUIRES_OPERATOR, False, 2), (Recovery.REQUIRES_OPERATOR, True, 2),
    ],
)  # fmt: skip
async def test_an_outcome_that_only_a_person_could_supply_is_a_barrier(
    autojump_clock: MockClock, tmp_path: Path, recovery: Recovery, probed: bool, barriers: int
) -> None:
    """W5: losing it would cost a person; every other outcome rides.

    Spec: EffectProtocol.OperatorOutcomeIsDurable.
    """
    once = one_call(paying(FakeProvider(), recovery=recovery, probed=probed))
    async with opened(tmp_path, once) as plane:
        waited = Waited(plane)
        assert (await plane.run("story.run", {})).status == "succeeded"
        assert waited.barriers == 2 + barriers, "admission and conclusion are barriers of their own"


async def test_a_read_rides_whatever_it_declares(autojump_clock: MockClock, tmp_path: Path) -> None:
    """What changes nothing outside costs nobody anything."""

    @effect("pay.look", mutates=False, recovery=Recovery.REQUIRES_OPERATOR)
    async def look(call: Any, *, order: str) -> Any:
        return 1

    async with opened(tmp_path, one_call(look)) as plane:
        waited = Waited(plane)
        assert (await plane.run("story.run", {})).status == "succeeded"
        assert waited.barriers == 3


async def test_a_local_effect_pays_no_commit(tmp_path: Path) -> None:
    """W5: a thousand of them share the commits of what stands around them; real writer, counted."""
    from agentplane.engine.plane import Plane

    @effect("rules.score", local=True)
    async def score(call: Any, *, order: str) -> Any:
        return len(order)

    @skill("story.run")
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        total = 0
        for index in range(1_000):
            total += await cx.do(score(order=str(index)))
        return total + len([await cx.now() for _ in range(10)])

    async with Plane.open(tmp_path / "plane.db", skills=[body]) as plane:
        before = plane.writer.commits
        outcome = await plane.run("story.run", {})
        assert outcome.status == "succeeded" and outcome.output == 2_890 + 10
        assert plane.writer.commits - before < 25, "commits come of what was held too long, not of effects"
        assert kinds_count(plane, outcome.run) == 1_010


def kinds_count(plane: Any, run: str) -> int:
    return kinds(plane, run).count("EffectDone")


async def test_a_sequential_run_pays_one_commit_an_effect(tmp_path: Path) -> None:
    """W5, W8: outcome and next announcement share a commit; real writer, counted."""
    from agentplane.engine.plane import Plane

    provider = FakeProvider()
    pay = paying(provider)

    @skill("story.run")
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        for index in range(200):
            await cx.do(pay(order=str(index)))

    async with Plane.open(tmp_path / "plane.db", skills=[body]) as plane:
        before = plane.writer.commits
        await plane.run("story.run", {})
        assert plane.writer.commits - before <= 400, "never two an effect"


async def test_no_act_begins_before_its_announcement_is_durable(autojump_clock: MockClock, tmp_path: Path) -> None:
    """W6, S1: at every act, a reader of committed rows finds the announcement, and every outcome queued before it.

    Spec: EffectProtocol.AnnouncedBeforeActed.
    """
    from agentplane.engine.plane import Plane

    provider = FakeProvider()
    pay = paying(provider)
    found: list[list[str]] = []
    planes: list[Plane] = []

    def look(point: str, **fields: object) -> None:
        if point == "effect.acting":
            found.append(kinds(planes[0], str(fields["run"])))

    @skill("story.run")
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        await cx.uuid()
        return [await cx.do(pay(order="1")), await cx.do(pay(order="2"))]

    async with opened(tmp_path, body, observe=look) as plane:
        planes.append(plane)
        await plane.run("story.run", {})
    assert [seen[-1] for seen in found] == ["EffectStarted", "EffectStarted"]
    assert found[1].count("EffectDone") == 2


async def test_a_refused_rider_latches_its_run_alone(autojump_clock: MockClock, tmp_path: Path) -> None:
    """W7: nothing of the run is written after it, the run is named, and the plane goes on.

    Spec: EffectProtocol.NothingFollowsALostRider.
    """
    provider = FakeProvider()
    pay = paying(provider)
    after: list[BaseException] = []

    @skill("story.run")
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        for name in ("1", "2", "3"):
            try:
                await cx.do(pay(order=name))
            except BaseException as error:
                after.append(error)
                if isinstance(error, trio.Cancelled):
                    raise

    other = one_call(pay, "story.other")
    async with opened(tmp_path, body, other) as plane:
        submit = plane.writer.submit

        def refusing(unit: Unit[Any]) -> None:
            if not unit.barrier and provider.book and not refused:
                refused.append(unit)

                def no(_: Any) -> Any:
                    raise InvariantViolation("INV-99 a rider of a test")

                unit.body = no
            submit(unit)

        refused: list[Unit[Any]] = []
        plane.writer.submit = refusing  # type: ignore[method-assign]
        outcome = await plane.run("story.run", {})
        assert refused and after
        assert (outcome.status, outcome.code) == ("quarantined", "invariant")
        assert len(provider.book) == 1 and "INV-99" in str(outcome.reason)
        assert (await plane.run("story.other", {})).status == "succeeded"


async def test_a_run_waits_when_too_much_of_it_is_uncommitted(autojump_clock: MockClock, tmp_path: Path) -> None:
    """W8: a loop of local effects does not outrun the disk without bound."""
    from agentplane.core import bounds
    from stories.scenes import inline, until

    most = [0]

    @skill("story.run")
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        for _ in range(bounds.RIDERS_MAX * 2):
            await cx.uuid()

    points = Points()
    async with opened(tmp_path, body, observe=points) as plane:
        from agentplane.engine.admission import Wanted

        points.at["step.started"] = inline(plane).hold
        admission = await plane.start(Wanted(capability="story.run", input={}))
        for _ in range(bounds.RIDERS_MAX * 8):
            await trio.lowlevel.checkpoint()
            most[0] = max(most[0], plane.runs.live[admission.run].log.uncommitted)
        assert bounds.RIDERS_MAX - 2 <= most[0] <= bounds.RIDERS_MAX
        points.at.clear()
        inline(plane).let_go()
        await until(lambda: not plane.runs.live)
        assert (await plane.outcome(admission.run)).status == "succeeded"


async def test_a_success_does_not_stand_over_an_announcement(autojump_clock: MockClock, tmp_path: Path) -> None:
    """P14: the unit itself refuses it, whatever the engine believed.

    Spec: EffectProtocol.SuccessMeansComplete.
    """
    from agentplane.core.records import StepFinished
    from agentplane.engine.linking import link
    from agentplane.journal import appends, leases
    from agentplane.journal.appends import Head

    provider = FakeProvider()
    once = one_call(paying(provider, retry=AT_ONCE))
    async with opened(tmp_path, once) as plane:
        outcome = await plane.run("story.run", {})
        started = next(iter(history(plane, outcome.run).by_key.values()))[1].started
    assert isinstance(started, EffectStarted) and EffectDone
    from agentplane.journal import lists
    from agentplane.testkit.worlds import replant

    async with opened(tmp_path, once) as plane:
        stored = plane.store.readers.read(lambda tx: lists.whole_history(tx, outcome.run))[:4]
    replant(tmp_path / "half" / "plane.db", stored, now_ms=1_800_000_000_000)
    async with opened(tmp_path / "half", once, recover=False) as plane:
        from agentplane.core.errors import OpenEffects

        def unit(tx: Any) -> None:
            lease = leases.acquire(tx, outcome.run, "me", "me", 30_000)
            head = Head(stored[-1].record.seq, stored[-1].hash)
            specs: Any = [(StepFinished, {"step": 0, "outcome": "succeeded"})]
            appends.append(tx, outcome.run, lease.epoch, head, link(outcome.run, lease.epoch, head, specs, tx.now_ms))

        with pytest.raises(OpenEffects):
            await plane.writer.do(unit)
        await recovered(plane)
        assert (await plane.outcome(outcome.run)).status == "succeeded"
