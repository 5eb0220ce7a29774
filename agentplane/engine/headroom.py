"""Who may queue records of a run next, when it has as many uncommitted as it may (W8).

Owns the line of waiters, first come first served. Refuses to wake more of them than there is room for: a thousand calls
side by side, all woken at every commit, would cost a million wake-ups. Invariant: a place that was given is counted
until its taker runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio


class Headroom:
    """``fits(given)`` says whether one more effect fits beside the ``given`` ones that were let through and have not
    queued yet."""

    def __init__(self, fits: Callable[[int], bool]) -> None:
        self._fits = fits
        self._line: deque[trio.lowlevel.Task] = deque()
        self._given = 0

    def is_free(self) -> bool:
        return not self._line and self._fits(self._given)

    async def wait(self) -> None:
        """Until it is this task's turn; one that is cancelled leaves the line."""
        task = trio.lowlevel.current_task()
        self._line.append(task)

        def abort(_: object) -> trio.lowlevel.Abort:
            self._line.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
        self._given -= 1

    def let_through(self, *, everybody: bool = False) -> None:
        """Wake those that fit now; ``everybody``: nothing will be written any more, and each is told so."""
        while self._line and (everybody or self._fits(self._given)):
            self._given += 1
            trio.lowlevel.reschedule(self._line.popleft())
