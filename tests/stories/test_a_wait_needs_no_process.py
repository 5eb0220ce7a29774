"""A run that waits is rows and no process: it is woken at its instant, by one unit, and never by a clock that lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from agentplane import skill
from agentplane.authoring.plan import node, plan
from agentplane.authoring.skill import Skill
from agentplane.core.errors import InvalidRequest
from agentplane.core.records import EffectDone, EffectFailed, EffectStarted, RunSuspended
from agentplane.engine.admission import Wanted
from agentplane.engine.plane import Plane
from agentplane.journal import timers
from agentplane.testkit import FakeProvider
from agentplane.testkit.inline import trio_now_ms
from agentplane.testkit.worlds import fit_mark
from stories.scenes import ME, frozen_at, kinds, of_kind, opened, paying, recovered

HOUR_MS = 3_600_000


def waiting(name: str = "story.run", hours: float = 1, provider: FakeProvider | None = None) -> Skill:
    """A skill that waits between two payments, and answers the instant it waited for."""
    pay = paying(provider or FakeProvider())

    @skill(name)
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        await cx.do(pay(order="before"))
        due = await cx.sleep(hours=hours)
        await cx.do(pay(order="after"))
        return due

    return body


def armed(plane: Plane, run: str) -> list[timers.Timer]:
    return plane.store.readers.read(lambda tx: timers.of_run(tx, run))


def leased(plane: Plane, run: str) -> bool:
    row = plane.store.readers.read(lambda tx: tx.one("SELECT owner FROM lease WHERE run = ?", run))
    return row is not None and row[0] is not None


async def suspended(plane: Plane, capability: str = "story.run") -> tuple[str, int]:
    """A run that waits, and when its first timer is due."""
    outcome = await plane.run(capability, {})
    assert outcome.status == "suspended", outcome
    return outcome.run, armed(plane, outcome.run)[0].due_ms


async def ticked(plane: Plane, now_ms: int) -> list[str]:
    """The runs that one tick woke, once they rest again."""
    fired = (await plane.sweep.tick(now_ms)).fired
    await plane.runs.wait_idle()
    return fired


async def test_a_wait_fires_at_its_instant_and_not_before(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S30: Wait, timer, status and the freed lease are one unit; a tick is a function of the now that it is given.

    Spec: Timers.RecordedWakeIsTheDueInstant.
    """
    async with opened(tmp_path, waiting(), recover=False) as plane:
        run, due_ms = await suspended(plane)
        assert due_ms == trio_now_ms() + HOUR_MS
        assert kinds(plane, run)[-2:] == ["EffectStarted", "RunSuspended"] and not leased(plane, run)
        assert await ticked(plane, due_ms - 1) == [] and len(armed(plane, run)) == 1
        assert await ticked(plane, due_ms) == [run]
        outcome = await plane.outcome(run)
        assert (outcome.status, outcome.output) == ("succeeded", due_ms) and not armed(plane, run)
        assert (await plane.replay(run, strict=True)).verdict == "verified"


async def test_a_plane_wakes_its_runs_by_itself(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Nobody asks: the plane's own sweep looks when the earliest timer is due."""
    async with opened(tmp_path, waiting(hours=0.01)) as plane:
        run, _ = await suspended(plane)
        began = trio.current_time()
        while (await plane.outcome(run)).status != "succeeded":
            await trio.sleep(0.5)
            assert trio.current_time() - began < 40


async def test_two_waits_of_two_steps_fire_one_by_one(autojump_clock: MockClock, tmp_path: Path) -> None:
    """One suspension, two timers; the first that is due wakes the run, and the other stays armed and announced once."""
    both = plan("story.both", [node("a", "story.a"), node("b", "story.b")])
    async with opened(tmp_path, both, waiting("story.a", 1), waiting("story.b", 2), recover=False) as plane:
        run, first_ms = await suspended(plane, "story.both")
        assert [timer.due_ms - first_ms for timer in armed(plane, run)] == [0, HOUR_MS]
        assert await ticked(plane, first_ms) == [run]
        assert (await plane.outcome(run)).status == "suspended"
        assert [timer.due_ms - first_ms for timer in armed(plane, run)] == [HOUR_MS]
        assert await ticked(plane, first_ms + HOUR_MS) == [run]
        assert (await plane.outcome(run)).status == "succeeded"
        waits = [one for one in of_kind(plane, run, EffectStarted) if one.descriptor.kind == "timer.sleep"]
        assert len(waits) == 2 and len(of_kind(plane, run, RunSuspended)) == 2


async def test_a_wait_that_is_due_already_suspends_nothing(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S31: The unit that would suspend looks first: the wait has its outcome, and the run goes on without a pause."""

    @skill("story.run")
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return [await cx.sleep_until(1_000), await cx.sleep(seconds=0)]

    async with opened(tmp_path, body, recover=False) as plane:
        outcome = await plane.run("story.run", {})
        assert outcome.status == "succeeded" and outcome.output[0] == 1_000
        assert "RunSuspended" not in kinds(plane, outcome.run) and not armed(plane, outcome.run)
        assert (await plane.replay(outcome.run, strict=True)).verdict == "verified"


async def test_under_a_suspect_clock_nothing_fires(autojump_clock: MockClock, tmp_path: Path) -> None:
    """L3, S33: neither the sweep nor the unit that suspends believes it; a person lets go, and what is due fires
    then."""

    @skill("story.past")
    async def past(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return await cx.sleep_until(1_000)

    async with opened(tmp_path, waiting(), past, recover=False) as plane:
        run, due_ms = await suspended(plane)
        plane.world.clock_suspect = True
        other, _ = await suspended(plane, "story.past")
        assert await ticked(plane, due_ms) == []
        plane.world.clock_suspect = False
        assert set(await ticked(plane, due_ms)) == {run, other}
        assert (await plane.outcome(other)).status == "succeeded"


async def test_a_paused_plane_fires_nothing(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S33: What falls due under a pause waits for the person who paused."""
    async with opened(tmp_path, waiting(hours=0.01)) as plane:
        run, _ = await suspended(plane)
        await plane.state.pause(ME, "an incident")
        await trio.sleep(120)
        assert (await plane.outcome(run)).status == "suspended" and len(armed(plane, run)) == 1
        await plane.state.release_paused(ME, "it is over")
        plane.begin_recovery()
        await trio.sleep(2)
        assert (await plane.outcome(run)).status == "succeeded"


async def test_what_may_not_fire_is_looked_at_once_a_tick(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A timer that is due and must wait makes no hot loop of the sweep."""
    async with opened(tmp_path, waiting(hours=0.01)) as plane:
        await suspended(plane)
        await plane.state.pause(ME, "an incident")
        await trio.sleep(60)
        looks = 0
        halted = plane.sweep.waker.halted

        def counted() -> bool:
            nonlocal looks
            looks += 1
            return halted()

        plane.sweep.waker.halted = counted
        await trio.sleep(30)
        assert 25 < looks < 40


async def test_a_draining_plane_fires_nothing(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S33: A wait that falls due while the plane drains is the next process's."""
    async with opened(tmp_path, waiting(hours=0.01)) as plane:
        run, _ = await suspended(plane)
        await plane.drain(1)
        await trio.sleep(120)
        assert (await plane.outcome(run)).status == "suspended"
    async with opened(tmp_path, waiting(hours=0.01)) as plane:
        await trio.sleep(2)
        assert (await plane.outcome(run)).status == "succeeded"


async def test_a_held_store_fires_nothing(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S33: A copy that came back holds what waits in it too; let go, it fires."""
    async with opened(tmp_path, waiting(hours=0.01)) as plane:
        run, _ = await suspended(plane)
        copy = frozen_at(plane, tmp_path, "restored")
    async with opened(copy, waiting(hours=0.01)) as plane:
        assert plane.state.held is not None and not plane.state.may_run(run)
        await trio.sleep(120)
        assert (await plane.outcome(run)).status == "suspended"
        await plane.state.release_held(ME, "the original is gone")
        plane.begin_recovery()
        await trio.sleep(2)
        assert (await plane.outcome(run)).status == "succeeded"


async def test_a_wait_whose_code_is_missing_is_passed_over(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S34: It keeps its timer for a build that has the code, and stands before nobody."""
    async with opened(tmp_path, waiting("story.old", 1), waiting("story.new", 2), recover=False) as plane:
        old, _ = await suspended(plane, "story.old")
        new, due_ms = await suspended(plane, "story.new")
    async with opened(tmp_path, waiting("story.new", 2), recover=False) as plane:
        assert await ticked(plane, due_ms) == [new]
        assert (await plane.outcome(new)).status == "succeeded"
        assert (await plane.outcome(old)).status == "suspended" and len(armed(plane, old)) == 1
        assert not leased(plane, old)
    async with opened(tmp_path, waiting("story.old", 1), recover=False) as plane:
        assert await ticked(plane, due_ms) == [old]
        assert (await plane.outcome(old)).status == "succeeded"


async def test_nobody_is_woken_who_has_ended(autojump_clock: MockClock, tmp_path: Path) -> None:
    """The unit that ends a run ends its waits and takes their timers; a tick finds nothing to append to."""

    @skill("story.run")
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        await cx.sleep(hours=1)

    async with opened(tmp_path, body, recover=False) as plane:
        run, due_ms = await suspended(plane)
        await plane.cancel(run, ME, "not wanted")
        await plane.sweep.tick(trio_now_ms())
        await plane.runs.wait_idle()
        assert (await plane.outcome(run)).status == "cancelled" and not armed(plane, run)
        ended = of_kind(plane, run, EffectFailed)[0]
        assert (ended.fault.code, ended.disposition.value) == ("wait_ended", "did_not_happen")
        before = kinds(plane, run)
        assert await ticked(plane, due_ms) == [] and kinds(plane, run) == before


async def test_a_death_between_wake_and_resume_loses_no_wake(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S32: Claim, lease, outcome and mark are one commit: the next process finds a run that goes on, and wakes it no
    second time."""
    async with opened(tmp_path, waiting(), recover=False) as plane:
        run, due_ms = await suspended(plane)
        timer = armed(plane, run)[0]
        lease = await plane.writer.do(lambda tx: plane.sweep._wake(tx, timer))
        assert lease is not None and (await plane.outcome(run)).status == "running"
        killed = frozen_at(plane, tmp_path)
    fit_mark(killed / "plane.db")
    async with opened(killed, waiting(), recover=False) as plane:
        assert await ticked(plane, due_ms) == []
        await recovered(plane)
        outcome = await plane.outcome(run)
        assert (outcome.status, outcome.output) == ("succeeded", due_ms)
        assert [one.output for one in of_kind(plane, run, EffectDone)].count(due_ms) == 1


async def test_two_ticks_at_once_wake_once(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S32: Whoever takes the row has the run; the other finds nothing."""
    async with opened(tmp_path, waiting(), recover=False) as plane:
        run, due_ms = await suspended(plane)
        fired: list[str] = []

        async def one() -> None:
            fired.extend((await plane.sweep.tick(due_ms)).fired)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one)
            nursery.start_soon(one)
        await plane.runs.wait_idle()
        assert fired == [run] and (await plane.outcome(run)).status == "succeeded"


@pytest.mark.parametrize("seconds", [-1, float("nan"), 10**12])
async def test_what_is_no_wait_is_refused_in_a_sentence(
    autojump_clock: MockClock, tmp_path: Path, seconds: float
) -> None:
    """Nothing is announced for it."""
    said: list[str] = []

    @skill("story.run")
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        for asked in (lambda: cx.sleep(seconds=seconds), lambda: cx.sleep_until("tomorrow")):
            with pytest.raises(InvalidRequest) as refused:
                await asked()
            said.append(refused.value.message)

    async with opened(tmp_path, body) as plane:
        outcome = await plane.run("story.run", {})
        assert outcome.status == "succeeded" and not of_kind(plane, outcome.run, EffectStarted)
        assert len(said) == 2 and all(sentence.startswith("cx.sleep_until takes") or "A sleep takes" in sentence
                                      for sentence in said)  # fmt: skip


async def test_a_plane_at_its_bound_of_runs_takes_no_timer(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A run that waits is none of those that are open: it stands in the way of no admission."""
    async with opened(tmp_path, waiting(), recover=False) as plane:
        plane.max_admitted = 1
        first, _ = await suspended(plane)
        second, _ = await suspended(plane)
        assert first != second
        assert (await plane.start(Wanted(capability="story.run", input={}))).admitted
        await plane.runs.wait_idle()
