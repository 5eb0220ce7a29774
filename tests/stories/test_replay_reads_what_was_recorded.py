"""P16 to P18 and strict replay: history is read back by place, and code that asks otherwise is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from agentplane import Recovery, effect, skill
from agentplane.authoring.skill import Skill
from agentplane.engine.strict import Verdict
from agentplane.journal import lists
from agentplane.testkit import FakeProvider
from agentplane.testkit.worlds import fit_mark, replant
from stories.scenes import ME, all_runs, kinds, one_call, opened, paying, recovered, undecided


def orders(provider: FakeProvider, *names: str, change: str | None = None, ends: str = "return") -> Skill:
    """A skill that pays the orders ``names`` in turn, with a change before the last."""
    pay = paying(provider)

    @skill("story.run")
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        paid = []
        for name in names:
            if change == name and await cx.changed("new-check"):
                await cx.do(pay(order="checked"))
            paid.append(await cx.do(pay(order=name)))
        if ends == "raise":
            raise ValueError("it ended badly")
        return paid

    return body


async def interrupted(tmp_path: Path, old: Skill, keep: int) -> tuple[Path, str]:
    """A store in which the run of ``old`` was killed behind its ``keep``-th record."""
    async with opened(tmp_path, old) as plane:
        outcome = await plane.run("story.run", {})
        stored = plane.store.readers.read(lambda tx: lists.whole_history(tx, outcome.run))
    where = tmp_path / "interrupted"
    replant(where / "plane.db", stored[:keep], now_ms=1_800_000_000_000)
    return where, outcome.run


async def test_a_finished_step_needs_its_code_no_more(autojump_clock: MockClock, tmp_path: Path) -> None:
    """P16: killed between the step's end and the run's, a run concludes in a build that has lost the skill."""
    provider = FakeProvider()
    where, run = await interrupted(tmp_path, orders(provider, "1", "2"), keep=8)
    other = one_call(paying(provider), "story.other")
    async with opened(where, other, recover=False) as plane:
        assert kinds(plane, run)[-1] == "StepFinished"
        await recovered(plane)
        outcome = await plane.outcome(run)
        assert outcome.status == "succeeded" and outcome.output == [{"reference": "ref-1"}, {"reference": "ref-2"}]
        assert len(provider.book) == 2


async def test_an_unfinished_step_waits_for_its_code(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A run whose skill this build lacks is left, named, and stands in nobody's way."""
    provider = FakeProvider()
    where, run = await interrupted(tmp_path, orders(provider, "1", "2"), keep=5)
    other = one_call(paying(provider), "story.other")
    async with opened(where, other, recover=False) as plane:
        plane.recovery.cautious = True
        await recovered(plane)
        assert plane.recovery.last.left == [run]
        assert plane.store.readers.read(lambda tx: lists.get_run(tx, run)).status == "running"
    fit_mark(where / "plane.db")
    async with opened(where, orders(provider, "1", "2"), recover=False) as plane:
        await recovered(plane)
        assert (await plane.outcome(run)).status == "succeeded"


async def test_runs_without_code_do_not_hide_those_with_it(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Abandoned runs that nobody can execute never fill the page that the others are taken from."""
    provider = FakeProvider()
    provider.tell("refund", *["hang"] * 41)
    skills = [one_call(paying(provider), "story.gone"), one_call(paying(provider, "pay.kept"), "story.kept")]
    provider.tell("kept", "hang")
    async with opened(tmp_path, *skills, recover=False) as plane:
        from agentplane.engine.admission import Wanted

        for _ in range(40):
            await plane.start(Wanted(capability="story.gone", input={}))
        kept = await plane.start(Wanted(capability="story.kept", input={}))
        await provider.arrived.wait()
    async with opened(tmp_path, skills[1], recover=False) as plane:
        assert plane.recovery.cautious
        await recovered(plane)
        assert (await plane.outcome(kept.run)).status == "succeeded"
        assert len(plane.recovery.last.left) == 40


@pytest.mark.parametrize(
    ("asks", "says"),
    [
        (("2", "1"), 'ordinal 0: recorded pay.refund({"order":"1"}), asked pay.refund({"order":"2"})'),
        (("1",), "ordinal 1: recorded pay.refund, and the code returned without asking"),
        (("1", "changed"), 'ordinal 1: recorded pay.refund({"order":"2"}), asked pay.refund({"order":"changed"})'),
    ],
)
async def test_code_that_asks_something_else_has_diverged(
    autojump_clock: MockClock, tmp_path: Path, asks: tuple[str, ...], says: str
) -> None:
    """P17, P18, S11: other order, unasked, other arguments: step, ordinal, what was recorded and what was asked."""
    provider = FakeProvider()
    where, run = await interrupted(tmp_path, orders(provider, "1", "2"), keep=7)
    before = len(provider.book)
    async with opened(where, orders(provider, *asks), recover=False) as plane:
        await recovered(plane)
        outcome = await plane.outcome(run)
        assert outcome.status == "quarantined" and outcome.code == "diverged"
        assert says in str(outcome.reason) and "step 0" in str(outcome.reason)
        assert len(provider.book) == before


async def test_divergence_outranks_a_failure(autojump_clock: MockClock, tmp_path: Path) -> None:
    """P17: a step that raises with a recorded effect unasked has diverged, whatever it raised."""
    provider = FakeProvider()
    where, run = await interrupted(tmp_path, orders(provider, "1", "2"), keep=7)
    async with opened(where, orders(provider, "1", ends="raise"), recover=False) as plane:
        await recovered(plane)
        outcome = await plane.outcome(run)
        assert outcome.code == "diverged" and "raised ValueError" in str(outcome.reason)


async def test_a_gather_that_diverged_performs_none_of_its_members(autojump_clock: MockClock, tmp_path: Path) -> None:
    """P17: code that is known to be another's pays nobody beside the place where that showed."""
    provider = FakeProvider()
    pay = paying(provider)

    def side_by_side(*names: str) -> Skill:
        @skill("story.run")
        async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
            return await cx.gather(*[pay(order=name) for name in names])

        return body

    where, run = await interrupted(tmp_path, side_by_side("1"), keep=5)
    before = len(provider.book)
    async with opened(where, side_by_side("other", "2", "3"), recover=False) as plane:
        await recovered(plane)
        assert (await plane.outcome(run)).code == "diverged"
        assert len(provider.book) == before


async def test_a_change_is_taken_by_fresh_runs_only(autojump_clock: MockClock, tmp_path: Path) -> None:
    """P18: a run whose history passed the place goes the old way, a fresh one the new way, and both replay."""
    provider = FakeProvider()
    where, run = await interrupted(tmp_path, orders(provider, "1", "2"), keep=7)
    provider.book.clear()
    new = orders(provider, "1", "2", change="2")
    async with opened(where, new, recover=False) as plane:
        await recovered(plane)
        assert (await plane.outcome(run)).status == "succeeded"
        assert [row.body["order"] for row in provider.book] == []
        assert await plane.replay(run, strict=True) == Verdict(verdict="verified", effects=2)
        fresh = await plane.run("story.run", {})
        assert [row.body["order"] for row in provider.book] == ["1", "checked", "2"]
        assert (await plane.replay(fresh.run, strict=True)).verdict == "verified"


async def test_a_change_at_the_end_does_not_fail_old_runs(autojump_clock: MockClock, tmp_path: Path) -> None:
    """P18: a history that ended passed every later place without it."""
    provider = FakeProvider()
    pay = paying(provider)

    @skill("story.run")
    async def new(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        paid = [await cx.do(pay(order="1"))]
        if await cx.changed("mail-too"):
            await cx.do(pay(order="mail"))
        return paid

    async with opened(tmp_path, orders(provider, "1")) as plane:
        outcome = await plane.run("story.run", {})
    async with opened(tmp_path, new) as plane:
        assert (await plane.replay(outcome.run, strict=True)).verdict == "verified"


async def test_strict_replay_only_reads(autojump_clock: MockClock, tmp_path: Path) -> None:
    """It asks nobody, appends nothing, takes no lease, and finds what a changed build would do otherwise."""
    provider = FakeProvider()
    async with opened(tmp_path, orders(provider, "1", "2")) as plane:
        outcome = await plane.run("story.run", {})
        commits, asked = plane.writer.commits, len(provider.asked)
        assert await plane.replay(outcome.run, strict=True) == Verdict(verdict="verified", effects=2)
        assert (plane.writer.commits, len(provider.asked)) == (commits, asked)
    for other, says in (
        (orders(provider, "1"), "without asking"),
        (orders(provider, "1", "2", "3"), "the history has nothing there"),
        (orders(provider, "1", "2", ends="raise"), "ended failed, recorded succeeded"),
    ):
        async with opened(tmp_path, other) as plane:
            commits = plane.writer.commits
            verdict = await plane.replay(outcome.run, strict=True)
            assert isinstance(verdict, Verdict) and verdict.verdict == "diverged"
            assert says in str(verdict.reason) and plane.writer.commits == commits


async def test_strict_replay_says_when_it_cannot(autojump_clock: MockClock, tmp_path: Path) -> None:
    """No code, no conclusion, or a conclusion by a person's act: no verdict is made up."""
    provider = FakeProvider()
    provider.tell("op", "in_doubt_before")
    by_hand = one_call(paying(provider, "pay.op", recovery=Recovery.REQUIRES_OPERATOR), "story.op")
    async with opened(tmp_path, orders(provider, "1"), by_hand) as plane:
        done = await plane.run("story.run", {})
        stuck = await plane.run("story.op", {})
        assert undecided(plane, stuck.run)
        verdict = await plane.replay(stuck.run, strict=True)
        assert isinstance(verdict, Verdict) and verdict.verdict == "cannot_replay"
    async with opened(tmp_path, by_hand) as plane:
        verdict = await plane.replay(done.run, strict=True)
        assert isinstance(verdict, Verdict)
        assert verdict.verdict == "cannot_replay" and "story.run" in str(verdict.reason)


async def test_the_first_walk_sees_what_every_later_one_reads(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A tuple, a whole float, a value that the skill changes: what code is handed is what its record will give back."""
    seen: list[Any] = []

    @effect("files.read", mutates=False)
    async def read(call: Any, *, of: list) -> Any:  # type: ignore[type-arg]
        return {"pair": (1, 2), "whole": 2.0}

    @skill("story.run")
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        got = await cx.do(read(of=[repr(request["at"])]))
        seen.append((repr(got["pair"]), repr(got["whole"]), repr(request["at"])))
        got["pair"].append(3)
        request["at"] = 0
        return got

    async with opened(tmp_path, body) as plane:
        outcome = await plane.run("story.run", {"at": 3.0})
        assert outcome.status == "succeeded"
        verdict = await plane.replay(outcome.run, strict=True)
        assert isinstance(verdict, Verdict) and verdict.verdict == "verified", verdict
        assert seen[0] == seen[1] == ("[1, 2]", "2", "3")


async def test_one_walk_of_a_run_at_a_time(autojump_clock: MockClock, tmp_path: Path) -> None:
    """L1: a run that executes here is not taken again here, even when its lease has lapsed."""
    from agentplane.core.errors import LeaseHeld

    provider = FakeProvider()
    provider.tell("refund", "hang")
    once = one_call(paying(provider))
    late = [0]
    from agentplane.testkit.inline import trio_now_ms

    async with opened(tmp_path, once, recover=False, now_ms=lambda: trio_now_ms() + late[0]) as plane:
        from agentplane.engine.admission import Wanted

        admission = await plane.start(Wanted(capability="story.run", input={}))
        await provider.arrived.wait()
        late[0] = 600_000
        with pytest.raises(LeaseHeld):
            await plane.replay(admission.run)
        await plane.recovery.once()
        provider.release()
        await plane.runs.wait_idle()
        assert (await plane.outcome(admission.run)).status == "succeeded"
        assert len(provider.asked) == 1 and len(all_runs(plane)) == 1
        assert ME.actor
