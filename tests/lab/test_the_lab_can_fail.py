"""The sabotages fit the source as it is: each text occurs once, the copy still imports, and the product's own files
are not touched."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import agentplane
from agentplane.lab import sabotage


@pytest.mark.parametrize("name", sabotage.SABOTAGES)
def test_a_sabotaged_copy_imports_and_differs(name: str, tmp_path: Path) -> None:
    """Every mutation of the sabotage is in the copy, and nothing else is."""
    source = Path(agentplane.__file__).parent
    before = {path: path.read_bytes() for path in source.rglob("*.py")}
    copied = sabotage.copy(name, tmp_path / "copy")
    changed = {
        path.relative_to(source).as_posix()
        for path, raw in before.items()
        if (copied / "agentplane" / path.relative_to(source)).read_bytes() != raw
    }
    assert changed == {file for file, _, _ in sabotage.SABOTAGES[name]}
    assert {path: path.read_bytes() for path in before} == before
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import agentplane.lab.displaced, agentplane.appliance.serve; print(agentplane.__file__)",
        ],
        env={"PYTHONPATH": str(copied), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0 and done.stdout.strip().startswith(str(copied)), done.stderr
