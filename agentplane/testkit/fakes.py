"""A provider in the test's own process, which keeps a book and misbehaves on demand.

Owns the book of what landed, the log of what was asked, and the behaviours. Refuses to decide anything for the
runtime: it raises what an effect would raise. Invariant: whatever it answers, its book says what really happened, and
a snapshot of it is the provider as it stood at that instant.

The calls are made by a test's effects: ``return await provider.call(call, "refund", {"order": order})``.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from typing import Any, Final

import msgspec
import trio

from agentplane.authoring.raising import DidNotHappenError, InDoubtError, LandedError, ReplayedFailureError
from agentplane.core.recovery import DidNotHappen, Inconclusive, Landed

OK: Final = "ok"
REFUSED: Final = "did_not_happen"
REFUSED_FOR_GOOD: Final = "refused_for_good"
DOUBT_AFTER: Final = "in_doubt_after_landing"
DOUBT_BEFORE: Final = "in_doubt_before"
UNUSABLE: Final = "landed_unusable"
REPLAYED: Final = "replayed_failure"
HANG: Final = "hang"
HANG_AFTER: Final = "hang_after_landing"
BEHAVIOURS: Final = frozenset(
    {OK, REFUSED, REFUSED_FOR_GOOD, DOUBT_AFTER, DOUBT_BEFORE, UNUSABLE, REPLAYED, HANG, HANG_AFTER}
)


class Landing(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the book: a deed that took effect."""

    key: str
    name: str
    body: Any
    reference: str


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One request, whatever became of it."""

    key: str
    name: str
    run: str
    attempt: int
    body: Any


class Snapshot(msgspec.Struct, frozen=True):
    book: tuple[Landing, ...]
    told: dict[str, tuple[str, ...]]
    references: int


class FakeProvider:
    """``honours_keys`` False: a repeated key lands again. ``honours`` overrides it for single names."""

    def __init__(self, *, honours_keys: bool = True, honours: dict[str, bool] | None = None) -> None:
        self.honours_keys = honours_keys
        self.honours = dict(honours or {})
        self.book: list[Landing] = []
        self.asked: list[Asked] = []
        self.probed: list[str] = []
        self.probe_fails: str | None = None
        self.mismatched: list[str] = []
        self.arrived = trio.Event()
        self._told: dict[str, deque[str]] = {}
        self._references = 0
        self._first: dict[str, Landing] = {}
        self._indexed = 0
        self._end: Landing | None = None
        self._release = trio.Event()
        self._release_thread = threading.Event()
        self.arrived_in_thread = threading.Event()

    # --- the test's side ---------------------------------------------------------------------------------------------

    def tell(self, name: str, *behaviours: str) -> None:
        """How the next requests of ``name`` go, one each; after them all are ok."""
        unknown = set(behaviours) - BEHAVIOURS
        if unknown:
            raise ValueError(f"no behaviour {sorted(unknown)}; there are {sorted(BEHAVIOURS)}")
        self._told.setdefault(name, deque()).extend(behaviours)

    def release(self) -> None:
        """Let every hanging request go on."""
        self._release.set()
        self._release_thread.set()

    def landings(self) -> Counter[str]:
        """How often each key took effect."""
        return Counter(row.key for row in self.book)

    def snapshot(self) -> Snapshot:
        return Snapshot(tuple(self.book), {name: tuple(told) for name, told in self._told.items()}, self._references)

    def restore(self, snapshot: Snapshot) -> None:
        """Stand as at the snapshot; requests and probes made since are forgotten."""
        self.book = list(snapshot.book)
        self._told = {name: deque(told) for name, told in snapshot.told.items()}
        self._references = snapshot.references
        self.asked, self.probed, self.mismatched = [], [], []

    # --- the effects' side -------------------------------------------------------------------------------------------

    async def call(self, call: Any, name: str, body: Any) -> Any:
        """One request under ``call.idempotency_key``; answers ``{"reference": ...}`` or raises as told."""
        behaviour = self._arrive(call, name, body)
        self.arrived.set()
        await trio.lowlevel.checkpoint()
        if behaviour == HANG:
            await self._release.wait()
        row = self._perform(call, name, body, behaviour)
        if behaviour == HANG_AFTER:
            await self._release.wait()
        return self._answer(row, behaviour)

    def call_blocking(self, call: Any, name: str, body: Any) -> Any:
        """The same, from a worker thread."""
        behaviour = self._arrive(call, name, body)
        self.arrived_in_thread.set()
        if behaviour == HANG:
            self._release_thread.wait()
        row = self._perform(call, name, body, behaviour)
        if behaviour == HANG_AFTER:
            self._release_thread.wait()
        return self._answer(row, behaviour)

    async def probe(self, call: Any) -> Landed | DidNotHappen | Inconclusive:
        """What the book says of the key; ``probe_fails`` makes it inconclusive with that sentence."""
        self.probed.append(call.idempotency_key)
        await trio.lowlevel.checkpoint()
        if self.probe_fails is not None:
            return Inconclusive(self.probe_fails)
        row = self._row(call.idempotency_key)
        return DidNotHappen() if row is None else Landed({"reference": row.reference})

    # --- inside ------------------------------------------------------------------------------------------------------

    def _arrive(self, call: Any, name: str, body: Any) -> str:
        self.asked.append(Asked(key=call.idempotency_key, name=name, run=call.run, attempt=call.attempt, body=body))
        told = self._told.get(name)
        return told.popleft() if told else OK

    def _perform(self, call: Any, name: str, body: Any, behaviour: str) -> Landing | None:
        if behaviour in (REFUSED, REFUSED_FOR_GOOD, DOUBT_BEFORE, REPLAYED):
            return None
        row = self._row(call.idempotency_key)
        if row is not None and self.honours.get(name, self.honours_keys):
            if row.body != body:
                self.mismatched.append(call.idempotency_key)
            return row
        self._references += 1
        row = Landing(key=call.idempotency_key, name=name, body=body, reference=f"ref-{self._references}")
        self.book.append(row)
        return row

    def _answer(self, row: Landing | None, behaviour: str) -> Any:
        match behaviour:
            case "did_not_happen":
                raise DidNotHappenError("the provider refused for now")
            case "refused_for_good":
                raise DidNotHappenError("the provider refused", permanent=True)
            case "in_doubt_after_landing" | "in_doubt_before":
                raise InDoubtError("the connection broke")
            case "landed_unusable":
                raise LandedError("the answer was cut short")
            case "replayed_failure":
                raise ReplayedFailureError("the stored failure of an earlier attempt")
        return {"reference": "" if row is None else row.reference}

    def _row(self, key: str) -> Landing | None:
        """The first deed under ``key``. The book is everybody's to change, so its index is built again whenever it does
        not end where it ended."""
        if self._indexed > len(self.book) or (self._indexed and self.book[self._indexed - 1] is not self._end):
            self._first, self._indexed = {}, 0
        for row in self.book[self._indexed :]:
            self._first.setdefault(row.key, row)
        self._indexed = len(self.book)
        self._end = self.book[-1] if self.book else None
        return self._first.get(key)
