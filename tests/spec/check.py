"""The specifications and their mutants, explored and told as a table.

Run as `python tests/spec/check.py [--spec NAME] [--mutants] [--json]`. Owns what is asked of a specification: that its
invariants hold, that every action of it is taken and every ending reached, and that each of its mutants trips exactly
its own invariant. Refuses a mutant whose anchor does not stand in its specification exactly once.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import msgspec

from spec import tlc

STATES_AT_LEAST = 10_000
CORES = 2


class Mutant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One change of a specification, and the invariant that it must trip. ``replacement`` stands for ``anchor``."""

    spec: str
    invariant: str
    says: str
    anchor: str
    replacement: str

    def text(self) -> str:
        """The mutated specification. Raises ValueError when the anchor does not stand there exactly once."""
        text: str = tlc.source(self.spec)
        if (count := text.count(self.anchor)) != 1:
            raise ValueError(f"{self.spec}, {self.invariant}: the anchor stands {count} times: {self.anchor!r}")
        return text.replace(self.anchor, self.replacement)


def mutants(spec: str | None = None) -> list[Mutant]:
    rows = tomllib.loads((tlc.SPECS / "mutants.toml").read_text("utf-8"))["mutant"]
    found = [msgspec.convert(row, Mutant) for row in rows]
    return [one for one in found if spec in (None, one.spec)]


class Explored(msgspec.Struct, frozen=True, kw_only=True):
    """A specification as it is: what was found wrong with it is in ``faults``."""

    spec: str
    distinct: int
    depth: int
    seconds: float
    invariants: list[str]
    taken: dict[str, int]
    faults: list[str]


def explored(spec: str, *, workers: int = CORES) -> Explored:
    """Explore all of ``spec``: invariants, deadlock, every action taken, every ending reached, enough states."""
    result = tlc.explore(spec, workers=workers, coverage=True)
    faults = []
    if result.violated:
        faults.append(f"{result.violated} is violated")
    if result.stuck:
        faults.append("a state that is no ending has no successor")
    faults += [f"{name} is never taken" for name, count in result.taken.items() if not count]
    if not any(name.startswith("Ends") for name in result.taken):
        faults.append("no ending is named")
    if result.distinct < STATES_AT_LEAST:
        faults.append(f"{result.distinct} distinct states are under {STATES_AT_LEAST}")
    return Explored(
        spec=spec, distinct=result.distinct, depth=result.depth, seconds=round(result.seconds, 1),
        invariants=tlc.invariants(spec), taken=result.taken, faults=faults,
    )  # fmt: skip


class Tripped(msgspec.Struct, frozen=True, kw_only=True):
    """A mutant, explored twice: with its own invariant alone, and with every other."""

    spec: str
    invariant: str
    says: str
    trips: str | None
    other: str | None
    distinct: int
    seconds: float

    @property
    def exact(self) -> bool:
        """Whether its own invariant is violated and every other holds in every state, of which there are enough: a
        mutant that stops the world proves nothing."""
        return self.trips == self.invariant and self.other is None and self.distinct >= STATES_AT_LEAST


def tripped(mutant: Mutant) -> Tripped:
    text, names = mutant.text(), tlc.invariants(mutant.spec)
    if mutant.invariant not in names:
        raise ValueError(f"{mutant.spec} names no invariant {mutant.invariant}")
    alone = tlc.explore(
        mutant.spec, text=text, config=tlc.with_invariants(mutant.spec, [mutant.invariant]), deadlock=False
    )
    others = [name for name in names if name != mutant.invariant]
    rest = tlc.explore(mutant.spec, text=text, config=tlc.with_invariants(mutant.spec, others), deadlock=False)
    return Tripped(
        spec=mutant.spec, invariant=mutant.invariant, says=mutant.says, trips=alone.violated, other=rest.violated,
        distinct=rest.distinct, seconds=round(alone.seconds + rest.seconds, 1),
    )  # fmt: skip


def all_tripped(chosen: list[Mutant]) -> Iterator[Tripped]:
    """Every mutant in order, as many at once as there are cores."""
    with ThreadPoolExecutor(CORES) as pool:
        yield from pool.map(tripped, chosen)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="check.py", description="Explore the specifications of docs/spec with TLC.")
    parser.add_argument("--spec", choices=tlc.specs(), help="this one alone")
    parser.add_argument("--mutants", action="store_true", help="the mutants too")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(argv)
    began = time.monotonic()
    try:
        seen = [explored(spec) for spec in ([asked.spec] if asked.spec else tlc.specs())]
        if not asked.json:
            _tell(seen)
        broken: list[Tripped] = []
        for row in all_tripped(mutants(asked.spec)) if asked.mutants else ():
            broken.append(row)
            if not asked.json:
                _tell_mutant(row, first=len(broken) == 1)
    except (tlc.Missing, tlc.NotExplored, ValueError) as error:
        print(f"check.py: {error}", file=sys.stderr)
        return 4
    if asked.json:
        rows = [msgspec.to_builtins(row) | {"exact": row.exact} for row in broken]
        print(json.dumps({"specs": msgspec.to_builtins(seen), "mutants": rows}, indent=2))
    else:
        if broken:
            print(f"\n{sum(row.exact for row in broken)} of {len(broken)} mutants trip exactly their own invariant")
        print(f"{time.monotonic() - began:.0f} s in all")
    return int(any(one.faults for one in seen) or not all(row.exact for row in broken))


def _tell(seen: list[Explored]) -> None:
    print(f"{'spec':<16}{'distinct':>9}{'depth':>7}{'s':>7}  actions  invariants")
    for one in seen:
        print(
            f"{one.spec:<16}{one.distinct:>9}{one.depth:>7}{one.seconds:>7.1f}  {len(one.taken):>7}  "
            f"{len(one.invariants)} hold" + "".join(f"; {fault}" for fault in one.faults),
            flush=True,
        )


def _tell_mutant(row: Tripped, *, first: bool) -> None:
    if first:
        print(f"\n{'mutant of':<16}{'invariant':<32}{'distinct':>9}{'s':>7}  verdict")
    verdict = "trips exactly it" if row.exact else f"WRONG: alone {row.trips}, others {row.other}"
    print(f"{row.spec:<16}{row.invariant:<32}{row.distinct:>9}{row.seconds:>7.1f}  {verdict}: {row.says}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
