"""A coverage-guided fuzzer over every parser of outside bytes.

    python tests/fuzz/guided.py [--target NAME]... [--seconds N] [--seed N] [--corpus DIR]

Needs atheris, which is installed on first use from packaging/locks/fuzz.txt, beside the environment and never into it.
Every target runs in a process of its own with 2 GB and 10 s an input at most. A finding is printed with the input
that shows it; leaves with 0 (nothing found), 1 (a finding) or 4 (the fuzzer cannot be had).
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
LOCK = ROOT / "packaging" / "locks" / "fuzz.txt"
INPUT_S = 10
MEMORY_MB = 2048
_RUNS = re.compile(r"Done (\d+) runs|stat::number_of_executed_units: (\d+)")
_COVERED = re.compile(r"cov: (\d+)")
_RAISED = re.compile(r"Uncaught Python exception: ===\n(.+)")


class Missing(Exception):
    """The fuzzer cannot be had, in one sentence."""


def fuzzer() -> Path:
    """The directory that holds atheris; installed from its lock when it is not there yet. Raises Missing."""
    for place in (Path(sys.prefix) / "share" / "agentplane-fuzz", Path(tempfile.gettempdir()) / f"fuzz-{os.getuid()}"):
        if (place / "atheris").is_dir():
            return place
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        except PermissionError:
            continue
        done = subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--target", str(place),
             "--disable-pip-version-check", "-r", str(LOCK)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise Missing(f"the fuzzer could not be installed from {LOCK.name}: {done.stderr.strip()[-300:]}")
        return place
    raise Missing("there is no place to install the fuzzer in")


def one(name: str, seconds: int, seed: int, corpus: Path) -> None:
    """The child: fuzz one target until the time is over. Does not return."""
    import atheris

    with atheris.instrument_imports(include=["agentplane", "fuzz.planted"], enable_loader_override=False):
        from fuzz import planted
        from fuzz.targets import TARGETS, Target
    target = TARGETS.get(name) or Target("planted", planted.parse, (ValueError,), (b"seed",), 64)
    kept = corpus / name
    kept.mkdir(parents=True, exist_ok=True)
    for number, raw in enumerate(target.seeds):
        (kept / f"seed-{number}").write_bytes(raw)
    atheris.Setup(
        [sys.argv[0], str(kept), f"-seed={seed}", f"-max_total_time={seconds}", f"-timeout={INPUT_S}",
         f"-rss_limit_mb={MEMORY_MB}", f"-max_len={min(target.most, 65_536)}", f"-artifact_prefix={corpus}/{name}-",
         "-print_final_stats=1"],
        target.feed,
    )  # fmt: skip
    atheris.Fuzz()


def run(name: str, seconds: int, seed: int, corpus: Path, place: Path) -> tuple[bool, str]:
    """Whether nothing was found in one target, and its line."""
    began = time.monotonic()
    paths = os.pathsep.join((str(ROOT), str(ROOT / "tests"), str(place)))
    done = subprocess.run(
        [sys.executable, __file__, "--child", name, "--seconds", str(seconds), "--seed", str(seed),
         "--corpus", str(corpus)],
        capture_output=True, text=True, errors="replace", check=False, env=os.environ | {"PYTHONPATH": paths},
        timeout=seconds + 120,
    )  # fmt: skip
    said = done.stdout + done.stderr
    runs = max((int(a or b) for a, b in _RUNS.findall(said)), default=0)
    covered = max((int(found) for found in _COVERED.findall(said)), default=0)
    line = f"{runs:>9,} inputs {covered:>6,} edges {time.monotonic() - began:5.1f} s"
    if done.returncode == 0:
        return True, f"{name:16} ok      {line}"
    raised = _RAISED.search(said)
    why = raised.group(1)[:200] if raised else said.strip().splitlines()[-1][:200] if said.strip() else "no word"
    shown = sorted(corpus.glob(f"{name}-*"), key=lambda path: path.stat().st_mtime)
    raw = f"; the input: {shown[-1].read_bytes()[:200]!r}" if shown else ""
    return False, f"{name:16} FOUND   {line}: {why}{raw}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--target", action="append", default=[])
    parser.add_argument("--seconds", type=int, default=20, help="a target (default 20)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1, 2**31))
    parser.add_argument("--corpus", type=Path, help="keep what was found here, and begin with what it holds")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        one(args.child, args.seconds, args.seed, args.corpus)
        return 0
    try:
        place = fuzzer()
    except Missing as error:
        print(f"guided.py: {error}", file=sys.stderr)
        return 4
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    from fuzz.targets import TARGETS

    found = 0
    print(f"seed {args.seed}, {args.seconds} s a target", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        for name in args.target or TARGETS:
            if name not in TARGETS and name != "planted":
                print(f"guided.py: there is no target {name}; there are {', '.join(TARGETS)}", file=sys.stderr)
                return 2
            well, line = run(name, args.seconds, args.seed, args.corpus or Path(scratch), place)
            found += not well
            print(line, flush=True)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
