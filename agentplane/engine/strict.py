"""Strict replay: a run's code walked against its history, performing nothing.

Owns the verdict (verified, diverged, cannot replay). Refuses every act and every append. Invariant: it takes no lease,
writes nothing and asks no provider.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec
import trio

from agentplane.authoring.skill import Skill
from agentplane.core import plan as plans
from agentplane.core.errors import AgentplaneError
from agentplane.core.history import History, read_all
from agentplane.core.records import CANON, Record
from agentplane.engine.executor import StepResult, run_step
from agentplane.engine.linking import Spec
from agentplane.engine.live import Gate, LiveRun
from agentplane.engine.runlog import Extra, RunLog
from agentplane.engine.stops import Stop, WouldPerform
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
        after: Extra | None = None, undone: Callable[[], Spec] | None = None,
    ) -> list[Record]:  # fmt: skip
        raise WouldPerform(f"the code goes on where the history ends, with {records[0][0].__name__}")


class _NoWriter:
    poisoned: AgentplaneError | None = None

    def submit(self, unit: Unit[T]) -> None:
        raise WouldPerform("strict replay writes nothing")

    async def do(self, body: Callable[[Tx], T], *, run: str | None = None) -> T:
        raise WouldPerform("strict replay writes nothing")


async def replay_strict(run: str, stored: list[Stored], skills: Mapping[str, Skill], world: World,
                        read_blob: object) -> Verdict:  # fmt: skip
    """Walk every step of a concluded run against its records. Raises only trio.Cancelled."""
    records: list[Record] = [item.record for item in stored]
    history = read_all(run, records)
    why = _cannot(history, skills)
    if why is not None:
        return Verdict(verdict="cannot_replay", reason=why)
    live = LiveRun(run, ReadOnlyLog(run, history), history, world, Gate())
    live.read_blob = read_blob  # type: ignore[assignment]
    live.strict = True
    admitted, frozen = history.admitted, history.plan
    if admitted is None or frozen is None:
        return Verdict(verdict="cannot_replay", reason="the run has no admission and plan")
    recorded = dict(history.finished)
    history.finished.clear()
    for node in plans.from_data(frozen.plan).nodes:
        if node.id not in recorded:
            continue
        try:
            result = await run_step(live, node, skills[node.capability], admitted.input)
        except Stop as stop:
            return Verdict(verdict="diverged", reason=stop.reason, effects=len(history.series))
        difference = _difference(result, recorded[node.id])
        if difference is not None:
            return Verdict(verdict="diverged", reason=difference, effects=len(history.series))
    await trio.lowlevel.checkpoint()
    return Verdict(verdict="verified", effects=len(history.series))


def _cannot(history: History, skills: Mapping[str, Skill]) -> str | None:
    if history.admitted is None or history.plan is None:
        return "the run has no admission and plan"
    if history.admitted.canon != CANON:
        return f"the run was recorded under canonicalization {history.admitted.canon}"
    if history.conclusion is None:
        return "the run has not concluded"
    if history.conclusion.outcome not in ("succeeded", "failed"):
        return f"the run ended as {history.conclusion.outcome}, by an act and not by its code"
    missing = [node.capability for node in plans.from_data(history.plan.plan).nodes if node.capability not in skills]
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
    if result.outcome != outcome:
        return f"step {result.step} ended {result.outcome}, recorded {outcome}"
    if outcome == "succeeded" and not _same_output(result, recorded):
        return f"step {result.step} returned another output than the recorded one"
    fault = getattr(recorded, "fault", None)
    if fault is not None and result.fault is not None and fault.message != result.fault.message:
        return f"step {result.step} failed with {result.fault.message!r}, recorded {fault.message!r}"
    return None
