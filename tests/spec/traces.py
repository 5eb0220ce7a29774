"""A real run as the specification sees it, and the question to TLC whether it may be so.

Owns the translation of observer events and journal records into the variables and actions of EffectProtocol, and the
module that holds its next-state relation to them. Refuses a record that the specification has no word for. Invariant:
the relation is the specification's own, imported and not written again; a trace only chooses among its steps.

A trace may leave out what the provider and the writer do between two events (those steps are free), but no step of the
run itself: an announcement, an act, its return, a commit with what was durable after it, a death, a takeover.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from agentplane.core.dispositions import Disposition
from agentplane.core.history import WAITS
from agentplane.core.records import EffectDone, EffectFailed, EffectReconciled, EffectStarted, Record, RunConcluded
from agentplane.core.recovery import Mode
from spec import tlc

Event = dict[str, Any]
VERDICTS = {"landed": "landed", "did_not_happen": "didnot", "inconclusive": "unknown"}

MODULE = """---- MODULE Trace ----
EXTENDS EffectProtocol
VARIABLE i
%(data)s
Real == {Scene(Modes, %(most)d, %(crashes)d, %(doubts)d, 0, 0, %(notes)d)}

Is(name) == i <= Len(Events) /\\ Events[i].ev = name /\\ i' = i + 1
P == Events[i].p
UpToItsOutcome == {"announcing", "announced", "acting", "acted", "recording"}
Durable == Len(journal') = Events[i].n
AsFound == Len(journal') <= Len(Found) /\\ journal' = SubSeq(Found, 1, Len(journal'))

Observed ==
    \\/ Is("announcing") /\\ Announce(P) /\\ Last(queue').rec.n = Events[i].n
    \\/ Is("announced") /\\ pc[P] = "announced" /\\ UNCHANGED vars
    \\/ Is("acting") /\\ Act(P)
    \\/ Is("acted") /\\ (Return(P) \\/ TimeOut(P))
    \\/ Is("recorded") /\\ up /\\ pc[P] \\notin UpToItsOutcome /\\ UNCHANGED vars
    \\/ Is("asked") /\\ pc[P] = "ask" /\\ UNCHANGED vars
    \\/ Is("committed") /\\ Commit /\\ Durable /\\ AsFound
    \\/ Is("committed") /\\ txn = <<>> /\\ UNCHANGED vars /\\ Durable
    \\/ Is("crash") /\\ Crash
    \\/ Is("took_over") /\\ TakeOver
    \\/ Is("concluded") /\\ answered = Events[i].d /\\ UNCHANGED vars
    \\/ Is("book") /\\ landed[P] = Events[i].n /\\ UNCHANGED vars

Unseen ==
    /\\ i' = i
    /\\ \\/ Take
       \\/ Note
       \\/ Conclude
       \\/ \\E p \\in Places : Record(p) \\/ Settle(p) \\/ Ask(p)
       \\/ \\E q \\in inflight : Arrive(q) \\/ Refuse(q) \\/ Vanish(q)

TraceInit == Init /\\ i = 1
TraceSpec == TraceInit /\\ [][Observed \\/ Unseen]_<<vars, i>>
Reached == PrintT(<<"at", i>>)
NotToTheEnd == i <= Len(Events)
====
"""
CONFIG = """SPECIFICATION TraceSpec
CONSTANTS
    MaxEpoch = 99
    Scenes <- Real
INVARIANTS
    Reached
    NotToTheEnd
"""


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """``events`` in the order in which they were observed; ``found`` the records in the order of the chain, as the
    specification writes them; ``modes`` the recovery of each place; ``most`` attempts that the policy has."""

    events: list[Event]
    found: list[Event]
    modes: dict[str, str]
    most: int


class Judged(msgspec.Struct, frozen=True):
    """``stopped`` is the first event, from 0, that the specification does not allow, or None."""

    stopped: int | None
    distinct: int

    @property
    def accepted(self) -> bool:
        return self.stopped is None


def translate(seen: Sequence[tuple[str, dict[str, Any]]], records: Sequence[Record], booked: dict[str, int]) -> Trace:
    """The trace of one run. ``seen`` are the observer's points, with ``crash`` where the process died and the durable
    count in ``writer.committed``; ``booked`` says how often each effect's kind is in the provider's book.
    Raises ValueError for a record outside the specification."""
    places: dict[str, str] = {}
    modes: dict[str, str] = {}
    numbers: dict[str, int] = {}
    spots: dict[tuple[Any, ...], str] = {}
    most, kinds = 1, {}
    for record in records:
        if not isinstance(record, EffectStarted) or record.local or _inside(record):
            continue
        spot = (record.step, record.phase, record.ordinal)
        place = spots.setdefault(spot, f"p{len(spots) + 1}")
        key = record.effect_key or ""
        places[key], numbers[key] = place, record.attempt
        kinds[place] = record.descriptor.kind
        modes[place] = _mode(record)
        most = max(most, record.retry.max_attempts)
    found = [_record(record, places, numbers) for record in records]
    most += sum(row.get("d") == "lost" for row in found)
    events = [event for point, fields in seen if (event := _event(point, fields, places)) is not None]
    concluded = [row["d"] for row in found if row["k"] == "C"]
    events += [{"ev": "concluded", "d": d} for d in concluded]
    events += [{"ev": "book", "p": place, "n": booked.get(kind, 0)} for place, kind in kinds.items()]
    return Trace(events=events, found=found, modes=modes, most=most)


def _inside(started: EffectStarted) -> bool:
    """A wait, and a member of the journal's own transaction: neither is an act upon the world."""
    return started.descriptor.kind in WAITS or started.role == "atomic"


def _mode(started: EffectStarted) -> str:
    """The mode as the specification has it: a read may always be repeated, and what can neither be asked nor repeated
    is a person's."""
    mode = started.terms.mode
    if not started.mutates or mode is Mode.RETRY:
        return "retry"
    if mode is Mode.IDEMPOTENT:
        return "idempotent"
    return "reconcile" if mode is Mode.RECONCILE and started.terms.probe else "operator"


def _record(record: Record, places: dict[str, str], numbers: dict[str, int]) -> Event:
    row: Event = {"e": record.epoch, "s": record.seq}
    if isinstance(record, RunConcluded):
        return {"k": "C", "d": record.outcome, "u": {places[one.effect] for one in record.undecided}} | row
    key = record.effect_key or ""
    if key not in places or (isinstance(record, EffectReconciled) and record.early):
        return {"k": "X"} | row  # of no outward effect, or a question that was asked too early and says nothing
    row |= {"p": places[key], "n": numbers[key]}
    if isinstance(record, EffectStarted):
        return {"k": "A"} | row
    if isinstance(record, EffectReconciled):
        return {
            "k": "V",
            "d": {"did_not_happen": "didnot", "inconclusive": "unknown"}.get(record.verdict, "landed"),
        } | row
    if isinstance(record, EffectDone):
        return {"k": "O", "d": "done"} | row
    if isinstance(record, EffectFailed):
        return {"k": "O", "d": _ending(record)} | row
    raise ValueError(f"the specification has no word for {type(record).__name__}")


def _ending(failed: EffectFailed) -> str:
    if failed.never_dispatched:
        return "never"
    if failed.lost_epoch is not None:
        return "lost"
    if failed.disposition is Disposition.IN_DOUBT:
        return "doubt"
    if failed.disposition is Disposition.DID_NOT_HAPPEN:
        return "refused" if failed.permanent else "didnot"
    raise ValueError("the specification has no word for an outcome that landed and cannot be used")


def _event(point: str, fields: dict[str, Any], places: dict[str, str]) -> Event | None:
    if point == "crash":
        return {"ev": "crash"}
    if point == "writer.committed":
        return {"ev": "committed", "n": fields["durable"]}
    if point == "recovery.took_over":
        return {"ev": "took_over"}
    room, _, name = point.partition(".")
    place = places.get(str(fields.get("effect")))
    if room != "effect" or place is None:
        return None
    return {"ev": name, "p": place, "n": fields["attempt"]}


def judged(trace: Trace) -> Judged:
    """What TLC says of it: accepted when some behaviour of the specification has all of it."""
    data = "\n".join(
        [
            f"Modes == {' @@ '.join(f'({_tla(p)} :> {_tla(m)})' for p, m in trace.modes.items())}",
            f"Events == {_tla(trace.events)}",
            f"Found == {_tla(trace.found)}",
        ]
    )
    text = MODULE % {
        "data": data,
        "most": trace.most,
        "crashes": sum(event["ev"] == "crash" for event in trace.events),
        "doubts": sum(row.get("d") == "doubt" for row in trace.found),
        "notes": sum(row["k"] == "X" for row in trace.found) + 2,  # and some that were lost with a crash
    }
    result = tlc.explore(
        "Trace", text=text, config=CONFIG, extra={"EffectProtocol": tlc.source("EffectProtocol")}, deadlock=False
    )
    reached = max(int(line.strip("<> ").split(",")[1]) for line in result.printed if line.startswith('<<"at"'))
    accepted = result.violated == "NotToTheEnd"
    return Judged(None if accepted else reached - 1, result.distinct)


def _tla(value: Any) -> str:
    """A value as TLA+ writes it."""
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, int):
        return str(value)
    if isinstance(value, dict):
        return "[" + ", ".join(f"{name} |-> {_tla(member)}" for name, member in value.items()) + "]"
    if isinstance(value, set):
        return "{" + ", ".join(_tla(member) for member in sorted(value)) + "}"
    return "<<" + ",\n    ".join(_tla(member) for member in value) + ">>"
