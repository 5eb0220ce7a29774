"""How long to wait before an effect is tried again, and how often at most.

Owns the retry policy, the backoff with jitter derived from the run and the key, and the reading of
`Retry-After`. Refuses policies that never end or never wait within a day. Invariant: the same run, key and
attempt give the same wait on every build and machine (integers only), so a replay needs no record of it. What
may be tried again at all is `recovery`'s to decide.
"""

from __future__ import annotations

import re
from datetime import date
from hashlib import sha256

import msgspec

from agentplane.core import bounds

WAIT_MAX_MS = 86_400_000
"""One day. A longer wait is a durable sleep of the skill, not a backoff that holds a lease."""

ATTEMPTS_MAX = 1_000
MULTIPLIER_MAX = 100
_U32_MAX = 2**32 - 1
_U64_MAX = 2**64 - 1
_HEADER_MAX = 64
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_month = "(?P<month>" + "|".join(_MONTHS) + ")"
_time = "(?P<hour>[01][0-9]|2[0-3]):(?P<minute>[0-5][0-9]):(?P<second>[0-5][0-9]|60)"
_short = "(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_long = "(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day"
_dates = (
    re.compile(rf"{_short}, (?P<day>[0-9]{{2}}) {_month} (?P<year>[0-9]{{4}}) {_time} GMT"),
    re.compile(rf"{_long}, (?P<day>[0-9]{{2}})-{_month}-(?P<year>[0-9]{{2}}) {_time} GMT"),
    re.compile(rf"{_short} {_month} (?P<day>[ 0-9][0-9]) {_time} (?P<year>[0-9]{{4}})"),
)


class RetryPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How an effect may be tried again. Times are milliseconds. Raises ValueError with one sentence a fault.

    `max_attempts` counts the first; `max_deaths` bounds the attempts lost to the death of their owner, which
    do not count against it (P3); `retry_after_cap_ms` is the most that a provider's own advice may ask for.
    """

    max_attempts: int = 3
    base_ms: int = 100
    multiplier: int = 2
    cap_ms: int = 10_000
    retry_after_cap_ms: int = bounds.RETRY_AFTER_MAX_S * 1000
    max_deaths: int = bounds.DEATHS_MAX

    def __post_init__(self) -> None:
        _check("max_attempts", self.max_attempts, 1, ATTEMPTS_MAX)
        _check("base_ms", self.base_ms, 0, WAIT_MAX_MS)
        _check("multiplier", self.multiplier, 1, MULTIPLIER_MAX)
        _check("cap_ms", self.cap_ms, 0, WAIT_MAX_MS)
        _check("retry_after_cap_ms", self.retry_after_cap_ms, 0, WAIT_MAX_MS)
        _check("max_deaths", self.max_deaths, 0, ATTEMPTS_MAX)
        if self.base_ms > self.cap_ms:
            raise ValueError(f"base_ms ({self.base_ms}) is not over cap_ms ({self.cap_ms})")


def derived_jitter(run: str, key_hex: str, attempt: int) -> float:
    """A fraction in [0.5, 1.0]: half + half * u / (2^64 - 1), u the first eight bytes, big-endian, of
    SHA-256(run text || key in hexadecimal || attempt u32 big-endian)."""
    return 0.5 + 0.5 * (_draw(run, key_hex, attempt) / _U64_MAX)


def backoff_ms(policy: RetryPolicy, run: str, key_hex: str, attempt: int, retry_after_ms: int | None) -> int:
    """Milliseconds to wait after `attempt` (1-based) failed, before the next one.

    `base * multiplier^(attempt-1)` up to the cap, times the derived jitter; or what the provider asked for,
    up to its own ceiling, when that is longer. `retry_after_ms` is None, or below zero, when nothing was
    asked.
    """
    draw = _draw(run, key_hex, attempt)
    wait = policy.base_ms
    if policy.multiplier > 1 and wait:
        # The cap is reached after at most 27 doublings; a larger exponent would only grow a number to cut it
        # again.
        wait *= policy.multiplier ** min(attempt - 1, WAIT_MAX_MS.bit_length())
    wait = min(wait, policy.cap_ms)
    own = wait * (_U64_MAX + draw) // (2 * _U64_MAX)
    return max(own, min(retry_after_ms or 0, policy.retry_after_cap_ms))


def parse_retry_after(text: str, now_ms: int) -> int | None:
    """Milliseconds that a `Retry-After` value asks for, at most WAIT_MAX_MS; None when it says nothing
    readable.

    Reads seconds and the three date forms of RFC 9110; a date that has passed asks for 0. `now_ms`: since
    1970.
    """
    if len(text) > _HEADER_MAX:
        return None
    text = text.strip(" \t")
    if text.isascii() and text.isdecimal():
        return min(int(text) * 1000, WAIT_MAX_MS)
    for form in _dates:
        found = form.fullmatch(text)
        if found is not None:
            then = _date_ms(found, now_ms)
            return None if then is None else min(max(then - now_ms, 0), WAIT_MAX_MS)
    return None


def _date_ms(found: re.Match[str], now_ms: int) -> int | None:
    year = int(found["year"])
    if len(found["year"]) == 2:
        # RFC 9110: the year with these digits that is at most fifty years ahead, and the latest such.
        latest = _year_of(now_ms) + 50
        year = latest - (latest - year) % 100
    try:
        days = date(year, _MONTHS.index(found["month"]) + 1, int(found["day"])).toordinal() - _EPOCH_ORDINAL
    except ValueError:
        return None
    hour, minute, second = int(found["hour"]), int(found["minute"]), int(found["second"])
    return ((days * 24 + hour) * 60 + minute) * 60_000 + second * 1000


def _year_of(now_ms: int) -> int:
    ordinal = _EPOCH_ORDINAL + now_ms // 86_400_000
    return date.fromordinal(min(max(ordinal, 1), date.max.toordinal())).year


def _draw(run: str, key_hex: str, attempt: int) -> int:
    _check("attempt", attempt, 1, _U32_MAX)
    digest = sha256(run.encode("utf-8") + key_hex.encode("ascii") + attempt.to_bytes(4, "big")).digest()
    return int.from_bytes(digest[:8], "big")


def _check(what: str, number: int, least: int, most: int) -> None:
    if type(number) is not int or not least <= number <= most:
        raise ValueError(f"{what} is a whole number between {least} and {most}, not {number!r}")
