"""Calendars: from a rule and an instant to the instant at which something is due.

Owns offsets, working days, the cut-off hour and the digest of what was looked at. Refuses a rule that cannot be
reckoned, with one sentence, and knows no clock. Invariant: the same rule at the same base is the same instant, never
before its base and never on a day off that the rule counts around; its digest covers the days and offsets that the
reckoning looked at, so that a later edit of a holiday set or of a zone shows.
"""

from __future__ import annotations

import hashlib
import re
from datetime import date, datetime, time, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

import msgspec

from agentplane.core import canonical
from agentplane.core.errors import InvalidRequest
from agentplane.core.instants import MAX_MS
from agentplane.core.obligations import warn_at
from agentplane.work.local_time import DST, instant, offset_ms, shown, zone_of
from agentplane.work.working_days import off, sets_of

DOMAIN: Final = b"agentplane.calendar.wallclock.v1\x00"
DAYS_MAX: Final = date.max.toordinal()
"""The days of the calendar: no offset is longer, in whatever unit."""
WORKING_DAYS_MAX: Final = 2_600
"""Ten years of them."""
PASSED_MAX: Final = 40
"""Days in a row on which a local time may be none, or none may work, before the rule is given up."""
WARN_MAX: Final = 366 * 24
"""Hours."""
LIMITS: Final = {
    "working_days": WORKING_DAYS_MAX, "days": DAYS_MAX, "hours": DAYS_MAX * 24, "minutes": DAYS_MAX * 1440,
    "warn_minutes": WARN_MAX * 60,
}  # fmt: skip
CLOCK: Final = re.compile(r"([01]\d|2[0-3]):[0-5]\d", re.ASCII)
DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
END_OF_DAY: Final = time(23, 59)
UTC: Final = "UTC"


class Rule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How a date is reckoned. ``on``: an ISO date; ``at`` and ``cut_off``: HH:MM in ``tz``; ``holidays``: a country
    with or without its part (DE-BE), a market (NYSE), or several with commas between them."""

    working_days: int | None = None
    days: int = 0
    hours: int = 0
    minutes: int = 0
    on: str | None = None
    at: str | None = None
    tz: str | None = None
    cut_off: str | None = None
    holidays: str | None = None
    dst: str = "shift"
    warn_minutes: int | None = None

    def to_data(self) -> dict[str, Any]:
        data: dict[str, Any] = msgspec.to_builtins(self)
        return data

    @classmethod
    def from_data(cls, data: object) -> Rule:
        """The rule that ``to_data`` told. Raises InvalidRequest, also for a rule that ``rule_from`` refuses."""
        try:
            return rule_from(**msgspec.to_builtins(msgspec.convert(data, cls)))
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"A deadline's rule does not fit: {error}.") from None


class Resolved(msgspec.Struct, frozen=True):
    """When it is due and when it is warned of, ms UTC, and the digest (hex) of what was looked at."""

    due_ms: int
    warn_ms: int
    digest: str


# --- the rule ---------------------------------------------------------------------------------------------------------


def rule_from(
    *, working_days: int | None = None, days: int = 0, hours: int = 0, minutes: int = 0, on: date | str | None = None,
    at: str | None = None, tz: str | None = None, cut_off: str | None = None, holidays: str | None = None,
    dst: str | None = None, warn_hours: float | None = None, warn_minutes: int | None = None, **unknown: Any,
) -> Rule:  # fmt: skip
    """The rule, checked. Raises InvalidRequest with one sentence."""
    if unknown:
        raise InvalidRequest(f"A deadline knows no {sorted(unknown)[0]!r:.40}; it takes {', '.join(_known())}.")
    counts = {"days": days, "hours": hours, "minutes": minutes} | {
        name: number
        for name, number in (("working_days", working_days), ("warn_minutes", warn_minutes))
        if number is not None
    }
    for name, number in counts.items():
        _count(name, number)
    if warn_hours is not None:
        if warn_minutes is not None:
            raise InvalidRequest("A deadline says warn_hours or warn_minutes, and not both.")
        warn_minutes = _warning(warn_hours)
    for name, text in (("at", at), ("cut_off", cut_off)):
        if text is not None and not _is_clock(text):
            raise InvalidRequest(f"A deadline takes {name} as HH:MM, not {_said(text)}.")
    if tz is not None:
        zone_of(tz)
    if dst is not None and dst not in DST:
        raise InvalidRequest(f"A deadline's dst is {', '.join(DST)}; not {_said(dst)}.")
    rule = Rule(
        working_days=working_days, days=days, hours=hours, minutes=minutes, on=_iso(on), at=at, tz=tz, cut_off=cut_off,
        holidays=holidays, dst=dst or "shift", warn_minutes=warn_minutes,
    )  # fmt: skip
    _check_whole(rule)
    if rule.tz is None and dst is not None:
        raise InvalidRequest("A deadline's dst is about the clock of a zone: name it, such as tz='Europe/Berlin'.")
    return rule


def _check_whole(rule: Rule) -> None:
    """What is right by itself and says nothing together. Raises InvalidRequest."""
    passing = bool(rule.hours or rule.minutes)
    if (rule.working_days is not None) + bool(rule.days or passing) + (rule.on is not None) != 1:
        raise InvalidRequest("A deadline says one of working_days, on (a date), or days, hours and minutes.")
    if rule.tz is None and (rule.at or rule.cut_off or rule.on):
        raise InvalidRequest("A deadline at a time of day, or on a date, names its time zone: tz='Europe/Berlin'.")
    if rule.at is not None and passing:
        raise InvalidRequest("A deadline says the hour by at, or hours and minutes that pass, and not both.")
    if rule.cut_off is not None and not (rule.days or rule.working_days is not None):
        raise InvalidRequest("A deadline's cut_off is for days and working_days, and for nothing else.")
    if rule.holidays is not None:
        if rule.working_days is None:
            raise InvalidRequest("A deadline asks holidays for working_days, and for nothing else.")
        sets_of(rule.holidays)


def _known() -> list[str]:
    return [name for name in Rule.__struct_fields__ if name != "warn_minutes"] + ["warn_hours"]


def _count(name: str, number: object) -> None:
    if type(number) is not int or number < 0:
        raise InvalidRequest(f"A deadline takes {name} as a whole number from 0, not {_said(number)}.")
    if number > LIMITS[name]:
        raise InvalidRequest(f"A deadline takes {name} up to {LIMITS[name]}, not {_said(number)}.")


def _warning(hours: object) -> int:
    if isinstance(hours, bool) or not isinstance(hours, int | float) or not 0 <= hours <= WARN_MAX:
        raise InvalidRequest(f"A deadline warns 0 to {WARN_MAX} hours before, not {_said(hours)}.")
    return round(hours * 60)


def _is_clock(text: object) -> bool:
    return isinstance(text, str) and CLOCK.fullmatch(text) is not None


def _iso(on: object) -> str | None:
    if on is None:
        return None
    if isinstance(on, date) and not isinstance(on, datetime):
        return on.isoformat()
    try:
        if not isinstance(on, str) or not DATE.fullmatch(on):
            raise ValueError
        return date.fromisoformat(on).isoformat()
    except ValueError:
        raise InvalidRequest(f"A deadline is on an ISO date such as 2026-12-24, not {_said(on)}.") from None


def _said(value: object) -> str:
    """A value in a sentence. An integer of thousands of digits has no text."""
    if isinstance(value, int) and abs(value) >= 10**40:
        return "a number of over forty digits"
    return f"{value!r:.40}" if isinstance(value, str | int | float) else f"a {type(value).__name__}"


# --- the reckoning ----------------------------------------------------------------------------------------------------


def resolve(rule: Rule, base_ms: int) -> Resolved:
    """When what is registered at ``base_ms`` (ms UTC) is due. Raises InvalidRequest where no calendar says."""
    try:
        return _resolve(rule, base_ms)
    except OverflowError:
        raise InvalidRequest("The deadline lies beyond the years 1 to 9999 that a calendar can say.") from None


class Seen:
    """What a reckoning looked at: days that were passed by and why, and the zone's offsets in ms."""

    def __init__(self, rule: Rule, base_ms: int) -> None:
        self.zone: ZoneInfo = zone_of(rule.tz or UTC)
        self.sets = () if rule.holidays is None else sets_of(rule.holidays)
        self.base = shown(self.zone, base_ms)
        self.passed: list[str] = []

    def works(self, day: date) -> bool:
        why = off(self.sets, day)
        if why is not None:
            self.passed.append(f"{day.isoformat()} {why}")
        return why is None


def _resolve(rule: Rule, base_ms: int) -> Resolved:
    seen = Seen(rule, base_ms)
    due_ms = _due(rule, seen, base_ms)
    if not 0 <= due_ms <= MAX_MS:
        raise InvalidRequest("The deadline lies beyond the instants that a record can say.")
    offsets = [offset_ms(seen.zone, base_ms), offset_ms(seen.zone, due_ms)]
    # Zero working days, and no hour: due at once is what was asked for.
    if due_ms < base_ms or (due_ms == base_ms and (rule.working_days != 0 or rule.at is not None)):
        raise InvalidRequest(f"The deadline would be due at {_wall(seen.zone, due_ms)}, which is over.")
    warn_ms = warn_at(base_ms, due_ms, None if rule.warn_minutes is None else rule.warn_minutes * 60_000)
    looked = canonical.encode({"rule": rule.to_data(), "passed": seen.passed, "offsets": offsets})
    return Resolved(due_ms, max(base_ms, warn_ms), hashlib.sha256(DOMAIN + looked).hexdigest())


def _wall(zone: ZoneInfo, ms: int) -> str:
    return f"{shown(zone, ms).isoformat(' ', 'minutes')} {zone.key}"


def _due(rule: Rule, seen: Seen, base_ms: int) -> int:
    passing_ms = (rule.hours * 60 + rule.minutes) * 60_000
    if rule.on is not None:
        return _at(rule, seen, date.fromisoformat(rule.on), END_OF_DAY)
    if rule.working_days is not None:
        day = _working(rule, seen)
        if day == seen.base.date() and rule.at is None:
            return base_ms
        return _at(rule, seen, day, seen.base.time())
    if rule.tz is None:
        return base_ms + rule.days * 86_400_000 + passing_ms
    if not rule.days:
        return base_ms + passing_ms
    late = rule.cut_off is not None and seen.base.time() >= time.fromisoformat(rule.cut_off)
    day = seen.base.date() + timedelta(days=rule.days + late)
    return _at(rule, seen, day, seen.base.time()) + passing_ms


def _working(rule: Rule, seen: Seen) -> date:
    """The n-th working day behind the one that counts as the first. Behind the cut-off hour that is the next working
    day; and where there is such an hour, what comes on a day off comes on the next working day too: nothing that
    comes later is due earlier."""
    day, left = seen.base.date(), rule.working_days or 0
    late = rule.cut_off is not None and seen.base.time() >= time.fromisoformat(rule.cut_off)
    if late or ((rule.cut_off is not None or not left) and not seen.works(day)):
        day = _next(seen, day)
    for _ in range(left):
        day = _next(seen, day)
    return day


def _next(seen: Seen, day: date) -> date:
    for _ in range(PASSED_MAX):
        day += timedelta(days=1)
        if seen.works(day):
            return day
    raise InvalidRequest(f"The holiday sets leave no working day in the {PASSED_MAX} days to {day.isoformat()}.")


def _at(rule: Rule, seen: Seen, day: date, otherwise: time) -> int:
    """The rule's time of day (or ``otherwise``) on ``day``, or on the first day behind it on which the rule's dst
    takes that time as it is; for working days that is a working day, and the instant is on it."""
    clock = otherwise if rule.at is None else time.fromisoformat(rule.at)
    for _ in range(PASSED_MAX):
        found = instant(seen.zone, datetime.combine(day, clock), rule.dst)
        if found is not None and (rule.working_days is None or shown(seen.zone, found).date() == day):
            return found
        seen.passed.append(f"{day.isoformat()} clock")
        day = day + timedelta(days=1) if rule.working_days is None else _next(seen, day)
    raise InvalidRequest("No day near the deadline has that local time once.")
