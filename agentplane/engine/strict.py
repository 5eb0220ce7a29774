"""Strict replay: a run's code walked against its history, performing nothing.

Owns the verdict (verified, diverged, cannot replay). Refuses every act and every append. Invariant: it takes no lease,
writes nothing and asks no provider.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TypeVar

import msgspec
import trio

from agentplane.authoring.skill import Skill
from agentplane.core.errors import AgentplaneError
from agentplane.core.history import History, read_all
from agentplane.core.records import CANON, Record, StepCompensated
from agentplane.engine.executor import Capabilities, StepResult, read_back, run_step
from agentplane.engine.linking import Spec
from agentplane.engine.live import Gate, LiveRun
from agentplane.engine.runlog import Extra, RunLog
from agentplane.engine.stops import Stop, WouldPerform
from agentplane.engine.unwind import compensate
from agentplane.engine.world import World
from agentplane.journal.appends import Head
from agentplane.journal.leases import Lease
from agentplane.journal.lists import Stored
from agentplane.journal.tx import Tx
from agentplane.journal.units import Unit

T = TypeVar("T")


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """``verdict``: verified, diverged or cannot_replay; ``reason`` names place and difference; ``effects`` were
    asked."""

    verdict: str
    reason: str | None = None
    effects: int = 0


class ReadOnlyLog(RunLog):
    """A log that refuses to write: the end of the history was reached."""

    def __init__(self, run: str, history: History) -> None:
        lease = Lease(run, "nobody", 1)
        super().__init__(run, lease, history, Head(), _NoWriter(), lambda: 0, on_latch=lambda _: None)

    def ride(
        self, *records: Spec, linger: bool = True, held: bool = False, blobs: dict[bytes, bytes] | None = None
    ) -> list[Record]:
        raise WouldPerform(f"the code goes on where the history ends, with {records[0][0].__name__}")

    async def barrier(
        self, *records: Spec, extra: Extra | None = None, blobs: dict[bytes, bytes] | None = None,
        after: Extra | None = None, undone: Callable[[], Spec] | None = None, solo: bool = False,
    ) -> list[Record]:  # fmt: skip
        raise WouldPerform(f"the code goes on where the history ends, with {records[0][0].__name__}")


class _NoWriter:
    poisoned: AgentplaneError | None = None

    def submit(self, unit: Unit[T]) -> None:
        raise WouldPerform("strict replay writes nothing")

    async def do(self, body: Callable[[Tx], T], *, run: str | None = None, solo: bool = False) -> T:
        raise WouldPerform("strict replay writes nothing")


async def replay_strict(run: str, stored: list[Stored], skills: Capabilities, world: World,
                        read_blob: object) -> Verdict:  # fmt: skip
    """Walk every step of a concluded run against its records. Raises only trio.Cancelled."""
    records: list[Record] = [item.record for item in stored]
    history = read_all(run, records)
    why = _cannot(history, skills)
    if why is not None:
        return Verdict(verdict="cannot_replay", reason=why)
    first = bytes.fromhex(history.admitted.origin) if history.admitted is not None else b""
    live = LiveRun(run, ReadOnlyLog(run, history), history, world, Gate(), origin=first)
    live.read_blob = read_blob  # type: ignore[assignment]
    live.strict = True
    admitted, frozen = history.admitted, history.plan
    if admitted is None or frozen is None:
        return Verdict(verdict="cannot_replay", reason="the run has no admission and plan")
    try:
        difference = await _forward(live, skills, admitted.input) or await _back(live, skills)
    except Stop as stop:
        difference = stop.reason
    await trio.lowlevel.checkpoint()
    if difference is not None:
        return Verdict(verdict="diverged", reason=difference, effects=len(history.series))
    return Verdict(verdict="verified", effects=len(history.series))


async def _forward(live: LiveRun, skills: Capabilities, request: object) -> str | None:
    """Walk every step that ended, of whichever plan, in the order in which they ended: what one gave is what the next
    is given. The first difference, or None."""
    history = live.history
    nodes = history.nodes()
    outputs: dict[int, object] = {}
    for step, record in sorted(history.finished.items(), key=lambda item: item[1].seq):
        skill = skills.get(history.started[step].skill)
        if not isinstance(skill, Skill):
            return f"step {step} ran {history.started[step].skill}, which is no skill of this plane"
        result = await run_step(live, nodes[step], skill, request, outputs)
        difference = _difference(result, record)
        if difference is not None:
            return difference
        if record.outcome == "succeeded":
            outputs[step] = (await read_back(live, record)).output
    return None


async def _back(live: LiveRun, skills: Capabilities) -> str | None:
    """Walk every compensation that was recorded. The first difference, or None."""
    live.unwinding = True
    for step, record in live.history.undone.items():
        if not isinstance(record, StepCompensated):
            continue
        skill = skills.get(live.history.started[step].skill)
        if not isinstance(skill, Skill):
            return f"step {step} ran {live.history.started[step].skill}, which is no skill of this plane"
        result = await compensate(live, skill, step)
        if result.stop is not None:
            return result.stop.reason
        if result.outcome != "succeeded":
            return f"the compensation of step {step} ended {result.outcome}, recorded as done"
        if record.outcome is not None and result.output != record.outcome:
            return f"the compensation of step {step} returned another output than the recorded one"
    return None


def _cannot(history: History, skills: Capabilities) -> str | None:
    if history.admitted is None or history.plan is None:
        return "the run has no admission and plan"
    if history.admitted.canon != CANON:
        return f"the run was recorded under canonicalization {history.admitted.canon}"
    if history.conclusion is None:
        return "the run has not concluded"
    if history.conclusion.outcome not in ("succeeded", "failed"):
        return f"the run ended as {history.conclusion.outcome}, by an act and not by its code"
    missing = [started.skill for started in history.started.values() if started.skill not in skills]
    return f"this plane does not provide {missing[0]}" if missing else None


def _same_output(result: StepResult, recorded: object) -> bool:
    blob = getattr(recorded, "blob", None)
    if blob is None:
        return bool(result.output == getattr(recorded, "output", None))
    return result.large is not None and hashlib.sha256(result.large).hexdigest() == blob.digest


def _difference(result: StepResult, recorded: object) -> str | None:
    outcome = getattr(recorded, "outcome", None)
    if result.stop is not None:
        return result.stop.reason
    if result.outcome == "replanning" and outcome == "replanned":
        return None
    if result.outcome != outcome:
        return f"step {result.step} ended {result.outcome}, recorded {outcome}"
    if outcome == "succeeded" and not _same_output(result, recorded):
        return f"step {result.step} returned another output than the recorded one"
    fault = getattr(recorded, "fault", None)
    if fault is not None and result.fault is not None and fault.message != result.fault.message:
        return f"step {result.step} failed with {result.fault.message!r}, recorded {fault.message!r}"
    return None
