"""The table of mutants is sound, its runner can fail, and every row is killed by its named test.

The whole table takes minutes and is `heavy`; a few rows of it, and a planted table of every other ending, are run here.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import mutants
from test_rules import RULES, docstrings

ROOT = Path(__file__).parent.parent
LAUNCHER = ROOT / "tests" / "appliance" / "launcher_mutants.toml"
"""Of what is not Python; test_launcher_mutants.py plants it."""
GUARANTEE = re.compile(r"((?:[PWLS]\d+)(?:, [PWLS]\d+)*): [^\n]+\.")
CHEAP = ["a-jump-is-believed", "landed-waits", "another-terminal-answers"]
CLOCK = "tests/rules/test_clock.py::test_while_running_elapsed_boot_time_is_the_witness"

# How a row may end beside being killed. The anchors are of core/clock.py, which CLOCK looks at.
OTHERWISE = {
    "survived": ('"""Why the clock is suspect when', '"""Why a clock is suspect when', CLOCK),
    "does not import": ("def suspect_while_running(", "def suspect_while_running(:", CLOCK),
    "error": ("drift_ms = (wall_ms - wall_then_ms)", "drift_ms = 1 // 0 + (wall_ms - wall_then_ms)", CLOCK),
    "stale": ("this text is nowhere in that file", "", CLOCK),
    "fails without it": ("if wall_ms < last_record_ms:", "if False:", CLOCK.replace("running", "sleeping")),
}  # fmt: skip


def run(*args: str) -> tuple[int, Any]:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "mutants.py"), "--json", *args],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def planted(path: Path, rows: list[dict[str, str]]) -> str:
    """A table with these rows; JSON's strings are TOML's."""
    lines = ["\n".join(["[[mutant]]", *(f"{name} = {json.dumps(text)}" for name, text in row.items())]) for row in rows]
    path.write_text("\n\n".join(lines))
    return str(path)


def row(name: str, anchor: str, replacement: str, test: str) -> dict[str, str]:
    return {
        "id": name.replace(" ", "-"), "guarantee": "L3: planted.", "file": "core/clock.py", "anchor": anchor,
        "replacement": replacement, "test": test,
    }  # fmt: skip


def test_every_row_can_be_planted() -> None:
    """At least 45 rows; each anchor is in its file once, and what it is replaced by is something else."""
    table = mutants.read_table()
    assert len(table) >= 45
    found = {mutant.id: mutants.fault(mutant, ROOT / "agentplane") for mutant in table}
    assert {name: why for name, why in found.items() if why is not None} == {}


def test_every_row_names_rules_and_a_test_that_exist() -> None:
    """A guarantee begins with the numbers of rules that are built, and its test is one test of the suite."""
    built = {rule["id"] for rule in RULES if rule["built"]}
    for mutant in mutants.read_table():
        found = GUARANTEE.fullmatch(mutant.guarantee)
        assert found is not None and set(found[1].split(", ")) <= built, f"{mutant.id}: {mutant.guarantee}"
        file, _, name = mutant.test.partition("::")
        assert name and name in docstrings(ROOT / file), f"{mutant.id}: {mutant.test}"


def test_every_built_rule_is_broken_by_a_row() -> None:
    """A rule that no row removes might as well not be held by anything."""
    said = [mutant.guarantee for mutant in mutants.read_table()]
    said += [one["guarantee"] for one in tomllib.loads(LAUNCHER.read_text("utf-8"))["mutant"]]
    broken = {number for guarantee in said for number in guarantee.partition(":")[0].split(", ")}
    assert {rule["id"] for rule in RULES if rule["built"]} - broken == set()


def test_a_few_rows_are_killed() -> None:
    """From the command to the table: three cheap ones, for real."""
    status, said = run(*(part for name in CHEAP for part in ("--id", name)))
    assert [(one["id"], one["ended"]) for one in said["rows"]] == [
        (mutant.id, "killed") for mutant in mutants.read_table() if mutant.id in CHEAP
    ]
    assert status == 0 and len(said["rows"]) == len(CHEAP)


def test_the_runner_can_fail(tmp_path: Path) -> None:
    """What changes nothing survives; what does not import, an error, a stale anchor and a missing test are no kills."""
    rows = [row(name, *planting) for name, planting in OTHERWISE.items()]
    status, said = run("--table", planted(tmp_path / "table.toml", rows))
    assert [one["ended"] for one in said["rows"]] == list(OTHERWISE)
    assert status == 1


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([row("twice", "a", "b", CLOCK)] * 2, "twice"),
        ([row("more", "a", "b", CLOCK) | {"why": "c"}], "exactly the texts"),
        ([{"id": "less"}], "exactly the texts"),
    ],
)
def test_a_table_that_is_none_is_refused(tmp_path: Path, rows: list[dict[str, str]], sentence: str) -> None:
    """In one sentence, before anything is run."""
    with pytest.raises(ValueError, match=sentence):
        mutants.read_table(Path(planted(tmp_path / "table.toml", rows)))


@pytest.mark.heavy
def test_a_row_that_hangs_is_cut_and_not_killed(tmp_path: Path) -> None:
    """A test that never ends says nothing of the guarantee."""
    forever = row("forever", "drift_ms = (wall_ms", "while True:\n        pass\n    drift_ms = (wall_ms", CLOCK)
    status, said = run("--limit", "15", "--table", planted(tmp_path / "table.toml", [forever]))
    assert [one["ended"] for one in said["rows"]] == ["hung"] and status == 1


@pytest.mark.heavy
def test_every_row_is_killed_by_its_named_test() -> None:
    """The whole table: each guarantee, removed, is missed by an assertion of the test that holds it."""
    status, said = run()
    assert {one["id"]: (one["ended"], one["by"]) for one in said["rows"] if one["ended"] != "killed"} == {}
    assert status == 0 and len(said["rows"]) == len(mutants.read_table())
