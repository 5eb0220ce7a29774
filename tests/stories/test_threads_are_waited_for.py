"""Section 4 and P5: code that blocks runs in threads, and a thread that still runs is an act in flight.

Real threads and the real writer; rendezvous by events, no clock is waited for but an effect's own short ``timeout_s``.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import trio

from agentplane import DidNotHappen, Landed, Plane, Recovery, effect, skill
from agentplane.authoring.skill import Skill
from agentplane.core.dispositions import Disposition
from agentplane.core.errors import InvalidRequest, JournalCorrupt, LeaseHeld
from agentplane.core.records import EffectDone, EffectReconciled, EffectStarted
from agentplane.core.records import EffectFailed as Failed
from agentplane.engine.admission import Wanted
from agentplane.journal import leases
from agentplane.testkit import FakeProvider
from stories.scenes import AT_ONCE, kinds, of_kind


async def seen(what: Any) -> None:
    """Wait, by the loop's own turns, until a thread has made it so."""
    with trio.fail_after(20):
        while not what():
            await trio.to_thread.run_sync(threading.Event().wait, 0.002)


def blocking(provider: FakeProvider, *, recovery: Recovery = Recovery.IDEMPOTENT, timeout_s: float = 10) -> Skill:
    @effect("pay.refund", recovery=recovery, retry=AT_ONCE, timeout_s=timeout_s, settle_s=0)
    def refund(call: Any, *, order: str) -> Any:
        return provider.call_blocking(call, "refund", {"order": order})

    if recovery is Recovery.RECONCILE:

        @refund.reconcile
        async def probe(call: Any, *, order: str) -> Any:
            provider.probed.append(call.idempotency_key)
            return DidNotHappen()

    @skill("story.run")
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return await cx.do(refund(order="1"))

    return body


@pytest.mark.parametrize("recovery", [Recovery.IDEMPOTENT, Recovery.RECONCILE])
async def test_no_retry_and_no_question_while_the_thread_runs(tmp_path: Path, recovery: Recovery) -> None:
    """P5: after its time the attempt is given up, and what it began may still act: no outcome is recorded, and nothing
    asked or sent, until then."""
    provider = FakeProvider()
    provider.tell("refund", "hang")
    once = blocking(provider, recovery=recovery, timeout_s=0.05)
    async with Plane.open(tmp_path / "plane.db", skills=[once]) as plane:
        admission = await plane.start(Wanted(capability="story.run", input={}))
        await seen(lambda: any(getattr(call, "abandoned", False) for call in plane.world.threads))
        assert provider.arrived_in_thread.is_set() and plane.runs.acting(admission.run)
        for _ in range(20):
            await plane.writer.do(lambda tx: None)
        assert len(provider.asked) == 1 and not provider.probed
        assert "EffectFailed" not in kinds(plane, admission.run)
        provider.release()
        await plane.runs.wait_idle()
        first = of_kind(plane, admission.run, Failed)[0]
        assert first.disposition is Disposition.IN_DOUBT
        outcome = await plane.outcome(admission.run)
        assert outcome.status == "succeeded" and len(provider.asked) == 2
        assert len(of_kind(plane, admission.run, EffectReconciled)) == (recovery is Recovery.RECONCILE)


async def test_a_request_that_a_thread_sends_late_is_waited_for(tmp_path: Path) -> None:
    """P5: what a body sends long after its timeout may arrive up to ``settle_s`` after its thread has ended; asked
    sooner, a no is so far."""
    book: list[str] = []

    @effect("pay.refund", recovery=Recovery.RECONCILE, retry=AT_ONCE, timeout_s=0.05, settle_s=0.6)
    def refund(call: Any, *, order: str) -> Any:
        late = 0.2 if call.attempt == 1 else 0.0
        threading.Event().wait(late * 2)
        threading.Timer(late, lambda: book.append(order)).start()
        return None

    @refund.reconcile
    async def probe(call: Any, *, order: str) -> Any:
        return Landed({"known": True}) if book else DidNotHappen()

    @skill("story.run")
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return await cx.do(refund(order="1"))

    async with Plane.open(tmp_path / "plane.db", skills=[body]) as plane:
        outcome = await plane.run("story.run", {})
        assert (outcome.status, outcome.output) == ("succeeded", {"known": True})
        assert len(of_kind(plane, outcome.run, EffectStarted)) == 1
    assert book == ["1"]


async def test_a_run_that_was_cut_is_not_taken_again_while_its_thread_runs(tmp_path: Path) -> None:
    """P5, L1: the lease of a run whose act still runs here is nobody's to take, here."""
    provider = FakeProvider()
    provider.tell("refund", "hang")
    late = [0]
    from agentplane.engine.plane import wall_ms

    once = blocking(provider)
    async with Plane.open(
        tmp_path / "plane.db", skills=[once], recover=False, now_ms=lambda: wall_ms() + late[0]
    ) as plane:
        admission = await plane.start(Wanted(capability="story.run", input={}))
        await seen(provider.arrived_in_thread.is_set)
        plane.runs.live[admission.run].stop()
        await plane.runs.wait_idle()
        late[0] = 60_000
        found = await plane.recovery.once()
        assert not found.took_over
        with pytest.raises(LeaseHeld):
            await plane.replay(admission.run)
        provider.release()
        await seen(lambda: not plane.runs.acting(admission.run))
        found = await plane.recovery.once()
        assert found.took_over == [admission.run]
        await plane.runs.wait_idle()
        assert (await plane.outcome(admission.run)).status == "succeeded"
        assert len(provider.book) == 1


async def test_an_act_that_found_no_thread_never_happened(tmp_path: Path) -> None:
    """Queued behind others until its time was up, it provably did nothing: no doubt, and nobody waits for it."""
    gate, began = threading.Event(), threading.Event()
    performed: list[str] = []

    @effect("pay.refund", recovery=Recovery.REQUIRES_OPERATOR, retry=AT_ONCE, timeout_s=0.05)
    def refund(call: Any, *, order: str) -> Any:
        performed.append(order)

    @effect("pay.long", recovery=Recovery.IDEMPOTENT)
    def long(call: Any) -> Any:
        began.set()
        gate.wait()

    @skill("story.long")
    async def busy(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        await cx.do(long())

    @skill("story.run")
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return await cx.do(refund(order="1"))

    async with Plane.open(tmp_path / "plane.db", skills=[busy, body]) as plane:
        plane.world.effect_threads.total_tokens = 1
        await plane.start(Wanted(capability="story.long", input={}))
        await seen(began.is_set)
        outcome = await plane.run("story.run", {})
        failed = of_kind(plane, outcome.run, Failed)
        assert {one.disposition for one in failed} == {Disposition.DID_NOT_HAPPEN}
        assert outcome.status == "failed" and not performed
        gate.set()
        await plane.runs.wait_idle()
        assert not performed


async def test_forty_blocking_skills_do_not_starve_their_effects(tmp_path: Path) -> None:
    """Skills and effects have limiters of their own, so that every thread of the one may wait for the other."""

    @effect("pay.refund", recovery=Recovery.IDEMPOTENT)
    def refund(call: Any, *, order: str) -> Any:
        return order

    @skill("story.run")
    def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return [cx.do(refund(order=str(index))) for index in range(3)]

    async with Plane.open(tmp_path / "plane.db", skills=[body]) as plane:
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for _ in range(60):
                    nursery.start_soon(plane.run, "story.run", {})
        assert not plane.runs.live


async def test_a_blocking_step_has_the_same_rules(tmp_path: Path) -> None:
    """P12 in a thread: a stop is raised by every later call, cannot be swallowed, and other threads are refused."""
    provider = FakeProvider()
    provider.tell("refund", "in_doubt_before")
    caught: list[BaseException] = []

    @effect("pay.refund", recovery=Recovery.REQUIRES_OPERATOR)
    def refund(call: Any, *, order: str) -> Any:
        return provider.call_blocking(call, "refund", {"order": order})

    @skill("story.run")
    def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        def beside() -> None:
            try:
                cx.now()
            except InvalidRequest as error:
                caught.append(error)

        other = threading.Thread(target=beside)
        other.start()
        other.join()
        for _ in range(2):
            try:
                cx.do(refund(order="1"))
            except BaseException as error:
                caught.append(error)
        return "all is well"

    async with Plane.open(tmp_path / "plane.db", skills=[body]) as plane:
        outcome = await plane.run("story.run", {})
        assert outcome.status == "quarantined" and len(caught) == 3
        assert caught[1] is caught[2] and len(provider.asked) == 1
        assert len(of_kind(plane, outcome.run, EffectStarted)) == 1


async def test_a_blocking_step_that_was_cut_can_do_nothing_more(tmp_path: Path) -> None:
    """Its thread goes on for as long as it likes; every call it makes is refused, and nothing it does is recorded."""
    inside, gate, refused = threading.Event(), threading.Event(), threading.Event()

    @skill("story.run")
    def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        cx.now()
        inside.set()
        gate.wait()
        try:
            cx.now()
        except InvalidRequest:
            refused.set()
        return "late"

    async with Plane.open(tmp_path / "plane.db", skills=[body], recover=False) as plane:
        admission = await plane.start(Wanted(capability="story.run", input={}))
        await seen(inside.is_set)
        plane.runs.live[admission.run].stop()
        await plane.runs.wait_idle()
        gate.set()
        await seen(refused.is_set)
        assert kinds(plane, admission.run).count("EffectStarted") <= 1


async def test_a_run_set_aside_for_a_defect_keeps_its_lease_while_its_act_runs(tmp_path: Path) -> None:
    """W9, P5: a record of the run breaks an invariant beside an act in a thread; the run is quarantined, and its lease
    freed, only when that thread has ended."""
    inside, gate = threading.Event(), threading.Event()

    @effect("pay.refund", recovery=Recovery.REQUIRES_OPERATOR)
    def refund(call: Any) -> None:
        inside.set()
        gate.wait()

    @skill("story.run")
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return await cx.do(refund())

    async with Plane.open(tmp_path / "plane.db", skills=[body], recover=False) as plane:
        run = (await plane.start(Wanted(capability="story.run", input={}))).run
        await seen(inside.is_set)
        outcome: dict[str, object] = {"effect_key": "00" * 32, "step": 0, "output": None}
        with pytest.raises(JournalCorrupt):
            plane.runs.live[run].log.ride((EffectDone, outcome))
        live = plane.runs.live[run]
        await seen(lambda: live.log.latched is not None)
        with trio.move_on_after(0.3):
            await plane.runs.wait_idle()
        held = await plane.read(lambda tx: leases.holder(tx, run))
        assert held is not None and (await plane.outcome(run)).status == "running"
        gate.set()
        with trio.fail_after(20):
            await plane.runs.wait_idle()
        assert (await plane.outcome(run)).status == "quarantined"
