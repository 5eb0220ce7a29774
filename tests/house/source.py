"""Python source as parsed modules with the imports each one makes, wherever in the file it makes them.

Reads text and never imports what it looks at. A file that does not parse is an error, not an empty module.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

PACKAGE = "agentplane"


@dataclass(frozen=True)
class Import:
    """One imported module, absolute and dotted; `eager` when importing the file performs it."""

    module: str
    name: str | None
    line: int
    eager: bool


@dataclass(frozen=True)
class Module:
    """One file; `path` is relative to the package directory and uses slashes."""

    package: Path
    path: str

    @cached_property
    def text(self) -> str:
        return (self.package / self.path).read_text("utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, filename=self.path)

    @property
    def room(self) -> str:
        """The room's name, or an empty string for a file beside the rooms."""
        return self.path.split("/")[0] if "/" in self.path else ""

    @property
    def dotted(self) -> str:
        parts = [PACKAGE, *self.path.removesuffix(".py").split("/")]
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def imports(self) -> list[Import]:
        return list(_imports(self))

    @cached_property
    def comments(self) -> list[tuple[int, str]]:
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]

    def stands_in(self, homes: list[str]) -> bool:
        """Whether this file is one of `homes`, or under one that ends with a slash."""
        return any(self.path == home or (home.endswith("/") and self.path.startswith(home)) for home in homes)


def modules(package: Path) -> list[Module]:
    """Every module under a package directory, in the order of their paths."""
    found = (path.relative_to(package).as_posix() for path in package.rglob("*.py"))
    return [Module(package, path) for path in sorted(found) if "__pycache__" not in path]


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function with its qualified name, nested ones included."""
    for name, node in _definitions(tree, ""):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield name, node


def classes(tree: ast.Module) -> Iterator[tuple[str, ast.ClassDef]]:
    """Every class with its qualified name, nested ones included."""
    for name, node in _definitions(tree, ""):
        if isinstance(node, ast.ClassDef):
            yield name, node


def enclosing(tree: ast.Module) -> dict[ast.AST, str]:
    """For every node the qualified name of the function or class around it; empty at module level."""
    names: dict[ast.AST, str] = {}

    def visit(node: ast.AST, name: str) -> None:
        names[node] = name
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{name}.{node.name}" if name else node.name
        for child in ast.iter_child_nodes(node):
            visit(child, name)

    visit(tree, "")
    return names


def docstrings(tree: ast.Module) -> set[ast.AST]:
    """The constant nodes that are docstrings."""
    found: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                found.add(first.value)
    return found


def _definitions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{prefix}.{child.name}" if prefix else child.name
            yield name, child
            yield from _definitions(child, name)
        else:
            yield from _definitions(child, prefix)


def _imports(module: Module) -> Iterator[Import]:
    def visit(node: ast.AST, eager: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, None, node.lineno, eager)
        elif isinstance(node, ast.ImportFrom):
            source = _absolute(module, node)
            for alias in node.names:
                yield Import(source, alias.name, node.lineno, eager)
        elif isinstance(node, ast.If) and _type_checking(node.test):
            for child in node.body:
                yield from visit(child, False)
            for child in node.orelse:
                yield from visit(child, eager)
        else:
            inside = eager and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            for child in ast.iter_child_nodes(node):
                yield from visit(child, inside)

    yield from visit(module.tree, True)


def _absolute(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.dotted.split(".")
    if not module.path.endswith("__init__.py"):
        parts = parts[:-1]
    parts = parts[: len(parts) - (node.level - 1)]
    return ".".join([*parts, *([node.module] if node.module else [])])


def _type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return name == "TYPE_CHECKING"
