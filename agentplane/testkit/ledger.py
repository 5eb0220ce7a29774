"""A run as a battery writes it: its head, its records, and what must be refused.

Owns the making of linked records for checks, so that they say only what they check. Refuses nothing itself.
Invariant: the head moves only when the store has taken what was appended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from agentplane.core import chain
from agentplane.core.codec import encode_body
from agentplane.core.dispositions import Disposition
from agentplane.core.errors import AgentplaneError
from agentplane.core.instants import to_text
from agentplane.core.records import (
    CONSERVATIVE,
    Descriptor,
    EffectDone,
    EffectFailed,
    EffectReconciled,
    EffectStarted,
    Fault,
    Record,
    RetryTerms,
    RunAdmitted,
    RunConcluded,
    StepFinished,
    Terms,
)
from agentplane.core.recovery import Mode
from agentplane.journal import appends, leases
from agentplane.journal.appends import Head, Linked
from agentplane.journal.leases import Lease
from agentplane.journal.tx import Tx

T = TypeVar("T")
P = ParamSpec("P")
TTL_MS = 30_000
ORIGIN = "00" * 32


class StoreHandle(Protocol):
    """A fresh store. ``unit`` runs a function in one transaction, inside a savepoint, and raises what it was
    refused with; ``now_ms`` is the store's clock and may be set."""

    now_ms: int

    def unit(self, body: Callable[[Tx], T]) -> T: ...


class Probe:
    """What one check found. ``hold`` counts; a violation is a sentence."""

    def __init__(self) -> None:
        self.held = 0
        self.violations: list[str] = []

    def hold(self, condition: bool, sentence: str) -> None:
        self.held += 1
        if not condition:
            self.violations.append(sentence)

    def refused(
        self, kind: type[AgentplaneError], act: Callable[..., object], sentence: str, *args: Any
    ) -> dict[str, Any]:
        """Hold that ``act(*args)`` is refused as ``kind``; the refusal's details."""
        try:
            act(*args)
        except kind as error:
            self.hold(True, sentence)
            return dict(error.details)
        except AgentplaneError as error:
            self.hold(False, f"{sentence} (refused as {error.row.code}, not as {kind.row.code})")
            return {}
        self.hold(False, sentence)
        return {}


def ask(store: StoreHandle, body: Callable[Concatenate[Tx, P], T], *args: P.args, **members: P.kwargs) -> T:
    """``body(tx, ...)`` as one unit of ``store``."""
    return store.unit(lambda tx: body(tx, *args, **members))


def run_id(number: int) -> str:
    return f"run_{number:026d}"


class Ledger:
    """One run and its owner."""

    def __init__(self, store: StoreHandle, number: int = 1, owner: str = "p1", opening: str = "o1") -> None:
        self.store = store
        self.run = run_id(number)
        self.owner = owner
        self.opening = opening
        self.head = Head()
        self.lease = Lease(self.run, owner, 0)

    def admit(self, **members: Any) -> Ledger:
        """Lease, row and admission in one unit."""
        at_ms = self.store.now_ms

        def body(tx: Tx) -> Lease:
            lease = leases.acquire(tx, self.run, self.owner, self.opening, TTL_MS)
            appends.admit(tx, self.run, capability="c", incarnation="i", at_ms=at_ms, **members)
            return lease

        self.lease = self.store.unit(body)
        self.append(self.record(RunAdmitted, **ADMISSION))
        return self

    def acquire(self, ttl_ms: int = TTL_MS, **members: Any) -> Lease:
        self.lease = self.store.unit(
            lambda tx: leases.acquire(tx, self.run, self.owner, self.opening, ttl_ms, **members)
        )
        return self.lease

    def record(self, kind: type[Record], *, seq: int | None = None, **members: Any) -> Record:
        envelope = {"seq": seq or self.head.seq + 1, "run": self.run, "epoch": self.lease.epoch, "v": 1}
        return kind(**{**envelope, "at": to_text(self.store.now_ms), **members})

    def link(self, *records: Record, prev: bytes | None = None) -> tuple[Linked, ...]:
        linked, last = [], self.head.hash if prev is None else prev
        for record in records:
            body = encode_body(record)
            last = chain.link(last, body)
            linked.append(Linked(record, body, last))
        return tuple(linked)

    def put(self, *items: Linked, **members: Any) -> Head:
        """Append linked records; the head moves when they were taken."""
        head, epoch = members.pop("head", self.head), members.pop("epoch", self.lease.epoch)
        self.head = self.store.unit(lambda tx: appends.append(tx, self.run, epoch, head, items, **members))
        return self.head

    def append(self, *records: Record) -> Head:
        return self.put(*self.link(*records))

    # --- the records that checks use ------------------------------------------------------------------

    def started(self, key: int, *, attempt: int = 1, mutates: bool = True, seq: int | None = None) -> Record:
        return self.record(
            EffectStarted, seq=seq, step=0, effect_key=key_of(key), descriptor=Descriptor(kind="k", args={}),
            terms=Terms(mode=Mode.RECONCILE), retry=RetryTerms(), mutates=mutates, attempt=attempt, ordinal=0,
            idempotency_key="k" * 36,
        )  # fmt: skip

    def done(self, key: int, *, seq: int | None = None) -> Record:
        return self.record(EffectDone, seq=seq, step=0, effect_key=key_of(key))

    def failed(self, key: int, disposition: Disposition = Disposition.IN_DOUBT) -> Record:
        fault = Fault(code="c", message="m")
        return self.record(EffectFailed, step=0, effect_key=key_of(key), fault=fault, disposition=disposition)

    def verdict(self, key: int, said: str, **members: Any) -> Record:
        return self.record(EffectReconciled, step=0, effect_key=key_of(key), verdict=said, **members)

    def finished(self, outcome: str) -> Record:
        return self.record(StepFinished, step=0, outcome=outcome)

    def concluded(self, outcome: str, **members: Any) -> Record:
        return self.record(RunConcluded, outcome=outcome, chain_head=self.head.hash.hex(), **members)


ADMISSION: dict[str, Any] = {
    "capability": "c", "input": {}, "input_label": CONSERVATIVE, "canon": 1, "tenant": "t", "origin": ORIGIN,
    "currency": "EUR",
}  # fmt: skip


def key_of(key: int) -> str:
    return f"{key:064x}"
