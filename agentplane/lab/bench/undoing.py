"""What plans, waits and undo cost.

Owns the figures of a wide ready set, of a large plan's contract, of a resume in the middle of an unwind, and of an
atomic member. Refuses to compare across runs: each ratio is of two things done in one process, one after the other.
Invariant: what is timed was checked to have ended as it should.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Final

import trio

from agentplane.authoring.effect import Recovery, effect
from agentplane.authoring.plan import PlanTemplate, given, node, plan
from agentplane.authoring.skill import Skill, skill
from agentplane.authoring.types import Call, Step
from agentplane.core import contract
from agentplane.core import plan as plans
from agentplane.core.errors import StoreFailed
from agentplane.engine.plane import Outcome, Plane
from agentplane.lab.bench.rows import Row, row
from agentplane.testkit.postings import TABLE, post

WIDE: Final = 1_000
LARGE: Final = 10_000
ROUNDS: Final = 5
SOON_S: Final = 0.3


@effect("bench.deed", recovery=Recovery.IDEMPOTENT)
async def deed(call: Call, *, number: int) -> int:
    return number


@skill("bench.side_by_side")
async def side_by_side(cx: Step, request: dict[str, Any]) -> int:
    return len(await cx.gather(*(deed(number=number) for number in range(request["width"]))))


@skill("bench.one")
async def one(cx: Step, request: dict[str, Any]) -> int:
    return int(await cx.do(deed(number=request["number"])))


@one.compensate
async def one_back(cx: Step, request: dict[str, Any], output: object) -> None:
    """Takes one deed back; the one in the middle waits first."""
    if request["number"] == request["wait_at"]:
        await cx.sleep(seconds=SOON_S)
    await cx.do(deed(number=-request["number"]))


@skill("bench.stop")
async def stop(cx: Step, request: dict[str, Any]) -> None:
    raise ValueError("the bench stops here")


def wide(width: int, name: str = "bench.wide", *, stops: bool = False) -> PlanTemplate:
    """``width`` steps that wait for nothing; with ``stops`` one behind all of them that fails."""
    nodes = [node(f"n{at}", "bench.one", args={"number": at, "wait_at": given("wait_at")}) for at in range(width)]
    if stops:
        nodes.append(node("stop", "bench.stop", after=[f"n{at}" for at in range(width)]))
    return plan(name, nodes=nodes)


async def all_of(directory: Path, scale: float, told: Callable[[str], None]) -> list[Row]:
    """Every row; ``scale`` 1.0 for the whole, less for a quick look."""
    width = max(16, round(WIDE * scale))
    told("a plan of many steps")
    ratio, steps_us = await ready_set(directory, width)
    told("undo")
    return [
        row("plan_step_us", steps_us),
        row("plan_over_gather", ratio, 1.0),
        row("plan_contract_10k_s", contract_s(max(100, round(LARGE * scale)))),
        row("resume_undo_s", await resume_undo_s(directory, width)),
        row("commits_per_atomic", await commits_per_atomic(directory, max(5, round(100 * scale))), 1.0),
    ]


async def ready_set(directory: Path, width: int) -> tuple[float, float]:
    """How much longer ``width`` independent steps take than the same effects in one gather (median of pairs taken one
    after the other), and microseconds a step."""
    ratios, taken = [], []
    skills: list[Skill | PlanTemplate] = [side_by_side, one, wide(width)]
    async with Plane.open(directory / "wide.db", skills=skills) as plane:
        await _timed(plane, "bench.side_by_side", {"width": width})
        for _ in range(ROUNDS):
            gathered = await _timed(plane, "bench.side_by_side", {"width": width})
            stepped = await _timed(plane, "bench.wide", {"wait_at": -1})
            ratios.append(stepped / gathered)
            taken.append(stepped / width * 1e6)
    return median(ratios), median(taken)


async def _timed(plane: Plane, capability: str, given_input: dict[str, Any]) -> float:
    began = time.perf_counter()
    _as_it_should(await plane.run(capability, given_input), "succeeded")
    return time.perf_counter() - began


def _as_it_should(outcome: Outcome, status: str) -> None:
    if outcome.status != status:
        raise StoreFailed(f"A run of the bench ended {outcome.status}: {outcome.reason}.")


def contract_s(nodes: int) -> float:
    """Seconds to find no fault in a plan of that many steps in layers of a hundred, each behind two of the last."""
    layered = [
        plans_node(at, () if at < 100 else tuple(sorted({at - 100, at // 100 * 100 - 100 + (at + 1) % 100})))
        for at in range(nodes)
    ]
    made = plans.Plan(nodes=tuple(layered))
    began = time.perf_counter()
    found = contract.faults(made, {"bench.one": None})
    took = time.perf_counter() - began
    if found:
        raise StoreFailed(f"The bench's plan has a fault: {found[0]}.")
    return took


def plans_node(at: int, after: tuple[int, ...]) -> plans.Node:
    return plans.Node(id=at, name=f"n{at}", capability="bench.one", after=after, terminal=True)


async def resume_undo_s(directory: Path, width: int) -> float:
    """Seconds from an open to the first call of a compensation that waited in the middle of an unwind of ``width``."""
    store = directory / "undo.db"
    skills: list[Skill | PlanTemplate] = [one, stop, wide(width, "bench.undone", stops=True)]
    async with Plane.open(store, skills=skills) as plane:
        outcome = await plane.run("bench.undone", {"wait_at": width // 2})
        _as_it_should(outcome, "suspended")
    await trio.sleep(SOON_S)
    acted = trio.Event()
    took = 0.0

    def observe(point: str, **_: object) -> None:
        nonlocal took
        if point == "effect.acting" and not acted.is_set():
            took = time.perf_counter() - began
            acted.set()

    began = time.perf_counter()
    async with Plane.open(store, skills=skills, observe=observe) as plane:
        with trio.fail_after(30):
            await acted.wait()
        await plane.runs.wait_for(outcome.run)
        _as_it_should(await plane.outcome(outcome.run), "failed")
    return took


async def commits_per_atomic(directory: Path, times: int) -> float:
    """Commits that a transaction of atomic members adds to a run: those of the whole run, less those of its admission
    and its conclusion."""
    async with Plane.open(directory / "atomic.db", skills=[post]) as plane:
        await plane.writer.do(lambda tx: tx.run(TABLE))
        before = plane.writer.commits
        _as_it_should(await plane.run(post.name, {"times": times}), "succeeded")
        return (plane.writer.commits - before - 2) / times
