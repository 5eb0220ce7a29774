"""P1 to P9 as a run lives them: retries, doubt, orphans, probes, keys and their windows, replayed failures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from agentplane import Recovery, RetryPolicy, effect, skill
from agentplane.authoring.skill import Skill
from agentplane.core import bounds
from agentplane.core.errors import NotApplicable, UndecidedEffect
from agentplane.core.records import EffectFailed as Failed
from agentplane.core.records import EffectReconciled, EffectStarted, RetryGranted, RunConcluded
from agentplane.testkit import FakeProvider
from agentplane.testkit.inline import trio_now_ms
from agentplane.testkit.worlds import fit_mark
from stories.scenes import (
    ME,
    Points,
    frozen_at,
    history,
    kinds,
    of_kind,
    one_call,
    opened,
    paying,
    reconcile,
    recovered,
    undecided,
)


async def killed_in_the_act(tmp_path: Path, provider: FakeProvider, once: Any, **options: Any) -> tuple[Path, str]:
    """A directory as a process left it that was killed while its one act hung, and the run."""
    cut: list[Path] = []
    points = Points()
    async with opened(tmp_path, once, observe=points, **options) as plane:
        points.at["effect.acting"] = lambda: cut or cut.append(frozen_at(plane, tmp_path, f"cut-{provider.asked}"))
        outcome = await plane.run("story.run", {})
    fit_mark(cut[0] / "plane.db")
    return cut[0], outcome.run


async def test_what_was_refused_is_asked_again_after_its_backoff(autojump_clock: MockClock, tmp_path: Path) -> None:
    """P1, S8: repeatable refusals are repeated under one key; the wait is recorded, and the clock was asked for it."""
    provider = FakeProvider()
    provider.tell("refund", "did_not_happen", "did_not_happen")
    once = one_call(paying(provider, retry=RetryPolicy(base_ms=1_000)))
    async with opened(tmp_path, once) as plane:
        began = trio_now_ms()
        outcome = await plane.run("story.run", {})
        waits = [record.backoff_ms for record in of_kind(plane, outcome.run, EffectStarted)]
        assert waits[0] == 0 and 500 <= waits[1] <= 1_000 and 1_000 <= waits[2] <= 2_000
        assert trio_now_ms() - began >= sum(waits) - 1
        assert len({row.key for row in provider.asked}) == 1 and len(provider.book) == 1


@pytest.mark.parametrize("probed", [False, True])
async def test_a_refusal_behind_a_doubt_is_no_failure(autojump_clock: MockClock, tmp_path: Path, probed: bool) -> None:
    """P2: it says nothing about the earlier attempt: the provider is asked where it can be, else a person.

    Spec: EffectProtocol.NoFailureOverDoubt.
    """
    provider = FakeProvider()
    provider.tell("refund", "in_doubt_after_landing", "refused_for_good")
    async with opened(tmp_path, one_call(paying(provider, probed=probed))) as plane:
        outcome = await plane.run("story.run", {})
        assert len(provider.book) == 1
        if probed:
            assert outcome.status == "succeeded" and outcome.output == {"reference": "ref-1"}
        else:
            assert outcome.status == "quarantined"
            assert [one.doubt for one in undecided(plane, outcome.run)] == ["inconclusive"]


async def test_an_orphan_is_given_its_outcome_before_it_is_repeated(autojump_clock: MockClock, tmp_path: Path) -> None:
    """P3: the new owner records what became of the dead one's attempt, naming its epoch; and repeats under its key.

    Spec: EffectProtocol.EveryOutcomeAtRest, RetrySafety.OrphansAreSettledFirst.
    """
    provider = FakeProvider()
    once = one_call(paying(provider))
    where, run = await killed_in_the_act(tmp_path, provider, once)
    async with opened(where, once, recover=False) as plane:
        await recovered(plane)
        lost = of_kind(plane, run, Failed)[0]
        assert lost.lost_epoch == 1 and lost.epoch == 2 and lost.fault.code == "lost"
        assert [record.attempt for record in of_kind(plane, run, EffectStarted)] == [1, 2]
        assert len({record.idempotency_key for record in of_kind(plane, run, EffectStarted)}) == 1
        assert (await plane.outcome(run)).status == "succeeded" and len(provider.book) == 1


async def killed_again_and_again(tmp_path: Path, provider: FakeProvider, once: Skill, lives: int) -> tuple[Path, str]:
    """A store whose run died in the act of the same effect in ``lives`` processes after the first."""
    where, run = await killed_in_the_act(tmp_path, provider, once)
    for life in range(lives):
        cut: list[Path] = []
        points = Points()
        async with opened(where, once, recover=False, observe=points) as plane:
            points.at["effect.acting"] = lambda p=plane, c=cut, n=life: (
                c or c.append(frozen_at(p, tmp_path, f"life-{n}"))
            )
            await recovered(plane)
        fit_mark(cut[0] / "plane.db")
        where = cut[0]
    provider.book.clear()
    return where, run


async def test_deaths_have_a_bound_of_their_own(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P3: attempts lost to a death do not count against the policy, and past their own bound the effect escalates.

    Spec: RetrySafety.DeathsAreBounded.
    """
    # A run that also did something else in each of these lives would not be a suspect of P4.
    monkeypatch.setattr(bounds, "TAKEOVERS_WITHOUT_PROGRESS_MAX", 99)
    provider = FakeProvider()
    once = one_call(paying(provider, retry=RetryPolicy(max_attempts=1)))
    where, run = await killed_again_and_again(tmp_path, provider, once, bounds.DEATHS_MAX)
    async with opened(where, once, recover=False) as plane:
        await recovered(plane)
        outcome = await plane.outcome(run)
        assert outcome.status == "quarantined" and "death" in str(outcome.reason)
        assert not provider.book


async def test_an_attempt_lost_and_made_again_is_no_progress(autojump_clock: MockClock, tmp_path: Path) -> None:
    """P4: a step that dies behind an outcome that dies with it writes two records at every life; it is set aside before
    the fourth resume all the same."""
    provider = FakeProvider()
    once = one_call(paying(provider))
    lives = bounds.TAKEOVERS_WITHOUT_PROGRESS_MAX
    where, run = await killed_again_and_again(tmp_path, provider, once, lives)
    async with opened(where, once, recover=False) as plane:
        await recovered(plane)
        outcome = await plane.outcome(run)
        assert (outcome.status, outcome.code) == ("quarantined", "crash_suspect")
        assert [record.attempt for record in of_kind(plane, run, EffectStarted)] == list(range(1, lives + 2))
        named = of_kind(plane, run, RunConcluded)[-1].undecided
        assert [one.kind for one in named] == ["pay.refund"], "what nobody can account for is named (P3)"
        assert not provider.book


async def test_an_orphan_that_only_a_person_can_settle_is_named_as_announced(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """P3: it keeps no outcome, is the one named undecided effect, and a person's word ends it either way.

    Spec: EffectProtocol.OperatorDeedOnce.
    """
    for answer, payments in (("landed", 1), ("did-not-happen", 2)):
        provider = FakeProvider(honours_keys=False)
        base = tmp_path / answer
        base.mkdir()
        once = one_call(paying(provider, recovery=Recovery.REQUIRES_OPERATOR))
        where, run = await killed_in_the_act(base, provider, once)
        async with opened(where, once, recover=False) as plane:
            await recovered(plane)
            assert kinds(plane, run).count("EffectFailed") == 0
            named = of_kind(plane, run, RunConcluded)[0].undecided
            assert [(one.kind, one.doubt) for one in named] == [("pay.refund", "announced")]
            assert await reconcile(plane, run, answer, output={"reference": "by hand"} if payments == 1 else None) == []
            outcome = await plane.reopen(run, ME, "looked up")
            assert outcome.status == "succeeded"
            assert len(provider.book) == payments
            said = of_kind(plane, run, EffectReconciled)[0]
            assert said.asserted_by == ME and said.note == "I looked"


async def test_a_probe_that_finds_nothing_too_early_is_asked_again(autojump_clock: MockClock, tmp_path: Path) -> None:
    """P5: "not here" counts only when the request can no longer arrive; until then it is an answer so far.

    Spec: RetrySafety.AskedDeedOnce.
    """
    provider = FakeProvider(honours_keys=False)
    provider.tell("refund", "in_doubt_before")
    pay = paying(provider, recovery=Recovery.RECONCILE, probed=True, timeout_s=20, settle_s=10)
    async with opened(tmp_path, one_call(pay)) as plane:
        began = trio_now_ms()
        outcome = await plane.run("story.run", {})
        verdicts = of_kind(plane, outcome.run, EffectReconciled)
        assert [(one.verdict, one.early) for one in verdicts] == [("did_not_happen", True), ("did_not_happen", False)]
        assert trio_now_ms() - began >= 30_000
        assert outcome.status == "succeeded" and len(provider.book) == 1


async def test_a_probe_that_finds_it_is_believed_at_once(autojump_clock: MockClock, tmp_path: Path) -> None:
    """P5: landed needs no waiting.

    Spec: RetrySafety.AskableIsAsked.
    """
    provider = FakeProvider(honours_keys=False)
    provider.tell("refund", "in_doubt_after_landing")
    pay = paying(provider, recovery=Recovery.RECONCILE, probed=True)
    async with opened(tmp_path, one_call(pay)) as plane:
        began = trio_now_ms()
        outcome = await plane.run("story.run", {})
        assert trio_now_ms() - began < 1_000
        assert outcome.output == {"reference": "ref-1"} and len(provider.probed) == 1


async def test_a_probe_that_cannot_tell_is_asked_three_times(autojump_clock: MockClock, tmp_path: Path) -> None:
    """P5, S6: every verdict is journaled; after the bound of counted ones a person is asked, and may answer late.

    Spec: RetrySafety.AsksAreBounded.
    """
    provider = FakeProvider(honours_keys=False)
    provider.tell("refund", "in_doubt_after_landing")
    provider.probe_fails = "the ledger is closed"
    pay = paying(provider, recovery=Recovery.RECONCILE, probed=True)
    async with opened(tmp_path, one_call(pay)) as plane:
        outcome = await plane.run("story.run", {})
        assert outcome.status == "quarantined"
        verdicts = of_kind(plane, outcome.run, EffectReconciled)
        assert [one.detail for one in verdicts] == ["the ledger is closed"] * len(verdicts)
        assert sum(not one.early for one in verdicts) == bounds.ASKS_MAX
        assert [one.doubt for one in undecided(plane, outcome.run)] == ["inconclusive"]
        with pytest.raises(NotApplicable):
            await plane.retry(outcome.run, ME, "try")
        await reconcile(plane, outcome.run, "landed", output={"reference": "seen"})
        assert (await plane.reopen(outcome.run, ME, "seen")).output == {"reference": "seen"}
        assert len(provider.book) == 1


@pytest.mark.parametrize("answer", [None, {"reference": 1}, "Landed", ValueError("the ledger is gone"), SystemExit(1)])
async def test_whatever_else_a_probe_answers_is_inconclusive(
    autojump_clock: MockClock, tmp_path: Path, answer: object
) -> None:
    """P5: what it raises, and what is no verdict, is recorded and decides nothing.

    Spec: RetrySafety.SuccessIsTrue.
    """
    provider = FakeProvider(honours_keys=False)
    provider.tell("refund", "in_doubt_before")
    pay = paying(provider, recovery=Recovery.RECONCILE)

    @pay.reconcile
    async def probe(call: Any, *, order: str = "A-1") -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async with opened(tmp_path, one_call(pay)) as plane:
        outcome = await plane.run("story.run", {})
        assert outcome.status == "quarantined" and not provider.book
        assert {one.verdict for one in of_kind(plane, outcome.run, EffectReconciled)} == {"inconclusive"}


async def test_the_key_is_of_the_deed_and_not_of_the_attempt(autojump_clock: MockClock, tmp_path: Path) -> None:
    """P6: one key through attempts; two runs under no key differ; a run under an admission key has its own again.

    Spec: EffectProtocol.KeyedDeedOnce.
    """
    provider = FakeProvider()
    provider.tell("refund", "did_not_happen")
    once = one_call(paying(provider))
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        async with opened(tmp_path / name, once) as plane:
            await plane.run("story.run", {}, key="order-7")
            await plane.run("story.run", {})
    keys = [row.key for row in provider.asked]
    assert keys[0] == keys[1] == keys[3], "attempts and a second plane under the same admission key"
    assert len({keys[0], keys[2], keys[4]}) == 3


@pytest.mark.parametrize("later_s", [3_599, 3_601])
async def test_a_key_is_sent_again_only_inside_its_window(
    autojump_clock: MockClock, tmp_path: Path, later_s: int
) -> None:
    """P7: a provider forgets its keys; past the window an idempotent effect is decided by a person.

    Spec: RetrySafety.KeyedDeedOnce.
    """
    provider = FakeProvider()
    once = one_call(paying(provider, key_window_s=3_600))
    where, run = await killed_in_the_act(tmp_path, provider, once)
    async with opened(where, once, recover=False, now_ms=lambda: trio_now_ms() + later_s * 1_000) as plane:
        await recovered(plane)
        status = (await plane.outcome(run)).status
        assert status == ("succeeded" if later_s < 3_600 else "quarantined")
        assert len(provider.book) == 1


async def test_a_suspect_clock_keeps_no_window_open(autojump_clock: MockClock, tmp_path: Path) -> None:
    """P7, L3: when nobody knows what time it is, a key counts as forgotten."""
    provider = FakeProvider()
    once = one_call(paying(provider))
    where, run = await killed_in_the_act(tmp_path, provider, once)
    async with opened(where, once, recover=False) as plane:
        plane.world.clock_suspect = True
        await recovered(plane)
        assert (await plane.outcome(run)).status == "quarantined"


async def test_a_stored_failure_ends_the_attempts(autojump_clock: MockClock, tmp_path: Path) -> None:
    """P8: the provider's replayed failure is never asked again under the same key; a person may give a new one.

    Spec: RetrySafety.ReplayEndsTheAttempts.
    """
    provider = FakeProvider()
    provider.tell("refund", "replayed_failure")
    async with opened(tmp_path, one_call(paying(provider))) as plane:
        outcome = await plane.run("story.run", {})
        assert outcome.status == "quarantined" and len(provider.asked) == 1
        await reconcile(plane, outcome.run, "did-not-happen", new_key=True)
        assert (await plane.reopen(outcome.run, ME, "the provider cleared it")).status == "succeeded"
        first, second = (row.key for row in provider.asked)
        assert first != second and len(provider.book) == 1
        assert [record.generation for record in of_kind(plane, outcome.run, EffectStarted)] == [0, 1]


async def test_a_failed_run_reads_its_failure_back(autojump_clock: MockClock, tmp_path: Path) -> None:
    """P9: walked again it asks nobody, appends nothing, and stands as it stood."""
    provider = FakeProvider()
    provider.tell("refund", "refused_for_good")
    async with opened(tmp_path, one_call(paying(provider))) as plane:
        outcome = await plane.run("story.run", {})
        before = kinds(plane, outcome.run)
        again = await plane.replay(outcome.run)
        assert (again.status, outcome.status) == ("failed", "failed")
        assert kinds(plane, outcome.run) == before and len(provider.asked) == 1


async def test_a_person_may_ask_a_failure_again(autojump_clock: MockClock, tmp_path: Path) -> None:
    """P9: on record, as a new attempt under the same key; and only where the series is without doubt."""
    provider = FakeProvider()
    provider.tell("refund", "refused_for_good")
    async with opened(tmp_path, one_call(paying(provider))) as plane:
        outcome = await plane.run("story.run", {})
        again = await plane.retry(outcome.run, ME, "the account is open now")
        assert again.status == "succeeded" and len(provider.book) == 1
        granted = of_kind(plane, outcome.run, RetryGranted)
        assert [(one.granted_by, one.reason) for one in granted] == [(ME, "the account is open now")]
        assert len({row.key for row in provider.asked}) == 1


async def test_what_took_effect_is_not_asked_again(autojump_clock: MockClock, tmp_path: Path) -> None:
    """P9: a failure that landed is final for everybody."""
    provider = FakeProvider()
    provider.tell("refund", "landed_unusable")
    async with opened(tmp_path, one_call(paying(provider))) as plane:
        outcome = await plane.run("story.run", {})
        assert outcome.status == "failed"
        with pytest.raises(NotApplicable, match="took effect"):
            await plane.retry(outcome.run, ME, "again")
        assert (await plane.replay(outcome.run)).status == "failed"
        assert len(provider.book) == len(provider.asked) == 1


async def test_only_what_is_in_doubt_is_answered(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S13: A recorded fact is not replaced by a person's word."""
    provider = FakeProvider()
    provider.tell("late", "in_doubt_before")
    sure, late = paying(provider, "pay.sure"), paying(provider, "pay.late", recovery=Recovery.REQUIRES_OPERATOR)

    @skill("story.run")
    async def both(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return [await cx.do(sure()), await cx.do(late())]

    async with opened(tmp_path, both) as plane:
        from agentplane.engine import acts

        outcome = await plane.run("story.run", {})
        known = next(iter(history(plane, outcome.run).by_key))
        with pytest.raises(UndecidedEffect):
            await plane.writer.do(acts.reconcile(outcome.run, known, "did-not-happen", ME, "no", plane.owner))


async def test_every_attempt_is_sent_the_same_body(autojump_clock: MockClock, tmp_path: Path) -> None:
    """W7 of the lab: an attempt that changes its own arguments does not change the next one's."""
    provider = FakeProvider()
    provider.tell("refund", "did_not_happen")

    @effect("pay.refund", recovery=Recovery.IDEMPOTENT, retry=RetryPolicy(base_ms=1))
    async def refund(call: Any, *, lines: list) -> Any:  # type: ignore[type-arg]
        lines.append(call.attempt)
        return await provider.call(call, "refund", list(lines))

    @skill("story.run")
    async def pay(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return await cx.do(refund(lines=["A-1"]))

    async with opened(tmp_path, pay) as plane:
        outcome = await plane.run("story.run", {})
        assert [row.body[:-1] for row in provider.asked] == [["A-1"], ["A-1"]]
        assert (await plane.replay(outcome.run, strict=True)).verdict == "verified"
