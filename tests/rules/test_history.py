"""Histories: the same values whether records are read as they come or all at once."""

from __future__ import annotations

from typing import Any

import pytest

from agentplane.core.dispositions import Disposition
from agentplane.core.effects import Phase
from agentplane.core.errors import JournalCorrupt
from agentplane.core.history import History, Series, Spot, read_all
from agentplane.core.instants import from_text, to_text
from agentplane.core.records import (
    Approved,
    CaseBound,
    DeadlineRegistered,
    Descriptor,
    QuarantineDecided,
    Record,
    RetryGranted,
    RetryTerms,
    RunAdmitted,
    RunCancelled,
    RunConcluded,
    Spend,
    StepFinished,
    StepStarted,
    Terms,
)
from agentplane.core.recovery import Age, Answer, Attempt, Declared, Doubt, Mode, Said, in_doubt
from agentplane.core.retry import RetryPolicy
from rules.record_samples import ANNA, AT, CASE, RUN, done, failed, make, samples, started, verdict

KEYS = [f"{i:064x}" for i in range(10)]
ADMITTED = samples()[0]
SPOT = Spot(0, Phase.forward, 0)


def story() -> list[Record]:
    """Two series and a read, with doubt, a verdict, a quarantine, a reopening and an end."""
    return [
        ADMITTED,
        samples()[1],
        make(StepStarted, 3, step=0, skill="s"),
        started(4, effect_key=KEYS[0]),
        started(5, effect_key=KEYS[1], ordinal=1, mutates=False),
        failed(6, effect_key=KEYS[0], lost_epoch=1, spend=Spend(tokens=5)),
        done(7, effect_key=KEYS[1], spend=Spend(tokens=2, minor_units=1)),
        started(8, effect_key=KEYS[2], attempt=2),
        failed(9, Disposition.DID_NOT_HAPPEN, effect_key=KEYS[2], permanent=True),
        verdict(10, "inconclusive", effect_key=KEYS[2], early=True),
        make(RunConcluded, 11, outcome="quarantined", chain_head="00" * 32),
        verdict(12, "did_not_happen", effect_key=KEYS[2], asserted_by=ANNA, new_key=True),
        make(QuarantineDecided, 13, decider=ANNA, reason="r", decision="reopen"),
        started(14, effect_key=KEYS[3], attempt=3, generation=1, idempotency_key="n" * 36),
        done(15, effect_key=KEYS[3], output=7),
        make(StepFinished, 16, step=0, outcome="succeeded", output=7),
        make(RunConcluded, 17, outcome="succeeded", chain_head="00" * 32),
    ]


def told(history: History) -> Any:
    """Everything a history answers, as values."""
    series = {
        spot: (
            s.attempts(),
            s.declared(),
            s.policy(),
            s.generation(),
            s.idempotency_key(),
            s.age(9),
            s.output_record(),
            s.failure(),
            s.doubt(),
            s.landed(),
        )
        for spot, s in history.series.items()
    }
    return (
        series,
        history.admitted,
        history.plan,
        history.started,
        history.finished,
        history.conclusion,
        history.cancelled,
        history.decision,
        history.spend,
        history.seq,
    )


def test_reading_one_by_one_is_reading_all_at_once() -> None:
    """At every prefix: what a live run decides from is what a resume at that point reads."""
    records = story()
    live = History(RUN)
    for length, record in enumerate(records, start=1):
        live.add(record)
        assert told(live) == told(read_all(RUN, records[:length]))
    assert live.seq == 17 and live.spend == Spend(tokens=7, minor_units=1)


def test_the_order_in_which_two_series_are_heard_does_not_matter() -> None:
    """Riders are read when queued and barriers when answered; only the order within a series counts."""
    records = story()
    swapped = [*records[:3], records[4], records[3], records[6], records[5], *records[7:]]
    live = History(RUN)
    for record in swapped:
        live.add(record)
    assert told(live)[1:] == told(read_all(RUN, records))[1:]
    assert live.series[SPOT].attempts() == read_all(RUN, records).series[SPOT].attempts()


def test_a_series_is_what_the_decision_asks_for() -> None:
    """Attempts with what was said of them, the recovery as first declared, the policy, and the last word."""
    series = read_all(RUN, story()).series[SPOT]
    assert series.attempts() == (
        Attempt(number=1, ending=Disposition.IN_DOUBT, by_death=True),
        Attempt(
            number=2, ending=Disposition.DID_NOT_HAPPEN, permanent=True,
            said=(Said(Answer.SO_FAR), Said(Answer.DID_NOT_HAPPEN, by_person=True)),
        ),
        Attempt(number=3, done=True),
    )  # fmt: skip
    assert not in_doubt(series.attempts(), True)
    assert series.declared() == Declared(mode=Mode.IDEMPOTENT, mutates=True, probe=False, window_s=72_000)
    assert series.policy() == RetryPolicy()
    assert read_all(RUN, story()).of_step(0, Phase.forward)[0].spot == SPOT
    assert read_all(RUN, story()).of_step(0, Phase.compensating) == []


def test_the_first_announcement_says_what_may_be_done() -> None:
    """P6, P1: terms, policy and key are read from attempt 1, whatever later builds would declare."""
    first = started(
        2, effect_key=KEYS[0], terms=Terms(mode=Mode.RECONCILE, probe=True, timeout_ms=1, settle_ms=2),
        retry=RetryTerms(max_attempts=7, base_ms=1, multiplier=3, cap_ms=9),
    )  # fmt: skip
    later = started(4, effect_key=KEYS[1], attempt=2, idempotency_key="z" * 36, mutates=False)
    series = read_all(RUN, [ADMITTED, first, failed(3, effect_key=KEYS[0]), later]).series[SPOT]
    declared = Declared(mode=Mode.RECONCILE, mutates=True, probe=True, window_s=None, timeout_ms=1, settle_ms=2)
    assert series.declared() == declared
    assert series.policy() == RetryPolicy(max_attempts=7, base_ms=1, multiplier=3, cap_ms=9)
    assert series.idempotency_key() == "k" * 36


def test_a_new_key_begins_a_generation_and_its_age() -> None:
    """P8, P7: until the new key is announced there is none to send, and its window starts with itself."""
    later = to_text(from_text(AT) + 90_000)
    records = [
        ADMITTED,
        started(2, effect_key=KEYS[0]),
        failed(3, effect_key=KEYS[0], replayed_failure=True),
        verdict(4, "did_not_happen", effect_key=KEYS[0], asserted_by=ANNA, new_key=True),
    ]
    series = read_all(RUN, records).series[SPOT]
    assert (series.generation(), series.idempotency_key(), series.age(5).first_ms) == (1, None, None)
    records.append(started(5, effect_key=KEYS[1], attempt=2, generation=1, idempotency_key="n" * 36, at=later))
    series = read_all(RUN, records).series[SPOT]
    assert (series.generation(), series.idempotency_key()) == (1, "n" * 36)
    assert series.age(5) == Age(first_ms=from_text(later), last_ms=from_text(later), now_ms=5)


def test_a_restored_copy_counts_a_keys_age_from_before_its_gap() -> None:
    """The original may have announced the same key any time after the copy was taken."""
    series = read_all(RUN, [ADMITTED, started(2)]).series[SPOT]
    at = from_text(AT)
    assert series.age(9, not_before_ms=at - 7) == Age(first_ms=at - 7, last_ms=at, now_ms=9)
    assert series.age(9, not_before_ms=at + 7) == Age(first_ms=at, last_ms=at, now_ms=9)


@pytest.mark.parametrize(
    ("tail", "output", "landed", "doubt"),
    [
        ([], None, True, Doubt.ANNOUNCED),
        ([done(3, output=1)], 1, True, Doubt.ANNOUNCED),
        ([failed(3, lost_epoch=1)], None, True, Doubt.ANNOUNCED),
        ([failed(3)], None, True, Doubt.INCONCLUSIVE),
        ([failed(3, Disposition.LANDED)], None, True, Doubt.INCONCLUSIVE),
        ([failed(3, Disposition.DID_NOT_HAPPEN)], None, False, Doubt.INCONCLUSIVE),
        ([failed(3), verdict(4, "inconclusive")], None, True, Doubt.INCONCLUSIVE),
        ([failed(3), verdict(4, "did_not_happen", early=True)], None, True, Doubt.INCONCLUSIVE),
        ([failed(3), verdict(4, "did_not_happen")], None, False, Doubt.INCONCLUSIVE),
        ([failed(3), verdict(4, "landed", output=2)], 2, True, Doubt.INCONCLUSIVE),
        ([failed(3), verdict(4, "landed", output=2, early=True)], 2, True, Doubt.INCONCLUSIVE),
        ([verdict(3, "landed", output=3, asserted_by=ANNA)], 3, True, Doubt.INCONCLUSIVE),
        ([verdict(3, "did_not_happen", asserted_by=ANNA)], None, False, Doubt.INCONCLUSIVE),
        ([failed(3, lost_epoch=1), started(4, effect_key=KEYS[5], attempt=2),
          failed(5, Disposition.DID_NOT_HAPPEN, effect_key=KEYS[5])], None, True, Doubt.INCONCLUSIVE),
        ([failed(3), started(4, effect_key=KEYS[5], attempt=2),
          failed(5, Disposition.DID_NOT_HAPPEN, effect_key=KEYS[5]), verdict(6, "landed", output=4)],
         4, True, Doubt.INCONCLUSIVE),
    ],
)  # fmt: skip
def test_what_landed_what_it_gave_and_how_it_is_doubted(
    tail: list[Record], output: Any, landed: bool, doubt: Doubt
) -> None:
    """A mutation counts as landed until it is certain that it did not; a landed verdict counts at once and on
    whichever attempt it was given; a read never lands."""
    series = read_all(RUN, [ADMITTED, started(2), *tail]).series[SPOT]
    found = series.output_record()
    assert (None if found is None else found.output) == output
    assert (series.landed(), series.doubt()) == (landed, doubt)
    assert Series(SPOT).attempts() == ()
    read = read_all(RUN, [ADMITTED, started(2, mutates=False), *tail])
    assert read.landed() == []


def test_landed_counts_at_once_and_anything_else_only_in_time() -> None:
    """P5: asked too early, a probe that found the deed is believed; one that did not is asked again."""
    said = [
        verdict(4, "landed", early=True),
        verdict(4, "did_not_happen", early=True),
        verdict(4, "inconclusive", early=True),
    ]
    heard = [read_all(RUN, [ADMITTED, started(2), failed(3), one]).series[SPOT].attempts()[0].said for one in said]
    assert heard == [(Said(Answer.LANDED),), (Said(Answer.SO_FAR),), (Said(Answer.SO_FAR),)]


def test_words_on_the_run_are_kept_and_the_last_conclusion_wins() -> None:
    """Reopening and a granted retry take the conclusion back; abandoning does not."""
    ended = make(RunConcluded, 4, outcome="failed", chain_head="00" * 32)
    base = [ADMITTED, started(2), failed(3, Disposition.DID_NOT_HAPPEN, permanent=True), ended]
    assert read_all(RUN, base).conclusion == ended
    granted = make(RetryGranted, 5, step=0, effect_key=started(2).effect_key, granted_by=ANNA, reason="r")
    again = read_all(RUN, [*base, granted])
    assert again.conclusion is None
    assert again.series[SPOT].attempts()[0].said == (Said(Answer.RETRY_GRANTED, by_person=True),)
    abandoned = make(QuarantineDecided, 5, decider=ANNA, reason="r", decision="abandon")
    assert read_all(RUN, [*base, abandoned]).conclusion == ended
    reopened = make(QuarantineDecided, 5, decider=ANNA, reason="r", decision="reopen")
    assert read_all(RUN, [*base, reopened]).conclusion is None
    assert read_all(RUN, [*base, reopened]).decision == reopened
    once_more = make(RunConcluded, 6, outcome="quarantined", chain_head="00" * 32)
    assert read_all(RUN, [*base, reopened, once_more]).decision is None
    cancelled = make(RunCancelled, 5, cancelled_by=ANNA, reason="r")
    assert read_all(RUN, [*base, cancelled]).cancelled == cancelled


OTHER = started(2, run="run_" + "0" * 26)
IMPOSSIBLE = [
    ("an outcome without its announcement", [done(2)]),
    ("an outcome without its announcement", [verdict(2, "landed")]),
    ("an outcome without its announcement", [failed(2, effect_key=None)]),
    ("attempt 2 follows attempt 0", [started(2, attempt=2)]),
    ("attempt 1 follows attempt 1", [started(2), done(3), started(4, effect_key=KEYS[1])]),
    ("attempt 1 has no outcome", [started(2), started(3, effect_key=KEYS[1], attempt=2)]),
    ("an announcement without a key of its own", [started(2), started(3, ordinal=1)]),
    ("an announcement without a key of its own", [started(2, effect_key=None)]),
    ("a second outcome of one attempt", [started(2), done(3), done(4)]),
    ("a second outcome of one attempt", [started(2), failed(3), failed(4)]),
    ("a verdict on an effect that succeeded", [started(2), done(3), verdict(4, "did_not_happen")]),
    ("the unknown verdict 'perhaps'", [started(2), failed(3), verdict(4, "perhaps")]),
    ("a second admission", [make(RunAdmitted, 2, **{n: getattr(ADMITTED, n) for n in (
        "capability", "input", "input_label", "canon", "tenant", "origin", "currency")})]),
    ("it is a record of run_0000", [OTHER]),
    ("it follows record 1", [started(3)]),
    ("it follows record 2", [started(2), done(2)]),
    ("a phase is forward or compensating", [started(2, phase="sideways")]),
]  # fmt: skip


@pytest.mark.parametrize(("why", "tail"), IMPOSSIBLE, ids=[f"{i}-{w[:24]}" for i, (w, _) in enumerate(IMPOSSIBLE)])
def test_an_impossible_sequence_is_a_damaged_journal(why: str, tail: list[Record]) -> None:
    """Never a default, never a guess: the run and the record are named."""
    with pytest.raises(JournalCorrupt, match=why) as caught:
        read_all(RUN, [ADMITTED, *tail])
    assert caught.value.details["seq"] == tail[-1].seq
    assert f"Run {RUN}, record {tail[-1].seq}:" in caught.value.message


def test_the_latest_attempt_may_have_begun_long_after_its_announcement() -> None:
    """P5: a machine that stands still between the two is not known but by when the outcome came; what nobody recorded
    may have been sent up to now."""
    at = from_text(AT)
    terms = Terms(mode=Mode.RECONCILE, probe=True, window_s=None, timeout_ms=1_000, settle_ms=500)
    history = History(RUN)
    history.add(started(1, effect_key=KEYS[0], terms=terms))
    series = history.series[SPOT]
    assert series.age(None).last_ms == series.age(at - 5).last_ms == series.age(at + 1_000).last_ms == at
    assert series.age(at + 60_000).last_ms == at + 59_000
    history.add(failed(2, effect_key=KEYS[0], at=to_text(at + 9_000)))
    assert series.age(at + 60_000).last_ms == series.age(None).last_ms == at + 8_000


# --- what outlives the run -------------------------------------------------------------------------------------------


def bound(seq: int, **members: Any) -> CaseBound:
    return make(CaseBound, seq, **({"case": CASE, "case_kind": "c", "opened": True, "correlation": []} | members))


def owed(seq: int, at: str) -> DeadlineRegistered:
    return make(
        DeadlineRegistered, seq, step=0, name="reply", resolved_at=at, warn_at=AT, calendar_digest="ca" * 32
    )  # fmt: skip


def test_a_run_is_bound_to_one_case_and_once() -> None:
    """The case is the envelope's; a second binding, or one to none, is a damaged journal."""
    assert read_all(RUN, [ADMITTED]).case is None
    history = read_all(RUN, [ADMITTED, bound(2)])
    assert history.case is not None and history.case.case == CASE
    for bad in ([ADMITTED, bound(2), bound(3)], [ADMITTED, bound(2, case=None)]):
        with pytest.raises(JournalCorrupt, match="one case"):
            read_all(RUN, bad)


def test_a_deadline_of_a_name_is_the_one_that_was_registered_last() -> None:
    """One that has ended makes room for another of its name."""
    first, second = owed(3, "2026-12-07T16:00:00.000Z"), owed(4, "2026-12-14T16:00:00.000Z")
    begun = [ADMITTED, samples()[1]]
    assert read_all(RUN, begun).deadlines == {}
    assert read_all(RUN, [*begun, first]).deadlines == {"reply": first}
    assert read_all(RUN, [*begun, first, second]).deadlines == {"reply": second}


def test_an_approval_is_consumed_at_the_place_that_announced_it_first() -> None:
    """The attempts of that place share it; it never moves to another."""
    task, digest = "7e" * 32, "5d" * 32
    approval = Approved(task=task, digest=digest)
    records = [
        ADMITTED, samples()[1], make(StepStarted, 3, step=0, skill="s"),
        started(4, effect_key=KEYS[0], approval=approval),
        failed(5, Disposition.DID_NOT_HAPPEN, effect_key=KEYS[0]),
        started(6, effect_key=KEYS[1], attempt=2, approval=approval),
    ]  # fmt: skip
    assert read_all(RUN, records[:3]).consumed == {}
    assert read_all(RUN, records[:4]).consumed == read_all(RUN, records).consumed == {task: (SPOT, digest)}
    elsewhere = started(7, effect_key=KEYS[2], ordinal=1, approval=Approved(task=task, digest="6e" * 32))
    assert read_all(RUN, [*records, done(7, effect_key=KEYS[1])]).consumed == {task: (SPOT, digest)}
    assert read_all(RUN, [*records, elsewhere]).consumed == {task: (SPOT, digest)}


@pytest.mark.parametrize("kind", ["timer.sleep", "event.await", "task.open"])
def test_a_wait_that_has_not_ended_is_no_orphan(kind: str) -> None:
    """Its announcement waits for something to come; its outcome ends it as any other's does."""
    begun = [ADMITTED, samples()[1], make(StepStarted, 3, step=0, skill="s")]
    begun.append(started(4, effect_key=KEYS[0], mutates=False, descriptor=Descriptor(kind=kind, args={})))
    assert [series.spot for series in read_all(RUN, begun).waiting()] == [SPOT]
    assert read_all(RUN, begun).series[SPOT].waits
    ended = read_all(RUN, [*begun, done(5, effect_key=KEYS[0])])
    assert list(ended.waiting()) == [] and not ended.series[SPOT].waits
