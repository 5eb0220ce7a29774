"""What is owed by a date: the states of an obligation, when it is warned of, and what its date asks for.

Owns the transitions of an obligation and the instant of its warning. Refuses every move out of a state that has ended.
Invariant: a breach is for good; an obligation is met, cancelled or breached once.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from agentplane.core.instants import MIN_MS

DAY_MS: Final = 86_400_000


class State(StrEnum):
    PENDING = "pending"
    WARNED = "warned"
    BREACHED = "breached"
    MET = "met"
    CANCELLED = "cancelled"


class Act(StrEnum):
    """What the sweep does with an obligation that its date has reached."""

    WARN = "warn"
    BREACH = "breach"


OPEN_STATES: Final = frozenset({State.PENDING, State.WARNED})
"""The states in which something is still owed: they block the closing of the case."""
MOVES: Final[frozenset[tuple[State, State]]] = frozenset({
    (State.PENDING, State.WARNED),
    (State.PENDING, State.BREACHED),
    (State.PENDING, State.MET),
    (State.PENDING, State.CANCELLED),
    (State.WARNED, State.BREACHED),
    (State.WARNED, State.MET),
    (State.WARNED, State.CANCELLED),
})  # fmt: skip


def may_move(state: str, to: str) -> bool:
    """Whether an obligation in ``state`` may become ``to``."""
    return (state, to) in MOVES


def transition(state: str, to: str) -> State | None:
    """The state after a move, or None where ``state`` does not allow it (it ended otherwise before, or is there)."""
    return State(to) if may_move(state, to) else None


def warn_at(base_ms: int, due_ms: int, warn_before_ms: int | None = None) -> int:
    """When the warning of what was registered at ``base_ms`` and is due at ``due_ms`` comes: ``warn_before_ms`` before
    it, or the smaller of a day and a quarter of the window; never behind the date. All in milliseconds UTC."""
    window_ms = max(0, due_ms - base_ms)
    before_ms = min(DAY_MS, window_ms // 4) if warn_before_ms is None else max(0, warn_before_ms)
    return max(MIN_MS, due_ms - before_ms)


def next_act(state: str, warn_ms: int, due_ms: int, now_ms: int) -> Act | None:
    """What the sweep owes an obligation at ``now_ms``; a breach needs no warning before it."""
    if state not in OPEN_STATES:
        return None
    if now_ms >= due_ms:
        return Act.BREACH
    return Act.WARN if state == State.PENDING and now_ms >= warn_ms else None
