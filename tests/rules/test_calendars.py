"""From a rule and an instant to the instant at which something is due: offsets, working days, cut-off, holidays, and
the two hours a year that a clock does not say once."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentplane.core.errors import InvalidRequest
from agentplane.core.instants import MAX_MS
from agentplane.work.calendars import Rule, resolve, rule_from

BERLIN, NEW_YORK, LORD_HOWE, KATHMANDU = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"


def ms(text: str, tz: str = "UTC", fold: int = 0) -> int:
    local = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(tz), fold=fold)
    return round(local.timestamp() * 1000)


def due(base: str, tz: str = BERLIN, **rule: object) -> str:
    """When it is due, as the wall clock in ``tz`` says it, with the offset."""
    found = resolve(rule_from(tz=tz, **rule), ms(base, tz))  # type: ignore[arg-type]
    return datetime.fromtimestamp(found.due_ms / 1000, UTC).astimezone(ZoneInfo(tz)).isoformat(timespec="minutes")


@pytest.mark.parametrize(
    ("base", "rule", "wanted"),
    [
        # A plain week, from Tuesday.
        ("2026-12-01T10:00", {"working_days": 1}, "2026-12-02T10:00+01:00"),
        ("2026-12-01T10:00", {"working_days": 3, "at": "17:00"}, "2026-12-04T17:00+01:00"),
        ("2026-12-01T10:00", {"working_days": 4, "at": "17:00"}, "2026-12-07T17:00+01:00"),
        ("2026-12-01T10:00", {"working_days": 0, "at": "17:00"}, "2026-12-01T17:00+01:00"),
        # From a weekend the next working day is the first.
        ("2026-12-05T10:00", {"working_days": 1, "at": "17:00"}, "2026-12-07T17:00+01:00"),
        ("2026-12-05T10:00", {"working_days": 0, "at": "17:00"}, "2026-12-07T17:00+01:00"),
        # Behind the cut-off it began on the next working day.
        ("2026-12-01T15:59", {"working_days": 1, "at": "09:00", "cut_off": "16:00"}, "2026-12-02T09:00+01:00"),
        ("2026-12-01T16:00", {"working_days": 1, "at": "09:00", "cut_off": "16:00"}, "2026-12-03T09:00+01:00"),
        ("2026-12-04T16:00", {"working_days": 1, "at": "09:00", "cut_off": "16:00"}, "2026-12-08T09:00+01:00"),
        # Christmas in Berlin: Friday the 25th and Saturday the 26th, then New Year's Day, a Friday.
        ("2026-12-23T10:00", {"working_days": 2, "at": "17:00", "holidays": "DE-BE"}, "2026-12-28T17:00+01:00"),
        ("2026-12-30T10:00", {"working_days": 2, "at": "17:00", "holidays": "DE-BE"}, "2027-01-04T17:00+01:00"),
        # Women's Day is one in Berlin and none in Bavaria.
        ("2027-03-05T10:00", {"working_days": 1, "at": "12:00", "holidays": "DE-BE"}, "2027-03-09T12:00+01:00"),
        ("2027-03-05T10:00", {"working_days": 1, "at": "12:00", "holidays": "DE-BY"}, "2027-03-08T12:00+01:00"),
        # A date.
        ("2026-12-01T10:00", {"on": "2026-12-24"}, "2026-12-24T23:59+01:00"),
        ("2026-12-01T10:00", {"on": date(2026, 12, 24), "at": "12:00"}, "2026-12-24T12:00+01:00"),
        # Days of the calendar, and hours that pass.
        ("2026-03-28T10:00", {"days": 1}, "2026-03-29T10:00+02:00"),
        ("2026-03-28T10:00", {"hours": 24}, "2026-03-29T11:00+02:00"),
        ("2026-10-24T10:00", {"days": 1, "hours": 1}, "2026-10-25T11:00+01:00"),
    ],
)
def test_a_week_in_berlin(base: str, rule: dict[str, object], wanted: str) -> None:
    assert due(base, **rule) == wanted


@pytest.mark.parametrize(
    ("base", "tz", "rule", "wanted"),
    [
        # Thanksgiving and the market's own closings.
        ("2026-11-25T10:00", NEW_YORK, {"working_days": 1, "holidays": "US"}, "2026-11-27T10:00-05:00"),
        ("2026-04-02T10:00", NEW_YORK, {"working_days": 1, "holidays": "XNYS"}, "2026-04-06T10:00-04:00"),
        # A weekend that is Friday and Saturday.
        ("2026-12-03T10:00", "Asia/Dubai", {"working_days": 1, "holidays": "QA"}, "2026-12-06T10:00+04:00"),
        # An offset of three quarters of an hour, and a change of the clock of half a one.
        ("2026-12-01T10:00", KATHMANDU, {"days": 1, "at": "09:15"}, "2026-12-02T09:15+05:45"),
        ("2026-10-03T10:00", LORD_HOWE, {"days": 1}, "2026-10-04T10:00+11:00"),
    ],
)
def test_weeks_elsewhere(base: str, tz: str, rule: dict[str, object], wanted: str) -> None:
    assert due(base, tz, **rule) == wanted


@pytest.mark.parametrize(
    ("tz", "day", "at", "dst", "wanted"),
    [
        # Half past two is left out in Berlin on the 29th of March: 02:00 is 03:00.
        (BERLIN, "2026-03-29", "02:30", "shift", "2026-03-29T03:30+02:00"),
        (BERLIN, "2026-03-29", "02:30", "first", "2026-03-29T03:30+02:00"),
        (BERLIN, "2026-03-29", "02:30", "last", "2026-03-29T01:30+01:00"),
        (BERLIN, "2026-03-29", "02:30", "skip", "2026-03-30T02:30+02:00"),
        # And comes twice on the 25th of October.
        (BERLIN, "2026-10-25", "02:30", "shift", "2026-10-25T02:30+02:00"),
        (BERLIN, "2026-10-25", "02:30", "first", "2026-10-25T02:30+02:00"),
        (BERLIN, "2026-10-25", "02:30", "last", "2026-10-25T02:30+01:00"),
        (BERLIN, "2026-10-25", "02:30", "skip", "2026-10-26T02:30+01:00"),
        (LORD_HOWE, "2026-10-04", "02:15", "shift", "2026-10-04T02:45+11:00"),
        (LORD_HOWE, "2026-04-05", "01:45", "last", "2026-04-05T01:45+10:30"),
        (NEW_YORK, "2026-03-08", "02:30", "shift", "2026-03-08T03:30-04:00"),
    ],
)
def test_a_local_time_that_is_none_or_two(tz: str, day: str, at: str, dst: str, wanted: str) -> None:
    assert due("2026-01-05T10:00", tz, on=day, at=at, dst=dst) == wanted


@pytest.mark.parametrize(
    ("rule", "word"),
    [
        ({}, "one of"),
        ({"days": 1, "working_days": 1}, "one of"),
        ({"days": -1}, "days"),
        ({"working_days": True}, "working_days"),
        ({"working_days": 10**6}, "working days"),
        ({"on": "2026-02-30", "tz": BERLIN}, "ISO date"),
        ({"on": "tomorrow", "tz": BERLIN}, "ISO date"),
        ({"on": "2026-12-24"}, "time zone"),
        ({"days": 1, "at": "17:00"}, "time zone"),
        ({"days": 1, "at": "25:00", "tz": BERLIN}, "HH:MM"),
        ({"days": 1, "at": "5 pm", "tz": BERLIN}, "HH:MM"),
        ({"days": 1, "tz": "Europe/Berln"}, "Europe/Berlin"),
        ({"days": 1, "tz": "../../etc/passwd"}, "time zone"),
        ({"days": 1, "tz": BERLIN, "dst": "maybe"}, "dst"),
        ({"working_days": 1, "holidays": "XX"}, "holiday set"),
        ({"working_days": 1, "holidays": "DE-XX"}, "DE has"),
        ({"working_days": 1, "holidays": "de-be; drop"}, "holiday set"),
        ({"days": 1, "holidays": "DE"}, "working_days"),
        ({"days": 1, "warn_hours": -2}, "warns"),
        ({"days": 1, "weeks": 2}, "weeks"),
    ],
)
def test_a_rule_that_is_none_is_refused_in_a_sentence(rule: dict[str, object], word: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        rule_from(**rule)  # type: ignore[arg-type]
    assert word in refused.value.message and "\n" not in refused.value.message


@pytest.mark.parametrize(
    ("rule", "base_ms"),
    [
        ({"on": "9999-12-31", "tz": "Pacific/Kiritimati"}, 0),
        ({"on": "0001-01-01", "tz": BERLIN}, ms("2026-12-01T10:00")),
        ({"on": "2026-11-30", "tz": BERLIN}, ms("2026-12-01T10:00")),
        ({"days": 10**9}, 0),
        ({"hours": 10**15}, 0),
        ({"days": 1}, MAX_MS),
        ({"working_days": 3, "holidays": "DE-BE"}, ms("2500-01-01T00:00")),
        ({"working_days": 2600, "holidays": "DE-BE"}, ms("2099-01-01T00:00")),
    ],
)
def test_the_far_ends_of_time_are_refused_in_a_sentence(rule: dict[str, object], base_ms: int) -> None:
    """Out of a record's range, of a holiday set's, or over already; never a traceback."""
    try:
        found = resolve(rule_from(**rule), base_ms)  # type: ignore[arg-type]
    except InvalidRequest as refused:
        assert refused.message.endswith(".")
    else:
        assert base_ms < found.due_ms <= MAX_MS


INSTANTS = st.integers(min_value=ms("2001-01-01T00:00"), max_value=ms("2040-01-01T00:00"))
ZONES = st.sampled_from([BERLIN, NEW_YORK, LORD_HOWE, KATHMANDU, "UTC", "America/St_Johns", "Pacific/Apia"])


@settings(max_examples=150, deadline=None)
@given(base_ms=INSTANTS, tz=ZONES, days=st.integers(1, 30), place=st.sampled_from(["DE-BE", "US-CA", "JP", None]))
def test_a_working_day_is_ahead_and_worked_on(base_ms: int, tz: str, days: int, place: str | None) -> None:
    """Never over, never on a day off, never before fewer days; the same again; and the warning is before it."""
    import holidays

    rule = rule_from(working_days=days, at="12:00", tz=tz, holidays=place)
    found = resolve(rule, base_ms)
    assert found == resolve(Rule.from_data(rule.to_data()), base_ms)
    assert base_ms <= found.warn_ms <= found.due_ms and base_ms < found.due_ms
    day = datetime.fromtimestamp(found.due_ms / 1000, UTC).astimezone(ZoneInfo(tz)).date()
    assert day.weekday() < 5
    if place is not None:
        country, _, part = place.partition("-")
        assert day not in holidays.country_holidays(country, subdiv=part or None, years=day.year)
    more = resolve(rule_from(working_days=days + 1, at="12:00", tz=tz, holidays=place), base_ms)
    assert more.due_ms > found.due_ms


@settings(max_examples=100, deadline=None)
@given(base_ms=INSTANTS, tz=ZONES, at=st.times(), dst=st.sampled_from(["shift", "skip", "first", "last"]))
def test_every_time_of_every_day_is_some_instant(base_ms: int, tz: str, at: object, dst: str) -> None:
    """Within three days of what was asked for, whatever the clock does."""
    clock = f"{at:%H:%M}"
    found = resolve(rule_from(days=2, at=clock, tz=tz, dst=dst), base_ms)
    asked = datetime.fromtimestamp(base_ms / 1000, UTC).astimezone(ZoneInfo(tz)).date() + timedelta(days=2)
    got = datetime.fromtimestamp(found.due_ms / 1000, UTC).astimezone(ZoneInfo(tz))
    assert abs((got.date() - asked).days) <= (2 if dst == "skip" else 1)


def test_the_digest_covers_what_was_looked_at() -> None:
    """Another set of holidays, another rule or another offset is another calendar; the base alone is not."""
    base = ms("2026-12-01T10:00", BERLIN)
    one = resolve(rule_from(working_days=2, tz=BERLIN, holidays="DE-BE"), base).digest
    assert one == resolve(rule_from(working_days=2, tz=BERLIN, holidays="DE-BE"), base + 60_000).digest
    assert one != resolve(rule_from(working_days=2, tz=BERLIN, holidays="DE-BY"), base).digest
    assert one != resolve(rule_from(working_days=3, tz=BERLIN, holidays="DE-BE"), base).digest
    assert one != resolve(rule_from(working_days=2, tz=BERLIN, holidays="DE-BE"), ms("2026-06-02T10:00")).digest
