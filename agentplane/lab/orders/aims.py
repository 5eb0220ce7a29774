"""Where an appliance full of orders is killed: the observer points, and the decision at each.

Owns the aims and the counting. Does no I/O and has no clock. Refuses to hold a point: each is answered at once, by
leave or by the kill. Invariant: in a round every aim stands once, so that no place of the engine is left out by chance.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from agentplane.lab.books import path_of
from agentplane.lab.pipe import Point
from agentplane.lab.provider.book import REVERSES

UNDOING: Final = "undoing"
"""Any point of an effect that takes something back, in a group or in a compensation."""
ASKED_TO_STOP: Final = "asked to stop"
"""Any point of a run after its cancel was recorded."""
ANYWHERE: Final = "anywhere"
ANY_TIME: Final = "any time"
IN_DOUBT: Final = "asked to stop in doubt"
"""Not drawn: it comes when a parcel's answer was lost, and kills once the cancel is on record. The last life waits for
it where none before has met it."""

AIMS: Final = (
    "run.admitted", "step.started", "effect.announcing", "effect.announced", "effect.acting", "effect.acted",
    "effect.recorded", "effect.asked", "group.opened", "group.transacting", "group.transacted", "group.settled",
    "run.unwinding", "step.compensated", "step.finished", "run.suspending", "run.suspended", "run.concluding",
    "run.concluded", "recovery.took_over", "writer.batch", UNDOING, ASKED_TO_STOP, ANYWHERE, ANY_TIME,
)  # fmt: skip
SKIP_MAX: Final = 4
"""Of points that are common: what is rare is taken as it comes."""
ANYWHERE_MAX: Final = 120
SLOW_KIND: Final = "pack.slow"


@dataclass(frozen=True)
class Aim:
    """One aim, and how many points that fit it pass first."""

    at: str
    skip: int = 0


def aims(seed: int, kills: int) -> Iterator[Aim]:
    """``kills`` aims in rounds of all of them, each round in an order of its own; the same for the same seed."""
    chance = random.Random(seed)
    left = kills
    while left > 0:
        drawn = list(AIMS)
        chance.shuffle(drawn)
        for at in drawn[:left]:
            most = ANYWHERE_MAX if at == ANYWHERE else SKIP_MAX if at.startswith("effect.") else 1
            yield Aim(at, chance.randrange(most))
        left -= len(drawn)


@dataclass
class Seen:
    """What outlives an incarnation: how many points each run has had, and the runs whose cancel is on record."""

    points: Counter[str] = field(default_factory=Counter)
    by_name: Counter[str] = field(default_factory=Counter)
    stopping: set[str] = field(default_factory=set)
    doubted: set[str] = field(default_factory=set)


class Hunt:
    """One incarnation and its aim. ``hit`` says where it was killed; ``doubtful`` names a run whose slow parcel lost
    its answer: from then on the kill waits for its cancel."""

    def __init__(self, aim: Aim, seen: Seen) -> None:
        self.aim = aim
        self.seen = seen
        self.hit: str | None = None
        self.doubtful: str | None = None
        self._skip = aim.skip

    def on_point(self, point: Point) -> bool:
        """Whether to kill at this point."""
        if self.hit is not None:
            return True
        run = point.run
        self.seen.by_name[point.at] += 1
        if run is not None:
            self.seen.points[run] += 1
            if point.at == "effect.recorded" and point.kind == SLOW_KIND and run not in self.seen.doubted:
                self.seen.doubted.add(run)
                self.doubtful = run
        if self.doubtful is not None or not self._fits(point):
            return False
        if self._skip > 0:
            self._skip -= 1
            return False
        self.hit = self.aim.at
        return True

    def _fits(self, point: Point) -> bool:
        match self.aim.at:
            case "any time":
                return False
            case "anywhere":
                return True
            case "asked to stop":
                return point.run in self.seen.stopping
            case "undoing":
                return point.at.startswith("effect.") and path_of(point.kind) in REVERSES
            case at:
                return point.at == at
