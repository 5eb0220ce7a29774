"""The audit: every way in which the provider's book and the journal can differ, and the verdict reached from
it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from agentplane.lab.approvals import Approvals
from agentplane.lab.books import (
    DISPLACED,
    FAIL,
    HALVES,
    INCONCLUSIVE,
    PASS,
    STATUS,
    WINDOWS,
    Audit,
    Evidence,
    audit,
    judge,
    series_of,
)
from agentplane.lab.tickets import REVIEWED, Expected
from lab.lab_rows import done, failed, paid, settled, started


def test_books_that_say_the_same_agree() -> None:
    """A refund that both have, with order, amount, currency and key alike: nothing to report."""
    found = audit([paid(replays=2)], series_of([started(), done()]), [Expected("/refunds", "A-1", 4200)])
    assert found == Audit(refunds=1, replays=2)
    assert found.books_agree


def test_an_order_with_two_refunds_is_a_duplicate_and_the_second_an_orphan() -> None:
    """Paid twice under two keys: the duplicate names both references, and the journal claims only one of
    them."""
    found = audit([paid("rf_1"), paid("rf_2", key="k-2")], series_of([started(), done()]))
    assert [(each.order, each.refs) for each in found.duplicates] == [("A-1", ("rf_1", "rf_2"))]
    [orphan] = found.only_provider
    assert (orphan.ref, orphan.what) == ("rf_2", "the journal never announced it")
    assert not found.books_agree


def test_a_reship_sent_twice_is_a_duplicate_too_and_a_notice_of_the_same_order_is_not() -> None:
    """Duplicates are counted an order and a path."""
    rows = [paid("rs_1", path="/reships"), paid("rs_2", path="/reships"), paid("nt_1", path="/notices")]
    assert [(each.path, each.refs) for each in audit(rows, ()).duplicates] == [("/reships", ("rs_1", "rs_2"))]


@pytest.mark.parametrize(
    ("records", "state"),
    [
        ([started()], "open"),
        ([started(), done()], "landed"),
        ([started(), failed("landed")], "landed"),
        ([started(), failed("did_not_happen")], "did_not_happen"),
        ([started(), failed("in_doubt")], "open"),
        ([started(), failed("in_doubt"), started(attempt=2), failed("did_not_happen", attempt=2)], "open"),
        ([started(), failed("did_not_happen"), started(attempt=2)], "open"),
        ([started(), failed("did_not_happen"), started(attempt=2), done(attempt=2)], "landed"),
        ([started(), failed("in_doubt"), settled("landed", ref="rf_1")], "landed"),
        ([started(), failed("in_doubt"), settled("did_not_happen")], "did_not_happen"),
        ([started(), failed("in_doubt"), settled("did_not_happen", early=True)], "open"),
        ([started(), failed("in_doubt"), settled("inconclusive")], "open"),
        ([started(), settled("landed", ref="rf_1")], "landed"),
    ],
)  # fmt: skip
def test_a_series_is_what_all_its_attempts_say_together(records: list, state: str) -> None:
    """Doubt sticks until an attempt lands or a probe or person settles it (P2); an early verdict settles
    nothing (P5)."""
    [series] = series_of(records)
    assert series.state == state
    assert series.keys == ("k-1",)


def test_reads_and_other_peoples_effects_are_no_series() -> None:
    """Only what changes something at the provider is compared."""
    assert series_of([started(kind="order.look"), started(kind="clock.now")]) == ()


def test_series_are_kept_apart_by_run_and_place() -> None:
    """Two runs with the same place, two places in one run: four rows, four series."""
    records = [started(run, ordinal=place, key=f"{run}-{place}") for run in ("run_a", "run_b") for place in (1, 2)]
    assert [each.keys for each in series_of(records)] == [
        (f"{run}-{place}",) for run in ("run_a", "run_b") for place in (1, 2)
    ]


def test_what_only_one_book_has_is_named_with_the_reason() -> None:
    """Each kind of orphan, on either side."""
    cases = [
        ([paid()], [], "the journal never announced it"),
        ([paid()], [started()], "the journal does not know what became of it"),
        ([paid()], [started(), failed("did_not_happen")], "the journal says that it did not happen"),
        (
            [paid("rf_1"), paid("rf_2")],
            [started(), done()],
            "the journal knows another effect under this key",
        ),
    ]
    for rows, records, what in cases:
        found = audit(rows, series_of(records))
        assert [each.what for each in found.only_provider] == [what]
        assert not found.books_agree
    found = audit([], series_of([started(), done()]))
    assert [each.ref for each in found.only_journal] == ["rf_1"]
    assert not found.books_agree


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (paid(amount_minor=4201), "amount_minor: journal 4200, provider 4201"),
        (paid(order="A-2"), "order: journal 'A-1', provider 'A-2'"),
        (paid(currency="USD"), "currency: journal 'EUR', provider 'USD'"),
        (paid(key="k-9"), "key: journal 'k-1', provider 'k-9'"),
        (
            paid(path="/reships", amount_minor=4200, currency="EUR"),
            "path: journal '/refunds', provider '/reships'",
        ),
    ],
)
def test_a_pair_that_differs_is_a_mismatch(row: object, said: str) -> None:
    """The reference pairs them; every other column must be alike."""
    found = audit([row], series_of([started(), done()]))
    assert [each.what for each in found.mismatches] == [said]
    assert not found.books_agree


def test_a_landed_outcome_without_a_reference_is_paired_by_its_key() -> None:
    """`landed` with an answer that could not be read has no reference: the key says which row it was."""
    assert audit([paid()], series_of([started(), failed("landed")])).books_agree


def test_a_series_without_a_reference_does_not_take_the_row_of_one_that_names_it() -> None:
    """With keys ignored two rows share a key; the series that names its row gets that one."""
    records = [started(), failed("landed"), started("run_b"), done("run_b", ref="rf_1")]
    assert audit([paid("rf_1"), paid("rf_2")], series_of(records)).books_agree


def test_a_new_generation_of_the_key_belongs_to_the_same_series() -> None:
    """After a person's --new-key the row under the new key is claimed; one under the old key would be an
    orphan (P8)."""
    records = [started(), settled("did_not_happen"), started(key="k-2", attempt=2), done(attempt=2)]
    assert audit([paid(key="k-2")], series_of(records)).books_agree
    found = audit([paid("rf_0"), paid(key="k-2")], series_of(records))
    assert [each.ref for each in found.only_provider] == ["rf_0"]


def test_what_was_expected_and_never_landed_is_lost() -> None:
    """A settled ticket without its row, though both books agree about it."""
    found = audit([], (), [Expected("/refunds", "A-1", 4200)])
    assert found.books_agree
    assert found.lost == (Expected("/refunds", "A-1", 4200),)


GOOD = Evidence(
    Audit(refunds=18, replays=6),
    total=30,
    concluded=30,
    windows=dict.fromkeys(WINDOWS, 1),
    halves=dict.fromkeys(HALVES, 1),
    displaced=dict.fromkeys(DISPLACED, True),
    control_refunds_twice=True,
    approvals=Approvals(3, 3, 1),
    review=dict.fromkeys(REVIEWED, 1),
)

TWICE = audit([paid("rf_1"), paid("rf_2", key="k-2")], series_of([started(), done()]))
BROKEN = {
    "order A-1 has 2 refunds: rf_1, rf_2": {"audit": replace(TWICE, replays=1)},
    "order A-1 was lost: no refund": {"audit": Audit(lost=(Expected("/refunds", "A-1", 1),), replays=1)},
    "the provider has no such row": {"audit": replace(audit([], series_of([started(), done()])), replays=1)},
    "did not conclude": {"concluded": 29},
    "unanswered": {"unanswered": ("run_x",)},
    "W6 did not hold": {"displaced": {"W5": True, "W6": False, "W7": True}},
    "consumed at 2 places": {"approvals": Approvals(faults=("order A-1: its approval was consumed at 2 places",))},
}
UNPROVEN = {
    **{f"no kill fell into {name}": {"windows": {**GOOD.windows, name: 0}} for name in WINDOWS},
    **{f"into W4 {half}": {"halves": {**GOOD.halves, half: 0}} for half in HALVES},
    "replayed nothing": {"audit": Audit(refunds=18)},
    "would not show a duplicate": {"control_refunds_twice": False},
    "W5 was not run": {"displaced": {"W6": True, "W7": True}},
    **{f"no review came to: {how}": {"review": {**GOOD.review, how: 0}} for how in REVIEWED},
}


def test_the_verdict_is_pass_only_when_nothing_is_broken_and_everything_was_tried() -> None:
    """PASS has no reasons and status 0."""
    assert judge(GOOD) == (PASS, ())
    assert STATUS == {PASS: 0, FAIL: 1, INCONCLUSIVE: 5}


@pytest.mark.parametrize("said", BROKEN)
def test_anything_broken_fails_and_is_named(said: str) -> None:
    """Each finding alone is enough for FAIL, and the reason names it."""
    verdict, reasons = judge(replace(GOOD, **BROKEN[said]))
    assert verdict == FAIL
    assert any(said in reason for reason in reasons)


@pytest.mark.parametrize("said", UNPROVEN)
def test_what_was_not_tried_is_inconclusive_and_named(said: str) -> None:
    """Each missing crash alone is enough for INCONCLUSIVE."""
    verdict, reasons = judge(replace(GOOD, **UNPROVEN[said]))
    assert verdict == INCONCLUSIVE
    assert any(said in reason for reason in reasons)


def test_what_is_broken_outranks_what_was_not_tried() -> None:
    """For every pair: FAIL, and the missing crash is not used as an excuse."""
    for (said, broken), unproven in itertools.product(BROKEN.items(), UNPROVEN.values()):
        verdict, reasons = judge(replace(GOOD, **{**unproven, **broken}))
        assert verdict == FAIL
        assert any(said in reason for reason in reasons)
