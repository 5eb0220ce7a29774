"""The rules of the shape of files: length, openings, names, handlers, and what a file may say of a machine.

Each rule takes a directory of modules (or the root of the checkout) and the walls and returns its violations
or its counts.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

from house.source import classes, enclosing, functions, modules

Walls = dict[str, Any]

FUNCTION_LINES = 60
CLASS_METHODS = 15
IGNORES = re.compile(r"#\s*(type:\s*ignore|noqa|ruff:\s*noqa|mypy:|pyright:|pragma:\s*no\s*cover)")
TEST_HOOK = re.compile(
    r"^_*(is_|in_|under_)?(testing|test_mode|tests?_only|under_test|pytest_current_test)$", re.IGNORECASE
)
# Put together from pieces, so that this file does not hold what it looks for.
HOSTS = [
    "py" + "pi.org",
    "python" + "hosted.org",
    "npm" + "js.org",
    "deb." + "debian.org",
    "security." + "debian.org",
]
HOMES = re.compile("(?<![\\w.])/(?:ro" + "ot|ho" + "me/\\w+|Us" + "ers/\\w+|wo" + "rk/(?:main|shared))(?:/|\\b)")
BESIDE = "../sha" + "red"
BASHISMS = re.compile(
    r"(?<![\w\[])\[\[\s|^\s*function\s+\w|^\s*source\s|<<<|<\(|\becho\s+-[en]\b|&>|\$\{\w+(?:,,|\^\^|//)|^\s*(?:local|declare|typeset|let)\s"
    r"|^\s*set\s+-o\s+pipefail|\$'|\bread\s+-[a-qs-z]|==\s",
    re.MULTILINE,
)


def too_long(directory: Path, walls: Walls, prefix: str = "") -> list[str]:
    """Modules over the ceiling that are not listed, and listed ones that no longer are."""
    ceiling, over = walls["modules"]["ceiling"], walls["modules"]["over"]
    lengths = {prefix + module.path: module.text.count("\n") for module in modules(directory)}
    found = [
        f"{path} has {count} lines; the ceiling is {ceiling}"
        for path, count in lengths.items()
        if count > ceiling and not over.get(path)
    ]
    listed = [path for path in over if path.startswith(prefix) and (prefix or not path.startswith("tests/"))]
    return found + [
        f"{path} is within the ceiling: take it off the list" for path in listed if lengths.get(path, 0) <= ceiling
    ]


def openings(directory: Path, walls: Walls) -> list[str]:
    """Modules without a docstring, without the future import, or with a name that says nothing."""
    found = []
    for module in modules(directory):
        if not (ast.get_docstring(module.tree) or "").strip():
            found.append(f"{module.path} opens with no docstring")
        if not any(imported.module == "__future__" and imported.name == "annotations" for imported in module.imports):
            found.append(f"{module.path} lacks `from __future__ import annotations`")
        for part in module.path.removesuffix(".py").split("/"):
            if part.strip("_") in walls["modules"]["banned"]:
                found.append(f"{module.path}: {part} says nothing about what is in it")
    return found


def long_functions(directory: Path) -> dict[str, int]:
    """Functions of sixty lines or more, decorators left out."""
    return {
        f"{module.path}::{name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for module in modules(directory)
        for name, node in functions(module.tree)
        if (node.end_lineno or node.lineno) - node.lineno + 1 >= FUNCTION_LINES
    }


def wide_classes(directory: Path) -> dict[str, int]:
    """Classes of fifteen methods or more; overloads of one method count once."""
    counts = {
        f"{module.path}::{name}": len(
            {child.name for child in node.body if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)}
        )
        for module in modules(directory)
        for name, node in classes(module.tree)
    }
    return {name: count for name, count in counts.items() if count >= CLASS_METHODS}


def any_types(directory: Path) -> dict[str, int]:
    """Uses of Any a room, imports left out."""
    counts: Counter[str] = Counter()
    for module in modules(directory):
        for node in ast.walk(module.tree):
            if getattr(node, "id", None) == "Any" or (isinstance(node, ast.Attribute) and node.attr == "Any"):
                counts[module.room or "front"] += 1
    return dict(counts)


def ignores(directory: Path) -> dict[str, int]:
    """Comments that silence a checker, a room."""
    counts: Counter[str] = Counter()
    for module in modules(directory):
        counts[module.room or "front"] += sum(bool(IGNORES.search(text)) for _, text in module.comments)
    return dict(+counts)


def broad_handlers(directory: Path, walls: Walls) -> list[str]:
    """Handlers of every exception that do not raise again and are not listed with a reason, and stale entries
    of the list.
    """
    listed: dict[str, str] = walls["broad_handlers"]
    seen: set[str] = set()
    found = []
    for module in modules(directory):
        around = enclosing(module.tree)
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ExceptHandler) and _is_broad(node.type) and not _raises_again(node):
                place = f"{module.path}::{around[node]}"
                seen.add(place)
                if not listed.get(place):
                    found.append(f"{place} (line {node.lineno}) handles every exception")
    return found + [
        f"{place} handles no longer every exception: take it off the list" for place in sorted(set(listed) - seen)
    ]


def prints(directory: Path, walls: Walls) -> list[str]:
    """Writing to a stream from a room that has none."""
    return [
        f"{module.path}:{node.lineno} writes to a stream"
        for module in modules(directory)
        if module.stands_in(walls["silent"]["rooms"])
        for node in ast.walk(module.tree)
        if (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print")
        or (
            isinstance(node, ast.Attribute)
            and node.attr in ("stdout", "stderr")
            and getattr(node.value, "id", "") == "sys"
        )
    ]


def test_hooks(directory: Path) -> list[str]:
    """Product code that behaves otherwise under test; testkit is what tests are made of and is left out."""
    found = []
    for module in modules(directory):
        if module.room == "testkit":
            continue
        for node in ast.walk(module.tree):
            word = getattr(node, "id", None) or getattr(node, "attr", None)
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                word = node.value
            if isinstance(word, str) and TEST_HOOK.match(word):
                found.append(f"{module.path}:{getattr(node, 'lineno', 0)} asks whether it is under test ({word})")
    return sorted(set(found))


def files(root: Path) -> list[Path]:
    """The files of the checkout: git's word where it has one, otherwise all but what tools leave behind."""
    if (root / ".git").exists() and shutil.which("git"):
        command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode == 0:
            listed = (root / os.fsdecode(name) for name in done.stdout.split(b"\0") if name)
            return sorted(path for path in listed if path.is_file())
    left = {
        ".git",
        ".venv",
        ".venv.lock",
        "__pycache__",
        ".pytest_cache",
        ".mypy_cache",
        ".ruff_cache",
        ".hypothesis",
        "dist",
        "build",
    }
    return sorted(path for path in root.rglob("*") if path.is_file() and not left & set(path.relative_to(root).parts))


def top_level(root: Path, walls: Walls) -> list[str]:
    """Entries at the top that the list does not have."""
    present = {path.relative_to(root).parts[0] for path in files(root)}
    return [f"{name} is not an entry of the top level" for name in sorted(present - set(walls["top_level"]["entries"]))]


def machine_names(root: Path) -> list[str]:
    """Files that name a home directory, this checkout's place, a registry's host, or what lies beside the
    checkout.
    """
    found = []
    own = {str(root)} if len(str(root)) > len("/checkout") else set()
    for path in files(root):
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            named = [word for word in (*HOSTS, BESIDE, *own) if word in line] + [
                match.group() for match in HOMES.finditer(line)
            ]
            found += [f"{path.relative_to(root)}:{number} names {word}" for word in named]
    return found


def scripts(root: Path) -> list[str]:
    """Scripts that are not executable, do not parse, or are for bash where sh is what runs them."""
    found = []
    for path in files(root):
        text = path.read_bytes()
        name = path.relative_to(root).as_posix()
        first = text.split(b"\n", 1)[0]
        if first.startswith(b"#!"):
            if not path.stat().st_mode & 0o111:
                found.append(f"{name} is not executable")
        elif path.suffix == ".sh" and b"ourced by" not in text[:400]:
            found.append(f"{name} has no first line that says what runs it")
        if path.suffix == ".sh" or first.endswith((b"/sh", b"/bash")):
            shell = "bash" if first.endswith(b"bash") else "sh"
            done = subprocess.run([shell, "-n", str(path)], capture_output=True, text=True, check=False)
            if done.returncode:
                found.append(f"{name}: {done.stderr.strip()}")
            if shell == "sh":
                bare = re.sub(r"^\s*#.*$", "", text.decode(), flags=re.MULTILINE)
                bare = re.sub(r"'[^']*'", "''", bare)
                found += [f"{name}: {match.group().strip()} is not POSIX" for match in BASHISMS.finditer(bare)]
    return found


def _is_broad(caught: ast.expr | None) -> bool:
    if caught is None:
        return True
    names = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(getattr(name, "id", getattr(name, "attr", "")) in ("Exception", "BaseException") for name in names)


def _raises_again(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    leaves = any(isinstance(node, ast.Return | ast.Break | ast.Continue) for node in ast.walk(handler))
    return isinstance(last, ast.Raise) and not leaves
