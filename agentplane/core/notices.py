"""What a person is told of, and when again: a pure decision over what was told and what is so now.

Owns the kinds of notice, what counts as new, and how long is waited behind a failure. Refuses case content: a notice is
a condition, a count, and the oldest of them. Invariant: what is not told stays to be told, and what was told is told
again only when there is more of it, or when it was over in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

COALESCE_S: Final = 60
"""At most one message a minute."""
BACKOFF_MAX_S: Final = 3_600
OPENED: Final = "task.opened"
HALF_GONE: Final = "task.half_gone"
UNANSWERED: Final = "task.expired_unanswered"


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One condition that holds now: how many subjects it has."""

    condition: str
    count: int


class Now(msgspec.Struct, frozen=True, kw_only=True):
    """What is so at ``at_ms``: the conditions of `attention`; the instants at which tasks were opened, half of whose
    window was gone, and whose window was over, each since the last look; ms UTC."""

    at_ms: int
    conditions: tuple[Found, ...] = ()
    opened: tuple[int, ...] = ()
    halves: tuple[int, ...] = ()
    unanswered: tuple[int, ...] = ()


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What was told already: how many subjects each condition had then, and up to when tasks were looked at."""

    looked_ms: int = 0
    counts: dict[str, int] = {}


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a message; ``oldest_ms`` where there is an instant to it."""

    condition: str
    count: int
    oldest_ms: int | None = None


def to_tell(told: Told, now: Now) -> list[Notice]:
    """What is new: a condition that was not there, or has more subjects than when it was told; and every task that was
    opened, is half over, or was answered by nobody, by kind."""
    found = [
        Notice(condition=one.condition, count=one.count)
        for one in now.conditions
        if one.count > told.counts.get(one.condition, 0)
    ]
    for condition, instants in ((OPENED, now.opened), (HALF_GONE, now.halves), (UNANSWERED, now.unanswered)):
        if instants:
            found.append(Notice(condition=condition, count=len(instants), oldest_ms=min(instants)))
    return found


def after(now: Now) -> Told:
    """What is known to be told once a message about ``now`` was taken: a condition that is over is new when it comes
    back."""
    return Told(looked_ms=now.at_ms, counts={one.condition: one.count for one in now.conditions})


def halves(windows: Sequence[tuple[int, int]], since_ms: int, now_ms: int) -> tuple[int, ...]:
    """The instants, behind ``since_ms`` up to ``now_ms``, at which half of a window (opened, due) was gone."""
    middles = (opened + (due - opened) // 2 for opened, due in windows)
    return tuple(sorted(middle for middle in middles if since_ms < middle <= now_ms))


def pause_s(failures: int) -> int:
    """Seconds until the next look, behind so many failures in a row."""
    return COALESCE_S if failures == 0 else int(min(BACKOFF_MAX_S, COALESCE_S * 2 ** min(failures - 1, 10)))
