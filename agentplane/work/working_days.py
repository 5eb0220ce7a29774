"""Working days: which days nobody works on, by the sets that a rule names.

Owns the holiday library: nothing else imports it. Refuses a set that there is not, with what there is, and a year that
a set does not know. Invariant: a day off is off for the same reason whoever asks, in whatever order and from whatever
thread; of several sets a day is off when one of them says so.
"""

from __future__ import annotations

import difflib
import re
from datetime import date, timedelta
from functools import lru_cache
from typing import Any, Final

from agentplane.core.errors import InvalidRequest

SATURDAY: Final = 5
SETS_MAX: Final = 4
PART_CHARS_MAX: Final = 40
PLACE: Final = re.compile(r"[A-Z0-9]{2,4}", re.ASCII)
NAMED_MAX: Final = 20
"""Names that a refusal lists; the rest is counted."""
YEARS_KEPT: Final = 1_024
HOLIDAY: Final = "holiday"
WEEKEND: Final = "weekend"


def sets_of(names: object) -> tuple[str, ...]:
    """The sets of a text such as ``DE-BE`` or ``US-NY,NYSE``, in its order. Raises InvalidRequest."""
    if not isinstance(names, str) or not names.strip():
        raise InvalidRequest("A holiday set is a text such as DE, DE-BE or NYSE, or several with commas between them.")
    found = tuple(one.strip() for one in names.split(","))
    if len(found) > SETS_MAX or len(set(found)) < len(found):
        raise InvalidRequest(f"A deadline names at most {SETS_MAX} holiday sets, each once.")
    for one in found:
        _known(one)
    return found


def off(sets: tuple[str, ...], day: date) -> str | None:
    """Why nobody works on ``day`` (holiday, weekend), or None. Without a set Saturdays and Sundays are off. Raises
    InvalidRequest for a year that a set does not know."""
    if not sets:
        return WEEKEND if day.weekday() >= SATURDAY else None
    return min((why for one in sets if (why := _year(one, day.year).get(day)) is not None), default=None)


@lru_cache(maxsize=YEARS_KEPT)
def _year(name: str, year: int) -> dict[date, str]:
    """The days of ``year`` that are off by one set. Weekends of its own, and weekends that are worked, are its
    business."""
    first, last = _known(name)
    if not first <= year <= last:
        raise InvalidRequest(f"The holiday set {name} is known from {first} to {last}, and not for {year}.")
    found = _made(name, year)
    day, days = date(year, 1, 1), {}
    while day.year == year:
        if not found.is_working_day(day):
            days[day] = HOLIDAY if day in found else WEEKEND
        day += timedelta(days=1)
    return days


@lru_cache(maxsize=YEARS_KEPT)
def _known(name: str) -> tuple[int, int]:
    """The first and the last year of a set. Raises InvalidRequest for one that there is not."""
    place, _, part = name.partition("-")
    countries, markets = _places()
    if not PLACE.fullmatch(place) or len(part) > PART_CHARS_MAX or not part.isprintable() or name.endswith("-"):
        raise InvalidRequest(f"A holiday set is a country such as DE or DE-BE, or a market; not {name[:40]!a}.")
    if place not in countries and place not in markets:
        near = difflib.get_close_matches(place, [*countries, *markets], 3)
        raise InvalidRequest(f"There is no holiday set {name!a}; near it: {', '.join(near) or 'none'}.")
    if part and part not in _parts(place):
        has = sorted(_parts(place))
        rest = f" and {len(has) - NAMED_MAX} more" if len(has) > NAMED_MAX else ""
        said = f"{place} has {', '.join(has[:NAMED_MAX])}{rest}" if has else f"{place} has no parts"
        raise InvalidRequest(f"There is no holiday set {name!a}; {said}.")
    found = _made(name)
    return found.start_year, found.end_year


def _places() -> tuple[frozenset[str], frozenset[str]]:
    import holidays  # some 300 modules and 17 MB: only for who names a set

    return frozenset(holidays.list_supported_countries()), frozenset(holidays.list_supported_financial())


def _parts(place: str) -> frozenset[str]:
    import holidays

    listed = holidays.list_supported_countries() | holidays.list_supported_financial()
    return frozenset(listed[place])


def _made(name: str, year: int | None = None) -> Any:
    import holidays

    place, _, part = name.partition("-")
    make = holidays.country_holidays if place in holidays.list_supported_countries() else holidays.financial_holidays
    return make(place, subdiv=part or None, years=year, expand=False)
