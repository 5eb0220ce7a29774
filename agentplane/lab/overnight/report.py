"""What the lab says of the month: the table and the JSON.

Owns the words. Refuses to compute: every number was found by the audit or counted by the driver. Invariant: one line an
ending, and the reasons of every verdict that is not PASS.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from agentplane.lab.books import Judgement
from agentplane.lab.overnight.verdict import Ending, Found, Tally

SCHEMA: Final = "agentplane.demo-overnight/1"


@dataclass(frozen=True)
class Result:
    """Everything that is reported."""

    judgement: Judgement
    found: Found
    tally: Tally
    seconds: float
    seed: int


def as_json(result: Result) -> dict[str, object]:
    """The result as data."""
    found, tally = result.found, result.tally
    return {
        "schema": SCHEMA,
        "verdict": result.judgement.verdict,
        "seed": result.seed,
        "days": tally.days,
        "steps": tally.steps,
        "kills": {"total": tally.total, "wanted": tally.wanted, "at": dict(sorted(tally.kills.items()))},
        "orders": {"total": found.orders} | {one.name.lower(): found.endings.get(one, 0) for one in Ending},
        "events": {"consumed": found.claimed, "dead": found.dead, "answers": dict(sorted(tally.answers.items()))},
        "obligations": {"met": found.met, "breached": found.breached},
        "approvals": {
            "asked": found.approvals.asked, "consumed": found.approvals.consumed, "agree": not found.approvals.faults,
        },
        "refused": dict(sorted(tally.refused.items())),
        "nights": found.nights,
        "duplicates": len(found.books.duplicates),
        "books_agree": found.books.books_agree,
        "replays": found.books.replays,
        "handovers": found.handovers,
    }  # fmt: skip


def _row(name: str, value: object, note: str = "") -> str:
    return f"  {name:<28}{value!s:>8}   {note}".rstrip()


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {times}" for name, times in sorted(counts.items()))


def as_table(result: Result) -> str:
    """The result for a person, with the reasons of a verdict that is not PASS."""
    found, tally = result.found, result.tally
    rows = [f"{result.judgement.verdict}  ({result.seconds:.1f} s, seed {result.seed})", ""]
    rows.append(_row("simulated days", tally.days, f"{tally.steps} steps of the clock"))
    rows.append(_row("orders", found.orders))
    rows += [_row(f"  {one.value}", found.endings.get(one, 0)) for one in Ending]
    rows.append(_row("events consumed", found.claimed, _listed(tally.answers)))
    rows.append(_row("dead letters", found.dead))
    rows.append(_row("promises kept", found.met))
    rows.append(_row("promises broken", found.breached))
    rows.append(_row("approvals consumed", f"{found.approvals.consumed}/{found.approvals.asked}"))
    rows.append(_row("refused decisions", sum(tally.refused.values()), _listed(tally.refused)))
    rows.append(_row("nights", found.nights, "runs of the schedule"))
    rows.append(_row("done twice", len(found.books.duplicates)))
    rows.append(_row("books agree", "yes" if found.books.books_agree else "NO"))
    rows.append(_row("replays at the provider", found.books.replays))
    rows.append(_row("SIGKILLs", f"{tally.total}/{tally.wanted}", f"at {len(tally.kills)} kinds of places"))
    rows.append(_row("handovers", found.handovers, "a run taken over by the next process"))
    rows += [""] + [f"  {reason}" for reason in result.judgement.reasons] if result.judgement.reasons else []
    return "\n".join(rows)
