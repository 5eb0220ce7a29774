"""Reading skills as a reviewer would: the findings behind ``agentplane check``.

Owns what is found in source alone, by its syntax tree. Refuses to import or run what it reads. Invariant: each
finding names file, line and rule, and says in one sentence what to write instead. It finds mistakes; a clock
behind two calls in another module is not seen.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from agentplane.authoring.ambient import ALLOWED, AMBIENT
from agentplane.core import bounds

Function = ast.FunctionDef | ast.AsyncFunctionDef
SETS: Final = frozenset({"set", "frozenset"})
ORDERLESS: Final = frozenset({"sorted", "len", "sum", "min", "max", "any", "all", "bool", "isinstance"})
"""Functions whose answer does not tell in which order a set was walked."""
SET_METHODS: Final = frozenset({"union", "intersection", "difference", "symmetric_difference"})


class Finding(msgspec.Struct, frozen=True, order=True):
    """One thing that a reviewer would ask about. ``line`` counts from 1."""

    file: str
    line: int
    rule: str
    sentence: str


def check_paths(paths: Iterable[Path]) -> list[Finding]:
    """Findings of every ``.py`` file in ``paths`` (files, or directories with all below them), by file and
    line."""
    found: list[Finding] = []
    for file in sorted({file for path in paths for file in _files(path)}):
        found += _check_file(file)
    return sorted(found)


def _files(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from (file for file in path.rglob("*.py") if "__pycache__" not in file.parts)
    else:
        yield path


def _check_file(path: Path) -> list[Finding]:
    try:
        with open(path, "rb") as file:
            raw = file.read(bounds.BLOB_BYTES_MAX)
        tree = ast.parse(raw, str(path))
    except (OSError, SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None) or 1
        return [Finding(str(path), line, "unreadable", f"It cannot be read as Python: {error}.")]
    module = _Module(path, tree)
    return [*module.effects(), *module.steps()]


class _Declared(msgspec.Struct, frozen=True):
    """An effect as its decorator says it: the members that were written, by name."""

    function: Function
    kind: str
    terms: dict[str, ast.expr]

    @property
    def mutates(self) -> bool:
        told = self.terms.get("mutates")
        if isinstance(told, ast.Constant):
            return bool(told.value)
        local = self.terms.get("local")
        return not (isinstance(local, ast.Constant) and local.value is True)

    @property
    def recovery(self) -> str | None:
        told = self.terms.get("recovery")
        if isinstance(told, ast.Attribute):
            return told.attr
        if isinstance(told, ast.Constant):
            return str(told.value).upper()
        return None if told is None else "?"


class _Module:
    """One file: its imports by local name, its functions, and which of them are effects, probes and steps."""

    def __init__(self, path: Path, tree: ast.Module) -> None:
        self.file = str(path)
        self.names = _imports(tree)
        self.functions = [node for node in ast.walk(tree) if isinstance(node, Function)]
        self.by_name = {node.name: node for node in tree.body if isinstance(node, Function)}
        self.declared = [one for one in map(self._declared, self.functions) if one is not None]
        self.probed = {name for node in self.functions for name in self._decorates(node, "reconcile")}

    def at(self, node: ast.expr | ast.stmt, rule: str, sentence: str) -> Finding:
        return Finding(self.file, node.lineno, rule, sentence)

    # --- effects ---------------------------------------------------------------------------------------------

    def effects(self) -> Iterator[Finding]:
        for one in self.declared:
            if one.mutates:
                yield from self._of_recovery(one)
            if one.recovery == "IDEMPOTENT" and not _may_use_key(one.function):
                yield self.at(
                    one.function, "key-unused",
                    f"{one.kind} says that its provider recognises a key and never sends call.idempotency_key.",
                )  # fmt: skip

    def _of_recovery(self, one: _Declared) -> Iterator[Finding]:
        where, kind = one.function, one.kind
        if one.recovery is None:
            yield self.at(
                where, "unpinned-recovery",
                f"{kind} changes something and does not say recovery=; until it does, every doubt needs a person and "
                "every call pays two syncs.",
            )  # fmt: skip
        elif one.recovery == "RETRY":
            yield self.at(
                where, "retry-mutates", f"{kind} changes something under Recovery.RETRY: sent twice it must do no harm."
            )
        elif one.recovery == "REQUIRES_OPERATOR":
            yield self.at(
                where, "two-syncs", f"{kind} pays two syncs a call: its outcome is one that only a person could supply."
            )
        elif one.recovery == "RECONCILE" and where.name not in self.probed:
            yield self.at(
                where, "two-syncs",
                f"{kind} is RECONCILE without a probe: every doubt needs a person, and every call pays two syncs; "
                f"write @{where.name}.reconcile.",
            )  # fmt: skip

    def _declared(self, node: Function) -> _Declared | None:
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call) and self._is_ours(decorator.func, "effect"):
                kind = decorator.args[0] if decorator.args else None
                told = kind.value if isinstance(kind, ast.Constant) else None
                name = told if isinstance(told, str) else node.name
                terms = {word.arg: word.value for word in decorator.keywords if word.arg is not None}
                return _Declared(node, f"The effect {name}", terms)
        return None

    # --- steps -----------------------------------------------------------------------------------------------

    def steps(self) -> Iterator[Finding]:
        """What skill code, and the functions of this file that it calls, does beside ``cx``."""
        seen: set[Function] = {one.function for one in self.declared}
        seen |= {node for node in self.functions if self._decorates(node, "reconcile")}
        left = [node for node in self.functions if self._is_step(node)]
        while left:
            node = left.pop(0)
            if node in seen:
                continue
            seen.add(node)
            yield from self._ambient(node)
            yield from self._sets(node)
            calls = (call.func for call in ast.walk(node) if isinstance(call, ast.Call))
            left += [self.by_name[it.id] for it in calls if isinstance(it, ast.Name) and it.id in self.by_name]

    def _is_step(self, node: Function) -> bool:
        ours = (d for d in node.decorator_list if isinstance(d, ast.Call))
        return any(self._is_ours(one.func, "skill") for one in ours) or bool(self._decorates(node, "compensate"))

    def _ambient(self, node: Function) -> Iterator[Finding]:
        inner = [child for child in ast.walk(node) if isinstance(child, ast.Attribute | ast.Name)]
        within = {child.value for child in inner if isinstance(child, ast.Attribute)}
        own = _bound(node) - self.names.keys()
        for child in inner:
            if child in within or not isinstance(child.ctx, ast.Load):
                continue
            name = self._dotted(child)
            if name in ALLOWED or _root(child) in own:
                continue
            for table in AMBIENT:
                if (
                    name in table.names
                    or name.startswith(table.prefixes)
                    or (isinstance(child, ast.Attribute) and child.attr in table.methods)
                ):
                    yield self.at(child, table.rule, f"{name} in skill code {table.why}.")
                    break

    def _sets(self, node: Function) -> Iterator[Finding]:
        cx = node.args.args[0].arg if node.args.args else ""
        bags = {
            target.id
            for child in ast.walk(node)
            if isinstance(child, ast.Assign | ast.AnnAssign) and child.value is not None and _is_set(child.value, set())
            for target in (child.targets if isinstance(child, ast.Assign) else [child.target])
            if isinstance(target, ast.Name)
        }
        for child in ast.walk(node):
            over = _walked(child, cx, bags)
            if over is not None:
                yield self.at(
                    over, "set-loop",
                    "The order of a set is another one in every process; loop over sorted(...) where cx is called.",
                )  # fmt: skip

    # --- names -----------------------------------------------------------------------------------------------

    def _dotted(self, node: ast.expr) -> str:
        """The full name of ``a.b.c`` with what ``a`` was imported as; the bare text of anything else."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ".".join(["...", *reversed(parts)])
        return ".".join([self.names.get(node.id, node.id), *reversed(parts)])

    def _is_ours(self, node: ast.expr, name: str) -> bool:
        full = self._dotted(node)
        return full == name or (full.startswith("agentplane.") and full.rpartition(".")[2] == name)

    def _decorates(self, node: Function, what: str) -> list[str]:
        return [
            one.value.id
            for one in node.decorator_list
            if isinstance(one, ast.Attribute) and one.attr == what and isinstance(one.value, ast.Name)
        ]


def _imports(tree: ast.Module) -> dict[str, str]:
    """What each imported local name stands for, wherever in the file it is imported."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.partition(".")[0]
                names[alias.asname or root] = alias.name if alias.asname else root
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def _root(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _bound(node: Function) -> set[str]:
    """Names that are the function's own, whatever a module or a builtin of that name would be."""
    stored = {child.id for child in ast.walk(node) if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store)}
    return stored | {child.arg for child in ast.walk(node) if isinstance(child, ast.arg)}


def _may_use_key(node: Function) -> bool:
    """Whether the body reads the key, or hands its call on to something that may."""
    call = node.args.args[0].arg if node.args.args else ""
    owners = {child.value for child in ast.walk(node) if isinstance(child, ast.Attribute)}
    for child in ast.walk(node):
        if isinstance(child, ast.Attribute) and child.attr == "idempotency_key":
            return True
        if isinstance(child, ast.Name) and child.id == call and child not in owners:
            return True
    return False


def _is_set(node: ast.expr, bags: set[str]) -> bool:
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    if isinstance(node, ast.Name):
        return node.id in bags
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.BitOr | ast.BitAnd | ast.Sub | ast.BitXor) and (
            _is_set(node.left, bags) or _is_set(node.right, bags)
        )
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name):
            is_listed = node.func.id in ("list", "tuple", "enumerate", "iter", "reversed") and bool(node.args)
            return node.func.id in SETS or (is_listed and _is_set(node.args[0], bags))
        return isinstance(node.func, ast.Attribute) and node.func.attr in SET_METHODS
    return False


def _walked(node: ast.AST, cx: str, bags: set[str]) -> ast.expr | None:
    """The set that ``node`` walks while it calls ``cx``, or hands over to it in the set's order; None otherwise."""
    if isinstance(node, ast.For | ast.AsyncFor) and _is_set(node.iter, bags):
        return node.iter if any(_calls(child, cx) for child in [*node.body, *node.orelse]) else None
    if isinstance(node, ast.Call) and _is_of(node.func, cx):
        parts = [*node.args, *(word.value for word in node.keywords)]
        return next((found for part in parts if (found := _handed(part, bags)) is not None), None)
    if isinstance(node, ast.ListComp | ast.GeneratorExp | ast.DictComp) and _calls(node, cx):
        return next((loop.iter for loop in node.generators if _is_set(loop.iter, bags)), None)
    return None


def _handed(node: ast.expr, bags: set[str]) -> ast.expr | None:
    """The set whose order is in the value of ``node``, however deep: as itself, unpacked, or walked by a list."""
    if _is_set(node, bags):
        return node
    if isinstance(node, ast.Compare | ast.Lambda | ast.SetComp):
        return None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ORDERLESS:
        return None
    if isinstance(node, ast.ListComp | ast.GeneratorExp):
        for loop in node.generators:
            if _is_set(loop.iter, bags):
                return loop.iter
        return _handed(node.elt, bags)
    inner = [child.value if isinstance(child, ast.keyword) else child for child in ast.iter_child_nodes(node)]
    walked = (_handed(child, bags) for child in inner if isinstance(child, ast.expr))
    return next((found for found in walked if found is not None), None)


def _is_of(node: ast.expr, cx: str) -> bool:
    """Whether ``node`` is an attribute of ``cx``, or of one of its (``cx.case.write``)."""
    return isinstance(node, ast.Attribute) and _root(node) == cx


def _calls(node: ast.AST, cx: str) -> bool:
    """Whether ``cx`` is called, or handed on, inside ``node``."""
    return any(isinstance(child, ast.Name) and child.id == cx for child in ast.walk(node))
