"""W1, W3, W8, W9: where a batch ends, who is waited for, and what one unit may not do to the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from agentplane.core import bounds
from agentplane.core.errors import InvariantViolation
from agentplane.journal.store import connect
from agentplane.journal.tx import Tx
from agentplane.journal.units import Unit
from journal.test_the_writer_commits_groups import HANG_S, Desk, desk, note, raising

SOON_S = 3
"""Longer than any commit takes here; only a writer that waits for something else needs it."""


async def soon(what: Callable[[], bool]) -> None:
    """Until it is so, or would have been long ago: the test says then what is missing."""
    until = trio.current_time() + SOON_S
    while trio.current_time() < until:
        if what():
            return
        await trio.sleep(0.001)


async def answered(d: Desk, count: int) -> None:
    """Until so many units have their answers."""
    await soon(lambda: len(d.answers) >= count)


async def commits_of(d: Desk, units: int, **members: Any) -> int:
    """How many commits it takes to write units that wait behind a held writer."""
    go = await d.gate()
    before = d.writer.commits
    d.submit(*range(units), **members)
    go()
    await d.writer.do(lambda tx: None)
    assert d.rows() == list(range(units))
    return d.writer.commits - before


@pytest.mark.parametrize(
    ("bound", "value", "least"), [("BATCH_UNITS_MAX", 3, 4), ("BATCH_BYTES_MAX", 250, 4), ("BATCH_MS_MAX", 0, 12)]
)
async def test_a_batch_closes_by_count_bytes_and_time(
    store_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, value: int, least: int
) -> None:
    """W1: units that all wait are one commit, unless a named bound closes the batch before the last of them."""
    async with desk(store_path) as d:
        assert await commits_of(d, 12, size=100) <= 2
        await d.writer.do(lambda tx: tx.run("DELETE FROM note"))
        monkeypatch.setattr(bounds, bound, value)
        assert await commits_of(d, 12, size=100) >= least


async def test_an_outcome_waits_for_the_next_announcement(store_path: Path) -> None:
    """W8: a rider that has run leaves its transaction open, so that a barrier that comes later shares its commit."""
    async with desk(store_path, linger_us=20_000_000) as d:
        before = d.writer.commits
        token = trio.lowlevel.current_trio_token()
        for _ in range(10):
            ran = trio.Event()

            def body(tx: Tx, ran: trio.Event = ran) -> None:
                note("rider")(tx)
                token.run_sync_soon(ran.set)

            d.writer.submit(Unit(body, lambda value, error: None, barrier=False))
            await ran.wait()
            await d.writer.do(note("barrier"))
        assert d.writer.commits - before == 10
        assert d.rows() == ["rider", "barrier"] * 10


async def test_nobody_who_waits_is_held_up(store_path: Path) -> None:
    """W8: a barrier, and a rider whose run now waits, are committed at once however long the linger is."""
    async with desk(store_path) as d:
        d.writer._linger_s = HANG_S  # from here on: a writer that lingers for barriers would not even begin
        d.submit("barrier")
        await answered(d, 1)
        assert d.answers == [("barrier", None)]
        d.submit("rider", barrier=False, linger=False)
        await answered(d, 2)
        assert d.answers == [("barrier", None), ("rider", None)]


async def test_a_foreign_writer_costs_time_and_nothing_else(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W3, W9: the lock is taken by BEGIN, before any unit runs: held by another it is waited for, and no unit hears."""
    monkeypatch.setattr(bounds, "BUSY_WAIT_MS", 5)
    async with desk(store_path) as d:
        other = connect(store_path)
        other.execute("BEGIN IMMEDIATE")
        d.submit("waits")
        await soon(lambda: d.points.count("writer.busy") >= 3 or bool(d.answers))
        other.execute("ROLLBACK")
        other.close()
        await answered(d, 1)
        assert d.answers == [("waits", None)] and d.points.count("writer.busy") >= 3
        assert d.writer.poisoned is None and d.rows() == ["waits"]


async def test_an_invariant_of_one_run_is_that_runs_alone(store_path: Path) -> None:
    """W9: the unit is refused and taken back; its neighbours in the batch and after it are written."""
    async with desk(store_path) as d:
        go = await d.gate()
        d.submit("before")
        d.submit(raising(InvariantViolation("INV-99 of one run")), run="run_1")
        d.submit("behind")
        go()
        await answered(d, 3)
        d.submit("after")
        await answered(d, 4)
        assert [type(error).__name__ for _, error in d.answers] == ["NoneType", "InvariantViolation"] + ["NoneType"] * 2
        assert d.writer.poisoned is None and d.rows() == ["before", "behind", "after"]
