"""When to kill: which instants the driver aims at, and the decision at each reported point.

It owns the aims and the state machine that turns observer points into leave or a kill; it does no I/O and has
no clock. It refuses to claim a window: what a kill hit is for ``windows.py`` to say. Its invariant: every
point that was reported is answered exactly once, by leave or by the kill.

The aims, and the instant of each:
    W1            ``run.admitted`` or ``effect.announcing`` of a run that has announced nothing yet
    W2            ``effect.announced`` or ``effect.acting`` of an effect that changes something: durable, not
    sent W3            the provider holds the request at a gate after its arrival (the driver waits there) W4
    unanswered the provider holds the answer at a gate after its commit (the driver waits there) W4 answered
    ``effect.acted``: the answer was read, the outcome is not queued W4 queued     from ``effect.acted`` on
    the writer is held at ``writer.batch``; at ``effect.recorded`` the outcome is
                  queued and cannot have been committed
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from agentplane.lab.books import path_of
from agentplane.lab.pipe import Point

KILLS_PER_RUN_MAX = 2  # a run that dies more often in one place without a record of its own is quarantined (P4)
SKIP_MAX = 3


class Aim(StrEnum):
    """What a kill is aimed at."""

    W1 = "W1"
    W2 = "W2"
    W3 = "W3"
    W4_UNANSWERED = "W4 unanswered"
    W4_ANSWERED = "W4 answered"
    W4_QUEUED = "W4 queued"

    @property
    def at_gate(self) -> str | None:
        """The provider's gate member for aims that wait at the provider, else None."""
        return {Aim.W3: "gate_arrival", Aim.W4_UNANSWERED: "gate_commit"}.get(self)

    @property
    def window(self) -> str:
        """The window that the aim should fall into."""
        return self.value[:2]


@dataclass(frozen=True)
class Target:
    """One aim, and how many matching instants to let pass first, so that not always the first ticket is
    hit."""

    aim: Aim
    skip: int


def targets(seed: int, kills: int) -> Iterator[Target]:
    """``kills`` targets in rounds that hold every aim once, each round in an order of its own: with at least
    six kills no window is left out, and any prefix is as even as it can be. The same seed gives the same
    targets."""
    chance = random.Random(seed)
    left = kills
    while left > 0:
        aims = list(Aim)
        chance.shuffle(aims)
        for aim in aims[:left]:
            skip = chance.randrange(SKIP_MAX)
            # A kill before anything was announced costs a new ticket, and there are thirty: it takes the first.
            yield Target(aim, 0 if aim is Aim.W1 else skip)
        left -= len(aims)


@dataclass(frozen=True)
class Move:
    """The answer to one point: which points have leave, and whether to kill now (then none has)."""

    go: tuple[int, ...] = ()
    kill: bool = False


@dataclass
class Memory:
    """What outlives an incarnation of the appliance: runs that have announced something, kills a run."""

    announced: set[str] = field(default_factory=set)
    kills: Counter[str] = field(default_factory=Counter)


class Aiming:
    """One incarnation of the appliance and one target. ``hit`` names the run that was killed at, ``queued``
    whether its outcome had been handed to the writer."""

    def __init__(self, target: Target, memory: Memory) -> None:
        self.target = target
        self.memory = memory
        self.hit: str | None = None
        self.queued = False
        self._skip = target.skip
        self._armed: str | None = None
        self._held: list[int] = []

    def on_point(self, point: Point) -> Move:
        """The decision at one point. After a kill nothing has leave any more."""
        if self.hit is not None:
            return Move()
        if point.at == "effect.announced" and point.run:
            self.memory.announced.add(point.run)
        if self._armed is not None:
            return self._while_armed(point)
        if not self._matches(point) or not self._may_hit(point.run):
            return Move(go=(point.number,))
        if self._skip > 0:
            self._skip -= 1
            return Move(go=(point.number,))
        if self.target.aim is Aim.W4_QUEUED:
            self._armed = point.run
            return Move(go=(point.number,))
        return self._kill(point.run)

    def at_gate(self, run: str | None, *, fresh: bool = True) -> Move:
        """The provider holds a request of this run at the aim's gate: the kill, unless the run was hit
        often."""
        if self.hit is not None or self.target.aim.at_gate is None or not self._may_hit(run):
            return Move()
        if self.target.aim is Aim.W3 and not fresh:
            return Move()  # its key has arrived before, so what stands there is not the first request's arrival
        return self._kill(run)

    def give_up(self) -> Move:
        """The outcome that was waited for did not come (it is a barrier, or another run holds the loop): lets
        the writer go and aims anew."""
        if self.hit is not None:
            return Move()
        self._armed = None
        held, self._held = tuple(self._held), []
        return Move(go=held)

    @property
    def armed(self) -> bool:
        """The writer is being held for a queued outcome; the driver gives up after a while."""
        return self._armed is not None and self.hit is None

    def _while_armed(self, point: Point) -> Move:
        if point.at == "writer.batch":
            self._held.append(point.number)
            return Move()
        if point.at == "effect.recorded" and point.run == self._armed:
            self.queued = True
            return self._kill(point.run)
        return Move(go=(point.number,))

    def _matches(self, point: Point) -> bool:
        aim = self.target.aim
        if aim is Aim.W1:
            return point.at in ("run.admitted", "effect.announcing") and point.run not in self.memory.announced
        if path_of(point.kind) is None:
            return False
        if aim is Aim.W2:
            # A later attempt's key has arrived before: its announcement is not one that nothing is known of.
            first = point.fields.get("attempt", 1) == 1
            return first and point.at in ("effect.announced", "effect.acting")
        return aim in (Aim.W4_ANSWERED, Aim.W4_QUEUED) and point.at == "effect.acted"

    def _may_hit(self, run: str | None) -> bool:
        return run is not None and self.memory.kills[run] < KILLS_PER_RUN_MAX

    def _kill(self, run: str | None) -> Move:
        self.hit = run
        if run is not None:
            self.memory.kills[run] += 1
        return Move(kill=True)
