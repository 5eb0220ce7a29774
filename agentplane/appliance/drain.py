"""The drain: how a plane is asked to stop.

Owns the order (admission, listeners, runs, control) under one grace. Refuses to be worse than a crash: what is cut writes nothing.
Invariant: after it began no new work is admitted, and every request whose first bytes had arrived is answered.
"""

from __future__ import annotations

from typing import Any

import msgspec
import trio

from agentplane.appliance.settings import Located
from agentplane.appliance.stderr import StderrWriter
from agentplane.core import bounds
from agentplane.engine.plane import Plane

CLOSE_S = 2.0
"""How long a listener may take to close its connections after the runs have ended."""


class Stopped(msgspec.Struct, frozen=True, kw_only=True):
    """How a drain ended: runs parked, runs cut with where each stood, and the seconds it took."""

    parked: list[str]
    cut: dict[str, str]
    seconds: float


class Drain:
    """One drain of one process; ``begin`` is idempotent, ``now`` ends it at once."""

    def __init__(self, plane: Plane, located: Located, writer: StderrWriter) -> None:
        self._plane = plane
        self._located = located
        self._writer = writer
        self.begun = trio.Event()
        self._now = trio.Event()
        self._grace_s = located.plane.drain_secs
        self.listeners: list[Any] = []
        self.control: Any = None

    def begin(self, grace_s: float | None = None) -> None:
        """The first signal, or the verb: at once no more is accepted and admitted."""
        if self.begun.is_set():
            return
        if grace_s is not None:
            self._grace_s = grace_s
        self._plane.close_admission()
        for listener in self.listeners:
            listener.stop_accepting()
        self.begun.set()
        self._writer.line(
            f"draining: {len(self._plane.runs.live)} runs in hand, at most {self._grace_s:g} s ({self._located.plane.drain_mode})"
        )

    def end_now(self) -> None:
        self.begin()
        self._now.set()

    async def wait(self) -> Stopped:
        """Wait to be begun, then carry it out; returns when the runs have ended and the listeners are closed."""
        await self.begun.wait()
        began = trio.current_time()
        cut: dict[str, str] = {}

        async def runs() -> None:
            for run in await self._plane.drain(self._grace_s, park=self._located.plane.drain_mode == "park"):
                cut[run] = self._where(run)
            self._now.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(runs)
            for listener in self.listeners:
                nursery.start_soon(self._close, listener, began + self._grace_s + CLOSE_S)
            await self._now.wait()
            if self._plane.runs.live:
                cut |= {run: self._where(run) for run in self._plane.runs.live}
                for live in list(self._plane.runs.live.values()):
                    live.stop()
            nursery.cancel_scope.deadline = trio.current_time() + CLOSE_S
        with trio.move_on_after(bounds.FLUSH_MAX_S):
            await self._plane.runs.wait_idle()
        if self.control is not None:
            with trio.move_on_after(CLOSE_S):
                await self.control.close(hard_deadline=trio.current_time() + CLOSE_S)
        return Stopped(parked=list(self._plane.runs.parked), cut=cut, seconds=trio.current_time() - began)

    async def _close(self, listener: Any, deadline: float) -> None:
        await listener.close(hard_deadline=deadline)

    def _where(self, run: str) -> str:
        live = self._plane.runs.live.get(run)
        if live is None:
            return ""
        open_now = [
            series for series in live.history.series.values() if series.last.outcome is None and not series.last.said
        ]
        if not open_now:
            return "between effects"
        started = open_now[-1].last.started
        return f"in step {started.step}, effect {started.descriptor.kind}"
