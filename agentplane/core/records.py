"""The kinds of record and the one way between a record and its bytes.

Owns the envelope, each kind's members, the dispatch on ``kind`` and ``v``, and the seam where an older
version is read as the present one. Refuses unknown members, unknown kinds and versions newer than this build.
Invariant: ``decode_body(encode_body(r)) == r``, and the bytes hashed are the bytes stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cache
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from agentplane.core import bounds, canonical
from agentplane.core.dispositions import Disposition
from agentplane.core.errors import PayloadTooLarge, UnreadableRecord
from agentplane.core.recovery import Mode

RECORD_VERSION: Final = 1
CANON: Final = 1

Json = object
"""Opaque caller data: what ``canonical`` accepts."""
Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Hex32 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Instant = Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z\Z")]


class Basis(StrEnum):
    """How an actor's name was established, weakest first."""

    ASSERTED = "asserted"
    CONNECTED = "connected"
    AUTHENTICATED = "authenticated"


class Member(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Base of the structured members of records; defaults are not written."""


class Actor(Member, frozen=True, kw_only=True):
    """A person or machine, and how we know."""

    actor: str
    basis: Basis
    uid: int | None = None


class Spend(Member, frozen=True, kw_only=True):
    tokens: Natural = 0
    minor_units: Natural = 0

    def plus(self, other: Spend) -> Spend:
        if not (other.tokens or other.minor_units):
            return self
        return Spend(tokens=self.tokens + other.tokens, minor_units=self.minor_units + other.minor_units)


class Label(Member, frozen=True, kw_only=True):
    """The conservative label until labels are built: untrusted, internal, no provenance."""

    trust: str
    sensitivity: str
    provenance: tuple[str, ...] = ()


CONSERVATIVE: Final = Label(trust="untrusted", sensitivity="internal")


class Terms(Member, frozen=True, kw_only=True):
    """What an effect declared about its own recovery; the decision's second input, kept so that code may be
    gone."""

    mode: Mode
    probe: bool = False
    window_s: Natural | None = None
    timeout_ms: Natural = bounds.EFFECT_TIMEOUT_S * 1000
    settle_ms: Natural = bounds.SETTLE_S * 1000


class RetryTerms(Member, frozen=True, kw_only=True):
    max_attempts: Positive = 3
    base_ms: Natural = 100
    multiplier: Positive = 2
    cap_ms: Natural = 10_000


class Descriptor(Member, frozen=True, kw_only=True):
    kind: str
    args: Json


class Blob(Member, frozen=True, kw_only=True):
    """A value kept beside its record: SHA-256 of its canonical bytes, and how many there are."""

    digest: Hex32
    size: Natural


class Fault(Member, frozen=True, kw_only=True):
    """Why something failed: a stable code, one sentence, and the path or type where there is one."""

    code: str
    message: str
    path: str | None = None
    type: str | None = None


class Undecided(Member, frozen=True, kw_only=True):
    """An effect nobody can account for: ``announced`` (never heard of) or ``inconclusive`` (asked,
    unknown)."""

    effect: Hex32
    step: Natural
    phase: str = "forward"
    kind: str
    doubt: str


class Record(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    tag_field="kind",
):
    """The envelope. ``at`` is UTC with milliseconds: hashed and shown, read by no replay."""

    seq: Positive
    run: str
    epoch: Positive
    v: Positive
    at: Instant
    case: str | None = None
    step: Natural | None = None
    phase: str | None = None
    effect_key: Hex32 | None = None


class RunAdmitted(Record, frozen=True, tag=True, kw_only=True):
    capability: str
    input: Json
    input_label: Label
    canon: Positive
    tenant: str
    origin: Hex32
    currency: str
    idempotency_key: str | None = None
    admitted_by: Actor | None = None
    budget: dict[str, int] | None = None


class PlanFrozen(Record, frozen=True, tag=True, kw_only=True):
    steps: list[str]
    plan: Json
    digest: Hex32


class StepStarted(Record, frozen=True, tag=True, kw_only=True):
    skill: str


class StepFinished(Record, frozen=True, tag=True, kw_only=True):
    outcome: str
    output: Json = None
    blob: Blob | None = None
    output_label: Label = CONSERVATIVE
    fault: Fault | None = None


class EffectStarted(Record, frozen=True, tag=True, kw_only=True):
    descriptor: Descriptor
    terms: Terms
    retry: RetryTerms
    mutates: bool
    attempt: Positive
    ordinal: Natural
    idempotency_key: str
    backoff_ms: Natural = 0
    generation: Natural = 0
    local: bool = False
    outbound_label: Label = CONSERVATIVE


class EffectDone(Record, frozen=True, tag=True, kw_only=True):
    output: Json = None
    blob: Blob | None = None
    withheld: list[str] = []
    spend: Spend = Spend()
    declared: Label = CONSERVATIVE
    elapsed_ms: Natural | None = None


class EffectFailed(Record, frozen=True, tag=True, kw_only=True):
    fault: Fault
    disposition: Disposition
    permanent: bool = False
    spend: Spend = Spend()
    elapsed_ms: Natural | None = None
    retry_after_ms: Natural | None = None
    replayed_failure: bool = False
    lost_epoch: Positive | None = None
    never_dispatched: bool = False


class EffectReconciled(Record, frozen=True, tag=True, kw_only=True):
    """A probe's verdict (``detail``), or a person's (``asserted_by`` and ``note``)."""

    verdict: str
    output: Json = None
    blob: Blob | None = None
    early: bool = False
    detail: str | None = None
    note: str | None = None
    new_key: bool = False
    asserted_by: Actor | None = None
    declared: Label = CONSERVATIVE


class RetryGranted(Record, frozen=True, tag=True, kw_only=True):
    """A person asked a recorded final failure again (P9)."""

    granted_by: Actor
    reason: str


class QuarantineDecided(Record, frozen=True, tag=True, kw_only=True):
    decider: Actor
    reason: str
    decision: str


class RunCancelled(Record, frozen=True, tag=True, kw_only=True):
    cancelled_by: Actor
    reason: str


class RunConcluded(Record, frozen=True, tag=True, kw_only=True):
    """``chain_head`` is this record's own ``prev_hash``; ``reason`` is absent when a person ended the run."""

    outcome: str
    chain_head: Hex32
    reason: str | None = None
    code: str | None = None
    undecided: list[Undecided] = []
    live_spend: Spend = Spend()


class Swept(Record, frozen=True, tag=True, kw_only=True):
    """One act of the sweep, in a sealed run of its own: ``subject`` is the run acted on."""

    subject: str
    action: str
    detail: str | None = None


class PlaneActed(Record, frozen=True, tag=True, kw_only=True):
    """An act on the plane itself (pause, release, reload), in a sealed run of its own."""

    action: str
    acted_by: Actor
    reason: str | None = None
    detail: Json = None


KINDS: Final[tuple[type[Record], ...]] = (
    RunAdmitted,
    PlanFrozen,
    StepStarted,
    StepFinished,
    EffectStarted,
    EffectDone,
    EffectFailed,
    EffectReconciled,
    RetryGranted,
    QuarantineDecided,
    RunCancelled,
    RunConcluded,
    Swept,
    PlaneActed,
)

CLOSING: Final = frozenset({"succeeded", "cancelled", "abandoned", "swept", "acted"})
"""Outcomes that nothing may resume: these seal (a failed, exhausted or quarantined run stays open)."""

Upcast = Callable[[dict[str, object]], dict[str, object]]


class _Head(msgspec.Struct):
    kind: str
    v: int


class Registry:
    """Maps ``kind`` to its type and ``(kind, v)`` to the function that reads version ``v`` as ``v + 1``."""

    def __init__(
        self,
        kinds: tuple[type[Record], ...],
        upcasts: Mapping[tuple[str, int], Upcast] | None = None,
        versions: Mapping[str, int] | None = None,
    ) -> None:
        self.kinds = {kind.__name__: kind for kind in kinds}
        self.upcasts = dict(upcasts or {})
        self.versions = {name: (versions or {}).get(name, RECORD_VERSION) for name in self.kinds}
        self._decoders = {name: msgspec.json.Decoder(kind) for name, kind in self.kinds.items()}
        self._head = msgspec.json.Decoder(_Head)

    def decode(self, raw: bytes) -> Record:
        """The record in ``raw``, upcast to the present version; raises UnreadableRecord naming kind and
        version."""
        try:
            head = self._head.decode(raw)
            decoder = self._decoders.get(head.kind)
            if decoder is None:
                raise UnreadableRecord(
                    f"This build does not know the record kind {head.kind[:60]!r}.", kind=head.kind[:60]
                )
            present = self.versions[head.kind]
            if head.v == present:
                return decoder.decode(raw)
            if head.v > present or head.v < 1:
                raise UnreadableRecord(
                    f"Record kind {head.kind} has version {head.v}; this build reads up to {present}.",
                    kind=head.kind, v=head.v,
                )  # fmt: skip
            return self._upcast(head, present, raw)
        except msgspec.MsgspecError as error:
            raise UnreadableRecord(f"A record does not have the shape of its kind: {error}.") from None
        except UnicodeDecodeError:
            raise UnreadableRecord("A record is not UTF-8.") from None
        except RecursionError:
            raise UnreadableRecord("A record is nested deeper than any that this build writes.") from None

    def _upcast(self, head: _Head, present: int, raw: bytes) -> Record:
        body = msgspec.json.decode(raw, type=dict[str, object])
        for version in range(head.v, present):
            step = self.upcasts.get((head.kind, version))
            if step is None:
                raise UnreadableRecord(
                    f"This build cannot read version {version} of the record kind {head.kind}.",
                    kind=head.kind, v=version,
                )  # fmt: skip
            try:
                body = step(body) | {"v": version + 1}
            except (KeyError, TypeError, ValueError, AttributeError):
                raise UnreadableRecord(
                    f"A record of kind {head.kind} does not have the shape of its version {version}.",
                    kind=head.kind, v=version,
                ) from None  # fmt: skip
        return msgspec.convert(body, self.kinds[head.kind])


REGISTRY: Final = Registry(KINDS)


def decode_body(raw: bytes) -> Record:
    """The typed record in ``raw`` (canonical JSON of one record body). Raises UnreadableRecord."""
    return REGISTRY.decode(raw)


def encode_body(record: Record) -> bytes:
    """The canonical bytes of ``record``, at most RECORD_BYTES_MAX. Raises PayloadTooLarge or
    CanonicalError."""
    raw = canonical.encode_struct(record, [(_at(record, path), len(path)) for path in _callers(type(record))])
    if raw is None:
        raw = canonical.encode(_to_data(record))
    if len(raw) > bounds.RECORD_BYTES_MAX:
        name, most = type(record).__name__, bounds.RECORD_BYTES_MAX
        raise PayloadTooLarge(f"A {name} record of {len(raw)} bytes is over the bound of {most}.")
    return raw


def _to_data(record: Record) -> object:
    """Plain data of ``record``, its opaque values untouched: msgspec would turn bytes, instants, sets and
    enums inside them into something else without a word, and ``canonical`` refuses them."""
    paths = _opaque(type(record))
    try:
        body = msgspec.to_builtins(record)
    except (TypeError, ValueError, RecursionError) as error:
        for path in paths:
            canonical.encode(_at(record, path, wrapped=True))
        raise canonical.CanonicalError("", f"is not plain data: {error}") from None
    for path in paths:
        holder = body
        for name in path[:-1]:
            holder = holder[name]
        if path[-1] in holder:
            holder[path[-1]] = _at(record, path)
    return body


def _at(record: Record, path: tuple[str, ...], *, wrapped: bool = False) -> object:
    """The value at ``path``; ``wrapped`` in objects of the same path, so that an error names all of it."""
    value: object = record
    for name in path:
        value = getattr(value, name)
    for name in reversed(path) if wrapped else ():
        value = {name: value}
    return value


@cache
def _callers(kind: type[Record]) -> tuple[tuple[str, ...], ...]:
    """Where records of ``kind`` hold what a caller named or gave: opaque data, and objects with keys of his."""
    maps = tuple((field.name,) for field in msgspec.structs.fields(kind) if "dict" in str(field.type))
    return _opaque(kind) + maps


@cache
def _opaque(kind: type[msgspec.Struct]) -> tuple[tuple[str, ...], ...]:
    """Where records of ``kind`` hold a caller's data, also inside their structured members."""
    found: list[tuple[str, ...]] = []
    for field in msgspec.structs.fields(kind):
        if field.type is Json:
            found.append((field.name,))
        elif isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            found += [(field.name, *path) for path in _opaque(field.type)]
    return tuple(found)
