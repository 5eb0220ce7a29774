"""A step that waits for a person.

Owns what ``cx.task`` asks for, the row of the worklist that it becomes, and the decision as the skill reads it. Refuses
nothing that the proposal does not refuse. Invariant: the row is made of the recorded proposal and the run's admission,
so that every walk opens the same task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentplane.authoring.proposal import Decision, Proposal
from agentplane.authoring.types import CallDescription
from agentplane.core import bounds, canonical
from agentplane.core import tasks as rules
from agentplane.core.errors import InvalidRequest, PayloadTooLarge
from agentplane.core.history import TASK as KIND
from agentplane.core.history import History
from agentplane.core.instants import from_text, to_text
from agentplane.engine.awaiting import registered
from agentplane.engine.sleeping import Members, ended, instant_in, instant_ms, never, waiting_effect
from agentplane.engine.waits import Wait
from agentplane.work import tasks

if TYPE_CHECKING:
    from agentplane.engine.context import StepContext


async def task(cx: StepContext, proposal: Proposal) -> Decision:
    """What a person decided about ``proposal``. Raises Suspended, which latches, while nobody has."""
    cx.enter()
    if not isinstance(proposal, Proposal):
        raise InvalidRequest(f"cx.task takes a Proposal(...), not {type(proposal).__name__}.")
    due_ms = await _due(cx, proposal)
    args = proposal.to_args(None if due_ms is None else to_text(due_ms))
    if len(canonical.encode(args)) > bounds.PROPOSAL_BYTES_MAX:
        raise PayloadTooLarge(
            f"A proposal has at most {bounds.PROPOSAL_BYTES_MAX} bytes; keep evidence elsewhere and name it."
        )

    def wait(members: Members, announced: bool) -> Wait:
        row = opening(cx.live.history, str(members["effect_key"]), args, proposal.schema)
        end = "" if due_ms is None else f", until {to_text(due_ms)}"
        return Wait(
            members=members, kind=KIND, announced=announced, task=row, reason=f"waits for a decision on {row.task}{end}"
        )

    found = await ended(cx, OPEN(**args), wait)
    return decision(cx, proposal, found)


def decision(cx: StepContext, proposal: Proposal, found: dict[str, Any]) -> Decision:
    """The decision as recorded; its ``call`` is the one in force, with a reviewer's amendment in it."""
    following = cx.next_spot
    series = cx.live.history.series[following._replace(ordinal=following.ordinal - 1)]
    done = series.output_record()
    by = getattr(done, "by", None)
    call = proposal.action
    proposed = None if call is None else rules.action_digest(call.effect.kind, call.args)
    if call is not None and found.get("amendment") is not None:
        call = CallDescription(call.effect, dict(found["amendment"]))
    return Decision(
        task=rules.task_id(cx.run, series.first.effect_key or ""), approved=bool(found["approved"]),
        outcome=found["outcome"], reason=found.get("reason", ""), by=None if by is None else by.actor,
        amendment=found.get("amendment"), answer=found.get("answer"), digest=found.get("digest"), call=call,
        proposed=proposed,
    )  # fmt: skip


async def _due(cx: StepContext, proposal: Proposal) -> int | None:
    due = proposal.due
    if due is None:
        return None
    if isinstance(due, str):
        return registered(cx, due, "due")
    if proposal.due_is_relative:
        return await instant_in(cx, proposal.due_in_s, "The window of a task")
    return instant_ms(due, "A proposal's due")


def opening(history: History, key: str, args: dict[str, Any], schema: dict[str, Any] | None = None) -> tasks.Opening:
    """The row of the worklist that the recorded proposal at effect ``key`` (hex) is, whoever makes it; ``schema``: of
    the action's arguments, for whoever amends them."""
    admitted, run = history.admitted, history.run
    excluded = list(args["excluded"])
    if args["four_eyes"] and admitted is not None and admitted.admitted_by is not None:
        excluded.append(admitted.admitted_by.actor)
    due = args["due"]
    if args["action"] is not None:
        args = args | {"action": args["action"] | {"schema": schema}}
    return tasks.Opening(
        task=rules.task_id(run, key), run=run, key=bytes.fromhex(key),
        case=None if history.case is None else history.case.case,
        kind=admitted.capability if admitted is not None else "", due_ms=None if due is None else from_text(due),
        excluded=tuple(dict.fromkeys(excluded)), proposal=args,
    )  # fmt: skip


async def _open(
    call: object, *, summary: str, action: object, confidence: object, cost: object, evidence: object,
    audience: object, excluded: object, least_basis: str, four_eyes: bool, priority: str, due: str | None,
    on_expiry: str, escalate_to: object,
) -> Any:  # fmt: skip
    await never()


OPEN = waiting_effect(KIND, _open)
