"""Instants: UTC as integer milliseconds since 1970, and their one text, RFC 3339 with exactly milliseconds
and `Z`.

Refuses offsets, other precisions, lower case, leap seconds and years outside 0001 to 9999. Reads no clock.
Invariant: `from_text(to_text(ms)) == ms`, and texts sort as their instants do.
"""

from __future__ import annotations

import re
from datetime import date
from functools import lru_cache

_DAY_MS = 86_400_000
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
MIN_MS = (date.min.toordinal() - _EPOCH_ORDINAL) * _DAY_MS
MAX_MS = (date.max.toordinal() - _EPOCH_ORDINAL + 1) * _DAY_MS - 1

_shape = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([01][0-9]|2[0-3]):([0-5][0-9]):([0-5][0-9])\.([0-9]{3})Z", re.ASCII
)


class InstantError(ValueError):
    """A text that is not an instant in its one form, or milliseconds that no such text can say."""


def to_text(ms: int) -> str:
    """`2026-11-30T15:41:07.123Z` for milliseconds since 1970 (negative before)."""
    if type(ms) is not int or not MIN_MS <= ms <= MAX_MS:
        raise InstantError(f"an instant is whole milliseconds between {MIN_MS} and {MAX_MS}, not {ms!r}")
    seconds, millis = divmod(ms, 1000)
    return f"{_second_text(seconds)}.{millis:03}Z"


def from_text(text: str) -> int:
    """Milliseconds since 1970 of a text that `to_text` could have written; raises InstantError for every
    other."""
    found = _shape.fullmatch(text)
    if found is None:
        raise InstantError(f"{text[:40]!a} is not an instant of the form 2026-11-30T15:41:07.123Z")
    year, month, day, hour, minute, second, millis = map(int, found.groups())
    try:
        days = date(year, month, day).toordinal() - _EPOCH_ORDINAL
    except ValueError:
        raise InstantError(f"{text!a} names a day that no calendar has") from None
    return days * _DAY_MS + ((hour * 60 + minute) * 60 + second) * 1000 + millis


@lru_cache(maxsize=64)
def _second_text(seconds: int) -> str:
    # Records of one pass fall into few seconds; remembering their texts is most of the cost of a record's `at`.
    day, rest = divmod(seconds, 86_400)
    minutes, second = divmod(rest, 60)
    hour, minute = divmod(minutes, 60)
    return f"{_day_text(day)}T{hour:02}:{minute:02}:{second:02}"


@lru_cache(maxsize=64)
def _day_text(day: int) -> str:
    return date.fromordinal(_EPOCH_ORDINAL + day).isoformat()
