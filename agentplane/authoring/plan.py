"""Composing skills into a plan.

Owns ``plan``, ``node`` and what an argument may be bound to. Refuses a plan that could never run, naming it and its
line, when its file is loaded. Invariant: what is compiled here is data with ids, and is never compiled again for a run
that has it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from agentplane.authoring.effect import where
from agentplane.authoring.skill import NAME, read_as, readable
from agentplane.core import bounds, canonical
from agentplane.core.budget import Budget
from agentplane.core.errors import SkillFault
from agentplane.core.plan import Binding, Draft, Plan, faults, first

LISTED: Final = 10
"""Faults of one plan that its sentence lists."""


class Source:
    """Where an argument comes from, until its node is made: a binding and no value."""

    __slots__ = ("binding",)

    def __init__(self, binding: Binding) -> None:
        self.binding = binding


def given(*path: str | int) -> Source:
    """What stands at ``path`` (member names, list positions from 0) in the run's input; without one, all of it."""
    return Source({"input": list(path)})


def output_of(node: str, *path: str | int) -> Source:
    """What stands at ``path`` in the output of the step ``node``, which this one must come after."""
    return Source({"node": node, "path": list(path)})


class PlanNode:
    """One step as its author wrote it, with the line that says it; looked at when a plan is made of it."""

    __slots__ = ("after", "args", "capability", "name", "terminal", "verifies", "where")

    def __init__(
        self, name: object, capability: object, after: object, args: object, terminal: object, verifies: object,
        line: str,
    ) -> None:  # fmt: skip
        self.name = name
        self.capability = capability
        self.after = after
        self.args = args
        self.terminal = terminal
        self.verifies = verifies
        self.where = line

    def draft(self) -> Draft:
        """The step as data by name. Raises SkillFault with the node's name and line."""
        here = f"the node {self.name!r:.200} ({self.where})"
        name = _name(here, "name", self.name)
        after = [self.after] if isinstance(self.after, str) else self.after
        if not isinstance(after, list | tuple) or not all(isinstance(other, str) for other in after):
            raise SkillFault(f"{here} needs after as the name of a node, or a list of names.")
        if not isinstance(self.terminal, bool):
            raise SkillFault(f"{here} needs terminal as True or False.")
        return Draft(
            name=name,
            capability=name if self.capability is None else _name(here, "capability", self.capability),
            after=tuple(dict.fromkeys(after)),
            terminal=self.terminal,
            args=None if self.args is None else _bindings(here, self.args),
            verifies=None if self.verifies is None else _name(here, "verifies", self.verifies),
        )


def node(
    name: str, capability: str | None = None, *, after: str | Sequence[str] = (),
    args: Mapping[str, object] | None = None, terminal: bool = False, verifies: str | None = None,
) -> PlanNode:  # fmt: skip
    """One step of a plan.

    ``capability``: the skill's name, ``name`` if it is the same. ``after``: the steps that must have finished before.
    ``args``: the members of its request, each ``given(...)``, ``output_of(...)`` or data; without it the request is the
    run's input. ``terminal``: its output may be the run's; where no node says so, those are that nothing comes after.
    ``verifies``: the step whose work it judges, somewhere before it. What is wrong with it is said by what it is given
    to, with its name and this line.
    """
    return PlanNode(name, capability, after, args, terminal, verifies, _line(2))


def _name(here: str, what: str, value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= bounds.NAME_CHARS_MAX:
        raise SkillFault(f"{here} needs {what} as a text of 1 to {bounds.NAME_CHARS_MAX} characters.")
    return value


def _bindings(here: str, args: object) -> dict[str, Binding]:
    if not isinstance(args, Mapping) or not all(isinstance(key, str) for key in args):
        raise SkillFault(f"{here} needs args as values by name.")
    return {key: _binding(here, key, value) for key, value in args.items()}


def _binding(here: str, name: str, value: object) -> Binding:
    if isinstance(value, Source):
        return value.binding
    try:
        # A copy: what the author does with the value later changes no plan.
        raw = canonical.encode(value)
        return {"constant": canonical.decode(raw, max_bytes=bounds.VALUE_BYTES_MAX)}
    except (canonical.CanonicalError, RecursionError) as error:
        why = f"given(...), output_of(...), or data: {error}"
        raise SkillFault(f"{here} needs its argument {name!r:.80} as {why}.") from None


Replanner = Callable[[str, object, dict[str, object]], Sequence[PlanNode]]
"""The reason, the run's input and the outputs of finished steps by name, to the nodes that are wanted now."""


class PlanTemplate:
    """A declared plan: a capability of its name, made of others."""

    def __init__(self, name: str, nodes: Sequence[PlanNode], request: object, budget: Budget | None, line: str) -> None:
        self.name = name
        self.nodes = tuple(nodes)
        self.budget = budget
        self.where = line
        self.replanner: Replanner | None = None
        here = f"The plan {name} ({line})"
        self.request_type = readable(here, request)
        self._compiled = _compiled(here, self.nodes)

    def compile(self) -> Plan:
        """The plan as it is frozen for a run, with ids in the order of the nodes."""
        return self._compiled

    def read_request(self, data: object) -> object:
        """``data`` as the plan's request type. Raises InvalidInput with path and expected type."""
        return read_as(self.name, self.request_type, data)

    def replan(self, replanner: Replanner) -> Replanner:
        """Decorate what answers a ``Replan`` that brings no nodes: given its reason, the run's input and the outputs of
        finished steps by name, it returns the nodes that are wanted now. It is pure: it has no step to act with."""
        if inspect.iscoroutinefunction(replanner) or len(inspect.signature(replanner).parameters) != 3:
            raise SkillFault(
                f"The replan function of {self.name} ({where(replanner)}) is a plain function of the reason, the"
                " request and the finished outputs."
            )
        self.replanner = replanner
        return replanner


def plan(name: str, nodes: Sequence[PlanNode], *, request: object = None, budget: Budget | None = None) -> PlanTemplate:
    """Declare a plan that provides the capability ``name``.

    ``request``: the type of the run's input, anything if it is not said. ``budget``: its ceilings, which a request may
    narrow. Raises SkillFault, with the name and the line, that lists what is wrong.
    """
    line = _line(2)
    here = f"The plan {name!r:.200} ({line})"
    if not NAME.match(_text(name)) or len(name) > bounds.NAME_CHARS_MAX:
        raise SkillFault(f"{here} needs a lower-case dotted name, such as 'order.fulfil'.")
    if not _are_nodes(nodes):
        raise SkillFault(f"{here} needs nodes as a list of node(...).")
    if not isinstance(budget, Budget | None):
        raise SkillFault(f"{here} needs budget as Budget(...).")
    return PlanTemplate(name, nodes, request, budget, line)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _are_nodes(values: object) -> bool:
    return isinstance(values, list | tuple) and all(isinstance(value, PlanNode) for value in values)


def _compiled(here: str, nodes: Sequence[PlanNode]) -> Plan:
    try:
        compiled = first([each.draft() for each in nodes])
    except SkillFault as fault:
        raise SkillFault(f"{here}: {fault.message}") from None
    except ValueError as error:
        raise SkillFault(f"{here} cannot run: {error}.") from None
    # Which capabilities there are is the plane's to know, when everything is loaded.
    found = faults(compiled, dict.fromkeys(each.capability for each in compiled.nodes))
    if found:
        more = f"; and {len(found) - LISTED} more" if len(found) > LISTED else ""
        raise SkillFault(f"{here} cannot run: {'; '.join(map(str, found[:LISTED]))}{more}.")
    return compiled


def _line(depth: int) -> str:
    """``file:line`` of the caller, that many frames up."""
    frame = sys._getframe(depth)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
