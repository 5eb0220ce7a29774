"""``packaging/bench_peers.sh``: agentplane and its peers in turns, on one disk.

Owns the order of the rounds and what they come to. Refuses to compare medians taken at different times: a ratio is that
of two processes that ran one after the other, and what is printed is the median of those. Invariant: every peer's round
has a round of ours directly before it, with the same sizes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parent))

from environments import Environment, Missing, made
from report import printed
from rounds import SideFailed, Sizes, measure, syncs

PAIRS = (("dbos", "default"), ("dbos", "wal-full"), ("langgraph", "default"), ("restate", "default"))
PEERS = ("dbos", "langgraph", "restate")
BUDGET_S = 270.0
"""No round begins when it would probably end later than this, in seconds after set-up; the first always does."""
SLOW = 2.0
"""A form this many times slower than its side's fastest, in both parts of its first round, is not timed again."""
PARTS = ("one", "many")


class Pair:
    """One peer at one setting, and ours beside it: the rounds that were timed."""

    def __init__(self, side: str, setting: str) -> None:
        self.side = side
        self.setting = setting
        self.forms: list[str] = []
        self.ours: list[dict[str, Any]] = []
        self.peer: list[dict[str, Any]] = []
        self.failed: str | None = None
        self.syncs: dict[str, float | None] = {}

    def turn(self, ours: Environment, peer: Environment, sizes: Sizes, where: Path) -> None:
        """One round of ours and one of the peer's. A side that fails ends the pair."""
        running = "ours"
        try:
            mine = measure(ours, "default", [], sizes, where)
            running = self.side
            theirs = measure(peer, self.setting, self.forms, sizes, where)
        except SideFailed as failure:
            self.failed = f"{running}: {failure}"
            return
        self.ours.append(mine)
        self.peer.append(theirs)
        if not self.forms:
            rows = theirs["forms"]
            best = {part: max(row[part] or 0.0 for row in rows) for part in PARTS}
            self.forms = [
                row["form"] for row in rows if any(row[part] and row[part] * SLOW > best[part] for part in PARTS)
            ]

    def fastest(self, part: str) -> str:
        """The peer's form with the best median of ``part``, among those that every round timed."""
        return max(self.forms, key=lambda form: statistics.median(self.rates(form, part) or [0.0]))

    def rates(self, form: str, part: str) -> list[float]:
        rows = [row for said in self.peer for row in said["forms"] if row["form"] == form]
        return [row[part] for row in rows if row[part]]

    def row(self) -> dict[str, Any]:
        """What the rounds come to."""
        first = self.peer[0]
        row: dict[str, Any] = {
            "side": first["side"], "key": self.side, "version": first["version"], "setting": self.setting,
            "durability": first["durability"], "rounds": len(self.peer), "syncs_per_step": self.syncs,
            "left_out_after_first_round": [one["form"] for one in first["forms"] if one["form"] not in self.forms],
        }  # fmt: skip
        for part in PARTS:
            form = self.fastest(part)
            theirs = self.rates(form, part)
            ours = [said["forms"][0][part] for said in self.ours]
            ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
            row[part] = {"form": form, "peer": spread(theirs), "ours": spread(ours), "ratio": spread(ratios)}
        return row


def spread(numbers: list[float]) -> dict[str, float]:
    return {"median": statistics.median(numbers), "min": min(numbers), "max": max(numbers)}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench_peers.sh",
        description="Times 1 workflow of 500 steps and 50 concurrent ones of 20, here and on other durable runtimes.",
    )
    parser.add_argument(
        "--directory", type=Path, help="where every store lies (default: the system's temporary directory)"
    )
    parser.add_argument(
        "--cache", type=Path, help="where the environments are made and kept (default: temporary, not kept)"
    )
    parser.add_argument("--only", choices=PEERS, action="append", help="this peer alone (repeatable)")
    parser.add_argument(
        "--rounds", type=int, choices=range(1, 21), metavar="1..20", default=5, help="rounds of every pair (default 5)"
    )
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    return parser.parse_args()


def told(line: str) -> None:
    print(f"bench_peers: {line}", file=sys.stderr, flush=True)


@contextmanager
def a_directory(wanted: Path | None, prefix: str, keep: bool = False) -> Iterator[Path]:
    """``wanted`` itself to keep what is made in it, or a temporary directory in it. Raises Missing."""
    try:
        if wanted is not None and keep:
            wanted.mkdir(parents=True, exist_ok=True)
            kept = temporary = wanted
        else:
            kept, temporary = None, Path(tempfile.mkdtemp(prefix=prefix, dir=wanted))
    except OSError as error:
        raise Missing(f"{wanted or 'the temporary directory'} cannot be used: {error.strerror or error}") from None
    try:
        yield temporary.resolve()
    finally:
        if kept is None:
            shutil.rmtree(temporary, ignore_errors=True)


def ready(wanted: list[str], cache: Path) -> tuple[dict[str, Environment], dict[str, str]]:
    """The environments that could be had, and why the others could not. Raises Missing without ours."""
    have, without = {"agentplane": made("agentplane", cache)}, {}
    for side in wanted:
        try:
            have[side] = made(side, cache)
        except Missing as missing:
            without[side] = str(missing)
            told(f"{side} is left out: {missing}.")
    return have, without


def run(pairs: list[Pair], have: dict[str, Environment], rounds: int, sizes: Sizes, where: Path) -> None:
    """All pairs' first rounds, then all their second ones: what the machine does meanwhile falls on all alike."""
    began = time.monotonic()
    longest = 0.0
    for number in range(rounds):
        if number and time.monotonic() - began + longest > BUDGET_S:
            told(f"{number} of {rounds} rounds; another would not end within {BUDGET_S:.0f} s.")
            break
        started = time.monotonic()
        for pair in pairs:
            if pair.failed is None:
                told(f"{time.monotonic() - began:5.0f} s  round {number + 1} of {rounds}: {pair.side} {pair.setting}")
                pair.turn(have["agentplane"], have[pair.side], sizes, where)
        longest = max(longest, time.monotonic() - started)


def traced(pairs: list[Pair], have: dict[str, Environment], sizes: Sizes, where: Path) -> dict[str, float | None]:
    """Count the syncs of ours and of each pair's fastest form; ours are returned."""
    if not any(pair.peer for pair in pairs):
        return {}
    told("counting syncs")
    try:
        ours = syncs(have["agentplane"], "default", "nursery", sizes, where)
    except SideFailed as failure:
        told(f"syncs are not counted: {failure}.")
        return {}
    for pair in pairs:
        if pair.peer:
            try:
                pair.syncs = syncs(have[pair.side], pair.setting, pair.fastest("one"), sizes, where)
            except SideFailed as failure:
                told(f"syncs of {pair.side} {pair.setting} are not counted: {failure}.")
    return ours


def main() -> int:
    args = arguments()
    sizes = Sizes()
    with a_directory(args.cache, "peers-cache-", keep=True) as cache, a_directory(args.directory, "peers-") as where:
        have, without = ready([side for side in PEERS if side in (args.only or PEERS)], cache)
        pairs = [Pair(side, setting) for side, setting in PAIRS if side in have]
        began = time.monotonic()
        run(pairs, have, 1 if args.quick else args.rounds, sizes, where)
        ours = traced(pairs, have, sizes, where)
        took = time.monotonic() - began
    for pair in pairs:
        if pair.failed:
            told(f"{pair.side} {pair.setting} failed: {pair.failed}.")
    done = [pair for pair in pairs if pair.peer]
    said = {
        "schema": "agentplane.peers/1",
        "version": done[0].ours[0]["version"] if done else None,
        "durability": done[0].ours[0]["durability"] if done else None,
        "syncs_per_step": ours,
        "sizes": sizes._asdict(),
        "took_s": took,
        "rows": [pair.row() for pair in done],
        "left_out": without,
        "failed": {f"{pair.side} {pair.setting}": pair.failed for pair in pairs if pair.failed},
    }
    print(json.dumps(said, indent=2) if args.json else printed(said))
    return status(said)


def status(said: dict[str, Any]) -> int:
    """1 when a side failed, 4 when one could not be had; Restate alone may be missing where others were measured."""
    if said["failed"]:
        return 1
    return 4 if set(said["left_out"]) - {"restate"} or not said["rows"] else 0


def stop(number: int, _frame: object) -> NoReturn:
    """Told to stop: unwind, so that processes, stores and a temporary cache go."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, stop)
    try:
        sys.exit(main())
    except Missing as nothing:
        told(f"{nothing}.")
        sys.exit(4)
