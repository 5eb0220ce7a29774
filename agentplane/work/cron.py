"""Cron expressions in a time zone, and what becomes of the instants that nobody looked at.

Owns the cron library: nothing else imports it, and it is asked for times of the day without a zone; what a change of
the clock does to them is decided here. Refuses an expression or a zone that is none, one that never comes, and one
finer than a minute, with one sentence, and knows no clock. Invariant: instants come in order, each once, and which
there are does not depend on where a look begins.

A job *at a time of day* (minute and hour are both written out, such as ``30 2 * * *``) comes once on each of its days:
a time that the clock leaves out comes at the change, one that it shows twice comes the first time. A job *by the clock*
(minute or hour begins with ``*``, such as ``*/15 * * * *``) comes whenever the clock shows it: in an hour that is left
out it does not come, and in one that is shown twice it comes twice.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

from agentplane.core import bounds
from agentplane.core.errors import InvalidRequest
from agentplane.work.local_time import EPOCH, change, offset_ms, readings, zone_of

POLICIES: Final = ("skip", "last", "all")
ON_TIME_MS: Final = 60_000
"""How late an instant may be looked at and still be on time."""
FIELDS: Final = 5
MINUTE_MS: Final = 60_000
DAY_MS: Final = 86_400_000
"""No clock was ever changed by more."""


class Cron:
    """``expr``: minute, hour, day of the month, month, day of the week; ``tz``: where its hours are. Raises
    InvalidRequest."""

    def __init__(self, expr: str, tz: str = "UTC") -> None:
        self.expr = expr
        self.tz = tz
        self._zone = zone_of(tz)
        try:
            if not 0 < len(expr) <= bounds.NAME_CHARS_MAX:
                raise ValueError(f"it has at most {bounds.NAME_CHARS_MAX} characters")
            if len(expr.split()) != FIELDS:
                raise ValueError(f"it has {FIELDS} fields: minute, hour, day, month, weekday")
            comes = next(_times(expr, EPOCH), None)
        except (ValueError, TypeError, AssertionError) as error:
            why = str(error) or "it is none"
            raise InvalidRequest(f"The cron expression {str(expr)[:80]!a} cannot be read: {why}.") from None
        if comes is None:
            raise InvalidRequest(f"The cron expression {expr!a} never comes.")
        minute, hour, *_ = expr.split()
        self.by_the_clock = minute.startswith("*") or hour.startswith("*")

    def next_after(self, ms: int) -> int | None:
        """The first instant behind ``ms`` (ms UTC); None where there is none in what is left of the calendar."""
        return next(self._from(ms), None)

    def due_between(self, after_ms: int, until_ms: int, limit: int) -> list[int]:
        """The instants behind ``after_ms`` up to ``until_ms``, the last ``limit`` of them, in order.

        However long that time is, the work is that of finding about so many.
        """
        span_ms = limit * MINUTE_MS
        while True:
            start_ms = max(after_ms, until_ms - span_ms)
            found: list[int] = []
            for instant in self._from(start_ms):
                if instant > until_ms:
                    break
                found.append(instant)
            if start_ms == after_ms or len(found) >= limit:
                return found[-limit:]
            span_ms *= 8

    def _from(self, ms: int) -> Iterator[int]:
        """Every instant behind ``ms``, in order."""
        waiting: list[int] = []
        last_ms = ms
        try:
            for local in _times(self.expr, self._begin(ms)):
                found = self._instants(local)
                for instant in found:
                    heapq.heappush(waiting, instant)
                # No later time of the day is shown for the first time before this one is. A second reading waits until
                # every first reading of the hours that are shown twice was told.
                while waiting and found and waiting[0] <= found[0]:
                    instant = heapq.heappop(waiting)
                    if instant > last_ms:
                        last_ms = instant
                        yield instant
        except OverflowError:
            pass  # the calendar ends
        yield from sorted(instant for instant in waiting if instant > last_ms)

    def _begin(self, ms: int) -> datetime:
        """A time of the day before every one that is shown behind ``ms``: of an hour that is shown again, its first
        minute is."""
        ahead = (offset_ms(self._zone, ms), offset_ms(self._zone, ms + DAY_MS))
        return EPOCH + timedelta(milliseconds=ms + min(ahead))

    def _instants(self, local: datetime) -> Sequence[int]:
        found = readings(self._zone, local)
        if self.by_the_clock:
            return found
        return found[:1] or (change(self._zone, local),)


def _times(expr: str, after: datetime) -> Iterator[datetime]:
    """The local times behind ``after`` at which ``expr`` comes, in order; ends behind fifty years without one. Raises
    ValueError where it cannot be read, and OverflowError at the end of the calendar."""
    from cronsim import CronSim, CronSimError

    try:
        return iter(CronSim(expr, after))
    except CronSimError as error:
        raise ValueError(str(error)) from None


def missed(policy: str, found: Sequence[int], now_ms: int) -> list[int]:
    """Which of the instants that are due are begun: the ones that are at most a minute old always; of those that were
    missed none (skip), the last one when nothing newer is begun (last), or all of them (all)."""
    if policy == "all":
        return list(found)
    on_time = [one for one in found if now_ms - one <= ON_TIME_MS]
    return on_time if on_time or policy == "skip" else list(found[-1:])
