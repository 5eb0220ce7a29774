"""What a handler is given and gives.

Owns the request, the reply, the table's row, and what a handler needs of whoever carries it. Refuses nothing by itself.
Invariant: a handler sees the same whether it is reached over a socket, over HTTP or in the terminal's own process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
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

    async def read(self, body: Callable[[Tx], Any]) -> Any: ...

    async def status(self) -> Body: ...

    async def drain(self, *, now: bool, grace_s: float | None) -> Body: ...

    async def reload(self) -> Body: ...


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One request: who, the run in its path, its body as data, its query, and the admission key beside them."""

    who: Who
    run: str = ""
    body: Any = None
    query: dict[str, str] = {}
    key: str | None = None


class Reply(msgspec.Struct, frozen=True):
    status: int
    body: Body


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One row. ``down``: read (opens the file), write (takes the lock), or none (4 when nothing serves)."""

    name: str
    action: str
    method: str
    path: str
    handler: Callable[[Host, Ask], Awaitable[Reply]]
    down: str = "read"
    needs_skills: bool = False


def schema(verb: str, **members: Any) -> Body:
    return {"schema": f"agentplane.{verb}/1", **members}


def writable(host: Host) -> Plane:
    if host.plane is None:
        raise errors.NotServing("This needs the store open for writing.")
    return host.plane
