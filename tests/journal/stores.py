"""Stores for tests: how one is opened, and one that runs units on the spot with a clock that is set.

It owns identities and clocks of tests. A unit here runs in the same savepoint that the writer uses, in a
transaction of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from agentplane.journal.store import Identity, Store
from agentplane.journal.tx import Tx
from agentplane.journal.units import Unit, run_in_savepoint

T = TypeVar("T")
NOW = 1_800_000_000_000
_openings = count(1)


def identity(name: str | None = None, **members: Any) -> Identity:
    """Who opens: every one another opening, unless it is named."""
    name = name or f"o{next(_openings)}"
    given: dict[str, Any] = {"owner": "p1", "build": "test", "now_ms": NOW, "new_incarnation": f"inc-{name}"}
    return Identity(opening=name, **(given | members))


def opened(path: Path, name: str | None = None, **members: Any) -> Store:
    """``members`` go to the identity, but for those that ``Store.open`` takes."""
    taken = {key: members.pop(key) for key in ("create", "vfs", "patience") if key in members}
    return Store.open(path, members.pop("tenant", "default"), identity(name, **members), **taken)


def one_sentence(error: BaseException) -> str:
    """What an error says, held to be one short line."""
    text = str(error)
    assert "\n" not in text and text.endswith(".") and len(text) < 400
    return text


class PlainStore:
    """An opened store with a settable clock, and units that are committed one by one."""

    def __init__(self, path: Path) -> None:
        self.store = opened(path)
        self.now_ms = NOW
        self._connection = self.store.writer_connection()

    def unit(self, body: Callable[[Tx], T]) -> T:
        unit: Unit[T] = Unit(body, lambda value, error: None)
        self._connection.execute("BEGIN IMMEDIATE")
        failed = run_in_savepoint(unit, Tx(self._connection, "default", self.now_ms))
        if self._connection.in_transaction:
            self._connection.execute("COMMIT" if failed is None else "ROLLBACK")
        if unit.error is not None:
            raise unit.error
        return unit.value  # type: ignore[return-value]

    def close(self) -> None:
        self._connection.close()
        self.store.close()
