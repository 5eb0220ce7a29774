"""An effect group for a blocking skill: the same names without ``await``.

Owns the bridge from the skill's thread to the group that the step's own task holds. Refuses nothing of its own.
Invariant: every call is performed by the step's task, in the order in which the thread makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from agentplane.authoring.group import Invariant
from agentplane.authoring.types import CallDescription
from agentplane.engine.groups import Group, Groups, Undo
from agentplane.engine.stops import Stop

if TYPE_CHECKING:
    from agentplane.authoring.sql import SqlDescription

Ask = Callable[..., Any]


class BlockingGroup:
    """What a ``def`` skill is handed as ``g``."""

    def __init__(self, group: Group, ask: Ask) -> None:
        self._group = group
        self._ask = ask

    def reversible(self, resource: str, call: CallDescription, *, undo: Undo) -> Any:
        async def perform() -> Any:
            return await self._group.reversible(resource, call, undo=undo)

        return self._ask(perform)

    def read(self, resource: str, call: CallDescription) -> Any:
        return self._ask(self._group.read, resource, call)

    def deferred(self, resource: str, call: CallDescription) -> None:
        async def register() -> None:
            self._group.deferred(resource, call)

        self._ask(register)

    def atomic(self, resource: str, statement: SqlDescription) -> None:
        async def register() -> None:
            self._group.atomic(resource, statement)

        self._ask(register)

    def commit(self, *invariants: Invariant) -> None:
        self._ask(self._group.commit, *invariants)

    def abort(self, reason: str = "abandoned") -> None:
        self._ask(self._group.abort, reason)


class BlockingOpening:
    """What ``cx.group`` gives a blocking skill: to be entered with ``with``."""

    def __init__(self, groups: Groups, ask: Ask, name: str, resources: Sequence[str]) -> None:
        self._groups = groups
        self._ask = ask
        self._asked = (name, resources)
        self._group: Group | None = None

    def __enter__(self) -> BlockingGroup:
        self._group = self._ask(self._groups.open, *self._asked)
        return BlockingGroup(self._group, self._ask)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        group = self._group
        latched = self._groups.cx.latched is not None
        if group is None or self._groups.opened is not group or isinstance(error, Stop) or latched:
            return
        forgotten = self._ask(group.settle_left_open, "succeeded" if error is None else "failed")
        if error is None:
            raise forgotten
