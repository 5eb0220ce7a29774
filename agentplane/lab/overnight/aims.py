"""Where an appliance full of waits is killed: the observer points, and the decision at each.

Owns the aims and the counting. Does no I/O and has no clock. Refuses to hold a point: each is answered at once, by
leave or by the kill. Invariant: what comes seldom is taken when it comes, once; what comes often is taken in turn.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Final

from agentplane.lab.pipe import Point

ANY_TIME: Final = "any time"
CONSUMED: Final = "an approval was consumed"
"""The announcement that consumes one is durable, and nothing was sent."""
ACTED: Final = "an approval was acted on"
"""The provider's answer to it was read, and is not recorded."""

SELDOM: Final = ("event.stored", "deadline.breached", CONSUMED, ACTED, "run.woken", "recovery.took_over")
OFTEN: Final = (
    "run.admitted", "run.suspending", "run.suspended", "effect.announced", "effect.acting", "effect.acted",
    "effect.recorded", "step.started", "run.concluding", "run.concluded", "writer.batch",
)  # fmt: skip
SKIP_MAX: Final = 3


class Hunt:
    """The aims of a whole month. ``hit``: where the living incarnation was killed, None while it lives."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._seldom: Counter[str] = Counter()
        self._queue: list[str] = []
        self._skip = 0
        self.hit: str | None = None
        self.by_name: Counter[str] = Counter()
        self.armed = False

    def begin(self) -> None:
        """A new incarnation; until it is ``armed``, it is left alive."""
        self.hit, self.armed = None, False
        if not self._queue:
            self._queue = list(OFTEN)
            self._chance.shuffle(self._queue)
        self._skip = self._chance.randrange(SKIP_MAX)

    def on_point(self, point: Point) -> bool:
        """Whether to kill at this point."""
        if self.hit is not None:
            return True
        named = {"effect.announced": CONSUMED, "effect.acted": ACTED}.get(point.at)
        name = named if named is not None and point.kind.startswith("refund.") else point.at
        self.by_name[name] += 1
        if self.armed:
            self.hit = self._fits(name, point.at)
        return self.hit is not None

    def _fits(self, name: str, at: str) -> str | None:
        if name in SELDOM and self._seldom[name] <= min(self._seldom[one] for one in SELDOM if self.by_name[one]):
            self._seldom[name] += 1
            return name
        if at != self._queue[0]:
            return None
        if self._skip > 0:
            self._skip -= 1
            return None
        return self._queue.pop(0)
