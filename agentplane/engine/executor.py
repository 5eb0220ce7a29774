"""Running the steps of a plan.

Owns the ready set, one task a step, and how a step's ending becomes a value (P10). Refuses to conclude the run:
``execute`` does. Invariant: no step's ending is an exception in a nursery, every success is recorded before the worst
is reported.
"""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Mapping

import msgspec
import trio

from agentplane.authoring.effect import to_data
from agentplane.authoring.raising import EffectFailed
from agentplane.authoring.skill import Skill
from agentplane.core import bounds, canonical
from agentplane.core.effects import Phase
from agentplane.core.errors import AgentplaneError, JournalCorrupt, SkillFault
from agentplane.core.plan import Node, Plan, ready
from agentplane.core.records import Blob, Fault, StepFinished, StepStarted
from agentplane.engine.act import fresh, holds_cancellation
from agentplane.engine.blocking import run_blocking
from agentplane.engine.context import StepContext
from agentplane.engine.guard import IN_STEP
from agentplane.engine.live import LiveRun
from agentplane.engine.runlog import UNRECORDABLE
from agentplane.engine.stops import Divergence, Dropped, Quarantine, Stop

SEVERITY = {"dropped": 0, "quarantined": 1, "failed": 2, "cancelled": 2, "parked": 3, "succeeded": 9}


class StepResult(msgspec.Struct):
    """How a step ended. ``stop`` is set for everything that is neither a success nor a failure."""

    step: int
    outcome: str
    output: object = None
    fault: Fault | None = None
    stop: Stop | None = None
    large: bytes | None = None


async def run_plan(live: LiveRun, plan: Plan, skills: Mapping[str, Skill], request: object) -> list[StepResult]:
    """Run every ready step until none is left or one stops; the results, finished ones included, in step order."""
    results: dict[int, StepResult] = {}
    for step, record in live.history.finished.items():
        if record.outcome == "succeeded":
            results[step] = await _read_back(live, record)
    while True:
        done = [step for step, result in results.items() if result.outcome == "succeeded"]
        batch = ready(plan, done, results)
        if not batch or any(result.outcome != "succeeded" for result in results.values()):
            return [results[step] for step in sorted(results)]
        async with trio.open_nursery() as nursery:
            for node in batch:
                nursery.start_soon(_step, live, node, skills, request, results)


async def _step(
    live: LiveRun, node: Node, skills: Mapping[str, Skill], request: object, results: dict[int, StepResult]
) -> None:
    skill = skills.get(node.capability)
    if skill is None:
        missing = SkillFault(f"This plane does not provide {node.capability}, which step {node.id} needs.")
        results[node.id] = StepResult(node.id, "dropped", stop=Dropped(missing))
        return
    results[node.id] = await run_step(live, node, skill, fresh(request))


async def _read_back(live: LiveRun, record: StepFinished) -> StepResult:
    """P16: a finished step is its record, and its code is not asked."""
    step = record.step or 0
    if record.blob is None:
        return StepResult(step, "succeeded", fresh(record.output))
    try:
        return StepResult(step, "succeeded", await live.read_blob(bytes.fromhex(record.blob.digest)))
    except JournalCorrupt as error:
        return StepResult(step, "quarantined", stop=Quarantine(f"step {step}: {error.message}", "journal_corrupt"))


async def run_step(live: LiveRun, node: Node, skill: Skill, request: object) -> StepResult:
    """Walk one step from its beginning. Raises only trio.Cancelled."""
    cx = StepContext(live, node.id)
    cx.begin()
    try:
        if not live.strict:
            live.hear_cancel()
            live.gate.check(0)
        if node.id not in live.history.started:
            live.log.ride((StepStarted, {"step": node.id, "skill": skill.name}))
            live.world.observe("step.started", run=live.run, step=node.id)
            if live.log.lease.takeovers:
                # Its process died before: should this step be why, its name is on disk before its code runs (P4).
                await live.log.settle()
        result = await _walk(live, node, skill, cx, request)
    except Stop as stop:
        result = StepResult(node.id, stop.outcome, stop=stop)
    cx.close()
    if result.outcome in ("succeeded", "failed") and not live.strict:
        result = _finish(live, result)
    return result


async def _walk(live: LiveRun, node: Node, skill: Skill, cx: StepContext, request: object) -> StepResult:
    """Run the body; whatever it does, an unasked recorded effect or a latched stop outranks it (P12, P17)."""
    failure: BaseException | None = None
    output: object = None
    token = IN_STEP.set(cx)
    try:
        wanted = skill.read_request(request)
        if skill.blocking:
            output = await run_blocking(cx, skill.body, wanted, live.world.skill_threads)
        else:
            output = await skill.body(cx, wanted)
    except (Stop, trio.Cancelled, KeyboardInterrupt):
        raise
    except BaseException as error:
        # P10: how a step ends is a value. A stop inside a nursery of the skill arrives in a group, and it has latched.
        if holds_cancellation(error):
            raise _cancellation(error) from None
        failure = error
    finally:
        IN_STEP.reset(token)
    if cx.latched is not None:
        raise cx.latched
    if live.is_cut:
        raise live.cut_off()
    left = cx.unasked()
    if left:
        spot = left[0]
        recorded = live.history.series[spot].first.descriptor
        ended = f"raised {type(failure).__name__}" if failure is not None else "returned"
        raise Divergence(
            f"step {node.id}, {Phase.forward.wire}, ordinal {spot.ordinal}: recorded {recorded.kind}, "
            f"and the code {ended} "
            "without asking for it"
        )
    if failure is not None:
        return StepResult(node.id, "failed", fault=fault_of(live, failure))
    return _returned(live, node.id, output)


def _cancellation(error: BaseException) -> BaseException:
    """Of a group, what its scope waits for; an ordinary error beside it would end the plane."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    cancelled, _ = error.split((trio.Cancelled, KeyboardInterrupt))
    return error if cancelled is None else cancelled


def _returned(live: LiveRun, step: int, output: object) -> StepResult:
    try:
        raw = canonical.encode(to_data(output))
    except (TypeError, canonical.CanonicalError, RecursionError) as error:
        message = live.world.secrets.sentence(f"the step returned what is not data: {error}")
        return StepResult(step, "failed", fault=Fault(code="not_data", message=message))
    if len(raw) > bounds.BLOB_BYTES_MAX:
        message = f"the step returned {len(raw)} bytes, over the bound of {bounds.BLOB_BYTES_MAX}"
        return StepResult(step, "failed", fault=Fault(code="too_large", message=message))
    data = msgspec.json.decode(raw)
    return StepResult(step, "succeeded", output=data, large=raw if len(raw) > bounds.VALUE_BYTES_MAX else None)


def _finish(live: LiveRun, result: StepResult) -> StepResult:
    """Queue ``StepFinished``, unless the history ends with the very same one."""
    last = live.history.finished.get(result.step)
    if (
        last is not None
        and last.outcome == result.outcome
        and last.fault == result.fault
        and last.output == result.output
    ):
        return result
    try:
        try:
            live.log.ride((StepFinished, _members(result)), blobs=_beside(result))
        except UNRECORDABLE as error:
            message = f"the step's output cannot be recorded ({type(error).__name__})"
            result = StepResult(result.step, "failed", fault=Fault(code="unrecordable", message=message))
            live.log.ride((StepFinished, _members(result)))
    except Stop as stop:
        return StepResult(result.step, stop.outcome, stop=stop)
    except AgentplaneError as error:
        return StepResult(result.step, "dropped", stop=Dropped(error))
    live.world.observe("step.finished", run=live.run, step=result.step)
    return result


def _members(result: StepResult) -> dict[str, object]:
    members: dict[str, object] = {"step": result.step, "outcome": result.outcome, "fault": result.fault}
    if result.large is None:
        return members | {"output": result.output}
    digest = hashlib.sha256(result.large).digest()
    return members | {"blob": Blob(digest=digest.hex(), size=len(result.large))}


def _beside(result: StepResult) -> dict[bytes, bytes]:
    return {} if result.large is None else {hashlib.sha256(result.large).digest(): result.large}


def fault_of(live: LiveRun, error: BaseException) -> Fault:
    """One sentence of what a skill raised, with file and line of its own frame; no secret, no traceback."""
    sentence = live.world.secrets.sentence
    if isinstance(error, EffectFailed):
        return Fault(code="effect_failed", message=sentence(error))
    code = error.row.code if isinstance(error, AgentplaneError) else "skill_raised"
    frames = traceback.extract_tb(error.__traceback__)
    place = sentence(f"{frames[-1].filename}:{frames[-1].lineno}") if frames else None
    return Fault(code=code, message=sentence(error), type=type(error).__name__, path=place)


def worst(results: list[StepResult]) -> StepResult | None:
    """The most severe ending; ready order decides only within a rank."""
    bad = [result for result in results if result.outcome != "succeeded"]
    return min(bad, key=lambda result: (SEVERITY.get(result.outcome, 1), result.step)) if bad else None
