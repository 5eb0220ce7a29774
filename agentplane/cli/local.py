"""The plane in this process: its store opened by the terminal, because nothing serves it.

Owns the offline host and client. Refuses to create or migrate a store, and to run skills except for `run` and
`replay`. Invariant:
a read takes no lock and changes nothing.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import trio

from agentplane.appliance.code import prepare
from agentplane.appliance.settings import Located
from agentplane.cli.render import tell
from agentplane.core import bounds, canonical, errors
from agentplane.engine.plane import Plane, strict_verdict, wall_ms
from agentplane.engine.world import World
from agentplane.journal import lists
from agentplane.journal.store import Readers, read_only
from agentplane.journal.tx import Tx
from agentplane.surface.access import decide, of_terminal
from agentplane.surface.asking import Ask, Operation, schema
from agentplane.surface.operations import BY_NAME, EXTRA_ACTIONS

Answer = tuple[int, dict[str, Any]]


class LocalHost:
    """``Host`` of a terminal: a plane opened for writing, or only readers."""

    serving = False

    def __init__(self, plane: Plane | None, readers: Readers, located: Located | None = None) -> None:
        self.plane = plane
        self.people: Mapping[str, Sequence[str]] = {} if located is None else located.plane.people
        self._readers = readers

    async def read(self, body: Callable[[Tx], Any]) -> Any:
        return await trio.to_thread.run_sync(self._readers.read, body)

    async def status(self) -> dict[str, Any]:
        raise errors.NotServing("Nothing serves this plane.")

    async def drain(self, *, now: bool, grace_s: float | None) -> dict[str, Any]:
        raise errors.NotServing("Nothing serves this plane, so there is nothing to drain.")

    async def reload(self) -> dict[str, Any]:
        raise errors.NotServing("Nothing serves this plane, so there is nothing to reload.")

    def faults(self) -> dict[str, list[str]]:
        return {}


class LocalClient:
    """The same calls, carried out here. ``actor`` is asserted."""

    up = False

    def __init__(self, store: Path, located: Located | None, actor: str | None) -> None:
        self._store = store
        self._located = located
        self._actor = actor

    def call(
        self,
        name: str,
        *,
        run: str = "",
        body: Any = None,
        query: dict[str, Any] | None = None,
        key: str | None = None,
        wait_s: float = 0.0,
    ) -> Answer:
        """The operation's answer. Raises the errors of the table."""
        operation = BY_NAME[name]
        who = of_terminal(self._actor)
        decide(who, operation.action)
        extra = EXTRA_ACTIONS.get(name, lambda _: None)(body)
        if extra is not None:
            decide(who, extra)
        texts = {one: str(value) for one, value in (query or {}).items()}
        ask = Ask(who=who, run=run, body=_as_sent(body), query=texts, key=key)
        strict = name == "replay" and isinstance(body, dict) and bool(body.get("strict"))
        try:
            return trio.run(self._strict if strict else self._call, operation, ask)
        except BaseExceptionGroup as group:
            raise _only(group) from None

    async def _call(self, operation: Operation, ask: Ask) -> Answer:
        if operation.down == "none":
            reply = await operation.handler(LocalHost(None, Readers(self._store, "default")), ask)
        elif operation.down == "read":
            readers = read_only(self._store)
            try:
                reply = await operation.handler(LocalHost(None, readers, self._located), ask)
            finally:
                readers.close()
        else:
            reply = await self._write(operation, ask)
        return reply.status, reply.body

    async def _write(self, operation: Operation, ask: Ask) -> Any:
        located = self._located
        loaded = None
        if operation.needs_skills:
            if located is None:
                raise errors.Settings("Running skills needs a plane's directory; name it with --plane DIR.")
            loaded = prepare(located)
        options: dict[str, Any] = {}
        if located is not None:
            plane = located.plane
            options = {
                "tenant": plane.tenant,
                "settings": plane.settings,
                "secrets": located.path("secrets"),
                "lease_ttl_s": plane.lease_ttl_secs,
                "max_running": plane.max_running,
                "people": plane.people,
                "currency": plane.currency,
            }
        async with Plane.open(
            self._store,
            skills=loaded.skills if loaded else (),
            create=False,
            recover=False,
            guard_steps=loaded is not None,
            **options,
        ) as opened:
            host = LocalHost(opened, opened.store.readers, located)
            async with trio.open_nursery() as nursery:
                if operation.needs_skills:
                    await nursery.start(_park_when_told, opened)
                reply = await operation.handler(host, ask)
                run = str(reply.body.get("run"))
                if operation.needs_skills and reply.body.get("status") == "running":
                    await opened.runs.wait_for(run)
                    members = await host.read(lambda tx: _ended(tx, run))
                    reply = type(reply)(reply.status, reply.body | members)
                nursery.cancel_scope.cancel()
            return reply

    async def _strict(self, operation: Operation, ask: Ask) -> Answer:
        """Strict replay of a plane that is down: a read, with the skills of the directory."""
        if self._located is None:
            raise errors.Settings("Replaying needs a plane's directory; name it with --plane DIR.")
        loaded = prepare(self._located)
        readers = read_only(self._store)
        try:
            verdict = await _verdict(ask.run, readers, {skill.name: skill for skill in loaded.skills}, self._located)
        finally:
            readers.close()
        return 200, schema("replay", run=ask.run, strict=True, **msgspec.to_builtins(verdict))


def _as_sent(body: object) -> object:
    """What the same body is over a socket: data, strictly read. Raises InvalidRequest."""
    if body is None:
        return None
    try:
        return canonical.decode(json.dumps(body).encode(), max_bytes=bounds.BODY_BYTES_MAX)
    except canonical.CanonicalError as error:
        raise errors.InvalidRequest(f"The request cannot be said: {error}.") from None


async def _park_when_told(plane: Plane, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    """Ctrl-C in a terminal that executes a run itself: as a drain, at the next effect boundary; a second one cuts
    it."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as told:
        task_status.started()
        async with trio.open_nursery() as nursery:
            async for _ in told:
                if plane.draining:
                    for live in list(plane.runs.live.values()):
                        live.stop()
                else:
                    tell("stopping at the next effect boundary; the run is not cancelled (again: at once)")
                    nursery.start_soon(_park, plane)
                    await trio.lowlevel.checkpoint()


async def _park(plane: Plane) -> None:
    await plane.drain(park=True)


async def _verdict(run: str, readers: Readers, skills: dict[str, Any], located: Located) -> Any:
    world = World(now_ms=wall_ms, settings=located.plane.settings)
    return await strict_verdict(run, readers.read, skills, world)


def _ended(tx: Tx, run: str) -> dict[str, Any]:
    row = lists.get_run(tx, run)
    members: dict[str, Any] = {"status": row.status}
    if row.status == "succeeded":
        members["output"] = lists.run_output(tx, run)
    elif row.status == "suspended":
        members["waiting_for"] = row.reason
    elif row.reason is not None:
        members["error"] = row.reason
    return members


def _only(group: BaseException) -> BaseException:
    while isinstance(group, BaseExceptionGroup) and group.exceptions:
        group = group.exceptions[0]
    return group
