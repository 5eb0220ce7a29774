"""The specifications, their mutants and the tests of the code name each other, both ways; Python alone.

The exploring itself is test_specs.py.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from functools import cache
from typing import Any

import pytest

from agentplane.testkit.battery import every_check
from spec import check, tlc

SPECS = tlc.specs()
CITED = re.compile(r"\b([A-Z]\w+)\.([A-Z]\w+)\b")


def rows() -> list[dict[str, Any]]:
    return list(tomllib.loads((tlc.SPECS / "map.toml").read_text("utf-8"))["invariant"])


@cache
def docstrings(path: str) -> dict[str, str]:
    tree = ast.parse((tlc.ROOT / path).read_text("utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {function.name: ast.get_docstring(function) or "" for function in functions}


def test_there_are_the_ten() -> None:
    """Protocol, retries, fencing, drain, restore, saga and group, and of what outlives a run messages, tasks and
    timers; each with a configuration that names invariants."""
    assert SPECS == [
        "Delivery", "Drain", "EffectGroup", "EffectProtocol", "Fencing", "RestoreHeld", "RetrySafety", "Saga",
        "TaskDelivery", "Timers",
    ]  # fmt: skip
    assert all(tlc.invariants(spec) for spec in SPECS)


@pytest.mark.parametrize("spec", SPECS)
def test_every_invariant_is_mapped_once_and_broken_by_a_mutant(spec: str) -> None:
    """What a configuration names is what the map and the mutants name, and is defined in the module."""
    named = tlc.invariants(spec)
    assert Counter(named) == Counter(row["name"] for row in rows() if row["spec"] == spec)
    assert set(named) == {mutant.invariant for mutant in check.mutants(spec)}
    assert [name for name in named if f"\n{name} ==" not in tlc.source(spec)] == []


def test_the_map_names_no_other_specification() -> None:
    """Nor do the mutants."""
    assert {row["spec"] for row in rows()} == set(SPECS) == {mutant.spec for mutant in check.mutants()}


def test_every_named_test_exists_and_cites_its_invariant() -> None:
    """A test that is renamed, or that stops speaking of the invariant, is missed."""
    faults = []
    battery = every_check()
    for row in rows():
        path, _, name = row["test"].partition("::")
        cited = CITED.findall(docstrings(path).get(name, "").partition("Spec:")[2])
        if (row["spec"], row["name"]) not in cited:
            faults.append(f"{row['test']} does not cite {row['spec']}.{row['name']}")
        checked = row.get("check")
        if checked is not None and checked not in battery:
            faults.append(f"the battery has no check {checked}")
    assert faults == []


def test_nothing_is_cited_that_is_not_mapped() -> None:
    """A docstring that claims an invariant stands in the map."""
    mapped = {(row["test"], row["spec"], row["name"]) for row in rows()}
    claimed = set()
    for path in sorted((tlc.ROOT / "tests").rglob("test_*.py")):
        place = path.relative_to(tlc.ROOT).as_posix()
        if "Spec:" not in path.read_text("utf-8") or place == "tests/spec/test_map.py":
            continue
        for name, doc in docstrings(place).items():
            claimed |= {(f"{place}::{name}", *cited) for cited in CITED.findall(doc.partition("Spec:")[2])}
    assert claimed == mapped


def test_every_mutant_still_fits() -> None:
    """Its anchor stands in its specification exactly once, and what it becomes is something else."""
    for mutant in check.mutants():
        assert mutant.text() != tlc.source(mutant.spec)


@pytest.mark.parametrize("spec", SPECS)
def test_a_specification_names_its_endings(spec: str) -> None:
    """An ending is an action of its own, so that the checker counts that it is reached and no other state may rest."""
    actions = tlc.actions(tlc.source(spec))
    assert len(actions) == len(set(actions)) >= 10
    assert sum(name.startswith("Ends") for name in actions) >= 2


def test_the_readme_has_every_invariant() -> None:
    """With one line of what it says."""
    readme = (tlc.SPECS / "README.md").read_text("utf-8")
    assert [name for spec in SPECS for name in tlc.invariants(spec) if f"| `{name}` |" not in readme] == []
