"""Waiting without running: the one unit that suspends a run, and what ends a wait that is due already.

Owns the suspend unit (P "Suspend") and the outcome that a wait is given when its run will never walk to it again.
Refuses to suspend over a timer that is due. Invariant: wait, timer row, ``RunSuspended`` and the release of the lease
are one unit, so that a wait is armed or was never reached.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from agentplane.core.dispositions import Disposition
from agentplane.core.effects import Phase
from agentplane.core.errors import WaitDue
from agentplane.core.history import History, Series
from agentplane.core.instants import from_text, to_text
from agentplane.core.records import EffectDone, EffectFailed, EffectStarted, Fault, RunSuspended
from agentplane.engine.linking import Spec, place_of
from agentplane.engine.live import LiveRun
from agentplane.engine.stops import Suspended
from agentplane.journal import leases, timers
from agentplane.journal.tx import Tx


class Wait(msgspec.Struct, frozen=True):
    """One open wait: its announcement's members, when it is due (ms UTC), and whether it is announced already."""

    members: dict[str, object]
    due_ms: int
    announced: bool

    @property
    def key(self) -> str:
        return str(self.members["effect_key"])


def waits_of(stops: Iterable[object]) -> list[Wait]:
    return [stop.wait for stop in stops if isinstance(stop, Suspended) and isinstance(stop.wait, Wait)]


async def suspend(live: LiveRun, waits: list[Wait]) -> bool:
    """Suspend the run on ``waits``; False when one of them is due, and its end is recorded instead. Raises what the
    unit was refused for."""
    first_ms = min(wait.due_ms for wait in waits)
    reason = f"waits until {to_text(first_ms)}"
    specs: list[Spec] = [(EffectStarted, wait.members) for wait in waits if not wait.announced]
    specs.append((RunSuspended, {"reason": reason, "until": to_text(first_ms)}))
    run, lease, world = live.run, live.log.lease, live.world

    def look(tx: Tx) -> None:
        # Under a suspect clock nothing is due (L3); it is looked at again when the timer fires.
        if not world.clock_suspect and first_ms <= tx.now_ms:
            raise WaitDue(f"A wait of {run} is due.", run=run)

    def arm(tx: Tx) -> None:
        for wait in waits:
            timers.arm(tx, run, bytes.fromhex(wait.key), wait.due_ms)
        leases.release(tx, lease)

    world.observe("run.suspending", run=run)
    try:
        await live.log.barrier(*specs, extra=look, after=arm)
    except WaitDue:
        await _end_the_due(live, waits)
        return False
    world.observe("run.suspended", run=run)
    return True


async def _end_the_due(live: LiveRun, waits: list[Wait]) -> None:
    """Outcomes, and the timers of those that were armed by an earlier suspension, in one unit: a row that outlived its
    wait would give it a second outcome."""
    now_ms, run = live.world.now_ms(), live.run
    specs: list[Spec] = []
    due = [wait for wait in waits if wait.due_ms <= now_ms]
    for wait in due:
        specs += [] if wait.announced else [(EffectStarted, wait.members)]
        specs.append((EffectDone, place_of(wait.members) | {"output": wait.due_ms}))

    def disarm(tx: Tx) -> None:
        for wait in due:
            timers.disarm(tx, run, bytes.fromhex(wait.key))

    if due:
        await live.log.barrier(*specs, extra=disarm)


def due_ms(series: Series) -> int:
    """When a recorded wait is due, ms UTC."""
    args = series.first.descriptor.args
    return from_text(str(args["until"])) if isinstance(args, dict) else 0


def ended(history: History, *, phase: Phase | None = None, steps: Iterable[int] | None = None) -> list[Spec]:
    """The outcomes of the waits that stand open, of one phase or of some steps: the run will not walk to them again."""
    chosen = None if steps is None else set(steps)
    fault = Fault(code="wait_ended", message="the run was stopped while it waited")
    found: list[Spec] = []
    for series in history.waiting():
        if (phase is not None and series.spot.phase is not phase) or (
            chosen is not None and series.spot.step not in chosen
        ):
            continue
        found.append((EffectFailed, _of(series) | {"fault": fault, "disposition": Disposition.DID_NOT_HAPPEN}))
    return found


def lost(history: History) -> list[Spec]:
    """The outcomes of what a death left announced going forward and no doubt asks about, reads above all: the run will
    not walk to it again, and nothing is undone or closed over an announcement without an outcome (P3, P14)."""
    fault = Fault(code="lost", message="the process that announced it is gone")
    return [
        (EffectFailed, _of(series) | {
            "fault": fault, "disposition": Disposition.IN_DOUBT, "lost_epoch": series.last.started.epoch,
        })
        for series in history.series.values()
        if series.last.outcome is None and not series.last.said and not series.waits and not series.first.mutates
        and series.spot.phase is Phase.forward
    ]  # fmt: skip


def _of(series: Series) -> dict[str, object]:
    members: dict[str, object] = {"step": series.spot.step, "effect_key": series.last.started.effect_key}
    if series.spot.phase is not Phase.forward:
        members["phase"] = series.spot.phase.wire
    return members
