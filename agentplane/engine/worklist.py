"""What people do to tasks and obligations: claim, release, take over, decide, acknowledge.

Owns each act as one unit with its record in a sealed run of its own, and the waking of the run that a decision is for.
Refuses what ``core/tasks`` refuses, judged in the claim's own transaction. Invariant: one decision a task, recorded
with who made it and how we know; what is decided while nobody executes the run reaches it when somebody does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import trio

from agentplane.core import deciding, ids
from agentplane.core.errors import InvalidRequest
from agentplane.core.records import Actor, PlaneActed
from agentplane.core.tasks import Reviewer
from agentplane.engine.acts import reason_text
from agentplane.engine.recovery import own_run
from agentplane.engine.waits import Ending
from agentplane.engine.waking import May, Trying, Waker
from agentplane.journal import obligations
from agentplane.journal.leases import Lease
from agentplane.journal.tx import Tx
from agentplane.work import tasks
from agentplane.work.tasks import TaskRow


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    """``delivery``: resumed, or recorded (the run takes it when somebody executes it)."""

    row: TaskRow
    delivery: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a person says of a task: approve, reject or answer. ``amendment``: the arguments in the place of those that
    were proposed; ``answer``: what was asked for, as data; ``version``: the digest of the task that they read."""

    said: str
    reason: str
    amendment: object = None
    answer: object = None
    version: str | None = None


class Worklist:
    """Of one plane. ``people``: the names that are one person, by person."""

    def __init__(self, waker: Waker, people: Mapping[str, Sequence[str]]) -> None:
        self.waker = waker
        self.people = people

    async def claim(self, task: str, who: Reviewer, actor: Actor) -> TaskRow:
        return await self._act(task, "task.claimed", actor, lambda tx: tasks.claim(tx, task, who, actor, self.people))

    async def release(self, task: str, who: Reviewer, actor: Actor) -> TaskRow:
        return await self._act(task, "task.released", actor, lambda tx: tasks.release(tx, task, who, self.people))

    async def take_over(self, task: str, who: Reviewer, actor: Actor, holder: str, reason: str) -> TaskRow:
        """Displace ``holder``, who is named so that nobody displaces a third person unseen."""
        reason = reason_text(reason)
        return await self._act(
            task, "task.taken_over", actor,
            lambda tx: tasks.take_over(tx, task, who, actor, holder, self.people),
            reason=reason, detail={"from": holder},
        )  # fmt: skip

    async def decide(self, task: str, who: Reviewer, actor: Actor, verdict: Verdict) -> Decided:
        """Record the decision, and hand it to the run that waits for it. Raises the refusals of ``core/tasks``."""
        reason = reason_text(verdict.reason)
        self._without_secrets(verdict)
        if verdict.amendment is not None:
            # What judges an amendment is loaded here, and not by the writer's thread.
            await trio.to_thread.run_sync(deciding.misfit, {}, {})

        def unit(tx: Tx, trying: Trying) -> tuple[TaskRow, Lease | None]:
            row = tasks.decide(
                tx, task, who, actor, self.people, said=verdict.said, reason=reason, amendment=verdict.amendment,
                answer=verdict.answer, version=verdict.version,
            )  # fmt: skip
            if self.waker.may(tx, row.run) is not May.NOW:
                return row, None
            return row, self.waker.wake(tx, row.run, row.key, Ending(output=row.decision, by=actor), trying)

        # Cut between the commit and the beginning, the woken run's lease would be left to lapse.
        with trio.CancelScope(shield=True):
            row, lease = await self.waker.do(unit)
            if lease is not None:
                await self.waker.begin(lease)
        return Decided(row=row, delivery="resumed" if lease is not None else "recorded")

    def _without_secrets(self, verdict: Verdict) -> None:
        """Raises InvalidRequest for a decision that would write a secret down."""
        raw = msgspec.json.encode([verdict.reason, verdict.amendment, verdict.answer])
        if any(secret in raw for secret in self.waker.runs.world.secrets.handed_out()):
            raise InvalidRequest("The decision holds a secret that this plane was handed; nothing of it was recorded.")

    async def acknowledge(self, subject: str, name: str, actor: Actor, note: str) -> tuple[bool, str]:
        """Account for a breach: (whether it was recorded, who did it first)."""
        note = reason_text(note, "note")

        def unit(tx: Tx) -> tuple[bool, str]:
            recorded, first = obligations.acknowledge(tx, subject, name, actor, note)
            if recorded:
                self._record(tx, "obligation.acknowledged", actor, f"{subject} {name}", note)
            return recorded, first

        return await self.waker.runs.writer.do(unit)

    async def _act(
        self, task: str, action: str, actor: Actor, change: Callable[[Tx], TaskRow], *, reason: str | None = None,
        detail: Any = None,
    ) -> TaskRow:  # fmt: skip
        def unit(tx: Tx) -> TaskRow:
            row = change(tx)
            self._record(tx, action, actor, task, reason, detail)
            return row

        return await self.waker.runs.writer.do(unit)

    def _record(
        self, tx: Tx, action: str, actor: Actor, subject: str, reason: str | None = None, detail: Any = None
    ) -> None:
        runs = self.waker.runs
        members = {"action": action, "acted_by": actor, "subject": subject, "reason": reason, "detail": detail}
        own_run(
            tx, tx.tenant, [(PlaneActed, members)], "acted", ids.new_id("run", runs.world.now_ms(), os.urandom(10)),
            "agentplane.act", runs.world.incarnation, runs.owner, runs.opening,
        )  # fmt: skip
