"""The drain: how a plane is asked to stop.

Owns the order (admission, listeners, runs, control) under one grace. Refuses to be worse than a crash: what is cut
writes nothing.
Invariant: after it began no new work is admitted, and every request whose first bytes had arrived is answered; once
the runs have ended no effect is announced any more, and whoever had still been about to resume one parks it.
"""

from __future__ import annotations

import math
import time
from typing import Any, Final

import msgspec
import trio

from agentplane.appliance.logs import Log
from agentplane.appliance.settings import Located
from agentplane.core import bounds
from agentplane.engine.plane import Plane

CLOSE_S: Final = 2.0
"""How long a listener may take to close its connections after the runs have ended."""
KEY_CHARS: Final = 12
"""As much of an effect's key as `reconcile` takes for the whole."""


class Stopped(msgspec.Struct, frozen=True, kw_only=True):
    """How a drain ended: runs parked, runs cut with where each stood, and the seconds it took."""

    parked: list[str]
    cut: dict[str, str]
    seconds: float


class Drain:
    """One drain of one process; ``begin`` is idempotent, ``end_now`` ends it at once."""

    def __init__(self, plane: Plane, located: Located, log: Log) -> None:
        self._plane = plane
        self._located = located
        self._log = log
        self.begun = trio.Event()
        self.cut: dict[str, str] = {}
        self.grace_s = located.plane.drain_secs
        self._deadline = math.inf
        self._ends_at = math.inf
        self._over = trio.Event()
        self._idle = False
        self._patience = trio.CancelScope()
        self.listeners: list[Any] = []
        self.control: Any = None

    def begin(self, grace_s: float | None = None) -> None:
        """The first signal, or the verb: at once no more is accepted and admitted. Asked again it only becomes
        shorter."""
        if self.begun.is_set():
            if grace_s is not None:
                self._shorten(grace_s)
            return
        if grace_s is not None:
            self.grace_s = grace_s
        self._deadline = trio.current_time() + self.grace_s
        self._ends_at = time.monotonic() + self.grace_s
        self._plane.close_admission()
        for listener in self.listeners:
            listener.stop_accepting()
        self.begun.set()
        running, mode = len(self._plane.runs.live), self._located.plane.drain_mode
        self._log.tell(
            "draining", f"draining: {running} runs in hand, at most {self.grace_s:g} s ({mode})",
            runs=running, grace_s=self.grace_s, mode=mode,
        )  # fmt: skip

    def end_now(self) -> None:
        self.begin()
        self._over.set()

    def left_s(self) -> float:
        """What is left of the grace; infinite before it began."""
        return self._deadline - trio.current_time()

    def left_on_clock_s(self) -> float:
        """The same from a thread that has no trio clock: what was left when it was last set."""
        return max(0.0, self._ends_at - time.monotonic())

    def _shorten(self, grace_s: float) -> None:
        until = trio.current_time() + grace_s
        if until < self._deadline:
            self._deadline = self._patience.deadline = until
            self._ends_at = time.monotonic() + grace_s
            self._plane.runs.gate.deadline = self.left_s
            self._plane.runs.interrupt_all()
            self._log.tell("draining", f"draining: at most {grace_s:g} s more", grace_s=grace_s)

    async def wait(self) -> Stopped:
        """Wait to be begun, then carry it out; returns when the runs have ended and the listeners are closed."""
        await self.begun.wait()
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._runs)
            for listener in self.listeners:
                nursery.start_soon(self._close, listener)
            self._patience.deadline = self._deadline
            with self._patience:
                await self._over.wait()
            if not self._idle:
                self._cut_rest()
            nursery.cancel_scope.deadline = trio.current_time() + CLOSE_S
            if self._idle:
                # Nothing is left to be asked about: its clients are waited for beside the others'.
                nursery.start_soon(self._close_control)
        with trio.move_on_after(bounds.FLUSH_MAX_S):
            await self._plane.runs.wait_idle()
        self._cut_rest()
        await self._close_control()
        return Stopped(parked=list(self._plane.runs.parked), cut=self.cut, seconds=trio.current_time() - began)

    async def _runs(self) -> None:
        park = self._located.plane.drain_mode == "park"
        for run in await self._plane.drain(max(0.0, self.left_s()), park=park):
            self.cut[run] = self.where(run)
        # An admission or a recovery pass may be between its lease and its run: such a run parks where it begins, and
        # is waited for below. To cut it would be to tell the supervisor of work in doubt where there is none.
        self._plane.runs.gate.parking = True
        if not self.cut:
            await self._plane.runs.wait_idle()
            self._idle = not self.cut
        self._over.set()

    def _cut_rest(self) -> None:
        self._plane.runs.gate.parking = True
        for run, live in list(self._plane.runs.live.items()):
            if not live.is_cut:
                self.cut[run] = self.where(run)
                live.stop()

    async def _close(self, listener: Any) -> None:
        await listener.close(hard_deadline=self._deadline + CLOSE_S, waited_for=self._over)

    async def _close_control(self) -> None:
        if self.control is not None:
            with trio.move_on_after(CLOSE_S):
                await self.control.close(hard_deadline=trio.current_time() + CLOSE_S)

    def standing(self) -> dict[str, str]:
        """Where every run stands that would be cut now. From any thread: what changes meanwhile may be missed."""
        found = dict(self.cut)
        for run in list(self._plane.runs.live):
            try:
                found.setdefault(run, self.where(run))
            except RuntimeError:
                # Its history grew while it was read, on the loop's thread.
                found.setdefault(run, "in a step")
        return found

    def where(self, run: str) -> str:
        """Step and effects in flight of a run, in words."""
        live = self._plane.runs.live.get(run)
        if live is None:
            return "between effects"
        series = [one for one in live.history.series.values() if one.last.outcome is None and not one.last.said]
        started = [one.last.started for one in series]
        if started:
            named = ", ".join(f"effect {one.descriptor.kind} {(one.effect_key or '')[:KEY_CHARS]}" for one in started)
            return f"in step {started[0].step}, {named}"
        return "in a thread of an effect that timed out" if self._plane.runs.acting(run) else "between effects"
