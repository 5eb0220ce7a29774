"""The rules of who may import whom, and which text may stand where.

Each rule takes the package directory and the walls of tests/tidy.toml and returns its violations, each naming
file and line.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Any

from house.source import PACKAGE, Import, Module, docstrings, modules

Walls = dict[str, Any]

# A statement needs the words that make it one, so that a sentence beginning with "Select" or "With" is not
# taken for SQL.
NAME = r"[a-z_][a-z_0-9.]*"
STATEMENTS = [
    rf"select\s[^.!?]*\sfrom\s+\(?{NAME}\b(?!.*\.$)",
    rf"(?:insert|replace)\s+(?:or\s+\w+\s+)?into\s+{NAME}\s*(?:\(|values|select|default)",
    rf"update\s+(?:or\s+\w+\s+)?{NAME}\s+set\s+{NAME}\s*=",
    rf"delete\s+from\s+{NAME}",
    rf"create\s+(?:\w+\s+)?(?:table|index|trigger|view)\s+(?:if\s+not\s+exists\s+)?{NAME}\s*(?:\(|\w+\s|$)",
    rf"alter\s+table\s+{NAME}\s+(?:add|rename|drop)\s",
    rf"drop\s+(?:table|index|trigger|view)\s+(?:if\s+exists\s+)?{NAME}\s*;?\s*$",
    rf"pragma\s+{NAME}\s*(?:[=(;]|$)",
    rf"with\s+(?:recursive\s+)?{NAME}\s*(?:\([a-z_,\s]*\)\s*)?as\s*(?:not\s+materialized\s*|materialized\s*)?\(",
    rf"(?:savepoint|release\s+savepoint|rollback\s+to)\s+{NAME}\s*;?\s*$",
    r"begin\s+(?:immediate|exclusive|deferred)\b|vacuum\s+into\s|attach\s+database\s",
    r"(?-i:SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP|PRAGMA|WITH)\s+[a-z*0-9(]",
]
SQL = re.compile(rf"\s*(?:{'|'.join(STATEMENTS)})", re.DOTALL | re.IGNORECASE)
ENTRY_POINTS = {"entry_points", "iter_entry_points", "walk_packages", "iter_modules"}
BY_NAME = {
    "import_module",
    "__import__",
    "spec_from_file_location",
    "SourceFileLoader",
    "run_path",
    "run_module",
}


def downward(package: Path, walls: Walls) -> list[str]:
    """Rooms import strictly downward; testkit reaches as far as it is told; nothing imports cli."""
    rooms: list[str] = walls["rooms"]
    found = []
    for module in modules(package):
        for imported in _ours(module):
            target = _room(package, imported)
            reason = _forbidden(module, target, rooms, walls["testkit"])
            if reason:
                found.append(f"{module.path}:{imported.line} imports {_shown(imported)}: {reason}")
    return found


def known_rooms(package: Path, walls: Walls) -> list[str]:
    """Every directory is a room of the list, and beside the rooms stand only the two files that a package
    needs.
    """
    rooms = {*walls["rooms"], "testkit"}
    found = [
        f"{module.path} stands beside the rooms"
        for module in modules(package)
        if not module.room and module.path not in ("__init__.py", "__main__.py")
    ]
    strange = {module.room for module in modules(package)} - rooms - {""}
    return found + [f"{room}/ is not a room" for room in sorted(strange)]


def homes(package: Path, walls: Walls) -> list[str]:
    """Each library of the list is imported only where it lives."""
    return [
        f"{module.path}:{imported.line} imports {imported.module}; {top} lives in {allowed or 'tests alone'}"
        for module in modules(package)
        for imported in module.imports
        for top, allowed in walls["homes"].items()
        if imported.module.split(".")[0] == top and not module.stands_in(allowed)
    ]


def sql_text(package: Path, walls: Walls) -> list[str]:
    """No literal outside the rooms that own tables reads like an SQL statement."""
    found = []
    for module in modules(package):
        if module.stands_in(walls["sql"]["rooms"]):
            continue
        for line, text in _literals(module):
            if is_sql(text):
                found.append(f"{module.path}:{line} holds SQL: {text.strip()[:40]!r}")
    return found


def _literals(module: Module) -> list[tuple[int, str]]:
    """Every string literal but docstrings; what an f-string computes is read as a word."""
    skipped = docstrings(module.tree)
    found = []
    for node in ast.walk(module.tree):
        if isinstance(node, ast.JoinedStr):
            skipped |= set(node.values)
            parts = [str(part.value) if isinstance(part, ast.Constant) else "computed" for part in node.values]
            found.append((node.lineno, "".join(parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in skipped:
            found.append((node.lineno, node.value))
    return found


def is_sql(text: str) -> bool:
    """Whether a literal reads like an SQL statement."""
    return bool(SQL.match(text))


def alone(package: Path, walls: Walls) -> list[str]:
    """Modules that must not lean on the rest import, of ours, only what they are allowed; some nothing of
    others' either.
    """
    found = []
    for module in modules(package):
        for home, allowed in walls["only"].items():
            if not module.stands_in([home]):
                continue
            own = [f"{PACKAGE}.{name.replace('/', '.')}" for name in allowed]
            for imported in _ours(module):
                full = _full(package, imported)
                if not any(full == name or full.startswith(f"{name}.") for name in own):
                    place = f"{module.path}:{imported.line}"
                    found.append(f"{place} imports {_shown(imported)}; allowed of ours: {allowed}")
        if module.stands_in(walls["standard_library"]["files"]):
            found += [
                f"{module.path}:{imported.line} imports {imported.module}, which is not the standard library"
                for imported in module.imports
                if imported.module.split(".")[0] not in {*sys.stdlib_module_names, PACKAGE}
            ]
    return found


def pure_core(package: Path, walls: Walls) -> list[str]:
    """core reaches no clock, no randomness, no I/O, no logging and no concurrency."""
    rules = walls["core"]
    denied, below = set(rules["denied"]), set(rules["denied_submodules"])
    calls, methods = set(rules["denied_calls"]), set(rules["denied_methods"])
    found = []
    for module in modules(package):
        if module.room != "core":
            continue
        for imported in module.imports:
            full = f"{imported.module}.{imported.name}" if imported.name else imported.module
            if imported.module.split(".")[0] in denied or imported.module in below or full in below:
                found.append(f"{module.path}:{imported.line} imports {imported.module}")
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call):
                if isinstance(node.func, ast.Name) and node.func.id in calls:
                    found.append(f"{module.path}:{node.lineno} calls {node.func.id}()")
                if isinstance(node.func, ast.Attribute) and node.func.attr in methods:
                    found.append(f"{module.path}:{node.lineno} calls .{node.func.attr}()")
    return found


def nothing_by_name(package: Path, walls: Walls) -> list[str]:
    """Nothing is found by entry points, and only listed files import a name computed at run time."""
    found = []
    for module in modules(package):
        for node in ast.walk(module.tree):
            name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)
            if isinstance(node, ast.alias):
                name = node.name.rpartition(".")[2]
            if name in ENTRY_POINTS:
                found.append(f"{module.path}: uses {name}; a frozen binary cannot see what is found so")
            if name in BY_NAME and not module.stands_in(walls["by_name"]["files"]):
                found.append(f"{module.path}: uses {name}; only {walls['by_name']['files']} import by name")
    return sorted(set(found))


def absolute(package: Path, walls: Walls) -> list[str]:
    """Imports are absolute, so that the wall one crosses can be read in its line."""
    return [
        f"{module.path}:{node.lineno} imports relatively"
        for module in modules(package)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom) and node.level
    ]


def closure(package: Path, room: str) -> set[str]:
    """The rooms that importing a room may load: its own and those its eager imports reach."""
    by_name = {module.dotted: module for module in modules(package)}
    todo, seen = [f"{PACKAGE}.{room}"], set()
    while todo:
        name = todo.pop()
        if name in seen or name not in by_name:
            continue
        seen.add(name)
        for imported in by_name[name].imports:
            if imported.eager and imported.module.split(".")[0] == PACKAGE:
                full = _full(package, imported)
                parts = full.split(".")
                todo += [".".join(parts[:count]) for count in range(2, len(parts) + 1)]
    return {name.split(".")[1] for name in seen if "." in name}


def _ours(module: Module) -> list[Import]:
    return [imported for imported in module.imports if imported.module.split(".")[0] == PACKAGE]


def _full(package: Path, imported: Import) -> str:
    """The module that an import loads: `from a import b` is a.b where that is a module, and a where b is a
    name in it.
    """
    if imported.name is None:
        return imported.module
    below = package.joinpath(*imported.module.split(".")[1:], imported.name)
    is_module = below.with_suffix(".py").exists() or below.is_dir()
    return f"{imported.module}.{imported.name}" if is_module else imported.module


def _room(package: Path, imported: Import) -> str:
    """The room imported from; empty for the package's front, whose names may lead anywhere."""
    parts = _full(package, imported).split(".")
    return parts[1] if len(parts) > 1 else ""


def _shown(imported: Import) -> str:
    return f"{imported.module}.{imported.name}" if imported.name else imported.module


def _forbidden(module: Module, target: str, rooms: list[str], testkit: Walls) -> str:
    """Why a module may not import from a room, or an empty string."""
    here = module.room
    if not here:
        open_to = {"__init__.py": target != "cli", "__main__.py": target in ("", "cli")}
        return "" if open_to.get(module.path) else "a file beside the rooms reaches into none"
    if here == target:
        return ""
    reach = rooms.index(testkit["reach"])
    if target == "testkit":
        return "" if here in testkit["used_by"] else f"only {testkit['used_by']} import testkit"
    if target == "cli":
        return "nothing imports cli"
    level = reach + 0.5 if here == "testkit" else rooms.index(here) if here in rooms else -1
    if target == "":
        # The front resolves names from as high as the engine.
        return "" if level > reach else "the package's front is for those above it"
    if target not in rooms or rooms.index(target) < level:
        return "" if target in rooms else f"{target} is not a room"
    return f"{target} is not below {here}"
