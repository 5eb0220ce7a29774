"""Stores as a killed process would have left them: copies at a commit, records replanted up to one, and their clock.

Owns the making of a prefix store: its file, and the mark that fits, so that it opens as its own original; and the time
that passes in a world. Refuses to change a record, and to sleep for a clock. Invariant: a copy holds exactly what one
commit made durable; a replanted store holds exactly a prefix of one run's records, with the index that ``appends``
derives from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import msgspec
import trio

from agentplane.core import canonical
from agentplane.core.correlation import keys_from
from agentplane.core.history import AWAIT, TASK, History, Series
from agentplane.core.records import (
    CaseBound,
    EffectDone,
    EffectFailed,
    RunAdmitted,
    RunCancelled,
    RunSuspended,
)
from agentplane.engine import clockwatch, waits
from agentplane.engine.tasking import opening
from agentplane.journal import appends, lists, schema, subscriptions, timers
from agentplane.journal.appends import Head, Linked
from agentplane.journal.lists import Stored
from agentplane.journal.mark import Mark, write_mark
from agentplane.journal.store import connect
from agentplane.journal.tx import Tx, number, text
from agentplane.work import matters, tasks


class Kept(msgspec.Struct, frozen=True):
    """A run as a store holds it."""

    row: lists.RunRow
    stored: list[Stored]


class Moved:
    """The clock of one world: it shows ``at_ms`` (ms UTC) when it is made, goes with the loop's, and moves on when it
    is told to. Wall time and time since boot are one, so that no moment of it is a clock that lies."""

    def __init__(self, at_ms: int) -> None:
        self._at_ms = at_ms
        # The clock itself: the writer asks from its own thread.
        self._loop = trio.lowlevel.current_clock()
        self._began_s = self._loop.current_time()

    def now_ms(self) -> int:
        return self._at_ms + round((self._loop.current_time() - self._began_s) * 1000)

    def move_to(self, instant_ms: int) -> None:
        """Let time pass until ``instant_ms``; an instant that has passed changes nothing."""
        self._at_ms += max(0, instant_ms - self.now_ms())

    @contextmanager
    def since_boot(self) -> Iterator[None]:
        """Within it, time since boot is this clock's."""
        kept = clockwatch.boot_ms
        vars(clockwatch)["boot_ms"] = self.now_ms
        try:
            yield
        finally:
            vars(clockwatch)["boot_ms"] = kept


def copy_store(source: Path, target: Path) -> None:
    """The committed content of a store that may be open, in one step; safe on the writer's own thread."""
    target.parent.mkdir(parents=True, exist_ok=True)
    reader = connect(source, read_only=True)
    copy = apsw.Connection(str(target))
    try:
        copy.pragma("synchronous", "off")
        with copy.backup("main", reader, "main") as backup:
            backup.step(-1)
    finally:
        copy.close()
        reader.close()


def fit_mark(store: Path) -> None:
    """Write the mark that this file's own original would have: it then opens as that, and is not held."""
    connection = connect(store, read_only=True)
    try:
        row = connection.execute("SELECT incarnation, commits FROM store").fetchone()
    finally:
        connection.close()
    if row is None:
        raise ValueError(f"{store} has no row of its own")
    write_mark(store, Mark(text(row[0]), number(row[1]), store.stat().st_ino))


def kept_runs(store: Path, tenant: str = "default") -> dict[str, Kept]:
    """Every run of callers in a closed or open store, with its chain verified against its head."""
    connection = connect(store, read_only=True)
    try:
        tx = Tx(connection, tenant, 0)
        rows = tx.all("SELECT run FROM run WHERE tenant = ? AND own = 0 ORDER BY run", tenant)
        return {
            text(row[0]): Kept(lists.get_run(tx, text(row[0])), lists.whole_history(tx, text(row[0]))) for row in rows
        }
    finally:
        connection.close()


def armed(store: Path, run: str, tenant: str = "default") -> list[timers.Timer]:
    """The run's timers, the earliest first."""
    connection = connect(store, read_only=True)
    try:
        return timers.of_run(Tx(connection, tenant, 0), run)
    finally:
        connection.close()


def leased(store: Path, run: str) -> bool:
    """Whether the run's lease still names an owner."""
    connection = connect(store, read_only=True)
    try:
        row = connection.execute("SELECT owner FROM lease WHERE run = ?", (run,)).fetchone()
    finally:
        connection.close()
    return row is not None and row[0] is not None


def replant(store: Path, stored: list[Stored], *, now_ms: int, incarnation: str = "replanted") -> None:
    """A new store that holds these records of one run, as a process that died behind the last of them would have."""
    store.parent.mkdir(parents=True, exist_ok=True)
    connection = connect(store)
    try:
        first = stored[0].record
        if not isinstance(first, RunAdmitted):
            raise ValueError("the first record of a run is its admission")
        schema.migrate(connection, first.tenant, now_ms, "replanted")
        connection.execute("BEGIN IMMEDIATE")
        tx = Tx(connection, first.tenant, now_ms)
        tx.run(
            "INSERT INTO store (tenant, incarnation, commits, created_ms) VALUES (?, ?, 1, ?)",
            tx.tenant, incarnation, now_ms,
        )  # fmt: skip
        appends.admit(tx, first.run, capability=first.capability, incarnation=incarnation, at_ms=now_ms)
        tx.run(
            "INSERT INTO lease (tenant, run, owner, opening, epoch, expires_ms) VALUES (?, ?, 'gone', 'gone', 1, 1)",
            tx.tenant, first.run,
        )  # fmt: skip
        head, history = Head(), History(first.run)
        for item in stored:
            epoch = item.record.epoch
            tx.run("UPDATE lease SET epoch = ? WHERE tenant = ? AND run = ?", epoch, tx.tenant, first.run)
            _beside(tx, item)
            head = appends.append(tx, first.run, epoch, head, (Linked(item.record, item.body, item.hash),))
            history.add(item.record)
            _behind(tx, history, item)
        connection.execute("COMMIT")
    finally:
        connection.close()
    fit_mark(store)


def _beside(tx: Tx, item: Stored) -> None:
    """What the unit of a record wrote before it: the request that it heard, the timer of the wait that it ends, and the
    mark of a run that was woken."""
    record = item.record
    if isinstance(record, RunCancelled):
        by = record.cancelled_by
        appends.request_cancel(tx, record.run, by.actor, by.basis.value, by.uid, record.reason)
    if isinstance(record, CaseBound):
        matters.correlate(tx, tuple(record.correlation), record.case_kind, record.case or "")
    if isinstance(record, EffectDone | EffectFailed) and record.effect_key is not None:
        timers.disarm(tx, record.run, bytes.fromhex(record.effect_key))
    if lists.get_run(tx, record.run).status == "suspended":
        appends.resumed(tx, record.run)


def _behind(tx: Tx, history: History, item: Stored) -> None:
    """What the unit of a record wrote behind it: the rows of what a run waits for that suspends, and of its case."""
    if isinstance(item.record, EffectDone) and item.record.case is not None:
        _booked(tx, history, item.record, item.record.case)
    if isinstance(item.record, RunSuspended):
        for series in history.waiting():
            arm(tx, history, series)


def _booked(tx: Tx, history: History, record: EffectDone, case: str) -> None:
    """A call on the case, as the unit of its records made it."""
    started = history.by_key[record.effect_key or ""][1].started
    kind, args, output = started.descriptor.kind, started.descriptor.args, record.output
    if not isinstance(args, dict) or not isinstance(output, dict):
        return
    if kind == "case.write_state":
        matters.put_state(tx, case, canonical.encode(args["state"]), int(args["expected"]))
    elif kind == "case.set_status" and output["from"] != args["status"]:
        matters.set_status(tx, case, str(output["from"]), str(args["status"]))


def arm(tx: Tx, history: History, series: Series) -> None:
    """The rows of one open wait, as the unit that suspends makes them of its announcement."""
    key, due_ms = series.last.started.effect_key or "", waits.due_ms(series)
    kind, args = series.first.descriptor.kind, series.first.descriptor.args
    if due_ms is not None:
        timers.arm(tx, history.run, bytes.fromhex(key), due_ms)
    if kind == AWAIT and isinstance(args, dict):
        keys = keys_from(args["correlation"])
        subscriptions.arm(tx, history.run, bytes.fromhex(key), args["kind"], keys, args["sender"])
    if kind == TASK and isinstance(args, dict):
        tasks.open(tx, opening(history, key, args))
