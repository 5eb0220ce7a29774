"""docs/rules.toml: every rule has its number, and tests that exist and cite it; no test cites a rule that is not there.

It owns what a citation is: the number in the docstring of a test, or of its module; `P1 to P9` cites all between.
"""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
RULES: list[dict[str, Any]] = tomllib.loads((ROOT / "docs" / "rules.toml").read_text("utf-8"))["rule"]
IDS = [rule["id"] for rule in RULES]
NUMBERED = [*(f"P{n}" for n in range(1, 20)), *(f"W{n}" for n in range(1, 12)), *(f"L{n}" for n in range(1, 4))]
CITED = re.compile(r"\b([PWLS])(\d{1,3})\b(?: to \1(\d{1,3})\b)?")


def citations(text: str) -> set[str]:
    found = set()
    for letter, first, last in CITED.findall(text):
        found |= {f"{letter}{number}" for number in range(int(first), int(last or first) + 1)}
    return found


def docstrings(path: Path) -> dict[str, str]:
    """What a module of tests says of itself (under the empty name) and of each of its tests."""
    tree = ast.parse(path.read_text("utf-8"))
    said = {"": ast.get_docstring(tree) or ""}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            said[node.name] = ast.get_docstring(node) or ""
    return said


def uncited(rule: dict[str, Any], root: Path = ROOT) -> list[str]:
    """What is wrong with the tests that a rule names, a sentence each."""
    wrong = []
    for test in rule["test"]:
        file, _, name = test.partition("::")
        said = docstrings(root / file) if (root / file).is_file() else {}
        if name not in said or not name:
            wrong.append(f"{rule['id']}: {test} does not exist")
        elif rule["id"] not in citations(said[""]) | citations(said[name]):
            wrong.append(f"{rule['id']}: {test} does not cite it")
    return wrong


def test_every_number_has_its_rule() -> None:
    """The protocol's numbers are all there, each once, and a rule is built or says why not."""
    assert len(set(IDS)) == len(IDS)
    assert [one for one in IDS if not one.startswith("S")] == NUMBERED
    assert [one for one in IDS if one.startswith("S")] == [f"S{n}" for n in range(1, len(IDS) - len(NUMBERED) + 1)]
    for rule in RULES:
        assert set(rule) - {"later"} == {"id", "text", "test", "built"} | (set() if rule["built"] else {"why"}), rule[
            "id"
        ]
        assert rule["text"].endswith(".") and len(rule["text"]) < 240
        assert bool(rule["test"]) == rule["built"], f"{rule['id']}: built, and held by a test, or neither"


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_the_tests_of_a_rule_exist_and_cite_it(rule: dict[str, Any]) -> None:
    """Whoever reads the test knows which rule it holds, and the other way round."""
    assert uncited(rule) == []


def test_no_test_cites_a_rule_that_is_not_there() -> None:
    """A number without a rule is a slip of the pen, or a rule that was taken away."""
    known = set(IDS)
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if "__pycache__" not in path.parts:
            for name, text in docstrings(path).items():
                assert citations(text) <= known, f"{path.relative_to(ROOT)}::{name}: {citations(text) - known}"


def test_a_test_that_is_gone_or_cites_nothing_is_found(tmp_path: Path) -> None:
    """A planted file: one test cites the rule, one cites another, one does not exist."""
    (tmp_path / "test_a.py").write_text(
        '"""S1 to S3."""\ndef test_one():\n    """P7: so."""\ndef test_two():\n    """P71."""\n'
    )
    rule = {
        "id": "P7",
        "test": ["test_a.py::test_one", "test_a.py::test_two", "test_a.py::test_three", "b.py::test_one"],
    }
    assert uncited(rule, tmp_path) == [
        "P7: test_a.py::test_two does not cite it",
        "P7: test_a.py::test_three does not exist",
        "P7: b.py::test_one does not exist",
    ]
    assert uncited({"id": "S2", "test": ["test_a.py::test_two"]}, tmp_path) == []
    assert citations("P1 to P3, W11 and SP4 or P4a") == {"P1", "P2", "P3", "W11"}
