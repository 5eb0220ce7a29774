"""Guarantees removed one by one: each row of mutants.toml is planted in a copy, and its test must miss it.

    python tests/mutants.py [--id ID]... [--jobs 2] [--json] [--table FILE] [--limit 90]

It owns the copy, the child that runs one test in it, and the word for how that ended. It never touches the working
tree: the product comes from a copy, the tests are read where they are. A child is forked from a process that has
imported what the tests lean on and nothing of the product, so that a row costs little more than its test.

`killed` is one thing only: the mutated module imports, the test passes without the mutation, and fails with it by an
assertion (AssertionError or pytest.fail, also inside a group). Whatever else ends a test, an error, a skip, the time
limit (its own `fail_after` too), is no kill: a test that happens to trip over a break does not hold the guarantee.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import tomllib
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TABLE = Path(__file__).with_name("mutants.toml")
MEMBERS = ("id", "guarantee", "file", "anchor", "replacement", "test")
LIMIT_S = 90.0
"""One child's time for every four tests: those of the table take seconds, and a loaded machine makes some slow."""
BEFORE = ("pytest", "trio.testing", "apsw", "msgspec", "httpx", "outcome")
KILLED = "killed"


class Mutant(NamedTuple):
    """One row: where `anchor` stands in `file` (once, below agentplane/) there is `replacement`, and `test` fails."""

    id: str
    guarantee: str
    file: str
    anchor: str
    replacement: str
    test: str

    @property
    def module(self) -> str:
        return "agentplane." + self.file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


class Ended(NamedTuple):
    """How a row ended. `word`: killed, survived, hung, does not import, stale, or what else became of it."""

    mutant: Mutant
    word: str
    by: str
    seconds: float


def read_table(path: Path = TABLE) -> list[Mutant]:
    """The rows of a table. Raises ValueError with one sentence for one that is not a row."""
    rows = tomllib.loads(path.read_text("utf-8")).get("mutant", [])
    for row in rows:
        if sorted(row) != sorted(MEMBERS) or not all(isinstance(value, str) for value in row.values()):
            raise ValueError(
                f"A row has exactly the texts {', '.join(MEMBERS)}; {row.get('id', '?')} has {sorted(row)}."
            )
    mutants = [Mutant(**row) for row in rows]
    ids = [mutant.id for mutant in mutants]
    twice = sorted({one for one in ids if ids.count(one) > 1})
    if twice:
        raise ValueError(f"An id names one row; twice there: {', '.join(twice)}.")
    return mutants


def fault(mutant: Mutant, package: Path) -> str | None:
    """Why a row cannot be planted, in a sentence; None when it can."""
    path = package / mutant.file
    if not path.is_file():
        return f"agentplane/{mutant.file} does not exist"
    found = path.read_text("utf-8").count(mutant.anchor)
    if found != 1:
        return f"the anchor occurs {found} times in agentplane/{mutant.file}"
    return "the replacement is the anchor" if mutant.anchor == mutant.replacement else None


def plant(mutant: Mutant | None, base: Path, into: Path) -> Path:
    """A tree with the package of `base`, every file a link to it but the one that is mutated."""
    shutil.copytree(base / "agentplane", into / "agentplane", copy_function=os.link)
    if mutant is not None:
        path = into / "agentplane" / mutant.file
        text = path.read_text("utf-8")
        path.unlink()
        for stale in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            stale.unlink()
        path.write_text(text.replace(mutant.anchor, mutant.replacement), "utf-8")
    return into


# --- in the child ---------------------------------------------------------------------------------------------------


class Reports:
    """A plugin of pytest: for each test, what became of it, in order."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str]] = []

    def pytest_runtest_makereport(self, item: Any, call: Any) -> None:
        if call.excinfo is None:
            if call.when == "call":
                self.seen.append((item.nodeid, "passed", ""))
            return
        self.seen.append((item.nodeid, *judged(call.when, call.excinfo.value)))

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.seen.append((report.nodeid, "not collected", str(report.longrepr)[-200:]))


def judged(when: str, error: BaseException) -> tuple[str, str]:
    """The word for an exception that ended a phase of a test, and its first line."""
    import pytest

    held = next((one for one in leaves(error) if isinstance(one, AssertionError | pytest.fail.Exception)), None)
    if isinstance(error, pytest.skip.Exception):
        return "skipped", first_line(error)
    if when == "call" and held is not None:
        return KILLED, f"{type(held).__name__}: {first_line(held)}"
    other = next(leaves(error))
    return ("error" if when == "call" else f"error in {when}"), f"{type(other).__name__}: {first_line(other)}"


def leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from leaves(one)
    else:
        yield error


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:160] if lines else ""


def child(tree: Path, module: str | None, tests: list[str], answer: Path) -> None:
    """Run the tests against the package of `tree`; what became of each stands in `answer`."""
    os.setsid()
    with open(tree / "output", "wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    sys.path[:] = [str(tree), *(entry for entry in sys.path if entry not in ("", str(ROOT), str(ROOT / "tests")))]
    os.environ["PYTHONPATH"] = str(tree)
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(tree / "hypothesis")
    said: dict[str, Any] = {"imports": None, "seen": []}
    try:
        # Without a row too: a test that only starts processes imports nothing of the product itself.
        importlib.import_module("agentplane" if module is None else module)
    except BaseException as error:  # noqa: BLE001, RUF100 (whatever it is, it is the answer)
        said["imports"] = f"{type(error).__name__}: {first_line(error)}"
    else:
        said["seen"] = run_tests(tests, tree)
        package = Path(sys.modules["agentplane"].__file__ or "").resolve()
        if not package.is_relative_to(tree.resolve()):
            said["imports"] = f"the tests looked at {package}"
    answer.write_text(json.dumps(said), "utf-8")


def run_tests(tests: list[str], tree: Path) -> list[tuple[str, str, str]]:
    import pytest

    # Not the checkout: a program that a test starts with -m would find the product there.
    os.chdir(tree)
    reports = Reports()
    whole = [str(ROOT / test) for test in tests]
    quiet = ["-q", "--no-header", "-p", "no:cacheprovider", "--tb=short", "-m", "", f"--basetemp={tree / 't'}"]
    pytest.main([*quiet, f"--rootdir={ROOT}", "-c", str(ROOT / "pyproject.toml"), *whole], plugins=[reports])
    return reports.seen


# --- children, two at a time ----------------------------------------------------------------------------------------


class Job(NamedTuple):
    """What a child is asked: a mutant, or None for the tests without one."""

    mutant: Mutant | None
    tests: list[str]


def run_all(
    jobs: Iterable[Job], base: Path, scratch: Path, at_once: int, limit_s: float,
    told: Callable[[Job, dict[str, Any], float], None],
) -> None:  # fmt: skip
    """Run each job in a child of its own, `at_once` of them at a time. `told` hears each answer and its seconds."""
    waiting = list(enumerate(jobs))
    running: dict[int, tuple[Job, Path, float]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                number, job = waiting.pop(0)
                tree = plant(job.mutant, base, scratch / (f"{number}" if job.mutant else f"without-{number}"))
                sys.stdout.flush()
                sys.stderr.flush()
                pid = os.fork()
                if pid == 0:
                    _as_child(tree, job)
                running[pid] = (job, tree, time.monotonic())
            for pid in list(running):
                job, tree, began = running[pid]
                done, _ = os.waitpid(pid, os.WNOHANG)
                late = time.monotonic() - began > limit_s * max(1, len(job.tests) / 4)
                if done or late:
                    del running[pid]
                    _end(pid, reap=not done)
                    told(job, _answer(tree, hung=not done), time.monotonic() - began)
                    shutil.rmtree(tree, ignore_errors=True)
            time.sleep(0.01)
    finally:
        for pid in running:
            _end(pid, reap=True)


def _as_child(tree: Path, job: Job) -> None:
    try:
        child(tree, job.mutant.module if job.mutant else None, job.tests, tree / "answer.json")
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _end(pid: int, *, reap: bool) -> None:
    """End the child's whole group: what its test started goes with it."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    if reap:
        os.waitpid(pid, 0)


def _answer(tree: Path, *, hung: bool) -> dict[str, Any]:
    try:
        return {"hung": False, **json.loads((tree / "answer.json").read_text("utf-8"))}
    except (OSError, ValueError):
        with suppress(OSError):
            sys.stderr.write("" if hung else (tree / "output").read_text("utf-8", "replace")[-1500:])
        return {"hung": hung, "imports": None, "seen": []}


def word_of(answer: dict[str, Any]) -> tuple[str, str]:
    """What became of a row, from its child's answer."""
    if answer["hung"]:
        return "hung", "it was still running at its time limit"
    if answer["imports"] is not None:
        return "does not import", answer["imports"]
    seen = [(word, by) for _, word, by in answer["seen"]]
    for word, by in seen:
        if word == KILLED:
            return word, by
    failed = [(word, by) for word, by in seen if word != "passed"]
    if failed:
        return failed[0]
    return ("survived", "the test passes with it") if seen else ("not run", "the test does not exist, or died")


class Runner:
    """One pass over some rows. `ended` has one entry a row, in the order of the table."""

    def __init__(self, mutants: list[Mutant], jobs: int, limit_s: float = LIMIT_S, source: Path = ROOT) -> None:
        self.mutants = mutants
        self.jobs = jobs
        self.limit_s = limit_s
        self.source = source
        self._ended: dict[str, Ended] = {}

    @property
    def ended(self) -> list[Ended]:
        return [self._ended[mutant.id] for mutant in self.mutants if mutant.id in self._ended]

    def run(self) -> None:
        for name in BEFORE:
            importlib.import_module(name)
        sound = [mutant for mutant in self.mutants if not self._stale(mutant)]
        with tempfile.TemporaryDirectory(prefix="mut-") as directory:
            scratch = Path(directory)
            base = scratch / "base"
            shutil.copytree(self.source / "agentplane", base / "agentplane")
            failing = self._without(sorted({mutant.test for mutant in sound}), base, scratch)
            for mutant in sound:
                if mutant.test in failing:
                    self._end(mutant, "fails without it", failing[mutant.test], 0.0)
            rest = [Job(mutant, [mutant.test]) for mutant in sound if mutant.test not in failing]
            run_all(rest, base, scratch, self.jobs, self.limit_s, self._told)

    def _stale(self, mutant: Mutant) -> bool:
        why = fault(mutant, self.source / "agentplane")
        if why is not None:
            self._end(mutant, "stale", why, 0.0)
        return why is not None

    def _without(self, tests: list[str], base: Path, scratch: Path) -> dict[str, str]:
        """The tests that do not pass on the product as it is, and why."""
        why = dict.fromkeys(tests, "it does not exist, or died")
        failed: dict[str, str] = {}

        def told(job: Job, answer: dict[str, Any], seconds: float) -> None:
            for node, word, by in answer["seen"]:
                for test in job.tests:
                    if node == test or node.startswith(test + "["):
                        why.pop(test, None)
                        if word != "passed":
                            failed[test] = by or word
            sys.stderr.write(f"without any mutation: {len(job.tests)} tests, {seconds:.1f} s\n")

        shares = [tests[at :: self.jobs] for at in range(self.jobs)]
        run_all([Job(None, share) for share in shares if share], base, scratch, self.jobs, self.limit_s, told)
        return failed | why

    def _told(self, job: Job, answer: dict[str, Any], seconds: float) -> None:
        if job.mutant is not None:
            self._end(job.mutant, *word_of(answer), seconds)

    def _end(self, mutant: Mutant, word: str, by: str, seconds: float) -> None:
        self._ended[mutant.id] = Ended(mutant, word, by, seconds)
        sys.stderr.write(
            f"{len(self._ended):3}/{len(self.mutants)} {word:16} {mutant.id} ({seconds:.1f} s) {by[:100]}\n"
        )
        sys.stderr.flush()


def as_rows(ended: list[Ended]) -> list[dict[str, object]]:
    return [
        {"id": one.mutant.id, "guarantee": one.mutant.guarantee, "test": one.mutant.test, "ended": one.word,
         "by": one.by, "seconds": round(one.seconds, 2)}
        for one in ended
    ]  # fmt: skip


def table_text(ended: list[Ended], seconds: float) -> str:
    lines = ["| id | guarantee | test | killed by | s |", "|---|---|---|---|---|"]
    for one in ended:
        mutant, by = one.mutant, one.by.replace("|", "/")
        by = by if one.word == KILLED else f"**{one.word}**: {by}"
        lines.append(f"| {mutant.id} | {mutant.guarantee} | `{mutant.test}` | {by} | {one.seconds:.1f} |")
    killed = sum(one.word == KILLED for one in ended)
    return "\n".join([*lines, "", f"{killed} of {len(ended)} killed by their named test, {seconds:.0f} s in all"])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--id", action="append", default=[], help="only this row; may be repeated")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds after which a child is ended")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--table", type=Path, default=TABLE)
    asked = parser.parse_args(argv)
    try:
        mutants = read_table(asked.table)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"mutants: {error}\n")
        return 2
    unknown = sorted(set(asked.id) - {mutant.id for mutant in mutants})
    if unknown or asked.jobs < 1:
        sys.stderr.write(
            f"mutants: no row is called {', '.join(unknown)}\n" if unknown else "mutants: --jobs 1 or more\n"
        )
        return 2
    began = time.monotonic()
    runner = Runner([mutant for mutant in mutants if not asked.id or mutant.id in asked.id], asked.jobs, asked.limit)
    runner.run()
    seconds = time.monotonic() - began
    if asked.json:
        print(json.dumps({"rows": as_rows(runner.ended), "seconds": round(seconds, 1)}, indent=1))
    else:
        print(table_text(runner.ended, seconds))
    whole = len(runner.ended) == len(runner.mutants) > 0
    return 0 if whole and all(one.word == KILLED for one in runner.ended) else 1


if __name__ == "__main__":
    sys.exit(main())
