"""A plane behind its own apps, in this process: every request goes through the gate, the table and the real
handlers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import trio
from quart.typing import TestClientProtocol

from agentplane import Recovery, effect, skill
from agentplane.appliance.drain import Drain
from agentplane.appliance.host import ApplianceHost
from agentplane.appliance.logs import Log
from agentplane.appliance.settings import Located, PlaneSettings
from agentplane.core.records import Basis
from agentplane.engine.plane import Plane
from agentplane.surface.access import EVERY_ROLE, Who
from agentplane.surface.app import Identify, make_app

ANNA = Who(actor="anna", basis=Basis.AUTHENTICATED, roles=EVERY_ROLE)


class Wanted(msgspec.Struct, forbid_unknown_fields=True):
    order: str
    amount_minor: int = 1


class Gate:
    """What the skill ``desk.waiting`` waits for."""

    opened = trio.Event()


@effect("desk.note", recovery=Recovery.RETRY)
async def note(call: Any, *, order: str) -> Any:
    return {"noted": order}


@effect("desk.wait", mutates=False, timeout_s=3600)
async def wait(call: Any) -> Any:
    await Gate.opened.wait()
    return "opened"


@effect("desk.glance", mutates=False, timeout_s=20)
async def glance(call: Any) -> Any:
    await Gate.opened.wait()
    return "seen"


@effect("desk.doubt")
async def doubt(call: Any) -> Any:
    raise RuntimeError("the line went dead")


@skill("desk.settle")
async def settle(cx: Any, request: Wanted) -> Any:
    return await cx.do(note(order=request.order))


@skill("desk.many")
async def many(cx: Any, request: Wanted) -> Any:
    return [len((await cx.do(note(order=request.order)))["noted"]) for _ in range(5)]


@skill("desk.waiting")
async def waiting(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
    return await cx.do(wait())


@skill("desk.glancing")
async def glancing(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
    return await cx.do(glance())


@skill("desk.failing")
async def failing(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
    raise ValueError("no such order")


@skill("desk.unsure")
async def unsure(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
    return await cx.do(doubt())


SKILLS = (settle, many, waiting, glancing, failing, unsure)


@dataclass
class Answer:
    status: int
    headers: Any
    raw: bytes

    @property
    def body(self) -> dict[str, Any]:
        return dict(json.loads(self.raw))


@dataclass
class Door:
    """One app and its plane; ``lines`` is its access log."""

    plane: Plane
    host: ApplianceHost
    app: Any
    client: TestClientProtocol
    drain: Drain
    lines: list[dict[str, object]] = field(default_factory=list)

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        raw: bytes | None = None,
        headers: dict[str, str] | None = None,
        scope: dict[str, Any] | None = None,
    ) -> Answer:
        """One request; ``body`` as JSON, or ``raw`` bytes of it."""
        said = dict(headers or {})
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        if data is not None:
            said.setdefault("Content-Type", "application/json")
        answer = await self.client.open(path, method=method, headers=said, data=data, scope_base=scope)
        return Answer(answer.status_code, answer.headers, await answer.get_data())

    async def post(self, body: Any, *, key: str | None = None, query: str = "") -> Answer:
        return await self.ask("POST", "/runs" + query, body, headers={} if key is None else {"Idempotency-Key": key})


@asynccontextmanager
async def door(directory: Path, identify: Identify | None = None, **settings: Any) -> AsyncIterator[Door]:
    """A plane in ``directory`` with the skills above, behind one app whose caller is Anna unless told."""
    Gate.opened = trio.Event()
    (directory / "plane.toml").touch()  # what a reload reads again
    located = Located(directory=directory, plane=PlaneSettings(**settings), said={})
    lines: list[dict[str, object]] = []
    async with Plane.open(directory / "plane.db", skills=SKILLS) as plane:
        drain = Drain(plane, located, Log())
        host = ApplianceHost(plane, located, drain)
        app = make_app(host, identify or (lambda: ANNA), lines.append, "test")
        try:
            yield Door(plane, host, app, app.test_client(), drain, lines)
        finally:
            Gate.opened.set()


Identity = Callable[[], Who]
