"""One round of one side: a fresh process over a fresh store, timed or traced.

Owns the processes. Refuses an answer that is not whole. Invariant: when ``measure`` returns or raises, the process, all
that it started, and its store are gone.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from environments import Environment

SIDE_S = 240.0
"""How long one process may take, in seconds."""
SYNC = re.compile(r"^(?:\d+ +)?(\d+\.\d+) (?:fsync|fdatasync)\(")


class SideFailed(Exception):
    """A process of a side did not answer, in one sentence."""


class Sizes(NamedTuple):
    """How much one measurement does."""

    steps: int = 500
    flows: int = 50
    each: int = 20


def measure(
    environment: Environment, setting: str, forms: list[str], sizes: Sizes, where: Path, before: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Run one side once and answer its line of JSON. ``before`` is put in front of the command. Raises SideFailed."""
    with tempfile.TemporaryDirectory(prefix="store-", dir=where, ignore_cleanup_errors=True) as store:
        command = [*before, str(environment.python), str(environment.program), "--directory", store]
        command += ["--setting", setting, *environment.extra, *(f"--form={form}" for form in forms)]
        command += [f"--{name}={number}" for name, number in sizes._asdict().items()]
        process = subprocess.Popen(
            command, env=environment.variables, cwd=store, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, process_group=0,
        )  # fmt: skip
        try:
            out, err = process.communicate(timeout=SIDE_S)
        except subprocess.TimeoutExpired:
            raise SideFailed(f"it did not end within {SIDE_S:.0f} s") from None
        finally:
            end_group(process)
    if process.returncode:
        words = err.decode("utf-8", "replace").strip().splitlines()[-1:] or ["nothing said"]
        raise SideFailed(f"it ended with status {process.returncode}: {words[0][:300]}")
    try:
        said = json.loads(out.decode("utf-8").strip().splitlines()[-1])
    except (ValueError, IndexError):
        raise SideFailed("its last line is not JSON") from None
    if not isinstance(said, dict) or not said.get("forms"):
        raise SideFailed("its last line has no measurement")
    return said


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End the process and whatever it started, if anything is left."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def syncs(environment: Environment, setting: str, form: str, sizes: Sizes, where: Path) -> dict[str, float | None]:
    """fsync and fdatasync calls a step of each part, counted by strace in a run whose times nobody reads.

    Raises SideFailed, also where strace is missing or may not trace.
    """
    strace = shutil.which("strace")
    if strace is None:
        raise SideFailed("strace is not on PATH")
    with tempfile.TemporaryDirectory(prefix="trace-", dir=where) as made:
        trace = Path(made) / "calls"
        before = (strace, "-f", "-qq", "--seccomp-bpf", "-ttt", "-e", "trace=fsync,fdatasync", "-o", str(trace))
        said = measure(environment, setting, [form], sizes, where, before)
        lines = trace.read_text("utf-8", "replace").splitlines()
    at = [float(match[1]) for match in map(SYNC.match, lines) if match]
    row = said["forms"][0]

    def inside(span: list[float] | None, steps: int) -> float | None:
        return None if span is None else sum(span[0] <= moment <= span[1] for moment in at) / steps

    return {
        "one": inside(row["span_one"], sizes.steps),
        "many": inside(row["span_many"], sizes.flows * sizes.each),
    }
