"""What became of each order, from the provider's book, the ledger and the journal, row by row.

Owns the rules of an order's ending and the verdict, as pure functions over rows. Refuses the engine's count of what
stands, and to excuse one row by another: a reversal takes back the one deed that it names. Invariant: every order is
whole, taken back, untouched, held by its pivot, or its run is quarantined with a name; else it is a fault in words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from agentplane.core.records import EffectDone, EffectStarted, GroupSettled, Record, RunConcluded
from agentplane.lab.books import FAIL, INCONCLUSIVE, PASS, Audit, Difference, Judgement
from agentplane.lab.provider.audit import Effect
from agentplane.lab.provider.book import REVERSES

BEFORE_PIVOT: Final = ("/reservations", "/authorisations", "/notices", "/parcels", "/invoices")
PIVOT: Final = "/shipments"
LAST: Final = "/receipts"
NOUN: Final = {
    "/reservations": "reservation", "/authorisations": "authorisation", "/notices": "notice", "/parcels": "parcel",
    "/invoices": "invoice", "/shipments": "shipment", "/receipts": "receipt", "/releases": "release",
    "/voids": "void", "/returns": "return", "/credits": "credit", "/retractions": "retraction",
}  # fmt: skip


class Ending(StrEnum):
    """The classes of the report."""

    WHOLE = "whole"
    TAKEN_BACK = "taken back"
    UNTOUCHED = "nothing was done"
    HELD = "held by its pivot"
    QUARANTINED = "quarantined and named"


@dataclass(frozen=True)
class Case:
    """All that is known of one order. ``run`` None: it was never admitted. ``ledger`` as kind to amount."""

    order: str
    run: str | None
    status: str
    deeds: tuple[Effect, ...] = ()
    ledger: Mapping[str, int] = field(default_factory=dict)
    records: tuple[Record, ...] = ()

    def name(self) -> str | None:
        """What a quarantined run says of itself: the effects in doubt with their steps, or the step or group."""
        last = next((one for one in reversed(self.records) if isinstance(one, RunConcluded)), None)
        if last is None or last.outcome != "quarantined":
            return None
        if last.undecided:
            return ", ".join(f"{one.kind} of step {one.step}" for one in last.undecided)
        return last.reason if last.reason and "step" in last.reason else None

    def aborted(self) -> bool:
        """Whether a forward group of it was taken back."""
        return any(
            isinstance(one, GroupSettled) and one.phase is None and one.outcome == "aborted" for one in self.records
        )

    def booked(self) -> set[str]:
        """The ledger kinds that the journal says were committed: ``sale``, and ``return`` where it was taken back."""
        asked = {
            one.effect_key: "sale" if one.phase is None else "return"
            for one in self.records
            if isinstance(one, EffectStarted) and one.role == "atomic"
        }
        return {
            asked[one.effect_key] for one in self.records if isinstance(one, EffectDone) and one.effect_key in asked
        }


def ending(case: Case) -> tuple[Ending | None, list[str]]:
    """How the order ended, and each thing that is wrong with it, in words; None where it ended in no way at all."""
    faults = _ledger_faults(case) + _reversal_faults(case)
    if case.run is None:
        return None, [f"order {case.order} was never admitted"]
    if case.status == "quarantined":
        if case.name() is None:
            return None, [*faults, f"order {case.order}: its run {case.run} is quarantined and names nothing"]
        return Ending.QUARANTINED, faults
    undone = {row.undoes for row in case.deeds}
    stands = {row.path for row in case.deeds if row.ref not in undone and row.path not in REVERSES}
    landed = {row.path for row in case.deeds}
    reversed_ = landed & set(REVERSES)
    if case.aborted() and (case.ledger or "/notices" in landed):
        faults.append(f"order {case.order}: its group was taken back, and a notice or a ledger entry of it exists")
    if case.status == "succeeded":
        whole = stands == {*BEFORE_PIVOT, PIVOT, LAST} and not reversed_ and set(case.ledger) == {"sale"}
        return (Ending.WHOLE, faults) if whole else (None, [*faults, _not("whole", case, stands)])
    if case.status not in ("failed", "cancelled"):
        return None, [*faults, f"order {case.order} did not conclude: its run {case.run} is {case.status}"]
    if PIVOT in landed:
        held = stands >= {*BEFORE_PIVOT, PIVOT} and not reversed_ and set(case.ledger) == {"sale"}
        return (Ending.HELD, faults) if held else (None, [*faults, _not("held by its pivot", case, stands)])
    if stands or LAST in landed or set(case.ledger) == {"sale"}:
        return None, [*faults, _not("taken back", case, stands)]
    return (Ending.TAKEN_BACK if landed or case.ledger else Ending.UNTOUCHED), faults


def _not(what: str, case: Case, stands: set[str]) -> str:
    """An order of which only a part stands, named deed by deed."""
    rows = [f"{NOUN[row.path]} {row.ref}" for row in case.deeds if row.path in stands]
    rows += [f"ledger {kind}" for kind in case.ledger]
    return f"order {case.order} is {case.status} and not {what}: {', '.join(rows) or 'nothing'} stands ({case.run})"


def _ledger_faults(case: Case) -> list[str]:
    """Row and record are one commit: both are there, or neither."""
    found = [
        f"order {case.order}: the ledger has a {kind} that the journal does not ({case.run})"
        for kind in sorted(set(case.ledger) - case.booked())
    ]
    found += [
        f"order {case.order}: the journal has a {kind} that the ledger does not ({case.run})"
        for kind in sorted(case.booked() - set(case.ledger))
    ]
    if len(case.ledger) == 2 and sum(case.ledger.values()) != 0:
        found.append(f"order {case.order}: sale and return are not the same amount")
    return found


def _reversal_faults(case: Case) -> list[str]:
    by = Counter(row.undoes for row in case.deeds if row.undoes is not None)
    return [f"order {case.order}: {ref} was taken back {times} times" for ref, times in sorted(by.items()) if times > 1]


@dataclass(frozen=True)
class Tally:
    """What was tried: kills by place, stops by how they were answered, and quarantines met on the way by code."""

    wanted: int
    kills: Mapping[str, int] = field(default_factory=dict)
    stops: Mapping[str, int] = field(default_factory=dict)
    quarantines: Mapping[str, int] = field(default_factory=dict)
    answers: Mapping[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.kills.values())


@dataclass(frozen=True)
class Found:
    """Every order's ending and the quarantines that are left, with what they name."""

    endings: Mapping[str, int]
    named: tuple[tuple[str, str, str], ...]
    faults: tuple[str, ...]
    orders: int
    unsettled: frozenset[str]


HONEST: Final = frozenset({"undecided", "crash_suspect", "group_quarantined", "compensation_failed"})
"""Codes of quarantines that doubt, a death or a refusal explains; any other says that the plane itself is at fault."""


def found(cases: Sequence[Case], met: Sequence[tuple[str, str]] = ()) -> Found:
    """The endings of all orders. ``met``: order and code of every quarantine on the way, those answered since too."""
    counted: Counter[str] = Counter()
    faults: list[str] = []
    named = []
    for case in cases:
        how, wrong = ending(case)
        faults += wrong
        if how is not None:
            counted[how.value] += 1
        if how is Ending.QUARANTINED:
            named.append((case.order, case.run or "", case.name() or ""))
    faults += [f"order {order}: its run was quarantined as {code}" for order, code in met if code not in HONEST]
    unsettled = frozenset(run for _, run, _ in named)
    return Found(counted, tuple(named), tuple(faults), len(cases), unsettled)


def judge(cases: Found, books: Audit, tally: Tally) -> Judgement:
    """FAIL for anything broken; INCONCLUSIVE where the kills, or an ending that the claim is about, did not come."""
    broken = list(cases.faults)
    broken += [
        f"order {each.order} has {len(each.refs)} {NOUN.get(each.path, each.path)}s: {', '.join(each.refs)}"
        for each in books.duplicates
    ]
    for each in (*books.only_provider, *books.only_journal, *books.mismatches, *books.undecided):
        if not _excused(each, cases):
            where = " ".join(part for part in (each.ref, each.run) if part)
            broken.append(f"order {each.order} {each.path}: {each.what} ({where})")
    if broken:
        return Judgement(FAIL, tuple(dict.fromkeys(broken)))
    unproven = [] if tally.total >= tally.wanted else [f"{tally.total} of {tally.wanted} kills found an appliance"]
    if not tally.total:
        unproven.append("nothing was killed")
    unproven += [
        f"no order ended {how.value}" for how in (Ending.WHOLE, Ending.TAKEN_BACK) if not cases.endings.get(how)
    ]
    if not tally.stops.get("recorded"):
        unproven.append("no stop was recorded")
    return Judgement(INCONCLUSIVE if unproven else PASS, tuple(unproven))


def _excused(each: Difference, cases: Found) -> bool:
    """The journal of a quarantined run may leave open what it names."""
    return each.run in cases.unsettled
