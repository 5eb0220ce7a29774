"""The load: fifty effects in flight, twenty requests a second, and what was promised to whom.

Owns what is asked when, and every acknowledgement. Refuses to count what it does not know: a run is known by the answer
that admitted it. Invariant: each of its requests is in ``requests`` once, and an answer that contradicts an earlier one
is in ``wrong``.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass, field
from typing import Any

import trio

from appliance.rolling.clients import ANSWERED, Asked, Clients, Ended
from appliance.rolling.world import Flights

RATE = 20
"""Requests a second, all clients together."""
SHORTEST_MS, LONGEST_MS = 50, 5000
DEEDS = (2, 10)
REPEATED = 0.08
"""Part of the requests that repeat an admission which was acknowledged, and must name the same run."""
RECENT = 200
"""Runs that are read: old ones say nothing new."""
OPEN = 0.7
"""Part of the reads of one run that read one which has effects ahead of it."""
LISTED = 0.35
"""Part of the reads that list."""


@dataclass
class Promise:
    """An acknowledged run: what it was asked, and what an answer said of its end."""

    key: str
    order: str
    deeds: int
    status: str = "running"


@dataclass
class Load:
    """Begun by ``forever``; ``resting`` it admits nothing more and reads on, ``stopped`` it asks nothing more."""

    clients: Clients
    flights: Flights
    chance: random.Random
    aim: int
    """Runs that are open at once: more than the effects in flight, for some runs are between two."""
    requests: list[Ended] = field(default_factory=list)
    promised: dict[str, Promise] = field(default_factory=dict)
    listed: set[str] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)
    wanted: dict[str, int] = field(default_factory=dict)
    """Every order that was ever asked for, with its number of deeds."""
    resting: bool = False
    stopped: bool = False
    _asking: set[str] = field(default_factory=set)
    _run_of: dict[str, str] = field(default_factory=dict)
    _runs: list[str] = field(default_factory=list)
    _open: set[str] = field(default_factory=set)

    async def forever(self) -> None:
        """Ask at the rate, whatever earlier requests do; returns when it was stopped and the last of them has ended."""
        async with trio.open_nursery() as nursery:
            due = trio.current_time()
            while not self.stopped:
                nursery.start_soon(self._one, self._next(), self.chance.random() < 0.5)
                # Not evenly, so that no phase of a restart is missed by all.
                due = max(due + self.chance.uniform(0.5, 1.5) / RATE, trio.current_time() - 1)
                await trio.sleep_until(due)

    @property
    def open(self) -> int:
        """Runs that were promised, or are being asked for, and have effects ahead of them."""
        ended, wanted = self.flights.ended, self.wanted
        self._open -= {order for order in self._open if ended[order] >= wanted[order]}
        return len(self._asking) + len(self._open)

    def _next(self) -> Asked:
        self.flights.read()
        if self.promised and self.chance.random() < REPEATED:
            again = self.promised[self.chance.choice(self._runs)]
            return _admission(again.key, again.order, self._ms_of(again.order, again.deeds))
        if not self.resting and self.open < self.aim:
            order = f"o{len(self.wanted)}"
            deeds = self.chance.randint(*DEEDS)
            self.wanted[order] = deeds
            self._asking.add(order)
            return _admission(f"key-{order}", order, self._ms_of(order, deeds))
        if not self.promised or self.chance.random() < LISTED:
            return Asked("GET", "/runs?limit=20")
        # An open one by preference: after a kill an effect may have been settled without ending here.
        some = sorted(self._open) if self._open and self.chance.random() < OPEN else self._runs[-RECENT:]
        run = self.chance.choice(some)
        return Asked("GET", f"/runs/{self._run_of.get(run, run)}")

    @staticmethod
    def _ms_of(order: str, deeds: int) -> list[int]:
        """Durations, as many short ones as long ones by their logarithm; the same for the same order."""
        chance = random.Random(order)
        low, high = math.log(SHORTEST_MS), math.log(LONGEST_MS)
        return [round(math.exp(chance.uniform(low, high))) for _ in range(deeds)]

    async def _one(self, asked: Asked, keep: bool) -> None:
        ended = await self.clients.ask(asked, keep=keep, which=self.chance.randrange(1 << 16))
        self.told(asked, ended)

    def told(self, asked: Asked, ended: Ended) -> None:
        """One request has ended: count it, and believe what its answer promises."""
        self.requests.append(ended._replace(body=None))
        if asked.method == "POST":
            self._admitted(asked, ended)
        elif ended.kind == ANSWERED:
            self._read(asked, ended)

    def _admitted(self, asked: Asked, ended: Ended) -> None:
        given = json.loads(asked.body)["input"]
        order = given["order"]
        self._asking.discard(order)
        if ended.kind != ANSWERED:
            return
        run = ended.body.get("run") if isinstance(ended.body, dict) else None
        if ended.status not in (200, 201) or run is None:
            self.wrong.append(f"POST /runs was answered {ended.status}: {str(ended.body)[:200]}")
            return
        known = self._run_of.get(order)
        if known is not None and known != run:
            self.wrong.append(f"the key of {known} was answered with another run, {run}")
            return
        if known is not None and ended.status == 201:
            self.wrong.append(f"{run} was admitted twice")
        if known is None:
            self.promised[run] = Promise(asked.key or "", order, len(given["ms"]))
            self._run_of[order] = run
            self._runs.append(run)
            self._open.add(order)
        self._say(run, ended.body)

    def _read(self, asked: Asked, ended: Ended) -> None:
        if ended.status != 200:
            self.wrong.append(f"GET {asked.path} was answered {ended.status}: {str(ended.body)[:200]}")
        elif asked.path.startswith("/runs?"):
            self.listed |= {row["run"] for row in ended.body["runs"]}
        else:
            self._say(ended.body["run"], ended.body)

    def _say(self, run: str, body: dict[str, Any]) -> None:
        """An answer spoke of a run that was promised: what has ended does not begin again."""
        promise, status = self.promised[run], body["status"]
        if promise.status != "running" and status != promise.status:
            self.wrong.append(f"{run} was {promise.status}, and later {status}")
        if status == "succeeded" and body.get("output") != {"order": promise.order, "deeds": promise.deeds}:
            self.wrong.append(f"{run} has the output {str(body.get('output'))[:100]}")
        promise.status = status
        if status != "running":
            self._open.discard(promise.order)


def _admission(key: str, order: str, ms: list[int]) -> Asked:
    body = {"capability": "rolling.work", "input": {"order": order, "ms": ms}}
    return Asked("POST", "/runs", json.dumps(body).encode(), key)
