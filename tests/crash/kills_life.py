"""One life of a world: a process forked from a warm parent, which runs a workload until it rests or is killed.

Owns the killer (which ends its own process at an aimed occurrence of a point), the points that are told of, and what a
client would remember of its acknowledgements. Refuses to clean up: a killed life leaves what SIGKILL leaves. Invariant:
an acknowledgement is noted only after ``start`` returned, and the loop of the parent never runs in the child.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import apsw
import trio

from agentplane.core.errors import Draining, Refusal
from agentplane.core.records import Actor, Basis
from agentplane.core.tasks import Reviewer
from agentplane.engine.admission import Wanted
from agentplane.engine.plane import Plane
from agentplane.engine.worklist import Verdict
from agentplane.journal import lists
from crash import workloads
from crash.kills_provider import book_of
from crash.workloads import CAPABILITIES, Workload

RESTS, DRAINED, FAULT = 0, 3, 1
STEPS = "step"
"""Any occurrence of a point of the engine or the provider, counted through."""
STATEMENTS, OPENING = "sql", "opening"
"""A statement that is about to be given to SQLite; a statement or a file operation before the plane is open."""
OPENING_EVENTS = frozenset({"open", "os.rename", "os.remove", "os.mkdir", "fcntl.flock", "os.truncate"})
GRACE_S = 2.0


JUDGE = Actor(actor="mara", basis=Basis.AUTHENTICATED)
PERSON = Reviewer(actor=JUDGE.actor, basis=JUDGE.basis, roles=("reviewer",))


@dataclass(frozen=True)
class Life:
    """What is done to one life: ``aim`` kills it at the n-th occurrence of a point, ``signals`` are sent by the parent
    after so many seconds each, ``drain`` asks it to drain at an occurrence. ``stall`` holds up whichever thread tells
    of an occurrence for so many seconds, as a machine that stands still does. ``trace``: every occurrence is written to
    a file, so that also a life that ends by its own hand shows what it did."""

    aim: tuple[str, int] | None = None
    signals: tuple[tuple[float, str], ...] = ()
    drain: tuple[str, int] | None = None
    park: bool = False
    stall: tuple[str, int, float] | None = None
    trace: bool = False

    @property
    def halted(self) -> bool:
        """Whether it stood still for a while, so that effects may have run into their timeouts."""
        return self.stall is not None or any(name == "STOP" for _, name in self.signals)

    @property
    def undisturbed(self) -> bool:
        return self.aim is None and not self.signals


class Killer:
    """Told of every point, from any thread; kills at the aimed one."""

    def __init__(self, life: Life, world: Path) -> None:
        self.life = life
        self.drain = trio.Event()
        self.opening = True
        self._token: trio.lowlevel.TrioToken | None = None
        self._counted: Counter[str] = Counter()
        self._lock = threading.RLock()
        self._trace = os.open(world / "trace", os.O_WRONLY | os.O_CREAT, 0o600) if life.trace else None

    def observe(self, point: str, **_: object) -> None:
        with self._lock:
            self._count(point)
            self._count(STEPS)

    def statement(self, *_: object) -> bool:
        """Before each statement of any connection of the process."""
        with self._lock:
            self._count(STATEMENTS)
            if self.opening:
                self._count(OPENING)
        return True

    def file_operation(self, event: str, _: object) -> None:
        if self.opening and event in OPENING_EVENTS:
            with self._lock:
                self._count(OPENING)

    def opened(self) -> None:
        self.opening = False
        self._token = trio.lowlevel.current_trio_token()

    def _count(self, name: str) -> None:
        self._counted[name] += 1
        if self._trace is not None:
            os.write(self._trace, f"{name}\n".encode())
        at = (name, self._counted[name])
        if at == self.life.aim:
            os.kill(os.getpid(), signal.SIGKILL)
            while True:  # until the signal has come: nothing behind the point is done by this thread
                time.sleep(1)
        if self.life.stall is not None and at == self.life.stall[:2]:
            time.sleep(self.life.stall[2])
        if at == self.life.drain and self._token is not None:
            self._token.run_sync_soon(self.drain.set)


def fork(world: Path, workload: Workload, life: Life, provider: str, leash: int) -> int:
    """Begin a life; returns its pid in the parent and never in the child."""
    pid = os.fork()
    if pid:
        return pid
    _live(world, workload, life, provider, leash)


def _live(world: Path, workload: Workload, life: Life, provider: str, leash: int) -> NoReturn:
    status = FAULT
    try:
        os.close(leash)
        errors = os.open(world / "errors", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(errors, 1)
        os.dup2(errors, 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        killer = Killer(life, world)
        workloads.NOTE[:] = [killer.observe]
        apsw.connection_hooks.append(lambda connection: setattr(connection, "exec_trace", killer.statement))
        sys.addaudithook(killer.file_operation)
        status = trio.run(_life, world, workload, life, provider, killer)
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(status)


async def _life(world: Path, workload: Workload, life: Life, provider: str, killer: Killer) -> int:
    settings = {"provider": provider, "book": str(book_of(world))}
    async with Plane.open(world / "plane.db", skills=CAPABILITIES, settings=settings, observe=killer.observe) as plane:
        killer.opened()
        async with trio.open_nursery() as nursery:
            if life.drain is not None:
                nursery.start_soon(_drain, plane, life, killer)
            if "events" in workload.outside:
                await _deliver(plane, workload, world, 0)
            await _submit(plane, workload, world)
            if "events" in workload.outside:
                await _deliver(plane, workload, world, 1)
            at_rest = await _rest(plane, workload)
            nursery.cancel_scope.cancel()
    return RESTS if at_rest else DRAINED


async def _drain(plane: Plane, life: Life, killer: Killer) -> None:
    await killer.drain.wait()
    await plane.drain(GRACE_S, park=life.park)


async def _submit(plane: Plane, workload: Workload, world: Path) -> None:
    """As a client that was told nothing would: every request again, under its key, whatever was said before."""
    for key, capability, wanted in workload.requests:
        try:
            admission = await plane.start(Wanted(
                capability=capability, input=wanted, key=key,
                correlate={"order": wanted["order"]} if "sweep" in workload.outside else None,
            ))  # fmt: skip
        except Draining:
            return
        descriptor = os.open(world / "acknowledged", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(descriptor, f"{key} {admission.run}\n".encode())
        os.close(descriptor)


async def _deliver(plane: Plane, workload: Workload, world: Path, which: int) -> None:
    """Every life delivers again what it was not told of: the events of every second order first, the others behind the
    requests."""
    for n, (key, _, wanted) in enumerate(workload.requests):
        if n % 2 == which or len(workload.requests) == 1:
            order = wanted["order"]
            told = await plane.deliver(
                "kill.came", {"order": order}, id=f"came-{key}", correlation={"order": order}, source="peer:kill"
            )
            descriptor = os.open(world / "delivered", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.write(descriptor, f"{told.event}\n".encode())
            os.close(descriptor)


async def _decide(plane: Plane) -> None:
    """A person approves whatever waits; what was decided a moment ago is left."""
    for row in await plane.tasks():
        with suppress(Refusal):
            await plane.worklist.decide(row.task, PERSON, JUDGE, Verdict(said="approve", reason="looked"))


async def _rest(plane: Plane, workload: Workload) -> bool:
    """Until no run is open, or none runs any more and the plane drains; whether none is open."""

    def left(tx: Any) -> int:
        counts = lists.count_by_status(tx)
        return counts.get("running", 0) + counts.get("suspended", 0)

    while True:
        if "person" in workload.outside:
            await _decide(plane)
        if "sweep" in workload.outside:
            # An hour later, while the run still works: met or breached, and never both.
            await plane.sweep.tick(plane.world.now_ms() + 3_600_000)
        await plane.runs.wait_idle()
        running = await plane.read(left)
        if not running or (plane.draining and not plane.runs.live):
            return not running
        plane.begin_recovery()
        await trio.sleep(0.002)
