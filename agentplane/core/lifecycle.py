"""The lives of runs, steps, effects and groups, as tables.

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

TABLES: Final[Mapping[str, Table]] = {"run": RUN, "step": STEP, "effect": EFFECT, "group": GROUP}


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
