"""Which kills a sweep makes: cases drawn from what one undisturbed world of each workload showed.

Owns the kinds and their shares. Refuses chance of its own: a seed gives the same cases for the same shows. Invariant:
of the exhaustive part, every occurrence of every point of every workload is a case once, before any share is filled.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from crash.kills_life import OPENING, STATEMENTS, STEPS, Life
from crash.workloads import WORKLOADS

SHARES = {"statement": 5, "random": 6, "recovery": 6, "double": 4, "drain": 4, "open": 4, "stop": 2, "stall": 3}
"""Kinds beside ``point``, and how often each comes in turn."""


@dataclass(frozen=True)
class Shown:
    """What the first life of a workload's world did: how often each point and step occurred, and its seconds."""

    counts: dict[str, int]
    seconds: float

    @property
    def steps(self) -> int:
        return self.counts[STEPS]


@dataclass(frozen=True)
class Case:
    """One world: its workload, its kind, and what is done to each of its lives; what follows is undisturbed."""

    kind: str
    workload: str
    lives: tuple[Life, ...]

    def text(self) -> str:
        """As ``--case`` takes it."""
        return json.dumps(
            {"kind": self.kind, "workload": self.workload, "lives": [asdict(life) for life in self.lives]}
        )


def from_text(text: str) -> Case:
    said = json.loads(text)
    lives = [
        Life(
            aim=None if life["aim"] is None else (life["aim"][0], life["aim"][1]),
            signals=tuple((delay, name) for delay, name in life["signals"]),
            drain=None if life["drain"] is None else (life["drain"][0], life["drain"][1]),
            park=life["park"],
            stall=None if life["stall"] is None else (life["stall"][0], life["stall"][1], life["stall"][2]),
            trace=life["trace"],
        )
        for life in said["lives"]
    ]
    return Case(said["kind"], said["workload"], tuple(lives))


def every_point(shown: dict[str, Shown]) -> list[Case]:
    """A case for each occurrence of each point of each workload's first life."""
    cases = []
    for name, show in shown.items():
        drain = WORKLOADS[name].drains
        for point, times in sorted(show.counts.items()):
            if point in (STEPS, STATEMENTS, OPENING):
                continue
            for number in range(1, times + 1):
                park = drain is not None and number % 2 == 0
                cases.append(Case("point", name, (Life(aim=(point, number), drain=drain, park=park),)))
    return cases


def in_turn(shown: dict[str, Shown], chance: random.Random) -> Iterator[Case]:
    """Cases of the other kinds, for ever, in the order of their shares."""
    kinds = [kind for kind, share in SHARES.items() for _ in range(share)]
    names = list(shown)
    while True:
        chance.shuffle(kinds)
        for kind in kinds:
            name = "drain" if kind == "drain" and "drain" in shown else chance.choice(names)
            yield Case(kind, name, _lives(kind, name, shown[name], chance))


def _lives(kind: str, name: str, show: Shown, chance: random.Random) -> tuple[Life, ...]:
    drain = WORKLOADS[name].drains
    park = drain is not None and chance.random() < 0.5
    at_a_step = Life(aim=(STEPS, chance.randint(1, show.steps)), drain=drain, park=park)
    match kind:
        case "statement":
            return (Life(aim=(STATEMENTS, chance.randint(1, show.counts[STATEMENTS])), drain=drain, park=park),)
        case "random":
            return (_at_an_instant(show, chance),)
        case "recovery":
            # The second kill falls into the life that takes over: at a point of it, or at one of its statements.
            again = (STEPS, chance.randint(1, 24)) if chance.random() < 0.6 else (STATEMENTS, chance.randint(60, 200))
            return (at_a_step, Life(aim=again))
        case "double":
            return tuple(_at_an_instant(show, chance) for _ in range(chance.randint(2, 4)))
        case "drain":
            begun = (STEPS, chance.randint(2, max(2, show.steps - 3)))
            killed = (STEPS, chance.randint(begun[1] + 1, show.steps + 2))
            return (Life(aim=killed, drain=begun, park=chance.random() < 0.5),)
        case "open":
            # While the store is made, or while it is opened over what a killed life left.
            life = Life(aim=(OPENING, chance.randint(1, show.counts[OPENING])))
            return (life,) if chance.random() < 0.4 else (at_a_step, life, *_again(life, chance))
        case "stop":
            return (_stopped(show, chance),)
        case "stall":
            # The machine stands still at a point, and the process is killed a little behind it, or not at all.
            at = chance.randint(1, show.steps)
            aim = (STEPS, at + chance.randint(1, 3)) if chance.random() < 0.8 else None
            return (Life(aim=aim, stall=(STEPS, at, chance.choice((0.05, 0.25, 0.4))), drain=drain, park=park),)
    raise ValueError(f"no kind {kind!r}")


def _again(life: Life, chance: random.Random) -> tuple[Life, ...]:
    return (life,) if chance.random() < 0.3 else ()


def _at_an_instant(show: Shown, chance: random.Random) -> Life:
    return Life(signals=((chance.uniform(0.0, show.seconds), "KILL"),))


def _stopped(show: Shown, chance: random.Random) -> Life:
    """Stopped for a random while, and killed a little later or not at all."""
    signals = [(chance.uniform(0.0, show.seconds), "STOP"), (chance.choice((0.02, 0.1, 0.35)), "CONT")]
    if chance.random() < 0.5:
        signals.append((chance.uniform(0.0, show.seconds), "KILL"))
    return Life(signals=tuple(signals))
