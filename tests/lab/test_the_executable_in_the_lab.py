"""The executable under the lab's kills: it passes, and one that was built from a sabotaged source does not. (S167)"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentplane.lab import sabotage
from appliance.executable import TRIALS, build, executable
from surface.terminals import environment

pytestmark = pytest.mark.heavy


def demo(*arguments: str, program: list[str] | None = None) -> tuple[int, dict[str, Any], str]:
    """The lab's status, its JSON and its words."""
    command = program or [sys.executable, "-m", "agentplane.cli.main"]
    done = subprocess.run(
        [*command, "demo", "--json", *arguments], capture_output=True, text=True, timeout=240, check=False,
        env=environment(),
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


def test_the_executable_survives_the_lab() -> None:
    """As the appliance that is killed, and as the lab that kills it: the same program in both places."""
    status, said, words = demo("--kills", "12", "--seed", "5", program=[str(executable())])
    assert (status, said["verdict"]) == (0, "PASS"), words


def test_an_executable_from_a_sabotaged_source_fails(tmp_path: Path) -> None:
    """Built by the packaged script from a copy in which one approval allows as many refunds as are asked for."""
    source = sabotage.copy("approve-twice", tmp_path / "source")
    made = build(TRIALS / "sabotaged", "--source", str(source), kept=False)
    status, said, words = demo("--kills", "12", "--seed", "5", "--appliance", str(made))
    assert (status, said["verdict"]) == (1, "FAIL"), words
    assert "has 2 refunds" in words


def test_the_executable_has_no_source_to_sabotage(tmp_path: Path) -> None:
    """It says so, and what to do, and that it was asked the wrong thing (status 2); so with what is no executable."""
    status, _, words = demo("--sabotage", "announce-late", program=[str(executable())])
    assert status == 2 and "needs the source" in words and "packaging/demo.sh" in words
    status, _, words = demo("--appliance", str(tmp_path))
    assert status == 2 and "is no executable file" in words
    status, _, words = demo("--appliance", str(executable()), "--sabotage", "announce-late")
    assert status == 2 and "build that copy" in words
