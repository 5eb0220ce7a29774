"""PASS or FAIL of one mode, from its report alone.

Owns the figures that a deploy has to reach. Refuses a report that shows too little to judge: restarts without work in
flight, clients that asked too seldom, a provider that did nothing. Invariant: an empty list is PASS, and each sentence
of a longer one names a figure, what was found and what was allowed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from appliance.rolling.clients import LOSSES, ONCE, OPENED, REUSED
from appliance.rolling.load import RATE
from appliance.rolling.report import Mode, Restart

BUSY = 250 / 300
"""Part of the restarts that had work in flight when the signal came."""
QUEUE = 0.5
"""Part of the backlog that the accept queue may reach."""
ASKED = 0.5
"""Part of the requests that the rate makes in the time, at the least; else the machine was not up to the load."""

MIXED, AGAIN = 0.35, 0.05
"""Parts of the requests: half are to be on kept connections, and of those some on one that served before."""
OWN_S = 0.5
"""What a request takes beyond the longest effect and the start: the close of the old store, and its own answer, for
which it competes with all that waited beside it."""


def verdict(mode: Mode, wanted: int) -> list[str]:
    """What is wrong with a report of ``wanted`` restarts; nothing for PASS."""
    found = list(_enough(mode, wanted)) + list(_kept_promises(mode))
    if mode.mode in ("held", "dropped"):
        found += [*_answers(mode), *_drains(mode), *_waits(mode)]
    elif mode.mode == "unheld":
        found += _drains(mode)
    else:
        found += _each(mode, lambda row: row.status != -9, lambda row: f"ended with {row.status} and not by SIGKILL")
    return found


def _enough(mode: Mode, wanted: int) -> Iterator[str]:
    rows = mode.restarts
    if len(rows) < wanted:
        yield f"restarts: {len(rows)}, and {wanted} were asked for"
    busy = sum(row.in_flight > 0 for row in rows)
    # Of those that there were: that they are too few is said already.
    if busy < BUSY * len(rows):
        yield f"work in flight: in {busy} of {len(rows)} restarts, and {math.ceil(BUSY * len(rows))} are needed"
    asked = mode.asked()
    if asked < ASKED * RATE * mode.seconds:
        yield f"requests: {asked} in {mode.seconds:.0f} s, and {ASKED * RATE * mode.seconds:.0f} are needed"
    for name, found, part in (
        ("connections of their own", mode.asked(ONCE), MIXED),
        ("kept connections", mode.asked(OPENED, REUSED), MIXED),
        ("connections that had been kept", mode.asked(REUSED), AGAIN),
    ):
        if found < asked * part:
            yield f"requests: {found} of {asked} on {name}, and {asked * part:.0f} are needed"
    if not mode.acknowledged or not mode.deeds:
        yield f"{mode.acknowledged} runs acknowledged and {mode.deeds} deeds: nothing was at stake"


def _kept_promises(mode: Mode) -> Iterator[str]:
    if mode.lost:
        yield f"lost acknowledgements: {len(mode.lost)}, and none may be ({mode.lost[0]})"
    if mode.duplicates:
        yield f"duplicates at the provider: {len(mode.duplicates)}, and none may be ({mode.duplicates[0]})"
    if mode.wrong:
        yield f"answers that contradict each other: {len(mode.wrong)}, and none may ({mode.wrong[0]})"


def _answers(mode: Mode) -> Iterator[str]:
    for kind in LOSSES:
        if mode.count(kind):
            yield f"requests {kind}: {mode.count(kind)}, and none may be with the socket held"


def _drains(mode: Mode) -> Iterator[str]:
    cut = sum(row.cut for row in mode.restarts)
    if cut:
        yield f"effects cut that fitted the grace: {cut}, and none may be"
    if mode.begun_again:
        yield f"effects begun again after a drain: {mode.begun_again}, and none may be"
    yield from _each(mode, lambda row: row.status != 0, lambda row: f"ended with status {row.status}")


def _waits(mode: Mode) -> Iterator[str]:
    yield from _each(
        mode,
        lambda row: row.over_s > OWN_S,
        lambda row: (
            f"a request waited {row.longest_wait_s:.2f} s, and the longest effect and the start took "
            f"{row.longest_effect_s:.2f} s and {row.start_s:.2f} s: {row.over_s:.2f} s more, and {OWN_S} are allowed"
        ),
    )
    yield from _each(
        mode,
        lambda row: row.backlog is None or row.queued is None or row.queued >= QUEUE * row.backlog,
        lambda row: f"the accept queue reached {row.queued} of {row.backlog}",
    )


def _each(mode: Mode, is_wrong: Callable[[Restart], bool], say: Callable[[Restart], str]) -> Iterator[str]:
    wrong = [row for row in mode.restarts if is_wrong(row)]
    if wrong:
        yield f"restart {wrong[0].number} ({len(wrong)} such): {say(wrong[0])}"
