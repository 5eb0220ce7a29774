"""Kill sweeps: every point of every workload, and kills at random, in recovery, in drains, while opening, and doubled.

    python tests/crash/kills.py [--kills N] [--seed S] [--workload W] [--case TEXT] [--json]

Owns the driver: a warm process without threads that forks each life, so that a kill costs a fork and not an
interpreter. Refuses to call a sweep good that killed less than it was asked for. Invariant: every world is brought to
rest and audited, and a case that found something is printed as ``--case`` takes it.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if not __package__:
    # By hand: the tests' own root is not on the path yet.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from crash.kills_audit import Found, look
from crash.kills_cases import Case, Shown, every_point, from_text, in_turn
from crash.kills_life import DRAINED, FAULT, RESTS, Life, fork
from crash.kills_provider import Provider, ask
from crash.workloads import WORKLOADS, Workload

LIFE_S = 60.0
"""A life that takes longer is stuck, and a fault."""
LIVES_MAX = 14
POINTS_SHARE = 0.6
"""At most this part of the kills goes to single points when they do not all fit."""
LONG, SHORT = 10_000, 200


@dataclass
class Row:
    """What one kind of kill found."""

    cases: int = 0
    kills: int = 0
    runs: int = 0
    acknowledged: int = 0
    duplicates: int = 0
    lost: int = 0
    faults: int = 0
    ended: Counter[str] = field(default_factory=Counter)

    def add(self, found: Found, kills: int) -> None:
        self.cases += 1
        self.kills += kills
        self.runs += found.runs
        self.acknowledged += found.acknowledged
        self.duplicates += len(found.duplicates)
        self.lost += len(found.lost)
        self.faults += len(found.faults)
        self.ended += found.ended


class Sweep:
    """A driver in ``directory``; worlds are made and removed one at a time."""

    def __init__(self, directory: Path, *, keep: bool = False) -> None:
        self.directory = directory
        self.keep = keep
        self.rows: dict[str, Row] = {}
        self.said: list[dict[str, str]] = []
        self.killed: set[tuple[str, str, int]] = set()
        self.provider = Provider(directory)
        self._numbers = itertools.count(1)

    @property
    def kills(self) -> int:
        return sum(row.kills for row in self.rows.values())

    def show(self, name: str) -> Shown:
        """One undisturbed world of a workload, audited like every other."""
        world = self._world()
        workload = WORKLOADS[name]
        began = time.monotonic()
        status, _ = self._life(world, workload, Life(drain=workload.drains, trace=True))
        seconds = time.monotonic() - began
        if status not in ((-signal.SIGABRT,) if workload.aborts else (RESTS, DRAINED)):
            raise SystemExit(f"the workload {name} fails undisturbed:\n{(world / 'errors').read_text()[-3000:]}")
        counts = Counter((world / "trace").read_text().split())
        found = self._to_rest(world, workload, disturbed=False, kills=0)
        self._note("undisturbed", Case("undisturbed", name, ()), found, 0)
        self._remove(world)
        return Shown(dict(counts), seconds)

    def run(self, case: Case) -> None:
        """Kill, resume, audit."""
        world, workload, kills = self._world(), WORKLOADS[case.workload], 0
        for life in case.lives:
            status, killed = self._life(world, workload, life)
            kills += killed
            if status == FAULT:
                break
            if killed and life.aim is not None:
                self.killed.add((case.workload, *life.aim))
        disturbed = any(life.halted for life in case.lives)
        found = self._to_rest(world, workload, disturbed=disturbed, kills=kills)
        self._note(case.kind, case, found, kills)
        self._remove(world)

    def _note(self, kind: str, case: Case, found: Found, kills: int) -> None:
        self.rows.setdefault(kind, Row()).add(found, kills)
        for what in ("duplicates", "lost", "faults"):
            for sentence in getattr(found, what):
                self.said.append({"what": what, "sentence": sentence, "case": case.text()})

    def _to_rest(self, world: Path, workload: Workload, *, disturbed: bool, kills: int) -> Found:
        for _ in range(LIVES_MAX):
            status, _ = self._life(world, workload, Life())
            if status == RESTS:
                ask(str(self.provider.path), {"verb": "quiet"})
                try:
                    return look(world, workload, disturbed=disturbed, kills=kills)
                except Exception as error:
                    return Found(faults=[f"the store cannot be audited: {type(error).__name__}: {error}"])
            if status == FAULT:
                break
        errors = (world / "errors").read_text()[-1500:]
        return Found(faults=[f"the world never came to rest (status {status}): {errors}"])

    def _life(self, world: Path, workload: Workload, life: Life) -> tuple[int, bool]:
        """How a life ended (a status, or minus a signal), and whether it was the sweep that killed it."""
        pid = fork(world, workload, life, str(self.provider.path), self.provider.leash)
        watched = os.pidfd_open(pid)
        try:
            for delay, name in life.signals:
                if select.select([watched], [], [], delay)[0]:
                    break
                os.kill(pid, getattr(signal, f"SIG{name}"))
            stuck = not select.select([watched], [], [], LIFE_S)[0]
        finally:
            os.close(watched)
        if stuck:
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if stuck:
            with open(world / "errors", "a") as errors:
                errors.write(f"a life was stuck for {LIFE_S:g} s\n")
            return FAULT, False
        ended = os.waitstatus_to_exitcode(status)
        return ended, ended == -signal.SIGKILL and not life.undisturbed

    def _world(self) -> Path:
        world = self.directory / f"w{next(self._numbers)}"
        world.mkdir(mode=0o700)
        return world

    def _remove(self, world: Path) -> None:
        if not self.keep:
            shutil.rmtree(world)


def chosen(shown: dict[str, Shown], kills: int, chance: random.Random) -> Iterator[Case]:
    """Every point where they fit into their share, else as many of them as do, one of each workload at least; then the
    other kinds in turn."""
    points = every_point(shown)
    fitting = int(kills * POINTS_SHARE)
    if len(points) > fitting:
        chance.shuffle(points)
        first = {case.workload: case for case in points}
        points = [*first.values(), *(case for case in points if first[case.workload] is not case)][:fitting]
    yield from points
    yield from in_turn(shown, chance)


def sweep(directory: Path, names: list[str], kills: int, seed: int, *, keep: bool = False) -> dict[str, Any]:
    """Make at least ``kills`` kills in the workloads ``names``; what was found, as data."""
    gc.collect()
    gc.freeze()
    began = time.monotonic()
    driver = Sweep(directory, keep=keep)
    try:
        shown = {name: driver.show(name) for name in names}
        points = {(case.workload, *case.lives[0].aim) for case in every_point(shown) if case.lives[0].aim}
        said = time.monotonic()
        for case in chosen(shown, kills, random.Random(seed)):
            if driver.kills >= kills:
                break
            driver.run(case)
            if time.monotonic() - said > 10:
                said = time.monotonic()
                print(
                    f"{driver.kills}/{kills} kills, {len(driver.said)} findings, {said - began:.0f} s", file=sys.stderr
                )
    finally:
        driver.provider.close()
    return report(driver, seed, time.monotonic() - began, len(points), len(points & driver.killed))


def report(driver: Sweep, seed: int, seconds: float, points: int, killed: int) -> dict[str, Any]:
    rows = [
        {"kind": kind, "cases": row.cases, "kills": row.kills, "runs": row.runs, "acknowledged": row.acknowledged,
         "duplicates": row.duplicates, "lost": row.lost, "faults": row.faults, "ended": dict(row.ended)}
        for kind, row in driver.rows.items()
    ]  # fmt: skip
    return {
        "seed": seed, "kills": driver.kills, "seconds": round(seconds, 1), "points": points, "points_killed": killed,
        "rows": rows, "found": driver.said,
    }  # fmt: skip


def as_table(said: dict[str, Any]) -> str:
    names = ("cases", "kills", "runs", "acknowledged", "duplicates", "lost", "faults")
    lines = [f"{'kind':<12}" + "".join(f"{name:>14}" for name in names)]
    total = {"kind": "all"} | {name: sum(row[name] for row in said["rows"]) for name in names}
    for row in (*said["rows"], total):
        lines.append(f"{row['kind']:<12}" + "".join(f"{row[name]:>14}" for name in names))
    lines.append(
        f"seed {said['seed']}: {said['kills']} kills in {said['seconds']} s, "
        f"{said['points_killed']} of {said['points']} points"
    )
    return "\n".join(
        [*lines, *(f"{each['what']}: {each['sentence']}\n  --case '{each['case']}'" for each in said["found"])]
    )


def main() -> int:
    default = LONG if os.environ.get("AGENTPLANE_SWEEP") == "long" else SHORT
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=default)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--workload", action="append", choices=sorted(WORKLOADS))
    parser.add_argument("--case", help="one case, as a report prints it; run --kills times")
    parser.add_argument("--keep", action="store_true", help="leave the worlds where they were made")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="agentplane-kills-"))
    try:
        if args.case:
            driver = Sweep(directory, keep=args.keep)
            for _ in range(args.kills):
                driver.run(from_text(args.case))
            driver.provider.close()
            said = report(driver, args.seed, 0.0, 0, 0)
        else:
            said = sweep(directory, args.workload or list(WORKLOADS), args.kills, args.seed, keep=args.keep)
    finally:
        if args.keep:
            print(f"kept in {directory}", file=sys.stderr)
        else:
            shutil.rmtree(directory, ignore_errors=True)
    print(json.dumps(said, indent=1) if args.json else as_table(said))
    return 1 if said["found"] else 0


if __name__ == "__main__":
    sys.exit(main())
