"""A run's records as Saga and EffectGroup see them, and the question to TLC whether they may be so.

Owns the translation of a history, however it came about, into the durable changes of the two specifications. Refuses a
history that they have no word for. Invariant: the relation is the specification's own; a trace chooses among its steps,
and every durable change is one of the trace, in its order. What is only in memory is free.

A step's forward mutations are one effect to Saga, from the first announcement to the last outcome before the step ends
or the run stops; those of a compensation too, and the members of an aborted group are none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentplane.core.dispositions import Disposition
from agentplane.core.effects import REVERSAL_BIT
from agentplane.core.history import WAITS
from agentplane.core.records import (
    EffectDone,
    EffectFailed,
    EffectReconciled,
    EffectStarted,
    GroupOpened,
    GroupSettled,
    Record,
    RunCancelled,
    RunConcluded,
    RunSuspended,
    StepCompensated,
    StepFinished,
    StepKept,
    UnwindBegan,
)
from agentplane.core.saga import Compensation
from spec import tlc
from spec.traces import Judged, _tla

Event = dict[str, Any]
DECLARED = {
    Compensation.COMPENSATABLE: "undoable", Compensation.PIVOT: "pivot", Compensation.UNNECESSARY: "free",
    Compensation.UNDECLARED: "silent",
}  # fmt: skip
STOPS = (RunConcluded, RunSuspended, UnwindBegan)

HEAD = """---- MODULE History ----
EXTENDS %(spec)s
VARIABLE i
Events == %(events)s
Is(name) == i <= Len(Events) /\\ Events[i].ev = name /\\ i' = i + 1
S == Events[i].s
D == Events[i].d
CancelIsRecorded == \\E n \\in 1..Len(Events) : Events[n].ev = "cancelled"
"""
TAIL = """
HistoryInit == Init /\\ i = 1
HistorySpec == HistoryInit /\\ [][Observed \\/ (Unseen /\\ i' = i)]_<<vars, i>>
Reached == PrintT(<<"at", i>>)
NotToTheEnd == i <= Len(Events)
====
"""
CONFIG = """SPECIFICATION HistorySpec
CONSTANTS
%s    Scenes <- Real
INVARIANTS
    Reached
    NotToTheEnd
"""
SAGA = """
Real == {Scene(%(after)s, %(decl)s, %(crashes)d, %(doubts)d, %(waits)d, 0)}
Concludes == Succeed \\/ Quarantine \\/ LeaveFailed \\/ CancelAtOnce \\/ Concluded \\/ Name
Observed ==
    \\/ Is("open") /\\ Announce(S)
    \\/ Is("said") /\\ (Record(S) \\/ Settle(S)) /\\ rec'[S] = D
    \\/ Is("ok") /\\ Finish(S)
    \\/ Is("failed") /\\ Fail(S)
    \\/ Is("cancelled") /\\ asked /\\ UNCHANGED vars
    \\/ Is("unwind") /\\ (Begin \\/ GoOn) /\\ unwinding' = D
    \\/ Is("back") /\\ Compensate /\\ crec'[S] = "open"
    \\/ Is("backsaid") /\\ (RecordBack \\/ FindBack) /\\ crec'[S] = D
    \\/ Is("compensated") /\\ Tell /\\ told'[S] = told[S] + 1
    \\/ Is("kept") /\\ Keep /\\ S \\in kept' \\ kept
    \\/ Is("suspended") /\\ (Suspend \\/ WaitBack)
    \\/ Is("woken") /\\ Wake
    \\/ Is("concluded") /\\ Concludes /\\ status' = D
Unseen ==
    \\/ \\E s \\in Steps : Rewalk(s) \\/ Act(s) \\/ Escalate(s) \\/ Wait(s) \\/ StopAt(s)
    \\/ TakeBack
    \\/ FindBack /\\ UNCHANGED crec
    \\/ CancelIsRecorded /\\ Cancel
    \\/ Die
    \\/ TakeOver
"""
GROUP = """
Real == {Scene(does, holds, %(atomic)s, %(sleeps)s, %(crashes)d, %(doubts)d, 0) :
            does \\in {"commit", "fail"}, holds \\in BOOLEAN}
Observed ==
    \\/ Is("opened") /\\ ~opened /\\ Open
    \\/ Is("open") /\\ (Announce \\/ Release) /\\ rec'[S] = "open"
    \\/ Is("said") /\\ (Record \\/ Ask) /\\ rec'[S] = D
    \\/ Is("applied") /\\ Transact /\\ rec'[S] = "done"
    \\/ Is("back") /\\ Reversing /\\ back'[S] = "open"
    \\/ Is("backsaid") /\\ (Record \\/ Ask) /\\ back'[S] = D
    \\/ Is("settled") /\\ (Complete \\/ FailsForGood \\/ Reversed \\/ Stranded) /\\ settled' = D
    \\/ Is("suspended") /\\ Suspend
    \\/ Is("woken") /\\ Wake
    \\/ Is("cancelled") /\\ asked /\\ UNCHANGED vars
    \\/ Is("ended") /\\ StepEnds
    \\/ Is("concluded") /\\ (Escalate \\/ LeaveOpen) /\\ status' = D
    \\/ Is("concluded") /\\ (status = D \\/ (status = "ended" /\\ D # "quarantined")) /\\ UNCHANGED vars
Unseen ==
    \\/ opened /\\ Open
    \\/ Resolve \\/ ReadBack \\/ MemberFails \\/ Commit \\/ GiveUp \\/ Act \\/ Reject \\/ TransactionRefused
    \\/ ResolveLate \\/ FailsCheaply \\/ Hear \\/ ResolveBack \\/ Die \\/ TakeOver
    \\/ Ask /\\ UNCHANGED <<rec, back>>
    \\/ Transact /\\ rec'[Atomic] = "refused"
    \\/ CancelIsRecorded /\\ Cancel
"""


class Reading:
    """The records of one run, and what each effect belongs to."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self.started = {one.effect_key: one for one in records if isinstance(one, EffectStarted)}
        self.aborted = {
            (one.step, one.phase, one.index)
            for one in records
            if isinstance(one, GroupSettled) and one.outcome == "aborted"
        }
        self.crashes = len({one.epoch for one in records}) - 1
        self.doubts = sum(isinstance(one, EffectFailed) and one.disposition is Disposition.IN_DOUBT for one in records)

    def of(self, record: Record) -> EffectStarted | None:
        return self.started.get(record.effect_key) if record.effect_key else None

    def is_wait(self, record: Record) -> bool:
        started = self.of(record)
        return started is not None and started.descriptor.kind in WAITS


def _said(record: Record) -> str | None:
    """The word for an outcome; None for a record that settles nothing."""
    if isinstance(record, EffectDone):
        return "done"
    if isinstance(record, EffectReconciled):
        return {"landed": "done", "did_not_happen": "refused"}.get("" if record.early else record.verdict)
    if isinstance(record, EffectFailed):
        words = {Disposition.IN_DOUBT: "doubt", Disposition.DID_NOT_HAPPEN: "refused", Disposition.LANDED: "broken"}
        return "open" if record.lost_epoch is not None else words[record.disposition]
    return None


def _followed(reading: Reading, at: int, key: Any) -> bool:
    """Whether another announcement of the same ``key`` follows, before its step ends or the run stops."""
    step = reading.records[at].step
    for record in reading.records[at + 1 :]:
        if isinstance(record, STOPS) or (isinstance(record, StepFinished | StepCompensated) and record.step == step):
            return False
        if isinstance(record, EffectStarted) and key(record) == key(reading.of(reading.records[at])):
            return True
    return False


def _common(reading: Reading, record: Record, asleep: bool) -> Event | None:
    """What both specifications say in the same words."""
    if isinstance(record, RunCancelled):
        return {"ev": "cancelled"}
    if isinstance(record, RunSuspended):
        return {"ev": "suspended"}
    if asleep and isinstance(record, EffectDone) and reading.is_wait(record):
        return {"ev": "woken"}
    if isinstance(record, RunConcluded):
        return {"ev": "concluded", "d": record.outcome}
    return None


def saga_events(reading: Reading) -> list[Event]:
    """The durable changes of Saga, steps numbered from 1."""
    events: list[Event] = []
    word: dict[tuple[int, bool], str] = {}
    asleep = False

    def key(record: EffectStarted | None) -> Any:
        return None if record is None or not counted(record) else (record.step, record.phase)

    def counted(record: EffectStarted) -> bool:
        return record.mutates and (record.step, record.phase, record.group) not in reading.aborted

    def needs(step: int, back: bool, outcome: str) -> None:
        if (step, back) not in word:  # nothing of it reached the world: to Saga an effect that did nothing
            word[step, back] = outcome
            prefix = "back" if back else ""
            events.append({"ev": prefix or "open", "s": step})
            events.append({"ev": prefix + "said", "s": step, "d": outcome})

    for at, record in enumerate(reading.records):
        step = (record.step or 0) + 1
        common = _common(reading, record, asleep)
        if common is not None:
            if isinstance(record, RunConcluded) and record.code == "compensation_failed":
                left = [one for one in reading.records if isinstance(one, UnwindBegan)][-1].steps
                told = {one.step for one in reading.records[:at] if isinstance(one, StepCompensated | StepKept)}
                needs(next(one for one in left if one not in told) + 1, True, "failed")
            asleep = common["ev"] == "suspended" or (asleep and common["ev"] not in ("woken", "cancelled"))
            events.append(common)
        elif isinstance(record, StepFinished):
            needs(step, False, "refused")
            events.append({"ev": "ok" if record.outcome == "succeeded" else "failed", "s": step})
        elif isinstance(record, UnwindBegan):
            events.append({"ev": "unwind", "d": record.cause})
        elif isinstance(record, StepCompensated):
            needs(step, True, "done")
            events.append({"ev": "compensated", "s": step})
        elif isinstance(record, StepKept):
            events.append({"ev": "kept", "s": step})
        else:
            events += _effect(reading, at, word, key)
    return events


def _effect(reading: Reading, at: int, word: dict[tuple[int, bool], str], key: Any) -> list[Event]:
    record = reading.records[at]
    step, back = (record.step or 0) + 1, record.phase == "compensating"
    prefix = "back" if back else ""
    if isinstance(record, EffectStarted):
        if key(record) is None or (step, back) in word:
            return []
        word[step, back] = "open"
        return [{"ev": prefix or "open", "s": step}]
    said = _said(record)
    if said is None or key(reading.of(record)) is None or _followed(reading, at, key):
        return []
    said = {"broken": "done"}.get(said, said)
    before = word.get((step, back), "none")
    if said in ("open", before) or (before == "done" and said == "refused"):
        return []
    if before not in ("open", "doubt"):
        raise ValueError(f"the specification has no word for an effect that is {before} and then {said}")
    word[step, back] = said
    if back and said != "done":
        word[step, back] = said = "failed"
    return [{"ev": prefix + "said", "s": step, "d": said}]


def group_events(reading: Reading, step: int) -> list[Event]:
    """The durable changes of EffectGroup: of the one group of ``step``, whose members are numbered as they are there.
    Raises ValueError for another shape than three, an atomic one or none, and two."""
    members: dict[int, int] = {}
    places = {"reversible": iter((1, 2, 3)), "atomic": iter((4,)), "deferred": iter((5, 6))}
    events: list[Event] = []
    asleep = False

    def key(record: EffectStarted | None) -> Any:
        return None if record is None else record.ordinal

    for at, record in enumerate(reading.records):
        started = record if isinstance(record, EffectStarted) else reading.of(record)
        common = _common(reading, record, asleep)
        if common is not None:
            asleep = common["ev"] == "suspended" or (asleep and common["ev"] not in ("woken", "cancelled"))
            events.append(common)
        elif record.step != step or record.phase is not None:
            continue
        elif isinstance(record, GroupOpened):
            events.append({"ev": "opened"})
        elif isinstance(record, GroupSettled):
            events.append({"ev": "settled", "d": record.outcome})
        elif isinstance(record, StepFinished):
            events.append({"ev": "ended"})
        elif started is not None and started.group is not None and started.role is not None:
            back = started.role == "reversal"
            if not back and started.ordinal not in members:
                place = next(places.get(started.role, iter(())), None)
                if place is None:
                    raise ValueError(f"the specification has no word for one more {started.role} member")
                members[started.ordinal] = place
            member = members[started.ordinal & ~REVERSAL_BIT]
            prefix = "back" if back else ""
            said = _said(record)
            if isinstance(record, EffectStarted):
                if record.attempt == 1 and started.role != "atomic":
                    events.append({"ev": prefix or "open", "s": member})
            elif started.role == "atomic":
                events.append({"ev": "applied", "s": member})
            elif said not in (None, "open") and not _followed(reading, at, key):
                events.append({"ev": prefix + "said", "s": member, "d": said})
    return events


def saga_judged(
    records: Sequence[Record], after: Mapping[int, set[int]], declared: Mapping[int, Compensation]
) -> Judged:
    """What TLC says of a run as a saga. ``after`` and ``declared`` by step, from 0: the code's, and not recorded."""
    reading = Reading(records)
    events = saga_events(reading)
    text = SAGA % {
        "after": _tla([{one + 1 for one in after[step]} for step in sorted(after)]),
        "decl": _tla([DECLARED[declared[step]] for step in sorted(declared)]),
        "crashes": reading.crashes, "doubts": reading.doubts,
        "waits": sum(event["ev"] == "suspended" for event in events),
    }  # fmt: skip
    return _judged("Saga", text, events, f"    Steps = {_tla(set(range(1, len(after) + 1)))}\n")


def group_judged(records: Sequence[Record], step: int) -> Judged:
    """What TLC says of the one group of ``step``."""
    reading = Reading(records)
    events = group_events(reading, step)
    text = GROUP % {
        "atomic": _flag(any(event["ev"] == "applied" for event in events)),
        "sleeps": _flag(any(event["ev"] == "suspended" for event in events)),
        "crashes": reading.crashes, "doubts": reading.doubts,
    }  # fmt: skip
    return _judged("EffectGroup", text, events, "")


def _flag(value: bool) -> str:
    return "TRUE" if value else "FALSE"


def _judged(spec: str, body: str, events: list[Event], constants: str) -> Judged:
    whole = [{"s": 1, "d": "-"} | event for event in events]
    text = HEAD % {"spec": f"{spec}, Sequences", "events": _tla(whole)} + body + TAIL
    config = CONFIG % constants
    result = tlc.explore("History", text=text, config=config, extra={spec: tlc.source(spec)}, deadlock=False)
    reached = max(int(line.strip("<> ").split(",")[1]) for line in result.printed if line.startswith('<<"at"'))
    accepted = result.violated == "NotToTheEnd"
    return Judged(None if accepted else reached - 1, result.distinct)
