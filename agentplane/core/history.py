"""A run's records, read as what happened at each place.

Owns the reading of records into series of attempts, finished steps and the last conclusion. Refuses to
decide: it feeds ``decide_recovery``. Invariant: reading the records one by one as they are appended gives the
same history as reading all of them at once, so live and resumed runs decide from the same values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from agentplane.core import plan as plans
from agentplane.core.budget import Ledger
from agentplane.core.dispositions import Disposition
from agentplane.core.effects import Phase
from agentplane.core.errors import JournalCorrupt
from agentplane.core.instants import from_text
from agentplane.core.records import (
    BudgetRaised,
    BudgetReadmitted,
    BudgetRefused,
    CaseBound,
    DeadlineRegistered,
    EffectDone,
    EffectFailed,
    EffectReconciled,
    EffectStarted,
    GroupOpened,
    GroupSettled,
    PlanFrozen,
    QuarantineDecided,
    Record,
    RetryGranted,
    RunAdmitted,
    RunCancelled,
    RunConcluded,
    Spend,
    StepCompensated,
    StepFinished,
    StepKept,
    StepStarted,
    UnwindBegan,
)
from agentplane.core.recovery import Age, Answer, Attempt, Declared, Doubt, Said, in_doubt
from agentplane.core.retry import RetryPolicy

VERDICTS: Final = frozenset({Answer.LANDED, Answer.DID_NOT_HAPPEN, Answer.INCONCLUSIVE})


class Spot(NamedTuple):
    """A place without its attempt: where a series stands."""

    step: int
    phase: Phase
    ordinal: int


class GroupSpot(NamedTuple):
    """The n-th group of a step's phase."""

    step: int
    phase: Phase
    nth: int


class GroupState:
    """One effect group as recorded: its opening and, once there is one, the last word about how it ended."""

    __slots__ = ("opened", "settled")

    def __init__(self, opened: GroupOpened) -> None:
        self.opened = opened
        self.settled: GroupSettled | None = None


SLEEP: Final = "timer.sleep"
AWAIT: Final = "event.await"
TASK: Final = "task.open"
WAITS: Final = frozenset({SLEEP, AWAIT, TASK})
"""Kinds whose announcement waits for something to come, and is no orphan while it does."""


class Trial:
    """One attempt as recorded: its announcement, its outcome, and what was said of it since."""

    __slots__ = ("outcome", "said", "started")

    def __init__(self, started: EffectStarted) -> None:
        self.started = started
        self.outcome: EffectDone | EffectFailed | None = None
        self.said: list[EffectReconciled | RetryGranted] = []

    def attempt(self) -> Attempt:
        outcome = self.outcome
        failed = outcome if isinstance(outcome, EffectFailed) else None
        return Attempt(
            number=self.started.attempt,
            done=isinstance(outcome, EffectDone),
            ending=failed.disposition if failed else None,
            permanent=failed.permanent if failed else False,
            retry_after_ms=failed.retry_after_ms if failed else None,
            replayed_failure=failed.replayed_failure if failed else False,
            # Never dispatched, it is not one of the policy's attempts either: it was the process that stopped
            # (P13).
            by_death=failed is not None and (failed.lost_epoch is not None or failed.never_dispatched),
            said=tuple(_said(record) for record in self.said),
        )


def _said(record: EffectReconciled | RetryGranted) -> Said:
    if isinstance(record, RetryGranted):
        return Said(Answer.RETRY_GRANTED, by_person=True)
    if record.early and record.verdict != Answer.LANDED:
        return Said(Answer.SO_FAR)
    return Said(Answer(record.verdict), by_person=record.asserted_by is not None)


class Series:
    """Every attempt at one spot, in order."""

    __slots__ = ("spot", "trials")

    def __init__(self, spot: Spot) -> None:
        self.spot = spot
        self.trials: list[Trial] = []

    @property
    def first(self) -> EffectStarted:
        return self.trials[0].started

    @property
    def waits(self) -> bool:
        """Whether this is a wait that nothing has ended yet."""
        return self.last.outcome is None and self.first.descriptor.kind in WAITS

    @property
    def last(self) -> Trial:
        return self.trials[-1]

    def plainly_done(self) -> bool:
        """One attempt, and it succeeded: ``decide_recovery`` says Complete whatever else it is asked with, so that
        nobody needs to ask it."""
        return len(self.trials) == 1 and type(self.trials[0].outcome) is EffectDone

    def attempts(self) -> tuple[Attempt, ...]:
        return tuple(trial.attempt() for trial in self.trials)

    def declared(self) -> Declared:
        """The recovery as the first announcement recorded it: code may have changed since, the promise has
        not."""
        first = self.first
        return Declared(
            mode=first.terms.mode,
            mutates=first.mutates,
            probe=first.terms.probe,
            window_s=first.terms.window_s,
            timeout_ms=first.terms.timeout_ms,
            settle_ms=first.terms.settle_ms,
        )

    def policy(self) -> RetryPolicy:
        retry = self.first.retry
        return RetryPolicy(
            max_attempts=retry.max_attempts,
            base_ms=retry.base_ms,
            multiplier=retry.multiplier,
            cap_ms=retry.cap_ms,
        )

    def generation(self) -> int:
        """How often a person asked for a new idempotency key (P8)."""
        return sum(isinstance(said, EffectReconciled) and said.new_key for trial in self.trials for said in trial.said)

    def idempotency_key(self) -> str | None:
        """The key to send: attempt 1's of the present generation, or None when a new one must be derived
        (P6)."""
        generation = self.generation()
        for trial in self.trials:
            if trial.started.generation == generation:
                return trial.started.idempotency_key
        return None

    def age(self, now_ms: int | None, *, not_before_ms: int | None = None) -> Age:
        """``not_before_ms``: a restored copy's last known instant, before which the key may have been
        announced first."""
        generation = self.generation()
        announced = [from_text(t.started.at) for t in self.trials if t.started.generation == generation]
        first = announced[0] if announced else None
        if first is not None and not_before_ms is not None:
            first = min(first, not_before_ms)
        return Age(first_ms=first, last_ms=_sent_ms(self, now_ms), now_ms=now_ms)

    def output_record(self) -> EffectDone | EffectReconciled | None:
        """The record that holds the output of a completed series: the last one that says it landed."""
        for trial in reversed(self.trials):
            for said in reversed(trial.said):
                if isinstance(said, EffectReconciled) and said.verdict == Answer.LANDED:
                    return said
            if isinstance(trial.outcome, EffectDone):
                return trial.outcome
        return None

    def failure(self) -> EffectFailed | None:
        outcome = self.last.outcome
        return outcome if isinstance(outcome, EffectFailed) else None

    def doubt(self) -> Doubt:
        heard = self.last.said or (isinstance(self.last.outcome, EffectFailed) and self.last.outcome.lost_epoch is None)
        return Doubt.INCONCLUSIVE if heard else Doubt.ANNOUNCED

    def landed(self) -> bool:
        """Whether some attempt of a mutating series took effect, or may have."""
        if not self.first.mutates:
            return False
        settled = False
        for trial in self.trials:
            outcome = trial.outcome
            if (
                outcome is None
                or isinstance(outcome, EffectDone)
                or outcome.disposition is not Disposition.DID_NOT_HAPPEN
            ):
                settled = True
            for said in trial.said:
                if isinstance(said, EffectReconciled) and said.verdict == Answer.LANDED:
                    settled = True
                elif isinstance(said, EffectReconciled) and said.verdict == Answer.DID_NOT_HAPPEN:
                    settled = settled and said.early
        return settled


def _sent_ms(series: Series, now_ms: int | None) -> int:
    """The last instant at which the latest attempt can have begun to send (P5): its announcement or, where the machine
    stood still or the disk was slow between announcement and act, the timeout before its outcome. An orphan's sender
    may have lived until now."""
    last = series.last
    announced = from_text(last.started.at)
    ended = now_ms if last.outcome is None else from_text(last.outcome.at)
    return announced if ended is None else max(announced, ended - series.first.terms.timeout_ms)


class History:
    """What the records of one run say. ``add`` reads one more, in order; raises JournalCorrupt for an
    impossible one."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.admitted: RunAdmitted | None = None
        self.case: CaseBound | None = None
        self.deadlines: dict[str, DeadlineRegistered] = {}
        self.consumed: dict[str, tuple[Spot, str]] = {}
        """Approvals by task: the one place that each was consumed at, and the digest it was consumed for."""
        self.plan: PlanFrozen | None = None
        self.started: dict[int, StepStarted] = {}
        self.finished: dict[int, StepFinished] = {}
        self.frozen: list[PlanFrozen] = []
        self._nodes: tuple[int, dict[int, plans.Node]] = (0, {})
        self.undone: dict[int, StepCompensated | StepKept] = {}
        self.unwind: UnwindBegan | None = None
        self.groups: dict[GroupSpot, GroupState] = {}
        self.refused: dict[tuple[int, Phase, int | None], BudgetRefused] = {}
        self.readmitted: set[tuple[int, Phase, int | None]] = set()
        self.raised: list[BudgetRaised] = []
        self.series: dict[Spot, Series] = {}
        self._steps: dict[tuple[int, Phase], dict[int, Series]] = {}
        self.by_key: dict[str, tuple[Series, Trial]] = {}
        self.conclusion: RunConcluded | None = None
        self.cancelled: RunCancelled | None = None
        self.decision: QuarantineDecided | None = None
        self.spend = Spend()
        self.ledger = Ledger()
        self.seq = 0

    def add(self, record: Record) -> None:
        if record.run != self.run:
            raise self._impossible(record, f"it is a record of {record.run}")
        # Riders are read when they are queued and barriers when they are answered, so the order may differ
        # from that of the numbers wherever two series meet; within a series it does not.
        self.seq = max(self.seq, record.seq)
        self.ledger.add(record, reserved=self.ledger.reserved > 0)
        read = READ.get(type(record))
        if read is not None:
            read(self, record)

    def of_step(self, step: int, phase: Phase) -> list[Series]:
        """Every series of a step's phase, by ordinal."""
        return [series for _, series in sorted(self._steps.get((step, phase), {}).items())]

    def landed(self) -> list[Series]:
        """What took effect, or may have, going forward, and was not taken back with its group."""
        return [series for series in self.series.values() if series.landed() and self._counts(series)]

    def standing(self) -> list[Series]:
        """Landed work that no compensation took back and no unwind let stand (P15)."""
        return [series for series in self.landed() if series.spot.step not in self.undone]

    def doubts(self) -> list[Series]:
        """Mutations, of either phase, of which nobody can say whether they took effect."""
        return [series for series in self.series.values() if in_doubt(series.attempts(), series.first.mutates)]

    def nodes(self) -> dict[int, plans.Node]:
        """Every node of every version of the plan, by id: what ran may be of none that is in force."""
        if self._nodes[0] != len(self.frozen):
            found = {node.id: node for frozen in self.frozen for node in plans.from_data(frozen.plan).nodes}
            self._nodes = len(self.frozen), found
        return self._nodes[1]

    def waiting(self) -> list[Series]:
        return [series for series in self.series.values() if series.waits]

    def open_groups(self) -> list[GroupSpot]:
        """Groups of which nobody has said yet that they are whole or taken back: a quarantine is no such word."""
        return sorted(
            spot
            for spot, group in self.groups.items()
            if group.settled is None or group.settled.outcome == "quarantined"
        )

    def _counts(self, series: Series) -> bool:
        if series.spot.phase is not Phase.forward:
            return False
        index = series.first.group
        group = None if index is None else self.groups.get(GroupSpot(series.spot.step, series.spot.phase, index))
        return group is None or group.settled is None or group.settled.outcome != "aborted"

    def _outcome(self, record: Record) -> Trial:
        found = self.by_key.get(record.effect_key or "")
        if found is None:
            raise self._impossible(record, "an outcome without its announcement")
        return found[1]

    def _impossible(self, record: Record, why: str) -> JournalCorrupt:
        return JournalCorrupt(f"Run {self.run}, record {record.seq}: {why}.", run=self.run, seq=record.seq)


def read_all(run: str, records: Iterable[Record]) -> History:
    """The history of ``records`` from the first on; JournalCorrupt for a gap or an impossible record."""
    history = History(run)
    for record in records:
        if record.seq != history.seq + 1:
            raise history._impossible(record, f"it follows record {history.seq}")
        history.add(record)
    return history


def _admitted(history: History, record: RunAdmitted) -> None:
    if history.admitted is not None:
        raise history._impossible(record, "a second admission")
    history.admitted = record


def _case(history: History, record: CaseBound) -> None:
    if record.case is None or history.case is not None:
        raise history._impossible(record, "a run is bound to one case, and once")
    history.case = record


def _deadline(history: History, record: DeadlineRegistered) -> None:
    history.deadlines[record.name] = record


def _plan(history: History, record: PlanFrozen) -> None:
    history.plan = record
    history.frozen.append(record)


def _step_started(history: History, record: StepStarted) -> None:
    history.started[record.step or 0] = record


def _step_finished(history: History, record: StepFinished) -> None:
    history.finished[record.step or 0] = record


def _phase(history: History, record: Record) -> Phase:
    try:
        return Phase.forward if record.phase is None else Phase.from_wire(record.phase)
    except ValueError as error:
        raise history._impossible(record, str(error)) from None


def _effect_started(history: History, record: EffectStarted) -> None:
    phase = _phase(history, record)
    if record.effect_key is None or record.effect_key in history.by_key:
        raise history._impossible(record, "an announcement without a key of its own")
    spot = Spot(record.step or 0, phase, record.ordinal)
    series = history.series.get(spot) or Series(spot)
    if record.attempt != len(series.trials) + 1:
        why = f"attempt {record.attempt} follows attempt {len(series.trials)}"
        raise history._impossible(record, why)
    if series.trials and series.last.outcome is None and not series.last.said:
        raise history._impossible(record, f"attempt {record.attempt - 1} has no outcome (P3)")
    history.series[spot] = history._steps.setdefault((spot.step, phase), {})[spot.ordinal] = series
    if record.approval is not None:
        history.consumed.setdefault(record.approval.task, (spot, record.approval.digest))
    trial = Trial(record)
    series.trials.append(trial)
    history.by_key[record.effect_key] = (series, trial)


def _effect_ended(history: History, record: EffectDone | EffectFailed) -> None:
    trial = history._outcome(record)
    if trial.outcome is not None:
        raise history._impossible(record, "a second outcome of one attempt")
    trial.outcome = record
    history.spend = history.spend.plus(record.spend)


def _effect_said(history: History, record: EffectReconciled | RetryGranted) -> None:
    trial = history._outcome(record)
    if isinstance(trial.outcome, EffectDone):
        raise history._impossible(record, "a verdict on an effect that succeeded")
    if isinstance(record, EffectReconciled) and record.verdict not in VERDICTS:
        raise history._impossible(record, f"the unknown verdict {record.verdict[:40]!r}")
    trial.said.append(record)
    if isinstance(record, RetryGranted):
        history.conclusion = None


def _concluded(history: History, record: RunConcluded) -> None:
    history.conclusion = record
    history.decision = None


def _decided(history: History, record: QuarantineDecided) -> None:
    history.decision = record
    if record.decision == "reopen":
        history.conclusion = None


def _cancelled(history: History, record: RunCancelled) -> None:
    history.cancelled = record


def _group_opened(history: History, record: GroupOpened) -> None:
    spot = GroupSpot(record.step or 0, _phase(history, record), record.index)
    if spot in history.groups:
        raise history._impossible(record, f"a second opening of group {record.index} of step {spot.step}")
    history.groups[spot] = GroupState(record)


def _group_settled(history: History, record: GroupSettled) -> None:
    group = history.groups.get(GroupSpot(record.step or 0, _phase(history, record), record.index))
    if group is None:
        raise history._impossible(record, "a settlement of a group that was never opened")
    group.settled = record


def _unwind(history: History, record: UnwindBegan) -> None:
    history.unwind = record
    history.conclusion = None


def _undone(history: History, record: StepCompensated | StepKept) -> None:
    if record.step in history.undone:
        raise history._impossible(record, f"step {record.step} was unwound before")
    history.undone[record.step or 0] = record


def _budget_refused(history: History, record: BudgetRefused) -> None:
    place = (record.step or 0, _phase(history, record), record.ordinal)
    history.refused[place] = record
    history.readmitted.discard(place)


def _budget_readmitted(history: History, record: BudgetReadmitted) -> None:
    history.readmitted.add((record.step or 0, _phase(history, record), record.ordinal))


def _budget_raised(history: History, record: BudgetRaised) -> None:
    history.raised.append(record)


READ: Final[dict[type[Record], Callable[[History, Any], None]]] = {
    RunAdmitted: _admitted,
    CaseBound: _case,
    DeadlineRegistered: _deadline,
    PlanFrozen: _plan,
    StepStarted: _step_started,
    StepFinished: _step_finished,
    EffectStarted: _effect_started,
    EffectDone: _effect_ended,
    EffectFailed: _effect_ended,
    EffectReconciled: _effect_said,
    RetryGranted: _effect_said,
    RunConcluded: _concluded,
    QuarantineDecided: _decided,
    RunCancelled: _cancelled,
    GroupOpened: _group_opened,
    GroupSettled: _group_settled,
    UnwindBegan: _unwind,
    StepCompensated: _undone,
    StepKept: _undone,
    BudgetRefused: _budget_refused,
    BudgetReadmitted: _budget_readmitted,
    BudgetRaised: _budget_raised,
}
