"""A plan: which steps, with which capability, after which, from which arguments.

Owns the frozen plan, its digest, what of it is ready, a step's request, and its successor when it is replaced. Refuses
to run anything; what is wrong with a plan is said by ``contract``. Invariant: a step's id is given once over all
versions of a run's plan, so what is recorded under it stays the answer to the same work.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from agentplane.core import canonical
from agentplane.core.contract import Fault as Fault
from agentplane.core.contract import faults as faults

PLAN_DOMAIN: Final = b"agentplane.plan.v1\x00"

NOTHING: Final = object()
"""What is found where there is nothing: null is something."""

Binding = dict[str, object]
"""Where an argument comes from: ``{"input": path}``, ``{"node": id, "path": path}`` or ``{"constant": value}``. A path
is a list of member names and list positions from 0; the empty one is the whole value."""


class Node(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One step: ``id`` its u32 number, ``after`` the ids it depends on, ``verifies`` the step that it judges.

    ``args``: what each argument of its request is bound to; None when its request is the run's input.
    """

    id: int
    name: str
    capability: str
    after: tuple[int, ...] = ()
    terminal: bool = False
    args: dict[str, Binding] | None = None
    verifies: int | None = None


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Steps in ascending id. A successor names the digest of the plan that it takes the place of, and why."""

    version: int = 1
    derived_from: str | None = None
    reason: str | None = None
    nodes: tuple[Node, ...]


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A step before it has an id: ``after``, ``verifies`` and the ``node`` of a binding are names."""

    name: str
    capability: str
    after: tuple[str, ...] = ()
    terminal: bool = False
    args: dict[str, Binding] | None = None
    verifies: str | None = None


class BindFault(ValueError):
    """What a step's argument is bound to does not exist: ``step`` is whose, ``path`` is where nothing was found."""

    def __init__(self, step: int, name: str, path: str) -> None:
        self.step = step
        self.argument = name
        self.path = path
        super().__init__(f"step {step} takes its argument {name!r} from {path}, where there is nothing")


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
    """Nodes whose dependencies are all finished and that have not begun, in ascending step id. It reads the whole
    plan; a walk through one uses ``Frontier``."""
    done, begun = set(finished), set(started)
    return [node for node in plan.nodes if node.id not in begun and done.issuperset(node.after)]


def terminal(plan: Plan) -> int:
    """The step whose output is the run's: the lowest terminal."""
    return min(node.id for node in plan.nodes if node.terminal)


def complete(plan: Plan, finished: Collection[int]) -> bool:
    """Whether the plan has succeeded: every terminal has."""
    return all(node.id in finished for node in plan.nodes if node.terminal)


class Frontier:
    """What may begin, as steps finish: each edge is looked at once over the whole walk.

    ``finished``: steps of this plan, or of an earlier version, that need not run.
    """

    __slots__ = ("_behind", "_missing", "_nodes", "_ready")

    def __init__(self, plan: Plan, finished: Iterable[int] = ()) -> None:
        self._nodes = {node.id: node for node in plan.nodes}
        settled = set(finished)
        self._behind: dict[int, list[int]] = {}
        self._missing: dict[int, int] = {}
        self._ready: list[int] = []
        for node in plan.nodes:
            if node.id in settled:
                continue
            awaited = set(node.after) - settled
            self._missing[node.id] = len(awaited)
            for other in awaited:
                self._behind.setdefault(other, []).append(node.id)
            if not awaited:
                self._ready.append(node.id)
        heapq.heapify(self._ready)

    def __len__(self) -> int:
        """How many steps are ready and not taken."""
        return len(self._ready)

    def take(self, limit: int | None = None) -> list[Node]:
        """Up to ``limit`` ready steps (None: all), lowest ids first; none is given twice."""
        count = len(self._ready) if limit is None else min(limit, len(self._ready))
        return [self._nodes[heapq.heappop(self._ready)] for _ in range(count)]

    def done(self, step: int) -> None:
        """``step`` has succeeded: what waited for nothing else becomes ready. Saying it twice changes nothing."""
        for other in self._behind.pop(step, ()):
            self._missing[other] -= 1
            if not self._missing[other]:
                heapq.heappush(self._ready, other)


def bind(node: Node, request: object, outputs: Mapping[int, object]) -> object:
    """The request of ``node`` as data of its own: the run's ``request`` where the node binds nothing, else an object
    of its arguments. ``outputs`` are those of finished steps by id. Raises BindFault."""
    if node.args is None:
        return _copy(request)
    return {name: _copy(_bound(node.id, name, binding, request, outputs)) for name, binding in node.args.items()}


def _bound(step: int, name: str, binding: Binding, request: object, outputs: Mapping[int, object]) -> object:
    if "constant" in binding:
        return binding["constant"]
    if "input" in binding:
        value, path, at = request, binding["input"], "the run's input"
    else:
        source, path = binding.get("node"), binding.get("path", ())
        at = f"the output of step {source}"
        if not isinstance(source, int) or source not in outputs:
            raise BindFault(step, name, at)
        value = outputs[source]
    for key in path if isinstance(path, list | tuple) else ():
        at = f"{at} / {str(key)[:80]}"
        value = _member(value, key)
        if value is NOTHING:
            raise BindFault(step, name, at)
    return value


def _member(value: object, key: object) -> object:
    """The member of an object, or the item of a list, of that name or position; NOTHING where there is none."""
    if isinstance(value, dict):
        return value.get(key, NOTHING) if isinstance(key, str) else NOTHING
    if isinstance(value, list | tuple) and type(key) is int and 0 <= key < len(value):
        return value[key]
    return NOTHING


def _copy(value: object) -> object:
    """Plain data of its own, so that a skill that changes its request changes nobody else's."""
    if isinstance(value, dict):
        return {name: _copy(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_copy(item) for item in value]
    return value


def first(drafts: Sequence[Draft]) -> Plan:
    """Version 1: ids from 0 in the order of ``drafts``. Raises ValueError that lists every name that is wrong."""
    _check_names(drafts)
    ids = {draft.name: at for at, draft in enumerate(drafts)}
    return Plan(nodes=_numbered(drafts, ids))


def successor(plan: Plan, reason: str, wanted: Sequence[Draft], finished: Collection[int], used: int) -> Plan:
    """The next version of ``plan``, made of ``wanted``.

    A wanted step keeps the id of the finished step of its name when both are the same work: name, capability,
    arguments, subject and dependencies agree, and those it names keep their ids too. Everything else gets an id above
    ``used``, the highest of any version. Raises ValueError that lists every name that is wrong.
    """
    _check_names(wanted)
    kept = _kept(plan, wanted, finished)
    top = max([used, *(node.id for node in plan.nodes)])
    ids = dict(kept)
    for draft in wanted:
        if draft.name not in kept:
            top += 1
            ids[draft.name] = top
    return Plan(version=plan.version + 1, derived_from=digest(plan), reason=reason, nodes=_numbered(wanted, ids))


def _kept(plan: Plan, wanted: Sequence[Draft], finished: Collection[int]) -> dict[str, int]:
    """Names of ``wanted`` to the ids they keep. What stood on other work is other work: a step falls out of it with
    any step that it names."""
    names: dict[object, object] = {node.id: node.name for node in plan.nodes}
    standing = {node.name: node for node in plan.nodes if node.id in finished}
    kept = {
        draft.name: standing[draft.name].id
        for draft in wanted
        if draft.name in standing and _work(draft) == _work(_drafted(standing[draft.name], names))
    }
    behind: dict[str, list[str]] = {}
    for draft in wanted:
        for other in _named(draft):
            behind.setdefault(other, []).append(draft.name)
    lost = [draft.name for draft in wanted if draft.name not in kept]
    while lost:
        for name in behind.pop(lost.pop(), ()):
            if kept.pop(name, None) is not None:
                lost.append(name)
    return kept


def _work(draft: Draft) -> bytes:
    """What the step does, as bytes: True is not 1 there. Whether it is terminal is no part of it."""
    args, after = draft.args, sorted(set(draft.after))
    return canonical.encode([draft.name, draft.capability, after, draft.verifies, _whole_paths(args)])


def _whole_paths(args: Mapping[str, Binding] | None) -> object:
    if args is None:
        return None
    return {name: {"path": [], **bound} if "node" in bound else bound for name, bound in args.items()}


def _drafted(node: Node, names: Mapping[object, object]) -> Draft:
    """``node`` with names in the place of ids. What has no name can be asked for by nobody."""
    args = node.args and {name: _renamed(binding, names) for name, binding in node.args.items()}
    return Draft(
        name=node.name,
        capability=node.capability,
        after=tuple(str(names.get(other, f"#{other}")) for other in node.after),
        args=args,
        verifies=None if node.verifies is None else str(names.get(node.verifies, f"#{node.verifies}")),
    )


def _numbered(drafts: Sequence[Draft], ids: Mapping[str, int]) -> tuple[Node, ...]:
    """The nodes in ascending id. Where no draft says it is terminal, those are that nothing depends on."""
    inner = {other for draft in drafts for other in draft.after}
    table = dict[object, object](ids.items())
    said = any(draft.terminal for draft in drafts)
    nodes = [
        Node(
            id=ids[draft.name],
            name=draft.name,
            capability=draft.capability,
            after=tuple(sorted({ids[other] for other in draft.after})),
            terminal=draft.terminal if said else draft.name not in inner,
            args=draft.args and {name: _renamed(binding, table) for name, binding in draft.args.items()},
            verifies=None if draft.verifies is None else ids[draft.verifies],
        )
        for draft in drafts
    ]
    return tuple(sorted(nodes, key=lambda node: node.id))


def _renamed(binding: Binding, table: Mapping[object, object]) -> Binding:
    """``binding`` with what ``table`` has for its node; one that is in no table stays, for the contract to judge."""
    source = binding.get("node")
    return binding | {"node": table[source]} if isinstance(source, str | int) and source in table else binding


def _named(draft: Draft) -> set[str]:
    """Every step that ``draft`` names."""
    found = {*draft.after} | ({draft.verifies} if draft.verifies is not None else set())
    bindings = (draft.args or {}).values()
    return found | {other for binding in bindings if isinstance(other := binding.get("node"), str)}


def _check_names(drafts: Sequence[Draft]) -> None:
    wrong: list[str] = []
    seen: set[str] = set()
    for draft in drafts:
        if draft.name in seen:
            wrong.append(f"two steps have the name {draft.name!r}")
        seen.add(draft.name)
    for draft in drafts:
        wrong += [
            f"{draft.name!r} names the step {other!r}, which does not exist" for other in sorted(_named(draft) - seen)
        ]
    if wrong:
        raise ValueError("; ".join(wrong))
