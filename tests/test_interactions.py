"""tests/interactions.toml: every two features of a run meet in a test, or are independent for a reason.

It owns what it means that a test exercises a feature: its parameter names it where the run is built from features, and
else a word of that feature stands in its source, or in that of a function of its file that it uses.
"""

from __future__ import annotations

import ast
import tomllib
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from stories.meetings import FEATURES
from stories.test_features_meet import PAIRS

ROOT = Path(__file__).parent.parent
TABLE: dict[str, Any] = tomllib.loads((ROOT / "tests" / "interactions.toml").read_text("utf-8"))
WORDS: dict[str, list[str]] = TABLE["features"]
ROWS: list[dict[str, Any]] = TABLE["pair"]
BUILT = "tests/stories/test_features_meet.py::test_two_features_meet"
LEAST = 55
"""Pairs of the 78 that are exercised together, and not only declared."""


def said(path: Path, name: str) -> str:
    """The source of a test and of every function of its file that it leads to; empty where there is none."""
    text = path.read_text("utf-8") if path.is_file() else ""
    bodies = {
        node.name: node
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    wanted, seen = [name], dict[str, str]()
    while wanted:
        at = wanted.pop()
        if at in bodies and at not in seen:
            seen[at] = ast.get_source_segment(text, bodies[at]) or ""
            wanted += [node.id for node in ast.walk(bodies[at]) if isinstance(node, ast.Name)]
    return "\n".join(seen.values())


def wrong(row: dict[str, Any], root: Path = ROOT) -> list[str]:
    """What is wrong with a row, a sentence each."""
    pair = tuple(row["features"])
    if set(row) == {"features", "independent"}:
        return [] if len(row["independent"]) > 20 else [f"{pair}: a reason is a sentence"]
    if set(row) != {"features", "test"} or not row["test"]:
        return [f"{pair}: a row names tests, or a reason"]
    found = []
    for test in row["test"]:
        file, _, name = test.partition("::")
        function, _, parameter = name.rstrip("]").partition("[")
        if test.startswith(BUILT):
            if pair not in PAIRS or parameter != "-".join(pair):
                found.append(f"{pair}: {test} is built from others")
            continue
        source = said(root / file, function)
        if not source or parameter:
            found.append(f"{pair}: {test} does not exist")
            continue
        found += [
            f"{pair}: {test} does not use {feature}"
            for feature in pair
            if not any(word in source for word in WORDS[feature])
        ]
    return found


def test_every_two_features_have_one_row() -> None:
    """Thirteen features, 78 pairs, each once; most of them in a run that has both."""
    assert list(WORDS) == list(FEATURES) and len(FEATURES) == 13
    assert [tuple(row["features"]) for row in ROWS] == list(combinations(FEATURES, 2))
    assert len(ROWS) == 78 and sum("test" in row for row in ROWS) >= LEAST


@pytest.mark.parametrize("row", ROWS, ids=["-".join(row["features"]) for row in ROWS])
def test_the_tests_of_a_pair_exist_and_use_both(row: dict[str, Any]) -> None:
    """Whoever removes a test, or takes a feature out of it, hears of it here."""
    assert wrong(row) == []


def test_what_is_built_is_what_the_table_names() -> None:
    """No pair is built that the table does not name, and the other way round."""
    built = {test for row in ROWS for test in row.get("test", []) if test.startswith(BUILT)}
    assert built == {f"{BUILT}[{'-'.join(pair)}]" for pair in PAIRS}


def test_a_row_that_holds_nothing_is_found(tmp_path: Path) -> None:
    """Planted: a test that is gone, one that uses one of the two, one whose helper uses the other, an empty reason."""
    (tmp_path / "test_a.py").write_text(
        "def waits(cx):\n    return cx.sleep(hours=1)\n\n"
        "def test_one(cx):\n    cx.gather()\n\n"
        "def test_two(cx):\n    waits(cx.gather())\n"
    )
    row: dict[str, Any] = {"features": ["suspend", "gather"], "test": ["test_a.py::test_one", "test_a.py::test_gone"]}
    assert wrong(row, tmp_path) == [
        "('suspend', 'gather'): test_a.py::test_one does not use suspend",
        "('suspend', 'gather'): test_a.py::test_gone does not exist",
    ]
    assert wrong({"features": ["suspend", "gather"], "test": ["test_a.py::test_two"]}, tmp_path) == []
    assert wrong({"features": ["suspend", "gather"], "test": [f"{BUILT}[suspend-held]"]}) != []
    assert wrong({"features": ["suspend", "gather"], "test": []}) != []
    assert wrong({"features": ["suspend", "gather"], "independent": "no"}) != []
