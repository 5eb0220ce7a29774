"""Every run that executes in this process.

Owns the nursery of runs, their bound, the renewal of their leases and who waits for them. Refuses to take a run that is
live already (L1). Invariant: a run is in ``live`` from the moment its lease is ours until nothing of it executes any
more.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TypeVar

import trio

from agentplane.authoring.sql import SqlDescription
from agentplane.core import bounds
from agentplane.core.effects import origin
from agentplane.core.errors import AgentplaneError, AnswerLost, Fenced, JournalCorrupt, LeaseNotHeld, StoreFailed
from agentplane.core.history import History, read_all
from agentplane.core.records import RunConcluded, Undecided
from agentplane.engine.execute import drive
from agentplane.engine.executor import Capabilities
from agentplane.engine.linking import link
from agentplane.engine.live import Gate, LiveRun
from agentplane.engine.runlog import RunLog
from agentplane.engine.unwind import End
from agentplane.engine.world import World
from agentplane.journal import appends, atomic, leases, lists, rows
from agentplane.journal.appends import Head
from agentplane.journal.leases import Lease
from agentplane.journal.store import Store
from agentplane.journal.tx import Tx
from agentplane.journal.writer import WriterLike

T = TypeVar("T")
_OURS_TO_LOSE = (Fenced, LeaseNotHeld, StoreFailed)


class Runs:
    """The registry. ``nursery`` is the plane's nursery of runs; ``ttl_s`` the lease's time to live."""

    def __init__(
        self, store: Store, writer: WriterLike, world: World, skills: Capabilities, nursery: trio.Nursery, *,
        owner: str, opening: str, ttl_s: float = bounds.LEASE_TTL_S, max_running: int = bounds.MAX_RUNNING,
    ) -> None:  # fmt: skip
        leases.check_ttl(ttl_s)
        self.store = store
        self.writer = writer
        self.world = world
        self.skills = skills
        self.owner = owner
        self.opening = opening
        self.ttl_ms = round(ttl_s * 1000)
        self.gate = Gate()
        self.live: dict[str, LiveRun] = {}
        self.held_out: dict[str, AgentplaneError] = {}
        self.parked: list[str] = []
        self.dropped: dict[str, str] = {}
        self.on_end: Callable[[str, End], None] | None = None
        self.on_suspend: Callable[[], None] = lambda: None
        self._nursery = nursery
        self._slots = trio.Semaphore(max_running)
        self._idle = trio.Event()
        self._idle.set()

    # --- starting ----------------------------------------------------------------------------------------------------

    def begin(self, run: str, lease: Lease, history: History, head: Head, *, restored: bool = False) -> LiveRun:
        """Take a run whose lease is ours into execution; it waits for a slot in the order of these calls."""
        world = self.world
        live: LiveRun

        def on_latch(_: AgentplaneError) -> None:
            live.stop()

        log = RunLog(
            run, lease, history, head, self.writer, world.now_ms, on_latch=on_latch, secrets=world.secrets.handed_out
        )
        admitted = history.admitted
        first = bytes.fromhex(admitted.origin) if admitted is not None else origin(self.store.tenant, run, None)
        live = LiveRun(run, log, history, world, self.gate, restored=restored, origin=first)
        live.check_room = self.store.room.announce
        live.check_sql = self._check_sql
        live.read_blob = self._read_blob
        live.read = self.read
        self.live[run] = live
        self._idle = trio.Event() if self._idle.is_set() else self._idle
        self._nursery.start_soon(self._one, live)
        return live

    async def resume(self, run: str, lease: Lease) -> LiveRun | None:
        """Read a run's history and take it into execution; None when its records cannot be trusted (it is held out)."""
        try:
            stored, row, cancel = await trio.to_thread.run_sync(self._read_run, run)
            history = read_all(run, (item.record for item in stored))
        except JournalCorrupt as error:
            self.held_out[run] = error
            return None
        last = stored[-1] if stored else None
        head = Head() if last is None else Head(last.record.seq, last.hash, last.record.case)
        restored = row.incarnation != self.world.incarnation
        live = self.begin(run, lease, history, head, restored=restored)
        live.cancel = cancel
        if cancel is None:
            # Asked between that read and this registration, nobody else would tell the run.
            found = await trio.to_thread.run_sync(
                lambda: self.store.readers.read(lambda tx: lists.cancellation(tx, run))
            )
            if found is not None:
                live.cancel = found
                live.interrupt()
        return live

    def _read_run(self, run: str) -> tuple[list[lists.Stored], lists.RunRow, lists.Cancel | None]:
        read = self.store.readers.read
        row, cancel = read(lambda tx: (lists.get_run(tx, run), lists.cancellation(tx, run)))
        return lists.read_history(read, run), row, cancel

    def _check_sql(self, statement: SqlDescription) -> None:
        self.store.readers.read(lambda tx: atomic.check(statement, tx))

    async def read(self, body: Callable[[Tx], T]) -> T:
        """A read of committed rows, in a thread."""
        return await trio.to_thread.run_sync(lambda: self.store.readers.read(body))

    async def _read_blob(self, digest: bytes) -> object:
        return await trio.to_thread.run_sync(lambda: self.store.readers.read(lambda tx: lists.value(tx, digest)))

    async def _one(self, live: LiveRun) -> None:
        end = End(outcome="cut")
        try:
            async with self._slots:
                end = await drive(live, self.skills, self.writer)
                if end.outcome == "dropped":
                    await self._dropped(live, end)
        except StoreFailed:
            end = End(outcome="dropped", reason="the store failed")
        except Exception as error:
            # A defect of ours in this run (W9): it is set aside and named, its neighbours go on. Nothing is guessed:
            # an announcement that stands without an outcome stays one.
            end = End(outcome="dropped", reason=f"{type(error).__name__} in the engine", code="invariant")
            await self._set_aside(live, self._defect(error))
        finally:
            self._ended(live, end)

    async def _dropped(self, live: LiveRun, end: End) -> None:
        """W7, W9: a run whose record was refused is left to its new owner, or quarantined when it broke an
        invariant."""
        error = live.log.latched
        if error is None or isinstance(error, _OURS_TO_LOSE):
            return
        code = error.row.code if isinstance(error, AnswerLost) else "invariant"
        await self._set_aside(live, error.message, code)

    async def _set_aside(self, live: LiveRun, reason: str, code: str = "invariant") -> None:
        # No lease is freed while an act of the run still runs in a thread (P5).
        for call, ended in list(self.world.threads.items()):
            if getattr(call, "run", None) == live.run:
                await ended.wait()
        try:
            await self.writer.do(lambda tx: self.quarantine(tx, live.log.lease, reason, code))
        except AgentplaneError as refused:
            self.held_out[live.run] = refused
        else:
            self.world.observe("run.quarantined", run=live.run, code=code)

    def _defect(self, error: BaseException) -> str:
        """One sentence of a defect: what was raised and where, never a value."""
        while isinstance(error, BaseExceptionGroup) and error.exceptions:
            error = error.exceptions[0]
        if isinstance(error, AgentplaneError):
            return error.message
        frames = traceback.extract_tb(error.__traceback__)
        place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        return f"the engine met {type(error).__name__}{place}"

    def quarantine(self, tx: Tx, lease: Lease, reason: str, code: str, doubts: list[Undecided] | None = None) -> None:
        """Conclude a run as quarantined on its stored head, and free its lease: for what its own log cannot write."""
        run = lease.run
        head = rows.head_of(tx, run)
        members: dict[str, object] = {
            "outcome": "quarantined", "reason": reason[: bounds.TEXT_CHARS_MAX], "code": code,
            "undecided": doubts or [],
        }  # fmt: skip
        appends.append(tx, run, lease.epoch, head, link(run, lease.epoch, head, [(RunConcluded, members)], tx.now_ms))
        leases.release(tx, lease)

    def _ended(self, live: LiveRun, end: End) -> None:
        self.live.pop(live.run, None)
        if end.outcome == "parked":
            self.parked.append(live.run)
            self.world.observe("run.parked", run=live.run)
        elif end.outcome in ("dropped", "cut"):
            self.dropped[live.run] = end.reason or end.outcome
            self.world.observe("run.dropped", run=live.run)
        live.ended.set()
        if end.outcome == "suspended":
            self.on_suspend()
        if self.on_end is not None:
            self.on_end(live.run, end)
        if not self.live:
            self._idle.set()

    # --- while it runs -----------------------------------------------------------------------------------------------

    async def renew_forever(self) -> None:
        """Renew every live lease in one unit, three times a TTL, on the monotonic clock (L1)."""
        period_s = self.ttl_ms / 1000 / bounds.RENEWALS_PER_TTL
        while True:
            await trio.sleep(period_s)
            await self.renew_once()

    async def renew_once(self) -> None:
        for live in self.live.values():
            live.log.flush()
        held = {live.log.lease: live for live in self.live.values()}
        if not held:
            return
        gone = await self.writer.do(lambda tx: leases.renew_all(tx, list(held), self.ttl_ms))
        for lease in gone:
            live = held[lease]
            if self.live.get(live.run) is live and live.log.lease == lease and not live.ended.is_set():
                if await self._still_lost(lease):
                    live.stop()

    async def _still_lost(self, lease: Lease) -> bool:
        """A run may have released its lease between the list and the renewal; only another owner's epoch stops it."""
        now = await self.writer.do(lambda tx: leases.holder(tx, lease.run))
        return now is not None and now.epoch != lease.epoch

    def acting(self, run: str) -> bool:
        """Whether an act of the run still runs in a thread that nobody waits for any more."""
        return any(
            getattr(call, "run", None) == run and not ended.is_set() for call, ended in self.world.threads.items()
        )

    def interrupt_all(self) -> None:
        for live in self.live.values():
            live.interrupt()

    async def wait_idle(self) -> None:
        while self.live:
            await self._idle.wait()

    async def wait_for(self, run: str) -> None:
        """Return when ``run`` does not execute here any more."""
        live = self.live.get(run)
        if live is not None:
            await live.ended.wait()
