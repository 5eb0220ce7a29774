"""Calendars: from a rule and an instant to the instant at which something is due.

Owns offsets, working days, the cut-off hour, holiday sets and what becomes of a local time that a change of the clock
makes twice or never. Refuses a rule that cannot be reckoned, with one sentence, and knows no clock. Invariant: the same
rule at the same base is the same instant, and its digest covers the days and offsets that the reckoning looked at.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

import msgspec

from agentplane.core import bounds, canonical
from agentplane.core.errors import InvalidRequest
from agentplane.core.instants import MAX_MS
from agentplane.core.obligations import warn_at

DOMAIN: Final = b"agentplane.calendar.wallclock.v1\x00"
DST: Final = ("shift", "skip", "first", "last")
WORKING_DAYS_MAX: Final = 2_600
"""Ten years of them."""
SKIPPED_MAX: Final = 14
"""Days looked at for one on which a local time is what it says."""
CLOCK: Final = re.compile(r"([01]\d|2[0-3]):[0-5]\d\Z", re.ASCII)
PLACE: Final = re.compile(r"[A-Z]{2,5}(-[A-Z0-9]{1,6})?\Z", re.ASCII)
END_OF_DAY: Final = "23:59"


class Rule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How a date is reckoned. ``on``: an ISO date; ``at`` and ``cut_off``: HH:MM in ``tz``; ``holidays``: a country,
    with or without its subdivision (DE-BE), or a market (XNYS)."""

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
        """Raises InvalidRequest."""
        try:
            return msgspec.convert(data, cls)
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"A deadline's rule does not fit: {error}.") from None


class Resolved(msgspec.Struct, frozen=True):
    """When it is due and when it is warned of, ms UTC, and the digest (hex) of what was looked at."""

    due_ms: int
    warn_ms: int
    digest: str


def rule_from(
    *, working_days: int | None = None, days: int = 0, hours: int = 0, minutes: int = 0, on: date | str | None = None,
    at: str | None = None, tz: str | None = None, cut_off: str | None = None, holidays: str | None = None,
    dst: str | None = None, warn_hours: float | None = None, warn_minutes: int | None = None, **unknown: Any,
) -> Rule:  # fmt: skip
    """The rule, checked. Raises InvalidRequest with one sentence."""
    if unknown:
        raise InvalidRequest(f"A deadline knows no {sorted(unknown)[0]!r:.40}; it takes {', '.join(_known())}.")
    for name, number in (("days", days), ("hours", hours), ("minutes", minutes), ("working_days", working_days)):
        if number is not None and not _is_count(number):
            raise InvalidRequest(f"A deadline takes {name} as a whole number from 0, not {number!r:.40}.")
    if working_days is not None and working_days > WORKING_DAYS_MAX:
        raise InvalidRequest(f"A deadline is at most {WORKING_DAYS_MAX} working days ahead, not {working_days}.")
    offset = bool(days or hours or minutes)
    if (working_days is not None) + offset + (on is not None) != 1:
        raise InvalidRequest("A deadline says one of working_days, on (a date), or days, hours and minutes.")
    for name, text in (("at", at), ("cut_off", cut_off)):
        if text is not None and not _is_clock(text):
            raise InvalidRequest(f"A deadline takes {name} as HH:MM, not {text!r:.40}.")
    if tz is None and (at is not None or cut_off is not None or on is not None):
        raise InvalidRequest("A deadline at a time of day, or on a date, names its time zone: tz='Europe/Berlin'.")
    if tz is not None:
        zone_of(tz)
    if dst is not None and dst not in DST:
        raise InvalidRequest(f"A deadline's dst is {', '.join(DST)}; not {dst!r:.40}.")
    if holidays is not None:
        if working_days is None:
            raise InvalidRequest("A deadline asks holidays for working_days, and for nothing else.")
        _holiday_set(holidays)
    before = warn_minutes if warn_hours is None else round(_positive(warn_hours) * 60)
    return Rule(
        working_days=working_days, days=days, hours=hours, minutes=minutes, on=_iso(on), at=at, tz=tz, cut_off=cut_off,
        holidays=holidays, dst=dst or "shift", warn_minutes=before,
    )  # fmt: skip


def _is_clock(text: object) -> bool:
    return isinstance(text, str) and CLOCK.match(text) is not None


def _is_count(number: object) -> bool:
    return type(number) is int and number >= 0


def _known() -> list[str]:
    return [name for name in Rule.__struct_fields__ if name != "warn_minutes"] + ["warn_hours"]


def _positive(hours: object) -> float:
    if isinstance(hours, bool) or not isinstance(hours, int | float) or not 0 <= hours <= 24 * 366:
        raise InvalidRequest(f"A deadline warns 0 to {24 * 366} hours before, not {hours!r:.40}.")
    return float(hours)


def _iso(on: object) -> str | None:
    if on is None:
        return None
    if isinstance(on, date) and not isinstance(on, datetime):
        return on.isoformat()
    try:
        if not isinstance(on, str) or len(on) != 10:
            raise ValueError
        return date.fromisoformat(on).isoformat()
    except ValueError:
        raise InvalidRequest(f"A deadline is on an ISO date such as 2026-12-24, not {on!r:.40}.") from None


def zone_of(name: object) -> ZoneInfo:
    try:
        if not isinstance(name, str) or not name or len(name) > bounds.NAMESPACE_CHARS_MAX:
            raise ValueError
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        near = difflib.get_close_matches(str(name)[:80], available_timezones(), 3)
        hint = f"; near it: {', '.join(near)}" if near else ", such as Europe/Berlin"
        raise InvalidRequest(f"There is no time zone {str(name)[:80]!r}{hint}.") from None


# --- reckoning --------------------------------------------------------------------------------------------------------


def resolve(rule: Rule, base_ms: int) -> Resolved:
    """When what is registered at ``base_ms`` is due. Raises InvalidRequest where no calendar says."""
    try:
        return _resolve(rule, base_ms)
    except (OverflowError, ValueError, OSError) as error:
        raise InvalidRequest(f"The deadline cannot be reckoned: {_plain(error)}.") from None


def _plain(error: Exception) -> str:
    return str(error)[:120].rstrip(".") or "it is beyond the calendar"


def _resolve(rule: Rule, base_ms: int) -> Resolved:
    zone = ZoneInfo("UTC") if rule.tz is None else zone_of(rule.tz)
    base = datetime.fromtimestamp(base_ms / 1000, UTC).astimezone(zone)
    looked: list[str] = []
    if rule.on is not None:
        due = _at(zone, date.fromisoformat(rule.on), _clock(rule.at or END_OF_DAY), rule.dst)
    elif rule.working_days is not None:
        day = _working(rule, base, looked)
        due = _at(zone, day, base.time() if rule.at is None else _clock(rule.at), rule.dst)
    else:
        due = _offset(rule, zone, base)
    due_ms = round(due.timestamp() * 1000)
    if not 0 <= due_ms <= MAX_MS:
        raise InvalidRequest("The deadline is beyond the last instant that a record can say.")
    if due_ms <= base_ms and not (rule.working_days == 0 and rule.at is None):
        raise InvalidRequest(f"The deadline would be due at {due.isoformat(timespec='minutes')}, which is over.")
    warn_ms = warn_at(base_ms, due_ms, None if rule.warn_minutes is None else rule.warn_minutes * 60_000)
    offsets = [str(base.utcoffset()), str(due.utcoffset())]
    seen = canonical.encode({"rule": rule.to_data(), "not_working": looked, "offsets": offsets})
    return Resolved(due_ms, warn_ms, hashlib.sha256(DOMAIN + seen).hexdigest())


def _offset(rule: Rule, zone: ZoneInfo, base: datetime) -> datetime:
    """Days are days of the calendar where a zone is named, and 24 hours where none is; hours and minutes pass."""
    passed = timedelta(hours=rule.hours, minutes=rule.minutes)
    start = _after_cut_off(rule, base)
    if rule.tz is None:
        return base + timedelta(days=rule.days) + passed
    day = start + timedelta(days=rule.days)
    if rule.at is None and not rule.days:
        moved = base
    else:
        moved = _at(zone, day, base.time() if rule.at is None else _clock(rule.at), rule.dst)
    return (moved.astimezone(UTC) + passed).astimezone(zone)


def _after_cut_off(rule: Rule, base: datetime) -> date:
    """The day that counts as today: behind the cut-off hour it is the next."""
    late = rule.cut_off is not None and base.time() >= _clock(rule.cut_off)
    return base.date() + timedelta(days=int(late))


def _working(rule: Rule, base: datetime, looked: list[str]) -> date:
    """The n-th working day behind the base's; what begins behind the cut-off begins on the next working day."""
    is_off = _holiday_set(rule.holidays)

    def works(day: date) -> bool:
        why = is_off(day)
        if why is not None:
            looked.append(f"{day.isoformat()} {why}")
        return why is None

    day = _after_cut_off(rule, base)
    if day != base.date() or rule.working_days == 0:
        while not works(day):
            day += timedelta(days=1)
    left = rule.working_days or 0
    while left:
        day += timedelta(days=1)
        left -= works(day)
    return day


def _clock(text: str) -> time:
    return time.fromisoformat(text)


def _at(zone: ZoneInfo, day: date, clock: time, dst: str) -> datetime:
    """``clock`` on ``day``. A local time that a change of the clock leaves out, or makes twice, under ``dst``:

    shift: one that is left out is moved out of the gap, as a clock that was not changed would show it, and of two the
    first counts; skip: the next day on which it exists once; first and last: of two the earlier or the later, and in a
    gap the instant by the offset before the change, or behind it.
    """
    for _ in range(SKIPPED_MAX):
        early = datetime.combine(day, clock.replace(fold=0), zone)
        late = datetime.combine(day, clock.replace(fold=1), zone)
        if early.utcoffset() == late.utcoffset():
            return _existing(early)
        if dst != "skip":
            return _existing(late if dst == "last" else early)
        day += timedelta(days=1)
    raise InvalidRequest("No day near the deadline has that local time once.")


def _existing(local: datetime) -> datetime:
    """The same instant as a clock shows it."""
    return local.astimezone(UTC).astimezone(local.tzinfo)


# --- holidays ---------------------------------------------------------------------------------------------------------


def _holiday_set(name: object) -> Any:
    """A function from a day to why nobody works on it, or None. Raises InvalidRequest for a set that is none."""
    if name is None:
        return lambda day: "weekend" if day.weekday() >= 5 else None
    import holidays  # large, and asked only for the rules that name a set

    if not isinstance(name, str) or not PLACE.match(name):
        raise InvalidRequest(f"A holiday set is a country such as DE or DE-BE, or a market; not {str(name)[:40]!r}.")
    place, _, part = name.partition("-")
    try:
        if place in holidays.list_supported_countries():
            found = holidays.country_holidays(place, subdiv=part or None)
        elif place in holidays.list_supported_financial() and not part:
            found = holidays.financial_holidays(place)
        else:
            raise NotImplementedError
    except NotImplementedError:
        parts = holidays.list_supported_countries().get(place, [])
        has = f"; {place} has {', '.join(parts[:8])}" if parts else ""
        raise InvalidRequest(f"There is no holiday set {name!r}{has}.") from None
    first, last = found.start_year, found.end_year
    weekend = set(found.weekend)

    def is_off(day: date) -> str | None:
        if not first <= day.year <= last:
            raise InvalidRequest(f"The holiday set {name} is known from {first} to {last}, and not for {day.year}.")
        if day in found:
            return str(found.get(day) or "holiday")
        return "weekend" if day.weekday() in weekend else None

    return is_off
