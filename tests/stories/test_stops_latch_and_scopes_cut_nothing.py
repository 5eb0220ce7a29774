"""P10 to P13: how steps and calls end, what cuts an act, and what code may do after it was told to stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from agentplane import EffectFailed, Recovery, RetryPolicy, effect, skill
from agentplane.core.dispositions import Disposition
from agentplane.core.errors import InvalidRequest
from agentplane.core.records import EffectDone, EffectStarted, StepFinished
from agentplane.core.records import EffectFailed as Failed
from agentplane.testkit import FakeProvider
from stories.scenes import (
    ME,
    Points,
    frozen_at,
    history,
    inline,
    kinds,
    of_kind,
    one_call,
    opened,
    paying,
    records,
    recovered,
    undecided,
    until,
)


async def test_a_timeout_in_skill_code_cuts_no_act(autojump_clock: MockClock, tmp_path: Path) -> None:
    """P11: the act runs to its end and is recorded, whatever deadline the skill stood under."""
    provider = FakeProvider()

    @effect("pay.slow", recovery=Recovery.IDEMPOTENT)
    async def slow(call: Any) -> Any:
        await trio.sleep(5)
        return await provider.call(call, "slow", {})

    @skill("story.run")
    async def impatient(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        with trio.move_on_after(1):
            await cx.do(slow())
        return "went on"

    async with opened(tmp_path, impatient) as plane:
        outcome = await plane.run("story.run", {})
        assert (outcome.status, outcome.output) == ("succeeded", "went on")
        assert len(of_kind(plane, outcome.run, EffectDone)) == 1 and len(provider.book) == 1
        assert (await plane.replay(outcome.run, strict=True)).verdict == "verified"


async def test_a_timeout_in_skill_code_cuts_no_question_to_the_provider(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """P11: a call that is being decided is decided, so that no success stands over a payment in doubt."""
    provider = FakeProvider(honours_keys=False)
    provider.tell("refund", "in_doubt_before")
    pay = paying(provider, recovery=Recovery.RECONCILE, probed=True)

    @skill("story.run")
    async def impatient(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        with trio.move_on_after(0.5):
            await cx.do(pay())
        return "went on"

    async with opened(tmp_path, impatient) as plane:
        outcome = await plane.run("story.run", {})
        assert outcome.status == "succeeded"
        assert len(provider.book) == 1, "asked, not found, and paid"
        assert not undecided(plane, outcome.run)


async def test_the_effects_own_timeout_does_cut_it(autojump_clock: MockClock, tmp_path: Path) -> None:
    """P11: ``timeout_s`` ends the attempt, as doubt."""
    provider = FakeProvider()
    provider.tell("refund", "hang_after_landing")
    pay = paying(provider, timeout_s=3)
    async with opened(tmp_path, one_call(pay)) as plane:
        outcome = await plane.run("story.run", {})
        assert outcome.status == "succeeded" and len(provider.book) == 1
        first = of_kind(plane, outcome.run, Failed)[0]
        assert first.disposition is Disposition.IN_DOUBT and "3 s" in first.fault.message


async def test_siblings_run_to_their_end_and_the_worst_is_raised(autojump_clock: MockClock, tmp_path: Path) -> None:
    """P10: nobody is cancelled because a sibling failed; of two failures that of the lowest ordinal is raised."""
    provider = FakeProvider()
    provider.tell("first", "ok")
    provider.tell("second", "refused_for_good")
    provider.tell("third", "refused_for_good")
    calls = [paying(provider, f"pay.{name}") for name in ("first", "second", "third", "fourth")]
    raised: list[EffectFailed] = []

    @skill("story.run")
    async def together(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        try:
            await cx.gather(*[call() for call in calls])
        except EffectFailed as error:
            raised.append(error)
        return None

    async with opened(tmp_path, together) as plane:
        outcome = await plane.run("story.run", {})
        assert outcome.status == "succeeded"
        assert [error.ordinal for error in raised] == [1]
        assert {row.name for row in provider.book} == {"first", "fourth"}
        assert len(of_kind(plane, outcome.run, EffectStarted)) == 4
        assert len(of_kind(plane, outcome.run, EffectDone)) + len(of_kind(plane, outcome.run, Failed)) == 4


async def test_doubt_of_one_member_stands_before_the_failure_of_another(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """P10, S14: the most severe ending is raised: a quarantine cannot be caught in the guise of a failure."""
    provider = FakeProvider()
    provider.tell("early", "refused_for_good")
    provider.tell("late", "in_doubt_before")
    early, late = paying(provider, "pay.early"), paying(provider, "pay.late", recovery=Recovery.REQUIRES_OPERATOR)

    @skill("story.run")
    async def together(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        try:
            return await cx.gather(early(), late())
        except EffectFailed:
            return "caught"

    async with opened(tmp_path, together) as plane:
        outcome = await plane.run("story.run", {})
        assert outcome.status == "quarantined"
        assert [one.kind for one in undecided(plane, outcome.run)] == ["pay.late"]


async def test_a_stop_cannot_be_swallowed(autojump_clock: MockClock, tmp_path: Path) -> None:
    """P12: after a stop every call raises it again, whatever the skill caught, and nothing more is recorded."""
    provider = FakeProvider()
    provider.tell("refund", "in_doubt_before")
    pay = paying(provider, recovery=Recovery.REQUIRES_OPERATOR)
    caught: list[BaseException] = []

    @skill("story.run")
    async def stubborn(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        for _ in range(3):
            try:
                await cx.do(pay(order="1"))
            except BaseException as error:
                caught.append(error)
        return "all is well"

    async with opened(tmp_path, stubborn) as plane:
        outcome = await plane.run("story.run", {})
        assert outcome.status == "quarantined"
        assert len(caught) == 3 and len({id(error) for error in caught}) == 1
        assert len(provider.asked) == 1
        assert not of_kind(plane, outcome.run, StepFinished)


async def test_a_stop_inside_a_nursery_of_the_skill_ends_the_step_alone(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """P10: wrapped in a group by the skill's own nursery, a stop is still that step's ending and not the plane's."""
    provider = FakeProvider()
    provider.tell("refund", "in_doubt_before")
    pay = paying(provider, recovery=Recovery.REQUIRES_OPERATOR)

    @skill("story.run")
    async def nested(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        async with trio.open_nursery():
            await cx.do(pay())

    other = one_call(paying(provider, "pay.other"), "story.other")
    async with opened(tmp_path, nested, other) as plane:
        outcome = await plane.run("story.run", {})
        assert outcome.status == "quarantined" and outcome.code == "undecided"
        assert (await plane.run("story.other", {})).status == "succeeded"


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit(), ValueError("no")])
async def test_whatever_a_skill_raises_fails_its_step_alone(
    autojump_clock: MockClock, tmp_path: Path, error: BaseException
) -> None:
    """P10: a skill that leaves the process, or tries to, fails; the plane goes on."""

    @skill("story.run")
    async def leaving(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        raise error

    async with opened(tmp_path, leaving) as plane:
        outcome = await plane.run("story.run", {})
        assert outcome.status == "failed"
        assert of_kind(plane, outcome.run, StepFinished)[0].fault.type == type(error).__name__


@pytest.mark.parametrize("error", [SystemExit(3), BaseExceptionGroup("many", [GeneratorExit()])])
async def test_whatever_an_effect_raises_is_doubt(
    autojump_clock: MockClock, tmp_path: Path, error: BaseException
) -> None:
    """No ending of an act leaves its announcement without an outcome in a process that goes on."""

    @effect("pay.leave", recovery=Recovery.REQUIRES_OPERATOR)
    async def leave(call: Any, *, order: str) -> Any:
        raise error

    async with opened(tmp_path, one_call(leave)) as plane:
        outcome = await plane.run("story.run", {})
        assert outcome.status == "quarantined"
        assert of_kind(plane, outcome.run, Failed)[0].disposition is Disposition.IN_DOUBT


async def test_cx_is_of_one_task(autojump_clock: MockClock, tmp_path: Path) -> None:
    """P12: a call from another task, from an effect's body, or after the step's end is refused and takes no place."""
    provider = FakeProvider()
    pay = paying(provider)
    said: list[str] = []
    kept: list[Any] = []

    @effect("pay.nested", recovery=Recovery.IDEMPOTENT)
    async def nested(call: Any) -> Any:
        try:
            await kept[0].do(pay(order="inner"))
        except InvalidRequest as error:
            said.append(error.message)

    @skill("story.run")
    async def sharing(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        kept.append(cx)

        async def beside() -> None:
            try:
                await cx.do(pay(order="beside"))
            except InvalidRequest as error:
                said.append(error.message)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(beside)
        await cx.do(nested())
        return await cx.do(pay(order="own"))

    async with opened(tmp_path, sharing) as plane:
        outcome = await plane.run("story.run", {})
        assert outcome.status == "succeeded", outcome
        with pytest.raises(InvalidRequest):
            await kept[0].do(pay(order="after"))
        assert [row.body["order"] for row in provider.book] == ["own"]
        assert len(said) == 2 and "task" in said[0] and "in use" in said[1]
        assert [series.spot.ordinal for series in history(plane, outcome.run).series.values()] == [0, 1]


async def test_a_finally_of_a_cut_run_announces_nothing(autojump_clock: MockClock, tmp_path: Path) -> None:
    """P11, P12: cleaning up under a cut run writes nothing, so the next walk finds what the first one left."""
    provider = FakeProvider()
    provider.tell("refund", "hang")
    pay, undo = paying(provider), paying(provider, "pay.undo")

    @skill("story.run")
    async def tidy(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        try:
            return await cx.do(pay())
        finally:
            await cx.do(undo())

    async with opened(tmp_path, tidy) as plane:
        with trio.move_on_after(1):
            await plane.run("story.run", {})
        run = next(iter(plane.runs.live))
        plane.runs.live[run].stop()
        await plane.runs.wait_idle()
        assert kinds(plane, run)[-1] == "EffectStarted"
        assert not [row for row in provider.asked if row.name == "undo"]
        where = frozen_at(plane, tmp_path)
    async with opened(where, tidy, recover=False) as plane:
        await plane.state.release_held(ME, "a copy of a test")
        await recovered(plane)
        assert (await plane.outcome(run)).status == "succeeded"
        assert [row.name for row in provider.book] == ["refund", "undo"]


async def test_a_finally_while_the_plane_closes_announces_nothing(autojump_clock: MockClock, tmp_path: Path) -> None:
    """The same when the cancellation comes from outside everything, while the skill waits for something of its own."""
    provider = FakeProvider()
    undo = paying(provider, "pay.undo")
    waiting = trio.Event()

    @skill("story.run")
    async def tidy(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        await cx.now()
        waiting.set()
        try:
            await trio.sleep_forever()
        finally:
            await cx.do(undo())

    for _ in range(8):  # whichever task hears of it first
        waiting = trio.Event()
        async with opened(tmp_path, tidy, recover=False) as plane:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(plane.run, "story.run", {})
                await waiting.wait()
                run = next(iter(plane.runs.live))
                nursery.cancel_scope.cancel()
        async with opened(tmp_path, tidy, recover=False) as plane:
            assert "pay.undo" not in [started.descriptor.kind for started in of_kind(plane, run, EffectStarted)]
    assert not provider.asked


async def test_a_shield_of_the_skill_does_not_outlive_the_run(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A skill that shields itself is stopped at its next call all the same, and gets no made-up result."""
    provider = FakeProvider()
    provider.tell("refund", "hang")
    pay = paying(provider)
    results: list[Any] = []

    @skill("story.run")
    async def shielded(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        with trio.CancelScope(shield=True):
            results.append(await cx.gather(pay(order="1"), pay(order="2")))
        return results

    async with opened(tmp_path, shielded) as plane:
        with trio.move_on_after(1):
            await plane.run("story.run", {})
        run = next(iter(plane.runs.live))
        plane.runs.live[run].stop()
        await plane.runs.wait_idle()
        assert results == []
        assert not of_kind(plane, run, StepFinished)


async def test_an_announcement_that_nobody_waits_for_any_more_is_withdrawn(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """P13: cut before the writer has it, the announcement was never made."""
    provider = FakeProvider()
    points = Points()
    async with opened(tmp_path, one_call(paying(provider)), observe=points) as plane:
        points.at["effect.announcing"] = inline(plane).hold
        async with trio.open_nursery() as nursery:
            nursery.start_soon(plane.run, "story.run", {})
            await until(lambda: points.count("effect.announcing") == 1)
            await until(lambda: len(inline(plane)._queue) > 0)
            run = next(iter(plane.runs.live))
            plane.runs.live[run].stop()
            await plane.runs.wait_idle()
            nursery.cancel_scope.cancel()
        inline(plane).let_go()
        await plane.writer.do(lambda tx: None)
        assert "EffectStarted" not in kinds(plane, run)
        assert not provider.asked


async def test_an_announcement_that_the_writer_has_is_said_never_to_have_been_dispatched(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """P13: the one record that a cancellation may cause; it is not one of the policy's attempts."""
    provider = FakeProvider()
    points = Points()
    once = one_call(paying(provider, retry=RetryPolicy(max_attempts=1)))
    async with opened(tmp_path, once, observe=points) as plane:
        points.at["effect.announcing"] = inline(plane).hold
        async with trio.open_nursery() as nursery:
            nursery.start_soon(plane.run, "story.run", {})
            await until(lambda: points.count("effect.announcing") == 1)
            await until(lambda: len(inline(plane)._queue) > 0)
            inline(plane).take_all()
            run = next(iter(plane.runs.live))
            plane.runs.live[run].stop()
            await plane.runs.wait_idle()
            nursery.cancel_scope.cancel()
        points.at.clear()
        inline(plane).let_go()
        await plane.writer.do(lambda tx: None)
        assert kinds(plane, run)[-2:] == ["EffectStarted", "EffectFailed"]
        last = records(plane, run)[-1]
        assert isinstance(last, Failed) and last.never_dispatched
        assert last.disposition is Disposition.DID_NOT_HAPPEN and not provider.asked
    async with opened(tmp_path, once, recover=False) as plane:
        await recovered(plane)
        assert (await plane.outcome(run)).status == "succeeded"
        assert len(provider.book) == 1
