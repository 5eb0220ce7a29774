"""One effect at one place: from its description to its recorded outcome.

Owns the order announce, act, record, and carries out what ``decide_recovery`` says. Refuses to decide. Invariant: the
act begins only after the commit of its announcement, and its outcome is queued before anything else of the run can be.
"""

from __future__ import annotations

import msgspec

from agentplane.authoring.raising import EffectFailed
from agentplane.authoring.types import CallDescription
from agentplane.core import bounds, canonical
from agentplane.core.dispositions import Disposition
from agentplane.core.effects import Phase, Place, effect_key, idempotency_key
from agentplane.core.errors import (
    DiskLow,
    InvalidInput,
    JournalCorrupt,
    PayloadTooLarge,
    ensure,
    violated,
)
from agentplane.core.history import Series, Spot
from agentplane.core.records import (
    Approved,
    Descriptor,
    EffectDone,
    EffectReconciled,
    EffectStarted,
    Fault,
    Record,
    Terms,
    Undecided,
)
from agentplane.core.records import EffectFailed as FailedRecord
from agentplane.core.recovery import (
    Ask,
    Complete,
    DidNotHappen,
    Doubt,
    Escalate,
    Fail,
    Inconclusive,
    Landed,
    Mode,
    Next,
    Repeat,
    decide_recovery,
    in_doubt,
)
from agentplane.core.retry import backoff_ms
from agentplane.engine.act import CallContext, act, ask, fresh, verdict_members
from agentplane.engine.linking import Spec
from agentplane.engine.live import LiveRun
from agentplane.engine.observer import silent
from agentplane.engine.runlog import UNRECORDABLE
from agentplane.engine.stops import Divergence, Quarantine, WouldPerform

REVERSAL = "reversal"


class Bound(msgspec.Struct, frozen=True):
    """A call description with its arguments sized and encoded."""

    call: CallDescription
    args: bytes

    def fresh(self) -> dict[str, object]:
        """The arguments as data of their own, equal for every attempt whatever an earlier one did to its own."""
        return dict(msgspec.json.decode(self.args))


def bind(call: object) -> Bound:
    """Size and encode the arguments. Raises InvalidInput or PayloadTooLarge before anything is announced."""
    if not isinstance(call, CallDescription):
        raise InvalidInput(f"cx.do takes a call such as `refund(order=...)`, not {type(call).__name__}.")
    try:
        args = canonical.encode(call.args)
    except canonical.CanonicalError as error:
        raise InvalidInput(f"The arguments of {call.effect.kind} are not data: {error}.") from None
    if len(args) > bounds.VALUE_BYTES_MAX:
        raise PayloadTooLarge(
            f"The arguments of {call.effect.kind} have {len(args)} bytes, over the bound of {bounds.VALUE_BYTES_MAX}."
        )
    return Bound(call, args)


class Dispatcher:
    """Performs effects of one (step, phase) of a run, inside an act scope of the caller: when the run is cut, whatever
    is in hand ends there, and its announcement stays without an outcome, as after a kill (P11)."""

    def __init__(self, live: LiveRun, step: int, phase: Phase) -> None:
        self.live = live
        self.step = step
        self.phase = phase
        self.member: tuple[int, str] | None = None
        """The group, by index, and the role in it that what is performed now has."""
        self.approval: Approved | None = None
        """What a person approved, that what is performed now consumes."""
        self.deaf = False
        """What is under way may not be stopped half way by a cancel: a group past its frontier, or being taken back."""

    # --- the loop ----------------------------------------------------------------------------------------------------

    async def perform(self, spot: Spot, bound: Bound) -> object:
        """The effect's output. Raises EffectFailed when it failed for certain, and the stops."""
        series = self.live.history.series.get(spot)
        if series is None:
            series = await self._attempt(spot, bound, 1, backoff=0)
        else:
            self.same(series, bound)
        while True:
            if series.plainly_done():
                return await self._output(series)
            decided = self._decide(series)
            match decided:
                case Complete():
                    return await self._output(series)
                case Fail(settle=settle):
                    if settle:
                        self._settle(series)
                    raise self._failure(series)
                case Escalate(doubt=doubt, reason=reason):
                    raise self._escalation(series, doubt, reason)
                case Repeat():
                    await self._repeat(series, bound, decided)
                case Ask():
                    await self._ask(series, bound, decided)

    def served(self, series: Series, bound: Bound) -> tuple[bool, object]:
        """Whether the recorded output of a series that is plainly done can be given at once, and the output. Raises
        Divergence (P18)."""
        self.same(series, bound)
        outcome = series.last.outcome
        if not isinstance(outcome, EffectDone) or outcome.blob is not None:
            return False, None
        return True, fresh(outcome.output)

    def _point(self, name: str, key: object, kind: str, attempt: object) -> None:
        if self.live.world.observe is silent:
            return
        self.live.world.observe(name, run=self.live.run, step=self.step, effect=key, kind=kind, attempt=attempt)

    def _deaf(self, series: Series | None) -> bool:
        """Whether a cancel waits here: a doubt that a machine can still settle is settled first, or the cancel would
        quarantine a run that a plain resume finishes."""
        return self.deaf or (series is not None and in_doubt(series.attempts(), series.first.mutates))

    def _decide(self, series: Series) -> Next:
        world = self.live.world
        gap_ms = world.restored_gap_ms if self.live.restored else None
        age = series.age(world.trusted_now_ms(), not_before_ms=gap_ms)
        return decide_recovery(series.attempts(), series.declared(), series.policy(), age)

    def same(self, series: Series, bound: Bound) -> None:
        """P18: the place holds what is asked, or the run has diverged."""
        started = series.first
        kind = bound.call.effect.kind
        place = Place(self.step, self.phase, started.ordinal, started.attempt)
        if effect_key(place, kind, bound.args).hex() == started.effect_key:
            return
        recorded = canonical.encode(started.descriptor.args)
        raise Divergence(
            f"step {self.step}, {self.phase.wire}, ordinal {started.ordinal}: recorded "
            f"{started.descriptor.kind}({_short(recorded)}), asked {kind}({_short(bound.args)})",
            series.spot,
        )

    # --- announce, act, record ---------------------------------------------------------------------------------------

    async def _attempt(self, spot: Spot, bound: Bound, attempt: int, *, backoff: int) -> Series:
        live, effect = self.live, bound.call.effect
        if live.strict:
            raise WouldPerform(
                f"step {self.step}, {self.phase.wire}, ordinal {spot.ordinal}: the code asks {effect.kind}, "
                "and the history has nothing there"
            )
        series = live.history.series.get(spot)
        deaf = self._deaf(series)
        live.hear_cancel(deaf=deaf)
        if not effect.local:
            live.gate.check(effect.timeout_s)
        await live.log.room()
        members, key = self.announcement(spot, bound, attempt, backoff, series)
        self.within_budget(spot, members)
        try:
            if effect.local:
                return await self._local(spot, bound, members, key)
            while True:
                try:
                    await self._announce(spot, members, effect.kind)
                    break
                except DiskLow:
                    await live.wait_for_room(deaf=deaf)
                if series is not None:
                    return series  # what was allowed before the wait (a key window) may be over: decided again (P7)
        finally:
            if str(members["effect_key"]) not in live.history.by_key:
                live.history.ledger.unreserve_effect()
        self._point("effect.announced", members["effect_key"], effect.kind, attempt)
        ghost = live.restored and effect.mutates and not live.announced_since_restore(series)
        if not ghost:
            await self._act(bound, members, key, attempt)
        series = live.history.series[spot]
        if ghost:
            # A restored copy cannot know whether its original performed this: decided as an orphan would be.
            self._settle(series, "the store was restored; its original may have performed this")
        return series

    def within_budget(self, spot: Spot, members: dict[str, object]) -> None:
        """The first of the gates: an announcement takes its slot now, so that those side by side with it see it taken.
        What undoes is counted and not asked. Raises Exhausted."""
        live = self.live
        now_s = live.reading_s()
        if now_s is not None:
            members["clock_s"] = now_s
        if self.phase is Phase.forward and members.get("role") != REVERSAL:
            live.ask_budget("effect", self.step, self.phase, spot.ordinal, now_s)
        live.history.ledger.reserve_effect()

    def announcement(
        self, spot: Spot, bound: Bound, attempt: int, backoff: int, series: Series | None
    ) -> tuple[dict[str, object], str]:
        effect = bound.call.effect
        generation = series.generation() if series is not None else 0
        key = series.idempotency_key() if series is not None else None
        if key is None:
            key = idempotency_key(
                self.live.origin, self.step, self.phase, spot.ordinal, effect.kind, bound.args, generation
            )
        place = Place(self.step, self.phase, spot.ordinal, attempt)
        first = series.first if series is not None else None
        members: dict[str, object] = {
            "step": self.step,
            "effect_key": effect_key(place, effect.kind, bound.args).hex(),
            "descriptor": Descriptor(kind=effect.kind, args=bound.call.args),
            "terms": first.terms if first is not None else effect.terms(),
            "retry": first.retry if first is not None else effect.retry_terms(),
            "mutates": first.mutates if first is not None else effect.mutates,
            "attempt": attempt,
            "ordinal": spot.ordinal,
            "idempotency_key": key,
            "backoff_ms": backoff,
            "generation": generation,
            "local": effect.local,
        }
        if self.phase is not Phase.forward:
            members["phase"] = self.phase.wire
        if self.member is not None:
            members["group"], members["role"] = self.member
        approval = first.approval if first is not None else self.approval
        if approval is not None:
            members["approval"] = approval
        return members, key

    async def _announce(self, spot: Spot, members: dict[str, object], kind: str) -> None:
        live = self.live
        self._point("effect.announcing", members["effect_key"], kind, members["attempt"])

        def never() -> Spec:
            return FailedRecord, self._outcome_members(members) | {
                "fault": Fault(code="never_dispatched", message="never dispatched"),
                "disposition": Disposition.DID_NOT_HAPPEN, "never_dispatched": True,
            }  # fmt: skip

        await live.log.barrier((EffectStarted, members), extra=lambda _: live.check_room(), undone=never)

    async def _act(self, bound: Bound, members: dict[str, object], key: str, attempt: int) -> None:
        live, effect = self.live, bound.call.effect
        call = CallContext(live.world, effect, live.run, key, attempt, blocking=effect.blocking)
        self._point("effect.acting", members["effect_key"], effect.kind, attempt)
        kind, outcome, blobs = await act(live.world, effect, bound.fresh(), call)
        await self._thread_of(call)
        self._point("effect.acted", members["effect_key"], effect.kind, attempt)
        await self._record(members, kind, outcome, blobs)
        self._point("effect.recorded", members["effect_key"], effect.kind, attempt)

    async def _thread_of(self, call: CallContext) -> None:
        """Until its thread has really ended an act is in flight, and may still send: no outcome, no further attempt and
        no probe (P5). Killed meanwhile, it is an orphan like any other."""
        threads = self.live.world.threads
        thread = threads.get(call)
        if thread is not None:
            await thread.wait()
            threads.pop(call, None)

    async def _record(
        self, started: dict[str, object], kind: type[Record], outcome: dict[str, object], blobs: dict[bytes, bytes]
    ) -> None:
        """Queue the outcome: a rider, or a barrier where its loss would cost a person (W5). It is never refused."""
        members = self._outcome_members(started)
        try:
            await self._queue(started, (kind, members | outcome), blobs)
        except UNRECORDABLE as error:
            await self._queue(started, (FailedRecord, members | _unrecordable(outcome, kind, error)), {})

    async def _queue(self, started: dict[str, object], record: Spec, blobs: dict[bytes, bytes]) -> None:
        if _costs_a_person(started):
            await self.live.log.barrier(record, blobs=blobs)
        else:
            self.live.log.ride(record, blobs=blobs, linger=record[0] is EffectDone)

    async def _local(self, spot: Spot, bound: Bound, members: dict[str, object], key: str) -> Series:
        """A local effect touches nothing outside: both its records ride, held for whatever of the run is queued next,
        and no sync is paid."""
        live, effect = self.live, bound.call.effect
        await live.room(deaf=self.deaf)
        call = CallContext(live.world, effect, live.run, key, int(str(members["attempt"])), blocking=effect.blocking)
        kind, outcome, blobs = await act(live.world, effect, bound.fresh(), call)
        await self._thread_of(call)
        live.log.ride(
            (EffectStarted, members), (kind, self._outcome_members(members) | outcome), held=True, blobs=blobs
        )
        return live.history.series[spot]

    def _outcome_members(self, started: dict[str, object]) -> dict[str, object]:
        members: dict[str, object] = {"step": self.step, "effect_key": started["effect_key"]}
        if self.phase is not Phase.forward:
            members["phase"] = self.phase.wire
        return members

    # --- carrying decisions out --------------------------------------------------------------------------------------

    def _settle(self, series: Series, why: str = "the process that announced it is gone") -> None:
        """P3: the orphan is given its outcome, naming the dead epoch, before anything else happens to its series."""
        started = series.last.started
        ensure(series.last.outcome is None, "INV-08 only an orphan is settled")
        self.live.log.ride(
            (
                FailedRecord,
                self._outcome_members({"effect_key": started.effect_key})
                | {
                    "fault": Fault(code="lost", message=why),
                    "disposition": Disposition.IN_DOUBT,
                    "lost_epoch": started.epoch,
                },
            ),
            linger=False,
        )

    async def _repeat(self, series: Series, bound: Bound, decided: Repeat) -> None:
        if self.live.strict:
            raise WouldPerform(f"step {self.step}, ordinal {series.spot.ordinal}: the recorded series goes on")
        if decided.settle:
            self._settle(series)
        wait_ms = 0
        if decided.backoff:
            key = series.last.started.effect_key or ""
            wait_ms = backoff_ms(series.policy(), self.live.run, key, decided.backoff, decided.retry_after_ms)
            await self.live.pause(wait_ms / 1000, bound.call.effect.timeout_s, deaf=self._deaf(series))
            if not isinstance(self._decide(series), Repeat):
                return  # what was allowed before the wait (a key window) may be over: decided again
        await self._attempt(series.spot, bound, decided.attempt, backoff=wait_ms)

    async def _ask(self, series: Series, bound: Bound, decided: Ask) -> None:
        live, effect = self.live, bound.call.effect
        if live.strict:
            raise WouldPerform(f"step {self.step}, ordinal {series.spot.ordinal}: the recorded series is not decided")
        if decided.settle:
            self._settle(series)
        now_ms = live.world.now_ms()
        wait_s = 0.0
        if decided.counts_from_ms is None:
            # The age is unknown (P5): what can still arrive has arrived once the whole of it was waited out here.
            wait_s = (series.first.terms.timeout_ms + series.first.terms.settle_ms) / 1000
        elif decided.not_before_ms is not None:
            wait_s = max(0.0, (decided.not_before_ms - now_ms) / 1000)
        elif decided.backoff:
            key = series.last.started.effect_key or ""
            wait_s = backoff_ms(series.policy(), live.run, key, decided.backoff, None) / 1000
        if wait_s:
            await live.pause(wait_s, effect.timeout_s, deaf=True)
        live.gate.check(effect.timeout_s)
        await live.log.settle()
        started = series.last.started
        asked_ms = live.world.now_ms()
        call = CallContext(
            live.world, effect, live.run, started.idempotency_key, started.attempt, blocking=effect.probe_blocking
        )
        self._point("effect.asked", started.effect_key, effect.kind, started.attempt)
        verdict = await ask(live.world, effect, bound.fresh(), call)
        early = decided.counts_from_ms is not None and asked_ms < decided.counts_from_ms
        self._verdict(started, verdict, early=early)
        await self._thread_of(call)

    def _verdict(self, started: EffectStarted, verdict: Landed | DidNotHappen | Inconclusive, *, early: bool) -> None:
        """Every verdict is journaled (P5); one whose output cannot be recorded is inconclusive, and says why."""
        live, place = self.live, self._outcome_members({"effect_key": started.effect_key})
        said, blobs = verdict_members(live.world, verdict, early=early)
        try:
            live.log.ride((EffectReconciled, place | said), blobs=blobs, linger=False)
        except UNRECORDABLE as error:
            detail = live.world.secrets.sentence(f"the probe's answer cannot be recorded: {error}")
            said = {"verdict": "inconclusive", "early": early, "detail": detail}
            live.log.ride((EffectReconciled, place | said), linger=False)

    def _escalation(self, series: Series, doubt: Doubt, reason: str) -> Quarantine:
        started = series.last.started
        undecided = Undecided(
            effect=started.effect_key or "",
            step=self.step,
            phase=self.phase.wire,
            kind=started.descriptor.kind,
            doubt=doubt.value,
        )
        return Quarantine(f"{started.descriptor.kind} in step {self.step}: {reason}", "undecided", (undecided,))

    def _failure(self, series: Series) -> EffectFailed:
        failed = series.failure()
        if failed is None:
            violated("INV-09 a failed series has a recorded failure")
        return EffectFailed(
            series.first.descriptor.kind,
            failed.fault,
            failed.disposition,
            permanent=failed.permanent,
            ordinal=series.spot.ordinal,
        )

    async def _output(self, series: Series) -> object:
        record = series.output_record()
        if record is None:
            violated("INV-10 a completed series has an output")
        if record.blob is None:
            return fresh(record.output)
        # What is kept beside a record that only rides is read back when it is durable.
        await self.live.log.settle()
        try:
            return await self.live.read_blob(bytes.fromhex(record.blob.digest))
        except JournalCorrupt as error:
            raise Quarantine(
                f"step {self.step}, ordinal {series.spot.ordinal}: {error.message}", "journal_corrupt"
            ) from None


def is_asked_again(dispatcher: Dispatcher, series: Series, bound: Bound) -> bool:
    """Whether a person granted a recorded failure another attempt that nobody has made. Raises Divergence."""
    dispatcher.same(series, bound)
    return isinstance(dispatcher._decide(series), Repeat)


def _costs_a_person(started: dict[str, object]) -> bool:
    """W5: the outcome of a mutation that no machine can settle, by the terms that were recorded with it."""
    terms = started["terms"]
    if not started["mutates"] or not isinstance(terms, Terms):
        return False
    return terms.mode is Mode.REQUIRES_OPERATOR or (terms.mode is Mode.RECONCILE and not terms.probe)


def _unrecordable(outcome: dict[str, object], kind: type[Record], error: Exception) -> dict[str, object]:
    """The members of an outcome that cannot be written as it is; what it says of the world stays."""
    code = "not_data" if isinstance(error, canonical.CanonicalError) else "unrecordable"
    fault = Fault(code=code, message=f"the outcome cannot be recorded as it is ({type(error).__name__})",
                  path=getattr(error, "path", None))  # fmt: skip
    done = kind is EffectDone
    kept = {
        name: outcome[name] for name in ("spend", "elapsed_ms", "retry_after_ms", "replayed_failure") if name in outcome
    }
    return kept | {
        "fault": fault,
        "disposition": Disposition.LANDED if done else outcome["disposition"],
        "permanent": True if done else outcome.get("permanent", False),
    }


def _short(raw: bytes) -> str:
    text = raw.decode()
    return text if len(text) <= 160 else text[:157] + "..."
