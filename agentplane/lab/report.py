"""What the lab says: the progress line, the table, and the JSON.

It owns the words. It refuses to compute: every number in it was found by the audit, the attribution or the
driver. Its invariant: the JSON has exactly the members of its schema, whatever the verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentplane.lab.books import DISPLACED, HALVES, WINDOWS, Evidence, Judgement
from agentplane.lab.counterexample import Control
from agentplane.lab.tickets import REVIEWED

SCHEMA = "agentplane.demo/1"
_WHAT = {
    "W1": "lease held, nothing announced",
    "W2": "announced, never arrived",
    "W3": "arrived, not committed",
    "W4": "committed, outcome not durable",
    "W5": "a displaced writer",
    "W6": "two preparers",
    "W7": "a body made anew",
}


@dataclass(frozen=True)
class Result:
    """Everything that is reported. ``kills`` counts all kills; those that no window could be given are in
    it."""

    evidence: Evidence
    judgement: Judgement
    control: Control
    kills: int = 0
    handovers: int = 0
    seconds: float = 0.0
    seed: int = 0
    refunded_minor: int = 0
    aimed: Mapping[str, int] = field(default_factory=dict)


def as_json(result: Result) -> dict[str, Any]:
    """The result as data. ``windows`` are ``held``, ``broken`` or ``not run``."""
    evidence = result.evidence
    said = {True: "held", False: "broken", None: "not run"}
    return {
        "schema": SCHEMA,
        "verdict": result.judgement.verdict,
        "kills": {"total": result.kills} | {name: evidence.windows.get(name, 0) for name in WINDOWS},
        "windows": {name: said[evidence.displaced.get(name)] for name in DISPLACED},
        "handovers": result.handovers,
        "replays": evidence.audit.replays,
        "refunds": evidence.audit.refunds,
        "duplicates": len(evidence.audit.duplicates),
        "books_agree": evidence.audit.books_agree,
        "work": {"total": evidence.total, "concluded": evidence.concluded},
        "approvals": _approvals(evidence),
        "control": {
            "refunds_twice": result.control.refunds_twice,
            "references": list(result.control.references),
        },
    }


def _approvals(evidence: Evidence) -> dict[str, Any]:
    found = evidence.approvals
    if found is None:
        return {}
    return {
        "asked": found.asked, "consumed": found.consumed, "agree": not found.faults,
        "review": {name.replace(" ", "_"): evidence.review.get(name, 0) for name in REVIEWED},
    }  # fmt: skip


def _row(name: str, value: object, note: str = "") -> str:
    return f"  {name:<28}{value!s:>10}   {note}".rstrip()


def as_table(result: Result) -> str:
    """The result for a person, with the reasons of a verdict that is not PASS."""
    evidence = result.evidence
    found = evidence.audit
    rows = [f"{result.judgement.verdict}  ({result.seconds:.1f} s, seed {result.seed})", ""]
    rows.append(_row("tickets concluded", f"{evidence.concluded}/{evidence.total}"))
    rows.append(_row("refunds", found.refunds, f"{result.refunded_minor / 100:,.2f} EUR"))
    rows.append(_row("paid or sent twice", len(found.duplicates)))
    rows.append(_row("books agree", "yes" if found.books_agree else "NO"))
    if evidence.approvals is not None:
        agree = "each with what was allowed" if not evidence.approvals.faults else "and NOT as they were allowed"
        rows.append(_row("approvals consumed", f"{evidence.approvals.consumed}/{evidence.approvals.asked}", agree))
        rows += [_row(f"  {name}", evidence.review.get(name, 0)) for name in REVIEWED]
    rows.append(_row("replays at the provider", found.replays))
    rows.append(_row("handovers", result.handovers, "a run taken over by the next process"))
    rows.append(_row("SIGKILLs", result.kills))
    for name in WINDOWS:
        rows.append(_row(f"  in {name}", evidence.windows.get(name, 0), _WHAT[name]))
        if name == "W4":
            rows += [_row("", evidence.halves.get(half, 0), f"  {half}") for half in HALVES]
    unattributed = result.kills - sum(evidence.windows.get(name, 0) for name in WINDOWS)
    rows.append(_row("  in none", unattributed, "between effects, or too close to tell"))
    states = as_json(result)["windows"]
    rows += [_row(f"{name}", states[name], _WHAT[name]) for name in DISPLACED]
    twice = "refunds twice" if result.control.refunds_twice else "did NOT refund twice"
    rows.append(_row("control (a key an attempt)", "", f"{twice}: {', '.join(result.control.references)}"))
    rows += [""] + [f"  {reason}" for reason in result.judgement.reasons] if result.judgement.reasons else []
    return "\n".join(rows)


def progress(*, seconds: float, concluded: int, total: int, kills: int, of: int, windows: Mapping[str, int]) -> str:
    """One line while it works, at most 79 columns."""
    seen = " ".join(f"{name}:{windows.get(name, 0)}" for name in WINDOWS)
    return f"{seconds:5.1f} s  tickets {concluded}/{total}  kills {kills}/{of}  {seen}"[:79]


def reasons(judgement: Judgement) -> Sequence[str]:
    """The sentences for standard error when the answer goes out as JSON."""
    return [f"{judgement.verdict}: {reason}" for reason in judgement.reasons]
