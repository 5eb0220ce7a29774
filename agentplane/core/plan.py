"""A plan: which steps, with which capability, after which.

Owns the frozen plan, its digest and its contract. Refuses to run anything. Invariant: a plan that ``faults``
finds nothing in has a terminal, no cycle and no step that cannot be reached.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

import msgspec

from agentplane.core import canonical

PLAN_DOMAIN: Final = b"agentplane.plan.v1\x00"


class Node(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One step: ``id`` dense from 0; ``after`` the ids it depends on."""

    id: int
    name: str
    capability: str
    after: tuple[int, ...] = ()
    terminal: bool = False


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    version: int = 1
    nodes: tuple[Node, ...]


def single(capability: str) -> Plan:
    """The one-node plan that a bare capability is."""
    return Plan(nodes=(Node(id=0, name=capability, capability=capability, terminal=True),))


def to_data(plan: Plan) -> object:
    return msgspec.to_builtins(plan)


def from_data(data: object) -> Plan:
    """Raises msgspec.ValidationError on another shape."""
    return msgspec.convert(data, Plan)


def digest(plan: Plan) -> str:
    """Hex SHA-256 over the domain and the canonical bytes of the plan."""
    return hashlib.sha256(PLAN_DOMAIN + canonical.encode(to_data(plan))).hexdigest()


def ready(plan: Plan, finished: Iterable[int], started: Iterable[int]) -> list[Node]:
    """Nodes whose dependencies are all finished and that have not begun, in ascending step id."""
    done, begun = set(finished), set(started)
    return [node for node in plan.nodes if node.id not in begun and done.issuperset(node.after)]


def terminal(plan: Plan) -> int:
    """The step whose output is the run's: the lowest terminal."""
    return min(node.id for node in plan.nodes if node.terminal)


def faults(plan: Plan, provided: Iterable[str]) -> list[str]:
    """Every fault of the plan, each a sentence naming its step; empty when it may run."""
    known = {node.id: node for node in plan.nodes}
    capabilities = set(provided)
    found: list[str] = []
    if [node.id for node in plan.nodes] != list(range(len(plan.nodes))):
        found.append("step ids are not dense from 0")
    if not any(node.terminal for node in plan.nodes):
        found.append("no step is terminal")
    for node in plan.nodes:
        found += [
            f"step {node.id} depends on step {other}, which does not exist"
            for other in node.after
            if other not in known
        ]
        if node.capability not in capabilities:
            found.append(f"step {node.id} needs the capability {node.capability!r}, which is not provided")
    if cyclic := _in_cycles(plan):
        found.append(f"steps {', '.join(map(str, cyclic))} depend on each other in a circle")
    return found


def _in_cycles(plan: Plan) -> list[int]:
    left = {node.id: set(node.after) for node in plan.nodes}
    while True:
        free = [step for step, after in left.items() if not after & left.keys()]
        # What only waits for a circle is not in it.
        free += [step for step in left if not any(step in after for after in left.values())]
        if not free:
            return sorted(left)
        for step in set(free):
            del left[step]
