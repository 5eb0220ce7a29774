"""Local time: from a day and an hour in a time zone to an instant.

Owns the reading of a zone's name, and what becomes of an hour that a change of the clock leaves out or makes twice.
Refuses zones that are none, and names that mean another zone on another machine. Invariant: everything here is
reckoned in whole numbers from the zone's offsets, so that no instant depends on a machine or on rounding.
"""

from __future__ import annotations

import difflib
from datetime import date, datetime, time, timedelta
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from agentplane.core import bounds
from agentplane.core.errors import InvalidRequest

DST: Final = ("shift", "skip", "first", "last")
"""What a rule may say of a local time that is none, or two."""
EPOCH: Final = datetime.combine(date(1970, 1, 1), time())
"""As a clock shows it: without a zone."""
MS: Final = timedelta(milliseconds=1)
ELSEWHERE: Final = frozenset({"localtime", "posixrules", "Factory"})
"""Names that the zone database has, and that say another zone, or none, on another machine."""
VARIANTS: Final = ("posix/", "right/")


def zone_of(name: object) -> ZoneInfo:
    """The time zone of that name in the IANA database. Raises InvalidRequest naming what is near it."""
    try:
        if not isinstance(name, str) or not 0 < len(name) <= bounds.NAMESPACE_CHARS_MAX:
            raise ValueError
        if name in ELSEWHERE or name.startswith(VARIANTS):
            raise ValueError
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        said = name[:80] if isinstance(name, str) else type(name).__name__
        near = difflib.get_close_matches(said, available_timezones(), 3)
        hint = f"; near it: {', '.join(near)}" if near else ", such as Europe/Berlin"
        raise InvalidRequest(f"There is no time zone {said!a}{hint}.") from None


def shown(zone: ZoneInfo, ms: int) -> datetime:
    """What the clock of ``zone`` shows at ``ms`` (ms UTC), without its zone. Raises OverflowError at the ends."""
    utc = EPOCH + timedelta(milliseconds=ms)
    return utc + timedelta(milliseconds=offset_ms(zone, ms))


def offset_ms(zone: ZoneInfo, ms: int) -> int:
    """How far the clock of ``zone`` is ahead of UTC at ``ms``. Raises OverflowError at the ends."""
    utc = EPOCH + timedelta(milliseconds=ms)
    return _ms(zone.fromutc(utc.replace(tzinfo=zone)).utcoffset())


def readings(zone: ZoneInfo, local: datetime) -> tuple[int, ...]:
    """The instants (ms UTC, in order) at which the clock of ``zone`` shows ``local``: one; none, in a gap; or two."""
    early, late = _both(zone, local)
    if early == late:
        return (early,)
    return (early, late) if early < late else ()


def moved(zone: ZoneInfo, local: datetime) -> int:
    """The instant of a ``local`` time that is left out, as a clock that was not changed would have it: the length of
    the gap later. Of one that exists, the first."""
    return _both(zone, local)[0]


def change(zone: ZoneInfo, local: datetime) -> int:
    """The instant at which the clock of ``zone`` leaves out ``local``: the first at which it shows something later."""
    behind, before = _both(zone, local)
    old = offset_ms(zone, before)
    while behind - before > 1:
        middle = (before + behind) // 2
        if offset_ms(zone, middle) == old:
            before = middle
        else:
            behind = middle
    return behind


def instant(zone: ZoneInfo, local: datetime, dst: str) -> int | None:
    """The instant (ms UTC) of ``local`` in ``zone``; None where ``dst`` passes that day by.

    In a gap ``shift`` is the length of the gap later, ``first`` and ``last`` are the change itself. Of two, ``last``
    is the second, and ``shift`` and ``first`` are the first. ``skip`` passes by what does not exist exactly once.
    """
    found = readings(zone, local)
    if len(found) == 1:
        return found[0]
    if dst == "skip":
        return None
    if found:
        return found[-1] if dst == "last" else found[0]
    return moved(zone, local) if dst == "shift" else change(zone, local)


def _both(zone: ZoneInfo, local: datetime) -> tuple[int, int]:
    """``local`` by the offset before a change and by the one behind it (PEP 495): in a gap the first is later."""
    wall = (local - EPOCH) // MS
    before, behind = (local.replace(tzinfo=zone, fold=fold).utcoffset() for fold in (0, 1))
    return wall - _ms(before), wall - _ms(behind)


def _ms(offset: timedelta | None) -> int:
    return 0 if offset is None else offset // MS
