"""Acting on what a person approved.

Owns the binding of a call to a decision: the exact arguments, once, at one place. Refuses what was not approved, what
is not what was approved, and what was consumed elsewhere. Invariant: an approval is consumed in the announcement's own
unit, and the attempts of that place share it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentplane.authoring.proposal import Decision
from agentplane.authoring.types import CallDescription
from agentplane.core.errors import ApprovalRefused, InvalidRequest
from agentplane.core.history import TASK, Spot
from agentplane.core.records import Approved, EffectDone
from agentplane.core.tasks import action_digest, task_id
from agentplane.engine.dispatch import Bound, bind

if TYPE_CHECKING:
    from agentplane.engine.context import StepContext


def bound_to(cx: StepContext, call: CallDescription, decision: object) -> tuple[Bound, Approved]:
    """The call in force under ``decision``, and what its announcement consumes. Raises ApprovalRefused."""
    if not isinstance(decision, Decision):
        raise InvalidRequest(f"cx.do takes approval=the decision of cx.task, not {type(decision).__name__}.")
    if not isinstance(call, CallDescription):
        raise InvalidRequest(f"cx.do takes a call such as `refund(order=...)`, not {type(call).__name__}.")
    _of_this_run(cx, decision)
    if not decision.approved or decision.digest is None or decision.call is None:
        raise ApprovalRefused(f"The task {decision.task} approved no action; it was {decision.outcome}.")
    asked = action_digest(call.effect.kind, call.args)
    proposed = decision.proposed or decision.digest
    if asked not in (decision.digest, proposed):
        raise ApprovalRefused(
            f"The call of {call.effect.kind} is not the one that was approved: its arguments are others."
        )
    # A reviewer's amendment is the call.
    in_force = CallDescription(call.effect, dict(decision.call.args))
    digest = action_digest(in_force.effect.kind, in_force.args)
    if digest != decision.digest:
        raise ApprovalRefused(f"The decision on {decision.task} does not fit its own digest.")
    return bind(in_force), Approved(task=decision.task, digest=digest)


def at_one_place(cx: StepContext, spot: Spot, approval: Approved) -> None:
    """Raises ApprovalRefused where it was consumed at another place."""
    consumed = cx.live.history.consumed.get(approval.task)
    if consumed is not None and consumed != (spot, approval.digest):
        raise ApprovalRefused(
            f"The approval {approval.task} was consumed by step {consumed[0].step}, ordinal {consumed[0].ordinal}."
        )


def _of_this_run(cx: StepContext, decision: Decision) -> None:
    """A decision is read back from this run's own history, and from nowhere else."""
    for series in cx.live.history.series.values():
        if series.first.descriptor.kind == TASK and task_id(cx.run, series.first.effect_key or "") == decision.task:
            if isinstance(series.last.outcome, EffectDone):
                return
    raise ApprovalRefused(f"The decision {decision.task} was not made in this run.")
