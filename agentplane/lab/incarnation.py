"""One life of the appliance under test, and the aim that ends it.

Owns what is decided at each reported point, the gates at the provider, and giving an aim up without a kill. Refuses to
hold a request at a gate for longer than it takes to decide: a provider that commits later than an effect's settle time
breaks a promise that no plane can mend. Invariant: every point is answered by exactly one aim, or by leave.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from agentplane.lab.appliance_process import Appliance
from agentplane.lab.pipe import Point
from agentplane.lab.provider import audit
from agentplane.lab.provider_process import Provider
from agentplane.lab.schedule import Aiming, Memory, Target

AIM_S = 5.0
"""How long one aim is tried before the next."""
IDLE_S = 1.6
"""How long nothing may come to an aim before more work is let in."""
ARMED_S = 1.0
"""How long the writer is held for an outcome to be queued."""
GATE_MS = 100


class Incarnation:
    """A serving child with at most one aim. ``run_of`` finds the run of an order; ``more`` lets another ticket in."""

    def __init__(
        self,
        plane: Path,
        log: Path,
        provider: Provider,
        *,
        run_of: Callable[[str], str | None],
        more: Callable[[], None],
        source: Path | None,
    ) -> None:
        self._provider = provider
        self._run_of = run_of
        self._more = more
        self._aiming: Aiming | None = None
        self._hit = threading.Event()
        self._lock = threading.Lock()
        self._gates = 0
        self.appliance = Appliance(plane, log, self._on_point, source=source)

    def _on_point(self, point: Point) -> tuple[int, ...]:
        """On the listener's thread: the kill itself happens here, within microseconds of the report."""
        with self._lock:
            if self._aiming is None:
                return (point.number,)
            move = self._aiming.on_point(point)
        if move.kill:
            self.appliance.kill()
            self._hit.set()
        return move.go

    def aim(self, target: Target, memory: Memory) -> Aiming | None:
        """Try a target for AIM_S. The aiming that hit (the child is dead or dying); None leaves the child as it was."""
        aiming = Aiming(target, memory)
        with self._lock:
            self._aiming = aiming
        try:
            if target.aim.at_gate is None:
                self._at_points(aiming)
            else:
                self._at_gates(aiming, target.aim.at_gate, target.skip)
        finally:
            with self._lock:
                left = aiming.give_up().go
                self._aiming = None
            self.appliance.go(left)
        return aiming if self._hit.is_set() else None

    def _at_points(self, aiming: Aiming) -> None:
        until, idle, armed = time.monotonic() + AIM_S, time.monotonic() + IDLE_S, 0.0
        while time.monotonic() < until and self.appliance.alive and not self._hit.wait(0.05):
            armed = (armed or time.monotonic()) if aiming.armed else 0.0
            if armed and time.monotonic() - armed > ARMED_S:
                with self._lock:
                    left = aiming.give_up().go
                self.appliance.go(left)
            if time.monotonic() > idle:
                self._more()
                idle = time.monotonic() + IDLE_S

    def _at_gates(self, aiming: Aiming, gate: str, skip: int) -> None:
        until, idle = time.monotonic() + AIM_S, time.monotonic() + IDLE_S
        name, rule = self._gate(gate, skip)
        try:
            while time.monotonic() < until and self.appliance.alive and not self._hit.is_set():
                held = self._provider.held(name, wait_ms=GATE_MS)
                if not held:
                    if time.monotonic() > idle:
                        self._more()
                        idle = time.monotonic() + IDLE_S
                    continue
                if aiming.at_gate(self._run_of(str(held[0]["order"])), fresh=self._fresh(held[0]["key"])).kill:
                    self.appliance.kill()
                    self._hit.set()
                    return
                self._provider.clear(rule)
                self._provider.release(name)
                name, rule = self._gate(gate, 0)
        finally:
            if self._hit.is_set():
                # What is held goes on only when the process that sent it is dead.
                self.appliance.wait_dead()
            self._provider.clear(rule)
            self._provider.release(name)

    def _fresh(self, key: object) -> bool:
        """Whether this is the first request that ever arrived under its key."""
        with audit.open_book(self._provider.db) as book:
            return len(audit.arrivals(book, key=str(key))) == 1

    def _gate(self, gate: str, skip: int) -> tuple[str, int]:
        self._gates += 1
        name = f"gate-{self.appliance.started_us}-{self._gates}"
        return name, self._provider.rule(method="POST", times=1, skip=skip, **{gate: name})
