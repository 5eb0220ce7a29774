"""From a day and an hour in a zone to an instant: held against a walk over every minute of a weekend on which the
clock was changed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from agentplane.core.errors import InvalidRequest
from agentplane.work.local_time import change, instant, moved, readings, zone_of

MINUTE_MS = 60_000
WEEKENDS = [
    ("Europe/Berlin", "2026-03-28"),
    ("Europe/Berlin", "2026-10-24"),
    ("America/New_York", "2026-03-07"),
    ("America/New_York", "2026-10-31"),
    ("Australia/Lord_Howe", "2026-10-03"),
    ("Australia/Lord_Howe", "2026-04-04"),
    ("Africa/Cairo", "2026-04-23"),
    ("America/Santiago", "2026-09-05"),
    ("Asia/Kathmandu", "2026-03-28"),
    ("Pacific/Apia", "2011-12-29"),
]


def walked(tz: str, day: str, days: int = 3) -> list[tuple[int, datetime]]:
    """Every minute, in order: the instant, and what the clock on the wall shows."""
    start = datetime.fromisoformat(day).replace(tzinfo=UTC) - timedelta(days=1)
    minutes = (start + timedelta(minutes=n) for n in range((days + 1) * 1440))
    zone = ZoneInfo(tz)
    return [(round(one.timestamp() * 1000), one.astimezone(zone).replace(tzinfo=None)) for one in minutes]


def inside(day: str, days: int = 2) -> list[datetime]:
    """Every minute that a calendar has on these days, whether a clock shows it or not."""
    start = datetime.fromisoformat(day)
    return [start + timedelta(minutes=n) for n in range(days * 1440)]


@pytest.mark.parametrize(("tz", "day"), WEEKENDS)
def test_every_minute_is_read_as_the_wall_shows_it(tz: str, day: str) -> None:
    """Once, twice, or never; and one that is left out has an instant by each policy but one."""
    zone, wall = zone_of(tz), walked(tz, day)
    seen: dict[datetime, list[int]] = {}
    for ms, local in wall:
        seen.setdefault(local, []).append(ms)
    kinds, at = set(), 1
    for local in inside(day):
        found = seen.get(local, [])
        kinds.add(len(found))
        assert list(readings(zone, local)) == found
        assert instant(zone, local, "skip") == (found[0] if len(found) == 1 else None)
        if found:
            assert instant(zone, local, "shift") == instant(zone, local, "first") == found[0]
            assert instant(zone, local, "last") == found[-1] and moved(zone, local) == found[0]
            continue
        # The first minute at which the wall shows something later, and the length of the gap behind the last one.
        while not wall[at - 1][1] < local < wall[at][1]:
            at += 1
        gap = wall[at][1] - wall[at - 1][1] - timedelta(minutes=1)
        assert change(zone, local) == wall[at][0]
        assert instant(zone, local, "first") == instant(zone, local, "last") == wall[at][0]
        assert instant(zone, local, "shift") == seen[local + gap][0]
    changed = {
        ("Europe/Berlin", "2026-10-24"),
        ("America/New_York", "2026-10-31"),
        ("Australia/Lord_Howe", "2026-04-04"),
    }
    assert kinds == ({1} if tz == "Asia/Kathmandu" else {1, 2} if (tz, day) in changed else {0, 1})


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("Europe/Berln", "Europe/Berlin"),
        ("europe/berlin", "Europe/Berlin"),
        ("../../etc/passwd", "time zone"),
        ("/etc/localtime", "time zone"),
        ("Europe", "time zone"),
        ("", "time zone"),
        ("UTC\n", "time zone"),
        ("localtime", "time zone"),
        ("posixrules", "time zone"),
        ("right/Europe/Berlin", "Europe/Berlin"),
        ("Z" * 5000, "time zone"),
        ("\ud800", "time zone"),
        ("Europe/\0Berlin", "time zone"),
        (7, "time zone"),
        (None, "time zone"),
    ],
)
def test_a_zone_that_is_none_is_refused_with_what_is_near(name: object, word: str) -> None:
    """Also the names that say another zone on another machine."""
    with pytest.raises(InvalidRequest) as refused:
        zone_of(name)
    assert word in refused.value.message and refused.value.message.isascii() and "\n" not in refused.value.message
