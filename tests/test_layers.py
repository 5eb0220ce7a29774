"""The walls between the rooms: each rule holds for the product, and each is seen to fail on a planted
violation.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from house import walls
from house.ratchet import ROOT, house

PACKAGE = ROOT / "agentplane"
RULES: dict[str, Callable[[Path, walls.Walls], list[str]]] = {
    rule.__name__: rule
    for rule in (
        walls.known_rooms,
        walls.downward,
        walls.homes,
        walls.sql_text,
        walls.alone,
        walls.pure_core,
        walls.nothing_by_name,
        walls.absolute,
    )
}


@pytest.mark.parametrize("rule", RULES)
def test_the_product_keeps_within_its_walls(rule: str) -> None:
    """No module of the product violates the rule, wherever in the file it imports."""
    assert walls.modules(PACKAGE), "nothing was looked at"
    assert RULES[rule](PACKAGE, house()) == []


PLANTED = [
    # rule, file, source, what the violation says
    ("known_rooms", "helpers/x.py", "", "helpers/ is not a room"),
    ("known_rooms", "thing.py", "", "stands beside the rooms"),
    ("downward", "core/a.py", "from agentplane.journal import store", "journal is not below core"),
    ("downward", "core/a.py", "import agentplane.engine.plane", "engine is not below core"),
    ("downward", "journal/a.py", "from agentplane import engine", "engine is not below journal"),
    (
        "downward",
        "journal/a.py",
        "def f():\n    from agentplane.engine import plane",
        "engine is not below journal",
    ),
    (
        "downward",
        "work/a.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import agentplane.surface",
        "surface is not",
    ),
    ("downward", "work/a.py", "from ..engine import plane", "engine is not below work"),
    ("downward", "engine/a.py", "from agentplane import Plane", "front is for those above"),
    ("downward", "lab/a.py", "import agentplane.cli.main", "nothing imports cli"),
    ("downward", "engine/a.py", "import agentplane.testkit", "import testkit"),
    ("downward", "testkit/a.py", "import agentplane.surface", "surface is not below testkit"),
    ("homes", "core/a.py", "import trio", "trio lives in"),
    ("homes", "journal/leases.py", "import trio.lowlevel", "trio lives in"),
    ("homes", "appliance/serve.py", "from hypercorn.config import Config", "hypercorn lives in"),
    ("homes", "appliance/serve.py", "import quart", "quart lives in"),
    ("homes", "engine/a.py", "import apsw", "apsw lives in"),
    ("sql_text", "engine/a.py", 'x = "SELECT 1"', "holds SQL"),
    ("sql_text", "engine/a.py", 'x = f"insert into {t} values (?)"', "holds SQL"),
    ("sql_text", "surface/a.py", 'x = "update runs set status = ?"', "holds SQL"),
    ("sql_text", "surface/a.py", 'x = """\n  with open_runs as (select id from runs)\n"""', "holds SQL"),
    ("sql_text", "appliance/a.py", 'x = "PRAGMA journal_mode=wal"', "holds SQL"),
    ("alone", "evidence/verify.py", "from agentplane.journal import store", "allowed of ours: ['core']"),
    ("alone", "evidence/verify.py", "def f():\n    import agentplane.evidence.sign", "allowed of ours"),
    ("alone", "lab/provider/book.py", "import msgspec", "not the standard library"),
    ("alone", "lab/provider/book.py", "from agentplane.core import canonical", "allowed of ours"),
    ("pure_core", "core/a.py", "import time", "imports time"),
    ("pure_core", "core/a.py", "def f():\n    from os import urandom", "imports os"),
    ("pure_core", "core/a.py", "import urllib.request", "urllib.request"),
    ("pure_core", "core/a.py", "import datetime\nx = datetime.datetime.now()", "calls .now()"),
    ("pure_core", "core/a.py", "open('x')", "calls open()"),
    ("nothing_by_name", "engine/a.py", "from importlib.metadata import entry_points", "entry_points"),
    ("nothing_by_name", "engine/a.py", "import importlib\nimportlib.import_module(x)", "import_module"),
    ("absolute", "engine/a.py", "from . import plane", "imports relatively"),
]


@pytest.mark.parametrize(("rule", "path", "source", "says"), PLANTED)
def test_a_planted_violation_is_found(tmp_path: Path, rule: str, path: str, source: str, says: str) -> None:
    """Each rule names the violation planted for it, and nothing in the same tree without it."""
    package = tmp_path / "agentplane"
    for room in (*house()["rooms"], "testkit"):
        (package / room).mkdir(parents=True)
        (package / room / "__init__.py").write_text('"""A room."""\n')
    (package / "__init__.py").write_text('"""The front."""\n')
    assert RULES[rule](package, house()) == []
    target = package / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(source + "\n")
    found = RULES[rule](package, house())
    assert found and all(says in line for line in found), found


@pytest.mark.parametrize(
    "sentence",
    [
        "select a run from the list.",
        "With nothing to do",
        "Update the plane",
        "Create a token",
        "delete it",
        "Release the run",
        "Insert the key",
        "Drop it",
        "begin",
    ],
)
def test_a_sentence_is_not_taken_for_sql(sentence: str) -> None:
    """Words that begin a statement also begin sentences, and those may stand anywhere."""
    assert not walls.is_sql(sentence)


LOADED = "import importlib, json, sys; importlib.import_module(sys.argv[1]); print(json.dumps([*sys.modules]))"


def loaded_by(module: str) -> list[str]:
    """The names in sys.modules of a new interpreter that imported one module."""
    command = [sys.executable, "-W", "error", "-c", LOADED, module]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def present() -> list[str]:
    """The rooms that have inhabitants."""
    return [room for room in (*house()["rooms"], "testkit") if (PACKAGE / room / "__init__.py").exists()]


def test_importing_the_package_loads_no_room() -> None:
    """The public names are resolved when they are used, so that the front costs nothing."""
    names = loaded_by("agentplane")
    assert [name for name in names if name.startswith("agentplane")] == ["agentplane"]
    assert not {name.split(".")[0] for name in names} & {
        "trio",
        "quart",
        "hypercorn",
        "apsw",
        "httpx",
        "cryptography",
    }


@pytest.mark.parametrize("room", present())
def test_importing_a_room_loads_that_room_and_what_it_imports(room: str) -> None:
    """No room comes along by a lazy import, a side effect or the front."""
    names = loaded_by(f"agentplane.{room}")
    ours = {name.split(".")[1] for name in names if name.startswith("agentplane.")}
    assert ours <= walls.closure(PACKAGE, room)
    assert room in ours
    order = house()["rooms"]
    if room in order:
        libraries = {name.split(".")[0] for name in names}
        level = order.index(room)
        assert level >= order.index("surface") or not libraries & {"quart", "quart_trio", "hypercorn"}
        assert (
            level >= order.index("journal")
            or not libraries & {"trio", "apsw", "httpx", "asyncio", "logging"} - _by_libraries()
        )


def _by_libraries() -> set[str]:
    """What the data library that core uses brings along by itself; it is not ours to refuse."""
    return {name.split(".")[0] for name in loaded_by("msgspec")}


def test_a_room_that_loads_more_than_it_imports_is_found(tmp_path: Path) -> None:
    """The closure is of eager imports alone: one made inside a function is not counted as allowed."""
    package = tmp_path / "agentplane"
    for path, source in {
        "__init__.py": "",
        "core/__init__.py": "",
        "journal/__init__.py": "from agentplane.core import a",
        "core/a.py": "",
        "engine/__init__.py": "def f():\n    import agentplane.journal",
    }.items():
        target = package / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(source)
    assert walls.closure(package, "journal") == {"journal", "core"}
    assert walls.closure(package, "engine") == {"engine"}
