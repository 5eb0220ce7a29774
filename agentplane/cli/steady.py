"""A call that outlives the process it was made to.

Owns what a terminal does when the plane it was told of drains, restarts or loses it: ask again, of the next process.
Refuses to
become that plane: a terminal that found one serving never opens its store in the gap between two processes.
Invariant: what is
repeated is a read, or carries the admission key under which it is the same work.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from agentplane.cli.connect import Client, Lost, Remote
from agentplane.core import errors
from agentplane.surface.client import Answer

RESTART_S: Final = 60.0
"""How long nothing may answer before the next process is no longer waited for."""
PAUSE_S: Final = 0.2
FOR_GOOD: Final = ("permission", "namespace")
"""Reasons for which a plane cannot be reached that no waiting changes."""


class Steady:
    """``reach`` finds the plane anew; ``sure`` when its lock says that there is one. ``up``: something serves it."""

    def __init__(
        self,
        reach: Callable[[], Client],
        tell: Callable[[str], None],
        *,
        sure: bool = True,
        patience_s: float = RESTART_S,
    ) -> None:
        self._reach = reach
        self._tell = tell
        self._patience_s = patience_s
        self._told = False
        self._sure = sure
        self.client = self._first()
        self.up = self.client.up

    def _first(self) -> Client:
        """What holds the store and does not answer yet is starting, draining, or another command: it is waited for."""
        until = time.monotonic() + self._patience_s
        while True:
            try:
                return self._reach()
            except (errors.Unreachable, errors.StoreLocked) as error:
                self._pause(error, until)

    def call(self, name: str, **asked: Any) -> Answer:
        """The answer, of this process or the next. Raises Remote for a refusal, Unreachable when nothing serves any
        more."""
        until = time.monotonic() + self._patience_s
        while True:
            try:
                answer = self.client.call(name, **asked)
                self._sure = True
                return answer
            except Remote as refused:
                if refused.body.get("code") != "draining":
                    raise
                # It is there, and says itself that another will take this: that is not silence.
                until = time.monotonic() + self._patience_s
                self._pause(refused, until)
            except (Lost, errors.Unreachable, errors.StoreLocked) as error:
                self._pause(error, until)
            self._again(until)

    def _again(self, until: float) -> None:
        while True:
            try:
                found = self._reach()
                if found.up or not self.up:
                    self.client, self.up = found, found.up
                    return
                error: errors.AgentplaneError = errors.Unreachable("Nothing serves this plane any more.")
            except (errors.Unreachable, errors.StoreLocked) as missed:
                error = missed
            self._pause(error, until)

    def _pause(self, error: errors.AgentplaneError, until: float) -> None:
        if not self._sure or error.details.get("why") in FOR_GOOD or time.monotonic() >= until:
            raise error
        if not self._told:
            self._told = True
            self._tell(f"{error.message} Waiting for the next process.")
        time.sleep(PAUSE_S)
