"""The launcher's guarantees, taken out one by one: each is missed by the test that holds it. (S158 to S163)"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from appliance.launched import NAMED
from house.ratchet import ROOT

pytestmark = pytest.mark.heavy
ROWS = tomllib.loads(Path(__file__).with_name("launcher_mutants.toml").read_text("utf-8"))["mutant"]


@pytest.mark.parametrize("row", ROWS, ids=[row["id"] for row in ROWS])
def test_a_launcher_without_the_guarantee_is_caught(row: dict[str, str], tmp_path: Path) -> None:
    """By an assertion, of the named test, and by nothing else that went wrong."""
    text = (ROOT / "packaging" / "launcher.c").read_text("utf-8")
    assert text.count(row["anchor"]) == 1, f"the anchor occurs {text.count(row['anchor'])} times"
    mutated = tmp_path / "launcher.c"
    mutated.write_text(text.replace(row["anchor"], row["replacement"]), "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-m", "heavy", "--no-header", "-p", "no:cacheprovider",
         f"tests/appliance/test_launcher.py::{row['test']}"],
        env=os.environ | {NAMED: str(mutated)}, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout[-2000:]
    assert "AssertionError" in done.stdout or "E       assert" in done.stdout, done.stdout[-2000:]
