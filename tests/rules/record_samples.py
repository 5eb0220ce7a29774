"""One record of every kind, with every member set, and how a test makes records of its own.

It owns the samples behind tests/vectors/records.json: a kind without a sample fails the test that reads them.
"""

from __future__ import annotations

from typing import Any, TypeVar

from agentplane.core.dispositions import Disposition
from agentplane.core.records import (
    CONSERVATIVE,
    Actor,
    Approved,
    Basis,
    Blob,
    BudgetRaised,
    BudgetReadmitted,
    BudgetRefused,
    CaseBound,
    DeadlineRegistered,
    DeadlineTransition,
    Descriptor,
    EffectDone,
    EffectFailed,
    EffectReconciled,
    EffectStarted,
    Exhaustion,
    Fault,
    GroupOpened,
    GroupSettled,
    Key,
    Label,
    PlaneActed,
    PlanFrozen,
    QuarantineDecided,
    Record,
    RetryGranted,
    RetryTerms,
    RunAdmitted,
    RunCancelled,
    RunConcluded,
    RunSuspended,
    Spend,
    StepCompensated,
    StepFinished,
    StepKept,
    StepStarted,
    Swept,
    Terms,
    Undecided,
    UnwindBegan,
)
from agentplane.core.recovery import Mode

RUN = "run_01KB9ZJ5Y3QWERTYASDFGHZXCV"
AT = "2026-11-30T15:41:07.123Z"
KEY = "0f" * 32
CASE = "case_01KB9ZJ5Y3QWERTYASDFGHZXCV"
TASK = "7e" * 32
ORIGIN = "a1" * 32
ANNA = Actor(actor="os:anna", basis=Basis.CONNECTED, uid=1001)
LABEL = Label(trust="untrusted", sensitivity="internal", provenance=("sender:a", "tool://s/n"))

R = TypeVar("R", bound=Record)


def make(kind: type[R], seq: int = 1, **members: Any) -> R:
    """A record of ``kind`` with its envelope."""
    return kind(**({"seq": seq, "run": RUN, "epoch": 1, "v": 1, "at": AT} | members))


def started(seq: int, **members: Any) -> EffectStarted:
    given = {
        "step": 0,
        "effect_key": KEY,
        "attempt": 1,
        "ordinal": 0,
        "mutates": True,
        "idempotency_key": "k" * 36,
    }
    given |= {"descriptor": Descriptor(kind="pay.refund", args={"order": "A-1"}), "retry": RetryTerms()}
    return make(EffectStarted, seq, **(given | {"terms": Terms(mode=Mode.IDEMPOTENT, window_s=72_000)} | members))


def failed(seq: int, disposition: Disposition = Disposition.IN_DOUBT, **members: Any) -> EffectFailed:
    given = {"step": 0, "effect_key": KEY, "fault": Fault(code="lost", message="gone")}
    return make(EffectFailed, seq, **(given | {"disposition": disposition} | members))


def done(seq: int, **members: Any) -> EffectDone:
    return make(EffectDone, seq, **({"step": 0, "effect_key": KEY, "output": {"id": "r1"}} | members))


def verdict(seq: int, said: str, **members: Any) -> EffectReconciled:
    return make(EffectReconciled, seq, **({"step": 0, "effect_key": KEY, "verdict": said} | members))


def samples() -> list[Record]:
    """Every kind once, each member other than its default."""
    return [
        make(
            RunAdmitted,
            1,
            capability="refunds.issue",
            input={"order": "Ä-1", "amount_minor": 2**60},
            tenant="default",
            input_label=LABEL,
            canon=1,
            origin=ORIGIN,
            currency="EUR",
            idempotency_key="ticket-7",
            admitted_by=ANNA,
            budget={"effects": 12},
            case=CASE,
        ),
        make(
            PlanFrozen,
            2,
            steps=["refunds.issue"],
            plan={"nodes": [{"id": 0}], "version": 1},
            digest="c3" * 32,
        ),
        make(StepStarted, 3, step=0, skill="refunds.issue"),
        started(
            4,
            phase="compensating",
            attempt=2,
            ordinal=3,
            backoff_ms=150,
            generation=1,
            local=True,
            group=2,
            role="reversible",
            clock_s=1_796_053_267,
            approval=Approved(task=TASK, digest="5d" * 32),
            outbound_label=LABEL,
            terms=Terms(mode=Mode.RECONCILE, probe=True, window_s=60, timeout_ms=1_000, settle_ms=2_000),
            retry=RetryTerms(max_attempts=5, base_ms=1, multiplier=3, cap_ms=9),
        ),
        done(
            5,
            output={"text": "\u20ac\u2028\\", "big": 12345678901234567890123, "list": [None, True, 1.5]},
            blob=Blob(digest="b2" * 32, size=1_048_577),
            source="peer:shop",
            by=ANNA,
            withheld=["/token"],
            spend=Spend(tokens=7, minor_units=3),
            declared=LABEL,
            elapsed_ms=12,
        ),
        make(
            EffectFailed,
            6,
            step=0,
            effect_key=KEY,
            permanent=True,
            spend=Spend(tokens=1),
            elapsed_ms=20_000,
            fault=Fault(code="http_429", message="slow down", path="/answer", type="int"),
            retry_after_ms=7_000,
            disposition=Disposition.DID_NOT_HAPPEN,
            replayed_failure=True,
            lost_epoch=2,
            never_dispatched=True,
        ),
        verdict(
            7,
            "landed",
            output=[1, "x"],
            blob=Blob(digest="d4" * 32, size=9),
            early=True,
            detail="found",
            note="seen in the ledger",
            new_key=True,
            asserted_by=ANNA,
            declared=LABEL,
        ),
        make(RetryGranted, 8, step=0, effect_key=KEY, granted_by=ANNA, reason="provider was down"),
        make(QuarantineDecided, 9, decider=ANNA, reason="looked it up", decision="reopen"),
        make(RunCancelled, 10, cancelled_by=ANNA, reason="wrong order"),
        make(
            StepFinished,
            11,
            step=0,
            outcome="failed",
            output={"x": 1},
            blob=Blob(digest="e5" * 32, size=1),
            output_label=LABEL,
            fault=Fault(code="effect_failed", message="no"),
        ),
        make(
            CaseBound,
            2,
            case=CASE,
            case_kind="refunds.issue",
            opened=True,
            correlation=[Key(namespace="customer", value="\u00c4-9"), Key(namespace="order", value="A-1")],
        ),
        make(GroupOpened, 4, step=0, phase="compensating", group="order", index=2, resources=["ledger", "stock"]),
        make(GroupSettled, 5, step=0, group="order", index=2, outcome="aborted", detail="the sum is zero"),
        make(UnwindBegan, 6, cause="cancelled", steps=[2, 0]),
        make(StepCompensated, 7, step=2, phase="compensating", compensation="order.reserve", outcome={"released": 1}),
        make(StepKept, 8, step=0, why="pivot"),
        make(
            DeadlineRegistered,
            8,
            step=1,
            name="reply",
            resolved_at="2026-12-07T16:00:00.000Z",
            warn_at="2026-12-06T16:00:00.000Z",
            calendar_digest="ca" * 32,
        ),
        make(DeadlineTransition, 9, step=1, phase="compensating", name="reply", before="warned", to="met"),
        make(RunSuspended, 9, reason="waits for a timer", until="2026-12-01T09:00:00.000Z"),
        make(BudgetRefused, 10, step=3, phase="forward", limit="max_effects", allowed=12, used=12, ordinal=4),
        make(BudgetReadmitted, 11, step=3, limit="max_effects", ordinal=4),
        make(BudgetRaised, 12, raised_by=ANNA, ceilings={"max_effects": 20}, reason="the order is larger"),
        make(
            RunConcluded,
            12,
            outcome="quarantined",
            chain_head="f6" * 32,
            reason="nobody knows",
            code="undecided",
            exhaustion=Exhaustion(limit="max_tokens", allowed=100, used=104),
            undecided=[Undecided(effect=KEY, step=0, phase="compensating", kind="pay.refund", doubt="announced")],
            live_spend=Spend(minor_units=4),
        ),
        make(Swept, 1, subject=RUN, action="run_recovered", detail="epoch 2"),
        make(PlaneActed, 1, action="pause", acted_by=ANNA, subject=TASK, reason="incident", detail={"runs": 3}),
    ]


def smallest() -> list[Record]:
    """The same kinds with nothing but what they must have."""
    return [
        make(
            RunAdmitted,
            capability="c",
            input=None,
            input_label=CONSERVATIVE,
            canon=1,
            tenant="t",
            origin=ORIGIN,
            currency="EUR",
        ),
        make(EffectDone, effect_key=KEY, step=0),
        make(RunConcluded, outcome="succeeded", chain_head="00" * 32),
    ]
