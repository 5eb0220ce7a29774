"""What is told, and when again: a decision over what was told and what is so now."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentplane.core.notices import (
    BACKOFF_MAX_S,
    COALESCE_S,
    FAILING,
    HALF_GONE,
    OPENED,
    SETTLED_MS,
    SUBJECTS_KEPT,
    UNANSWERED,
    Found,
    Notice,
    Now,
    Tally,
    Told,
    after,
    message_id,
    pause_s,
    to_tell,
    window,
)


def now(at_ms: int = 1000, **counts: int) -> Now:
    found = tuple(Found(condition=name, count=count) for name, count in counts.items())
    return Now(at_ms=at_ms, until_ms=at_ms, conditions=found)


def listed(at_ms: int = 1000, **subjects: str) -> Now:
    """Conditions with all of their subjects, a letter each."""
    found = tuple(Found(condition=name, count=len(those), subjects=tuple(those)) for name, those in subjects.items())
    return Now(at_ms=at_ms, until_ms=at_ms, conditions=found)


def said(told: Told, at: Now) -> list[tuple[str, int]]:
    return [(one.condition, one.count) for one in to_tell(told, at)]


@pytest.mark.parametrize(
    ("told", "found", "wanted"),
    [
        ({}, {}, []),
        ({}, {"a": 2}, [("a", 2)]),
        ({"a": 2}, {"a": 2}, []),
        ({"a": 2}, {"a": 1}, []),
        ({"a": 2}, {"a": 3}, [("a", 3)]),
        ({"a": 2}, {"a": 2, "b": 1}, [("b", 1)]),
    ],
)
def test_a_condition_is_told_when_it_is_new_or_has_more_subjects(
    told: dict[str, int], found: dict[str, int], wanted: list[tuple[str, int]]
) -> None:
    assert said(after(Told(), now(**told)), now(**found)) == wanted


@pytest.mark.parametrize(
    ("told", "found", "wanted"),
    [
        ("xy", "xy", []),
        ("xy", "yx", []),
        ("xy", "x", []),
        ("xy", "xz", [("a", 2)]),
        ("xy", "z", [("a", 1)]),
        ("xy", "xyz", [("a", 3)]),
    ],
)
def test_another_subject_in_the_place_of_one_that_is_over_is_news(
    told: str, found: str, wanted: list[tuple[str, int]]
) -> None:
    assert said(after(Told(), listed(a=told)), listed(a=found)) == wanted


def test_of_many_subjects_only_the_number_is_news() -> None:
    """What was not listed whole cannot be compared, and is not told again for it."""
    many = tuple(str(n) for n in range(SUBJECTS_KEPT + 1))
    crowd = Now(at_ms=1, until_ms=1, conditions=(Found(condition="a", count=len(many), subjects=many),))
    told = after(Told(), crowd)
    assert told.known["a"].subjects == ()
    fewer = Now(at_ms=2, until_ms=2, conditions=(Found(condition="a", count=50, subjects=many[:50]),))
    assert said(told, crowd) == [] and said(told, fewer) == [] and said(after(told, fewer), crowd) == [("a", 101)]


def test_a_condition_that_was_over_is_new_when_it_comes_back() -> None:
    first = after(Told(), now(a=2))
    gone = after(first, now())
    assert said(first, now(a=2)) == [] and said(gone, now(a=2)) == [("a", 2)]


def test_a_condition_is_since_it_was_first_seen_or_since_it_is_known_to_be() -> None:
    told = after(Told(), now(5, a=1))
    assert to_tell(told, now(9, a=2)) == [Notice(condition="a", count=2, oldest_ms=5)]
    dated = Now(at_ms=9, until_ms=9, conditions=(Found(condition="a", count=2, oldest_ms=3),))
    assert to_tell(told, dated) == [Notice(condition="a", count=2, oldest_ms=3)]


def test_tasks_are_told_by_kind_with_the_oldest() -> None:
    found = Now(at_ms=9, until_ms=9, opened=Tally(2, 3), half_gone=Tally(1, 7), unanswered=Tally(2, 8))
    assert to_tell(Told(), found) == [
        Notice(condition=OPENED, count=2, oldest_ms=3),
        Notice(condition=HALF_GONE, count=1, oldest_ms=7),
        Notice(condition=UNANSWERED, count=2, oldest_ms=8),
    ]


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**5)), min_size=1, max_size=12))
def test_the_stretches_of_looks_leave_no_instant_out(looks: list[tuple[int, int]]) -> None:
    """Each begins where the last one ended, or before, also when the clock was set back; and none ends among what is
    not committed."""
    told = after(Told(), now(looks[0][0]))
    for now_ms, unsettled_ms in looks:
        since, until = window(told, now_ms, unsettled_ms)
        assert until == now_ms - SETTLED_MS - unsettled_ms and since is not None
        assert since <= until and told.looked_ms is not None and since <= told.looked_ms
        if told.looked_ms <= until:
            assert since == told.looked_ms
        else:
            # Set back: what was written under the earlier hour, since the last look, is looked at.
            assert since == until - COALESCE_S * 1000
        told = after(told, Now(at_ms=now_ms, until_ms=until))


def test_a_store_that_told_nobody_has_no_stretch() -> None:
    """Whatever waits there is told."""
    assert window(Told(), 10_000, 500) == (None, 10_000 - SETTLED_MS - 500)


def test_a_message_that_is_sent_twice_has_one_name_and_other_news_has_another() -> None:
    """The instant of the look is not in it, nor that the last message failed; what was told before is."""

    def name(at: Now, told: Told | None = None, source: str = "p") -> str:
        told = told or Told()
        return message_id(source, told, at, to_tell(told, at))

    first = name(listed(1000, a="x"))
    assert first.startswith("msg_") and len(first) == 36
    failing = Now(at_ms=9000, until_ms=9000, conditions=(
        Found(condition="a", count=1, subjects=("x",)), Found(condition=FAILING, count=1),
    ))  # fmt: skip
    assert name(listed(9000, a="x")) == first == name(failing)
    others = [
        name(listed(a="y")), name(listed(a="xy")), name(listed(b="x")), name(listed(a="x"), source="q"),
        name(listed(a="x"), after(Told(), now(500))), name(listed(a="x"), after(Told(), now(b=1))),
        message_id("p", Told(), Now(at_ms=1, until_ms=1, opened=Tally(1, 1)), []),
        message_id("p", Told(), Now(at_ms=1, until_ms=1, half_gone=Tally(1, 1)), []),
    ]  # fmt: skip
    assert len({first, *others}) == 9


def test_what_is_kept_of_a_subject_does_not_tell_it() -> None:
    told = after(Told(), Now(at_ms=1, until_ms=1, conditions=(Found(condition="a", count=1, subjects=("case_7",)),)))
    (kept,) = told.known["a"].subjects
    assert len(kept) == 12 and "case" not in kept


def test_the_pause_grows_behind_failures_and_is_bounded() -> None:
    assert [pause_s(n) for n in (0, 1, 2, 3)] == [COALESCE_S, COALESCE_S, 2 * COALESCE_S, 4 * COALESCE_S]
    assert pause_s(50) == BACKOFF_MAX_S
