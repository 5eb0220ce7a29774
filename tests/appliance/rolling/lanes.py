"""Several modes, and parts of long ones, side by side: each is a process with its own plane, provider and clients.

Owns how many there are at once and how their reports become one a mode. Refuses to give a verdict on a part that did
not end: it is a FAIL with the reason. Invariant: whatever was started has ended when ``rolled`` returns or raises.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from appliance.executable import NAMED, executable
from appliance.rolling.report import Mode, as_text, joined
from appliance.rolling.verdict import verdict

TESTS = Path(__file__).parent.parent.parent
PART = 150
"""Restarts of one plane: more are done by several, so that a long sweep takes no hours."""
BESIDE = 3
"""Planes at once. A restart waits for its longest effect and not for a processor: two carry four of them."""
LOOK_S = 0.1
PARTING_S = 20.0
SCHEMA = "rolling/1"


class Part(NamedTuple):
    """So many restarts of one plane."""

    mode: str
    restarts: int
    seed: int


@dataclass
class Judged:
    """One mode with what is wrong with it; ``report`` is None where a part did not end."""

    mode: str
    wanted: int
    wrong: list[str]
    report: Mode | None

    def as_dict(self) -> dict[str, Any]:
        report = None if self.report is None else self.report.as_dict()
        return {"mode": self.mode, "wanted": self.wanted, "wrong": self.wrong, "report": report}

    def text(self) -> str:
        """The whole report for people, the verdict last."""
        shown = self.mode if self.report is None else as_text(self.report)
        return "\n".join([shown, self.word])

    @property
    def word(self) -> str:
        return "\n".join(["FAIL", *self.wrong]) if self.wrong else "PASS"


def split(wanted: Mapping[str, int], seed: int) -> list[Part]:
    """The parts of so many restarts of each mode, long ones first."""
    parts = []
    for mode, restarts in wanted.items():
        many = math.ceil(restarts / PART)
        parts += [Part(mode, restarts // many + (at < restarts % many), seed + at) for at in range(many)]
    return sorted(parts, key=lambda part: -part.restarts)


def rolled(wanted: Mapping[str, int], seed: int, directory: Path, *, beside: int = BESIDE) -> list[Judged]:
    """Roll so many restarts of each mode and judge them. ``directory`` is for the reports of the parts."""
    ended = _all_of(split(wanted, seed), directory, beside)
    return [
        _judged(mode, restarts, {p: at for p, at in ended.items() if p.mode == mode})
        for mode, restarts in wanted.items()
    ]


def _all_of(parts: list[Part], directory: Path, beside: int) -> dict[Part, tuple[int, Path]]:
    """Exit status and file of each part."""
    program, waiting = executable(), list(parts)
    running: dict[Part, tuple[subprocess.Popen[bytes], Path]] = {}
    ended: dict[Part, tuple[int, Path]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < beside:
                part = waiting.pop(0)
                file = directory / f"{part.mode}-{part.seed}.json"
                running[part] = (_begin(part, program, file), file)
            for part, (process, file) in list(running.items()):
                status = process.poll()
                if status is not None:
                    ended[part] = (status, file)
                    del running[part]
            time.sleep(LOOK_S)
    finally:
        for process, _ in running.values():
            process.terminate()
        for process, _ in running.values():
            process.wait(PARTING_S)
    return ended


def _begin(part: Part, program: Path, file: Path) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "appliance.rolling", "--part", part.mode, str(part.restarts)]
    path = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    return subprocess.Popen(
        [*argv, "--seed", str(part.seed), "--json", str(file)],
        cwd=TESTS,
        env=os.environ | {NAMED: str(program), "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )


def _judged(mode: str, restarts: int, ended: Mapping[Part, tuple[int, Path]]) -> Judged:
    broken = [
        f"{part.restarts} restarts of seed {part.seed} ended with status {status} and without a report"
        for part, (status, file) in ended.items()
        if not file.is_file()
    ]
    if broken:
        return Judged(mode, restarts, broken, None)
    report = joined([Mode.of(json.loads(file.read_text())) for _, file in ended.values()])
    return Judged(mode, restarts, verdict(report, restarts), report)
