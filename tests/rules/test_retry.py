"""Waiting: derived, bounded, and never shorter than the provider asked within its ceiling."""

from __future__ import annotations

import hashlib
import json
from fractions import Fraction
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentplane.core.retry import WAIT_MAX_MS, RetryPolicy, backoff_ms, derived_jitter, parse_retry_after

WAITS = json.loads((Path(__file__).parent.parent / "vectors" / "jitter.json").read_text("ascii"))["waits"]
repeatable = settings(derandomize=True, database=None, deadline=None)
NOW = 784_111_770_000
"""Seven seconds before Sun, 06 Nov 1994 08:49:37 GMT."""

policies = st.builds(
    lambda base, more, multiplier, ceiling: RetryPolicy(
        base_ms=base, cap_ms=min(base + more, WAIT_MAX_MS), multiplier=multiplier, retry_after_cap_ms=ceiling
    ),
    st.integers(0, WAIT_MAX_MS),
    st.integers(0, WAIT_MAX_MS),
    st.integers(1, 100),
    st.integers(0, WAIT_MAX_MS),
)
attempts = st.integers(1, 2**32 - 1)


@pytest.mark.parametrize("row", WAITS, ids=[f"{row['key_hex'][:6]}-{row['attempt']}" for row in WAITS])
def test_a_published_wait_is_derived_again(row: dict[str, str | int]) -> None:
    """S7: Draw, jitter and backoff of the default policy, from the formula alone and by the module."""
    run, key, attempt = str(row["run"]), str(row["key_hex"]), int(row["attempt"])
    digest = hashlib.sha256(run.encode() + key.encode() + attempt.to_bytes(4, "big")).digest()
    draw = int.from_bytes(digest[:8], "big")
    assert str(draw) == row["u64"]
    exact = Fraction(1, 2) + Fraction(draw, 2 * (2**64 - 1))
    assert abs(Fraction(derived_jitter(run, key, attempt)) - exact) < Fraction(1, 10**15)
    raw = min(10_000, 100 * 2 ** min(attempt - 1, 30))
    assert backoff_ms(RetryPolicy(), run, key, attempt, None) == int(raw * exact) == row["backoff_ms"]


@repeatable
@given(st.text(st.characters(max_codepoint=127), max_size=30), st.binary(min_size=32, max_size=32), attempts)
def test_jitter_lies_between_a_half_and_one_and_is_derived(run: str, key: bytes, attempt: int) -> None:
    """The same inputs give the same wait, in every process and build."""
    jitter = derived_jitter(run, key.hex(), attempt)
    assert 0.5 <= jitter <= 1.0
    assert jitter == derived_jitter(run, key.hex(), attempt)


@repeatable
@given(policies, attempts, st.none() | st.integers(-5, 10**12))
def test_a_wait_is_bounded_and_keeps_what_was_asked(policy: RetryPolicy, attempt: int, asked: int | None) -> None:
    """An integer, at least half the curve, at most the cap; never less than asked within the ceiling."""
    wait = backoff_ms(policy, "run_x", "ab" * 32, attempt, asked)
    assert type(wait) is int
    honoured = min(max(asked or 0, 0), policy.retry_after_cap_ms)
    curve = min(policy.base_ms * policy.multiplier ** min(attempt - 1, 64), policy.cap_ms)
    assert max(curve // 2, honoured) <= wait <= max(curve, honoured)


def test_the_wait_grows_until_its_cap() -> None:
    """Whatever the draw, twice the base has a half that is the whole of the base: waits never shrink."""
    policy = RetryPolicy(max_attempts=20, base_ms=100, multiplier=2, cap_ms=10_000)
    waits = [backoff_ms(policy, "run_x", "00" * 32, attempt, None) for attempt in range(1, 8)]
    assert waits == sorted(waits)
    assert all(5_000 <= backoff_ms(policy, "run_x", "00" * 32, n, None) <= 10_000 for n in (8, 9, 1000, 2**32 - 1))


def test_advice_has_a_ceiling_of_its_own() -> None:
    """Longer than the cap of the backoff, up to `retry_after_cap_ms`, and no further."""
    policy = RetryPolicy(cap_ms=1_000, retry_after_cap_ms=60_000)
    ask = [backoff_ms(policy, "run_x", "00" * 32, 1, ms) for ms in (30_000, 60_000, 60_001, 10**15)]
    assert ask == [30_000, 60_000, 60_000, 60_000]
    assert backoff_ms(policy, "run_x", "00" * 32, 1, 0) == backoff_ms(policy, "run_x", "00" * 32, 1, None)


@pytest.mark.parametrize("attempt", [0, -1, 2**32, True])
def test_an_attempt_that_does_not_exist_has_no_wait(attempt: int) -> None:
    """Attempts count from 1 and fit 32 bits."""
    with pytest.raises(ValueError, match="attempt"):
        backoff_ms(RetryPolicy(), "run_x", "00", attempt, None)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("max_attempts", 0),
        ("max_attempts", 1001),
        ("max_attempts", 1.5),
        ("max_attempts", True),
        ("base_ms", -1),
        ("base_ms", 10_001),
        ("multiplier", 0),
        ("multiplier", 101),
        ("multiplier", 1.5),
        ("cap_ms", 99),
        ("cap_ms", WAIT_MAX_MS + 1),
        ("retry_after_cap_ms", -1),
        ("retry_after_cap_ms", WAIT_MAX_MS + 1),
        ("max_deaths", -1),
        ("max_deaths", "5"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_by_name(field: str, wrong: object) -> None:
    """In Python and from data alike."""
    with pytest.raises(ValueError, match=field if wrong not in (10_001, 99) else "base_ms"):
        RetryPolicy(**{field: wrong})  # type: ignore[arg-type]
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({field: wrong}, RetryPolicy)


def test_a_policy_has_its_published_defaults_and_no_unknown_fields() -> None:
    """What an author gets without a word, and a misspelt word is no silence."""
    expected = (3, 100, 2, 10_000, 60_000, 5)
    assert msgspec.structs.astuple(RetryPolicy()) == expected
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"max_attempt": 3}, RetryPolicy)
    with pytest.raises(AttributeError):
        RetryPolicy().max_attempts = 9  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("7", 7_000),
        (" 7 ", 7_000),
        ("007", 7_000),
        ("9" * 60, WAIT_MAX_MS),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 7_000),
        ("Sunday, 06-Nov-94 08:49:37 GMT", 7_000),
        ("Sun Nov  6 08:49:37 1994", 7_000),
        ("Sun, 06 Nov 1994 08:49:00 GMT", 0),
        ("Sun, 06 Nov 1994 08:48:60 GMT", 0),
        ("Sun, 06 Nov 1994 08:49:60 GMT", 30_000),
        ("Wed, 21 Oct 2093 07:28:00 GMT", WAIT_MAX_MS),
        ("Friday, 31-Dec-99 23:59:59 GMT", WAIT_MAX_MS),
        ("Monday, 01-Jan-45 00:00:00 GMT", 0),
        ("", None),
        ("-1", None),
        ("+1", None),
        ("1.5", None),
        ("1e3", None),
        ("٣", None),
        ("²", None),
        ("7, 8", None),
        ("soon", None),
        ("9" * 65, None),
        ("Sun, 06 Nov 1994 08:49:37", None),
        ("Sun, 06 Nov 1994 08:49:37 CET", None),
        ("Sun, 06 nov 1994 08:49:37 GMT", None),
        ("Sun, 31 Feb 1994 08:49:37 GMT", None),
        ("Sun, 06 Nov 0000 08:49:37 GMT", None),
        ("Sun, 06 Nov 1994 24:00:00 GMT", None),
        ("1994-11-06T08:49:37Z", None),
    ],
)
def test_retry_after_is_read_as_rfc_9110_has_it(text: str, ms: int | None) -> None:
    """Seconds or one of three dates, bounded; anything else says nothing."""
    assert parse_retry_after(text, NOW) == ms


@pytest.mark.parametrize(
    ("now_ms", "digits", "year"),
    [
        (NOW, 94, 1994),
        (NOW, 44, 2044),
        (NOW, 45, 1945),
        (1_900_000_000_000, 99, 1999),
        (1_900_000_000_000, 80, 2080),
    ],
)
def test_a_two_digit_year_is_at_most_fifty_years_ahead(now_ms: int, digits: int, year: int) -> None:
    """RFC 9110's rule for the oldest of the three forms, seen from 1994 and from 2030."""
    short = parse_retry_after(f"Friday, 01-Jan-{digits:02} 00:00:00 GMT", now_ms)
    assert short == parse_retry_after(f"Fri, 01 Jan {year} 00:00:00 GMT", now_ms)
    assert (short == WAIT_MAX_MS) == (year > 2030 or (now_ms == NOW and year > 1994))


@repeatable
@given(st.text(max_size=80), st.integers(-(10**18), 10**18))
def test_no_header_and_no_clock_breaks_the_reader(text: str, now_ms: int) -> None:
    """Both come from outside."""
    for value in (text, "Friday, 31-Dec-99 23:59:59 GMT"):
        wait = parse_retry_after(value, now_ms)
        assert wait is None or 0 <= wait <= WAIT_MAX_MS
