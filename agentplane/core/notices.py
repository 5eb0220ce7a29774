"""What a person is told of, and when again: a pure decision over what was told and what is so now.

Owns the kinds of notice, what counts as new, the name of a message, and how long is waited behind a failure. Refuses
case content: a notice is a condition, a count, and since when; of subjects it keeps a digest, to know them again.
Invariant: what is not told stays to be told, and what was told is told again only when there is more of it or another
subject, or when it was over in between.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from agentplane.core import canonical

COALESCE_S: Final = 60
"""At most one message a minute."""
BACKOFF_MAX_S: Final = 3_600
SETTLED_MS: Final = 1_000
"""What is younger may be in a unit that is not committed yet; it is told with the next message."""
SUBJECTS_KEPT: Final = 100
"""Subjects of a condition that are known again; where there are more, their number says that there is something new."""
OPENED: Final = "task.opened"
HALF_GONE: Final = "task.half_gone"
UNANSWERED: Final = "task.expired_unanswered"
FAILING: Final = "notify.failing"
DOMAIN: Final = b"agentplane.notice.v1\x00"


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One condition that holds now: how many subjects it has, and since when where that is known (ms UTC).

    ``subjects``: all of them, where they are few enough to be listed; none where they are not."""

    condition: str
    count: int
    oldest_ms: int | None = None
    subjects: tuple[str, ...] = ()


class Tally(msgspec.Struct, frozen=True):
    """How many, and the earliest instant among them (ms UTC)."""

    count: int = 0
    oldest_ms: int | None = None


class Now(msgspec.Struct, frozen=True, kw_only=True):
    """What is so. ``until_ms``: up to when the tasks were counted that were opened, half of whose window was gone, and
    whose window was over with no answer, each since the last look; ms UTC."""

    at_ms: int
    until_ms: int
    conditions: tuple[Found, ...] = ()
    opened: Tally = Tally()
    half_gone: Tally = Tally()
    unanswered: Tally = Tally()


class Known(msgspec.Struct, frozen=True):
    """A condition that was told: how many subjects it had, since when it was seen, and the digests of its subjects."""

    count: int
    since_ms: int
    subjects: tuple[str, ...] = ()


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What was told already, and up to when tasks were looked at; None where nobody was ever told of anything."""

    looked_ms: int | None = None
    known: dict[str, Known] = {}


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a message; ``oldest_ms`` where there is an instant to it."""

    condition: str
    count: int
    oldest_ms: int | None = None


def window(told: Told, now_ms: int, unsettled_ms: int) -> tuple[int | None, int]:
    """The instants behind the first of which, and up to the second, tasks are looked at. None for the first: nobody
    was told of anything yet, and whatever waits is told.

    ``unsettled_ms``: the age of the oldest unit that is not committed; what it wrote is not seen, and not passed by. A
    clock that was set back makes a stretch be looked at twice, rather than not at all.
    """
    until_ms = now_ms - SETTLED_MS - unsettled_ms
    if told.looked_ms is None:
        return None, until_ms
    return min(told.looked_ms, until_ms if told.looked_ms <= until_ms else until_ms - COALESCE_S * 1000), until_ms


def to_tell(told: Told, now: Now) -> list[Notice]:
    """What is new: a condition that was not there, has more subjects, or others, than when it was told; and the tasks
    that were opened, are half over, or were answered by nobody, by kind."""
    found = [
        Notice(condition=one.condition, count=one.count, oldest_ms=_since(told, one, now.at_ms))
        for one in now.conditions
        if _is_new(told.known.get(one.condition), one)
    ]
    for condition, tally in ((OPENED, now.opened), (HALF_GONE, now.half_gone), (UNANSWERED, now.unanswered)):
        if tally.count:
            found.append(Notice(condition=condition, count=tally.count, oldest_ms=tally.oldest_ms))
    return found


def after(told: Told, now: Now) -> Told:
    """What is known to be told once a message about ``now`` was taken: a condition that is over is new when it comes
    back."""
    known = {
        one.condition: Known(one.count, _since(told, one, now.at_ms), _digests(one.subjects)) for one in now.conditions
    }
    return Told(looked_ms=now.until_ms, known=known)


def message_id(source: str, told: Told, now: Now, notices: list[Notice]) -> str:
    """The name of the message that tells ``notices`` of ``now``: the same for the same news behind the same messages,
    so that one that is sent twice, for nobody knows whether it arrived, is known again. ``source``: what is unique to
    the store."""
    names = {one.condition for one in notices}
    news = [
        [one.condition, one.count, list(_digests(one.subjects))]
        for one in now.conditions
        if one.condition in names and one.condition != FAILING
    ]
    tasks = [[tally.count, tally.oldest_ms] for tally in (now.opened, now.half_gone, now.unanswered)]
    raw = canonical.encode([source, msgspec.to_builtins(told), news, tasks])
    return f"msg_{hashlib.sha256(DOMAIN + raw).hexdigest()[:32]}"


def pause_s(failures: int) -> int:
    """Seconds until the next look, behind so many failures in a row."""
    return COALESCE_S if failures == 0 else int(min(BACKOFF_MAX_S, COALESCE_S * 2 ** min(failures - 1, 10)))


def _is_new(known: Known | None, found: Found) -> bool:
    if known is None or found.count > known.count:
        return True
    # Both listed whole: another subject in the place of one that is over.
    return len(known.subjects) == known.count and bool(set(_digests(found.subjects)) - set(known.subjects))


def _since(told: Told, found: Found, at_ms: int) -> int:
    if found.oldest_ms is not None:
        return found.oldest_ms
    known = told.known.get(found.condition)
    return at_ms if known is None else known.since_ms


def _digests(subjects: tuple[str, ...]) -> tuple[str, ...]:
    if len(subjects) > SUBJECTS_KEPT:
        return ()
    return tuple(sorted(hashlib.sha256(one.encode()).hexdigest()[:12] for one in subjects))
