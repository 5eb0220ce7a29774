"""What the lab says of the orders: the table and the JSON.

Owns the words. Refuses to compute: every number was found by the audit or counted by the driver. Invariant: one line an
ending, and every quarantine that is left with the order, the run and what it names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from agentplane.lab.books import Audit, Judgement
from agentplane.lab.orders.verdict import Ending, Found, Tally

SCHEMA: Final = "agentplane.demo-orders/1"
NAME_CHARS: Final = 96


@dataclass(frozen=True)
class Result:
    """Everything that is reported."""

    judgement: Judgement
    found: Found
    books: Audit
    tally: Tally
    deeds: int
    handovers: int
    seconds: float
    seed: int


def as_json(result: Result) -> dict[str, object]:
    """The result as data."""
    tally = result.tally
    return {
        "schema": SCHEMA,
        "verdict": result.judgement.verdict,
        "seed": result.seed,
        "kills": {"total": tally.total, "wanted": tally.wanted, "at": dict(sorted(tally.kills.items()))},
        "orders": {"total": result.found.orders}
        | {one.name.lower(): result.found.endings.get(one, 0) for one in Ending},
        "quarantined": [{"order": order, "run": run, "names": name} for order, run, name in result.found.named],
        "quarantines": dict(sorted(tally.quarantines.items())),
        "answers": dict(sorted(tally.answers.items())),
        "stops": dict(sorted(tally.stops.items())),
        "deeds": result.deeds,
        "duplicates": len(result.books.duplicates),
        "replays": result.books.replays,
        "handovers": result.handovers,
    }


def _row(name: str, value: object, note: str = "") -> str:
    return f"  {name:<28}{value!s:>8}   {note}".rstrip()


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {times}" for name, times in sorted(counts.items()))


def as_table(result: Result) -> str:
    """The result for a person, with the reasons of a verdict that is not PASS."""
    found, tally = result.found, result.tally
    rows = [f"{result.judgement.verdict}  ({result.seconds:.1f} s, seed {result.seed})", ""]
    rows.append(_row("orders", found.orders))
    rows += [_row(f"  {one.value}", found.endings.get(one, 0)) for one in Ending]
    rows.append(_row("SIGKILLs", f"{tally.total}/{tally.wanted}", f"at {len(tally.kills)} kinds of places"))
    rows.append(_row("stops asked for", sum(tally.stops.values()), _listed(tally.stops)))
    rows.append(_row("quarantines met", sum(tally.quarantines.values()), _listed(tally.quarantines)))
    rows.append(_row("  answered by a person", sum(tally.answers.values()), _listed(tally.answers)))
    rows.append(_row("deeds at the provider", result.deeds))
    rows.append(_row("done twice", len(result.books.duplicates)))
    rows.append(_row("replays at the provider", result.books.replays))
    rows.append(_row("handovers", result.handovers, "a run taken over by the next process"))
    if found.named:
        rows += ["", "  left quarantined:"]
        rows += [f"    {order}  {run}  {name[:NAME_CHARS]}" for order, run, name in found.named]
    rows += [""] + [f"  {reason}" for reason in result.judgement.reasons] if result.judgement.reasons else []
    return "\n".join(rows)
