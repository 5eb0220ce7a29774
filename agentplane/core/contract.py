"""The contract of a plan: everything that is wrong with it, before anything of it runs.

Owns the faults of a plan and the walks over its graph that find them. Refuses to stop at the first fault, to raise and
to look at anything but the plan and what is provided. Invariant: a plan without faults has a terminal, no circle, no
step that cannot begin or that nothing needs, and every argument has a source that has finished when it is read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from agentplane.core import bounds, canonical
from agentplane.core.effects import U32_MAX

if TYPE_CHECKING:
    from agentplane.core.plan import Node, Plan

SHOWN: Final = 10
"""Steps of one circle that its sentence names."""


class Fault(msgspec.Struct, frozen=True):
    """One fault: ``step`` is the id of the step it is in, None for one of the whole plan; ``reason`` a sentence."""

    step: int | None
    reason: str

    def __str__(self) -> str:
        return self.reason


Edges = Mapping[int, Mapping[int, None]]
"""Each step with the steps that it depends on, once each and in their order."""

Provided = Mapping[str, frozenset[str] | None]
"""Capabilities, each with the arguments that its request must have; None where it takes anything."""


def faults(plan: Plan, provided: Provided) -> list[Fault]:
    """Every fault of ``plan``, those of the whole first, then by step; empty when it may run. Its time is linear in
    steps, edges and arguments. Of a plan over its bound, only that is said."""
    if len(plan.nodes) > bounds.PLAN_NODES_MAX:
        most = bounds.PLAN_NODES_MAX
        return [Fault(None, f"the plan has {len(plan.nodes)} steps, over the bound of {most}")]
    known: dict[int, Node] = {}
    for node in plan.nodes:
        known.setdefault(node.id, node)
    graph = _Graph(known)
    found = [*_identities(plan.nodes), *_shape(known, graph), *_capabilities(known, provided)]
    found += _sources(known, graph)
    return sorted(found, key=lambda fault: -1 if fault.step is None else fault.step)


def _title(node: Node) -> str:
    return f"step {node.id} ({node.name[:80]})"


def _identities(nodes: Iterable[Node]) -> Iterator[Fault]:
    before: int | None = None
    ids: set[int] = set()
    names: set[str] = set()
    for node in nodes:
        if not 0 <= node.id <= U32_MAX:
            yield Fault(node.id, f"{_title(node)} needs an id from 0 to {U32_MAX}")
        if node.id in ids:
            yield Fault(node.id, f"{_title(node)} has the id of another step")
        elif before is not None and node.id < before:
            yield Fault(node.id, f"{_title(node)} stands after step {before}: steps stand in ascending id")
        if not 0 < len(node.name) <= bounds.NAME_CHARS_MAX:
            yield Fault(node.id, f"{_title(node)} needs a name of 1 to {bounds.NAME_CHARS_MAX} characters")
        elif node.name in names:
            yield Fault(node.id, f"{_title(node)} has the name of another step")
        ids.add(node.id)
        names.add(node.name)
        before = node.id


class _Graph:
    """The edges of a plan, and its circles found: ``parts`` are its strongly connected parts, what is depended on
    first; ``part_of`` says in which a step is; ``circles`` are those that depend on themselves."""

    __slots__ = ("after", "circles", "part_of", "parts")

    def __init__(self, known: Mapping[int, Node]) -> None:
        self.after: Edges = {
            step: dict.fromkeys(other for other in node.after if other in known) for step, node in known.items()
        }
        self.parts = _parts(self.after)
        self.part_of = {step: at for at, part in enumerate(self.parts) for step in part}
        self.circles = {at for at, part in enumerate(self.parts) if len(part) > 1 or part[0] in self.after[part[0]]}

    def upstream(self, pairs: Collection[tuple[int, int]]) -> set[tuple[int, int]]:
        """Those of ``pairs`` (step, other) in which ``other`` must have finished before ``step`` may begin.

        One walk for all of them: each other is a bit, handed down from part to part.
        """
        bits = {other: 1 << at for at, other in enumerate({other for _, other in pairs})}
        masks: list[int] = []
        handed: list[int] = []
        for at, part in enumerate(self.parts):
            own = mask = 0
            for step in part:
                own |= bits.get(step, 0)
            for dep in {self.part_of[dep] for step in part for dep in self.after[step]} - {at}:
                mask |= handed[dep]
            masks.append(mask | own if at in self.circles else mask)
            handed.append(mask | own)
        return {(step, other) for step, other in pairs if masks[self.part_of[step]] & bits[other]}


def _parts(after: Edges) -> list[list[int]]:
    """Strongly connected parts of the graph, each sorted, after those that it depends on (Tarjan, without recursion:
    a chain is as long as the plan)."""
    number: dict[int, int] = {}
    low: dict[int, int] = {}
    open_: list[int] = []
    closed: set[int] = set()
    parts: list[list[int]] = []
    for root in after:
        walk = [] if root in number else [(root, iter(after[root]))]
        if walk:
            number[root] = low[root] = len(number)
            open_.append(root)
        while walk:
            step, rest = walk[-1]
            for other in rest:
                if other not in number:
                    number[other] = low[other] = len(number)
                    open_.append(other)
                    walk.append((other, iter(after[other])))
                    break
                if other not in closed:
                    low[step] = min(low[step], number[other])
            else:
                walk.pop()
                if walk:
                    low[walk[-1][0]] = min(low[walk[-1][0]], low[step])
                if low[step] == number[step]:
                    part = _popped(open_, step)
                    closed.update(part)
                    parts.append(part)
    return parts


def _popped(stack: list[int], last: int) -> list[int]:
    """What stands on ``stack`` from its end to ``last``, taken off and sorted."""
    part = []
    while True:
        part.append(stack.pop())
        if part[-1] == last:
            return sorted(part)


def _shape(known: Mapping[int, Node], graph: _Graph) -> Iterator[Fault]:
    """No terminal, dependencies that do not exist, circles, what can never begin and what nothing needs."""
    terminals = [step for step, node in known.items() if node.terminal]
    if not terminals:
        yield Fault(None, "no step is terminal")
    blocked: set[int] = set()
    for step, node in known.items():
        for other in dict.fromkeys(node.after):
            if other not in known:
                blocked.add(step)
                yield Fault(step, f"{_title(node)} depends on step {other}, which does not exist")
    for at in sorted(graph.circles):
        part = graph.parts[at]
        blocked.update(part)
        yield Fault(part[0], _circle(known[part[0]], part))
    for part in graph.parts:
        for step in part:
            if step not in blocked and (dead := [other for other in graph.after[step] if other in blocked]):
                blocked.add(step)
                yield Fault(step, f"{_title(known[step])} can never begin: it waits for step {min(dead)}, which cannot")
    needed = _needed(terminals, graph.after)
    for step, node in known.items():
        if terminals and step not in needed:
            yield Fault(step, f"{_title(node)} leads to no terminal step, so nothing needs it")


def _circle(lowest: Node, part: list[int]) -> str:
    if len(part) == 1:
        return f"{_title(lowest)} depends on itself"
    more = f" and {len(part) - SHOWN} more" if len(part) > SHOWN else ""
    return f"steps {', '.join(map(str, part[:SHOWN]))}{more} depend on each other in a circle"


def _needed(terminals: Iterable[int], after: Edges) -> set[int]:
    found: set[int] = set()
    left = list(terminals)
    while left:
        step = left.pop()
        if step not in found:
            found.add(step)
            left += after[step]
    return found


def _capabilities(known: Mapping[int, Node], provided: Provided) -> Iterator[Fault]:
    for step, node in known.items():
        if node.capability not in provided:
            what = f"the capability {node.capability[:80]!r}, which is not provided"
            yield Fault(step, f"{_title(node)} needs {what}")
        elif node.args is not None:
            for name in sorted((provided[node.capability] or frozenset()) - node.args.keys()):
                yield Fault(step, f"{_title(node)} binds no {name!r}, which {node.capability} requires")


def _sources(known: Mapping[int, Node], graph: _Graph) -> Iterator[Fault]:
    """Arguments without a source, and sources or subjects that need not have finished by then."""
    asked: dict[tuple[int, int], list[str]] = {}
    for step, node in known.items():
        for name, binding in (node.args or {}).items():
            wrong, source = _binding(binding)
            if not 0 < len(name) <= bounds.NAME_CHARS_MAX:
                wrong = f"needs a name of 1 to {bounds.NAME_CHARS_MAX} characters"
            if wrong:
                yield Fault(step, f"{_title(node)}: the argument {name[:80]!r} {wrong}")
            elif source is not None:
                what = f"{_title(node)} takes {name[:80]!r} from"
                asked.setdefault((step, source), []).append(what)
        if node.verifies is not None:
            asked.setdefault((step, node.verifies), []).append(f"{_title(node)} verifies")
    near = {(step, other) for step, other in asked if other in graph.after[step] and step != other}
    far = [(step, other) for step, other in asked if other in known and (step, other) not in near]
    near |= graph.upstream(far)
    for (step, other), sentences in asked.items():
        if (step, other) in near:
            continue
        why = "which it does not depend on" if other in known else "which does not exist"
        for sentence in sentences:
            yield Fault(step, f"{sentence} step {other}, {why}")


def _binding(binding: Mapping[str, object]) -> tuple[str | None, int | None]:
    """What is wrong with a binding, and the step it reads."""
    members = set(binding)
    if members == {"constant"}:
        try:
            canonical.encode(binding["constant"])
        except canonical.CanonicalError as error:
            return f"is a constant that is not data: {error}", None
        return None, None
    source = binding.get("node")
    if members in ({"node"}, {"node", "path"}):
        if isinstance(source, bool) or not isinstance(source, int):
            return "names no step by its id", None
    elif members != {"input"}:
        return "is bound to nothing: it needs an input, a node or a constant", None
    path = binding.get("input", binding.get("path", []))
    if not isinstance(path, list | tuple) or not all(_key(key) for key in path):
        return "has a path that is not a list of names and positions", None
    if len(path) > bounds.PLAN_PATH_MAX:
        return f"has a path of {len(path)} names, over the bound of {bounds.PLAN_PATH_MAX}", None
    return None, source if isinstance(source, int) else None


def _key(key: object) -> bool:
    return isinstance(key, str) or (isinstance(key, int) and not isinstance(key, bool) and key >= 0)
