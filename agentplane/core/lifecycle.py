"""The lives of runs, steps, effects and groups, and of what outlives a run, as tables.

Owns which event may follow which state; what is absent is illegal. Refuses to perform anything. Invariant:
the diagrams in the docs are made from these tables, and every (state, event) pair is legal or refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from agentplane.core.errors import InvariantViolation

Table = Mapping[tuple[str, str], str]

RUN: Final[Table] = {
    ("none", "RunAdmitted"): "running",
    ("running", "suspend"): "suspended",
    ("suspended", "wake"): "running",
    ("suspended", "cancel"): "running",
    ("running", "park"): "parked",
    ("parked", "take over"): "running",
    ("running", "crash"): "abandoned lease",
    ("abandoned lease", "take over"): "running",
    ("running", "conclude succeeded"): "succeeded",
    ("running", "conclude failed"): "failed",
    ("running", "conclude exhausted"): "exhausted",
    ("running", "conclude quarantined"): "quarantined",
    ("running", "conclude cancelled"): "cancelled",
    ("failed", "retry"): "running",
    ("failed", "replay"): "running",
    ("failed", "cancel"): "running",
    ("exhausted", "raise"): "running",
    ("exhausted", "cancel"): "running",
    ("exhausted", "replay"): "running",
    ("quarantined", "reconcile"): "quarantined",
    ("quarantined", "reopen"): "running",
    ("quarantined", "abandon"): "abandoned",
    ("running", "UnwindBegan"): "unwinding",
    ("unwinding", "suspend"): "unwinding suspended",
    ("unwinding suspended", "wake"): "unwinding",
    ("unwinding", "park"): "unwinding parked",
    ("unwinding parked", "take over"): "unwinding",
    ("unwinding", "crash"): "unwinding abandoned lease",
    ("unwinding abandoned lease", "take over"): "unwinding",
    ("unwinding", "conclude failed"): "failed",
    ("unwinding", "conclude cancelled"): "cancelled",
    ("unwinding", "conclude quarantined"): "quarantined",
    ("quarantined", "reopen unwinding"): "unwinding",
}
"""``succeeded``, ``cancelled`` and ``abandoned`` are sealed: no row leaves them. A run that unwinds never goes forward
again: it is suspended, parked or left by its owner as one that unwinds, and only a conclusion ends that. Nothing
unwinds out of exhaustion, suspension or quarantine."""

STEP: Final[Table] = {
    ("none", "StepStarted"): "running",
    ("running", "effect"): "running",
    ("running", "StepFinished succeeded"): "succeeded",
    ("running", "StepFinished failed"): "failed",
    ("running", "StepFinished replanned"): "replanned",
    ("running", "stop"): "interrupted",
    ("interrupted", "resume"): "running",
    ("failed", "RetryGranted"): "running",
    ("succeeded", "StepCompensated"): "compensated",
    ("succeeded", "StepKept"): "kept",
    ("interrupted", "StepCompensated"): "compensated",
    ("interrupted", "StepKept"): "kept",
    ("failed", "StepCompensated"): "compensated",
    ("failed", "StepKept"): "kept",
    ("replanned", "StepCompensated"): "compensated",
    ("replanned", "StepKept"): "kept",
}
"""What an unwind has compensated or kept, no later one looks at again."""


EFFECT: Final[Table] = {
    ("none", "EffectStarted"): "announced",
    ("announced", "EffectDone"): "done",
    ("announced", "EffectFailed did_not_happen"): "refused",
    ("announced", "EffectFailed in_doubt"): "in doubt",
    ("announced", "EffectFailed landed"): "landed",
    ("announced", "EffectReconciled landed"): "done",
    ("announced", "EffectReconciled did_not_happen"): "refused",
    ("announced", "EffectReconciled inconclusive"): "in doubt",
    ("in doubt", "EffectReconciled landed"): "done",
    ("in doubt", "EffectReconciled did_not_happen"): "refused",
    ("in doubt", "EffectReconciled inconclusive"): "in doubt",
    ("in doubt", "EffectStarted"): "announced in doubt",
    ("announced in doubt", "EffectDone"): "done",
    ("announced in doubt", "EffectFailed did_not_happen"): "in doubt",
    ("announced in doubt", "EffectFailed in_doubt"): "in doubt",
    ("announced in doubt", "EffectFailed landed"): "landed",
    ("announced in doubt", "EffectReconciled landed"): "done",
    ("announced in doubt", "EffectReconciled did_not_happen"): "refused",
    ("announced in doubt", "EffectReconciled inconclusive"): "in doubt",
    ("refused", "EffectStarted"): "announced",
    ("landed", "EffectReconciled landed"): "done",
}
"""One place: its series of attempts. ``announced in doubt`` carries the doubt of an earlier attempt (P2)."""

GROUP: Final[Table] = {
    ("none", "GroupOpened"): "open",
    ("open", "GroupSettled committed"): "committed",
    ("open", "GroupSettled aborted"): "aborted",
    ("open", "GroupSettled quarantined"): "quarantined",
    ("quarantined", "GroupSettled committed"): "committed",
    ("quarantined", "GroupSettled aborted"): "aborted",
}
"""A group in doubt stays ``open``; out of ``quarantined`` it comes when a person has answered for what is out."""

CASE: Final[Table] = {
    ("none", "CaseBound"): "open",
    ("open", "set awaiting_external"): "awaiting_external",
    ("open", "set awaiting_human"): "awaiting_human",
    ("open", "set escalated"): "escalated",
    ("open", "breach"): "escalated",
    ("open", "close"): "closed",
    ("awaiting_external", "set open"): "open",
    ("awaiting_external", "set awaiting_human"): "awaiting_human",
    ("awaiting_external", "set escalated"): "escalated",
    ("awaiting_external", "breach"): "escalated",
    ("awaiting_external", "close"): "closed",
    ("awaiting_human", "set open"): "open",
    ("awaiting_human", "set awaiting_external"): "awaiting_external",
    ("awaiting_human", "set escalated"): "escalated",
    ("awaiting_human", "breach"): "escalated",
    ("awaiting_human", "close"): "closed",
    ("escalated", "set open"): "open",
    ("escalated", "set awaiting_external"): "awaiting_external",
    ("escalated", "set awaiting_human"): "awaiting_human",
    ("escalated", "breach"): "escalated",
    ("escalated", "close"): "closed",
    ("closed", "reopen"): "open",
}
"""``close`` is legal only while no obligation is pending or warned, and ``reopen`` takes only keys that are free. A
closed case takes on nothing, so nothing of it is breached any more."""

TASK: Final[Table] = {
    ("none", "open"): "open",
    ("open", "claim"): "claimed",
    ("open", "decide"): "completed",
    ("open", "expire"): "expired",
    ("open", "escalate"): "escalated",
    ("open", "withdraw"): "withdrawn",
    ("claimed", "release"): "open",
    ("claimed", "take over"): "claimed",
    ("claimed", "decide"): "completed",
    ("claimed", "expire"): "expired",
    ("claimed", "escalate"): "escalated",
    ("claimed", "withdraw"): "withdrawn",
    ("escalated", "claim"): "escalated",
    ("escalated", "release"): "escalated",
    ("escalated", "take over"): "escalated",
    ("escalated", "decide"): "completed",
    ("escalated", "withdraw"): "withdrawn",
}
"""A claim does not take an escalated task back from ``escalated``: its window is over, and nothing asks again."""

OBLIGATION: Final[Table] = {
    ("none", "DeadlineRegistered"): "pending",
    ("pending", "warn"): "warned",
    ("pending", "breach"): "breached",
    ("pending", "meet"): "met",
    ("pending", "cancel"): "cancelled",
    ("warned", "breach"): "breached",
    ("warned", "meet"): "met",
    ("warned", "cancel"): "cancelled",
    ("breached", "acknowledge"): "breached",
}
"""What was breached stays breached, accounted for or not."""

EVENT: Final[Table] = {
    ("none", "store"): "buffered",
    ("buffered", "claim"): "claimed",
    ("buffered", "consume"): "consumed",
    ("buffered", "age out"): "dead",
    ("claimed", "consume"): "consumed",
    ("claimed", "retire"): "buffered",
}
"""``claimed`` is a claim whose outcome is not recorded: the shape that two stores can be left in. It is finished, or
given back where the wait that it names has ended otherwise."""

TABLES: Final[Mapping[str, Table]] = {
    "run": RUN, "step": STEP, "effect": EFFECT, "group": GROUP,
    "case": CASE, "task": TASK, "obligation": OBLIGATION, "event": EVENT,
}  # fmt: skip


def states(table: Table) -> list[str]:
    """Every state of ``table`` in order of first appearance."""
    return list(dict.fromkeys(state for (before, _), after in table.items() for state in (before, after)))


def events(table: Table) -> list[str]:
    return list(dict.fromkeys(event for _, event in table))


def step(table: Table, state: str, event: str) -> str:
    """The state after ``event``; raises InvariantViolation when the table does not have the pair."""
    after = table.get((state, event))
    if after is None:
        raise InvariantViolation(f"INV-01 {event!r} cannot follow the state {state!r}.")
    return after


def mermaid(table: Table) -> str:
    """The state diagram of ``table`` in Mermaid's notation, as the docs show it."""
    names = {state: "[*]" if state == "none" else state.replace(" ", "_") for state in states(table)}
    lines = ["stateDiagram-v2"]
    lines += [f"    {names[before]} --> {names[after]}: {event}" for (before, event), after in table.items()]
    return "\n".join(lines)


CASE_STATUSES: Final = tuple(one for one in states(CASE) if one != "none")
