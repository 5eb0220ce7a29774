"""What a handler is given and gives.

Owns the request, the reply, the table's row, and what a handler needs of whoever carries it. Refuses nothing by itself.
Invariant: a handler sees the same whether it is reached over a socket, over HTTP or in the terminal's own process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from agentplane.core import errors
from agentplane.engine.plane import Plane
from agentplane.journal.tx import Tx
from agentplane.surface.access import Who

Body = dict[str, Any]


class Host(Protocol):
    """What the operations need of whoever carries them: an appliance, or a terminal that opened the store."""

    plane: Plane | None
    """None where the store is only read."""
    serving: bool
    people: Mapping[str, Sequence[str]]
    """The names that are one person, by person: ``[people]``."""

    async def read(self, body: Callable[[Tx], Any]) -> Any: ...

    async def status(self) -> Body: ...

    async def drain(self, *, now: bool, grace_s: float | None) -> Body: ...

    async def reload(self) -> Body: ...

    def faults(self) -> dict[str, list[str]]:
        """Conditions of the process itself, by name: of what, and why, each one line."""
        ...


class Raw(msgspec.Struct, frozen=True):
    """A body as it came, for what has more shapes than one: its content type, the request's headers, its bytes."""

    content_type: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One request: who, the id in its path (``run``: of a run, a task or a case), its body as data, its query, the
    admission key beside them, and the body as it came where the operation reads it itself."""

    who: Who
    run: str = ""
    body: Any = None
    query: dict[str, str] = {}
    key: str | None = None
    raw: Raw | None = None


class Reply(msgspec.Struct, frozen=True):
    status: int
    body: Body


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One row. ``down``: read (opens the file), write (takes the lock), or none (4 when nothing serves). ``raw``: the
    handler reads the body itself."""

    name: str
    action: str
    method: str
    path: str
    handler: Callable[[Host, Ask], Awaitable[Reply]]
    down: str = "read"
    needs_skills: bool = False
    raw: bool = False


def schema(verb: str, **members: Any) -> Body:
    return {"schema": f"agentplane.{verb}/1", **members}


def writable(host: Host) -> Plane:
    if host.plane is None:
        raise errors.NotServing("This needs the store open for writing.")
    return host.plane
