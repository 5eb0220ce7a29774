"""Measures what a large store costs: `python tests/waits/scale.py [--part N] [--json]`.

A store with 100,000 open event waits, 100,000 open tasks and 1,000,000 concluded runs (divided by N) is grown from real
chains; then every list, a quiet tick and the delivery of one event are timed on it, 10,000 timers fall due at once
beside a run that works, and a process that holds 100,000 suspended runs is compared with one that holds none. What is
printed was measured in this one run; nothing here passes or fails but what is counted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

from agentplane import Plane, Recovery, effect, skill
from agentplane.engine.plane import wall_ms
from agentplane.journal import lists, obligations, timers
from agentplane.journal.tx import Tx
from agentplane.journal.units import Unit
from agentplane.testkit.grow import grow
from agentplane.work import events, matters, tasks

DAY_MS = 86_400_000
PAGES = 40
NAME = "grown.run"


@skill(NAME)
async def grown_run(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
    """What the grown waits are waits of."""
    found = await cx.event("grown.came", correlation={"grown": str(request["n"])}, until=request["until"])
    return found.payload


@effect("grown.act", recovery=Recovery.RETRY)
async def act(call: Any, *, n: int) -> int:
    return n


@skill("grown.work")
async def work(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
    for n in range(request["times"]):
        await cx.do(act(n=n))


@skill("grown.sleep")
async def sleeper(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
    return None


def timed(body: Callable[[], object], times: int = PAGES) -> dict[str, float]:
    """Milliseconds of one call: the middle one and the slowest."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        body()
        found.append((time.perf_counter() - began) * 1000)
    return {"median_ms": round(statistics.median(found), 2), "worst_ms": round(max(found), 2)}


LISTS: dict[str, Callable[[Tx], list[Any]]] = {
    "runs": lambda tx: lists.runs(tx),
    "runs of a status": lambda tx: lists.runs(tx, status="succeeded"),
    "runs in the middle": lambda tx: lists.runs(tx, before=(wall_ms() - 40_000_000, "")),
    "waiting": lambda tx: lists.waiting(tx),
    "waiting, a page behind": lambda tx: lists.waiting(tx, 100, lists.waiting(tx)[-1].cursor),
    "tasks": lambda tx: tasks.queue(tx),
    "tasks of a role": lambda tx: tasks.queue(tx, role="reviewer"),
    "tasks, a page behind": lambda tx: tasks.queue(tx, 100, tasks.queue(tx)[-1].cursor),
    "tasks overdue": lambda tx: tasks.unanswered(tx, wall_ms(), 100),
    "failed with landed work": lambda tx: lists.failed_with_landed(tx),
    "cases": lambda tx: matters.by_status(tx, None, 100),
    "obligations": lambda tx: obligations.breached(tx, 100),
    "dead letters": lambda tx: events.dead_letters(tx, 100),
}


async def on_a_large_store(store: Path) -> dict[str, Any]:
    async with Plane.open(store, skills=[grown_run, work], recover=False) as plane:
        read = plane.store.readers.read
        found: dict[str, Any] = {
            "lists": {name: timed(lambda body=body: read(body)) for name, body in LISTS.items()}  # type: ignore[misc]
        }
        await plane.sweep.tick(plane.world.now_ms())  # the first looks for what nothing would wake, and is seldom
        ticks = []
        for _ in range(20):
            began = time.perf_counter()
            await plane.sweep.tick(plane.world.now_ms())
            ticks.append((time.perf_counter() - began) * 1000)
        found["quiet_tick_ms"] = {"median_ms": round(statistics.median(ticks), 2), "worst_ms": round(max(ticks), 2)}
        began = time.perf_counter()
        plane.sweep._rearmed_ms = None
        await plane.sweep.tick(plane.world.now_ms())
        found["tick_that_looks_for_lost_rows_ms"] = round((time.perf_counter() - began) * 1000, 2)
        found["commit_ms"] = await _timed(20, lambda n: plane.writer.do(
            lambda tx: lists.set_state(tx, "scale", str(n))
        ))  # fmt: skip
        found["deliver_to_nobody_ms"] = await _timed(50, lambda n: plane.deliver(
            "grown.came", {"n": n}, id=f"nobody-{n}", correlation={"grown": f"no-{n}"}, source="peer:scale"
        ))  # fmt: skip
        # The middle of the waits: the unit that stores, matches, claims, ends the wait and takes the run.
        found["deliver_to_a_run_ms"] = await _timed(50, lambda n: plane.deliver(
            "grown.came", {"n": n}, id=f"one-{n}", correlation={"grown": str(n + 100)}, source="peer:scale"
        ))  # fmt: skip
        return found


async def _timed(times: int, body: Callable[[int], Any]) -> dict[str, float]:
    found = []
    for n in range(times):
        began = time.perf_counter()
        await body(n)
        found.append((time.perf_counter() - began) * 1000)
    return {"median_ms": round(statistics.median(found), 2), "worst_ms": round(max(found), 2)}


async def timers_at_once(directory: Path, count: int) -> dict[str, Any]:
    """A run of effects beside so many timers that fall due together: how long units hold the writer, and for how many
    commits an announcement waits."""
    found: dict[str, Any] = {}
    for name, due in (("without", 0), ("with", count)):
        store = directory / f"timers-{name}" / "plane.db"
        store.parent.mkdir()
        async with Plane.open(store):
            pass
        if due:
            grow(store, capability="grown.sleep", sleeps=due, now_ms=wall_ms(), due_ms=wall_ms() + 1)
        units: list[float] = []
        waited: list[int] = []
        async with Plane.open(store, skills=[sleeper, work], recover=False) as plane:
            _watch(plane, units, waited)
            began = time.perf_counter()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(plane.run, "grown.work", {"times": 400})
                fired = 0
                while due:
                    ticked = await plane.sweep.tick(plane.world.now_ms())
                    fired += len(ticked.fired)
                    if not ticked.saturated and not await plane.read(lambda tx: timers.next_due_ms(tx)):
                        break
            await plane.runs.wait_idle()
            seconds = time.perf_counter() - began
        found[name] = {
            "fired": fired if due else 0, "seconds": round(seconds, 2), "units": len(units),
            "longest_unit_ms": round(max(units) * 1000, 2), "announcements": len(waited),
            "most_commits_waited": max(waited), "mean_commits_waited": round(statistics.mean(waited), 3),
        }  # fmt: skip
    return found


def _watch(plane: Plane, units: list[float], waited: list[int]) -> None:
    submit, writer = plane.writer.submit, plane.writer

    def watching(unit: Unit[Any]) -> None:
        body, before = unit.body, writer.commits
        announces = unit.run is not None and unit.barrier

        def measured(tx: Tx) -> Any:
            # On the writer's thread: its own commit comes behind this, and those since it was queued came before.
            if announces:
                waited.append(writer.commits + 1 - before)
            began = time.thread_time()
            try:
                return body(tx)
            finally:
                # Of the thread's own time: what the machine did meanwhile is not the unit's.
                units.append(time.thread_time() - began)

        unit.body = measured
        submit(unit)

    vars(plane.writer)["submit"] = watching


RESIDENT = """
import sys, trio
from agentplane.engine.plane import Plane
sys.path.insert(0, {tests!r})
from waits.scale import grown_run
async def main():
    async with Plane.open({store!r}, skills=[grown_run]) as plane:
        for _ in range(3):
            await plane.sweep.tick(plane.world.now_ms())
        await trio.sleep(1)
        print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmRSS")))
trio.run(main)
"""


def resident_mb(store: Path) -> float:
    """Resident memory of a process that holds the store open, after its first looks."""
    code = RESIDENT.format(store=str(store), tests=str(Path(__file__).parent.parent))
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600)
    return round(int(ran.stdout) / 1024, 1)


def measure(directory: Path, part: int, told: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    waits, ended = 100_000 // part, 1_000_000 // part
    store, empty = directory / "large" / "plane.db", directory / "empty" / "plane.db"

    async def made(path: Path) -> None:
        path.parent.mkdir()
        async with Plane.open(path):
            pass

    trio.run(made, store)
    trio.run(made, empty)
    told(f"growing {ended} concluded runs, {waits} waits, {waits} tasks")
    began = time.perf_counter()
    due_ms = wall_ms() + 30 * DAY_MS
    made_of = grow(store, capability=NAME, events=waits, tasks=waits, concluded=ended, now_ms=wall_ms(), due_ms=due_ms)
    found: dict[str, Any] = {
        "waits": waits, "tasks": waits, "concluded": ended, "grown_s": round(time.perf_counter() - began, 1),
        "store_mb": round(store.stat().st_size / 1e6),
    }  # fmt: skip
    told("measuring")
    found |= trio.run(on_a_large_store, store)
    found["resident_mb"] = {"none": resident_mb(empty), "suspended": resident_mb(store), "runs": 2 * waits}
    found["timers"] = trio.run(timers_at_once, directory, 10_000 // part)
    found["last_grown"] = made_of.last
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", type=int, default=1, metavar="N", help="an N-th of the full size")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--directory", type=Path, help="where (default: the temporary directory)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="agentplane-scale-", dir=args.directory) as name:
        found = measure(Path(name), args.part, lambda line: print(line, file=sys.stderr))
    if args.json:
        print(json.dumps(found, indent=1))
        return
    for key, value in found.items():
        if isinstance(value, dict):
            print(f"{key}:")
            for one, said in value.items():
                print(f"  {one:<32} {said}")
        else:
            print(f"{key:<34} {value}")


if __name__ == "__main__":
    main()
