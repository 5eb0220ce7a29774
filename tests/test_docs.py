"""The docs say what is so: what a command or an import can check is checked."""

from __future__ import annotations

import argparse
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from agentplane.cli.main import build
from agentplane.core import lifecycle, records
from agentplane.surface.operations import ACTIONS_OF, OPERATIONS
from agentplane.surface.routes import ROUTES

ROOT = Path(__file__).parent.parent
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]


def verbs() -> dict[str, argparse.ArgumentParser]:
    action = next(one for one in build()._actions if isinstance(one, argparse._SubParsersAction))
    return dict(action.choices)


def test_made_parts_are_what_the_code_has_now() -> None:
    """`python docs/make.py` would change nothing."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "make.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_the_map_names_nine_steps_and_their_modules() -> None:
    """Each of the nine steps names a module that exists."""
    rows = re.findall(
        r"^\| (\d) \|.*\| `(agentplane/[a-z_/]+\.py)` \|$",
        (ROOT / "docs" / "map.md").read_text(),
        re.MULTILINE,
    )
    assert [number for number, _ in rows] == list("123456789")
    for _, module in rows:
        assert (ROOT / module).is_file(), module


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    """Every relative link names a file that is there."""
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_verbs_and_flags_that_the_docs_name_exist(page: Path) -> None:
    """Every `agentplane VERB --flag` in a page is one that the parser takes."""
    known = verbs()
    for verb, rest in re.findall(r"agentplane ([a-z]+(?:-[a-z]+)*)((?: +[^`\n&|]+)?)", page.read_text()):
        if verb in ("import",):
            continue
        assert verb in known, f"{page.name}: agentplane {verb}"
        flags = {flag for option in known[verb]._actions for flag in option.option_strings}
        for flag in re.findall(r"(?<![\w-])--[a-z-]+", rest):
            assert flag in flags, f"{page.name}: agentplane {verb} {flag}"


def test_every_verb_is_documented() -> None:
    """operating.md has a row that names each verb."""
    page = (ROOT / "docs" / "operating.md").read_text()
    assert [verb for verb in verbs() if f"`{verb}`" not in page] == []


def test_python_in_the_docs_compiles() -> None:
    """Every Python block is a program that parses."""
    for page in PAGES:
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
            indented = "async def block():\n" + "\n".join("    " + line for line in block.splitlines())
            compile(block if "async with" not in block else indented, page.name, "exec")


def test_the_first_skill_of_the_readme_loads(tmp_path: Path) -> None:
    """The README's skill is imported as it stands, and provides what it says."""
    block = next(
        b for b in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL) if "@skill" in b
    )
    path = tmp_path / "first.py"
    path.write_text(block)
    assert runpy.run_path(str(path))["issue"].name == "refunds.issue"


def test_every_record_kind_stands_in_the_format_page() -> None:
    """The table of kinds is whole."""
    page = (ROOT / "docs" / "journal-format.md").read_text()
    assert [kind.__name__ for kind in records.KINDS if f"| `{kind.__name__}` |" not in page] == []


def test_every_lifecycle_is_drawn() -> None:
    """architecture.md has the diagram of each table."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    for table in lifecycle.TABLES.values():
        assert lifecycle.mermaid(table) in page


def test_the_routes_of_the_client_are_those_of_the_operations() -> None:
    """The table that a client loads alone is the operations' own."""
    assert {operation.name: (operation.method, operation.path) for operation in OPERATIONS} == ROUTES


def test_every_operation_asks_for_an_action_that_some_role_has() -> None:
    """No operation is out of everybody's reach, and none asks for an action that does not exist."""
    from agentplane.core.roles import ACTIONS

    assert ACTIONS_OF <= ACTIONS
