"""The level of a store: used as it is, raised by one verb, behind a copy that was verified."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import apsw
import pytest

from agentplane.core.errors import (
    DiskLow,
    Held,
    InvariantViolation,
    JournalCorrupt,
    StoreLevel,
    StoreLocked,
    StoreUnfit,
)
from agentplane.journal import copy, levels, lock, schema
from agentplane.journal import store as store_module
from agentplane.journal.mark import mark_path
from agentplane.journal.schema import Migration
from agentplane.testkit.ledger import Ledger
from house.uids import OTHER_UID
from journal import planted
from journal.stores import NOW, PlainStore, identity, one_sentence, opened


def used(path: Path) -> str:
    """Somebody opens the store, admits another run, and leaves."""
    plain = PlainStore(path)
    number = 1 + plain.unit(lambda tx: len(tx.all("SELECT run FROM run")))
    run = Ledger(plain, number).admit().run
    plain.unit(plain.store.count_commit)
    plain.store.write_mark(plain._connection)
    plain.close()
    return run


def commit(path: Path, name: str = "raising") -> levels.Raised:
    return levels.commit(path, "default", identity(name))


def shape(path: Path) -> tuple[int, set[str], list[tuple[int, str]]]:
    """Level, columns of ``run``, and the migrations that ran."""
    connection = store_module.connect(path, read_only=True)
    try:
        columns = {str(row[1]) for row in connection.execute("PRAGMA table_info(run)")}
        steps = [(int(str(row[0])), str(row[1])) for row in connection.execute("SELECT level, name FROM migration")]
        return int(connection.pragma("user_version")), columns, sorted(steps)
    finally:
        connection.close()


def test_a_store_is_used_at_the_level_that_it_is_at(store_path: Path) -> None:
    """S151: a build that knows more opens it, reads and writes, and leaves every table as it was; so the build before
    opens it again, as often as one likes."""
    used(store_path)
    before = shape(store_path)
    with planted.levels():
        store = opened(store_path)
        assert (store.found.level, schema.LEVEL) == (1, 3)
        store.close()
        used(store_path)
    used(store_path)
    assert shape(store_path) == before and before[0] == 1


def test_a_new_store_is_made_at_the_level_of_its_build(store_path: Path) -> None:
    """And a build that does not know that level refuses it, naming both."""
    with planted.levels():
        store = opened(store_path)
        assert store.found.level == 3 and store.found.created
        store.close()
    with pytest.raises(StoreLevel, match="at level 3; this build knows levels up to 1"):
        opened(store_path)
    assert StoreLevel.row.exit == 6


def test_a_level_is_raised_behind_a_verified_copy(store_path: Path) -> None:
    """S152: the copy is the store as it was: level, rows and heads, with the mode of the store; the build before opens
    it, as a restored one."""
    run = used(store_path)
    counted = copy.count(store_path)
    with planted.levels():
        raised = commit(store_path)
        assert (raised.before, raised.level) == (1, 3)
        assert [(step.level, step.kind) for step in raised.steps] == [(2, "expanding"), (3, "contracting")]
        assert raised.copy is not None
        assert raised.copy.name == "plane.db.level-1.20270115T080000Z.copy" and copy.count(raised.copy) == counted
        assert os.stat(raised.copy).st_mode == os.stat(store_path).st_mode
        level, columns, steps = shape(store_path)
        assert level == 3 and "planted_from" not in columns and [at for at, _ in steps] == [1, 2, 3]
        used(store_path)
        assert commit(store_path, "again") == levels.Raised(before=3, level=3, steps=(), copy=None)
    with pytest.raises(StoreLevel):
        opened(store_path)
    back = store_path.parent / "back"
    back.mkdir()
    shutil.copy(raised.copy, back / "plane.db")
    restored = opened(back / "plane.db")
    assert restored.found.level == 1 and restored.held is not None
    assert restored.readers.read(lambda tx: tx.all("SELECT run FROM run")) == [(run,)]
    restored.close()


@pytest.mark.parametrize("behind", ["migrate", "every migration"])
def test_a_commit_that_was_killed_is_recorded_by_the_next(
    store_path: Path, monkeypatch: pytest.MonkeyPatch, behind: str
) -> None:
    """S152: who raised a level stands in the journal, from the level that was there first to the last; once."""
    used(store_path)
    acts: list[levels.Raised] = []

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with planted.levels():
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            if behind == "migrate":
                migrate = schema.migrate
                patch.setattr(schema, "migrate", lambda *args: (migrate(*args, steps=schema.MIGRATIONS[:2]), killed()))
            else:
                patch.setattr(levels, "_recorded", killed)
            commit(store_path)
        for name in ("again", "once more"):
            levels.commit(store_path, "default", identity(name), act=lambda tx, store, raised: acts.append(raised))
        assert [(one.before, one.level) for one in acts] == ([(1, 2), (2, 3)] if behind == "migrate" else [(1, 3)])
        assert [step.level for one in acts for step in one.steps] == [2, 3]
        assert all(one.copy is not None and one.copy.exists() for one in acts)
        assert shape(store_path)[0] == 3


def test_the_copy_and_the_mark_belong_to_whom_the_store_belongs(store_path: Path) -> None:
    """S152: root raises what another serves: a mark that it cannot read would be that of a restored store."""
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    used(store_path)
    os.chown(store_path, OTHER_UID, OTHER_UID)
    with planted.levels():
        raised = commit(store_path)
    assert raised.copy is not None
    for path in (mark_path(store_path), raised.copy):
        assert (path.stat().st_uid, path.stat().st_gid) == (OTHER_UID, OTHER_UID), path


def test_who_serves_a_store_opens_it_after_root_has_written(
    store_path: Path, open_dir: Path, as_other_uid: Callable[..., tuple[str | None, int]]
) -> None:
    """S152: a plane that is down is paused, or raised, by root; every file stays its own, and it is no copy."""
    if os.geteuid() != 0:
        pytest.skip("only root writes in what is another's")
    path = open_dir / store_path.name
    used(path)
    for file in (open_dir, *open_dir.iterdir()):
        os.chown(file, OTHER_UID, OTHER_UID)
    with planted.levels():
        commit(path)
        used(path)
        assert [file.name for file in open_dir.iterdir() if file.stat().st_uid != OTHER_UID] == []
    assert as_other_uid(_reopened, path) == (None, 2)


def _reopened(path: Path) -> tuple[str | None, int]:
    with planted.levels():
        held = opened(path)
        found = held.readers.read(lambda tx: len(tx.all("SELECT run FROM run")))
        held.close()
    return held.held, found


def test_a_mark_that_may_not_be_read_is_not_a_missing_one(store_path: Path) -> None:
    used(store_path)
    mark_path(store_path).unlink()
    mark_path(store_path).symlink_to(mark_path(store_path).name)
    with pytest.raises(StoreUnfit, match=r"mark .* cannot be read"):
        opened(store_path)


def test_nothing_is_shown_at_a_cost(store_path: Path) -> None:
    """What a commit would do is told beside a holder of the store, and not one file is written."""
    used(store_path)
    holder = opened(store_path)
    before = {path.name: path.read_bytes() for path in store_path.parent.iterdir() if path.is_file()}
    with planted.levels():
        found = levels.outlook(store_path, NOW)
    after = {path.name: path.read_bytes() for path in store_path.parent.iterdir() if path.is_file()}
    holder.close()
    assert (found.level, found.known, found.floor, len(found.steps)) == (1, 3, 1, 2)
    assert found.copy_bytes > store_path.stat().st_size
    assert {name: data for name, data in after.items() if not name.endswith("-shm")} == {
        name: data for name, data in before.items() if not name.endswith("-shm")
    }


def test_without_room_for_the_copy_nothing_is_written(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S152: refused in one sentence that says what it takes; the store stands at its level, with no file beside it."""
    used(store_path)
    (store_path.parent / "plane.db.ballast").unlink()
    names = sorted(path.name for path in store_path.parent.iterdir())
    kept = copy.count(store_path)
    monkeypatch.setattr(copy.os, "statvfs", lambda path: SimpleNamespace(f_bavail=1000, f_frsize=4096))
    with planted.levels(), pytest.raises(DiskLow) as caught:
        commit(store_path)
    assert "4096000 are free" in one_sentence(caught.value)
    assert sorted(path.name for path in store_path.parent.iterdir()) == names and shape(store_path)[0] == 1
    assert copy.count(store_path) == kept and lock.is_free(store_path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("DELETE FROM record WHERE seq = 1", "rows of record"),
        ("UPDATE run SET head_hash = zeroblob(32)", "another head of a run"),
        ("PRAGMA user_version = 9", "level 9 for 1"),
        ("CREATE TABLE more (x)", "rows of more"),
    ],
)
def test_a_copy_that_is_not_the_store_raises_nothing(
    store_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, says: str
) -> None:
    """S152: what was copied is compared with what it was copied from; differing, it is thrown away and nothing ran."""
    used(store_path)
    take = copy.take

    def spoiled(store: Path, target: Path, **more: object) -> None:
        take(store, target, **more)  # type: ignore[arg-type]
        raw = apsw.Connection(str(target))
        raw.execute(change)
        raw.close()

    monkeypatch.setattr(copy, "take", spoiled)
    with planted.levels(), pytest.raises(JournalCorrupt, match=says):
        commit(store_path)
    assert shape(store_path)[0] == 1 and not list(store_path.parent.glob("*.copy*"))


def test_a_damaged_store_is_not_raised(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's own check is asked of the copy, and its first finding is said."""
    used(store_path)
    take = copy.take

    def spoiled(store: Path, target: Path, **more: object) -> None:
        take(store, target, **more)  # type: ignore[arg-type]
        raw = apsw.Connection(str(target))
        raw.execute("PRAGMA writable_schema = 1; UPDATE sqlite_schema SET rootpage = 3 WHERE name = 'run_admitted'")
        raw.close()

    monkeypatch.setattr(copy, "take", spoiled)
    with planted.levels(), pytest.raises(JournalCorrupt):
        commit(store_path)
    assert shape(store_path)[0] == 1 and not list(store_path.parent.glob("*.copy*"))


def test_a_migration_that_fails_leaves_the_level_it_found(store_path: Path) -> None:
    """DDL, row and level are one transaction; what ran before it stays, and a second commit does the rest behind a copy
    of its own."""
    used(store_path)
    bad = Migration("bad", "CREATE TABLE made (x); INSERT INTO nowhere VALUES (1);")
    with planted.levels([planted.PLANTED[0], bad]), pytest.raises(Exception, match="nowhere"):
        commit(store_path)
    level, columns, steps = shape(store_path)
    assert level == 2 and "planted_from" in columns and len(steps) == 2
    with planted.levels():
        used(store_path)
        raised = levels.commit(store_path, "default", identity("again", now_ms=NOW + 1000))
    assert raised.before == 2 and len(raised.steps) == 1
    assert sorted(path.name.split(".")[2] for path in store_path.parent.glob("*.copy")) == ["level-1", "level-2"]


def test_an_expanding_migration_takes_nothing_away(store_path: Path) -> None:
    """S153: the code of the level below would miss it; it is found out before it is committed."""
    used(store_path)
    for ddl in ("ALTER TABLE cancel DROP COLUMN reason;", "DROP TABLE seal;"):
        with planted.levels([Migration("liar", ddl, "expanding")]), pytest.raises(InvariantViolation, match="INV-14"):
            commit(store_path)
        assert shape(store_path)[0] == 1
        for one in store_path.parent.glob("*.copy"):
            one.unlink()
    with planted.levels([Migration("honest", "ALTER TABLE cancel DROP COLUMN reason;", "contracting")]):
        assert commit(store_path).level == 2


def test_a_store_that_somebody_holds_or_that_is_held_keeps_its_level(store_path: Path) -> None:
    """A plane that runs goes on; a restored copy is first looked at by a person."""
    used(store_path)
    holder = opened(store_path, state="serving")
    with planted.levels(), pytest.raises(StoreLocked):
        commit(store_path)
    holder.close()
    mark_path(store_path).unlink()
    with planted.levels(), pytest.raises(Held, match="its level stays"):
        commit(store_path)
    assert shape(store_path)[0] == 1 and not list(store_path.parent.glob("*.copy"))


def test_a_level_below_the_floor_is_refused(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build that has forgotten a level says which builds know it."""
    used(store_path)
    monkeypatch.setattr(schema, "FLOOR", 2)
    with planted.levels(), pytest.raises(StoreLevel) as caught:
        opened(store_path)
    assert "at level 1; this build knows levels from 2" in one_sentence(caught.value)


def test_a_build_has_the_levels_that_were_put_into_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of one name, where it is there; this build has none."""
    assert schema._planted() == () and len(schema.MIGRATIONS) == schema.LEVEL == 1
    module = ModuleType(schema.PLANTED)
    module.__spec__ = ModuleSpec(schema.PLANTED, None)
    module.MIGRATIONS = [tuple(one) for one in planted.PLANTED]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, schema.PLANTED, module)
    assert schema._planted() == planted.PLANTED


def test_a_copy_that_was_stopped_leaves_nothing(store_path: Path) -> None:
    """What a signal's handler raises ends the copy; a file that is in the way is not written over."""
    used(store_path)
    target = store_path.parent / "copy.db"

    def stop() -> None:
        raise KeyboardInterrupt

    plain = PlainStore(store_path)
    for number in range(2, 200):
        Ledger(plain, number).admit()
    plain.close()
    with pytest.raises(KeyboardInterrupt):
        copy.take(store_path, target, tick=stop)
    assert not target.exists()
    target.write_text("mine", encoding="utf-8")
    with pytest.raises(StoreUnfit, match="cannot be made: File exists"):
        copy.take(store_path, target)
    with pytest.raises(StoreUnfit, match="already"):
        copy.verified(store_path, target)
    assert target.read_text(encoding="utf-8") == "mine"
