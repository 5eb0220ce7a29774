"""Running the steps of a plan.

Owns the ready set in waves, one task a step, and how a step's ending becomes a value (P10). Refuses to conclude the
run: ``execute`` does. Invariant: no step's ending is an exception in a nursery, every success is recorded before the
worst is reported.
"""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Awaitable, Callable, Mapping

import msgspec
import trio

from agentplane.authoring.effect import to_data
from agentplane.authoring.plan import PlanTemplate
from agentplane.authoring.raising import EffectFailed, Replan
from agentplane.authoring.skill import Skill, required
from agentplane.core import bounds, canonical, saga
from agentplane.core.errors import AgentplaneError, JournalCorrupt, SkillFault
from agentplane.core.plan import BindFault, Frontier, Node, Plan, bind
from agentplane.core.records import Blob, Fault, StepFinished, StepStarted
from agentplane.engine.act import fresh, holds_cancellation
from agentplane.engine.blocking import run_blocking
from agentplane.engine.context import StepContext
from agentplane.engine.guard import IN_STEP
from agentplane.engine.live import LiveRun
from agentplane.engine.runlog import UNRECORDABLE
from agentplane.engine.stops import Dropped, Quarantine, Stop, Suspended, WouldPerform

Capabilities = Mapping[str, Skill | PlanTemplate]
GOES_ON = ("succeeded", "suspended")
"""Endings beside which independent steps still begin."""


def provided(skills: Capabilities) -> dict[str, frozenset[str] | None]:
    """What a plan may ask for: the skills, each with the arguments that its request cannot do without."""
    return {name: required(one) for name, one in skills.items() if isinstance(one, Skill)}


class StepResult(msgspec.Struct):
    """How a step ended. ``stop`` is set for everything that is neither a success nor a failure; ``replan`` when it
    asked for another plan."""

    step: int
    outcome: str
    output: object = None
    fault: Fault | None = None
    stop: Stop | None = None
    large: bytes | None = None
    replan: Replan | None = None


async def run_plan(live: LiveRun, plan: Plan, skills: Capabilities, request: object) -> list[StepResult]:
    """Run every ready step, wave by wave, until none is left or one stops; the results, finished ones included, in
    step order."""
    results: dict[int, StepResult] = {}
    for node in plan.nodes:
        record = live.history.finished.get(node.id)
        if record is not None and record.outcome == "succeeded":
            results[node.id] = await read_back(live, record)
    frontier = Frontier(plan, {step for step, result in results.items() if result.outcome == "succeeded"})
    while all(result.outcome in GOES_ON for result in results.values()):
        wave = frontier.take(live.parallel_steps())
        if not wave:
            break
        outputs = {step: result.output for step, result in results.items()}
        begun = await _begin(live, wave, skills, results)
        async with trio.open_nursery() as nursery:
            for node, skill in begun:
                nursery.start_soon(_step, live, node, skill, request, outputs, results)
        for node in wave:
            if node.id in results and results[node.id].outcome == "succeeded":
                frontier.done(node.id)
    return [results[step] for step in sorted(results)]


async def _begin(
    live: LiveRun, wave: list[Node], skills: Capabilities, results: dict[int, StepResult]
) -> list[tuple[Node, Skill]]:
    """Admit the steps of a wave one after the other, in ascending id: what a ceiling or a cancel stops is not begun."""
    begun: list[tuple[Node, Skill]] = []
    for node in wave:
        skill = skills.get(node.capability)
        if not isinstance(skill, Skill):
            missing = SkillFault(f"This plane does not provide {node.capability}, which step {node.id} needs.")
            results[node.id] = StepResult(node.id, "dropped", stop=Dropped(missing))
            break
        try:
            live.hear_cancel()
            live.gate.check(0)
            if node.id not in live.history.started:
                live.admit_step(node.id)
                live.log.ride((StepStarted, {"step": node.id, "skill": skill.name}), held=True)
                live.world.observe("step.started", run=live.run, step=node.id)
        except Stop as stop:
            results[node.id] = StepResult(node.id, stop.outcome, stop=stop)
            break
        begun.append((node, skill))
    if begun and live.log.lease.takeovers:
        # Its process died before: should one of these be why, its name is on disk before its code runs (P4).
        try:
            await live.log.settle()
        except Stop as stop:
            results.update({node.id: StepResult(node.id, stop.outcome, stop=stop) for node, _ in begun})
            return []
    return begun


async def _step(
    live: LiveRun, node: Node, skill: Skill, request: object, outputs: Mapping[int, object],
    results: dict[int, StepResult],
) -> None:  # fmt: skip
    results[node.id] = await run_step(live, node, skill, request, outputs)


async def read_back(live: LiveRun, record: StepFinished) -> StepResult:
    """P16: a finished step is its record, and its code is not asked."""
    step = record.step or 0
    if record.blob is None:
        return StepResult(step, "succeeded", fresh(record.output))
    try:
        return StepResult(step, "succeeded", await live.read_blob(bytes.fromhex(record.blob.digest)))
    except JournalCorrupt as error:
        return StepResult(step, "quarantined", stop=Quarantine(f"step {step}: {error.message}", "journal_corrupt"))


async def run_step(
    live: LiveRun, node: Node, skill: Skill, request: object, outputs: Mapping[int, object]
) -> StepResult:
    """Walk one step from its beginning, and record how it ended. Raises only trio.Cancelled."""
    cx = StepContext(live, node.id)

    async def body() -> object:
        wanted = skill.read_request(bind(node, request, outputs))
        if skill.blocking:
            return await run_blocking(cx, skill.body, wanted, live.world.skill_threads)
        return await skill.body(cx, wanted)

    result = await walk(live, cx, body)
    if result.outcome in ("succeeded", "failed") and not live.strict:
        result = finish(live, result)
    return result


async def walk(live: LiveRun, cx: StepContext, body: Callable[[], Awaitable[object]]) -> StepResult:
    """Run a body of a step, forward or compensating, and settle the group that it left open. Raises only
    trio.Cancelled."""
    cx.begin()
    try:
        result = await _walk(live, cx, body)
    except Stop as stop:
        result = StepResult(cx.step, stop.outcome, stop=stop)
    try:
        result = await _settled(live, cx, result)
    except Stop as stop:
        result = StepResult(cx.step, stop.outcome, stop=stop)
    cx.close()
    return result


async def _settled(live: LiveRun, cx: StepContext, result: StepResult) -> StepResult:
    """A group commits by being committed and by nothing else: one that is left open by a step that ends is taken
    back."""
    group = cx.groups.opened
    if group is None or result.outcome not in ("succeeded", "failed", "cancelled", "replanning"):
        return result
    forgotten = await group.settle_left_open(result.outcome)
    if result.outcome == "succeeded":
        return StepResult(cx.step, "failed", fault=fault_of(live, forgotten))
    return result


async def _walk(live: LiveRun, cx: StepContext, body: Callable[[], Awaitable[object]]) -> StepResult:
    """Whatever the body does, an unasked recorded effect or a latched stop outranks it (P12, P17)."""
    failure: BaseException | None = None
    output: object = None
    token = IN_STEP.set(cx)
    try:
        output = await body()
    except Suspended:
        cx.diverged("waited")
        raise
    except WouldPerform:
        cx.diverged("went on")
        raise
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
        if isinstance(cx.latched, Suspended | WouldPerform):
            cx.diverged("waited" if isinstance(cx.latched, Suspended) else "went on")
        raise cx.latched
    if live.is_cut:
        raise live.cut_off()
    cx.diverged("returned" if failure is None else f"raised {type(failure).__name__}")
    if isinstance(failure, Replan):
        return StepResult(cx.step, "replanning", replan=failure)
    if failure is not None:
        return StepResult(cx.step, "failed", fault=fault_of(live, failure))
    return _returned(live, cx.step, output)


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


def finish(live: LiveRun, result: StepResult) -> StepResult:
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
            # Lost, it is made again from the effects of its step; it costs no unit of its own.
            live.log.ride((StepFinished, _members(result)), held=True, blobs=_beside(result))
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
    if isinstance(error, BindFault):
        return Fault(code="unbound", message=sentence(error))
    code = error.row.code if isinstance(error, AgentplaneError) else "skill_raised"
    frames = traceback.extract_tb(error.__traceback__)
    place = sentence(f"{frames[-1].filename}:{frames[-1].lineno}") if frames else None
    return Fault(code=code, message=sentence(error), type=type(error).__name__, path=place)


def worst(results: list[StepResult]) -> StepResult | None:
    """The most severe ending; ready order decides only within a rank."""
    found = saga.worst((result.step, result.outcome) for result in results)
    return None if found is None else next(result for result in results if (result.step, result.outcome) == found)
