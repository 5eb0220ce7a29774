"""A plane whose journal is written on the loop's own thread, for tests under trio's autojump clock.

Owns the inline writer and the assembly of a plane around it. Refuses to batch: every unit is a commit of its own,
which is the finest grain at which a process can die. Invariant: what is answered was committed, in the order of the
queue, exactly as with the threaded writer.

Why it is needed: the autojump clock takes a loop that waits for a busy thread for an idle one and jumps over every
deadline. So the plane is assembled as always, with the writer and the reads taken out of their threads.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import apsw
import outcome
import trio
from trio.testing import MockClock

from agentplane.core.errors import AgentplaneError, StoreFailed
from agentplane.engine import clockwatch, nurseries
from agentplane.engine import plane as planes
from agentplane.journal.tx import Tx
from agentplane.journal.units import Unit, run_alone, run_in_savepoint, store_failed

T = TypeVar("T")

EPOCH_MS = 1_800_000_000_000
"""What a stopped clock shows at the beginning of its time, ms UTC."""


class InlineWriter:
    """Takes the place of ``journal.writer.Writer``: one commit a unit, on the loop's thread.

    ``refused`` counts the declared errors that units were answered with, by class name.
    """

    def __init__(
        self, open_connection: Callable[[], apsw.Connection], tenant: str, now_ms: Callable[[], int], *,
        observe: Callable[..., None] = lambda point, **fields: None,
        on_poison: Callable[[AgentplaneError], None] | None = None, before_commit: Callable[[Tx], None] | None = None,
        after_commit: Callable[[apsw.Connection], None] | None = None,
    ) -> None:  # fmt: skip
        self._open = open_connection
        self._tenant = tenant
        self._now_ms = now_ms
        self._observe = observe
        self._on_poison = on_poison
        self._before_commit = before_commit
        self._after_commit = after_commit
        self._connection: apsw.Connection | None = None
        self._queue: deque[Unit[Any]] = deque()
        self._token = trio.lowlevel.current_trio_token()
        self._flushing = False
        self.holding = False
        self.poisoned: AgentplaneError | None = None
        self.commits = 0
        self.refused: Counter[str] = Counter()

    def start(self) -> None:
        self._connection = self._open()

    def submit(self, unit: Unit[T]) -> None:
        self._queue.append(unit)
        self._flush_soon()

    async def do(self, body: Callable[[Tx], T], *, run: str | None = None, solo: bool = False) -> T:
        """As the threaded writer's: cancelled while it waits, the unit is withdrawn or committed unanswered."""
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
        return await trio.lowlevel.wait_task_rescheduled(abort)

    def hold(self) -> None:
        """Stop committing: units wait in the queue, as they do behind a slow disk."""
        self.holding = True

    def let_go(self) -> None:
        self.holding = False
        self._flush_soon()

    def take_all(self) -> None:
        """Claim what waits without running it: the writer has the units, and the disk is slow."""
        for unit in self._queue:
            unit.take()

    async def close(self, flush_s: float = 0) -> bool:
        self.holding = False
        self._flush()
        if self._connection is not None:
            if self.poisoned is not None:
                self._connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            self._connection.close()
            self._connection = None
        self.poisoned = self.poisoned or StoreFailed("The journal is closed.")
        return True

    # --- inside ------------------------------------------------------------------------------------------------------

    def _flush_soon(self) -> None:
        if not self._flushing and not self.holding:
            self._flushing = True
            self._token.run_sync_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        while self._queue and not self.holding:
            unit = self._queue.popleft()
            if unit.take() or unit._state == "taken":
                self._commit(unit)
                unit.answer()

    def _commit(self, unit: Unit[Any]) -> None:
        connection = self._connection
        if connection is None or self.poisoned is not None:
            unit.error = self.poisoned or StoreFailed("The journal is closed.")
            return
        try:
            connection.execute("BEGIN IMMEDIATE")
            tx = Tx(connection, self._tenant, self._now_ms())
            if unit.solo:
                failed: AgentplaneError | None = run_alone(unit, tx, partial(self._last, tx))
            else:
                failed = run_in_savepoint(unit, tx)
                if failed is None:
                    self._last(tx)
                    connection.execute("COMMIT")
        except apsw.Error as error:
            failed = store_failed(error)
        if failed is not None:
            unit.error = self.poisoned = failed
            if self._on_poison is not None:
                self._on_poison(failed)
            return
        if unit.error is not None:
            self.refused[type(unit.error).__name__] += 1
            if unit.solo:
                # Rolled back: there was no commit.
                return
        self.commits += 1
        self._observe("writer.committed", units=1)
        if self._after_commit is not None:
            self._after_commit(connection)

    def _last(self, tx: Tx) -> None:
        if self._before_commit is not None:
            self._before_commit(tx)
        self._observe("writer.batch", units=1)


@contextmanager
def on_the_loop() -> Iterator[None]:
    """Within it, planes are assembled with the inline writer, and threads are not used for reading.

    Blocking skills and effects would run on the loop: leave them to planes with their threads.
    """

    async def run_sync(sync_fn: Callable[..., Any], *args: Any, **_: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return sync_fn(*args)

    # Set by name, so that a plane is assembled by the product's own code and by nothing else.
    kept = vars(nurseries)["Writer"], trio.to_thread.run_sync
    setattr(nurseries, "Writer", InlineWriter)  # noqa: B010
    trio.to_thread.run_sync = run_sync  # type: ignore[assignment]
    try:
        yield
    finally:
        setattr(nurseries, "Writer", kept[0])  # noqa: B010
        trio.to_thread.run_sync = kept[1]


def clock_stopped() -> bool:
    """Whether this loop runs under a mock clock."""
    return isinstance(trio.lowlevel.current_clock(), MockClock)


def trio_now_ms() -> int:
    """Wall time that follows the loop's clock, ms UTC."""
    return EPOCH_MS + round(trio.current_time() * 1000)


@contextmanager
def _boot_follows(follows: bool) -> Iterator[None]:
    """Where wall time follows the loop's clock, time since boot does too: else a long sleep is a clock that lies."""
    kept = clockwatch.boot_ms
    if follows:
        vars(clockwatch)["boot_ms"] = lambda: round(trio.current_time() * 1000)
    try:
        yield
    finally:
        vars(clockwatch)["boot_ms"] = kept


@asynccontextmanager
async def open_inline(path: str | Path, **options: Any) -> AsyncIterator[planes.Plane]:
    """``Plane.open`` with the inline writer, and a wall clock that follows trio's unless ``now_ms`` is given."""
    follows = "now_ms" not in options
    options.setdefault("now_ms", trio_now_ms)
    with on_the_loop(), _boot_follows(follows):
        async with planes.Plane.open(path, **options) as plane:
            yield plane
