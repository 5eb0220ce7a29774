"""The instants of a cron expression in a time zone, and what becomes of those that nobody looked at."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentplane.core.errors import InvalidRequest
from agentplane.work.cron import ON_TIME_MS, Cron, missed

BERLIN = "Europe/Berlin"
HOUR_MS = 3_600_000


def ms(text: str, tz: str = BERLIN) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(tz)).timestamp() * 1000)


def shown(instants: list[int], tz: str = BERLIN) -> list[str]:
    return [
        datetime.fromtimestamp(one / 1000, UTC).astimezone(ZoneInfo(tz)).isoformat(timespec="minutes")
        for one in instants
    ]


def test_every_night_at_two() -> None:
    found = Cron("0 2 * * *", BERLIN).due_between(ms("2026-12-01T00:00"), ms("2026-12-03T12:00"), 10)
    assert shown(found) == ["2026-12-01T02:00+01:00", "2026-12-02T02:00+01:00", "2026-12-03T02:00+01:00"]


@pytest.mark.parametrize(
    ("expr", "around", "wanted"),
    [
        # 02:30 is left out: it comes right behind the gap, once.
        ("30 2 * * *", "2026-03-29", ["2026-03-28T02:30+01:00", "2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"]),
        # 02:30 comes twice: once is enough.
        ("30 2 * * *", "2026-10-25", ["2026-10-24T02:30+02:00", "2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"]),
    ],
)
def test_a_job_of_the_night_that_the_clock_changes(expr: str, around: str, wanted: list[str]) -> None:
    day = datetime.fromisoformat(around)
    start, end = (ms((day + timedelta(days=n)).isoformat()) for n in (-1, 2))
    assert shown(Cron(expr, BERLIN).due_between(start, end, 10)) == wanted


@settings(max_examples=120, deadline=None)
@given(
    base=st.integers(ms("2026-01-01T00:00"), ms("2027-01-01T00:00")),
    expr=st.sampled_from(["*/15 * * * *", "0 * * * *", "30 2 * * *", "0 0 1 * *", "5 4 * * 1", "0 12 29 2 *"]),
    tz=st.sampled_from([BERLIN, "America/New_York", "Australia/Lord_Howe", "UTC"]),
)
def test_instants_come_in_order_each_once_and_none_is_passed(base: int, expr: str, tz: str) -> None:
    """One look over a stretch of time finds what many looks find, wherever they fall."""
    cron = Cron(expr, tz)
    end = base + 40 * 24 * HOUR_MS
    whole = cron.due_between(base, end, 10_000)
    assert whole == sorted(set(whole)) and all(base < one <= end for one in whole)
    at, pieces = base, []
    for part in range(1, 8):
        until = base + (end - base) * part // 7
        pieces += cron.due_between(at, until, 10_000)
        at = until
    assert pieces == whole
    assert cron.next_after(base) == (whole[0] if whole else cron.next_after(end))


@pytest.mark.parametrize(
    ("expr", "tz"), [("", "UTC"), ("* * * *", "UTC"), ("61 * * * *", "UTC"), ("@reboot", "UTC"), ("0 0 31 2 *x", "UTC"),
                     ("0 * * * *", "Mars/Olympus"), ("0 " * 200, "UTC")],
)  # fmt: skip
def test_what_is_no_expression_is_refused_in_a_sentence(expr: str, tz: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Cron(expr, tz)
    assert "\n" not in refused.value.message


def test_the_last_ones_are_kept_where_there_are_too_many() -> None:
    found = Cron("* * * * *", "UTC").due_between(0, 1000 * 60_000, 10)
    assert found == [n * 60_000 for n in range(991, 1001)]


@pytest.mark.parametrize(
    ("policy", "ages_min", "kept"),
    [
        ("all", [180, 120, 60, 0], [180, 120, 60, 0]),
        ("last", [180, 120, 60, 0], [0]),
        ("last", [180, 120, 61], [61]),
        ("skip", [180, 120, 60, 0], [0]),
        ("skip", [180, 120, 61], []),
        ("skip", [], []),
        ("last", [], []),
    ],
)
def test_what_was_missed_is_as_told(policy: str, ages_min: list[int], kept: list[int]) -> None:
    """What is on time is begun under every policy."""
    now_ms = 10**12
    found = [now_ms - age * 60_000 for age in ages_min]
    assert missed(policy, found, now_ms) == [now_ms - age * 60_000 for age in kept]
    assert ON_TIME_MS == 60_000
