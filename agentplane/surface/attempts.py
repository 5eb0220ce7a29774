"""Failed credentials, counted per address.

Owns how often a wrong credential may be presented from one place. Refuses to know a right one: who holds a token
that is known
here is never asked about, so nobody can lock them out from beside them. Invariant: memory is bounded, whoever calls.
"""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

BURST: Final = 10
"""Wrong credentials in a row before an address has to wait: a person with an old file tries a few times."""
EVERY_S: Final = 6.0
"""One more each so many seconds: ten a minute tell a guesser of 256 bits nothing."""
ADDRESSES_MAX: Final = 4096
"""Addresses remembered; past it the one that failed longest ago is forgotten."""
V6_HOST_BITS: Final = 64


class Attempts:
    """``clock`` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._due)

    def failed(self, address: str) -> float | None:
        """Count a failure; None while it is within the burst, else the seconds after which the next is looked at."""
        now, place = self._clock(), place_of(address)
        # One number an address: when its burst is whole again. Over a whole burst ahead, it waits.
        due = max(now, self._due.pop(place, now)) + EVERY_S
        wait = due - now - BURST * EVERY_S
        self._due[place] = due if wait <= 0 else due - EVERY_S
        if len(self._due) > ADDRESSES_MAX:
            self._due.popitem(last=False)
        return wait if wait > 0 else None


def place_of(address: str) -> str:
    """The address, or the network in which its owner may choose others: an IPv6 host has a /64."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:64]
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((int(found) >> V6_HOST_BITS << V6_HOST_BITS, 128 - V6_HOST_BITS)))
    return str(found)
