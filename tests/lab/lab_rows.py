"""Rows for the lab's tests: journal records and provider effects with everything but the subject filled
in."""

from __future__ import annotations

from typing import Any

from agentplane.core.dispositions import Disposition
from agentplane.core.records import (
    Descriptor,
    EffectDone,
    EffectFailed,
    EffectReconciled,
    EffectStarted,
    Fault,
    Record,
    RetryTerms,
    Terms,
)
from agentplane.core.recovery import Mode
from agentplane.lab.provider.audit import Effect

AT = "2026-11-30T12:00:00.100Z"


def head(run: str, ordinal: int, attempt: int) -> dict[str, Any]:
    """The envelope of an effect's record; its effect key is one an attempt, as the real one is."""
    key = f"{ordinal:032x}{attempt:032x}"
    return {
        "seq": 1,
        "run": run,
        "epoch": 1,
        "v": 1,
        "at": AT,
        "step": 0,
        "phase": "forward",
        "effect_key": key,
    }


def started(
    run: str = "run_a",
    *,
    kind: str = "refund.keyed",
    key: str = "k-1",
    attempt: int = 1,
    ordinal: int = 1,
    **args: Any,
) -> EffectStarted:
    """An announcement; ``args`` over those of a refund of 42.00 for order A-1."""
    told: dict[str, Any] = {"order": "A-1"}
    if kind.startswith("refund"):
        told |= {"amount_minor": 4200, "currency": "EUR"}
    return EffectStarted(
        **head(run, ordinal, attempt),
        descriptor=Descriptor(kind=kind, args=told | args),
        terms=Terms(mode=Mode.IDEMPOTENT),
        retry=RetryTerms(),
        mutates=not kind.startswith("order"),
        attempt=attempt,
        ordinal=ordinal,
        idempotency_key=key,
    )


def done(run: str = "run_a", *, ref: str | None = "rf_1", attempt: int = 1, ordinal: int = 1) -> EffectDone:
    """An outcome whose output names the provider's reference."""
    return EffectDone(**head(run, ordinal, attempt), output={"id": ref} if ref else None)


def failed(disposition: str, run: str = "run_a", *, attempt: int = 1, ordinal: int = 1) -> EffectFailed:
    """A failure of that disposition."""
    fault = Fault(code="X", message="it failed")
    return EffectFailed(**head(run, ordinal, attempt), fault=fault, disposition=Disposition(disposition))


def settled(
    verdict: str,
    run: str = "run_a",
    *,
    ref: str | None = None,
    attempt: int = 1,
    ordinal: int = 1,
    early: bool = False,
) -> EffectReconciled:
    """A verdict of a probe or a person."""
    output = {"id": ref} if ref else None
    return EffectReconciled(**head(run, ordinal, attempt), verdict=verdict, output=output, early=early)


def paid(ref: str = "rf_1", *, order: str = "A-1", key: str = "k-1", path: str = "/refunds", **other: Any) -> Effect:
    """The provider's row of a refund of 42.00; without an amount on other paths."""
    money = path == "/refunds"
    row = Effect(ref, path, order, 4200 if money else None, "EUR" if money else None, key, 1, 10, 20, 0)
    return row._replace(**other)


Records = list[Record]
