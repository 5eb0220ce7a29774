"""Obligations and the windows of tasks, as the sweep keeps them.

Owns the warning, the breach and the expiry, with the account of each in a sealed run of the sweep's own. Refuses to act
on what moved since it was read: that is noted as not applied. Invariant: an act and its note are one unit; where a
store of two left a breach without its account, the account is written first, once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import trio

from agentplane.core import bounds, ids
from agentplane.core.instants import to_text
from agentplane.core.records import Swept
from agentplane.engine.linking import Spec
from agentplane.engine.recovery import own_run
from agentplane.engine.waits import Ending
from agentplane.engine.waking import May, Trying, Waker
from agentplane.journal import obligations
from agentplane.journal.leases import Lease
from agentplane.journal.obligations import Obligation
from agentplane.journal.tx import Tx
from agentplane.work import matters, tasks
from agentplane.work.tasks import TaskRow

if TYPE_CHECKING:
    from agentplane.engine.sweep import Ticked

R = TypeVar("R")


class Notes:
    """What one unit decided: made anew each time it runs."""

    def __init__(self, trying: Trying) -> None:
        self.trying = trying
        self.specs: list[Spec] = []
        self.leases: list[Lease] = []
        self.counts: dict[str, int] = {}

    def add(self, subject: str, action: str, detail: str | None = None) -> None:
        self.specs.append((Swept, {"subject": subject, "action": action, "detail": detail}))
        self.counts[action] = self.counts.get(action, 0) + 1


class Duties:
    """Of one plane."""

    def __init__(self, waker: Waker) -> None:
        self.waker = waker

    # --- obligations -------------------------------------------------------------------------------------------------

    async def obligations(self, now_ms: int, ticked: Ticked) -> None:
        read = self.waker.runs.read
        owed = await read(partial(obligations.owed, limit=bounds.SWEEP_OBLIGATIONS))
        await self._in_units(owed, lambda tx, row, notes: self._account(tx, row, notes), ticked)
        due = await read(partial(obligations.due, now_ms=now_ms, limit=bounds.SWEEP_OBLIGATIONS))
        await self._in_units(due, partial(self._fall_due, now_ms=now_ms), ticked)
        ticked.full.deadlines = max(len(owed), len(due)) == bounds.SWEEP_OBLIGATIONS

    def _account(self, tx: Tx, row: Obligation, notes: Notes) -> None:
        """A breach that was applied and never accounted for."""
        if obligations.mark_noted(tx, row.subject, row.name, row.nth):
            self._breached(tx, row, notes)

    def _fall_due(self, tx: Tx, row: Obligation, notes: Notes, *, now_ms: int) -> None:
        about = _named(row)
        if row.due_ms <= now_ms:
            if obligations.breach(tx, row.subject, row.name, row.nth, row.state):
                self._breached(tx, row, notes)
            else:
                notes.add(about, "not_applied", "deadline_breached")
        elif obligations.warn(tx, row.subject, row.name, row.nth):
            notes.add(about, "deadline_warned", f"due {to_text(row.due_ms)}")
        else:
            notes.add(about, "not_applied", "deadline_warned")

    def _breached(self, tx: Tx, row: Obligation, notes: Notes) -> None:
        notes.add(_named(row), "deadline_breached", f"due {to_text(row.due_ms)}")
        self.waker.runs.world.observe("deadline.breached")
        if row.subject.startswith("case_") and matters.escalate(tx, row.subject):
            notes.add(row.subject, "case_escalated", row.name)

    # --- tasks -------------------------------------------------------------------------------------------------------

    async def tasks(self, now_ms: int, ticked: Ticked) -> None:
        overdue = await self.waker.runs.read(partial(tasks.overdue, now_ms=now_ms, limit=bounds.SWEEP_TASKS))
        await self._in_units(overdue, self._expire, ticked)
        ticked.full.tasks = len(overdue) == bounds.SWEEP_TASKS

    def _expire(self, tx: Tx, row: TaskRow, notes: Notes) -> None:
        """The policy that the task was opened with; a decision that came meanwhile stands."""
        if row.on_expiry == "escalate":
            if tasks.escalate(tx, row.task):
                notes.add(row.task, "task_escalated", f"window over at {to_text(row.due_ms or 0)}")
            else:
                notes.add(row.task, "not_applied", "task_escalated")
            return
        if not tasks.expire(tx, row.task):
            notes.add(row.task, "not_applied", "task_expired")
            return
        notes.add(row.task, "task_expired", row.on_expiry)
        now = tasks.get(tx, row.task)
        if now.decision is not None and self.waker.may(tx, row.run) is May.NOW:
            ending = Ending(output=now.decision)
            notes.leases.append(self.waker.wake(tx, row.run, row.key, ending, notes.trying))

    # --- carrying out ------------------------------------------------------------------------------------------------

    async def _in_units(self, found: Sequence[R], act: Callable[[Tx, R, Notes], None], ticked: Ticked) -> None:
        """A few rows a unit, so that none holds the writer for long; with each, the sealed run that says what it
        did."""
        runs = self.waker.runs
        for at in range(0, len(found), bounds.SWEEP_UNIT):
            rows = found[at : at + bounds.SWEEP_UNIT]
            own = ids.new_id("run", runs.world.now_ms(), os.urandom(10))

            def unit(tx: Tx, trying: Trying, rows: Sequence[R] = rows, own: str = own) -> Notes:
                notes = Notes(trying)
                for row in rows:
                    act(tx, row, notes)
                if notes.specs:
                    own_run(
                        tx, tx.tenant, notes.specs, "swept", own, "agentplane.sweep", runs.world.incarnation,
                        runs.owner, runs.opening,
                    )  # fmt: skip
                return notes

            notes = await self._carry_out(unit)
            if notes.specs:
                ticked.records.append(own)
            ticked.warned += notes.counts.get("deadline_warned", 0)
            ticked.breached += notes.counts.get("deadline_breached", 0)
            ticked.tasks_expired += notes.counts.get("task_expired", 0)
            ticked.tasks_escalated += notes.counts.get("task_escalated", 0)
            ticked.not_applied += notes.counts.get("not_applied", 0)

    async def _carry_out(self, unit: Callable[[Tx, Trying], Notes]) -> Notes:
        # Cut between the commit and the beginning, a woken run's lease would be left to lapse.
        with trio.CancelScope(shield=True):
            notes = await self.waker.do(unit)
            for lease in notes.leases:
                await self.waker.begin(lease)
        return notes


def _named(row: Obligation) -> str:
    return f"{row.subject} {row.name}"
