"""How a step is stopped from outside its own code.

Owns the stops: each a BaseException, so that ``except Exception`` in a skill does not swallow it, and each latches on
its step (P12). Refuses to record anything: whoever raised one has. Invariant: after a stop no ``cx`` call of that step
returns.
"""

from __future__ import annotations

from collections.abc import Iterable

from agentplane.core import bounds
from agentplane.core.errors import AgentplaneError
from agentplane.core.history import Spot
from agentplane.core.records import Exhaustion, Undecided


class Stop(BaseException):
    """Base of the stops. ``outcome`` is what the step ends as."""

    outcome = "stopped"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Quarantine(Stop):
    """The runtime cannot account for something: a person must look."""

    outcome = "quarantined"

    def __init__(self, reason: str, code: str, undecided: tuple[Undecided, ...] = ()) -> None:
        super().__init__(reason)
        self.code = code
        self.undecided = undecided

    def naming_all(self, beside: Iterable[object]) -> Quarantine:
        """Itself, with what those ``beside`` it cannot account for: a person answers the run whole (P3)."""
        named = dict.fromkeys(one for stop in beside if isinstance(stop, Quarantine) for one in stop.undecided)
        self.undecided = tuple(dict.fromkeys((*self.undecided, *named)))[: bounds.UNDECIDED_NAMED_MAX]
        return self


class Divergence(Quarantine):
    """The code asks something else than what its history holds (P17, P18). ``spot``: the place, where it is one."""

    def __init__(self, reason: str, spot: Spot | None = None) -> None:
        super().__init__(reason, "diverged")
        self.spot = spot


class CancelHeard(Stop):
    outcome = "cancelled"


class Suspended(Stop):
    """The step waits for an instant. Its step and siblings are left whole; nothing is recorded before the run's one
    unit of suspension."""

    outcome = "suspended"

    def __init__(self, reason: str, wait: object) -> None:
        super().__init__(reason)
        self.wait = wait


class Exhausted(Stop):
    """A ceiling was reached; the refusal is recorded."""

    outcome = "exhausted"

    def __init__(self, exhaustion: Exhaustion) -> None:
        super().__init__(
            f"the ceiling on {exhaustion.limit} is reached: {exhaustion.used} of {exhaustion.allowed} are used"
        )
        self.exhaustion = exhaustion


class Parked(Stop):
    """A drain stopped the run at a boundary: nothing in flight, nothing written, lease kept."""

    outcome = "parked"


class Dropped(Stop):
    """The run is not ours any more, or nothing more of it may be written: fence, poison, refused rider, revoked
    release."""

    outcome = "dropped"

    def __init__(self, error: AgentplaneError) -> None:
        super().__init__(error.message)
        self.error = error


class WouldPerform(Stop):
    """Strict replay came to where the history ends."""

    outcome = "diverged"
