"""Replacing the plan of a run.

Owns the making of a successor and the unit that freezes it beside the end of the step that asked. Refuses more
replans than the ceiling, and a successor with a fault. Invariant: a successor is recorded before any step of it
begins, and read back on every later walk.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentplane.authoring.plan import PlanTemplate
from agentplane.authoring.raising import Replan
from agentplane.core import bounds, contract
from agentplane.core import plan as plans
from agentplane.core.canonical import CanonicalError
from agentplane.core.effects import Phase
from agentplane.core.errors import AgentplaneError, PlanRefused
from agentplane.core.records import Fault, PlanFrozen, StepFinished
from agentplane.engine import waits
from agentplane.engine.act import fresh
from agentplane.engine.executor import Capabilities, StepResult, fault_of, finish, provided
from agentplane.engine.linking import Spec
from agentplane.engine.live import LiveRun
from agentplane.engine.runlog import UNRECORDABLE
from agentplane.engine.stops import Stop
from agentplane.engine.unwind import End, settle_groups
from agentplane.journal import timers
from agentplane.journal.tx import Tx


async def replan(
    live: LiveRun, plan: plans.Plan, skills: Capabilities, asking: StepResult, results: Sequence[StepResult]
) -> StepResult | End | None:
    """Freeze the successor that a step asked for. None: it is the plan now; else how the step, or the run, ends
    instead."""
    history = live.history
    asked = asking.replan or Replan("")
    try:
        live.ask_budget("replan", asking.step)
    except Stop as stop:
        return StepResult(asking.step, stop.outcome, stop=stop)
    if len(history.frozen) > bounds.REPLANS_MAX:
        fault = Fault(code="replans", message=f"the plan was replaced {bounds.REPLANS_MAX} times, the bound of a run")
        return finish(live, StepResult(asking.step, "failed", fault=fault))
    try:
        successor = _successor(live, plan, skills, asked, results, asking.step)
        digest = plans.digest(successor)
    except (AgentplaneError, ValueError, CanonicalError) as error:
        return finish(live, StepResult(asking.step, "failed", fault=fault_of(live, error)))
    reason = live.world.secrets.sentence(asked.reason)
    specs: list[Spec] = [
        (StepFinished, {"step": asking.step, "outcome": "replanned", "fault": Fault(code="replan", message=reason)}),
        (PlanFrozen, {
            "steps": [node.name for node in successor.nodes], "plan": plans.to_data(successor),
            "digest": digest,
        }),
    ]  # fmt: skip
    kept = {node.id for node in successor.nodes}
    left_open = await settle_groups(live, skills, history.started.keys() - kept)
    if left_open is not None:
        return left_open
    gone = [series for series in history.waiting() if series.spot.step not in kept]
    specs += waits.ended(history, phase=Phase.forward, steps=[series.spot.step for series in gone])
    run, keys = live.run, [bytes.fromhex(series.last.started.effect_key or "") for series in gone]

    def disarm(tx: Tx) -> None:
        for key in keys:
            timers.disarm(tx, run, key)

    try:
        await live.log.barrier(*specs, after=disarm)
    except UNRECORDABLE as error:
        return finish(live, StepResult(asking.step, "failed", fault=fault_of(live, error)))
    live.world.observe("run.replanned", run=live.run, step=asking.step)
    return None


def _successor(
    live: LiveRun, plan: plans.Plan, skills: Capabilities, asked: Replan, results: Sequence[StepResult], asking: int
) -> plans.Plan:
    """Raises PlanRefused with every fault, ValueError for names that do not exist, and what the planner raises as a
    PlanRefused naming it."""
    history = live.history
    template = skills.get(history.admitted.capability) if history.admitted is not None else None
    finished = {result.step: result.output for result in results if result.outcome == "succeeded"}
    if asked.nodes is not None:
        drafts = [node.draft() for node in asked.nodes]
    elif isinstance(template, PlanTemplate) and template.replanner is not None:
        names = {node.id: node.name for node in plan.nodes}
        outputs = {names[step]: fresh(output) for step, output in finished.items()}
        request = fresh(history.admitted.input) if history.admitted is not None else None
        try:
            drafts = [node.draft() for node in template.replanner(asked.reason, request, outputs)]
        except Exception as error:
            # Nothing was sent and nothing is recorded: the planner is a pure function of data.
            raise PlanRefused(f"The planner of {template.name} raised {type(error).__name__}: {error}.") from None
    else:
        raise PlanRefused("The step asked for another plan, brought none, and its plan has no function for that.")
    used = max(history.nodes())
    # One that waits keeps its id too when it is named again as it was: its calls are read back, and not paid twice.
    waiting = {result.step for result in results if result.outcome == "suspended" and result.step != asking}
    successor = plans.successor(plan, asked.reason, drafts, finished.keys() | waiting, used)
    found = contract.faults(successor, provided(skills))
    if found:
        raise PlanRefused(f"The new plan cannot run: {found[0]}.", faults=[str(fault) for fault in found])
    return successor
