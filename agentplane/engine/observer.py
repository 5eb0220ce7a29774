"""Who is told at which point.

Owns the fan-out from the engine's points to observers. Refuses to let an observer change anything. Invariant: an
observer is called at its point, synchronously, and may not emit before the commit that the point names (W6).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

Observe = Callable[..., None]

POINTS: Final = (
    "run.leased", "run.admitted", "run.concluding", "run.concluded", "run.parked", "run.dropped",
    "step.started", "step.finished",
    "effect.announcing", "effect.announced", "effect.acting", "effect.acted", "effect.recorded", "effect.asked",
    "writer.batch", "writer.committed", "recovery.took_over", "drain.began", "drain.ended",
)  # fmt: skip


def silent(point: str, **fields: object) -> None:
    """The observer of a plane that nobody watches."""


def both(first: Observe, second: Observe) -> Observe:
    """An observer that tells two; one that is silent costs nothing."""
    if first is silent:
        return second

    def observe(point: str, **fields: object) -> None:
        first(point, **fields)
        second(point, **fields)

    return observe
