"""What an effect may raise to say what happened, and what a skill may catch.

Owns the four effect errors and ``EffectFailed``. Refuses to let anything else of a mutating effect mean more than
doubt. Invariant: each carries the disposition it stands for.
"""

from __future__ import annotations

from typing import ClassVar

from agentplane.core.dispositions import Disposition
from agentplane.core.errors import EXIT_NO, AgentplaneError, Row
from agentplane.core.records import Fault


class EffectError(Exception):
    """Base of what an effect raises about its own outcome.

    ``permanent``: asking again cannot help. ``retry_after_s``: when it might.
    """

    disposition: ClassVar[Disposition] = Disposition.IN_DOUBT
    code: ClassVar[str] = "in_doubt"

    def __init__(self, message: str = "", *, permanent: bool = False, retry_after_s: float | None = None) -> None:
        super().__init__(message or type(self).__name__)
        self.permanent = permanent
        self.retry_after_s = retry_after_s


class DidNotHappenError(EffectError):
    """The call provably never took effect: repeating it is safe."""

    disposition = Disposition.DID_NOT_HAPPEN
    code = "did_not_happen"


class InDoubtError(EffectError):
    """Nobody can say whether the call took effect."""


class LandedError(EffectError):
    """The call took effect, and its answer cannot be used: a mutation is never repeated."""

    disposition = Disposition.LANDED
    code = "landed"


class ReplayedFailureError(EffectError):
    """The provider answered with the stored failure of an earlier attempt: only a person goes on from here (P8)."""

    code = "replayed_failure"


class EffectFailed(AgentplaneError):
    """What ``cx.do`` raises when a series failed for certain. A skill may catch it and go on."""

    row = Row(
        "effect_failed", "outside", EXIT_NO, 502, "Read the disposition; `agentplane replay RUN --retry` asks again."
    )

    def __init__(self, kind: str, fault: Fault, disposition: Disposition, *, permanent: bool, ordinal: int) -> None:
        super().__init__(f"The effect {kind} failed ({disposition.value}): {fault.message}")
        self.kind = kind
        self.fault = fault
        self.disposition = disposition
        self.permanent = permanent
        self.ordinal = ordinal
