"""The instants of a cron expression in a time zone, and what becomes of those that nobody looked at. What a change of
the clock does is held against a walk over every minute of the weekend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentplane.core.errors import InvalidRequest
from agentplane.core.instants import MAX_MS
from agentplane.work import cron as cron_module
from agentplane.work.cron import ON_TIME_MS, Cron, missed

BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
Comes = Callable[[datetime], bool]


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


# --- a change of the clock ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expr", "around", "wanted"),
    [
        # 02:30 is left out: it comes at the change, once.
        ("30 2 * * *", "2026-03-29", ["2026-03-28T02:30+01:00", "2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"]),
        # 02:30 comes twice: once is enough.
        ("30 2 * * *", "2026-10-25", ["2026-10-24T02:30+02:00", "2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"]),
        # What falls on the instant of the change is one with what is there already.
        ("0 2-3 29 3 *", "2026-03-29", ["2026-03-29T03:00+02:00"]),
        # By the clock: an hour that is left out has none, and one that is shown twice has two.
        ("*/30 2 29 3 *", "2026-03-29", []),
        (
            "*/30 2 25 10 *",
            "2026-10-25",
            ["2026-10-25T02:00+02:00", "2026-10-25T02:30+02:00", "2026-10-25T02:00+01:00", "2026-10-25T02:30+01:00"],
        ),
        (
            "0 * 25 10 *",
            "2026-10-25",
            [f"2026-10-25T{hour:02}:00+02:00" for hour in (0, 1, 2)]
            + [f"2026-10-25T{hour:02}:00+01:00" for hour in range(2, 24)],
        ),
    ],
)
def test_a_job_of_the_night_in_which_the_clock_changes(expr: str, around: str, wanted: list[str]) -> None:
    day = datetime.fromisoformat(around)
    start, end = (ms((day + timedelta(days=n)).isoformat()) for n in (-1, 2))
    assert shown(Cron(expr, BERLIN).due_between(start - 1, end, 100)) == wanted


EXPRESSIONS: dict[str, Comes] = {
    "30 2 * * *": lambda at: (at.hour, at.minute) == (2, 30),
    "15,45 1-3 * * *": lambda at: at.hour in (1, 2, 3) and at.minute in (15, 45),
    "0 0 * * 0": lambda at: (at.hour, at.minute, at.weekday()) == (0, 0, 6),
    "5 4 1 * 1": lambda at: (at.hour, at.minute) == (4, 5) and (at.day == 1 or at.weekday() == 0),
    "*/20 * * * *": lambda at: at.minute % 20 == 0,
    "*/10 3 * * *": lambda at: at.hour == 3 and at.minute % 10 == 0,
    "0 */2 * * *": lambda at: at.hour % 2 == 0 and at.minute == 0,
    "*/7 0-2 * * 6,0": lambda at: at.hour < 3 and at.minute % 7 == 0 and at.weekday() >= 5,
}


def walked(comes: Comes, by_the_clock: bool, tz: str, start_ms: int, end_ms: int) -> list[int]:
    """What a watcher of the wall would begin, minute by minute, behind ``start_ms`` up to ``end_ms``."""
    # From a day before, so that every hour that is shown twice or left out is met from its beginning.
    first = start_ms - 26 * HOUR_MS
    first -= first % MINUTE_MS
    wall = [
        (one, datetime.fromtimestamp(one / 1000, ZoneInfo(tz)).replace(tzinfo=None))
        for one in range(first, end_ms + 1, MINUTE_MS)
    ]
    found = set()
    latest = wall[0][1] - timedelta(minutes=1)
    for one, local in wall:
        if by_the_clock:
            if comes(local):
                found.add(one)
        else:
            # Each minute of the calendar once: those that the wall has jumped over when it shows the next.
            while latest < local:
                latest += timedelta(minutes=1)
                if comes(latest):
                    found.add(one)
    return sorted(one for one in found if start_ms < one <= end_ms)


@pytest.mark.parametrize("expr", EXPRESSIONS)
@pytest.mark.parametrize(
    ("tz", "day"),
    [
        (BERLIN, "2026-03-28"),
        (BERLIN, "2026-10-24"),
        (NEW_YORK, "2026-03-07"),
        (NEW_YORK, "2026-10-31"),
        (LORD_HOWE, "2026-10-03"),
        (LORD_HOWE, "2026-04-04"),
        ("America/Santiago", "2026-09-05"),
        ("Asia/Kathmandu", "2026-03-28"),
    ],
)
def test_a_weekend_on_which_the_clock_changes_is_as_the_wall_shows_it(tz: str, day: str, expr: str) -> None:
    """From wherever in it a look begins: also between the two times that an hour is shown. (S125)"""
    cron = Cron(expr, tz)
    start = ms(day, tz)
    end = start + 72 * HOUR_MS
    whole = walked(EXPRESSIONS[expr], cron.by_the_clock, tz, start - 1, end)
    assert whole and cron.due_between(start - 1, end, 10_000) == whole
    for at in range(start + 23 * HOUR_MS, start + 29 * HOUR_MS, 20 * MINUTE_MS):
        following = [one for one in whole if one > at]
        assert cron.due_between(at, end, 10_000) == following
        assert not following or cron.next_after(at) == following[0]


@settings(max_examples=40, deadline=None)
@given(
    base=st.integers(ms("2026-01-01T00:00"), ms("2027-01-01T00:00")),
    expr=st.sampled_from(["*/15 * * * *", "0 * * * *", "30 2 * * *", "0 0 1 * *", "5 4 * * 1", "0 12 29 2 *"]),
    tz=st.sampled_from([BERLIN, NEW_YORK, LORD_HOWE, "UTC"]),
    limit=st.integers(1, 50),
)
def test_instants_come_in_order_each_once_and_none_is_passed(base: int, expr: str, tz: str, limit: int) -> None:
    """One look over a stretch of time finds what many looks find, wherever they fall; and the last of them when only
    those are asked for."""
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
    assert cron.due_between(base, end, limit) == whole[-limit:]
    assert cron.next_after(base) == (whole[0] if whole else cron.next_after(end))


# --- expressions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expr", "tz", "word"),
    [
        ("", "UTC", "characters"),
        ("* * * *", "UTC", "5 fields"),
        ("* * * * * *", "UTC", "5 fields"),
        ("@daily", "UTC", "5 fields"),
        ("61 * * * *", "UTC", "Bad minute"),
        ("* 24 * * *", "UTC", "Bad hour"),
        ("*/0 * * * *", "UTC", "Bad minute"),
        ("5-1 * * * *", "UTC", "Bad minute"),
        ("* * * * 8", "UTC", "Bad day-of-week"),
        ("* * * JANUARY *", "UTC", "Bad month"),
        ("0 0 31 2 *", "UTC", "Bad day-of-month"),
        ("0 0 31 2 *x", "UTC", "cannot be read"),
        ("\u0661 * * * *", "UTC", "Bad minute"),
        ("0 0 */31 * 5L", "UTC", "never comes"),
        ("0 * * * *", "Mars/Olympus", "time zone"),
        ("0 " * 200, "UTC", "characters"),
        ("\n\n* * * * \x1b[2J", "UTC", "cannot be read"),
    ],
)
def test_what_is_no_expression_is_refused_in_a_sentence(expr: str, tz: str, word: str) -> None:
    """What never comes is none: a schedule that waits for ever is a mistake of who wrote it."""
    with pytest.raises(InvalidRequest) as refused:
        Cron(expr, tz)
    assert word in refused.value.message and refused.value.message.isprintable()


@given(st.text(alphabet="0123456789*/,-#LW SUNJA?.\u0661", max_size=24))
@settings(max_examples=300, deadline=None)
def test_whatever_is_written_is_read_or_refused(text: str) -> None:
    for expr in (text, f"{text} * * * *", f"0 0 {text} * {text}"):
        try:
            cron = Cron(expr)
        except InvalidRequest as refused:
            assert refused.message.isprintable()
        else:
            assert cron.next_after(0) is not None


def test_the_rarest_day_there_is_comes() -> None:
    """A 29th of February on a Monday, over a year that leaps none."""
    cron = Cron("0 0 * 2 MON#5", "UTC")
    found, at = [], ms("2026-01-01", "UTC")
    for _ in range(3):
        at = cron.next_after(at) or 0
        found.append(shown([at], "UTC")[0][:10])
    assert found == ["2044-02-29", "2072-02-29", "2112-02-29"]


def test_the_calendar_ends() -> None:
    """Behind the last instant there is none, and no error."""
    cron = Cron("0 0 * * *", BERLIN)
    assert cron.next_after(MAX_MS) is None and cron.next_after(ms("9999-12-31T12:00", "UTC")) is None
    assert cron.due_between(ms("9999-12-31T12:00", "UTC"), MAX_MS, 5) == []
    assert cron.next_after(ms("9998-12-30T12:00")) == ms("9998-12-31T00:00")


# --- what was missed ------------------------------------------------------------------------------------------------


def test_the_last_ones_are_kept_where_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a year of minutes is not walked for ten of them."""
    cron = Cron("* * * * *", "UTC")
    assert cron.due_between(0, 1000 * MINUTE_MS, 10) == [n * MINUTE_MS for n in range(991, 1001)]
    read, times = [], cron_module._times

    def counted(expr: str, after: datetime) -> Iterator[datetime]:
        for one in times(expr, after):
            read.append(one)
            yield one

    monkeypatch.setattr(cron_module, "_times", counted)
    year = 366 * 24 * 60
    assert cron.due_between(0, year * MINUTE_MS, 10) == [n * MINUTE_MS for n in range(year - 9, year + 1)]
    assert len(read) < 100


@pytest.mark.parametrize(
    ("policy", "ages_min", "kept"),
    [
        ("all", [180, 120, 60, 0], [180, 120, 60, 0]),
        ("last", [180, 120, 60, 0], [0]),
        ("last", [180, 120, 61], [61]),
        ("skip", [180, 120, 60, 0], [0]),
        ("skip", [180, 120, 61], []),
        ("skip", [2, 1, 0], [1, 0]),
        ("last", [2, 1, 0], [1, 0]),
        ("skip", [], []),
        ("last", [], []),
    ],
)
def test_what_was_missed_is_as_told(policy: str, ages_min: list[int], kept: list[int]) -> None:
    """What is on time is begun under every policy."""
    now_ms = 10**12
    found = [now_ms - age * MINUTE_MS for age in ages_min]
    assert missed(policy, found, now_ms) == [now_ms - age * MINUTE_MS for age in kept]
    assert ON_TIME_MS == MINUTE_MS
