"""Every commit of a run's journal is a place where its process may have died: each is resumed, and each rule holds.

The worlds are those of ``agentplane.testkit.crash_at_every_commit``: every commit, killed at once and killed just
before the next, and the inside of every unit of more than one record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from trio.testing import MockClock

from agentplane import DidNotHappenError, Recovery, RetryPolicy, effect, skill
from agentplane.authoring.skill import Skill
from agentplane.core.records import Undecided
from agentplane.engine.plane import Outcome, Plane
from agentplane.testkit import FakeProvider, Report, crash_at_every_commit
from stories.scenes import AT_ONCE, ME, one_call, paying


def held(report: Report, *, least: int, ends: set[str]) -> Report:
    """The report, once it is known to have looked at enough and to have found nothing."""
    report.check()
    assert report.commits >= least and report.worlds >= report.commits - 2
    assert report.duplicate_effects == 0, "the unique index had to save replay"
    assert report.ends and set(report.ends) <= ends
    return report


def knows(provider: FakeProvider) -> Callable[[Undecided], tuple[str, object]]:
    """An operator who looks into the provider's book."""

    def answer(_: Undecided) -> tuple[str, object]:
        if provider.book:
            return "landed", {"reference": provider.book[-1].reference}
        return "did-not-happen", None

    return answer


async def test_a_run_that_succeeds(autojump_clock: MockClock) -> None:
    """Two payments, one of them by a provider that ignores keys, and what is local between them."""
    provider = FakeProvider(honours={"ship": False})
    pay, ship = paying(provider), paying(provider, "post.ship", recovery=Recovery.RECONCILE, probed=True)

    @skill("orders.fulfil")
    async def fulfil(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        paid = await cx.do(pay(order=request["order"]))
        at, name, chance = await cx.now(), await cx.uuid(), await cx.random()
        shipped = await cx.do(ship(order=request["order"]))
        return [paid, shipped, at > 0, len(name), chance < 1]

    report = await crash_at_every_commit(fulfil, {"order": "A-1"}, provider=provider, key="order-1")
    held(report, least=10, ends={"succeeded", "running"})
    assert report.inside == report.refused + 5, "what was held heals at each record, half an admission is refused"
    assert report.ends["running"] == report.refused == 1


async def test_a_retry(autojump_clock: MockClock) -> None:
    """Refused twice, paid at the third attempt."""
    provider = FakeProvider()
    provider.tell("refund", "did_not_happen", "did_not_happen")
    report = await crash_at_every_commit(one_call(paying(provider)), {}, provider=provider)
    held(report, least=8, ends={"succeeded", "running"})


async def test_a_gather_with_a_failing_member(autojump_clock: MockClock) -> None:
    """Three side by side, the second refused for good: all are recorded, and the step fails."""
    provider = FakeProvider()
    pay, bill, mail = paying(provider), paying(provider, "pay.bill"), paying(provider, "pay.mail")
    provider.tell("bill", "refused_for_good")

    @skill("orders.close")
    async def close(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return await cx.gather(pay(), bill(), mail())

    # Killed before the refusal was recorded, the member is in doubt: asked again it is refused, which settles nothing
    # (P2), or paid, where the one refusal that was told went to the first process.
    report = await crash_at_every_commit(close, {}, provider=provider, as_well=("quarantined", "succeeded"))
    held(report, least=8, ends={"failed", "quarantined", "succeeded", "running"})
    assert report.outcome.status == "failed"


async def test_a_failure_that_the_skill_raises(autojump_clock: MockClock) -> None:
    """A skill that pays and then raises fails in every world, and pays once."""
    provider = FakeProvider()
    pay = paying(provider)

    @skill("orders.fail")
    async def fail(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        await cx.do(pay())
        raise ValueError("no such order")

    report = await crash_at_every_commit(fail, {}, provider=provider)
    held(report, least=5, ends={"failed", "running"})


@pytest.mark.parametrize("told", ["in_doubt_after_landing", "in_doubt_before"])
async def test_reconciled_by_a_probe(autojump_clock: MockClock, told: str) -> None:
    """In doubt, the provider is asked: it landed, or it did not happen and is performed again.

    Spec: EffectProtocol.AskedDeedOnce.
    """
    provider = FakeProvider(honours_keys=False)
    provider.tell("refund", told)
    once = one_call(paying(provider, recovery=Recovery.RECONCILE, probed=True))
    report = await crash_at_every_commit(once, {}, provider=provider)
    held(report, least=6, ends={"succeeded", "running"})


@pytest.mark.parametrize("told", ["in_doubt_after_landing", "in_doubt_before"])
async def test_reconciled_by_a_person(autojump_clock: MockClock, told: str) -> None:
    """The probe cannot tell, the run is quarantined, and a person answers it the one way or the other."""
    provider = FakeProvider(honours_keys=False)
    provider.probe_fails = "the ledger is closed"
    provider.tell("refund", told)
    once = one_call(paying(provider, recovery=Recovery.RECONCILE, probed=True))
    report = await crash_at_every_commit(once, {}, provider=provider, operator=knows(provider))
    held(report, least=10, ends={"succeeded", "running"})


async def test_nobody_answers_a_quarantine(autojump_clock: MockClock) -> None:
    """Without an answer every world with doubt stays quarantined, and names the effect.

    Spec: RetrySafety.OperatorDeedOnce.
    """
    provider = FakeProvider()
    provider.tell("refund", "in_doubt_before")
    once = one_call(paying(provider, recovery=Recovery.REQUIRES_OPERATOR))
    report = await crash_at_every_commit(once, {}, provider=provider, as_well=("succeeded",))
    held(report, least=5, ends={"quarantined", "succeeded", "running"})
    assert report.ends["quarantined"] >= 2


async def test_doubt_and_then_a_refusal(autojump_clock: MockClock) -> None:
    """P2: a refusal behind a doubt never makes a failure of it; the run escalates."""
    provider = FakeProvider()
    provider.tell("refund", "in_doubt_after_landing", "refused_for_good")
    report = await crash_at_every_commit(one_call(paying(provider)), {}, provider=provider, operator=knows(provider))
    held(report, least=8, ends={"succeeded", "running"})


@pytest.mark.parametrize("probed", [True, False])
async def test_resumed_past_the_key_window(autojump_clock: MockClock, probed: bool) -> None:
    """P7: a key that the provider has forgotten is not sent again: it is asked, or a person is."""
    provider = FakeProvider(honours_keys=False)
    pay = paying(provider, key_window_s=3_600, probed=probed)
    report = await crash_at_every_commit(
        one_call(pay), {}, provider=provider, operator=knows(provider), later_ms=3_601_000
    )
    held(report, least=5, ends={"succeeded", "running"})


async def test_doubt_inside_the_key_window_is_sent_again_under_the_same_key(autojump_clock: MockClock) -> None:
    """An idempotent effect is repeated, and the provider recognises it."""
    provider = FakeProvider()
    provider.tell("refund", "in_doubt_after_landing")
    report = await crash_at_every_commit(one_call(paying(provider)), {}, provider=provider, key="k")
    held(report, least=6, ends={"succeeded", "running"})


async def test_local_effects_and_changed(autojump_clock: MockClock) -> None:
    """A run that reaches a change fresh takes the new way in every world."""
    provider = FakeProvider()
    pay, check = paying(provider), paying(provider, "fraud.check")

    @skill("orders.checked")
    async def checked(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        if await cx.changed("fraud-check"):
            await cx.do(check())
        return [await cx.do(pay()), await cx.uuid()]

    report = await crash_at_every_commit(checked, {}, provider=provider)
    held(report, least=7, ends={"succeeded", "running"})
    assert report.outcome.status == "succeeded"


async def test_a_change_under_open_runs(autojump_clock: MockClock) -> None:
    """P18: resumed by a build with a change in it, a run that passed the place goes the old way, and none diverges."""
    provider = FakeProvider()
    pay, check = paying(provider), paying(provider, "fraud.check")

    @skill("orders.checked")
    async def old(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return [await cx.do(pay(order="1")), await cx.do(pay(order="2"))]

    @skill("orders.checked")
    async def new(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        first = await cx.do(pay(order="1"))
        if await cx.changed("fraud-check"):
            await cx.do(check())
        return [first, await cx.do(pay(order="2"))]

    report = await crash_at_every_commit(old, {}, provider=provider, resumed_by=[new], same_places=False)
    held(report, least=7, ends={"succeeded", "running"})


async def test_a_cancel(autojump_clock: MockClock) -> None:
    """A cancel recorded before anything landed ends the run in every world that knows of it."""
    provider = FakeProvider()
    provider.tell("refund", *["did_not_happen"] * 9)

    async def cancelled(plane: Plane, outcome: Outcome) -> None:
        await plane.cancel(outcome.run, ME, "not wanted any more")

    pay = paying(provider, retry=RetryPolicy(max_attempts=2, base_ms=1))
    report = await crash_at_every_commit(one_call(pay), {}, provider=provider, after=cancelled, as_well=["quarantined"])
    held(report, least=7, ends={"cancelled", "failed", "quarantined", "running"})


async def test_a_failure_that_a_person_retries(autojump_clock: MockClock) -> None:
    """P9: the failure at the frontier is asked again, on record, and stays asked in every world."""
    provider = FakeProvider()
    provider.tell("refund", "refused_for_good")

    async def retried(plane: Plane, outcome: Outcome) -> None:
        assert outcome.status == "failed"
        assert (await plane.retry(outcome.run, ME, "the account is open now")).status == "succeeded"

    once = one_call(paying(provider))
    report = await crash_at_every_commit(once, {}, provider=provider, after=retried, as_well=["quarantined"])
    held(report, least=8, ends={"succeeded", "failed", "quarantined", "running"})


async def test_an_outcome_and_an_answer_beside_their_records(autojump_clock: MockClock) -> None:
    """Over a record's bound, outcome and output are kept beside it, and every world reads them back."""

    @effect("files.fetch", mutates=False)
    async def fetch(call: Any) -> Any:
        return {"text": "x" * 1_100_000}

    @skill("files.copy")
    async def copy(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return await cx.do(fetch())

    report = await crash_at_every_commit(copy, {})
    held(report, least=5, ends={"succeeded", "running"})
    assert report.outcome.output == {"text": "x" * 1_100_000}


async def test_an_effect_that_needs_a_person_pays_at_once(autojump_clock: MockClock) -> None:
    """W5: the outcome of what only a person can settle is durable before anything else happens."""
    provider = FakeProvider(honours_keys=False)
    pay = paying(provider, recovery=Recovery.REQUIRES_OPERATOR)
    report = await crash_at_every_commit(one_call(pay), {}, provider=provider, operator=knows(provider))
    held(report, least=6, ends={"succeeded", "running"})


# --- in threads: the real writer, and code that blocks ---------------------------------------------------------------


def blocking_skill(provider: FakeProvider) -> Skill:
    @effect("pay.refund", recovery=Recovery.IDEMPOTENT, retry=AT_ONCE)
    def refund(call: Any, *, order: str) -> Any:
        return provider.call_blocking(call, "refund", {"order": order})

    @skill("orders.block")
    def block(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        paid = [cx.do(refund(order="1")), *cx.gather(refund(order="2"), refund(order="3"))]
        return [paid, cx.now() > 0, cx.changed("new")]

    return block


async def test_a_blocking_skill_with_blocking_effects() -> None:
    """The same rules where skill and effects run in threads."""
    provider = FakeProvider()
    provider.tell("refund", "did_not_happen")
    report = await crash_at_every_commit(blocking_skill(provider), {}, provider=provider)
    held(report, least=4, ends={"succeeded", "running"})


# --- the runner itself -----------------------------------------------------------------------------------------------


async def test_the_runner_finds_a_skill_that_is_not_durable(autojump_clock: MockClock) -> None:
    """It is no use if it cannot fail: code that asks something else on every walk diverges, and is reported."""
    walks = iter(range(1_000))
    provider = FakeProvider()
    pay = paying(provider)

    @skill("orders.random")
    async def wandering(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return await cx.do(pay(order=str(next(walks))))

    report = await crash_at_every_commit(wandering, {}, provider=provider)
    assert not report.ok
    assert any("quarantined" in violation for violation in report.violations)


async def test_the_runner_finds_a_deed_done_twice(autojump_clock: MockClock) -> None:
    """A provider that ignores keys under an effect that claims it honours them is paid twice, and reported."""
    provider = FakeProvider(honours_keys=False)
    report = await crash_at_every_commit(one_call(paying(provider)), {}, provider=provider)
    assert any("took effect 2 times" in violation for violation in report.violations)


async def test_the_runner_says_when_it_checked_nothing(autojump_clock: MockClock) -> None:
    """A report without a world is not a good one."""
    empty = Report(outcome=Outcome(run="run_x", status="succeeded"))
    with pytest.raises(AssertionError, match="nothing was checked"):
        empty.check()


async def test_an_effect_may_say_that_repeating_it_is_harmless(autojump_clock: MockClock) -> None:
    """RETRY on a mutation is the author's word; the runner takes it."""
    provider = FakeProvider(honours_keys=False)

    @effect("page.ping", recovery=Recovery.RETRY, retry=AT_ONCE)
    async def ping(call: Any, *, order: str = "A-1") -> Any:
        answer = await provider.call(call, "ping", {})
        if call.attempt == 1:
            raise DidNotHappenError("busy")
        return answer

    report = await crash_at_every_commit(one_call(ping), {}, provider=provider)
    held(report, least=5, ends={"succeeded", "running"})
