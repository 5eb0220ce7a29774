"""The build before this one and this one, as executables, over one store, in both directions and under load.

The one before is that of the commit in `tests/appliance/previous`, built from its tree by this packaging/build.sh and
kept below build/trials; this one knows two planted levels more, so that the two differ. (S151, S152)
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentplane.journal.levels import level_in
from appliance import executable
from appliance.builds import PLANTED, Load, Served, asked, end_all, json_of, say
from appliance.drained import SKILLS, book
from house.ratchet import ROOT
from surface.terminals import Plane

pytestmark = pytest.mark.heavy
COMMIT = (Path(__file__).with_name("previous")).read_text("ascii").strip()
TURNS = 5


def previous() -> Path:
    """The executable of the commit before. It is built once: a commit does not change."""
    made = executable.TRIALS / f"previous-{COMMIT[:12]}"
    if (made / "agentplane").is_file():
        return made / "agentplane"
    with tempfile.TemporaryDirectory(prefix="agentplane-previous-") as place:
        packed = subprocess.run(
            ["git", "archive", "--format=tar", COMMIT], cwd=ROOT, capture_output=True, check=False, timeout=60
        )  # fmt: skip
        if packed.returncode:
            pytest.skip(f"missing: the commit {COMMIT[:12]} is not in this clone")
        subprocess.run(["tar", "-x", "-C", place], input=packed.stdout, check=True, timeout=60)
        return executable.build(made, "--source", place)


@pytest.fixture(scope="module")
def old() -> Path:
    return previous()


@pytest.fixture(scope="module")
def new() -> Path:
    """This build, with two levels that no release has."""
    return executable.build(executable.TRIALS / "planted", "--plant", str(PLANTED))


@pytest.fixture
def plane(tmp_path: Path, old: Path) -> Iterator[Plane]:
    """Made by the build before, as an operator's is."""
    where = tmp_path / "plane"
    assert say(old, "init", str(where)).status == 0
    (where / "skills" / "refunds.py").unlink()
    (where / "skills" / "desk.py").write_text(SKILLS)
    (where / "skills" / "desk.py").chmod(0o644)
    yield Plane(where)
    end_all()


def test_a_deploy_and_a_rollback_under_load_until_the_commit(plane: Plane, old: Path, new: Path) -> None:
    """Each serves what the other left, five times over, and nothing that was acknowledged is lost or done twice; behind
    `upgrade --commit` the build before refuses the store with one sentence, and this one goes on."""
    directory, store = plane.directory, plane.directory / "plane.db"
    serving = Served(old, directory).serves()
    load = Load(directory, "desk.chain", {"count": 2, "ms": 20})
    with load.on():
        for turn in range(TURNS):
            before = len(load.acknowledged)
            serving.until(lambda before=before: load.more(before + 20))  # type: ignore[misc]
            serving.term()
            if turn % 2 == 0:
                following = Served(new, directory, "--wait-lock", "30").serves()
                assert serving.end() == 0
            else:
                # It does not know how to wait for a store.
                assert serving.end() == 0
                following = Served(old, directory).serves()
            serving = following
            assert level_in(store) == 1
        before = len(load.acknowledged)
        serving.until(lambda: load.more(before + 20))
        serving.term()
        assert serving.end() == 0
        done = say(new, "upgrade", "--plane", str(directory), "--commit", "--yes", "--json")
        assert done.status == 0 and json_of(done)["level"] == 3
        refused = Served(old, directory)
        assert refused.end() != 0 and "level 3" in refused.said()
        serving = Served(new, directory).serves()
        before = len(load.acknowledged)
        serving.until(lambda: load.more(before + 20))
    serving.until(lambda: asked(directory, "status")["running"] == 0)
    serving.term()
    assert serving.end() == 0
    shown = json_of(say(new, "runs", "--plane", str(directory), "--limit", "1000", "--json"))
    ended = {row["run"]: row["status"] for row in shown["runs"]}
    assert {ended[run] for run in load.acknowledged.values()} == {"succeeded"}
    acts = [line for line in book(plane) if line.startswith("quick load-")]
    assert len(acts) == len(set(acts)) == 2 * len(load.acknowledged)
    print(f"{len(load.acknowledged)} runs acknowledged over {TURNS + 1} restarts")
