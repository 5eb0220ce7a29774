"""The tests' own tools: another uid is really another, and what is missing skips or fails as it should."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from house.ratchet import ROOT
from house.uids import OTHER_UID, ChildFailed, run_as

pytest_plugins = ["pytester"]


def test_a_body_runs_where_permissions_count(as_other_uid: Callable[..., Any], open_dir: Path) -> None:
    """Whoever started the tests, the body is not root, owns its directory and is refused what is closed to
    it.
    """
    closed = open_dir / "closed"

    def body() -> int:
        (open_dir / "mine").write_text("x")
        closed.mkdir(mode=0o500)
        with pytest.raises(PermissionError):
            (closed / "x").write_text("x")
        return os.geteuid()

    assert as_other_uid(body) == (OTHER_UID if os.geteuid() == 0 else os.geteuid()) != 0


def test_a_body_may_start_the_interpreter_and_import_the_product(as_other_uid: Callable[..., Any]) -> None:
    """Real processes can be tested as another uid too, wherever checkout and interpreter lie."""

    def body() -> str:
        code = "import os, trio, agentplane.core; print(os.geteuid(), agentplane.core.__file__)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
        return done.stdout + done.stderr

    uid, file = str(as_other_uid(body)).split(maxsplit=1)
    assert int(uid) != 0 and Path(file.strip()).is_relative_to(ROOT)


def test_a_failing_body_fails_the_test(second_uid: int) -> None:
    """What goes wrong over there is told here, and nothing is taken for success."""

    def wrong() -> None:
        raise ValueError("over there")

    with pytest.raises(ChildFailed, match="over there"):
        run_as(second_uid, wrong, trees=[])
    with pytest.raises(ChildFailed, match="without an answer"):
        run_as(second_uid, lambda: os._exit(3), trees=[])


def test_a_closed_directory_is_opened_for_the_child_alone(second_uid: int, tmp_path: Path) -> None:
    """A checkout in somebody's closed home is readable to the child, stays protected from its writing, and
    keeps its mode.
    """
    closed = tmp_path / "home"
    inside = closed / "checkout"
    inside.mkdir(parents=True)
    (inside / "file").write_text("read me")
    closed.chmod(0o700)

    def body() -> str:
        with pytest.raises(PermissionError):
            (inside / "new").write_text("x")
        return (inside / "file").read_text()

    with pytest.raises(ChildFailed, match="Permission denied"):
        run_as(second_uid, body, trees=[])
    assert run_as(second_uid, body, trees=[inside, closed]) == "read me"
    assert closed.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(("ci", "outcome"), [("", "skipped"), ("true", "failed")])
def test_a_missing_tool_skips_here_and_fails_in_ci(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, ci: str, outcome: str
) -> None:
    """The skip names the tool; with CI=true the same test fails."""
    monkeypatch.setenv("CI", ci)
    pytester.makeconftest((ROOT / "tests" / "conftest.py").read_text("utf-8"))
    pytester.makepyfile("def test_it(need_tool):\n    need_tool('no-such-tool')\n")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    result = pytester.runpytest_subprocess("-rsf", "-p", "no:cacheprovider")
    result.assert_outcomes(**{outcome: 1})
    assert "no-such-tool" in result.stdout.str()
