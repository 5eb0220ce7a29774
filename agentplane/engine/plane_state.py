"""The plane's own durable state: paused, held, and which held runs were let go.

Owns the rows and their copy in memory, and the sealed record of each change. Refuses to change memory before the rows
are durable. Invariant: a pause and a hold survive every restart until a person ends them.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec
import trio

from agentplane.core import ids
from agentplane.core.errors import NotApplicable
from agentplane.core.records import Actor, PlaneActed
from agentplane.engine.recovery import own_run
from agentplane.engine.world import World
from agentplane.journal import lists, rows
from agentplane.journal.store import Store
from agentplane.journal.tx import Tx
from agentplane.journal.writer import Writer


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """What a held store cannot know: when it was recognised, its last instant, and the open runs that it holds."""

    why: str | None
    restored_ms: int | None
    gap_from_ms: int | None
    open_runs: list[str]
    keyless: int


class PlaneState:
    """Made by ``load``. ``held``: why, or None; ``paused``: the reason, or None."""

    def __init__(self, store: Store, writer: Writer, world: World) -> None:
        self._store = store
        self._writer = writer
        self._world = world
        self.held: str | None = store.held
        self.paused: str | None = None
        self.holding: set[str] = set()

    @classmethod
    async def load(cls, store: Store, writer: Writer, world: World) -> PlaneState:
        state = cls(store, writer, world)
        await trio.to_thread.run_sync(lambda: store.readers.read(state._read))
        return state

    def _read(self, tx: Tx) -> None:
        self.paused = lists.get_state(tx, "paused")
        restored = rows.restored(tx)
        if restored.restored_ms is not None:
            self._world.restored_ms = restored.restored_ms
            self._world.restored_gap_ms = restored.gap_from_ms
        self.holding = set(rows.held_runs(tx))

    def may_run(self, run: str) -> bool:
        return run not in self.holding

    def gap(self, tx: Tx) -> Gap:
        """What a person must see before letting go."""
        restored = rows.restored(tx)
        return Gap(
            why=lists.get_state(tx, "held"), restored_ms=restored.restored_ms, gap_from_ms=restored.gap_from_ms,
            open_runs=rows.held_runs(tx), keyless=rows.held_without_key(tx),
        )  # fmt: skip

    async def pause(self, actor: Actor, reason: str) -> bool:
        """Admit and resume nothing from now on; False when it was paused already."""
        if self.paused is not None:
            return False
        await self._act("pause", actor, reason, lambda tx: lists.set_state(tx, "paused", reason))
        self.paused = reason
        return True

    async def release_paused(self, actor: Actor, reason: str | None) -> bool:
        if self.paused is None:
            return False
        await self._act("release_paused", actor, reason, lambda tx: lists.set_state(tx, "paused", None))
        self.paused = None
        return True

    async def release_held(self, actor: Actor, reason: str | None, runs: list[str] | None = None) -> list[str]:
        """Let held runs go: those named, or all of them and the store. Returns the runs let go."""
        if self.held is None and not self.holding:
            raise NotApplicable("The store is not held.")
        chosen = sorted(self.holding) if runs is None else runs
        unknown = [run for run in chosen if run not in self.holding]
        if unknown:
            raise NotApplicable(f"The run {unknown[0]} is not held.")

        def unit(tx: Tx) -> None:
            rows.let_go(tx, chosen)
            if runs is None:
                lists.set_state(tx, "held", None)

        await self._act("release_held", actor, reason, unit)
        self.holding -= set(chosen)
        if runs is None:
            self.held = self._store.held = None
            await trio.to_thread.run_sync(self._store.mark_now)
        return chosen

    async def _act(self, action: str, actor: Actor, reason: str | None, change: Callable[[Tx], object]) -> None:
        identity, world = self._store.identity, self._world
        run = ids.new_id("run", world.now_ms(), os.urandom(10))

        def unit(tx: Tx) -> None:
            change(tx)
            own_run(
                tx, tx.tenant, [(PlaneActed, {"action": action, "acted_by": actor, "reason": reason})], "acted", run,
                "agentplane.act", world.incarnation, identity.owner, identity.opening,
            )  # fmt: skip

        await self._writer.do(unit)
