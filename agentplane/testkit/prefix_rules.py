"""The rules that every world of the prefix runner is held to.

Owns the reading of a run's records, before a world was resumed and after, as sentences of what is wrong. Refuses to
trust the index: it is compared with the records. Invariant: whatever looked at something counts it under its rule, so
that a report says what was checked and not only that nothing was found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from agentplane.core import plan as plans
from agentplane.core.budget import Ledger
from agentplane.core.effects import REVERSAL_BIT, Phase
from agentplane.core.errors import JournalCorrupt
from agentplane.core.history import WAITS, GroupSpot, GroupState, History, Series, Spot, read_all
from agentplane.core.records import (
    EffectDone,
    EffectFailed,
    EffectReconciled,
    EffectStarted,
    RunConcluded,
    Spend,
    StepCompensated,
    StepKept,
    UnwindBegan,
)
from agentplane.core.recovery import Mode
from agentplane.core.saga import Compensation
from agentplane.engine import waits
from agentplane.journal.timers import Timer
from agentplane.testkit.fakes import FakeProvider
from agentplane.testkit.worlds import Kept

Place = tuple[int, int]
"""When a step's work stood: (1, seq of its last landed record) where it never completed, (0, seq of its completion)
where it did. An unwind takes the highest back first."""


class Seen(msgspec.Struct, kw_only=True):
    """One world at rest. ``declared``: what each skill of the build says about being taken back; ``ledger``: that of
    the last execution, if there was one; ``timers``: the run's timer rows."""

    before: Kept
    after: Kept
    acted: list[str]
    leased: bool
    timers: list[Timer]
    declared: Mapping[str, Compensation]
    ledger: Ledger | None = None
    original: Kept | None = None
    provider: FakeProvider | None = None


def broken(seen: Seen, checked: Counter[str], *, at_rest: bool) -> list[str]:
    """Every rule that is broken, one sentence each. ``at_rest`` False: the world was refused, and stands as it was."""
    try:
        history = read_all(seen.after.row.run, (item.record for item in seen.after.stored))
    except JournalCorrupt as error:
        return [error.message]
    found: list[str] = []
    if at_rest:
        found += at_rest_rules(seen)
        found += outcome_rules(seen.after, checked)
        found += waits_and_timers(seen.after, seen.timers, checked)
        found += _ledger(seen, checked)
    found += never_again_rules(seen, history, checked)
    found += _to_the_end(seen, history, checked)
    found += provider_rules(seen.provider, history, checked)
    found += _unwound(seen, checked)
    found += _groups(seen.after, history, checked)
    found += _nothing_stands(seen.after, history, checked)
    return found


def complete(history: History) -> dict[Spot, int]:
    """Places that need nothing any more, with how many attempts they took."""
    return {spot: len(series.trials) for spot, series in history.series.items() if series.output_record() is not None}


# --- every run -------------------------------------------------------------------------------------------------------


def at_rest_rules(seen: Seen) -> Iterator[str]:
    status = seen.after.row.status
    if status in ("running", "suspended") or seen.leased:
        yield f"the run never came to rest: it is {status}, its lease {'held' if seen.leased else 'free'}"
    bodies = [item.body for item in seen.after.stored[: len(seen.before.stored)]]
    if bodies != [item.body for item in seen.before.stored]:
        yield "what was durable was changed"


def outcome_rules(after: Kept, checked: Counter[str]) -> Iterator[str]:
    """P3: at rest every announcement has exactly one outcome, a verdict, or is named as undecided. A wait has until its
    run is closed."""
    outcomes: Counter[str] = Counter()
    said: set[str] = set()
    waits: set[str] = set()
    announced: Counter[str] = Counter()
    for item in after.stored:
        record, key = item.record, item.record.effect_key or ""
        if isinstance(record, EffectStarted):
            announced[key] += 1
            if record.descriptor.kind in WAITS:
                waits.add(key)
        elif isinstance(record, EffectDone | EffectFailed):
            outcomes[key] += 1
        elif isinstance(record, EffectReconciled):
            said.add(key)
        said |= {one.effect for one in getattr(record, "undecided", [])}
    is_open = after.row.log_index is None
    checked["one outcome an announcement"] += len(announced)
    for key, times in announced.items():
        if times > 1:
            yield f"the effect {key[:16]} was announced {times} times"
        if outcomes[key] > 1:
            yield f"the effect {key[:16]} has {outcomes[key]} outcomes"
        if not outcomes[key] and key not in said and not (is_open and key in waits):
            yield f"the effect {key[:16]} has no outcome and is not named as undecided"


def never_again_rules(seen: Seen, later: History, checked: Counter[str]) -> Iterator[str]:
    """Nothing recorded as done is performed again, and a place keeps one idempotency key a generation."""
    earlier = read_all(seen.before.row.run, (item.record for item in seen.before.stored))
    for spot, attempts in complete(earlier).items():
        checked["done is not done again"] += 1
        if len(later.series[spot].trials) != attempts:
            yield f"the effect at {spot} was recorded as complete and attempted again"
    done_before = {key for key, (_, trial) in earlier.by_key.items() if trial.outcome is not None}
    for key, times in Counter(seen.acted).items():
        if key in done_before:
            yield f"the effect {key[:16]} had an outcome and was performed again"
        if times > 1:
            yield f"the attempt {key[:16]} was performed twice by one process"
    for spot, series in later.series.items():
        keys = {(trial.started.generation, trial.started.idempotency_key) for trial in series.trials}
        if len(keys) != len({generation for generation, _ in keys}):
            yield f"the effect at {spot} was sent under more than one key: {sorted(keys)}"


def _to_the_end(seen: Seen, history: History, checked: Counter[str]) -> Iterator[str]:
    """Success implies that every step of the last plan ran, and every effect that the original completed."""
    if seen.after.row.status != "succeeded":
        return
    if seen.after.row.log_index is None:
        yield "a succeeded run is not sealed"
    nodes = plans.from_data(history.plan.plan).nodes if history.plan is not None else ()
    for node in nodes:
        checked["success is every step of the last plan"] += 1
        finished = history.finished.get(node.id)
        if finished is None or finished.outcome != "succeeded":
            yield f"the run succeeded and step {node.id} did not finish"
    if seen.original is not None and seen.original.row.status == "succeeded":
        first = read_all(seen.original.row.run, (item.record for item in seen.original.stored))
        for spot in sorted(complete(first).keys() - complete(history).keys()):
            yield f"the run succeeded without the effect at {spot}"


def provider_rules(provider: FakeProvider | None, history: History, checked: Counter[str]) -> Iterator[str]:
    """At most one deed a key, where the effect does not declare that repeating it is harmless."""
    if provider is None:
        return
    landings = provider.landings()
    for key in provider.mismatched:
        yield f"the key {key} came with another body"
    for series in history.series.values():
        if not series.first.mutates or series.first.terms.mode is Mode.RETRY:
            continue
        for key in {trial.started.idempotency_key for trial in series.trials}:
            checked["one deed a key"] += 1
            if landings[key] > 1:
                yield f"{series.first.descriptor.kind} took effect {landings[key]} times under {key}"


def waits_and_timers(kept: Kept, rows: Sequence[Timer], checked: Counter[str]) -> Iterator[str]:
    """A timer row is an open wait of a run that has not ended, and a suspended run has one for each, at its instant."""
    history = read_all(kept.row.run, (item.record for item in kept.stored))
    wanted = {
        (series.last.started.effect_key, waits.due_ms(series)) for series in history.waiting()
        if kept.row.status == "suspended" and waits.due_ms(series) is not None
    }  # fmt: skip
    checked["timers are the open waits"] += any(
        series.first.descriptor.kind in WAITS for series in history.series.values()
    )
    found = {(timer.key.hex(), timer.due_ms) for timer in rows}
    if found != wanted:
        yield f"the {kept.row.status} run has {len(found)} timers, and {len(wanted)} waits that may fire"


def _ledger(seen: Seen, checked: Counter[str]) -> Iterator[str]:
    """What the last execution counted is what the records say, and so is what the conclusion says was spent."""
    folded, spent = Ledger(), Spend()
    for item in seen.after.stored:
        folded.add(item.record)
        if isinstance(item.record, EffectDone | EffectFailed):
            spent = spent.plus(item.record.spend)
    last = seen.after.stored[-1].record
    if isinstance(last, RunConcluded) and last.live_spend != spent and last.code != "invariant":
        yield f"the run concluded with {last.live_spend}, and its outcomes say {spent}"
    if seen.ledger is None:
        return
    checked["the ledger is the records"] += 1
    for name in Ledger.__slots__:
        live, read = getattr(seen.ledger, name), getattr(folded, name)
        if live != read:
            yield f"the ledger counted {live} {name}, and the records say {read}"


# --- undoing ---------------------------------------------------------------------------------------------------------


def _unwound(seen: Seen, checked: Counter[str]) -> Iterator[str]:
    """No unwind around doubt; what ran is taken back, once, in reverse; nothing at or before a pivot is."""
    history = History(seen.after.row.run)
    last: Place | None = None
    for item in seen.after.stored:
        record = item.record
        if isinstance(record, UnwindBegan):
            last = None
            checked["no unwind under doubt"] += 1
            if _doubts(history):
                yield f"an unwind began while {len(_doubts(history))} effects were in doubt"
        elif isinstance(record, StepCompensated | StepKept):
            step = record.step if record.step is not None else -1
            place = _place(history, step)
            checked["nothing is unwound twice"] += 1
            if history.unwind is None:
                yield f"step {step} was unwound before the unwind began"
            if place is None and isinstance(record, StepCompensated):
                yield f"step {step} was taken back and never did anything"
            if place is not None and last is not None:
                checked["the order is reverse"] += 1
                if place > last:
                    yield f"step {step} was unwound behind one that stood before it"
            last = place or last
            if isinstance(record, StepCompensated):
                yield from _held_by_a_pivot(history, step, place, seen.declared, checked)
        history.add(record)


def _held_by_a_pivot(
    history: History, step: int, place: Place | None, declared: Mapping[str, Compensation], checked: Counter[str]
) -> Iterator[str]:
    for other, started in history.started.items():
        if declared.get(started.skill) is not Compensation.PIVOT:
            continue
        checked["a pivot holds"] += 1
        at = _place(history, other)
        if at is not None and place is not None and at >= place:
            yield f"step {step} was taken back, at or before the pivot {other}"


def _place(history: History, step: int) -> Place | None:
    """None for a step that neither completed nor landed anything."""
    finished = history.finished.get(step)
    if finished is not None and finished.outcome == "succeeded":
        return 0, finished.seq
    landed = [_last_seq(series) for series in history.landed() if series.spot.step == step]
    return (1, max(landed)) if landed else None


def _last_seq(series: Series) -> int:
    last = series.last
    seqs = [last.started.seq, *(said.seq for said in last.said)]
    return max([*seqs, last.outcome.seq] if last.outcome is not None else seqs)


def _doubts(history: History) -> list[Series]:
    return [series for series in history.doubts() if series.spot.phase is Phase.forward]


def _nothing_stands(after: Kept, history: History, checked: Counter[str]) -> Iterator[str]:
    """P15: under a cancelled run's seal nothing of it stands, by its records and by its row; the two agree elsewhere
    too."""
    standing = history.standing()
    if after.row.status == "cancelled":
        checked["nothing stands under a cancelled run"] += 1
        if after.row.log_index is None:
            yield "a cancelled run is not sealed"
        if standing or after.row.landed:
            yield f"a cancelled run has {len(standing)} effects standing, {after.row.landed} by its row"
    elif not history.doubts() and bool(standing) != bool(after.row.landed):
        yield f"{len(standing)} effects stand by the records, {after.row.landed} by the row"


def _groups(after: Kept, history: History, checked: Counter[str]) -> Iterator[str]:
    """Under a seal every group is settled; an aborted one left nothing out, and a committed one took nothing back."""
    if after.row.status in ("succeeded", "cancelled") and after.row.log_index is not None:
        for spot in history.open_groups():
            yield f"the run is sealed and group {spot.nth} of step {spot.step} was never settled"
    for spot, group in history.groups.items():
        yield from _group(history, spot, group, checked)


def _group(history: History, spot: GroupSpot, group: GroupState, checked: Counter[str]) -> Iterator[str]:
    settled = group.settled
    if settled is None or settled.outcome not in ("aborted", "committed"):
        return
    checked[f"a group that is {settled.outcome}"] += 1
    for at, series in history.series.items():
        if (at.step, at.phase, series.first.group) != (spot.step, spot.phase, spot.nth):
            continue
        role = series.first.role
        if settled.outcome == "committed" and role == "reversal":
            yield f"group {spot.nth} of step {spot.step} is committed, and a member of it was taken back"
        elif settled.outcome == "aborted" and role in ("deferred", "atomic") and series.landed():
            yield f"group {spot.nth} of step {spot.step} is aborted, and its {role} member is out"
        elif settled.outcome == "aborted" and role == "reversible" and series.landed():
            back = history.series.get(Spot(at.step, at.phase, at.ordinal | REVERSAL_BIT))
            if back is None or back.output_record() is None:
                yield f"group {spot.nth} of step {spot.step} is aborted, and member {at.ordinal} stands"


__all__ = ["Seen", "broken", "complete", "waits_and_timers"]
