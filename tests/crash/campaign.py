"""The fault campaign: every workload through every point of its disk, with every fault of the model.

It owns the order of a campaign, its report and its sabotages. First a workload is run over a sound disk that is
photographed at each write and sync: each photograph is laid out as power would have left it, opened by the ordinary
product, recovered and judged. Then it is run again for each point with each error of the disk; what stopped is opened
in the same boot, and once more as if power had been lost when it stopped. After a sync that failed, power is lost at
each point of the next opening as well.

    python tests/crash/campaign.py [--json] [--workload NAME] [--seed N] [--seeds N] [--every N] [--jobs N]

Exit status 0 when nothing was found, 1 when something was.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import trio
from trio.testing import MockClock

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from agentplane.testkit.fakes import FakeProvider
from agentplane.testkit.faults import CERTAIN_LOSSES, SEEDED_LOSSES, SYNC_ERRORS, WRITE_ERRORS, Disk, Fault, FaultVFS
from crash.campaign_checks import Finding, ended_wrong, judge
from crash.campaign_sabotage import SABOTAGES
from crash.campaign_workloads import HANG_S, STORE, WORKLOADS, Acked, Session, Workload, World, lay_out

LATENCY = "latency"
LATENCY_US = 2_000
_names = itertools.count(1)


class Row(msgspec.Struct):
    """What became of one workload under one fault. ``points`` it could fall on, ``worlds`` judged (a world that was
    judged already is not judged again), ``ends`` of the plane under the fault, ``found`` findings by kind."""

    workload: str
    fault: str
    points: int = 0
    worlds: int = 0
    ends: Counter[str] = msgspec.field(default_factory=Counter)
    found: Counter[str] = msgspec.field(default_factory=Counter)
    sentences: list[str] = []

    def add(self, where: str, findings: list[Finding]) -> None:
        self.worlds += 1
        for finding in findings:
            self.found[finding.kind] += 1
            self.sentences = [*self.sentences, f"{where}: {finding.kind}: {finding.sentence}"][:20]


class Report(msgspec.Struct):
    """All rows of a campaign. ``seconds`` of wall time."""

    seed: int
    rows: list[Row]
    seconds: float = 0.0

    def total(self, kind: str) -> int:
        return sum(row.found[kind] for row in self.rows)

    @property
    def points(self) -> int:
        return sum(row.points for row in self.rows)

    @property
    def worlds(self) -> int:
        return sum(row.worlds for row in self.rows)

    @property
    def sentences(self) -> list[str]:
        return [f"{row.workload}, {row.fault}: {said}" for row in self.rows for said in row.sentences]

    @property
    def sound(self) -> bool:
        return self.worlds > 0 and not any(row.found.total() for row in self.rows)


# --- running under the loop ------------------------------------------------------------------------------------------


def _run(workload: Workload, body: Callable[..., Any], *args: Any) -> Any:
    async def bounded() -> Any:
        with trio.fail_after(HANG_S if workload.threads else 1e6):
            return await body(*args)

    return trio.run(bounded, clock=None if workload.threads else MockClock(autojump_threshold=0))


@contextmanager
def _session(workload: Workload, world: World, disk: Disk | None = None, opening: int = 0) -> Iterator[Session]:
    """A world in a directory of its own, behind ``disk`` where there is one."""
    with ExitStack() as stack:
        where = "/dev/shm" if os.path.isdir("/dev/shm") else None
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agentplane-campaign-", dir=where)))
        vfs = stack.enter_context(FaultVFS(f"campaign-{next(_names)}", disk)) if disk is not None else None
        provider = FakeProvider()
        provider.restore(world.provider)
        lay_out(world, directory)
        yield Session(directory / STORE, workload, provider, vfs=vfs, acked=world.acked, opening=opening)


def _empty() -> World:
    return World({}, None, FakeProvider().snapshot(), Acked())


def _begin(workload: Workload) -> World:
    if workload.begin is None:
        return _empty()
    with _session(workload, _empty(), Disk()) as session:
        return _run(workload, workload.begin, session)


def _judged(workload: Workload, world: World) -> list[Finding]:
    """A world in a boot of its own."""
    with workload.build(), _session(workload, world, opening=10) as session:
        return _run(workload, judge, session, world.acked)


# --- power -----------------------------------------------------------------------------------------------------------


class Photograph(msgspec.Struct, frozen=True):
    """A disk at one point, and everything else at that instant."""

    kind: str
    count: int
    take: Callable[[str, Random], World]


def photographed(session: Session, taken: list[Photograph]) -> Callable[[str, int], None]:
    """An ``at_point`` that keeps a photograph of every point."""

    def at_point(kind: str, count: int) -> None:
        still = session.world()
        assert session.vfs is not None
        image = session.vfs.disk.image()

        def take(how: str, random: Random) -> World:
            return msgspec.structs.replace(still, files=image.after_power_loss(how, random))

        taken.append(Photograph(kind, count, take))

    return at_point


def power(workload: Workload, seed: int, seeds: int, every: int) -> list[Row]:
    """Power lost at each point of one run over a sound disk."""
    begun, taken = _begin(workload), []
    disk = Disk()
    with _session(workload, begun, disk) as session:
        disk.at_point = photographed(session, taken)
        _run(workload, workload.act, session)
        disk.at_point("end", 1)
    seen: set[int] = set()
    rows: list[Row] = []
    for how in CERTAIN_LOSSES + SEEDED_LOSSES:
        row = Row(workload.name, how)
        rows.append(row)
        chosen = [one for one in taken if how in CERTAIN_LOSSES or one.kind != "write"]
        for photograph in chosen[seed % every :: every]:
            row.points += 1
            for number in range(seeds if how in SEEDED_LOSSES else 1):
                random = Random(f"{seed}/{number}/{how}/{photograph.kind}/{photograph.count}")
                world = photograph.take(how, random)
                if _is_new(world, seen):
                    row.add(f"{photograph.kind} {photograph.count}, seed {seed}/{number}", _judged(workload, world))
        row.ends["power lost"] = row.points
    return rows


def _is_new(world: World, seen: set[int]) -> bool:
    landed = tuple((landing.key, landing.reference) for landing in world.provider.book)
    mark = None if world.mark is None else (world.mark.incarnation, world.mark.commits)
    print_of = hash((tuple(sorted(world.files.items())), mark, landed, world.acked))
    fresh = print_of not in seen
    seen.add(print_of)
    return fresh


# --- errors ----------------------------------------------------------------------------------------------------------


def points_of(workload: Workload, begun: World) -> tuple[int, int]:
    """Write points and sync points of one run over a sound disk."""
    disk = Disk()
    with _session(workload, begun, disk) as session:
        _run(workload, workload.act, session)
    return disk.writes, disk.syncs


def errors(workload: Workload, kind: str, seed: int, every: int) -> Row:
    """One run for each point of the kind: what it did, and what is found afterwards."""
    begun, row = _begin(workload), Row(workload.name, kind)
    writes, syncs = points_of(workload, begun)
    seen: set[int] = set()
    last = writes if kind in WRITE_ERRORS else syncs
    for at in range(1 + seed % every, last + 1, every):
        row.points += 1
        disk = Disk(Fault(kind, at))
        with _session(workload, begun, disk) as session:
            _under_error(row, workload, session, f"point {at}", seen)
    return row


def _under_error(row: Row, workload: Workload, session: Session, where: str, seen: set[int]) -> None:
    assert session.vfs is not None
    disk = session.vfs.disk
    wrong = _perform(row, workload, session)
    if wrong is not None:
        row.add(where, [wrong])
    stopped = session.world(how="dropped")
    disk.heal()
    disk.fault = None
    taken: list[Photograph] = []
    if row.fault in SYNC_ERRORS:
        disk.at_point = photographed(session, taken)
    with workload.build():
        row.add(f"{where}, the same boot", _run(workload, judge, session, session.acked))
    disk.at_point = None
    worlds = {"power lost when it had stopped": stopped}
    if taken:
        worlds["power lost at rest"] = session.world(how="dropped")
    for photograph, how in itertools.product(taken, ("dropped", "kept")):
        if photograph.kind == "write" and photograph.take("dropped", Random(0)).acked != stopped.acked:
            break  # the opening is over: what follows is under way as after any other
        at = f"power lost at {photograph.kind} {photograph.count} of the next opening, {how}"
        worlds[at] = photograph.take(how, Random(0))
    for name, world in worlds.items():
        if _is_new(world, seen):
            row.add(f"{where}, {name}", _judged(workload, world))


def _perform(row: Row, workload: Workload, session: Session) -> Finding | None:
    """Run the workload into its fault; a finding when it did not end as it should."""
    try:
        _run(workload, workload.act, session)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        row.ends["stopped " + _name(error)] += 1
        return ended_wrong(error)
    assert session.vfs is not None
    row.ends["went on" if session.vfs.disk.fired else "not reached"] += 1
    return None


def _name(error: BaseException) -> str:
    return _name(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else type(error).__name__


def slow(workload: Workload) -> Row:
    """Every sync takes its time: the same end, and nothing else."""
    row, paused = Row(workload.name, LATENCY), []
    disk = Disk(latency_us=LATENCY_US, pause=lambda seconds: paused.append(seconds))
    with _session(workload, _begin(workload), disk) as session:
        wrong = _perform(row, workload, session)
        row.points = disk.syncs
        with workload.build():
            row.add("at rest", ([wrong] if wrong else []) + _run(workload, judge, session, session.acked))
    row.ends = Counter({f"went on, {len(paused) * LATENCY_US // 1000} ms later": row.ends.total()})
    return row


# --- the whole -------------------------------------------------------------------------------------------------------


def part(name: str, what: str, seed: int, seeds: int, every: int, sabotage: str | None) -> list[Row]:
    """One workload under power, latency or one kind of error."""
    workload = WORKLOADS[name]
    with SABOTAGES[sabotage]():
        if what == "power":
            return power(workload, seed, seeds, every)
        return [slow(workload) if what == LATENCY else errors(workload, what, seed, every)]


def campaign(
    *, workloads: list[str] | None = None, faults: list[str] | None = None, seed: int = 1, seeds: int = 3,
    every: int = 1, jobs: int = 1, sabotage: str | None = None,
) -> Report:  # fmt: skip
    """Run it. ``every``: only each n-th point, beginning at one that the seed draws. Raises KeyError for a workload
    that does not exist."""
    began = time.monotonic()
    kinds = faults or ["power", *WRITE_ERRORS, *SYNC_ERRORS, LATENCY]
    wanted = [(name, kind, seed, seeds, every, sabotage) for name in workloads or list(WORKLOADS) for kind in kinds]
    for name, *_ in wanted:
        WORKLOADS[name]
    report = Report(seed, [])
    if jobs == 1:
        found = [part(*one) for one in wanted]
    else:
        with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
            found = list(pool.map(part, *zip(*wanted, strict=True)))
    report.rows = [row for rows in found for row in rows]
    report.seconds = time.monotonic() - began
    return report


def shown(report: Report) -> str:
    """The report as a person reads it."""
    lines = [f"{'workload':18} {'fault':10} {'points':>6} {'worlds':>6} {'lost':>5} {'twice':>5} {'else':>5}  ends"]
    for row in report.rows:
        other = row.found.total() - row.found["lost"] - row.found["duplicate"]
        ends = ", ".join(f"{count} {end}" for end, count in row.ends.most_common())
        lines.append(
            f"{row.workload:18} {row.fault:10} {row.points:6} {row.worlds:6} {row.found['lost']:5} "
            f"{row.found['duplicate']:5} {other:5}  {ends}"
        )
    lines += report.sentences
    lines.append(
        f"seed {report.seed}: {report.points} points of {len({row.workload for row in report.rows})} workloads, "
        f"{report.worlds} stores judged in {report.seconds:.0f} s; {report.total('lost')} acknowledged lost, "
        f"{report.total('duplicate')} duplicates, {sum(row.found.total() for row in report.rows)} findings"
    )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run workloads through every fault of a disk.")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--workload", action="append", choices=sorted(WORKLOADS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=3, help="draws of each seeded loss at each sync")
    parser.add_argument("--every", type=int, default=1, help="only every n-th point")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--sabotage", choices=[name for name in SABOTAGES if name], help="break the store on purpose")
    asked = parser.parse_args()
    report = campaign(
        workloads=asked.workload, seed=asked.seed, seeds=asked.seeds, every=asked.every, jobs=asked.jobs,
        sabotage=asked.sabotage,
    )  # fmt: skip
    print(json.dumps(msgspec.to_builtins(report)) if asked.json else shown(report))
    return 0 if report.sound else 1


if __name__ == "__main__":
    sys.exit(main())
