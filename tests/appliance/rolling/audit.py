"""What was promised against what is there: the store's runs and the provider's book, after the last process has ended.

Owns the words for a promise that was not kept and for a deed that took effect more than once. Refuses to believe an
answer more than the store, or the store more than the book. Invariant: it reads records alone, so that a recorded loss
is found without a plane.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Set

from appliance.rolling.load import Promise


def lost(
    promised: Mapping[str, Promise], listed: Set[str], stored: Mapping[str, str], done: Counter[str]
) -> Iterator[str]:
    """A sentence for each promise that was not kept. ``promised``: acknowledged runs by id; ``listed``: ids that a
    list showed; ``stored``: status by run; ``done``: how often each deed took effect."""
    for run, one in promised.items():
        if run not in stored:
            yield f"{run} ({one.order}) was acknowledged and is not in the store"
        elif one.status not in ("running", stored[run]):
            yield f"{run} was said to be {one.status}, and the store says {stored[run]}"
        for number in range(one.deeds):
            if not done[f"{one.order}-{number}"]:
                yield f"{one.order}-{number}, a deed of {run}, is not in the provider's book"
    for run in sorted(listed - stored.keys()):
        yield f"{run} was listed and is not in the store"
    for run, status in stored.items():
        if status != "succeeded":
            yield f"{run} has not succeeded: it is {status}"


def duplicates(wanted: Mapping[str, int], stored: Mapping[str, str], done: Counter[str]) -> Iterator[str]:
    """A sentence for each deed that took effect more than once, and one where there are more runs than the keys that
    were ever sent (``wanted``)."""
    for order, times in done.items():
        if times > 1:
            yield f"{order} took effect {times} times"
    if len(stored) > len(wanted):
        yield f"{len(stored)} runs of {len(wanted)} keys"
