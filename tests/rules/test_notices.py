"""What is told, and when again: a decision over what was told and what is so now."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentplane.core.notices import (
    BACKOFF_MAX_S,
    COALESCE_S,
    HALF_GONE,
    OPENED,
    UNANSWERED,
    Found,
    Notice,
    Now,
    Told,
    after,
    halves,
    pause_s,
    to_tell,
)


def now(**counts: int) -> Now:
    return Now(at_ms=1000, conditions=tuple(Found(condition=name, count=count) for name, count in counts.items()))


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
    said = to_tell(Told(counts=told), now(**found))
    assert [(one.condition, one.count) for one in said] == wanted


def test_a_condition_that_was_over_is_new_when_it_comes_back() -> None:
    first = after(now(a=2))
    gone = after(now())
    assert to_tell(first, now(a=2)) == [] and to_tell(gone, now(a=2)) == [Notice(condition="a", count=2)]


def test_tasks_are_told_by_kind_with_the_oldest() -> None:
    found = Now(at_ms=9, opened=(5, 3), halves=(7,), unanswered=(8, 8))
    assert to_tell(Told(), found) == [
        Notice(condition=OPENED, count=2, oldest_ms=3),
        Notice(condition=HALF_GONE, count=1, oldest_ms=7),
        Notice(condition=UNANSWERED, count=2, oldest_ms=8),
    ]


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(1, 100))), st.lists(st.integers(0, 220), min_size=2))
def test_each_half_is_told_in_exactly_one_look(windows: list[tuple[int, int]], looks: list[int]) -> None:
    """However the looks fall, the halves between the first and the last are each in one of them."""
    spans = [(opened, opened + width) for opened, width in windows]
    looks = sorted(looks)
    told = [one for before, at in pairwise(looks) for one in halves(spans, before, at)]
    assert sorted(told) == list(halves(spans, looks[0], looks[-1]))


def test_the_pause_grows_behind_failures_and_is_bounded() -> None:
    assert [pause_s(n) for n in (0, 1, 2, 3)] == [COALESCE_S, COALESCE_S, 2 * COALESCE_S, 4 * COALESCE_S]
    assert pause_s(50) == BACKOFF_MAX_S
