"""The work that a bench puts on a plane, and the figures of a plane in this process.

Owns the skills of the bench and its passes. Refuses to talk to anything outside: an act takes no time here, so that
what remains is the plane's own. Invariant: every run of a pass succeeded, or the bench fails.
"""

from __future__ import annotations

import gc
import itertools
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import trio

from agentplane.authoring.effect import Recovery, effect
from agentplane.authoring.skill import skill
from agentplane.authoring.types import Call, Step
from agentplane.core.errors import StoreFailed
from agentplane.engine import guard
from agentplane.engine.plane import Plane
from agentplane.engine.strict import replay_strict
from agentplane.journal import lists
from agentplane.lab.bench.rows import Row, row
from agentplane.testkit.counting import CountingVFS

CAPABILITY: Final = "bench.sequence"
FRAME: Final = bytes(4096)
WARM: Final = 40
"""Effects before a pass, so that statements are prepared and code is warm."""


@effect("bench.call", recovery=Recovery.IDEMPOTENT)
async def call_out(call: Call, *, number: int) -> dict[str, Any]:
    """An outward call that is answered at once."""
    return {"number": number, "accepted": True}


@effect("bench.operator")
async def call_person(call: Call, *, number: int) -> dict[str, Any]:
    """The same, of a kind whose doubt only a person settles."""
    return {"number": number, "accepted": True}


@effect("bench.local", local=True)
async def compute(call: Call, *, number: int) -> int:
    """Nothing outside the process."""
    return number


KINDS: Final = {"call": call_out, "operator": call_person, "local": compute}


@skill(CAPABILITY)
async def sequence(cx: Step, request: dict[str, Any]) -> int:
    """``effects`` effects of ``kind``, one after the other."""
    made = KINDS[request["kind"]]
    for number in range(request["effects"]):
        await cx.do(made(number=number))
    return int(request["effects"])


class Looked(msgspec.Struct):
    """What a step saw of the audit hook, in microseconds an event."""

    event_us: float = 0.0


LOOKED = Looked()


@skill("bench.guarded")
async def guarded(cx: Step, request: dict[str, Any]) -> None:
    """Events that the guard looks at and lets pass, raised where a step's own code would."""
    LOOKED.event_us = audited_us(int(request["events"]))


def audited_us(events: int) -> float:
    """Microseconds of one audited event: a file opened for reading, the dearest that a step may raise."""
    audit, args = sys.audit, ("bench", "r", os.O_RDONLY)
    began = time.perf_counter()
    for _ in range(events):
        audit("open", *args)
    return (time.perf_counter() - began) / events * 1e6


def fdatasync_us(directory: Path, times: int) -> float:
    """The floor: the median of appending one page and waiting for the disk, microseconds."""
    path = directory / "floor"
    taken = []
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        for _ in range(times):
            began = time.perf_counter()
            os.write(fd, FRAME)
            os.fdatasync(fd)
            taken.append(time.perf_counter() - began)
    finally:
        os.close(fd)
        path.unlink()
    return statistics.median(taken) * 1e6


_stores = itertools.count()


@asynccontextmanager
async def plane_in(directory: Path, **options: Any) -> AsyncIterator[Plane]:
    """A plane over a store of its own, warmed up."""
    path = directory / f"bench-{next(_stores)}.db"
    async with Plane.open(path, skills=[sequence, guarded], **options) as plane:
        await perform(plane, 1, WARM, "call")
        yield plane


async def perform(plane: Plane, runs: int, effects: int, kind: str) -> str:
    """``runs`` runs side by side of ``effects`` each; the id of the last. Raises StoreFailed unless all succeeded."""
    ids: list[str] = []

    async def one() -> None:
        outcome = await plane.run(CAPABILITY, {"effects": effects, "kind": kind})
        if outcome.status != "succeeded":
            raise StoreFailed(f"A run of the bench ended {outcome.status}: {outcome.reason}.")
        ids.append(outcome.run)

    async with trio.open_nursery() as nursery:
        for _ in range(runs):
            nursery.start_soon(one)
    return ids[-1]


async def syncs(directory: Path, runs: int, effects: int, kind: str = "call") -> float:
    """Syncs of any file of the store an effect, admission, conclusion and checkpoints included."""
    with CountingVFS() as counting:
        async with plane_in(directory, vfs=counting.name) as plane:
            counting.reset()
            await perform(plane, runs, effects, kind)
            counted = counting.syncs
    return counted / (runs * effects)


async def paced(directory: Path, runs: int, effects: int, kind: str = "call") -> tuple[float, float]:
    """Microseconds of time, and of CPU of the whole process, an effect."""
    async with plane_in(directory) as plane:
        gc.collect()
        began, used = time.perf_counter(), time.process_time()
        await perform(plane, runs, effects, kind)
        return (
            (time.perf_counter() - began) / (runs * effects) * 1e6,
            (time.process_time() - used) / (runs * effects) * 1e6,
        )


async def replayed_us(directory: Path, effects: int) -> float:
    """Microseconds an effect of walking a run against its history, the history in memory."""
    async with plane_in(directory) as plane:
        run = await perform(plane, 1, effects, "call")
        stored = await trio.to_thread.run_sync(lists.read_history, plane.store.readers.read, run)
        gc.collect()
        began = time.perf_counter()
        verdict = await replay_strict(run, stored, {CAPABILITY: sequence}, plane.world, None)
        took = time.perf_counter() - began
        if verdict.verdict != "verified":
            raise StoreFailed(f"A run of the bench does not replay: {verdict.reason}.")
    return took / effects * 1e6


async def guard_us(directory: Path, events: int) -> float:
    """Microseconds that the audit hook adds to one event inside a step."""
    before = audited_us(events)
    guard.install()
    async with plane_in(directory, guard_steps=True) as plane:
        await plane.run("bench.guarded", {"events": events})
    return max(0.0, LOOKED.event_us - before)


async def in_process(directory: Path, scale: float, told: Callable[[str], None]) -> list[Row]:
    """Every row that one process can measure; ``scale`` 1.0 for the whole, less for a quick look."""

    def some(number: int) -> int:
        return max(16, round(number * scale))

    told("the disk")
    floor = fdatasync_us(directory, some(600))
    rows = [row("fdatasync_us", floor)]
    told("syncs, counted")
    rows.append(row("syncs_per_sequential_effect", await syncs(directory, 1, some(1000)), 1.0))
    rows.append(row("syncs_per_operator_effect", await syncs(directory, 1, some(500), "operator"), 2.0))
    rows.append(row("syncs_per_local_effect", await syncs(directory, 1, some(2000), "local"), 0.0))
    for runs, effects in ((8, 250), (64, 60), (256, 20)):
        counted = await syncs(directory, runs, max(8, round(effects * scale)))
        rows.append(row(f"syncs_per_effect_{runs}", counted, 1 / runs))
    told("time and CPU")
    for runs, effects in ((1, 2000), (8, 400), (64, 100), (256, 30)):
        took, used = await paced(directory, runs, max(8, round(effects * scale)))
        rows.append(row(f"effects_per_s_{runs}", 1e6 / took, 1e6 / floor * runs))
        if runs in (1, 64):
            rows.append(row("cpu_per_effect_us" if runs == 1 else "cpu_per_effect_64_us", used))
    took, _ = await paced(directory, 1, some(3000), "local")
    rows.append(row("local_effect_us", took))
    told("replay")
    rows.append(row("replay_us", await replayed_us(directory, some(5000))))
    told("the guard")
    rows.append(row("guard_event_us", await guard_us(directory, some(200_000))))
    return rows
