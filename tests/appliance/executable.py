"""The program under test: the frozen executable, where it was built or is named, else the source.

Owns the one place that knows, and when an executable is older than what it was made from. Refuses to test an old one:
it is built anew. Invariant: what a test starts was made from the source that stands beside the test.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

from house.ratchet import ROOT

NAMED = "AGENTPLANE_EXECUTABLE"
BUILT = ROOT / "dist" / "agentplane"
TRIALS = ROOT / "build" / "trials"
"""Executables that only tests use."""
TOOLS = ROOT / "build" / "env" / "bin" / "python"
"""The interpreter that froze, which has what packs a payload."""
MADE_FROM = ("agentplane", "packaging/freeze", "packaging/launcher.c", "packaging/locks/runtime.txt",
             "packaging/locks/freeze.txt")  # fmt: skip


def command() -> list[str]:
    """What starts the program: the executable that the environment names, else this interpreter with the source."""
    named = os.environ.get(NAMED)
    return [str(Path(named).absolute())] if named else [sys.executable, "-m", "agentplane.cli.main"]


@cache
def executable() -> Path:
    """The executable of this source, with its files unpacked beside it; built when there is none, or an older one."""
    named = os.environ.get(NAMED)
    if named:
        return Path(named).absolute()
    found = BUILT if is_fresh(BUILT) else build(TRIALS / "this")
    subprocess.run([found, "unpack"], check=True, capture_output=True, timeout=60)
    return found


def is_fresh(made: Path) -> bool:
    """Whether nothing that an executable is made from was changed after it."""
    if not made.is_file():
        return False
    made_at = made.stat().st_mtime
    for name in MADE_FROM:
        top = ROOT / name
        for path in [top] if top.is_file() else top.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts and path.stat().st_mtime > made_at:
                return False
    return True


def build(into: Path, *more: str, kept: bool = True) -> Path:
    """An executable made by the packaged script, with ``more`` of its arguments. ``kept``: one that was made so before,
    of a source that did not change since, will do."""
    if kept and is_fresh(into / "agentplane"):
        return into / "agentplane"
    done = subprocess.run(
        ["sh", str(ROOT / "packaging" / "build.sh"), "--fast", "--output", str(into), *more],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return into / "agentplane"
