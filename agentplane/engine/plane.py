"""The plane: the only place that opens a store for writing.

Owns the order in which store, writer, runs and recovery begin and end. Refuses admission while draining, paused or
held. Invariant: the journal outlives every run, and nothing is admitted before the store was recognised and healed.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

import msgspec
import trio

from agentplane.authoring.plan import PlanTemplate
from agentplane.authoring.skill import Compensation, Skill
from agentplane.core import bounds, canonical
from agentplane.core.build import __version__
from agentplane.core.cloudevents import parse
from agentplane.core.errors import (
    Draining,
    Held,
    InvalidInput,
    LeaseHeld,
    Paused,
    SkillFault,
    StoreFailed,
)
from agentplane.core.records import Actor
from agentplane.engine import acts, guard
from agentplane.engine.admission import Admission, Wanted, admit
from agentplane.engine.delivery import Delivered
from agentplane.engine.executor import Capabilities
from agentplane.engine.nurseries import Parts, running
from agentplane.engine.observer import Observe, silent
from agentplane.engine.scheduling import Schedule
from agentplane.engine.secrets import Secrets
from agentplane.engine.strict import Verdict, replay_strict
from agentplane.engine.sweep import EVERY_S
from agentplane.engine.worklist import Worklist
from agentplane.engine.world import World
from agentplane.journal import lists
from agentplane.journal.lock import Patience
from agentplane.journal.store import Identity, Store
from agentplane.journal.tx import Tx
from agentplane.work import tasks
from agentplane.work.tasks import TaskRow

T = TypeVar("T")
ROOM_TICK_S = 1.0


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What ``run`` answers: the run, its status now, its output or why it has none."""

    run: str
    status: str
    admitted: bool = True
    output: object = None
    reason: str | None = None
    code: str | None = None


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


class Plane:
    """An opened plane. Made by ``Plane.open``; used from its own trio loop."""

    def __init__(self, store: Store, world: World, parts: Parts, people: Mapping[str, Sequence[str]]) -> None:
        self.store = store
        self.world = world
        self.writer = parts.writer
        self.runs = parts.runs
        self.recovery = parts.recovery
        self.sweep = parts.sweep
        self.delivery = parts.delivery
        self.worklist = Worklist(parts.delivery.waker, people)
        self.state = parts.state
        self.clock = parts.clock
        self.draining = False
        self.max_admitted = bounds.MAX_ADMITTED
        self.started_ms = world.now_ms()

    @classmethod
    @asynccontextmanager
    async def open(
        cls, path: str | os.PathLike[str], *, skills: Iterable[Skill | PlanTemplate] = (), tenant: str = "default",
        settings: Mapping[str, Any] | None = None, secrets: str | os.PathLike[str] | None = None, recover: bool = True,
        create: bool = True, guard_steps: bool = False, observe: Observe = silent,
        owner: str | None = None, state: str = "cli", socket: str | None = None, now_ms: Callable[[], int] = wall_ms,
        lease_ttl_s: float = bounds.LEASE_TTL_S, max_running: int = bounds.MAX_RUNNING, vfs: str | None = None,
        currency: str = "EUR", schedules: Sequence[Schedule] = (), people: Mapping[str, Sequence[str]] | None = None,
        event_kept_s: int = bounds.EVENT_KEPT_S, boot_ms: Callable[[], int] | None = None,
        sweep_every_s: float = EVERY_S, patience: Patience | None = None,
    ) -> AsyncIterator[Plane]:  # fmt: skip
        """Open the store at ``path`` for writing, at the level that it is at, and run what it holds.

        ``recover`` False leaves abandoned runs alone (a verb with the plane down). ``patience``: how long a holder that
        drains is waited for. Raises StoreLocked, StoreUnfit, StoreLevel, JournalCorrupt; StoreFailed later, when the
        disk fails under it.
        """
        opening = uuid.uuid4().hex
        identity = Identity(
            opening=opening,
            owner=owner or f"{os.uname().nodename}:{os.getpid()}:{opening[:8]}",
            build=__version__,
            now_ms=now_ms(),
            new_incarnation=uuid.uuid4().hex,
            state=state,
            socket=socket,
        )
        table = by_name(skills)
        if guard_steps:
            guard.install()
        if patience is not None:
            patience = msgspec.structs.replace(patience, now_ms=now_ms)
        store = await trio.to_thread.run_sync(
            lambda: Store.open(Path(path), tenant, identity, create=create, vfs=vfs, patience=patience)
        )
        try:
            world = World(
                now_ms=now_ms, settings=settings, secrets=Secrets(Path(secrets) if secrets else None), observe=observe,
                currency=currency, boot_ms=boot_ms,
            )  # fmt: skip
            async with running(
                store, table, world, recover=recover, lease_ttl_s=lease_ttl_s, max_running=max_running,
                schedules=schedules, kept_s=event_kept_s, every_s=sweep_every_s,
            ) as parts:  # fmt: skip
                yield cls(store, world, parts, people or {})
        finally:
            store.close()

    # --- work --------------------------------------------------------------------------------------------------------

    async def start(self, wanted: Wanted) -> Admission:
        """Admit work and begin it; durable when this returns. Raises the gates' refusals, in their order."""
        if self.draining:
            raise Draining("The plane is draining; the next process will take this under the same key.")
        if self.state.held is not None:
            raise Held(f"The store was restored ({self.state.held}) and is held; nothing is admitted.")
        # Cut between the commit and the beginning, a run would stand admitted with nobody to execute it.
        with trio.CancelScope(shield=True):
            admission, _ = await admit(self.runs, wanted, max_admitted=self.max_admitted)
        return admission

    async def run(self, capability: str, input: object = None, *, key: str | None = None, actor: Actor | None = None,
                  wait_s: float | None = None, budget: Mapping[str, int] | None = None, plan: object = None,
                  correlate: Mapping[str, str] | None = None) -> Outcome:  # fmt: skip
        """Start, and wait until the run has left this process (at most ``wait_s``). Raises what ``start`` raises.

        ``budget`` may only narrow what the capability declares; ``plan`` is a plan handed in, as data or a
        ``plan(...)``, in the place of the one that the capability compiles to; ``correlate`` names the case that the
        run joins or opens, by business keys.
        """
        admission = await self.start(Wanted(
            capability=capability, input=input, key=key, actor=actor, budget=None if budget is None else dict(budget),
            plan=plan, correlate=None if correlate is None else dict(correlate),
        ))  # fmt: skip
        with trio.move_on_after(float("inf") if wait_s is None else wait_s):
            await self.runs.wait_for(admission.run)
        outcome = await self.outcome(admission.run)
        return msgspec.structs.replace(outcome, admitted=admission.admitted)

    async def deliver(
        self, kind: str, payload: object, *, id: str, correlation: Mapping[str, str], source: str, producer: str = ""
    ) -> Delivered:
        """Take in an event from ``source``, the authenticated deliverer. Raises InvalidEvent, InvalidInput,
        PayloadTooLarge and Held."""
        event = {"id": id, "kind": kind, "source": producer, "correlation": dict(correlation), "payload": payload}
        try:
            raw = canonical.encode(event if producer else {name: event[name] for name in event if name != "source"})
        except canonical.CanonicalError as error:
            raise InvalidInput(f"The event is not data: {error}.", path=error.path) from None
        return await self.delivery.deliver(parse("application/json", [], raw), source)

    async def tasks(self, limit: int = bounds.LIST_PAGE) -> list[TaskRow]:
        """What waits for a person's decision, the most urgent first."""
        return await self.read(lambda tx: tasks.queue(tx, limit))

    async def outcome(self, run: str) -> Outcome:
        """What the committed rows say of a run. Raises NotFound."""
        return await trio.to_thread.run_sync(lambda: self.store.readers.read(lambda tx: outcome_of(tx, run)))

    @overload
    async def replay(self, run: str, *, strict: Literal[True]) -> Verdict: ...

    @overload
    async def replay(self, run: str, *, strict: Literal[False] = False) -> Outcome: ...

    async def replay(self, run: str, *, strict: bool = False) -> Outcome | Verdict:
        """Walk a run again: strictly (a pure read), or for real, a failed run from its frontier."""
        if strict:
            return await strict_verdict(run, self.store.readers.read, self.runs.skills, self.world)
        return await self._again(acts.take(run, self.owner), run)

    async def reopen(self, run: str, actor: Actor, reason: str) -> Outcome:
        return await self._again(acts.reopen(run, actor, reason, self.owner), run)

    async def retry(self, run: str, actor: Actor, reason: str) -> Outcome:
        return await self._again(acts.retry(run, actor, reason, self.owner), run)

    async def cancel(self, run: str, actor: Actor, reason: str) -> acts.CancelAnswer:
        """Ask a run to stop: heard at its next boundary, or, where it waits, by the sweep. Raises NotApplicable naming
        what forbids it."""
        answer = await self.writer.do(acts.cancel(run, actor, reason, self.owner))
        # Looked for behind the unit: whoever takes the run up meanwhile reads the request, or is found here (P15).
        live = self.runs.live.get(run)
        if live is not None:
            live.cancel = await trio.to_thread.run_sync(
                lambda: self.store.readers.read(lambda tx: lists.cancellation(tx, run))
            )
            live.interrupt()
        self.sweep.kick()
        return answer

    async def raise_ceilings(self, run: str, ceilings: Mapping[str, int], actor: Actor, reason: str) -> Outcome:
        """Give an exhausted run more room and walk it on. Raises BudgetFault and what ``replay`` raises."""
        return await self._again(acts.raise_ceilings(run, ceilings, actor, reason, self.owner), run)

    @property
    def owner(self) -> acts.Owner:
        return acts.Owner(self.runs.owner, self.runs.opening, self.runs.ttl_ms)

    async def _again(self, unit: Callable[[Tx], Any], run: str) -> Outcome:
        capability = (await self.outcome_row(run)).capability
        if capability not in self.runs.skills:
            raise SkillFault(f"This plane does not provide {capability}, which the run {run} needs.")
        if self.draining:
            raise Draining("The plane is draining; the next process will do this.")
        if self.state.paused is not None:
            raise Paused("The plane is paused by an operator; nothing is resumed.")
        if not self.state.may_run(run):
            raise Held(f"The run {run} is held: the store was restored; `agentplane release` lets it go.")
        if run in self.runs.live or self.runs.acting(run):
            raise LeaseHeld(f"The run {run} is executing in this very process (L1).", run=run)
        with trio.CancelScope(shield=True):
            lease = await self.writer.do(unit)
            live = await self.runs.resume(run, lease)
        if live is None:
            raise self.runs.held_out[run]
        await live.ended.wait()
        return await self.outcome(run)

    async def outcome_row(self, run: str) -> lists.RunRow:
        return await trio.to_thread.run_sync(lambda: self.store.readers.read(lambda tx: lists.get_run(tx, run)))

    async def read(self, body: Callable[[Tx], T]) -> T:
        """A read of committed rows, in a thread."""
        return await trio.to_thread.run_sync(lambda: self.store.readers.read(body))

    def begin_recovery(self) -> None:
        """Look for runs to take over and for what is due now: something was let go."""
        self.recovery.kick()
        self.sweep.kick()

    # --- stopping ----------------------------------------------------------------------------------------------------

    def close_admission(self) -> None:
        """Refuse new work from now on (resumes of work that this plane owns go on)."""
        self.draining = True
        # The note is for whoever looks at the lock; a disk that does not take it is no reason not to drain.
        with suppress(StoreFailed):
            self.store.lock.state("draining")

    async def drain(self, grace_s: float = bounds.DRAIN_S, *, park: bool = False) -> list[str]:
        """Close admission and wait for the runs, at most ``grace_s``; the runs that were cut, by name.

        No effect is announced whose timeout does not fit in what is left; ``park`` stops every run at its next
        boundary.
        """
        self.close_admission()
        deadline = trio.current_time() + grace_s
        self.runs.gate.deadline = lambda: deadline - trio.current_time()
        self.runs.gate.parking = park
        self.runs.interrupt_all()
        self.world.observe("drain.began", runs=len(self.runs.live))
        with trio.move_on_after(grace_s):
            await self.runs.wait_idle()
        cut = sorted(self.runs.live)
        for run in cut:
            self.runs.live[run].stop()
        self.world.observe("drain.ended", cut=len(cut))
        return cut


async def strict_verdict(run: str, read: Callable[..., Any], skills: Capabilities, world: World) -> Verdict:
    """Strict replay over any reader of the store, of a plane that is up or down."""
    stored = await trio.to_thread.run_sync(lists.read_history, read, run)

    async def read_blob(digest: bytes) -> object:
        return await trio.to_thread.run_sync(lambda: read(lambda tx: lists.value(tx, digest)))

    return await replay_strict(run, stored, skills, world, read_blob)


def outcome_of(tx: Tx, run: str) -> Outcome:
    """The answer about a run, from committed rows alone (W6)."""
    row = lists.get_run(tx, run)
    output: object = None
    if row.status == "succeeded":
        output = lists.run_output(tx, run)
    return Outcome(run=run, status=row.status, output=output, reason=row.reason, code=row.code)


def by_name(skills: Iterable[Skill | PlanTemplate]) -> dict[str, Skill | PlanTemplate]:
    """Skills and plans by capability; two of one name refuse the plane."""
    table: dict[str, Skill | PlanTemplate] = {}
    for skill in skills:
        if skill.name in table:
            raise SkillFault(f"Two skills provide {skill.name}: {table[skill.name].where} and {skill.where}.")
        if isinstance(skill, Skill) and skill.compensation is Compensation.COMPENSATABLE and skill.undo is None:
            raise SkillFault(
                f"The skill {skill.name} ({skill.where}) says that it can be compensated: write how, under "
                f"`@{skill.body.__name__}.compensate`."
            )
        table[skill.name] = skill
    return table
