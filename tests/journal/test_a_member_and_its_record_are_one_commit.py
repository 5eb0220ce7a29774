"""An atomic member and its record, killed at every point of their commit: both are there, or neither is."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from agentplane.authoring.sql import sql
from agentplane.core.records import Descriptor, EffectDone, EffectStarted, RetryTerms, Terms
from agentplane.core.recovery import Mode
from agentplane.journal import appends, leases, lists
from agentplane.journal.application import migrate_app
from agentplane.journal.atomic import run_members
from agentplane.journal.tx import Tx
from agentplane.journal.writer import Writer
from agentplane.testkit.faults import Disk, FaultVFS
from agentplane.testkit.ledger import Ledger, key_of
from journal.stores import NOW, PlainStore, opened

NEVER = 10_000
SCRIPT = "CREATE TABLE app_entry (id INTEGER PRIMARY KEY, cents INTEGER NOT NULL, note TEXT) STRICT"


class Deadly:
    """Kills its own process at the ``at``-th point after it was armed."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.passed = 0
        self.armed = False

    def point(self, *_: object, **__: object) -> None:
        if self.armed:
            self.passed += 1
            if self.passed == self.at:
                os.kill(os.getpid(), signal.SIGKILL)


async def one_unit(path: Path, vfs: str, ledger: Ledger, cents: int, deadly: Deadly) -> None:
    """In the child: a real store and writer, and one solo unit as the engine writes it, under a lease of its own."""
    store = opened(path, "o2", vfs=vfs)
    writer = Writer(
        store.writer_connection, "default", lambda: NOW, before_commit=store.count_commit,
        observe=lambda point, **_: deadly.point() if point == "writer.committed" else None,
    )  # fmt: skip
    writer.start()
    ledger.lease = await writer.do(lambda tx: leases.acquire(tx, ledger.run, "p2", "o2", 30_000))
    place = {"step": 0, "effect_key": key_of(1)}
    started = ledger.record(
        EffectStarted, **place, descriptor=Descriptor(kind="app.sql", args={}), terms=Terms(mode=Mode.RETRY),
        retry=RetryTerms(), mutates=True, attempt=1, ordinal=0, idempotency_key="k" * 36, local=True, group=0,
        role="atomic",
    )  # fmt: skip
    done = ledger.record(EffectDone, seq=ledger.head.seq + 2, **place, output={"rows": 1})
    linked = ledger.link(started, done)
    # Some pages of it, so that the commit has many writes.
    member = sql("INSERT INTO app_entry VALUES (1, ?, ?)", cents, "x" * 9_000, rows=1)

    def body(tx: Tx) -> None:
        deadly.armed = True
        run_members(tx, [member])
        deadly.point()
        appends.append(tx, ledger.run, ledger.lease.epoch, ledger.head, linked)
        deadly.point()

    await writer.do(body, solo=True)
    deadly.point()
    await writer.close()
    store.close()


def in_a_child(body: Callable[[], int]) -> int:
    """Run ``body`` in a real process; its status, or the negative signal that ended it."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(body())
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def killed_at(directory: Path, at: int, cents: int = 5) -> tuple[int, bool, bool]:
    """A fresh store, one unit in a child that dies at that point, and what the next opening finds: the child's
    status, whether the row stands, whether its record does."""
    directory.mkdir()
    path = directory / "plane.db"
    plain = PlainStore(path)
    plain.unit(lambda tx: migrate_app(tx, SCRIPT))
    ledger = Ledger(plain).admit()
    plain.close()

    def child() -> int:
        deadly = Deadly(at)
        with FaultVFS("deadly", Disk(at_point=deadly.point)):
            trio.run(one_unit, path, "deadly", ledger, cents, deadly)
        return deadly.passed

    status = in_a_child(child)
    store = opened(path, "o3")
    try:
        rows = store.readers.read(lambda tx: tx.all("SELECT cents FROM app_entry"))
        kinds = [type(item.record).__name__ for item in store.readers.read(lambda tx: lists.history(tx, ledger.run))]
        landed = store.readers.read(lambda tx: lists.get_run(tx, ledger.run)).landed
    finally:
        store.close()
    assert rows in ([], [(cents,)])
    assert kinds in (["RunAdmitted"], ["RunAdmitted", "EffectStarted", "EffectDone"])
    assert landed == len(kinds) // 3
    return status, bool(rows), len(kinds) == 3


def points(tmp_path: Path) -> int:
    """How many points a unit passes to its answer; the closing of the store has more."""
    passed, row, record = killed_at(tmp_path / "whole", NEVER)
    assert row and record and passed > 10
    return passed


def hold(tmp_path: Path, chosen: list[int]) -> None:
    seen: list[tuple[int, Any]] = []
    for number, at in enumerate(chosen):
        status, row, record = killed_at(tmp_path / f"at-{number}", at, cents=number + 1)
        assert status == -signal.SIGKILL, f"point {at} was not reached"
        assert row == record, f"killed at point {at}: row {row}, record {record}"
        seen.append((at, row))
    # On both sides: before the frame that commits was written, and after.
    assert {row for _, row in seen} == {False, True}
    assert [row for _, row in sorted(seen)] == sorted(row for _, row in seen), "an earlier death kept more"


def test_ten_deaths_leave_both_or_neither(tmp_path: Path) -> None:
    """Killed between member and record, before and behind each side of the sync: no row without its record, no record
    without its row, and both from the commit on."""
    last = points(tmp_path)
    hold(tmp_path, sorted({1, 2, 3, *(last * part // 8 for part in range(1, 8))}))


@pytest.mark.heavy
def test_a_hundred_deaths_leave_both_or_neither(tmp_path: Path) -> None:
    """Every point once, and the rest drawn."""
    last = points(tmp_path)
    random = Random(4)
    every = list(range(1, last + 1))
    hold(tmp_path, every + [random.randint(1, last) for _ in range(max(0, 100 - len(every)))])
