"""What the file refuses of a group's transaction is refused whole: no row and no doubt, in one sentence, and the group
is taken back."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from agentplane import GroupAborted, Invariant, sql
from agentplane.core.records import EffectFailed
from agentplane.journal import atomic
from agentplane.journal.units import Unit
from agentplane.testkit.faults import Disk, FaultVFS
from stories.checkouts import Desk, asked, ending, entries, grouped, with_table
from stories.scenes import history, inline, of_kind, opened

INSERT = "INSERT INTO app_entries VALUES (?, ?)"
ENDLESS = (
    "INSERT INTO app_entries WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) "
    "SELECT 'x', max(x) FROM n"
)  # fmt: skip
_names = itertools.count()


@pytest.fixture
def disk() -> Iterator[tuple[Disk, str]]:
    """A disk that can be full, and the name of its VFS."""
    with FaultVFS(f"member-{next(_names)}", Disk()) as vfs:
        yield vfs.disk, vfs.name


def posting(desk: Desk, *members: Any, holds: bool = True) -> Any:
    """A hold, a row that is in order, ``members``, and a mail."""

    async def within(g: Any, cx: Any, request: Any) -> None:
        await desk.held(g)
        g.atomic("ledger", sql(INSERT, "fine", 3, rows=1))
        for member in members:
            g.atomic("ledger", member)
        g.deferred("notify", desk.mail())
        await g.commit(Invariant("it holds", holds))

    return grouped(within)


async def taken_back(plane: Any, desk: Desk, why: str) -> None:
    """A run of it fails with one sentence that says why, and nothing of it stands."""
    outcome = await plane.run("story.run", {})
    assert (outcome.status, outcome.code) == ("failed", "group_aborted"), outcome
    assert why in str(outcome.reason) and "\n" not in str(outcome.reason) and "Traceback" not in str(outcome.reason)
    assert desk.deeds() == ["hold", "release"]
    settled, detail = ending(plane, outcome.run) or ("open", "")
    assert settled == "aborted" and why in str(detail)
    refused = of_kind(plane, outcome.run, EffectFailed)
    assert refused and {one.fault.code for one in refused} == {"atomic_refused"}
    found = history(plane, outcome.run)
    assert not found.standing() and not found.doubts()
    assert (await plane.replay(outcome.run, strict=True)).verdict == "verified"
    before = asked(plane, outcome.run)
    assert (await plane.replay(outcome.run)).status == "failed" and asked(plane, outcome.run) == before


@pytest.mark.parametrize("members, why", [
    ([sql(INSERT, "fine", 4, rows=1)], "Member 1 was refused: UNIQUE constraint failed: app_entries.id"),
    ([sql(INSERT, "less", -1, rows=1)], "Member 1 was refused: CHECK constraint failed"),
    ([sql("UPDATE app_entries SET amount = ?", 9, rows=2)], "Member 1 was refused: it changed 1 rows, where 2 were"),
    ([sql(INSERT, "more", 1, rows=1), sql("DELETE FROM app_entries", rows=1)], "Member 2 was refused: it changed 2"),
    ([sql(INSERT, "text", "much", rows=1)], "Member 1 was refused: "),
])  # fmt: skip
async def test_what_the_table_refuses_is_refused_whole(
    autojump_clock: MockClock, tmp_path: Path, members: list[Any], why: str
) -> None:
    """S25: a constraint, a wrong number of rows, a wrong type, of whichever member: none of them stands."""
    desk = Desk()
    async with opened(tmp_path, posting(desk, *members)) as plane:
        await with_table(plane)
        await taken_back(plane, desk, why)
        assert entries(plane) == []


async def test_a_constraint_that_is_checked_at_the_commit(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Deferred by its own table to the COMMIT, it refuses that COMMIT and nothing else."""
    desk = Desk()
    script = (
        "CREATE TABLE app_entries (id TEXT PRIMARY KEY, amount INTEGER) STRICT;\n"
        "CREATE TABLE app_lines (entry TEXT REFERENCES app_entries (id) DEFERRABLE INITIALLY DEFERRED) STRICT;"
    )
    member = sql("INSERT INTO app_lines VALUES (?)", "of no entry", rows=1)
    async with opened(tmp_path, posting(desk, member)) as plane:
        await with_table(plane, script)
        await taken_back(plane, desk, "Nothing of the transaction stands: a constraint does not hold")
        assert entries(plane) == []


async def test_a_member_that_runs_too_long_is_interrupted(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer is everybody's: a statement that does not end is ended, and refused."""
    desk = Desk()
    monkeypatch.setattr(atomic, "run_members", partial(atomic.run_members, limit_ms=20))
    async with opened(tmp_path, posting(desk, sql(ENDLESS, rows=1))) as plane:
        await with_table(plane)
        await taken_back(plane, desk, "Member 1 was refused: it runs longer than 20 ms")
        assert entries(plane) == []


async def test_a_full_disk_refuses_the_transaction_alone(
    autojump_clock: MockClock, tmp_path: Path, disk: tuple[Disk, str]
) -> None:
    """Nothing is poisoned: the plane goes on, and takes the same work when there is room."""
    desk = Desk()
    held, vfs = disk
    async with opened(tmp_path, posting(desk), vfs=vfs) as plane:
        await with_table(plane)
        submit = inline(plane).submit

        def full_for_members(unit: Unit[Any]) -> None:
            if unit.solo:
                body, deliver = unit.body, unit.deliver

                def filling(tx: Any) -> Any:
                    value = body(tx)
                    held.is_full = True
                    return value

                def answered(value: Any, error: BaseException | None) -> None:
                    held.heal()
                    deliver(value, error)

                unit.body, unit.deliver = filling, answered
            submit(unit)

        plane.writer.submit = full_for_members  # type: ignore[method-assign]
        await taken_back(plane, desk, "the disk is full")
        assert entries(plane) == [] and plane.writer.poisoned is None
        plane.writer.submit = submit  # type: ignore[method-assign]
        assert (await plane.run("story.run", {})).status == "succeeded" and entries(plane) == [("fine", 3)]


@pytest.mark.parametrize("text, why", [
    ("INSERT INTO record VALUES (1)", "record"),
    ("UPDATE run SET status = 'succeeded'", "run"),
    ("DELETE FROM app_entries WHERE id IN (SELECT run FROM lease)", "lease"),
    ("PRAGMA journal_mode = delete", "PRAGMA"),
    ("ATTACH 'x.db' AS other", "ATTACH"),
    ("BEGIN", "TRANSACTION"),
    ("SAVEPOINT mine", "SAVEPOINT"),
    ("CREATE TABLE app_more (a)", "sqlite_master"),
    ("SELECT * FROM app_entries", "changes no table"),
    ("INSERT INTO app_entries VALUES ('x', 1); DELETE FROM app_entries", "more than one statement"),
    ("INSERT INTO app_entries", "incomplete input"),
])  # fmt: skip
async def test_sql_that_may_be_no_member_is_refused_where_it_is_named(
    autojump_clock: MockClock, tmp_path: Path, text: str, why: str
) -> None:
    """S25: the journal's tables, and whatever acts on more than rows: before the frontier, with nothing announced, and
    what landed is taken back."""
    desk = Desk()
    async with opened(tmp_path, posting(desk, sql(text, rows=1))) as plane:
        await with_table(plane)
        outcome = await plane.run("story.run", {})
        assert (outcome.status, outcome.code) == ("failed", "invalid_request"), outcome
        assert "The statement cannot be a member: " in str(outcome.reason)
        assert why.lower() in str(outcome.reason).lower() and "\n" not in str(outcome.reason)
        assert desk.deeds() == ["hold", "release"] and entries(plane) == []
        assert [role for _, role in asked(plane, outcome.run)] == ["reversible", "reversal"]


async def test_a_false_invariant_opens_no_transaction(autojump_clock: MockClock, tmp_path: Path) -> None:
    """What must hold is checked before the frontier, and an abort of what never ran is free."""
    desk = Desk()
    async with opened(tmp_path, posting(desk, holds=False)) as plane:
        await with_table(plane)
        commits: list[bool] = []
        submit = inline(plane).submit
        look: Callable[[Unit[Any]], None] = lambda unit: (commits.append(unit.solo), submit(unit))[1]  # noqa: E731
        plane.writer.submit = look  # type: ignore[method-assign]
        outcome = await plane.run("story.run", {})
        assert outcome.code == GroupAborted.row.code and True not in commits and entries(plane) == []
        assert desk.deeds() == ["hold", "release"]


async def test_a_text_is_no_statement(autojump_clock: MockClock, tmp_path: Path) -> None:
    """What is not made by ``sql`` is refused in one sentence, and what landed is taken back."""
    desk = Desk()
    async with opened(tmp_path, posting(desk, "DELETE FROM app_entries")) as plane:  # type: ignore[arg-type]
        await with_table(plane)
        outcome = await plane.run("story.run", {})
        assert (outcome.status, outcome.code) == ("failed", "invalid_request")
        assert "sql(text, *params, rows=N), not str" in str(outcome.reason)
        assert desk.deeds() == ["hold", "release"]
