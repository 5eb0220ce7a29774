"""Waiting without running: the one unit that suspends a run, and what ends a wait that need not wait any more.

Owns the suspend unit (P "Suspend"), the look in it, and the outcome that a wait is given when its run will never walk
to it again. Refuses to suspend over what has come already: a timer that is due, an event in the buffer, a decision.
Invariant: wait, its rows, ``RunSuspended`` and the release of the lease are one unit, so that a wait is armed or was
never reached; an outcome and the claim of what it was ended by are one unit, so that nothing is claimed twice.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from agentplane.core import canonical
from agentplane.core.dispositions import Disposition
from agentplane.core.effects import Phase
from agentplane.core.errors import WaitDue
from agentplane.core.history import AWAIT, SLEEP, TASK, History, Series
from agentplane.core.instants import from_text, to_text
from agentplane.core.records import Actor, EffectDone, EffectFailed, EffectStarted, Fault, Key, RunSuspended
from agentplane.engine.linking import Spec, place_of
from agentplane.engine.live import LiveRun
from agentplane.engine.stops import Suspended
from agentplane.journal import leases, subscriptions, timers
from agentplane.journal.tx import Tx
from agentplane.work import events, tasks

REASONS_SHOWN = 3
WITHHELD = ("payload", "correlation", "id", "reason", "amendment", "answer")
"""What others wrote of an ending, and so may hold a secret that an effect was handed."""


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """One open wait: its announcement's members, why it waits in words, whether it is announced already, and by kind
    when it is due (ms UTC; an event's: when it gives up), the keys and the sender of the event, or the task's row."""

    members: dict[str, object]
    kind: str
    reason: str
    announced: bool
    due_ms: int | None = None
    event_kind: str = ""
    keys: tuple[Key, ...] = ()
    sender: str | None = None
    task: tasks.Opening | None = None

    @property
    def key(self) -> bytes:
        return bytes.fromhex(str(self.members["effect_key"]))


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a wait ends: what its outcome says, who it is from, and the event that is claimed with it."""

    output: object
    source: str | None = None
    by: Actor | None = None
    event: str | None = None

    def members(self, secrets: tuple[bytes, ...] = ()) -> dict[str, object]:
        """What the outcome says of it; of what holds one of ``secrets`` only that it came."""
        members: dict[str, object] = {"output": self.output}
        raw = canonical.encode(self.output)
        if any(secret in raw for secret in secrets):
            kept = self.output if isinstance(self.output, dict) else {}
            members = {
                "output": {name: None if name in WITHHELD else value for name, value in kept.items()},
                "withheld": [name for name in WITHHELD if name in kept],
            }
        if self.source is not None:
            members["source"] = self.source
        if self.by is not None:
            members["by"] = self.by
        return members


def waits_of(stops: Iterable[object]) -> list[Wait]:
    return [stop.wait for stop in stops if isinstance(stop, Suspended) and isinstance(stop.wait, Wait)]


async def suspend(live: LiveRun, waits: list[Wait]) -> bool:
    """Suspend the run on ``waits``; False when one of them need not wait, and its end is recorded instead. Raises what
    the unit was refused for."""
    due = [wait.due_ms for wait in waits if wait.due_ms is not None]
    members: dict[str, object] = {"reason": _reasons(waits)}
    if due:
        members["until"] = to_text(min(due))
    specs: list[Spec] = [(EffectStarted, wait.members) for wait in waits if not wait.announced]
    specs.append((RunSuspended, members))
    run, lease, world = live.run, live.log.lease, live.world

    def look(tx: Tx) -> None:
        for wait in waits:
            if _found(tx, wait, run, trusted=not world.clock_suspect) is not None:
                raise WaitDue(f"A wait of {run} need not wait.", run=run)

    def arm(tx: Tx) -> None:
        for wait in waits:
            _arm(tx, run, wait)
        leases.release(tx, lease)

    world.observe("run.suspending", run=run)
    try:
        await live.log.barrier(*specs, extra=look, after=arm)
    except WaitDue:
        await _end_the_found(live, waits)
        return False
    world.observe("run.suspended", run=run)
    return True


def _reasons(waits: list[Wait]) -> str:
    """Why the run waits, the first to be due first."""
    ordered = sorted(waits, key=lambda wait: (wait.due_ms is None, wait.due_ms or 0))
    told = list(dict.fromkeys(wait.reason for wait in ordered))
    more = f"; and {len(told) - REASONS_SHOWN} more" if len(told) > REASONS_SHOWN else ""
    return "; ".join(told[:REASONS_SHOWN]) + more


def _arm(tx: Tx, run: str, wait: Wait) -> None:
    if wait.due_ms is not None:
        timers.arm(tx, run, wait.key, wait.due_ms)
    if wait.kind == AWAIT:
        subscriptions.arm(tx, run, wait.key, wait.event_kind, wait.keys, wait.sender)
    if wait.task is not None:
        tasks.open(tx, wait.task)


def _found(tx: Tx, wait: Wait, run: str, *, trusted: bool) -> Ending | None:
    """What ends the wait now, if anything does. What came before its time was over is before the time that is over."""
    if wait.kind == AWAIT:
        event = events.oldest(tx, wait.event_kind, wait.keys, wait.sender)
        if event is not None:
            return came(event)
    if wait.kind == TASK:
        row = tasks.decided_at(tx, run, wait.key)
        if row is not None:
            return Ending(output=row.decision, by=row.decided_by)
    # Under a suspect clock nothing is due (L3); it is looked at again when the timer fires.
    if wait.due_ms is not None and trusted and wait.due_ms <= tx.now_ms:
        return time_is_up(wait.kind, wait.due_ms)
    return None


def came(event: events.Buffered) -> Ending:
    """How a wait ends by the event that it claims."""
    return Ending(output=events.as_output(event), source=event.source, event=event.event)


def time_is_up(kind: str, due_ms: int) -> Ending:
    """How a wait ends at its instant: a sleep has come to it, and an event has not come before it."""
    return Ending(output=due_ms if kind == SLEEP else {"timed_out": True, "until": to_text(due_ms)})


async def _end_the_found(live: LiveRun, waits: list[Wait]) -> None:
    """Outcomes of what has come, and the claim of it, in one unit; what somebody else claimed meanwhile is looked for
    again by the next suspension."""
    run, trusted = live.run, not live.world.clock_suspect
    now_ms = live.world.now_ms()

    def look(tx: Tx) -> list[tuple[Wait, Ending]]:
        tx.now_ms = now_ms
        taken: set[str] = set()
        found: list[tuple[Wait, Ending]] = []
        for wait in waits:
            ending = _found(tx, wait, run, trusted=trusted)
            if ending is None or ending.event in taken:
                continue  # one event ends one wait
            taken |= {ending.event} if ending.event is not None else set()
            found.append((wait, ending))
        return found

    found = await live.read(look)
    secrets = live.world.secrets.handed_out()
    specs: list[Spec] = []
    for wait, ending in found:
        specs += [] if wait.announced else [(EffectStarted, wait.members)]
        specs.append((EffectDone, place_of(wait.members) | ending.members(secrets)))

    def claim(tx: Tx) -> None:
        for wait, ending in found:
            if ending.event is not None and not events.consume(tx, ending.event, run, wait.key):
                raise WaitDue(f"The event of {run} was claimed by another wait.", run=run)

    if found:
        try:
            await live.log.barrier(*specs, extra=claim)
        except WaitDue:
            return


def due_ms(series: Series) -> int | None:
    """When a recorded wait is due, ms UTC; None for one that time alone does not end."""
    args = series.first.descriptor.args
    until = args.get("until") if isinstance(args, dict) else None
    return None if until is None else from_text(str(until))


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
