"""Stores that break their word, for the campaign to find.

It owns three ways to take a guarantee out of the product in this process. Each is put back when its context ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import apsw

from agentplane.journal import checkpoints, store
from agentplane.journal.tx import Tx
from agentplane.journal.units import Unit, run_in_savepoint
from agentplane.testkit import inline


@contextmanager
def _synchronous(level: str) -> Iterator[None]:
    """Commits that are answered without a sync."""
    kept = store.connect

    def relaxed(path: Path, *, read_only: bool = False, vfs: str | None = None) -> apsw.Connection:
        connection = kept(path, read_only=read_only, vfs=vfs)
        if not read_only:
            connection.pragma("synchronous", level)
        return connection

    for module in (store, checkpoints):
        setattr(module, "connect", relaxed)  # noqa: B010
    try:
        yield
    finally:
        for module in (store, checkpoints):
            setattr(module, "connect", kept)  # noqa: B010


class _Early(inline.InlineWriter):
    """Answers a unit when it has run, and commits it when the next one comes (W4, W6 broken)."""

    def _commit(self, unit: Unit[Any]) -> None:
        connection = self._connection
        if connection is None or self.poisoned is not None:
            super()._commit(unit)
            return
        self._settle(connection)
        connection.execute("BEGIN IMMEDIATE")
        run_in_savepoint(unit, Tx(connection, self._tenant, self._now_ms()))
        self.commits += 1

    def _settle(self, connection: apsw.Connection) -> None:
        if connection.in_transaction:
            if self._before_commit is not None:
                self._before_commit(Tx(connection, self._tenant, self._now_ms()))
            connection.execute("COMMIT")

    async def close(self, flush_s: float = 0) -> bool:
        if self._connection is not None:
            self._settle(self._connection)
        return await super().close(flush_s)


@contextmanager
def _answer_before_commit() -> Iterator[None]:
    kept = inline.InlineWriter
    setattr(inline, "InlineWriter", _Early)  # noqa: B010
    try:
        yield
    finally:
        setattr(inline, "InlineWriter", kept)  # noqa: B010


SABOTAGES: dict[str | None, Callable[[], AbstractContextManager[None]]] = {
    None: nullcontext,
    "synchronous=normal": lambda: _synchronous("normal"),
    "synchronous=off": lambda: _synchronous("off"),
    "answer-before-commit": _answer_before_commit,
}
