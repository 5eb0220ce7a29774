"""Levels under real processes: two builds that take turns over one store, and the commit between them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentplane.core.records import PlaneActed
from agentplane.journal import copy, levels, lists
from agentplane.journal.lock import is_free
from agentplane.journal.store import read_only
from agentplane.journal.tx import Tx
from appliance.builds import Load, Served, asked, build, end_all, json_of, say
from appliance.drained import SKILLS, book, open_gate
from journal import planted
from surface.terminals import Plane

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This build."""
    return build(tmp_path_factory.mktemp("builds") / "old")


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build that knows two levels more."""
    return build(tmp_path_factory.mktemp("builds") / "new", planted=True)


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    yield Plane.made(tmp_path / "plane", SKILLS)
    end_all()


def readers_of(store: Path, body: Callable[[Tx], Any]) -> Any:
    """A read of the store's file."""
    readers = read_only(store)
    try:
        return readers.read(body)
    finally:
        readers.close()


def every_run_succeeded(plane: Plane, load: Load) -> None:
    """Nothing that was acknowledged is lost, and no act was made twice."""
    store = plane.directory / "plane.db"
    rows = readers_of(store, lambda tx: [lists.get_run(tx, run) for run in load.acknowledged.values()])
    assert {row.status for row in rows} == {"succeeded"}
    acts = [line for line in book(plane) if line.startswith("quick load-")]
    assert len(acts) == len(set(acts)) == 2 * len(load.acknowledged)


def test_two_builds_take_turns_over_one_store_under_load(plane: Plane, old: Path, new: Path) -> None:
    """S151: until the commit either build follows the other, each waiting for the store that the other lets go; no
    acknowledged run is lost and no act made twice, and the store stays at its level."""
    directory = plane.directory
    serving = Served(old, directory).serves()
    load = Load(directory, "desk.chain", {"count": 2, "ms": 20})
    with load.on():
        for turn, binary in enumerate((new, old, new, new, old)):
            before = len(load.acknowledged)
            serving.until(lambda before=before: load.more(before + 20))  # type: ignore[misc]
            serving.term()
            following = Served(binary, directory, "--wait-lock", "30").serves()
            assert serving.end() == 0
            serving = following
            status = asked(directory, "status")
            assert (status["level"], status["level_known"]) == (1, 3 if binary == new else 1), turn
    serving.until(lambda: asked(directory, "status")["running"] == 0)
    serving.term()
    assert serving.end() == 0 and levels.level_in(directory / "plane.db") == 1
    assert len(load.acknowledged) > 100
    every_run_succeeded(plane, load)


def test_behind_the_commit_only_the_new_build_goes_on(plane: Plane, old: Path, new: Path) -> None:
    """S152: shown first, refused while somebody serves, done behind a verified copy; then the build before ends with 6
    and one sentence, and from the copy it starts again, held as a restored store is."""
    directory, store = plane.directory, plane.directory / "plane.db"
    serving = Served(old, directory).serves()
    load = Load(directory, "desk.chain", {"count": 2, "ms": 5})
    with load.on():
        serving.until(lambda: load.more(20))
        shown = json_of(say(new, "upgrade", "--plane", str(directory), "--json"))
        assert (shown["level"], shown["known"], shown["committed"]) == (1, 3, False)
        assert [step["kind"] for step in shown["steps"]] == ["expanding", "contracting"]
        held = say(new, "upgrade", "--plane", str(directory), "--commit", "--yes")
        assert held.status == 4 and "(serving); stop the plane" in held.err
        serving.term()
        assert serving.end() == 0
        unsure = say(new, "upgrade", "--plane", str(directory), "--commit")
        assert unsure.status == 2 and "repeat it with --yes" in unsure.err and levels.level_in(store) == 1
        counted = copy.count(store)
        done = say(new, "upgrade", "--plane", str(directory), "--commit", "--yes", "--json")
        assert done.status == 0 and json_of(done)["level"] == 3
        kept = Path(json_of(done)["copy"])
        found = copy.count(kept)
        assert (found.level, found.heads, found.rows["record"]) == (1, counted.heads, counted.rows["record"])
        with planted.levels():
            acted = readers_of(store, lambda tx: lists.runs(tx, own=True, limit=1)[0])
            records = readers_of(store, lambda tx: lists.whole_history(tx, acted.run))
        assert [one.record.action for one in records if isinstance(one.record, PlaneActed)] == ["upgrade"]
        refused = Served(old, directory)
        assert refused.end() == 6 and "at level 3; this build knows levels up to 1" in refused.said()
        for verb in ("runs", "upgrade"):
            assert say(old, verb, "--plane", str(directory)).status == 6
        serving = Served(new, directory).serves()
        before = len(load.acknowledged)
        serving.until(lambda: load.more(before + 20))
        assert asked(directory, "status")["level"] == 3
    serving.until(lambda: asked(directory, "status")["running"] == 0)
    again = say(new, "upgrade", "--plane", str(directory), "--json")
    assert json_of(again)["steps"] == []
    serving.term()
    assert serving.end() == 0
    shutil.move(store, directory / "raised.db")
    for name in ("-wal", "-shm"):
        (directory / f"plane.db{name}").unlink(missing_ok=True)
    shutil.copy(kept, store)
    back = Served(old, directory).serves()
    status = asked(directory, "status")
    assert (status["level"], status["state"]) == (1, "held")
    back.term()
    assert back.end() == 0


def test_a_process_that_finds_a_drain_waits_for_its_end(plane: Plane, old: Path) -> None:
    """S154: it says for whom, and serves as soon as the store is free; one that was told to wait for nobody, and one
    that finds a plane which serves, leave at once with 4; one that is told to stop while it waits leaves with 0."""
    directory = plane.directory
    first = Served(old, directory, "--drain-secs", "50").serves()
    busy = Served(old, directory, "--wait-lock", "50")
    assert busy.end() == 4 and "(serving, socket" in busy.said()
    run = asked(directory, "start", body={"capability": "desk.pair", "input": {"order": "A"}})["run"]
    first.until(lambda: "gated A-1" in book(plane))
    first.term()
    first.until(lambda: "draining" in first.said())
    impatient = Served(old, directory)
    assert impatient.end() == 4 and "draining" in impatient.said()
    second = Served(old, directory, "--wait-lock", "50")
    second.until(lambda: f"waiting for the store: pid {first.child.pid}" in second.said())
    third = Served(old, directory, "--wait-lock", "50")
    third.until(lambda: "waiting for the store" in third.said())
    third.term()
    assert third.end() == 0 and "nothing was opened" in third.said()
    briefly = Served(old, directory, "--wait-lock", "0.2")
    assert briefly.end() == 4 and "and still after 0.2 s" in briefly.said()
    assert first.child.poll() is None and second.child.poll() is None and not is_free(directory / "plane.db")
    open_gate(plane)
    assert first.end() == 0
    second.serves()
    assert plane.here("show", run, "--json").body["status"] == "succeeded"
    second.term()
    assert second.end() == 0
