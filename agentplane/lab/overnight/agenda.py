"""What comes from outside in a month, by its instant.

Owns the order in which orders are submitted and events are sent. Refuses to pass anything by: what was not answered, or
came too soon, stays. Invariant: everything of the fixture is done once, however often it has to be said.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from agentplane.lab.overnight.desk import Desk
from agentplane.lab.overnight.fixture import HOUR_MS, Month


class Agenda:
    """Of one month that begins at ``starts_ms``, said by ``desk``."""

    def __init__(self, month: Month, desk: Desk, starts_ms: int) -> None:
        self._starts_ms = starts_ms
        self._left: list[tuple[int, int, Callable[[], bool]]] = []
        for order in month.orders:
            self._at(order.begins_h, lambda order=order: desk.submit(order))  # type: ignore[misc]
            if order.event_h is not None:
                self._at(order.event_h, lambda order=order: desk.send(order))  # type: ignore[misc]
        for stray in month.strays:
            self._at(stray.event_h, lambda stray=stray: desk.send_stray(stray))  # type: ignore[misc]

    def _at(self, hours: float, act: Callable[[], bool]) -> None:
        heapq.heappush(self._left, (self._starts_ms + round(hours * HOUR_MS), len(self._left), act))

    @property
    def next_ms(self) -> int | None:
        """When the next thing comes, ms UTC; None where nothing is left."""
        return self._left[0][0] if self._left else None

    def do(self, now_ms: int) -> None:
        """What is due at ``now_ms``; what comes too soon is put off by an hour. Raises Gone, and nothing is lost."""
        while self._left and self._left[0][0] <= now_ms:
            at_ms, number, act = self._left[0]
            done = act()
            heapq.heappop(self._left)
            if not done:
                heapq.heappush(self._left, (at_ms + HOUR_MS, number, act))
