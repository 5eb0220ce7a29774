"""A plane whose effects write into a book and wait for gates, and how its end is watched. For the tests of drains."""

from __future__ import annotations

from typing import Any

from agentplane.core.records import Record
from agentplane.journal import lists
from agentplane.journal.store import read_only
from agentplane.surface.client import HttpClient
from surface.terminals import Plane, spoken

SKILLS = '''
"""Skills of the drain tests: acts are written into a book beside the plane, and wait for gates there."""
import os
import time
from pathlib import Path

import trio

from agentplane import effect, skill

HERE = Path(__file__).parent.parent


def write(line):
    descriptor = os.open(HERE / "book", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, (line + "\\n").encode())
    os.close(descriptor)


async def through(gate):
    while not (HERE / gate).exists():
        await trio.sleep(0.005)


@effect("desk.quick", timeout_s=5)
async def quick(call, *, order: str, ms: int = 0):
    write(f"quick {order}")
    await trio.sleep(ms / 1000)
    return order


@effect("desk.gated", timeout_s=5)
async def gated(call, *, order: str):
    write(f"gated {order}")
    await through("gate")
    return order


@effect("desk.endless", timeout_s=3600)
async def endless(call, *, order: str):
    write(f"endless {order}")
    await through("never")


@effect("desk.look", mutates=False, timeout_s=3600)
async def look(call, *, order: str):
    write(f"look {order}")
    await through("never")


@skill("desk.looking")
async def looking(cx, request: dict):
    await cx.do(look(order=request["order"]))


@effect("desk.far", timeout_s=600)
async def far(call, *, order: str):
    write(f"far {order}")
    return order


@effect("desk.thread", timeout_s=3600)
def thread(call, *, order: str):
    write(f"thread {order}")
    time.sleep(600)


@skill("desk.two")
async def two(cx, request: dict):
    """One effect that waits for the gate, one that does not fit into a grace."""
    await cx.do(gated(order=request["order"] + "-1"))
    await cx.do(far(order=request["order"] + "-2"))
    return "both"


@skill("desk.pair")
async def pair(cx, request: dict):
    await cx.do(gated(order=request["order"] + "-1"))
    await cx.do(quick(order=request["order"] + "-2"))
    return "both"


@skill("desk.endlessly")
async def endlessly(cx, request: dict):
    await cx.gather(endless(order=request["order"] + "-1"), endless(order=request["order"] + "-2"))


@skill("desk.chain")
async def chain(cx, request: dict):
    for number in range(request["count"]):
        await cx.do(quick(order=f"{request['order']}-{number}", ms=request["ms"]))
    return request["count"]


@skill("desk.threaded")
async def threaded(cx, request: dict):
    await cx.do(thread(order=request["order"]))


@skill("desk.blocking")
def blocking(cx, request: dict):
    cx.do(quick(order=request["order"]))
    time.sleep(600)


@skill("desk.busy")
async def busy(cx, request: dict):
    await cx.do(gated(order=request["order"]))
    await cx.do(quick(order="now busy"))
    while True:
        pass
'''
SOON_S = 8
"""Longer than a loaded machine takes to leave, shorter than any grace that is not to be waited for."""


def book(plane: Plane) -> list[str]:
    path = plane.directory / "book"
    return path.read_text().splitlines() if path.exists() else []


def open_gate(plane: Plane) -> None:
    (plane.directory / "gate").touch()


def begun(plane: Plane, capability: str, line: str, **request: Any) -> str:
    """Start a run and wait until the book has the line."""
    run = str(plane.run(capability, {"order": "A"} | request, "--detach").body["run"])
    plane.until(lambda: line in book(plane))
    return run


def records(plane: Plane, run: str) -> list[Record]:
    readers = read_only(plane.directory / "plane.db")
    try:
        return [item.record for item in readers.read(lambda tx: lists.whole_history(tx, run))]
    finally:
        readers.close()


def kinds(plane: Plane, run: str) -> list[str]:
    return [type(record).__name__ for record in records(plane, run)]


def log(plane: Plane) -> str:
    return spoken(plane.log.read_text())


def leaves(plane: Plane, within_s: float = SOON_S) -> int:
    """The status with which the process ends by itself, soon."""
    assert plane.child is not None
    status = plane.child.wait(within_s)
    plane.child = None
    return status


def draining(plane: Plane) -> None:
    plane.until(lambda: "draining:" in log(plane))


def ended(plane: Plane, run: str) -> dict[str, Any]:
    """The run's view once it has left running; a plane serves it."""
    client = HttpClient(path=plane.directory / "run" / "control.sock")
    for _ in range(4):
        _, view = client.call("show", run=run, query={"wait": 30}, wait_s=30)
        if view["status"] != "running":
            break
    return view
