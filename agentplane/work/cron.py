"""Cron expressions in a time zone, and what becomes of the instants that nobody looked at.

Owns the reading of an expression and its instants. Refuses an expression or a zone that is none, with one sentence, and
knows no clock. Invariant: instants come in order, each once, whatever a change of the clock does to the local hour: one
that is left out comes right behind the gap, one that is doubled comes once.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from agentplane.core import bounds
from agentplane.core.errors import InvalidRequest
from agentplane.work.calendars import zone_of

POLICIES: Final = ("skip", "last", "all")
ON_TIME_MS: Final = 60_000
"""How late an instant may be looked at and still be on time."""


class Cron:
    """``expr``: five fields, or six with seconds first; ``tz``: where its hours are. Raises InvalidRequest."""

    def __init__(self, expr: str, tz: str = "UTC") -> None:
        self.expr = expr
        self.tz = tz
        self._zone: ZoneInfo = zone_of(tz)
        try:
            if len(expr) > bounds.NAME_CHARS_MAX:
                raise CronSimError("it is too long")
            CronSim(expr, datetime(2026, 1, 1, tzinfo=self._zone))
        except (CronSimError, TypeError, ValueError) as error:
            raise InvalidRequest(f"The cron expression {str(expr)[:80]!r} cannot be read: {error}.") from None

    def next_after(self, ms: int) -> int | None:
        """The first instant behind ``ms`` (ms UTC); None where there is none within fifty years."""
        return next(self._from(ms), None)

    def due_between(self, after_ms: int, until_ms: int, limit: int) -> list[int]:
        """The instants behind ``after_ms`` up to ``until_ms``, the last ``limit`` of them, in order."""
        found: list[int] = []
        for instant in self._from(after_ms):
            if instant > until_ms:
                break
            found.append(instant)
            if len(found) > 2 * limit:
                del found[:limit]
        return found[-limit:]

    def _from(self, ms: int) -> Iterator[int]:
        start = datetime.fromtimestamp(ms / 1000, UTC).astimezone(self._zone)
        last = ms
        for one in CronSim(self.expr, start - timedelta(hours=3)):
            # Begun early: what a change of the clock moved out of a gap, or doubles, is told by the instant alone.
            instant = round(one.timestamp() * 1000)
            if instant > last:
                last = instant
                yield instant


def missed(policy: str, found: list[int], now_ms: int) -> list[int]:
    """Which of the instants that are due are begun: the ones on time always; of those that were missed none (skip), the
    last (last), or all."""
    if policy == "all":
        return found
    on_time = [one for one in found if now_ms - one <= ON_TIME_MS]
    return on_time if on_time or policy == "skip" else found[-1:]
