"""From a rule and an instant to the instant at which something is due: offsets, working days, cut-off, holidays, and
the two hours a year that a clock does not say once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import holidays
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentplane.core.errors import InvalidRequest
from agentplane.core.instants import MAX_MS
from agentplane.work import working_days
from agentplane.work.calendars import Rule, resolve, rule_from

BERLIN, NEW_YORK, LORD_HOWE, KATHMANDU = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"
TOKYO, CAIRO, APIA, JERUSALEM = "Asia/Tokyo", "Africa/Cairo", "Pacific/Apia", "Asia/Jerusalem"


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
        # And so did what came on the weekend, whatever the hour: it is not due before what came on the Friday before.
        ("2026-12-05T10:00", {"working_days": 1, "at": "09:00", "cut_off": "16:00"}, "2026-12-08T09:00+01:00"),
        ("2026-12-06T23:00", {"working_days": 1, "at": "09:00", "cut_off": "16:00"}, "2026-12-08T09:00+01:00"),
        ("2026-12-01T15:59", {"working_days": 0, "at": "16:00", "cut_off": "16:00"}, "2026-12-01T16:00+01:00"),
        ("2026-12-01T16:00", {"working_days": 0, "at": "16:00", "cut_off": "16:00"}, "2026-12-02T16:00+01:00"),
        # Christmas in Berlin: Friday the 25th and Saturday the 26th, then New Year's Day, a Friday.
        ("2026-12-23T10:00", {"working_days": 2, "at": "17:00", "holidays": "DE-BE"}, "2026-12-28T17:00+01:00"),
        ("2026-12-30T10:00", {"working_days": 2, "at": "17:00", "holidays": "DE-BE"}, "2027-01-04T17:00+01:00"),
        # Women's Day is one in Berlin and none in Bavaria.
        ("2027-03-05T10:00", {"working_days": 1, "at": "12:00", "holidays": "DE-BE"}, "2027-03-09T12:00+01:00"),
        ("2027-03-05T10:00", {"working_days": 1, "at": "12:00", "holidays": "DE-BY"}, "2027-03-08T12:00+01:00"),
        # Ascension Day and Whit Monday; Corpus Christi, which Bavaria keeps and Berlin does not.
        ("2026-05-13T10:00", {"working_days": 1, "holidays": "DE-BE"}, "2026-05-15T10:00+02:00"),
        ("2026-05-22T10:00", {"working_days": 1, "holidays": "DE-BE"}, "2026-05-26T10:00+02:00"),
        ("2026-06-03T10:00", {"working_days": 1, "holidays": "DE-BE"}, "2026-06-04T10:00+02:00"),
        ("2026-06-03T10:00", {"working_days": 1, "holidays": "DE-BY"}, "2026-06-05T10:00+02:00"),
        # The banks' own calendar beside it: on Good Friday neither, on Whit Monday the banks work.
        ("2026-04-02T10:00", {"working_days": 1, "holidays": "TAR"}, "2026-04-07T10:00+02:00"),
        ("2026-05-22T10:00", {"working_days": 1, "holidays": "TAR"}, "2026-05-25T10:00+02:00"),
        ("2026-05-22T10:00", {"working_days": 1, "holidays": "TAR, DE-BE"}, "2026-05-26T10:00+02:00"),
        # A date.
        ("2026-12-01T10:00", {"on": "2026-12-24"}, "2026-12-24T23:59+01:00"),
        ("2026-12-01T10:00", {"on": date(2026, 12, 24), "at": "12:00"}, "2026-12-24T12:00+01:00"),
        # Days of the calendar, and hours that pass.
        ("2026-03-28T10:00", {"days": 1}, "2026-03-29T10:00+02:00"),
        ("2026-03-28T10:00", {"hours": 24}, "2026-03-29T11:00+02:00"),
        ("2026-10-24T10:00", {"days": 1, "hours": 1}, "2026-10-25T11:00+01:00"),
        ("2026-10-24T10:00", {"hours": 24}, "2026-10-25T09:00+01:00"),
        ("2026-12-04T10:00", {"days": 1, "at": "12:00", "cut_off": "16:00"}, "2026-12-05T12:00+01:00"),
        ("2026-12-04T16:00", {"days": 1, "at": "12:00", "cut_off": "16:00"}, "2026-12-06T12:00+01:00"),
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
        ("2026-04-02T10:00", NEW_YORK, {"working_days": 1, "holidays": "US-NY"}, "2026-04-03T10:00-04:00"),
        ("2026-10-09T10:00", NEW_YORK, {"working_days": 1, "holidays": "NYSE"}, "2026-10-12T10:00-04:00"),
        ("2026-10-09T10:00", NEW_YORK, {"working_days": 1, "holidays": "NYSE,US-NY"}, "2026-10-13T10:00-04:00"),
        # The Fourth of July is a Saturday and kept on the Friday; New Year's Day of 2028 in the year before it.
        ("2026-07-02T10:00", NEW_YORK, {"working_days": 1, "holidays": "US"}, "2026-07-06T10:00-04:00"),
        ("2027-12-30T10:00", NEW_YORK, {"working_days": 1, "holidays": "US"}, "2028-01-03T10:00-05:00"),
        # Japan: the Golden Week with a substitute for its Sunday, and a day between two holidays that is one itself.
        ("2026-05-01T10:00", TOKYO, {"working_days": 1, "holidays": "JP"}, "2026-05-07T10:00+09:00"),
        ("2026-09-18T10:00", TOKYO, {"working_days": 1, "holidays": "JP"}, "2026-09-24T10:00+09:00"),
        ("2026-04-28T10:00", TOKYO, {"working_days": 3, "holidays": "JP"}, "2026-05-07T10:00+09:00"),
        # China works on some Saturdays and Sundays.
        ("2025-02-07T10:00", "Asia/Shanghai", {"working_days": 1, "holidays": "CN"}, "2025-02-08T10:00+08:00"),
        ("2025-01-24T10:00", "Asia/Shanghai", {"working_days": 1, "holidays": "CN"}, "2025-01-26T10:00+08:00"),
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
        (BERLIN, "2026-03-29", "02:30", "first", "2026-03-29T03:00+02:00"),
        (BERLIN, "2026-03-29", "02:30", "last", "2026-03-29T03:00+02:00"),
        (BERLIN, "2026-03-29", "02:30", "skip", "2026-03-30T02:30+02:00"),
        # And comes twice on the 25th of October.
        (BERLIN, "2026-10-25", "02:30", "shift", "2026-10-25T02:30+02:00"),
        (BERLIN, "2026-10-25", "02:30", "first", "2026-10-25T02:30+02:00"),
        (BERLIN, "2026-10-25", "02:30", "last", "2026-10-25T02:30+01:00"),
        (BERLIN, "2026-10-25", "02:30", "skip", "2026-10-26T02:30+01:00"),
        (LORD_HOWE, "2026-10-04", "02:15", "shift", "2026-10-04T02:45+11:00"),
        (LORD_HOWE, "2026-04-05", "01:45", "last", "2026-04-05T01:45+10:30"),
        (LORD_HOWE, "2026-10-04", "02:15", "first", "2026-10-04T02:30+11:00"),
        (NEW_YORK, "2026-03-08", "02:30", "shift", "2026-03-08T03:30-04:00"),
        (NEW_YORK, "2026-11-01", "01:30", "first", "2026-11-01T01:30-04:00"),
        (NEW_YORK, "2026-11-01", "01:30", "last", "2026-11-01T01:30-05:00"),
        # A day that begins at one.
        (CAIRO, "2026-04-24", "00:30", "shift", "2026-04-24T01:30+03:00"),
        (CAIRO, "2026-04-24", "00:30", "last", "2026-04-24T01:00+03:00"),
        (CAIRO, "2026-04-24", "00:30", "skip", "2026-04-25T00:30+03:00"),
        (KATHMANDU, "2026-03-29", "02:30", "skip", "2026-03-29T02:30+05:45"),
    ],
)
def test_a_local_time_that_is_none_or_two(tz: str, day: str, at: str, dst: str, wanted: str) -> None:
    assert due("2026-01-05T10:00", tz, on=day, at=at, dst=dst) == wanted


@pytest.mark.parametrize(
    ("tz", "base", "at", "dst", "wanted"),
    [
        # The clocks change on a Friday: what is passed by is not due on the Saturday.
        (JERUSALEM, "2026-03-26T10:00", "02:30", "skip", "2026-03-30T02:30+03:00"),
        (JERUSALEM, "2026-03-26T10:00", "02:30", "shift", "2026-03-27T03:30+03:00"),
        # There was no Friday.
        (APIA, "2011-12-29T10:00", "12:00", "shift", "2012-01-02T12:00+14:00"),
        (APIA, "2011-12-29T10:00", "12:00", "first", "2012-01-02T12:00+14:00"),
        (APIA, "2011-12-29T10:00", "12:00", "skip", "2012-01-02T12:00+14:00"),
    ],
)
def test_what_the_clock_leaves_out_is_due_on_a_working_day(tz: str, base: str, at: str, dst: str, wanted: str) -> None:
    """S124."""
    assert due(base, tz, working_days=1, at=at, dst=dst) == wanted


def test_no_working_day_from_an_hour_that_is_shown_twice_is_due_at_once() -> None:
    """Not an hour before it was asked for."""
    base = ms("2026-10-25T02:30", BERLIN, fold=1)
    assert resolve(rule_from(hours=0, minutes=30, tz=BERLIN), base).due_ms == base + 30 * 60_000
    sunday = rule_from(working_days=0, tz="Asia/Jerusalem", holidays="IL")
    assert resolve(sunday, ms("2026-10-25T01:30", "Asia/Jerusalem", fold=1)).due_ms == ms(
        "2026-10-25T01:30", "Asia/Jerusalem", fold=1
    )


@pytest.mark.parametrize(
    ("rule", "word"),
    [
        ({}, "one of"),
        ({"days": 1, "working_days": 1}, "one of"),
        ({"days": -1}, "days"),
        ({"working_days": True}, "working_days"),
        ({"working_days": 10**6}, "working_days"),
        ({"days": 10**9}, "days"),
        ({"hours": 10**15}, "hours"),
        ({"minutes": 10**5000}, "forty digits"),
        ({"minutes": -(10**5000)}, "forty digits"),
        ({"days": 1.0}, "whole number"),
        ({"days": "1"}, "whole number"),
        ({"on": datetime(2026, 12, 24, tzinfo=UTC), "tz": BERLIN}, "ISO date"),
        ({"on": "2026-W52-4", "tz": BERLIN}, "ISO date"),
        ({"on": "２０２６-12-24", "tz": BERLIN}, "ISO date"),
        ({"on": "2026-12-24", "tz": BERLIN, "days": 1}, "one of"),
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
        ({"working_days": 1, "holidays": "US-XX"}, "and 37 more"),
        ({"working_days": 1, "holidays": "NYSE-X"}, "has no parts"),
        ({"working_days": 1, "holidays": "NYS"}, "NYSE"),
        ({"working_days": 1, "holidays": "MON"}, "near it"),
        ({"working_days": 1, "holidays": "DE,DE"}, "each once"),
        ({"working_days": 1, "holidays": "DE,AT,CH,FR,IT"}, "at most 4"),
        ({"working_days": 1, "holidays": ""}, "holiday set"),
        ({"working_days": 1, "holidays": "DE-"}, "holiday set"),
        ({"working_days": 1, "holidays": 49}, "holiday set"),
        ({"hours": 1, "at": "17:00", "tz": BERLIN}, "not both"),
        ({"hours": 1, "cut_off": "17:00", "tz": BERLIN}, "cut_off"),
        ({"on": "2026-12-24", "cut_off": "17:00", "tz": BERLIN}, "cut_off"),
        ({"days": 1, "cut_off": "17:00"}, "time zone"),
        ({"days": 1, "dst": "first"}, "zone"),
        ({"days": 1, "warn_hours": 1, "warn_minutes": 60}, "not both"),
        ({"days": 1, "warn_hours": float("nan")}, "warns"),
        ({"days": 1, "warn_hours": True}, "warns"),
        ({"days": 1, "warn_minutes": -1}, "warn_minutes"),
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
    ("rule", "base_ms", "word"),
    [
        ({"on": "9999-12-31", "tz": "America/Los_Angeles"}, 0, "beyond"),
        ({"on": date.max, "tz": "America/Los_Angeles"}, 0, "beyond"),
        ({"on": "0001-01-01", "tz": BERLIN}, ms("2026-12-01T10:00"), "beyond"),
        ({"on": date.min, "tz": "Pacific/Kiritimati"}, ms("2026-12-01T10:00"), "beyond"),
        ({"on": "1970-01-01", "tz": BERLIN}, ms("2026-12-01T10:00"), "over"),
        ({"on": "2026-11-30", "tz": BERLIN}, ms("2026-12-01T10:00"), "over"),
        ({"working_days": 0, "at": "09:00", "tz": BERLIN}, ms("2026-12-01T10:00"), "over"),
        ({"days": date.max.toordinal()}, 0, "beyond"),
        ({"days": date.max.toordinal(), "tz": BERLIN}, 0, "beyond"),
        ({"hours": date.max.toordinal() * 24}, 0, "beyond"),
        ({"minutes": date.max.toordinal() * 1440}, 0, "beyond"),
        ({"days": 1}, MAX_MS, "beyond"),
        ({"days": 1, "tz": "Pacific/Kiritimati"}, MAX_MS, "beyond"),
        ({"working_days": 1}, MAX_MS, "beyond"),
        ({"working_days": 3, "holidays": "DE-BE"}, ms("2500-01-01T00:00"), "not for 2500"),
        ({"working_days": 2600, "holidays": "DE-BE"}, ms("2099-01-01T00:00"), "not for 2101"),
        ({"working_days": 1, "holidays": "JP", "tz": TOKYO}, ms("2099-12-31T10:00", TOKYO), "not for 2100"),
        ({"working_days": 1, "holidays": "DE"}, ms("1970-01-02T00:00"), "not for 1970"),
    ],
)
def test_the_far_ends_of_time_are_refused_in_a_sentence(rule: dict[str, object], base_ms: int, word: str) -> None:
    """Out of a record's range, of a holiday set's, or over already; never a traceback."""
    with pytest.raises(InvalidRequest) as refused:
        resolve(rule_from(**rule), base_ms)  # type: ignore[arg-type]
    assert word in refused.value.message and "\n" not in refused.value.message


def test_the_last_days_of_the_calendar_are_days() -> None:
    """What a record can say is reckoned, up to the last evening that every zone has."""
    assert due("2026-12-01T10:00", "Pacific/Kiritimati", on="9999-12-31") == "9999-12-31T23:59+14:00"
    assert due("2026-12-01T10:00", on="9999-12-31", at="23:00") == "9999-12-31T23:00+01:00"
    assert due("9999-12-29T10:00", "UTC", days=2) == "9999-12-31T10:00+00:00"
    assert due("2026-12-01T10:00", "UTC", on="2400-02-29") == "2400-02-29T23:59+00:00"


INSTANTS = st.integers(min_value=ms("2001-01-01T00:00"), max_value=ms("2040-01-01T00:00"))
DSTS = st.sampled_from(["shift", "skip", "first", "last"])
ZONES = st.sampled_from([BERLIN, NEW_YORK, LORD_HOWE, KATHMANDU, "UTC", "America/St_Johns", "Pacific/Apia"])


@settings(max_examples=100, deadline=None)
@given(base_ms=INSTANTS, tz=ZONES, days=st.integers(0, 30), place=st.sampled_from(["DE-BE", "US-CA", "JP", "IL", None]),
       at=st.times(), dst=DSTS)  # fmt: skip
def test_a_working_day_is_ahead_and_worked_on(
    base_ms: int, tz: str, days: int, place: str | None, at: time, dst: str
) -> None:
    """So many working days ahead as were asked for, and on the last of them; more are later; the same again is the
    same; and the warning lies between."""
    said = {"at": f"{at:%H:%M}", "tz": tz, "holidays": place, "dst": dst}
    rule = rule_from(working_days=days, **said)  # type: ignore[arg-type]
    try:
        found = resolve(rule, base_ms)
    except InvalidRequest as refused:
        assert days == 0 and refused.message.endswith("which is over.")
        return
    assert found == resolve(Rule.from_data(rule.to_data()), base_ms)
    assert base_ms <= found.warn_ms <= found.due_ms
    began, day = (datetime.fromtimestamp(one / 1000, ZoneInfo(tz)).date() for one in (base_ms, found.due_ms))
    assert works(place, day)
    between = sum(works(place, began + timedelta(days=n)) for n in range(1, (day - began).days + 1))
    if days:
        # The clock may have passed by one of them.
        assert days <= between <= days + (dst == "skip" or tz == APIA)
    more = resolve(rule_from(working_days=days + 1, **said), base_ms)  # type: ignore[arg-type]
    assert more.due_ms > found.due_ms or (more.due_ms == found.due_ms and (days == 0 or dst == "skip" or tz == APIA))


def works(place: str | None, day: date) -> bool:
    if place is None:
        return day.weekday() < 5
    country, _, part = place.partition("-")
    return holidays.country_holidays(country, subdiv=part or None, years=day.year).is_working_day(day)


@settings(max_examples=100, deadline=None)
@given(base_ms=INSTANTS, later=st.integers(0, 5 * 86_400_000), tz=ZONES, days=st.integers(1, 5), at=st.times(),
       cut_off=st.none() | st.times(), dst=DSTS)  # fmt: skip
def test_what_comes_later_is_not_due_earlier(
    base_ms: int, later: int, tz: str, days: int, at: time, cut_off: time | None, dst: str
) -> None:
    """Whatever the cut-off hour, the weekend between, and the clock."""
    said: dict[str, object] = {"at": f"{at:%H:%M}", "tz": tz, "dst": dst}
    if cut_off is not None:
        said["cut_off"] = f"{cut_off:%H:%M}"
    for count in ({"working_days": days}, {"days": days}):
        rule = rule_from(**count, **said)  # type: ignore[arg-type]
        assert resolve(rule, base_ms).due_ms <= resolve(rule, base_ms + later).due_ms


@pytest.mark.parametrize("cut_off", [None, "00:00", "12:00", "16:00", "23:59"])
def test_over_a_weekend_what_comes_later_is_not_due_earlier(cut_off: str | None) -> None:
    """Hour by hour from a Thursday to a Tuesday, with a holiday in it: 24 to 28 December 2026 in Berlin."""
    for days in (0, 1, 2):
        rule = rule_from(working_days=days, at="23:59", tz=BERLIN, cut_off=cut_off, holidays="DE-BE")
        start = ms("2026-12-24T00:00", BERLIN)
        found = [resolve(rule, start + hour * 3_600_000).due_ms for hour in range(6 * 24)]
        assert found == sorted(found) and len(set(found)) >= 3


@settings(max_examples=100, deadline=None)
@given(base_ms=INSTANTS, tz=ZONES, at=st.times(), dst=DSTS)
def test_every_time_of_every_day_is_some_instant(base_ms: int, tz: str, at: time, dst: str) -> None:
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


def test_a_later_edit_of_a_set_shows_where_it_was_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A day that becomes a holiday changes the digest of what counted over it, also where the date stays; and of
    nothing else. (S124)
    """
    base = ms("2026-12-01T10:00", BERLIN)
    rules = [rule_from(working_days=days, at="12:00", tz=BERLIN, holidays="DE-BE") for days in (1, 5)]
    before = [resolve(rule, base) for rule in rules]
    year = dict(working_days._year("DE-BE", 2026))
    monkeypatch.setattr(working_days, "_year", lambda name, _: year | {date(2026, 12, 3): "holiday"})
    after = [resolve(rule, base) for rule in rules]
    assert before[0] == after[0] and before[1].digest != after[1].digest and before[1].due_ms != after[1].due_ms
    # The weekend of the fifth becomes a holiday: nothing moves, and it shows.
    monkeypatch.setattr(working_days, "_year", lambda name, _: year | {date(2026, 12, 5): "holiday"})
    again = [resolve(rule, base) for rule in rules]
    assert before[0] == again[0] and before[1].digest != again[1].digest and before[1].due_ms == again[1].due_ms


@pytest.mark.parametrize(
    "data",
    [None, [], "x", {"days": "1"}, {"days": -1}, {"days": 1, "more": 1}, {"on": "2026-02-30", "tz": BERLIN}, {},
     {"days": 1, "dst": "no"}, {"days": 2**70}, {"working_days": 1, "holidays": "XX"}, {"days": 1, 5: 6}],
)  # fmt: skip
def test_a_rule_as_data_is_held_to_the_same(data: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Rule.from_data(data)
    assert "\n" not in refused.value.message


def test_a_warning_lies_in_the_window() -> None:
    """As told; or a quarter of the window before, at most a day; never before anything was asked for."""
    base = ms("2026-12-01T10:00")
    hour = 3_600_000
    for rule, before in (({"days": 8}, 24), ({"hours": 8}, 2), ({"days": 8, "warn_hours": 1.5}, 1.5),
                         ({"hours": 8, "warn_hours": 100}, 8), ({"hours": 8, "warn_hours": 0}, 0)):  # fmt: skip
        found = resolve(rule_from(**rule), base)
        assert found.due_ms - found.warn_ms == before * hour


def test_eight_threads_reckon_what_one_does() -> None:
    """The sets are made when they are first asked for, by whoever asks."""
    working_days._year.cache_clear()
    working_days._known.cache_clear()
    base = ms("2026-12-01T10:00")
    rules = [rule_from(working_days=200, holidays=place) for place in ("DE-BE", "US-CA", "JP", "NYSE") * 4]
    working_days._year.cache_clear()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda rule: resolve(rule, base), rules))
    assert found == [resolve(rule, base) for rule in rules] and len(set(found)) == 4
