"""A run's own end of its chain: linking, queueing, and linking again after a refusal (W2).

Owns the owner's head, which is ahead of the stored one by what is queued or held. Refuses every record after a refused
rider (W7). Invariant: records are linked in the order in which they are queued, and whatever was queued behind a
refused barrier is linked again on the real head and queued again, in the same order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

from agentplane.core import bounds, canonical
from agentplane.core.errors import (
    AgentplaneError,
    DuplicateEffect,
    Fenced,
    HeadMoved,
    InvariantViolation,
    LandedWork,
    LeaseNotHeld,
    OpenEffects,
    PayloadTooLarge,
    Refusal,
    RunSealed,
)
from agentplane.core.history import History
from agentplane.core.records import Record
from agentplane.engine.headroom import Headroom
from agentplane.engine.linking import Spec, link
from agentplane.engine.stops import Dropped
from agentplane.journal import appends
from agentplane.journal.appends import Head, Linked
from agentplane.journal.leases import Lease
from agentplane.journal.tx import Tx
from agentplane.journal.units import Unit
from agentplane.journal.writer import WriterLike

Extra = Callable[[Tx], object]


class SecretInRecord(AgentplaneError):
    """A record's bytes contain a secret that was handed out: refused before it is written."""


UNRECORDABLE = (SecretInRecord, PayloadTooLarge, canonical.CanonicalError)
"""What records are refused with before they are queued, for what is in them."""


class _Entry:
    """Records queued as one unit: made again with other numbers when they must be linked again."""

    __slots__ = (
        "after",
        "at_ms",
        "barrier",
        "blobs",
        "done",
        "error",
        "extra",
        "head",
        "linger",
        "linked",
        "needs",
        "size",
        "solo",
        "specs",
        "unit",
        "waiter",
    )  # fmt: skip

    def __init__(self, specs: list[Spec], at_ms: int, *, barrier: bool, linger: bool, extra: Extra | None,
                 blobs: dict[bytes, bytes]) -> None:  # fmt: skip
        self.specs = specs
        self.at_ms = [at_ms] * len(specs)
        self.barrier = barrier
        self.linger = linger
        self.extra = extra
        self.after: Extra | None = None
        self.solo = False
        self.blobs = blobs
        self.linked: tuple[Linked, ...] = ()
        self.head = Head()
        self.size = 0
        self.done = False
        self.waiter: trio.lowlevel.Task | None = None
        self.error: BaseException | None = None
        self.unit: Unit[Head] | None = None
        self.needs: _Entry | None = None

    def end(self, error: BaseException | None) -> None:
        """It is known what became of it; whoever waits is told."""
        self.error = error
        self.done = True
        waiter, self.waiter = self.waiter, None
        if waiter is not None:
            trio.lowlevel.reschedule(waiter)

    async def wait(self) -> None:
        """Until ``end``; one task at most. Cancelled, it waits no more."""
        self.waiter = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            self.waiter = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)


class RunLog:
    """The only writer of one run in this process, for as long as it holds ``lease``.

    ``on_latch`` is called once when nothing more of the run may be written.
    """

    def __init__(
        self, run: str, lease: Lease, history: History, head: Head, writer: WriterLike, now_ms: Callable[[], int], *,
        on_latch: Callable[[AgentplaneError], None], secrets: Callable[[], tuple[bytes, ...]] = lambda: (),
    ) -> None:  # fmt: skip
        self.run = run
        self.lease = lease
        self.history = history
        self.latched: AgentplaneError | None = None
        self.appended = 0
        self.on_progress: Callable[[], None] | None = None
        self._head = head
        self._stored = head
        self._writer = writer
        self._now_ms = now_ms
        self._on_latch = on_latch
        self._secrets = secrets
        self._queued: deque[_Entry] = deque()
        self._relinking = False
        self._quiet: trio.Event | None = None
        self._records = 0
        self._bytes = 0
        self._held: _Entry | None = None
        self._headroom = Headroom(self._fits)

    @property
    def uncommitted(self) -> int:
        """Records of this run that are not known to be committed."""
        return self._records

    # --- appending ---------------------------------------------------------------------------------------------------

    def ride(self, *records: Spec, linger: bool = True, held: bool = False,
             blobs: dict[bytes, bytes] | None = None) -> list[Record]:  # fmt: skip
        """Queue a rider: durable with, or before, the next act of the run. Returns the records as linked (W5).

        ``held``: nothing outside knows of it, and lost it is made again, so that it wakes no writer: it waits here for
        whatever of the run is queued next, or for ``flush``. Raises Dropped when the run is latched, PayloadTooLarge or
        SecretInRecord before anything is queued.
        """
        if held and not blobs and not self._relinking:
            return self._hold(records)
        entry = self._entry(records, barrier=False, linger=linger, extra=None, blobs=blobs)
        self._put(entry)
        records_linked = [item.record for item in entry.linked]
        for record in records_linked:
            self.history.add(record)
        return records_linked

    async def barrier(self, *records: Spec, extra: Extra | None = None,
                      blobs: dict[bytes, bytes] | None = None, after: Extra | None = None,
                      undone: Callable[[], Spec] | None = None, solo: bool = False) -> list[Record]:  # fmt: skip
        """Queue records and wait for the commit that holds them, and everything queued before them.

        ``extra`` runs in the same unit before the append: a gate judged there raises a Refusal, which comes back here;
        ``after`` runs in it behind the append. Cancelled before the writer has it, the unit is withdrawn when nothing
        is queued behind it; else what ``undone`` makes is queued, the one record that a cancellation may cause (P13).
        ``solo``: the unit gets a transaction of its own.
        """
        entry = self._entry(records, barrier=True, linger=False, extra=extra, blobs=blobs)
        entry.after = after
        entry.solo = solo
        self._put(entry)
        if not entry.done:
            try:
                await entry.wait()
            except trio.Cancelled:
                if undone is not None and self.latched is None and not self._withdraw(entry):
                    self._undo(entry, undone())
                raise
        if entry.error is not None:
            raise entry.error
        return [item.record for item in entry.linked]

    def _hold(self, records: tuple[Spec, ...]) -> list[Record]:
        entry = self._entry(records, barrier=False, linger=True, extra=None, blobs=None)
        fresh = entry.linked
        held = self._held
        if held is None:
            self._held = entry
            self._queued.append(entry)
        else:
            held.specs += entry.specs
            held.at_ms += entry.at_ms
            held.linked += fresh
            held.size += entry.size
        self._count(entry, 1)
        self._head = Head(fresh[-1].record.seq, fresh[-1].hash, fresh[-1].record.case)
        for item in fresh:
            self.history.add(item.record)
        full = len((self._held or entry).linked) >= bounds.HELD_MAX or self._bytes >= bounds.RIDER_BYTES_MAX // 2
        if full or self._quiet is not None:
            self.flush()  # nothing is held back from somebody who waits for all of it
        return [item.record for item in fresh]

    def flush(self) -> None:
        """Hand the writer what was held."""
        held, self._held = self._held, None
        if held is not None and self.latched is None and not self._relinking:
            self._submit(held)

    async def settle(self) -> None:
        """Wait until nothing of this run is uncommitted; raises Dropped when it was refused."""
        self.flush()
        while self._queued and self.latched is None:
            if self._quiet is None:
                self._quiet = trio.Event()
            await self._quiet.wait()
        self._check()

    async def room(self) -> None:
        """Wait while an effect's two records would be more than the run may have uncommitted (W8)."""
        if self._headroom.is_free():
            return
        self.flush()
        await self._headroom.wait()
        self._check()

    # --- inside ------------------------------------------------------------------------------------------------------

    def _fits(self, given: int) -> bool:
        return self._records + 2 * (given + 1) <= bounds.RIDERS_MAX and self._bytes < bounds.RIDER_BYTES_MAX

    def _check(self) -> None:
        if self.latched is not None:
            raise Dropped(self.latched)

    def _entry(self, records: tuple[Spec, ...], *, barrier: bool, linger: bool,
               extra: Extra | None, blobs: dict[bytes, bytes] | None) -> _Entry:  # fmt: skip
        self._check()
        entry = _Entry(list(records), self._now_ms(), barrier=barrier, linger=linger, extra=extra, blobs=blobs or {})
        self._link(entry, self._head)
        return entry

    def _undo(self, entry: _Entry, undone: Spec) -> None:
        """P13: the writer has the announcement, so its outcome stands behind it; refused together, neither is
        written."""
        if entry.done:
            if entry.error is None:
                self.ride(undone, linger=False)
            return
        late = self._entry((undone,), barrier=False, linger=False, extra=None, blobs=None)
        late.needs = entry
        self._put(late)

    def _link(self, entry: _Entry, head: Head) -> None:
        """Link, or link again with other numbers, behind ``head``; raises before anything is queued."""
        linked = link(self.run, self.lease.epoch, head, entry.specs, entry.at_ms)
        for item in linked:
            for secret in self._secrets():
                if secret in item.body:
                    raise SecretInRecord(f"A {type(item.record).__name__} record holds a secret that was handed out.")
        entry.head = head
        entry.linked = linked
        entry.size = sum(len(item.body) for item in linked)

    def _put(self, entry: _Entry) -> None:
        self.flush()
        self._queued.append(entry)
        self._count(entry, 1)
        last = entry.linked[-1]
        self._head = Head(last.record.seq, last.hash, last.record.case)
        if not self._relinking:
            self._submit(entry)

    def _submit(self, entry: _Entry) -> None:
        linked, extra, after, blobs = entry.linked, entry.extra, entry.after, entry.blobs
        run, epoch, head = self.run, self.lease.epoch, entry.head

        def body(tx: Tx) -> Head:
            if extra is not None:
                extra(tx)
            at = appends.append(tx, run, epoch, head, linked, blobs)
            if after is not None:
                after(tx)
            return at

        def deliver(value: Head | None, error: BaseException | None) -> None:
            self._answered(entry, value, error)

        entry.unit = Unit(body, deliver, barrier=entry.barrier, linger=entry.linger, size=entry.size, run=run,
                          solo=entry.solo)  # fmt: skip
        self._writer.submit(entry.unit)

    def _answered(self, entry: _Entry, value: Head | None, error: BaseException | None) -> None:
        """On the loop's thread, in the order of the queue."""
        entry.unit = None
        if error is None and value is not None:
            self._stored = value
            if entry.barrier or entry.needs is not None:
                for item in entry.linked:
                    self.history.add(item.record)
            self._finish(entry, None)
            self.appended += len(entry.linked)
            if self.on_progress is not None and any(appends.is_progress(item.record) for item in entry.linked):
                self.on_progress()
        elif isinstance(error, Refusal) and entry.barrier and not isinstance(error, HeadMoved) and not _fatal(error):
            self._finish(entry, error)
            self._relinking = True
        elif not (isinstance(error, HeadMoved) and self._relinking):
            self._latch(error)
        self._relink_when_quiet()
        self._wake()

    def _relink_when_quiet(self) -> None:
        """What stood behind a refused barrier comes back refused, for its head or by the same gate; after the last of
        it all that is left goes again."""
        if not self._relinking or self.latched is not None or any(other.unit is not None for other in self._queued):
            return
        self._relinking = False
        self._head = self._stored
        again = list(self._queued)
        self._queued.clear()
        self._records = self._bytes = 0
        self._held = None
        for other in again:
            if other.needs is not None and other.needs.error is not None:
                continue
            try:
                self._link(other, self._head)
            except UNRECORDABLE as error:
                # A secret was handed out since it was made: what stands behind it cannot stand without it.
                self._latch(error)
                return
            self._put(other)

    def _count(self, entry: _Entry, sign: int) -> None:
        self._records += sign * len(entry.linked)
        self._bytes += sign * entry.size

    def _finish(self, entry: _Entry, error: BaseException | None) -> None:
        if entry in self._queued:
            self._queued.remove(entry)
            self._count(entry, -1)
        entry.end(error)

    def _latch(self, error: BaseException | None) -> None:
        """W7: nothing more of this run is written by us; it is left to recovery."""
        if self.latched is not None:
            return
        cause = (
            error
            if isinstance(error, AgentplaneError)
            else InvariantViolation(f"INV-07 a unit was answered {error!r}.")
        )
        self.latched = cause
        while self._queued:
            entry = self._queued.popleft()
            entry.end(Dropped(cause))
        self._headroom.let_through(everybody=True)
        self._on_latch(cause)

    def _withdraw(self, entry: _Entry) -> bool:
        if not self._queued or self._queued[-1] is not entry:
            return False
        if entry.unit is not None and not entry.unit.withdraw():
            return False
        self._queued.pop()
        self._count(entry, -1)
        self._head = entry.head
        entry.unit = None
        self._relink_when_quiet()
        self._wake()
        return True

    def _wake(self) -> None:
        self._headroom.let_through(everybody=self.latched is not None)
        if self._quiet is not None and (not self._queued or self.latched is not None):
            self._quiet.set()
            self._quiet = None


def _fatal(error: Refusal) -> bool:
    return isinstance(error, Fenced | LeaseNotHeld | RunSealed | DuplicateEffect | OpenEffects | LandedWork)
