"""The shape of files: each rule holds for the checkout, and each is seen to fail on what it forbids."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from house import ratchet, shape
from house.ratchet import ROOT, house

PACKAGE = ROOT / "agentplane"


def test_modules_stay_under_the_ceiling() -> None:
    """No module, of the product or of its tests, is longer than the ceiling, unless listed with a reason."""
    assert shape.too_long(PACKAGE, house()) == []
    assert shape.too_long(ROOT / "tests", house(), "tests/") == []


@pytest.mark.parametrize("directory", ["agentplane", "packaging", "tests"])
def test_every_module_opens_as_the_house_does(directory: str) -> None:
    """A docstring, the future import, and a name that says what is inside."""
    assert shape.openings(ROOT / directory, house()) == []


@pytest.mark.parametrize(
    ("section", "count"),
    [
        ("any_types", shape.any_types),
        ("ignores", shape.ignores),
        ("long_functions", shape.long_functions),
        ("wide_classes", shape.wide_classes),
    ],
)
def test_the_ratchets_hold(section: str, count: Callable[[Path], dict[str, int]]) -> None:
    """What the source holds is what tests/tidy.toml records, neither more nor less."""
    assert ratchet.compare(section, count(PACKAGE)) == []


def test_every_exception_is_handled_by_name() -> None:
    """A handler of everything turns doubt into failure, so each that there is has a reason."""
    assert shape.broad_handlers(PACKAGE, house()) == []


def test_the_inner_rooms_write_to_no_stream() -> None:
    """What core, journal, engine and those between have to say is a value, a record or an event."""
    assert shape.prints(PACKAGE, house()) == []


def test_the_product_does_not_know_that_it_is_tested() -> None:
    """No hook in a production path is there for tests alone."""
    assert shape.test_hooks(PACKAGE) == []


def test_the_top_level_is_as_fixed() -> None:
    """Nothing stands at the top of the checkout but what is listed."""
    assert shape.top_level(ROOT, house()) == []


def test_no_file_names_a_machine() -> None:
    """No home directory, registry host or place of a checkout is written down."""
    assert shape.machine_names(ROOT) == []


def test_scripts_run_where_they_say() -> None:
    """Scripts are executable and parse, and those for sh use nothing that is bash's."""
    assert shape.scripts(ROOT) == []


def test_the_locks_name_no_index() -> None:
    """Where packages come from is the environment's business, and every one is pinned and hashed."""
    for path in sorted((ROOT / "packaging" / "locks").glob("*.txt")):
        text = path.read_text("utf-8")
        pins = [line for line in text.splitlines() if line and line[0] not in " #"]
        assert pins and all("==" in pin for pin in pins)
        assert "://" not in text and "--index" not in text and "--find-links" not in text
        assert text.count("--hash=sha256:") >= len(pins)


def test_the_locks_agree() -> None:
    """What the demo runs with is what the tests ran with."""

    def pins(name: str) -> dict[str, str]:
        lines = (ROOT / "packaging" / "locks" / f"{name}.txt").read_text("utf-8").splitlines()
        parts = [line.split(" ")[0].split("==") for line in lines if line and line[0] not in " #"]
        return {part[0]: part[1] for part in parts}

    dev = pins("dev")
    assert pins("runtime").items() <= dev.items()
    assert pins("build").items() <= dev.items()


LONG = "def f():\n" + "    x = 1\n" * 60
WIDE = "class C:\n" + "".join(f"    def m{number}(self): ...\n" for number in range(15))
OPENING = '"""A module."""\n\nfrom __future__ import annotations\n\n'


def tree(root: Path, path: str, text: str) -> Path:
    """A directory with one file."""
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)
    return root


Rule = Callable[[Path], Any]


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        (lambda d: shape.too_long(d, house()), "core/a.py", "x = 1\n" * 501),
        (lambda d: shape.openings(d, house()), "core/a.py", "from __future__ import annotations\n"),
        (lambda d: shape.openings(d, house()), "core/a.py", '"""A module."""\n'),
        (lambda d: shape.openings(d, house()), "core/utils.py", OPENING),
        (lambda d: shape.openings(d, house()), "common/a.py", OPENING),
        (shape.long_functions, "core/a.py", LONG),
        (shape.wide_classes, "core/a.py", WIDE),
        (shape.any_types, "core/a.py", "import typing\nx: typing.Any\n"),
        (shape.any_types, "core/a.py", "from typing import Any\ndef f(x: list[Any]): ...\n"),
        (shape.ignores, "core/a.py", "x = 1  # type: " + "ignore[x]\n"),
        (shape.ignores, "core/a.py", "x = 1  # no" + "qa: E501\n"),
        (lambda d: shape.prints(d, house()), "engine/a.py", "print(1)\n"),
        (lambda d: shape.prints(d, house()), "journal/a.py", "import sys\nsys.stderr.write('')\n"),
        (shape.test_hooks, "engine/a.py", "if TESTING:\n    pass\n"),
        (shape.test_hooks, "engine/a.py", "import os\nos.environ.get('PYTEST_CURRENT_TEST')\n"),
        (lambda d: shape.top_level(d, house()), "notes.txt", ""),
        (shape.machine_names, "a.md", "see /ho" + "me/somebody/x\n"),
        (shape.machine_names, "a.md", "see /ro" + "ot/x\n"),
        (shape.machine_names, "a.md", "index " + shape.HOSTS[0] + "\n"),
        (shape.scripts, "a.sh", "#!/bin/sh\n"),
        (shape.scripts, "a.sh", "# Sourced by b.sh\nif [[ x ]]; then :; fi\n"),
        (shape.scripts, "a.sh", "# Sourced by b.sh\nif then\n"),
        (shape.scripts, "a.sh", "echo no first line\n"),
    ],
)
def test_what_is_forbidden_is_found(tmp_path: Path, rule: Rule, path: str, text: str) -> None:
    """Each rule finds what it forbids, and nothing in a module that is as it should be."""
    assert not rule(tree(tmp_path / "good", "packaging/__init__.py", OPENING))
    assert rule(tree(tmp_path / "bad", path, text))


@pytest.mark.parametrize(
    ("body", "is_found"),
    [
        ("try:\n    f()\nexcept Exception:\n    pass\n", True),
        ("try:\n    f()\nexcept:\n    pass\n", True),
        ("try:\n    f()\nexcept (OSError, BaseException) as e:\n    raise_later(e)\n", True),
        (
            "def g():\n  try:\n    f()\n  except BaseException:\n    if x: return 1\n    raise\n",
            True,
        ),
        ("try:\n    f()\nexcept BaseException:\n    undo()\n    raise\n", False),
        ("try:\n    f()\nexcept OSError:\n    pass\n", False),
    ],
)
def test_a_handler_of_everything_is_found_unless_it_raises_again(tmp_path: Path, body: str, is_found: bool) -> None:
    """Cleaning up and raising again hides nothing; everything else wants a reason, and a reason wants a
    handler.
    """
    walls = {"broad_handlers": {}}
    assert bool(shape.broad_handlers(tree(tmp_path, "a.py", body), walls)) is is_found
    assert shape.broad_handlers(tmp_path, {"broad_handlers": {"gone.py::f": "why"}})


def test_a_ratchet_only_turns_one_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than recorded is refused, less wants the record lowered, and the command writes what is there and
    nothing else.
    """
    file = tmp_path / "tidy.toml"
    file.write_text("# people\n[walls]\nx = 1\n" + ratchet.MARKER)
    monkeypatch.delenv("AGENTPLANE_RATCHET", raising=False)
    assert "bring it down" in ratchet.compare("any_types", {"core": 2}, file)[0]
    monkeypatch.setenv("AGENTPLANE_RATCHET", "write")
    assert ratchet.compare("any_types", {"core": 2, "lab": 0}, file) == []
    assert ratchet.compare("ignores", {"a.py::f": 61}, file) == []
    monkeypatch.delenv("AGENTPLANE_RATCHET")
    assert ratchet.compare("any_types", {"core": 2}, file) == []
    assert "lower the ratchet" in ratchet.compare("any_types", {"core": 1}, file)[0]
    assert "lower the ratchet" in ratchet.compare("any_types", {}, file)[0]
    assert file.read_text().startswith("# people\n[walls]\nx = 1\n") and house(file)["recorded"]["ignores"] == {
        "a.py::f": 61
    }
