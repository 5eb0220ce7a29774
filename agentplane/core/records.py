"""The kinds of record: the envelope and each kind's members.

Owns what a record of each kind may say, and which conclusions nothing may follow. Refuses unknown members; how a record
becomes bytes is ``codec``'s. Invariant: a record is past tense and frozen, and every list of kinds is this one.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from agentplane.core import bounds
from agentplane.core.dispositions import Disposition
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


class Exhaustion(Member, frozen=True, kw_only=True):
    """The ceiling that a run reached: its name, what it allows, and what was used when more was asked."""

    limit: str
    allowed: Natural
    used: Natural


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


class Key(Member, frozen=True, kw_only=True):
    """One business key: what a matter is known by, or what a message is about."""

    namespace: str
    value: str


class Approved(Member, frozen=True, kw_only=True):
    """What an announcement consumes: the task that a person decided, and the digest of the exact arguments."""

    task: Hex32
    digest: Hex32


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


class CaseBound(Record, frozen=True, tag=True, kw_only=True):
    """The run is of the case in its envelope. ``opened``: this run opened it, else it joined one that was open;
    ``correlation``: the keys it was asked under, by namespace."""

    case_kind: str
    opened: bool
    correlation: list[Key]


class PlanFrozen(Record, frozen=True, tag=True, kw_only=True):
    steps: list[str]
    plan: Json
    digest: Hex32


class StepStarted(Record, frozen=True, tag=True, kw_only=True):
    skill: str


class StepFinished(Record, frozen=True, tag=True, kw_only=True):
    """``outcome``: succeeded, failed, or replanned (the step asked for another plan, which stands behind it)."""

    outcome: str
    output: Json = None
    blob: Blob | None = None
    output_label: Label = CONSERVATIVE
    fault: Fault | None = None


class EffectStarted(Record, frozen=True, tag=True, kw_only=True):
    """``group``: the index, in its step and phase, of the effect group that it belongs to, in ``role`` (reversible,
    read, deferred, atomic, reversal). ``clock_s``: the clock's reading in seconds, where a ceiling asks for readings.
    """

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
    group: Natural | None = None
    role: str | None = None
    clock_s: Natural | None = None
    approval: Approved | None = None


class EffectDone(Record, frozen=True, tag=True, kw_only=True):
    """``source`` and ``by`` where a wait was ended by a message or a person: who sent it, who decided."""

    output: Json = None
    blob: Blob | None = None
    source: str | None = None
    by: Actor | None = None
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


class GroupOpened(Record, frozen=True, tag=True, kw_only=True):
    """``index`` counts the groups of the step's phase from 0; ``resources`` is the footprint."""

    group: str
    index: Natural
    resources: list[str]


class GroupSettled(Record, frozen=True, tag=True, kw_only=True):
    """``outcome``: committed, aborted, or quarantined (nobody knows what stands); the last word counts."""

    group: str
    index: Natural
    outcome: str
    detail: str | None = None


class UnwindBegan(Record, frozen=True, tag=True, kw_only=True):
    """From here on the run only undoes. ``cause``: failed or cancelled; ``steps`` in the order of undoing."""

    cause: str
    steps: list[Natural]


class StepCompensated(Record, frozen=True, tag=True, kw_only=True):
    """The step's work was taken back; ``outcome`` is what its compensation returned."""

    compensation: str
    outcome: Json = None


class StepKept(Record, frozen=True, tag=True, kw_only=True):
    """An unwind left the step's landed work standing by right. ``why``: pivot, or unnecessary."""

    why: str


class DeadlineRegistered(Record, frozen=True, tag=True, kw_only=True):
    """An obligation of the case, or of the run where it has none: due at ``resolved_at``, warned of at ``warn_at``;
    ``calendar_digest`` covers the rules and the holidays that the instant was reckoned with."""

    name: str
    resolved_at: Instant
    warn_at: Instant
    calendar_digest: Hex32


class DeadlineTransition(Record, frozen=True, tag=True, kw_only=True):
    """The run moved an obligation: ``to`` is met or cancelled."""

    name: str
    before: str = msgspec.field(name="from")
    to: str


class RunSuspended(Record, frozen=True, tag=True, kw_only=True):
    """The run waits and holds no lease. ``until``: the first instant at which a timer of it is due."""

    reason: str
    until: Instant | None = None


class BudgetRefused(Record, frozen=True, tag=True, kw_only=True):
    """A ceiling stopped the run before a step (``ordinal`` absent) or an effect; the run is exhausted and may go on."""

    limit: str
    allowed: Natural
    used: Natural
    ordinal: Natural | None = None


class BudgetReadmitted(Record, frozen=True, tag=True, kw_only=True):
    """The refusal at the frontier was asked again under the ceilings that hold now, and stands no more."""

    limit: str
    ordinal: Natural | None = None


class BudgetRaised(Record, frozen=True, tag=True, kw_only=True):
    """A person raised ceilings of the run; what is not named stays."""

    raised_by: Actor
    ceilings: dict[str, int]
    reason: str


class RunConcluded(Record, frozen=True, tag=True, kw_only=True):
    """``chain_head`` is this record's own ``prev_hash``; ``reason`` is absent when a person ended the run."""

    outcome: str
    chain_head: Hex32
    reason: str | None = None
    code: str | None = None
    exhaustion: Exhaustion | None = None
    undecided: list[Undecided] = []
    live_spend: Spend = Spend()


class Swept(Record, frozen=True, tag=True, kw_only=True):
    """One act of the sweep, in a sealed run of its own: ``subject`` is the run, case, task or obligation acted on."""

    subject: str
    action: str
    detail: str | None = None


class PlaneActed(Record, frozen=True, tag=True, kw_only=True):
    """An act of a person that is of no run (pause, release, a claim, an acknowledgement), in a sealed run of its own.
    ``subject``: what was acted on, where it is not the plane."""

    action: str
    acted_by: Actor
    subject: str | None = None
    reason: str | None = None
    detail: Json = None


KINDS: Final[tuple[type[Record], ...]] = (
    RunAdmitted,
    CaseBound,
    PlanFrozen,
    StepStarted,
    StepFinished,
    EffectStarted,
    EffectDone,
    EffectFailed,
    EffectReconciled,
    RetryGranted,
    GroupOpened,
    GroupSettled,
    UnwindBegan,
    StepCompensated,
    StepKept,
    DeadlineRegistered,
    DeadlineTransition,
    RunSuspended,
    BudgetRefused,
    BudgetReadmitted,
    BudgetRaised,
    QuarantineDecided,
    RunCancelled,
    RunConcluded,
    Swept,
    PlaneActed,
)

CLOSING: Final = frozenset({"succeeded", "cancelled", "abandoned", "swept", "acted"})
"""Outcomes that nothing may resume: these seal (a failed, exhausted or quarantined run stays open)."""
