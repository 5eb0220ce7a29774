"""The one writer: a thread that owns the connection, a queue, and group commit.

Owns the order of all writing (W1), the linger (W8), and fail-stop (W9). Refuses everything after an error
from commit. Invariant: every commit holds a prefix of the queue, a solo unit is one by itself, and no answer leaves
before the commit that holds it (W4, W6).

Why a thread of our own and not ``to_thread``: it lives as long as the plane, it must drain its queue after
the loop's tasks are cancelled, and a worker of trio's pool may not be waited for without a deadline. Why one
queue without lanes: any unit that overtakes another could make a record durable before one it depends on.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

import apsw
import outcome
import trio

from agentplane.core import bounds
from agentplane.core.errors import AgentplaneError, InvariantViolation, StoreBusy, StoreFailed
from agentplane.journal.tx import Tx
from agentplane.journal.units import Unit, run_alone, run_in_savepoint, store_failed

T = TypeVar("T")
Observe = Callable[..., None]


def _silent(point: str, **fields: object) -> None:
    """The observer of a plane that nobody watches."""


class WriterLike(Protocol):
    """What the engine writes through: the threaded writer, or the inline one of tests with a stopped
    clock."""

    @property
    def poisoned(self) -> AgentplaneError | None: ...

    def submit(self, unit: Unit[T]) -> None: ...

    async def do(self, body: Callable[[Tx], T], *, run: str | None = None, solo: bool = False) -> T: ...


class Writer:
    """Group commit over one APSW connection.

    ``now_ms`` is the store's clock. ``on_poison`` is called once, on the loop's thread, with the error that
    stopped it. ``open_connection`` is called on the writer's thread, so that the connection never leaves it.
    """

    def __init__(
        self,
        open_connection: Callable[[], apsw.Connection],
        tenant: str,
        now_ms: Callable[[], int],
        *,
        observe: Observe = _silent,
        on_poison: Callable[[AgentplaneError], None] | None = None,
        before_commit: Callable[[Tx], None] | None = None,
        after_commit: Callable[[apsw.Connection], None] | None = None,
        linger_us: int = bounds.LINGER_MAX_US,
    ) -> None:
        self._open = open_connection
        self._tenant = tenant
        self._now_ms = now_ms
        self._observe = observe
        self._before_commit = before_commit
        self._after_commit = after_commit
        self._linger_s = linger_us / 1_000_000
        self._queue: queue.SimpleQueue[Unit[object] | None] = queue.SimpleQueue()
        self._answers = _Answers(on_poison)
        self._thread = threading.Thread(target=self._main, name="agentplane-writer", daemon=True)
        self._ended = threading.Event()
        self._closed = trio.Event()
        self._closing = False
        self._met_end = False
        self._next: Unit[object] | None = None
        self.commits = 0
        self._oldest: float | None = None

    @property
    def poisoned(self) -> AgentplaneError | None:
        """The error after which nothing is written any more (W9)."""
        return self._answers.poisoned

    # --- the loop's side --------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def submit(self, unit: Unit[T]) -> None:
        """Queue a unit. After ``close`` or poison it is answered with StoreFailed, never dropped."""
        self._queue.put(unit)  # type: ignore[arg-type]
        if self._ended.is_set():
            self._refuse_rest()

    async def do(self, body: Callable[[Tx], T], *, run: str | None = None, solo: bool = False) -> T:
        """Queue ``body`` as a barrier and wait for its answer; raises what the unit was answered with.

        Cancelled while it waits, the unit is withdrawn, or, when the writer has it, left to be committed
        unanswered.
        """
        task = trio.lowlevel.current_task()
        waiting = True

        def deliver(value: T | None, error: BaseException | None) -> None:
            if waiting:
                trio.lowlevel.reschedule(task, outcome.Value(value) if error is None else outcome.Error(error))

        unit: Unit[T] = Unit(body, deliver, run=run, solo=solo)

        def abort(_: object) -> trio.lowlevel.Abort:
            nonlocal waiting
            waiting = False
            unit.withdraw()
            return trio.lowlevel.Abort.SUCCEEDED

        self.submit(unit)
        return await trio.lowlevel.wait_task_rescheduled(abort)  # type: ignore[no-any-return]

    def oldest_unit_age_s(self) -> float:
        """Seconds since the batch in hand was begun, 0.0 when the writer is idle: what a watchdog asks."""
        oldest = self._oldest
        return 0.0 if oldest is None else time.monotonic() - oldest

    async def close(self, flush_s: float = bounds.FLUSH_MAX_S) -> bool:
        """Commit what is queued, at most ``flush_s``, and close; False when the time was not enough."""
        self._closing = True
        self._queue.put(None)
        if self._thread.ident is None:
            self._ended.set()
            self._refuse_rest()
            return True
        with trio.CancelScope(shield=True):
            with trio.move_on_after(flush_s):
                await self._closed.wait()
        return self._ended.is_set()

    # --- the writer's thread ----------------------------------------------------------------------

    def _main(self) -> None:
        connection: apsw.Connection | None = None
        try:
            try:
                connection = self._open()
            except (apsw.Error, AgentplaneError) as error:
                self._answers.poison(store_failed(error))
            while not self._met_end:
                first, self._next = self._next or self._queue.get(), None
                if first is None:
                    break
                if connection is None or self.poisoned is not None:
                    self._answers.refuse([first])
                elif first.take():
                    self._batch(connection, first)
        finally:
            if connection is not None:
                self._close(connection)
            self._ended.set()
            self._refuse_rest()
            self._answers.on_loop(self._closed.set)

    def _close(self, connection: apsw.Connection) -> None:
        try:
            if self.poisoned is not None:
                # Nobody knows what the disk holds: a checkpoint now could make a lost frame look whole.
                connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            connection.close()
        except apsw.Error as error:
            self._answers.poison(store_failed(error))

    def _batch(self, connection: apsw.Connection, first: Unit[object]) -> None:
        """One commit, and the answers of the units in it."""
        taken = [first]
        self._oldest = time.monotonic()
        try:
            failed = self._begin(connection)
            if failed is None:
                tx = Tx(connection, self._tenant, self._now_ms())
                failed = None if first.solo else self._fill(tx, taken)
                failed = failed or self._commit(connection, tx, taken)
            if isinstance(failed, StoreBusy):
                self._answers.send(taken, failed)
            elif failed is not None:
                self._answers.fail(taken, failed)
            else:
                self._answers.send(taken)
                if self._after_commit is not None:
                    self._after_commit(connection)
        except Exception as error:
            # An observer or a hook failed. The thread must not end with units unanswered, and what the
            # transaction holds is not known to be whole: the plane stops.
            self._answers.fail(taken, InvariantViolation(f"INV-09 the writer met {type(error).__name__}: {error}."))
        finally:
            self._oldest = None

    def _begin(self, connection: apsw.Connection) -> AgentplaneError | None:
        """Open the transaction. A foreign writer is waited for and alarmed (W9), until the journal closes."""
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
                return None
            except apsw.BusyError as error:
                self._observe("writer.busy", seconds=self.oldest_unit_age_s())
                if self._closing:
                    return StoreBusy(f"Another process holds the database: {error}.")
            except apsw.Error as error:
                return store_failed(error)

    def _fill(self, tx: Tx, taken: list[Unit[object]]) -> AgentplaneError | None:
        """Run the first unit and every waiting one behind it, lingering while all of them are riders that
        may."""
        began = self._oldest or time.monotonic()
        size, patient = 0, True
        while True:
            unit = taken[-1]
            failed: AgentplaneError | None = run_in_savepoint(unit, tx)
            if failed is None and unit.run is None and isinstance(unit.error, InvariantViolation):
                failed = unit.error
            if failed is not None:
                return failed
            size += unit.size
            patient = patient and not unit.barrier and unit.linger
            full = len(taken) >= bounds.BATCH_UNITS_MAX or size >= bounds.BATCH_BYTES_MAX
            if full or (time.monotonic() - began) * 1000 >= bounds.BATCH_MS_MAX:
                return None
            following = self._following(began + self._linger_s if patient else 0.0)
            if following is None:
                return None
            taken.append(following)

    def _following(self, until: float) -> Unit[object] | None:
        """The next unit that was not withdrawn, waited for until then; None when there is none, or the queue
        or this batch ends here."""
        while True:
            left = until - time.monotonic()
            try:
                following = self._queue.get(timeout=left) if left > 0 else self._queue.get_nowait()
            except queue.Empty:
                return None
            if following is None:
                self._met_end = True
                return None
            if following.solo:
                # Not taken yet: until its own turn it may still be withdrawn.
                self._next = following
                return None
            if following.take():
                return following

    def _commit(self, connection: apsw.Connection, tx: Tx, taken: list[Unit[object]]) -> AgentplaneError | None:
        """Make the batch durable. A solo unit runs only here, and its own refusal ends nobody else's work."""

        def last() -> None:
            if self._before_commit is not None:
                self._before_commit(tx)
            self._observe("writer.batch", units=len(taken))

        try:
            if taken[0].solo:
                failed = run_alone(taken[0], tx, last)
                if failed is not None or taken[0].error is not None:
                    return failed
            else:
                last()
                connection.execute("COMMIT")
        except apsw.Error as error:
            # W9: whatever it was, nobody knows what the disk holds now. Only an open (which copies and syncs)
            # may say.
            return store_failed(error)
        self.commits += 1
        self._observe("writer.committed", units=len(taken))
        return None

    def _refuse_rest(self) -> None:
        """Answer what nobody will run any more; called by whoever finds the thread ended."""
        rest = [] if self._next is None else [self._next]
        self._next = None
        while True:
            try:
                unit = self._queue.get_nowait()
            except queue.Empty:
                break
            if unit is not None:
                rest.append(unit)
        self._answers.refuse(rest)


class _Answers:
    """How units are answered: on the loop's thread, in the queue's order; and what ended all writing."""

    def __init__(self, on_poison: Callable[[AgentplaneError], None] | None) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._on_poison = on_poison
        self.poisoned: AgentplaneError | None = None

    def on_loop(self, call: Callable[..., object], *args: object) -> None:
        try:
            self._token.run_sync_soon(call, *args)
        except trio.RunFinishedError:
            # The loop is gone; what was committed stands, and nobody is left to be told.
            return

    def send(self, units: list[Unit[object]], error: AgentplaneError | None = None) -> None:
        def answer_all() -> None:
            for unit in units:
                unit.answer()

        for unit in units:
            unit.error = error or unit.error
        self.on_loop(answer_all)

    def fail(self, units: list[Unit[object]], failed: AgentplaneError) -> None:
        """Answer units of a transaction that nobody can vouch for, and let nothing be written after it."""
        self.poison(failed)
        self.send(units, failed)

    def poison(self, failed: AgentplaneError) -> None:
        if self.poisoned is None:
            self.poisoned = failed
            if self._on_poison is not None:
                self.on_loop(self._on_poison, failed)

    def refuse(self, units: list[Unit[object]]) -> None:
        refused = [unit for unit in units if unit.take()]
        self.send(refused, self.poisoned or StoreFailed("The journal is closed."))
