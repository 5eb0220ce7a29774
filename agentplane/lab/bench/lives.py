"""Processes of a bench: one that is killed in the middle, and one that takes over.

Owns the figures that need a process of their own: an open after a kill. Refuses to measure an open after an end in
peace. Invariant: the first process ends by SIGKILL, by its own hand, with everything announced on disk.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import trio

from agentplane.authoring.effect import Recovery, effect
from agentplane.authoring.skill import skill
from agentplane.authoring.types import Call, Step
from agentplane.core.errors import StoreFailed
from agentplane.engine.plane import Plane
from agentplane.lab.bench.rows import Row, row

EFFECTS: Final = 10_000
RUNS: Final = 1_000
OUTPUT: Final = "x" * 250
"""With its quotes and members, 256 bytes of canonical JSON."""
SIDE_BY_SIDE: Final = 100
LIFE_S: Final = 90.0


class Held:
    """Effects that are held open until the process is killed; the second life lets them pass."""

    def __init__(self) -> None:
        self.passing = False
        self.waiting = 0
        self.wanted = 1
        self.all_wait = trio.Event()


HELD = Held()


@effect("bench.kept", recovery=Recovery.RETRY)
async def kept(call: Call, *, number: int) -> str:
    """An output of 256 bytes."""
    return f"{OUTPUT}{number % 10_000:04}"


@effect("bench.held", recovery=Recovery.RETRY, timeout_s=3600)
async def held(call: Call) -> str:
    """Never answered in the first life, at once in the second."""
    if not HELD.passing:
        HELD.waiting += 1
        if HELD.waiting == HELD.wanted:
            HELD.all_wait.set()
        await trio.sleep_forever()
    return "passed"


@skill("bench.long")
async def long(cx: Step, request: dict[str, Any]) -> int:
    """``effects`` effects side by side in groups, and one that is held."""
    for first in range(0, request["effects"], SIDE_BY_SIDE):
        await cx.gather(*(kept(number=number) for number in range(first, first + SIDE_BY_SIDE)))
    await cx.do(held())
    return int(request["effects"])


@skill("bench.short")
async def short(cx: Step, request: dict[str, Any]) -> str:
    """One effect, and one that is held."""
    await cx.do(kept(number=request["number"]))
    return str(await cx.do(held()))


SKILLS: Final = (long, short)


async def first_life(store: Path, what: str) -> None:
    """Begin the runs of ``what`` (resume or recovery) and die when all of them stand at the held effect."""
    runs = 1 if what == "resume" else RUNS
    HELD.wanted = runs
    async with Plane.open(store, skills=SKILLS, max_running=max(runs, 1)) as plane:
        async with trio.open_nursery() as nursery:
            for number in range(runs):
                asked = (
                    ("bench.long", {"effects": EFFECTS}) if what == "resume" else ("bench.short", {"number": number})
                )
                nursery.start_soon(plane.run, *asked)
            await HELD.all_wait.wait()
            os.kill(os.getpid(), signal.SIGKILL)


async def second_life(store: Path, what: str) -> dict[str, float]:
    """Open what the first left, with what ships, and wait until every run has concluded."""
    HELD.passing = True
    wanted = 1 if what == "resume" else RUNS
    ended = 0
    all_ended = trio.Event()

    def observe(point: str, **_: object) -> None:
        nonlocal ended
        if point == "run.concluded":
            ended += 1
            if ended == wanted:
                all_ended.set()

    began = time.perf_counter()
    async with Plane.open(store, skills=SKILLS, observe=observe):
        await all_ended.wait()
        took = time.perf_counter() - began
    return {"seconds": took, "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def live(command: str, store: Path, what: str) -> dict[str, float]:
    """Run one life in a process of its own; what it printed. Raises StoreFailed when it ended otherwise than it had
    to."""
    done = subprocess.run(
        [sys.executable, "-m", "agentplane.lab.bench.lives", command, str(store), what],
        capture_output=True, timeout=LIFE_S, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode != (-signal.SIGKILL if command == "first" else 0):
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["nothing said"]
        raise StoreFailed(f"A process of the bench ended with {done.returncode}: {last[0][:200]}.")
    return json.loads(done.stdout) if command == "second" else {}


def after_kills(directory: Path, told: Callable[[str], None]) -> list[Row]:
    """The rows of an open after a kill."""
    told("resuming 10,000 effects after a kill")
    store = directory / "resume.db"
    live("first", store, "resume")
    resumed = live("second", store, "resume")
    told("recovering 1,000 runs after a kill")
    store = directory / "recovery.db"
    live("first", store, "recovery")
    recovered = live("second", store, "recovery")
    return [
        row("resume_10k_s", resumed["seconds"]),
        row("resume_10k_rss_mb", resumed["rss_mb"]),
        row("recovery_1000_s", recovered["seconds"]),
    ]


if __name__ == "__main__":
    asked, where, which = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    if asked == "first":
        trio.run(first_life, where, which)
    print(json.dumps(trio.run(second_life, where, which)))
