"""What a wait gives a skill: the event that came, the case as it stands, and the end of a wait that nothing came to.

Owns ``Event``, ``CaseView`` and ``WaitTimedOut``. Refuses state: they are read back from the history. Invariant: a wait
that timed out took no event with it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from agentplane.core.errors import EXIT_NO, AgentplaneError, Row


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """A message that a run waited for. ``source``: the authenticated deliverer, such as ``peer:shop``; ``correlation``:
    everything it is about, by namespace; ``received_ms``: when the plane had it, ms UTC."""

    id: str
    kind: str
    source: str
    payload: Any
    correlation: dict[str, str]
    received_ms: int


class CaseView(msgspec.Struct, frozen=True, kw_only=True):
    """A case as it stood when it was read. ``state``: what was written last, None at version 0 (never written)."""

    state: Any
    version: int
    status: str


class WaitTimedOut(AgentplaneError):
    """No event came in time. ``until``: the end of the wait, RFC 3339. A skill may catch it and go on."""

    row = Row("wait_timed_out", "outside", EXIT_NO, 504, "Ask whoever was to send it; `agentplane replay RUN --retry`.")

    def __init__(self, kind: str, until: str) -> None:
        super().__init__(f"No event of the kind {kind} came until {until}.")
        self.kind = kind
        self.until = until
