"""The index against the history: after any records, a run's count of landed work is what the records say."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentplane.core.dispositions import Disposition
from agentplane.core.effects import REVERSAL_BIT, Phase
from agentplane.core.errors import AgentplaneError, InvariantViolation, LandedWork, NotApplicable, OpenEffects
from agentplane.core.history import History, Series, Trial, read_all
from agentplane.core.records import (
    EffectDone,
    EffectFailed,
    EffectReconciled,
    EffectStarted,
    GroupOpened,
    GroupSettled,
    Record,
    RunSuspended,
    StepCompensated,
    StepKept,
)
from agentplane.journal import appends, derive, lists
from agentplane.testkit.ledger import Ledger, ask, key_of
from journal.stores import PlainStore

STEPS, ORDINALS, KEYS = 2, 2, 12


def stands(series: Series, trial: Trial) -> bool:
    """Whether one attempt took effect, or may have, by the last word on it.

    Its outcome, then every verdict on it in order; a verdict that the series did not happen also takes the doubt (not
    the fact) from the attempts before it. An attempt without an outcome is counted as open and not as standing.
    """
    ended = trial.outcome
    state = None if ended is None else "done" if isinstance(ended, EffectDone) else ended.disposition.value
    # What was recorded later than this attempt's own outcome, of this and of later attempts, in the order of records.
    words = [(said.seq, said, one is trial) for one in series.trials for said in one.said]
    for _, said, mine in sorted(words, key=lambda word: word[0]):
        if not isinstance(said, EffectReconciled):
            continue
        final = said.verdict == "landed" or not said.early
        if mine and state != "done":
            state = said.verdict if final else "in_doubt"
        elif final and said.verdict == "did_not_happen" and state in ("in_doubt", "inconclusive"):
            state = "did_not_happen"
    return state in derive.STANDING


def recomputed(history: History) -> int:
    """``History.standing()`` by attempts: of each series that goes forward, mutates, is of no aborted group and of no
    step that was compensated or kept, the attempts that stand."""
    counted = [
        series
        for series in history.series.values()
        if series.first.mutates and history._counts(series) and series.spot.step not in history.undone
    ]
    return sum(stands(series, trial) for series in counted for trial in series.trials)


class Walk:
    """A run that records are appended to; what the journal refuses leaves both views as they were."""

    def __init__(self, store: PlainStore) -> None:
        self.one = Ledger(store).admit()
        self.attempts: dict[tuple[int, Phase, int], int] = {}
        self.place: dict[int, tuple[int, Phase, int]] = {}
        self.groups: dict[tuple[int, Phase], list[bool]] = {}
        self.taken: list[str] = []

    def of(self, kind: type[Record], place: tuple[int, Phase, int] | None = None, **members: Any) -> Record:
        if place is not None:
            members["step"] = place[0]
            if place[1] is not Phase.forward:
                members["phase"] = place[1].wire
        return self.one.record(kind, **members)

    def go(self, record: Record) -> bool:
        try:
            self.one.append(record)
        except InvariantViolation:
            raise
        except AgentplaneError:
            return False
        self.taken.append(type(record).__name__)
        return True

    def history(self) -> History:
        stored = ask(self.one.store, lists.whole_history, self.one.run)
        return read_all(self.one.run, (item.record for item in stored))


def draw_record(walk: Walk, data: st.DataObject) -> None:
    """One step of an arbitrary legal run, as the engine writes it: no attempt behind one that landed or is open, a
    verdict only on what is in doubt or open, a group's member only while it is open, one undoing of a step."""
    pick = data.draw
    kind = pick(st.sampled_from(("start", "start", "end", "end", "say", "open", "settle", "undo", "suspend")))
    history = walk.history()
    step, phase = pick(st.integers(0, STEPS - 1)), pick(st.sampled_from((Phase.forward, Phase.forward, Phase(1))))
    if kind == "start" and len(walk.place) < KEYS:
        if step in history.undone:
            return
        index = _open_group(walk, step, phase)
        group = index if index is not None and pick(st.booleans()) else None
        ordinal = pick(st.integers(0, ORDINALS - 1)) + (0 if group is None else 10 * (group + 1))
        ordinal |= REVERSAL_BIT if group is not None and pick(st.booleans()) else 0
        place = (step, phase, ordinal)
        series = next((one for one in history.series.values() if one.spot == place), None)
        if series is not None and not _may_repeat(series):
            return
        mutates = pick(st.booleans()) or pick(st.booleans()) if series is None else series.first.mutates
        key, attempt = len(walk.place), walk.attempts.get(place, 0) + 1
        walk.place[key] = place
        walk.attempts[place] = attempt
        started = walk.one.started(key, attempt=attempt, mutates=mutates)
        members = {name: getattr(started, name) for name in ("descriptor", "terms", "retry", "idempotency_key")}
        record = walk.of(EffectStarted, place, effect_key=key_of(key), mutates=mutates, attempt=attempt, group=group,
                         ordinal=ordinal, **members)  # fmt: skip
        assert walk.go(record)
    elif kind == "open" and _open_group(walk, step, phase) is None and step not in history.undone:
        of_place = walk.groups.setdefault((step, phase), [])
        assert walk.go(walk.of(GroupOpened, (step, phase, 0), group="g", index=len(of_place), resources=["r"]))
        of_place.append(True)
    elif kind == "settle" and (index := _open_group(walk, step, phase)) is not None:
        outcome = pick(st.sampled_from(("committed", "aborted", "aborted", "quarantined")))
        if walk.go(walk.of(GroupSettled, (step, phase, 0), group="g", index=index, outcome=outcome)):
            walk.groups[step, phase][index] = outcome == "quarantined"
    elif kind == "undo" and step not in history.undone:
        if pick(st.booleans()):
            walk.go(walk.of(StepCompensated, (step, Phase(1), 0), compensation="c"))
        else:
            walk.go(walk.of(StepKept, (step, Phase(1), 0), why="pivot"))
    elif kind == "suspend":
        walk.go(walk.of(RunSuspended, reason="w"))
    elif walk.place:
        _say(walk, history, kind, pick(st.sampled_from(sorted(walk.place))), pick)


def _say(walk: Walk, history: History, kind: str, key: int, pick: Any) -> None:
    series, trial = history.by_key[key_of(key)]
    place = walk.place[key]
    if kind == "end" and trial.outcome is None and not trial.said:
        if pick(st.booleans()):
            assert walk.go(walk.of(EffectDone, place, effect_key=key_of(key)))
            return
        failed = walk.one.failed(key, pick(st.sampled_from(Disposition)))
        assert isinstance(failed, EffectFailed)
        record = walk.of(EffectFailed, place, effect_key=key_of(key), fault=failed.fault,
                         disposition=failed.disposition)  # fmt: skip
        assert walk.go(record)
    elif kind == "say" and trial is series.last and not isinstance(trial.outcome, EffectDone):
        verdict = pick(st.sampled_from(("landed", "did_not_happen", "inconclusive")))
        early = verdict != "landed" and pick(st.booleans())
        # Only what is in doubt is asked about: an orphan, or a series whose doubt nothing has settled.
        if not any(stands(series, one) or (one.outcome is None and not one.said) for one in series.trials):
            return
        walk.go(walk.of(EffectReconciled, place, effect_key=key_of(key), verdict=verdict, early=early))


def _open_group(walk: Walk, step: int, phase: Phase) -> int | None:
    return next((at for at, is_open in enumerate(walk.groups.get((step, phase), ())) if is_open), None)


def _may_repeat(series: Series) -> bool:
    last = series.last
    landed = [one for one in last.said if isinstance(one, EffectReconciled) and one.verdict == "landed"]
    if isinstance(last.outcome, EffectDone) or landed or (last.outcome is None and not last.said):
        return False
    return not (isinstance(last.outcome, EffectFailed) and last.outcome.disposition is Disposition.LANDED)


@settings(max_examples=50, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_the_count_is_what_the_history_recomputes(data: st.DataObject) -> None:
    """P15, S93: ``run.landed`` is the attempts that stand by the records, ``run.open`` those without an outcome; and
    with none open, the count is above zero where and only where ``History.standing()`` has something."""
    with tempfile.TemporaryDirectory() as directory:
        store = PlainStore(Path(directory) / "plane.db")
        try:
            walk = Walk(store)
            for _ in range(data.draw(st.integers(1, 30))):
                draw_record(walk, data)
                history = walk.history()
                row = ask(store, lists.get_run, walk.one.run)
                opened = sum(
                    trial.outcome is None and not trial.said for one in history.series.values() for trial in one.trials
                )
                assert len(ask(store, appends.open_effects, walk.one.run)) == opened
                assert row.landed == recomputed(history), walk.taken
                if not opened:
                    assert (row.landed > 0) == bool(history.standing()), walk.taken
        finally:
            store.close()


def landed(one: Ledger) -> int:
    return ask(one.store, lists.get_run, one.run).landed


def test_what_undoes_is_not_counted_as_landed(plain: PlainStore) -> None:
    """A compensation's own calls take effect and are no landed work: a cancelled run may end over them."""
    one = Ledger(plain).admit()
    one.append(one.started(1))
    one.append(one.done(1))
    assert landed(one) == 1
    undoing = {name: getattr(one.started(2), name) for name in ("descriptor", "terms", "retry", "idempotency_key")}
    one.append(one.record(EffectStarted, step=0, phase="compensating", effect_key=key_of(2), mutates=True, attempt=1,
                          ordinal=0, **undoing))  # fmt: skip
    one.append(one.record(EffectDone, step=0, phase="compensating", effect_key=key_of(2)))
    assert landed(one) == 1
    with pytest.raises(LandedWork):
        one.append(one.concluded("cancelled"))
    one.append(one.record(StepCompensated, step=0, phase="compensating", compensation="c"))
    assert landed(one) == 0
    one.append(one.concluded("cancelled"))


def test_a_step_is_not_undone_over_an_open_call(plain: PlainStore) -> None:
    """While a call of the step is in the air nobody knows what to take back, or whether it was taken back."""
    one = Ledger(plain).admit()
    one.append(one.started(1))
    for kind, members in ((StepCompensated, {"compensation": "c"}), (StepKept, {"why": "pivot"})):
        with pytest.raises(OpenEffects):
            one.append(one.record(kind, step=0, phase="compensating", **members))
    one.append(one.done(1))
    one.append(one.record(StepKept, step=0, phase="compensating", why="pivot"))
    assert landed(one) == 0


def test_a_late_verdict_changes_no_count(plain: PlainStore) -> None:
    """What an unwind dealt with is settled: it may be said to have landed, and nothing else, and counts no more."""
    one = Ledger(plain).admit()
    one.append(one.started(1))
    one.append(one.failed(1))
    one.append(one.record(StepCompensated, step=0, phase="compensating", compensation="c"))
    one.append(one.verdict(1, "landed"))
    assert landed(one) == 0
    for verdict in ("did_not_happen", "inconclusive"):
        with pytest.raises(NotApplicable):
            one.append(one.verdict(1, verdict))
    assert landed(one) == 0


def test_a_verdict_on_a_later_attempt_of_settled_work_changes_no_count(plain: PlainStore) -> None:
    """An attempt in doubt, one refused behind it, and the step let stand: what is then said of the second attempt is
    about work that was dealt with."""
    one = Ledger(plain).admit()
    one.append(one.started(1))
    one.append(one.failed(1))
    one.append(one.started(2, attempt=2))
    one.append(one.failed(2, Disposition.DID_NOT_HAPPEN))
    one.append(one.record(StepKept, step=0, phase="compensating", why="pivot"))
    assert landed(one) == 0
    one.append(one.verdict(2, "landed"))
    assert landed(one) == 0
    one.append(one.concluded("cancelled"))


def member(one: Ledger, key: int, *, group: int | None = 0) -> Record:
    kept = {name: getattr(one.started(key), name) for name in ("descriptor", "terms", "retry", "idempotency_key")}
    return one.record(EffectStarted, step=0, effect_key=key_of(key), mutates=True, attempt=1, ordinal=key, group=group,
                      **kept)  # fmt: skip


def test_an_aborted_group_takes_its_own_work_off_the_count(plain: PlainStore) -> None:
    """Its members and their reversals, and neither another group's nor what stands beside; not while one is open."""
    one = Ledger(plain).admit()
    for index in (0, 1):
        one.append(one.record(GroupOpened, step=0, group="g", index=index, resources=["r"]))
    for key, group in ((1, 0), (2, 1), (3, None), (4, 0)):
        one.append(member(one, key, group=group))
        if key != 4:
            one.append(one.done(key))
    assert landed(one) == 3
    settled = {"step": 0, "group": "g", "index": 0}
    for outcome in ("aborted", "committed"):
        with pytest.raises(OpenEffects):
            one.append(one.record(GroupSettled, outcome=outcome, **settled))
    one.append(one.record(GroupSettled, outcome="quarantined", **settled))
    one.append(one.done(4))
    assert landed(one) == 4
    one.append(one.record(GroupSettled, outcome="aborted", **settled))
    assert landed(one) == 2
    with pytest.raises(InvariantViolation, match="INV-12"):
        one.append(one.record(GroupSettled, step=0, group="g", index=7, outcome="committed"))
    with pytest.raises(InvariantViolation, match="INV-12"):
        one.append(one.record(GroupOpened, step=0, group="g", index=1, resources=["r"]))


def test_a_group_left_open_under_a_seal_is_found(plain: PlainStore) -> None:
    """S79: Opened, never settled, and its run sealed: listed by place, a page at a time; an open run's group is not."""
    ends = [Ledger(plain, number).admit() for number in (1, 2, 3)]
    for one in ends:
        for index in (0, 1):
            one.append(one.record(GroupOpened, step=0, group=f"g{index}", index=index, resources=["r"]))
    ends[1].append(ends[1].record(GroupSettled, step=0, group="g0", index=0, outcome="committed"))
    for one in ends[:2]:
        one.append(one.concluded("abandoned"))
        ask(plain, appends.seal, one.run)
    paged: list[Any] = []
    after: tuple[str, int, int, int] | None = None
    while page := ask(plain, lists.unsettled_groups, limit=1, after=after):
        paged += [(row.run, row.index, row.name) for row in page]
        after = page[-1].cursor
    assert paged == [(ends[0].run, 0, "g0"), (ends[0].run, 1, "g1"), (ends[1].run, 1, "g1")]


def test_a_failed_run_whose_work_stands_is_found(plain: PlainStore) -> None:
    """S56: Failed over landed work, newest first; one that took it back, or never did any, is not in the list."""
    ends = [Ledger(plain, number).admit() for number in (1, 2, 3, 4)]
    for one in ends[:3]:
        one.append(one.started(1))
        one.append(one.done(1))
    ends[2].append(ends[2].record(StepCompensated, step=0, phase="compensating", compensation="c"))
    for one in ends:
        one.append(one.concluded("failed"))
    paged: list[str] = []
    before: tuple[int, str] | None = None
    while page := ask(plain, lists.failed_with_landed, limit=1, before=before):
        paged += [row.run for row in page]
        before = (page[-1].admitted_ms, page[-1].run)
    assert paged == [ends[1].run, ends[0].run]
