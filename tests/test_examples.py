"""The programs of docs/examples: each runs as it stands, and prints what docs/undo.md or docs/outlive.md shows behind
its name."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
PAGES = "".join((DOCS / name).read_text() for name in ("undo.md", "outlive.md"))
SHOWN = dict(re.findall(r"\[examples/(\w+\.py)\]\(examples/\1\)\n\n```\n(.*?)```", PAGES, re.DOTALL))
PROGRAMS = sorted(path.name for path in (DOCS / "examples").glob("*.py"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_example_prints_what_its_page_shows(name: str) -> None:
    """No more and no less, on standard output, with nothing on standard error."""
    ran = subprocess.run(
        [sys.executable, DOCS / "examples" / name], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == SHOWN[name]


def test_every_tool_has_its_example() -> None:
    """The page names every program, and every program is named."""
    named = "approval.py atomic.py budget.py cancel.py case.py event.py group.py plan.py saga.py wait.py"
    assert sorted(SHOWN) == PROGRAMS == named.split()
