"""One mode from its first start to its audit: restarts under load, then rest, then what the store and the book hold.

Owns the order. Refuses to end while a promised run is open. Invariant: what was in flight is read at the moment of the
signal, what was cut after the old process has gone, and the store only when nothing serves.
"""

from __future__ import annotations

import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import trio

from appliance.rolling import report
from appliance.rolling.audit import duplicates, lost
from appliance.rolling.clients import LOSSES, Asked, Clients
from appliance.rolling.load import Load
from appliance.rolling.report import Mode, Restart
from appliance.rolling.supervisor import Process, Supervisor
from appliance.rolling.world import World

MODES = ("held", "unheld", "killed", "dropped")
KEPT = 12
AIM = {"killed": 130}
"""Runs that are open at once, where it is not AIM_ELSE: after a kill half of those that were under way wait until
nothing can land late any more."""
AIM_ELSE = 60
ENOUGH = 45
"""Effects in flight before the next signal, unless FILL_S pass without."""
FILL_S = 6.0
LULL_S = (0.05, 1.0)
"""How long it then serves on, by chance, so that signals do not all come at the same moment of a start."""
APART_S = 9.5
"""At the least between two kills: a run that three processes in a row took over without a word of its own is
quarantined, for a person, and one whose effect was cut says nothing until that cannot land late any more, which is the
effect's timeout and what its provider needs to settle."""
SAMPLED_S = 0.004
REST_S = 120.0
OVERLAPPING_EVERY = 3
WAIT_LOCK_S = 40


class Rolling:
    """One mode over one world. ``tell`` is told of progress."""

    def __init__(self, mode: str, world: World, seed: int, tell: Callable[[str], None]) -> None:
        self.mode = mode
        self.world = world
        self.seed = seed
        self.chance = random.Random(f"{mode}/{seed}")
        serve = [str(world.program), "serve", str(world.plane)]
        self.supervisor = Supervisor(serve, world.directory, held=mode != "unheld")
        host, port = self.supervisor.where
        token = world.settle("systemd:operator" if self.supervisor.held else f"{host}:{port}")
        self.clients = Clients(self.supervisor.where, token, KEPT)
        self.load = Load(self.clients, world.flights, self.chance, AIM.get(mode, AIM_ELSE))
        self.restarts: list[Restart] = []
        self.tell = tell
        self._high = (0, 0)
        self._told = False

    async def run(self, restarts: int) -> Mode:
        """All of it. Raises StartFailed, TooSlowError; SystemExit when this process is told to end."""
        began, seconds = trio.current_time(), 0.0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._until_told, nursery.cancel_scope)
            process = self.supervisor.start(nursery)
            await self.supervisor.ready(process)
            nursery.start_soon(self._sample)
            async with trio.open_nursery() as load:
                load.start_soon(self.load.forever)
                for number in range(1, restarts + 1):
                    await self._fill(process)
                    process = await self._restart(number, process, nursery)
                    self.tell(self._line(self.restarts[-1]))
                self.load.resting = True
                await self._rest()
                self.load.stopped = True
            seconds = trio.current_time() - began
            self.clients.close()
            process.tell(signal.SIGTERM)
            await self.supervisor.over(process)
            nursery.cancel_scope.cancel()
        if self._told:
            raise SystemExit(128 + signal.SIGTERM)
        return self._audit(seconds)

    async def _until_told(self, scope: trio.CancelScope) -> None:
        with trio.open_signal_receiver(signal.SIGTERM) as told:
            async for _ in told:
                self._told = True
                scope.cancel()

    def _line(self, row: Restart) -> str:
        lost = sum(one.kind in LOSSES for one in self.load.requests)
        return (
            f"{self.mode} {row.number}: {row.in_flight} in flight, status {row.status}, "
            f"READY after {row.turned_s:.2f} s, {len(self.load.requests)} requests so far, {lost} not answered"
        )

    async def _fill(self, process: Process) -> None:
        flights = self.world.flights
        with trio.move_on_after(FILL_S):
            while flights.under_way(process.pid) < ENOUGH:
                await trio.sleep(0.02)
                flights.read()
        await trio.sleep(self.chance.uniform(*LULL_S))
        if self.mode == "killed" and self.restarts:
            await trio.sleep_until(self.restarts[-1].begun_at + APART_S)

    async def _restart(self, number: int, old: Process, nursery: trio.Nursery) -> Process:
        flights = self.world.flights
        overlapping = self.mode == "held" and number % OVERLAPPING_EVERY == 0
        flights.read()
        in_flight, self._high = flights.under_way(old.pid), (0, 0)
        begun_at, on_clock = trio.current_time(), time.monotonic()
        old.tell(signal.SIGKILL if self.mode == "killed" else signal.SIGTERM)
        if self.mode == "dropped":
            self.supervisor.drop()
        new = self.supervisor.start(nursery, "--wait-lock", str(WAIT_LOCK_S)) if overlapping else None
        await self.supervisor.over(old)
        if self.mode == "dropped":
            self.supervisor.bind_again()
        new = new or self.supervisor.start(nursery)
        await self.supervisor.ready(new)
        flights.read()
        longest, last = flights.longest(old.pid, on_clock)
        said, left = old.said("stopped"), flights.left(old.pid)
        assert old.status is not None
        high, backlog = self._high if self.supervisor.held else (None, None)
        self.restarts.append(
            Restart(
                number=number,
                overlapping=overlapping,
                in_flight=in_flight,
                status=old.status,
                parked=_count(said, "parked"),
                cut=max(len(left), _count(said, "cut")),
                ended_s=old.ended_at - begun_at,
                close_s=old.ended_at - begun_at - (last - on_clock),
                start_s=new.ready_at - old.ended_at,
                turned_s=new.ready_at - begun_at,
                longest_effect_s=longest,
                queued=high,
                backlog=backlog,
                begun_at=begun_at,
                ready_at=new.ready_at,
            )
        )
        return new

    async def _sample(self) -> None:
        """The high-water mark of the accept queue."""
        while True:
            self._high = max(self._high, self.supervisor.queue())
            await trio.sleep(SAMPLED_S)

    async def _rest(self) -> None:
        """Until no run is open."""
        with trio.fail_after(REST_S):
            while True:
                found = await self.clients.ask(Asked("GET", "/runs?outcome=running&limit=1"), keep=False)
                if found.status == 200 and not found.body["runs"]:
                    return
                await trio.sleep(0.2)

    def _audit(self, seconds: float) -> Mode:
        load, world = self.load, self.world
        stored, done = world.runs(), world.deeds()
        between, losses = report.attribute(self.restarts, load.requests)
        return Mode(
            mode=self.mode,
            seeds=[self.seed],
            seconds=seconds,
            restarts=self.restarts,
            requests=report.counted(load.requests),
            reopened=self.clients.reopened,
            longest_between_s=between,
            acknowledged=len(load.promised),
            runs=len(stored),
            deeds=sum(done.values()),
            begun_again=sum(times > 1 for times in world.flights.begun.values()),
            lost=list(lost(load.promised, load.listed, stored, done)),
            duplicates=list(duplicates(load.wanted, stored, done)),
            wrong=load.wrong,
            losses=losses,
        )


def _count(said: dict[str, object], name: str) -> int:
    found = said.get(name, 0)
    return found if isinstance(found, int) else 0


def roll(mode: str, program: Path, directory: Path, restarts: int, seed: int) -> Mode:
    """One mode in a directory of its own, from a process without threads."""
    world = World(program, directory)
    try:
        rolling = Rolling(mode, world, seed, lambda line: print(line, file=sys.stderr, flush=True))
        try:
            return trio.run(rolling.run, restarts)
        finally:
            rolling.supervisor.close()
    finally:
        world.close()
