"""Real processes for stories whose subject is a process: started from source, told apart by what they print.

A child is a program of its own in a directory of the test; it imports the product from the checkout and prints JSON
lines.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from house.ratchet import ROOT

PATIENCE_S = 120


def _no_core() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}", "PYTHONHASHSEED": "0"}


def run_to_its_end(program: Path, *arguments: str) -> tuple[int, list[Any]]:
    """The status of the program, and the JSON lines it printed before it ended."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program), *arguments],
        capture_output=True, text=True, env=_environment(), timeout=PATIENCE_S, check=False, preexec_fn=_no_core,
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(("{", "["))]
    if done.returncode > 0:
        raise AssertionError(done.stderr)
    return done.returncode, lines


@contextmanager
def running(program: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The program, started; ended with the block."""
    child = subprocess.Popen(
        [sys.executable, "-W", "error", str(program), *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_environment(),
    )  # fmt: skip
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def next_line(child: subprocess.Popen[str]) -> Any:
    """The next JSON line that the child prints; its own words when it ended instead."""
    assert child.stdout is not None and child.stderr is not None
    line = child.stdout.readline()
    if not line:
        raise AssertionError(child.stderr.read())
    return json.loads(line)
