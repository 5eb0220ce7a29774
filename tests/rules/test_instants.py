"""Instants: one text for a millisecond, the text order is the time order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentplane.core.instants import MAX_MS, MIN_MS, InstantError, from_text, to_text

repeatable = settings(derandomize=True, database=None, deadline=None, max_examples=400)
instants = st.integers(MIN_MS, MAX_MS)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (1_764_517_267_123, "2025-11-30T15:41:07.123Z"),
        (951_782_400_000, "2000-02-29T00:00:00.000Z"),
        (MIN_MS, "0001-01-01T00:00:00.000Z"),
        (MAX_MS, "9999-12-31T23:59:59.999Z"),
    ],
)
def test_known_instants(ms: int, text: str) -> None:
    """The ends of the range, a leap day, before 1970."""
    assert to_text(ms) == text
    assert from_text(text) == ms


@repeatable
@given(instants)
def test_an_instant_is_read_back_and_the_standard_library_agrees(ms: int) -> None:
    """Both ways, and against datetime."""
    text = to_text(ms)
    assert from_text(text) == ms
    then = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    assert datetime.fromisoformat(text) == then


@repeatable
@given(instants, instants)
def test_text_order_is_time_order(one: int, other: int) -> None:
    """Columns that order by the text order by the instant."""
    assert (one < other) == (to_text(one) < to_text(other))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2025-11-30T15:41:07Z",
        "2025-11-30T15:41:07.12Z",
        "2025-11-30T15:41:07.1234Z",
        "2025-11-30T15:41:07.123",
        "2025-11-30T15:41:07.123+00:00",
        "2025-11-30t15:41:07.123Z",
        "2025-11-30T15:41:07.123z",
        "2025-11-30 15:41:07.123Z",
        "2025-11-30T15:41:07,123Z",
        "2025-11-30T24:00:00.000Z",
        "2025-11-30T15:60:00.000Z",
        "2016-12-31T23:59:60.000Z",
        "2025-02-29T00:00:00.000Z",
        "2025-13-01T00:00:00.000Z",
        "2025-00-01T00:00:00.000Z",
        "2025-01-00T00:00:00.000Z",
        "0000-01-01T00:00:00.000Z",
        "12025-11-30T15:41:07.123Z",
        "2025-11-30T15:41:07.123Z\n",
        " 2025-11-30T15:41:07.123Z",
        "٢025-11-30T15:41:07.123Z",
        "2025-W48-7T15:41:07.123Z",
    ],
    ids=ascii,
)
def test_every_other_text_is_refused(text: str) -> None:
    """Other precisions and offsets, a leap second, days that do not exist, digits that are not ASCII."""
    with pytest.raises(InstantError):
        from_text(text)


@pytest.mark.parametrize("ms", [MIN_MS - 1, MAX_MS + 1, 10**30, True, 1.0, None])
def test_milliseconds_that_no_text_can_say_are_refused(ms: object) -> None:
    """Outside the years 0001 to 9999, or not a whole number."""
    with pytest.raises(InstantError):
        to_text(ms)  # type: ignore[arg-type]
