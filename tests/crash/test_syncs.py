"""What a sequential run pays in syncs, counted by the kernel."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

EFFECTS = 200


def test_a_sequential_run_pays_about_one_sync_an_effect(need_tool: Callable[[str], str], tmp_path: Path) -> None:
    """Outcome and next announcement share one commit; opening, checkpoints and closing add a handful."""
    strace = need_tool("strace")
    counts = tmp_path / "counts"
    script = Path(__file__).with_name("sequential.py")
    done = subprocess.run(
        [strace, "-f", "-o", str(counts), "-e", "trace=fsync,fdatasync", sys.executable, str(script), str(EFFECTS)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.startswith("succeeded"), done.stderr
    syncs = len(re.findall(r"\b(?:fsync|fdatasync)\(", counts.read_text()))
    print(f"{EFFECTS} effects, {syncs} syncs")
    assert EFFECTS <= syncs <= EFFECTS * 1.15 + 12
