"""A unit of writing, and what becomes of it.

Owns the unit's life (waiting, taken, withdrawn) and how a transaction is kept honest around a batch of them
(W3). Refuses to guess: after any error SQLite is asked whether the transaction still stands. Invariant: a
unit is answered exactly once, and only after the commit of its batch (W4).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import apsw

from agentplane.core.errors import AgentplaneError, AtomicRefused, InvariantViolation, StoreFailed
from agentplane.journal.tx import Tx

T = TypeVar("T")


class UnitDefect(AgentplaneError):
    """A unit raised something it did not declare: it was rolled back, and its run is latched (W3)."""


class Unit(Generic[T]):
    """One function over a transaction, and where its answer goes.

    ``deliver(value, error)`` is called on the loop's thread after the commit. ``linger`` False: a rider whose
    run now waits, so that the commit is not held open for it (W8). ``solo``: it has a transaction of its own, behind
    everything queued before it, so that its full disk, interrupt or constraint is nobody else's.
    """

    __slots__ = ("_lock", "_state", "barrier", "body", "deliver", "error", "linger", "run", "size", "solo", "value")

    def __init__(
        self, body: Callable[[Tx], T], deliver: Callable[[T | None, BaseException | None], None], *,
        barrier: bool = True, linger: bool = True, size: int = 0, run: str | None = None, solo: bool = False,
    ) -> None:  # fmt: skip
        self.body = body
        self.deliver = deliver
        self.barrier = barrier
        self.linger = linger
        self.size = size
        self.run = run
        self.solo = solo
        self.value: T | None = None
        self.error: BaseException | None = None
        self._state = "waiting"
        self._lock = threading.Lock()

    def take(self) -> bool:
        """The writer's claim on the unit; False when it was withdrawn."""
        with self._lock:
            if self._state != "waiting":
                return False
            self._state = "taken"
            return True

    def withdraw(self) -> bool:
        """The asker's claim; False when the writer has it already (P13)."""
        with self._lock:
            if self._state != "waiting":
                return False
            self._state = "withdrawn"
            return True

    def answer(self) -> None:
        self.deliver(self.value, self.error)


def run_in_savepoint(unit: Unit[T], tx: Tx) -> StoreFailed | None:
    """Run a taken unit inside a savepoint of the open transaction; the error that must poison the writer, or
    None.

    A declared refusal is rolled back to the savepoint and the batch goes on; anything undeclared is a defect
    of that unit. An error after which the transaction is gone (interrupt, full disk, no memory) or that comes
    from the disk poisons.
    """
    connection = tx.connection
    try:
        connection.execute("SAVEPOINT unit")
        unit.value = unit.body(tx)
        connection.execute("RELEASE unit")
        return None
    except AgentplaneError as error:
        unit.error = error
    except apsw.Error as error:
        if not connection.in_transaction or not isinstance(error, _HARMLESS):
            unit.error = failed = store_failed(error)
            return failed
        unit.error = _defect(error)
    except BaseException as error:
        # A defect of this unit only, whatever it raised (a stop included): its run latches on the answer.
        # Doubt is not lost: nothing of it was written.
        unit.error = _defect(error)
    return _roll_back(unit, connection)


def _roll_back(unit: Unit[T], connection: apsw.Connection) -> StoreFailed | None:
    try:
        if connection.in_transaction:
            connection.execute("ROLLBACK TO unit")
            connection.execute("RELEASE unit")
            return None
        failed = StoreFailed("SQLite rolled the whole transaction back under a unit.")
    except apsw.Error as error:
        failed = store_failed(error)
    unit.error = failed
    return failed


def run_alone(unit: Unit[T], tx: Tx, last: Callable[[], object]) -> AgentplaneError | None:
    """Run a taken solo unit in the transaction that was begun for it, ``last`` behind it, and commit; the error that
    must poison the writer, or None.

    Its transaction is its own: whatever it was refused with, and a full disk, an interrupt or a constraint in it or at
    its COMMIT, is rolled back and is its own answer. What only an open can judge poisons as ever.
    """
    connection = tx.connection
    try:
        unit.value = unit.body(tx)
    except AgentplaneError as error:
        unit.error = error
    except apsw.Error as error:
        if not isinstance(error, (*_OWN, apsw.NoMemError, *_HARMLESS)):
            return _fail(unit, error)
        unit.error = _refused(error) if isinstance(error, (*_OWN, apsw.NoMemError)) else _defect(error)
    except BaseException as error:
        unit.error = _defect(error)
    try:
        if unit.error is None:
            last()
            connection.execute("COMMIT")
            return None
    except _OWN as error:
        # SQLite writes the frame that commits last of all, and calls the disk full before that frame is whole. Memory
        # is not of these: it may be short behind that frame, when the next open would find the commit.
        unit.error = _refused(error)
    except apsw.Error as error:
        return _fail(unit, error)
    unit.value = None
    try:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    except apsw.Error as error:
        return _fail(unit, error)
    if connection.in_transaction:
        return _fail(unit, apsw.Error("the transaction stands after its rollback"))
    # As in a batch: one that names no run is the writer's own.
    return unit.error if unit.run is None and isinstance(unit.error, InvariantViolation) else None


_OWN = (apsw.ConstraintError, apsw.FullError, apsw.InterruptError)
"""What refuses a solo unit, in it or at its COMMIT."""


def _refused(error: apsw.Error) -> AtomicRefused:
    # Not SQLite's own words for a constraint: they name tables, and those of a trigger are content.
    why = {apsw.ConstraintError: "a constraint does not hold", apsw.FullError: "the disk is full",
           apsw.InterruptError: "it was interrupted"}.get(type(error), "memory is short")  # fmt: skip
    return AtomicRefused(f"Nothing of the transaction stands: {why}.")


def _fail(unit: Unit[T], error: apsw.Error) -> StoreFailed:
    unit.value, unit.error = None, (failed := store_failed(error))
    return failed


_HARMLESS = (
    apsw.ConstraintError,
    apsw.SQLError,
    apsw.MismatchError,
    apsw.RangeError,
    apsw.TooBigError,
    apsw.BindingsError,
)


def store_failed(error: BaseException) -> StoreFailed:
    return StoreFailed(f"The store cannot be written any more: {type(error).__name__}: {error}.")


def _defect(error: BaseException) -> UnitDefect:
    return UnitDefect(f"A unit failed with {type(error).__name__}: {error}.")
