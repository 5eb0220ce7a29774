"""How an order of the overnight workload ended is read from the provider's book, the journal and the rows of what
outlives a run; what fits no ending is a fault that names the order, the event, the task or the instant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from agentplane.core.history import AWAIT, TASK
from agentplane.core.instants import to_text
from agentplane.core.records import (
    Actor,
    Approved,
    Basis,
    DeadlineRegistered,
    DeadlineTransition,
    Descriptor,
    EffectDone,
    EffectStarted,
    Key,
    Record,
    RetryTerms,
    Terms,
)
from agentplane.core.recovery import Mode
from agentplane.core.tasks import action_digest, task_id
from agentplane.journal.obligations import Obligation
from agentplane.lab.books import FAIL, INCONCLUSIVE, PASS
from agentplane.lab.overnight.evidence import Books, Night
from agentplane.lab.overnight.evidence import Tally as Nightly
from agentplane.lab.overnight.fixture import EVENT, Comes, Month, Order, Says, Stray
from agentplane.lab.overnight.verdict import Ending, Tally, ending, found, judge
from agentplane.lab.provider.audit import Effect
from agentplane.work.events import Letter
from agentplane.work.matters import Matter
from agentplane.work.tasks import TaskRow
from lab.lab_rows import AT

DUE_MS = 1_800_000_000_000
MARA = Actor(actor="mara", basis=Basis.AUTHENTICATED)
INES = Actor(actor="ines", basis=Basis.AUTHENTICATED)
RUN, CASE = "run_a", "case_a"
ARGS = {"order": "N-1", "amount_minor": 4200, "currency": "EUR"}
KINDS = {"reserve": "/reservations", "invoice": "/invoices", "notice": "/notices", "refund": "/refunds"}


def envelope(number: int = 0, **members: Any) -> dict[str, Any]:
    return {"seq": 1, "run": RUN, "epoch": 1, "v": 1, "at": AT, "step": 0, "case": CASE} | members


def performed(number: int, kind: str, args: Any, output: Any, *, by: Actor | None = None, **more: Any) -> list[Record]:
    """An announcement and its outcome."""
    key = f"{number:064x}"
    started = EffectStarted(
        **envelope(effect_key=key), descriptor=Descriptor(kind=kind, args=args), terms=Terms(mode=Mode.IDEMPOTENT),
        retry=RetryTerms(), mutates=kind.partition(".")[0] in KINDS, attempt=1, ordinal=number,
        idempotency_key=f"k{number}", **more,
    )  # fmt: skip
    return [started, EffectDone(**envelope(effect_key=key), output=output, by=by)]


def deed(number: int, word: str, args: Any = None, **more: Any) -> list[Record]:
    return performed(number, f"{word}.keyed", args or {"order": "N-1"}, {"id": f"{word}_1"}, **more)


def row(number: int, word: str, **args: Any) -> Effect:
    """The provider's row of such a deed."""
    amount, currency = args.get("amount_minor"), args.get("currency")
    return Effect(f"{word}_1", KINDS[word], "N-1", amount, currency, f"k{number}", 1, 10, 20, 0)


def promised(name: str, *, met: bool) -> tuple[list[Record], Obligation]:
    records: list[Record] = [
        DeadlineRegistered(**envelope(), name=name, resolved_at=to_text(DUE_MS), warn_at=to_text(DUE_MS - 1),
                           calendar_digest="00" * 32),
    ]  # fmt: skip
    if met:
        records.append(DeadlineTransition(**envelope(), name=name, before="pending", to="met"))
    return records, Obligation(
        subject=CASE, name=name, nth=1, run=RUN, state="met" if met else "breached", due_ms=DUE_MS, warn_ms=DUE_MS - 1,
        next_ms=None, calendar="00" * 32, noted=True, acknowledged=None if met else INES,
    )  # fmt: skip


def letter(state: str = "consumed", **other: Any) -> Letter:
    members: dict[str, Any] = {
        "event": "evt_1", "source": "peer:post", "producer": "", "producer_id": "sent-N-1", "kind": EVENT,
        "keys": (Key(namespace="order", value="N-1"),), "received_ms": 1, "state": state, "parked": False,
        "run": RUN if state == "consumed" else None, "key": None, "ended_ms": 2, "why": None,
    }  # fmt: skip
    return Letter(**members | other)


def matter(status: str) -> Matter:
    return Matter(case=CASE, kind="order.overnight", status=status, state=None, version=0, opened_ms=1, closed_ms=None,
                  keys=(Key(namespace="order", value="N-1"),))  # fmt: skip


def order(comes: Comes = Comes.IN_TIME, says: Says = Says.APPROVES) -> Order:
    return Order("N-1", comes, says, "keyed", 4200, 1.0, 48, None if comes is Comes.NEVER else 2.0)


def asked(says: Says) -> tuple[TaskRow, list[Record]]:
    """The task of a release, as decided, and its wait with what it was told; the refund where it was approved."""
    amended = ARGS | {"amount_minor": 2100} if says is Says.AMENDS else None
    outcome = {Says.REJECTS: "rejected", Says.NOBODY: "expired"}.get(says, "approved")
    by = None if says is Says.NOBODY else MARA
    approved = outcome == "approved"
    digest = action_digest("refund.keyed", amended or ARGS) if approved else None
    decision = {"outcome": outcome, "amendment": amended, "digest": digest, "approved": approved}
    task = TaskRow(
        task=task_id(RUN, f"{7:064x}"), run=RUN, key=bytes.fromhex(f"{7:064x}"), case=CASE, kind="order.overnight",
        priority=1, state="completed" if by else "expired", created_ms=1, due_ms=2, on_expiry="deny", escalate_to=(),
        audience=("reviewer",), excluded=(), least_basis="connected", four_eyes=True, assignee=None,
        assignee_basis=None, assignee_uid=None, claimed_ms=None, digest=digest, approved=approved, decided_by=by,
        decided_ms=2, delivered=True, consumed=(0, 0, 8) if approved else None, decision=decision,
        proposal={"action": {"kind": "refund.keyed", "args": ARGS}},
    )  # fmt: skip
    records = performed(7, TASK, {"summary": "?"}, decision, by=by)
    if approved:
        records += deed(8, "refund", amended or ARGS, approval=Approved(task=task.task, digest=digest or ""))
    return task, records


def went_on(says: Says = Says.APPROVES, comes: Comes = Comes.IN_TIME) -> Night:
    """A night whose event came."""
    shipped, first = promised("shipped", met=True)
    settled, second = promised("settled", met=True)
    claimed = {"id": "sent-N-1", "source": "peer:post", "kind": EVENT, "correlation": [], "payload": {}}
    task, decided = asked(says)
    records = [
        *deed(1, "reserve"),
        *shipped,
        *performed(2, AWAIT, {}, claimed),
        *settled,
        *deed(6, "invoice"),
        *decided,
    ]
    rows = [row(1, "reserve"), row(6, "invoice")]
    if task.approved:
        rows.append(row(8, "refund", **((task.decision or {})["amendment"] or ARGS)))
    return Night(order(comes, says), RUN, "succeeded", tuple(records), tuple(rows), (task,), matter("closed"),
                 (first, second), letter())  # fmt: skip


def late(comes: Comes = Comes.LATE) -> Night:
    """A night whose event did not come in time."""
    shipped, one = promised("shipped", met=False)
    records = [*deed(1, "reserve"), *shipped, *performed(2, AWAIT, {}, {"timed_out": True, "until": AT}),
               *deed(3, "notice")]  # fmt: skip
    came = letter("dead") if comes is Comes.LATE else None
    return Night(order(comes), RUN, "succeeded", tuple(records), (row(1, "reserve"), row(3, "notice")), (),
                 matter("escalated"), (one,), came)  # fmt: skip


NOTED = {f"{CASE} shipped": 1}
ENDINGS = {
    Ending.RELEASED: (went_on(), {}),
    Ending.AMENDED: (went_on(Says.AMENDS, Comes.EARLY), {}),
    Ending.REJECTED: (went_on(Says.REJECTS, Comes.TWICE), {}),
    Ending.UNANSWERED: (went_on(Says.NOBODY), {}),
    Ending.LATE: (late(), NOTED),
}


@pytest.mark.parametrize("how", ENDINGS)
def test_every_ending_is_read_from_its_books(how: Ending) -> None:
    night, noted = ENDINGS[how]
    assert ending(night, noted) == (how, [])
    assert ending(late(Comes.NEVER), NOTED) == (Ending.LATE, [])


def without(night: Night, *gone: type[Record]) -> Night:
    return replace(night, records=tuple(one for one in night.records if not isinstance(one, gone)))


def doubled(night: Night) -> Night:
    """Its event wait has its outcome twice."""
    key = f"{2:064x}"
    again = [one for one in night.records if isinstance(one, EffectDone) and one.effect_key == key]
    return replace(night, records=(*night.records, *again))


def told(night: Night, **other: Any) -> Night:
    """Its task has another row than its run was told."""
    return replace(night, tasks=(msgspec.structs.replace(night.tasks[0], **other),))


def owed(night: Night, **other: Any) -> Night:
    return replace(night, promises=(msgspec.structs.replace(night.promises[0], **other), *night.promises[1:]))


GOOD, LATE = went_on(), late()
BROKEN: dict[str, tuple[Night, Mapping[str, int]]] = {
    "order N-1 was admitted 2 times": (Night(order(), status="admitted 2 times"), {}),
    "did not conclude: its run run_a is suspended": (replace(GOOD, status="suspended"), {}),
    "its wait for the carrier has 2 ends": (doubled(GOOD), {}),
    "its wait for the carrier has 0 ends": (without(GOOD, EffectDone), {}),
    "the event sent-N-1 of order N-1 came in time and is consumed, and no wait was ended by it": (
        replace(LATE, order=order(), letter=letter()), NOTED),
    "came behind its deadline, and the order went on": (replace(GOOD, order=order(Comes.LATE)), {}),
    "the plane took no event of it": (replace(GOOD, letter=None), {}),
    "its event never came": (replace(GOOD, letter=None, order=order(Comes.NEVER)), {}),
    "was consumed by run_b": (replace(GOOD, letter=letter(run="run_b")), {}),
    "its obligation shipped is breached, not met": (owed(GOOD, state="breached"), {}),
    "its obligation shipped is met, not breached": (owed(LATE, state="met"), NOTED),
    "has 0 obligations shipped": (replace(GOOD, promises=GOOD.promises[1:]), {}),
    "do not agree on when shipped is due": (owed(GOOD, due_ms=DUE_MS + 1), {}),
    "the journal moved shipped 0 times": (without(GOOD, DeadlineTransition), {}),
    "the breach of shipped was noted 0 times": (LATE, {}),
    "the breach of shipped was noted 2 times": (LATE, {f"{CASE} shipped": 2}),
    "the breach of shipped was noted 1 times": (GOOD, NOTED),
    "shipped is breached, accounted for by nobody": (owed(LATE, acknowledged=None), NOTED),
    "its case case_a is open": (replace(GOOD, matter=matter("open")), {}),
    "its case case_a is closed": (replace(LATE, matter=matter("closed")), NOTED),
    "order N-1 has no case": (replace(GOOD, matter=None), {}),
    "has 0 ends (run_a)": (told(GOOD, key=b"x" * 32), {}),
    "a decision of no task was told": (replace(GOOD, tasks=()), {}),
    "was told otherwise than decided": (told(GOOD, decided_by=INES), {}),
    "it was not shipped, and a person was asked": (replace(LATE, tasks=GOOD.tasks), NOTED),
    "the provider has reservation reserve_1, and should have one invoice, refund, reservation": (
        replace(GOOD, deeds=GOOD.deeds[:1]), {}),
    "and should have one notice, reservation": (replace(LATE, deeds=(*LATE.deeds, row(6, "invoice"))), NOTED),
}  # fmt: skip


@pytest.mark.parametrize("said", BROKEN)
def test_what_fits_no_ending_is_a_fault_that_names_the_order(said: str) -> None:
    """Each alone, and the sentence names order and row."""
    _, faults = ending(*BROKEN[said])
    assert any(said in one for one in faults), faults
    assert all("N-1" in one for one in faults)


# --- the month --------------------------------------------------------------------------------------------------------


def month(*orders: Order) -> Month:
    return Month(orders, (Stray("stray-0", "N-900", 3.0),), 30)


def nightly(day: int, status: str = "succeeded", receipts: int = 1) -> Nightly:
    """A run of the schedule at half past two in Berlin, in January."""
    records: list[Record] = []
    for number in range(receipts):
        records += performed(number, "receipt.keyed", {"order": f"night-{day}-{number}"}, {"id": f"rc_{day}_{number}"})
    return Nightly(f"run_{day}", f"schedule:nightly:2027-01-{day:02d}T01:30:00.000Z", status, tuple(records))


SINCE_MS = 1_798_765_200_000  # 2027-01-01, one in the morning UTC


def books(night: Night, noted: Mapping[str, int], **other: Any) -> Books:
    letters = {"stray-0": letter("dead", producer_id="stray-0", event="evt_0")}
    if night.letter is not None:
        letters["sent-N-1"] = night.letter
    members: dict[str, Any] = {
        "tallies": (nightly(1), nightly(2)), "letters": letters, "effects": night.deeds, "records": night.records,
        "tasks": night.tasks, "breaches": noted,
    }  # fmt: skip
    return Books((night,), **members | other)


TRIED = Tally(2, {"run.woken": 2}, {"resumed": 1, "buffered": 1, "duplicate": 1}, {"already_answered": 1}, 9, 30.0)


def verdict(night: Night = GOOD, noted: Mapping[str, int] | None = None, **other: Any) -> tuple[str, tuple[str, ...]]:
    return judge(found(month(night.order), books(night, noted or {}, **other), since_ms=SINCE_MS), TRIED)


def test_a_month_in_which_everything_agrees_lacks_only_the_other_endings() -> None:
    """Nothing is broken; that only one ending came is said, and with all five it is a PASS."""
    said, reasons = verdict()
    assert said == INCONCLUSIVE and {one.partition(":")[0] for one in reasons} == {"no order ended"}
    every = found(month(GOOD.order), books(GOOD, {}), since_ms=SINCE_MS)
    whole = replace(every, endings={how.value: 1 for how in Ending})
    assert judge(whole, TRIED) == (PASS, ())


STRAY = letter("dead", producer_id="stray-0", event="evt_0")
OF_THE_MONTH: dict[str, dict[str, Any]] = {
    "the event stray-0 is buffered, and should be dead": {
        "letters": {"sent-N-1": letter(), "stray-0": msgspec.structs.replace(STRAY, state="buffered")}},
    "the event sent-N-1 is dead, and ended 1 waits": {"letters": {"sent-N-1": letter("dead"), "stray-0": STRAY}},
    "ended 2 waits": {"records": doubled(GOOD).records},
    "a wait was ended by an event sent-N-1 that nobody sent": {"letters": {"stray-0": STRAY}},
    "instant 2027-01-01T01:30:00.000Z was admitted 2 times": {"tallies": (nightly(1), nightly(1), nightly(2))},
    "instant 2027-01-02T01:30:00.000Z was never admitted": {"tallies": (nightly(1), nightly(3))},
    "has no instant 2027-01-02T02:30:00.000Z": {
        "tallies": (nightly(1), nightly(2), replace(nightly(2), key="schedule:nightly:2027-01-02T02:30:00.000Z"))},
    "is succeeded with 0 receipts": {"tallies": (nightly(1), nightly(2, receipts=0))},
    "is succeeded with 2 receipts": {"tallies": (nightly(1), nightly(2, receipts=2))},
    "is failed with 1 receipts": {"tallies": (nightly(1), nightly(2, status="failed"))},
    "the journal says that it landed, the provider has no such row": {"effects": GOOD.deeds[1:]},
    "the journal never announced it": {"effects": (*GOOD.deeds, row(99, "notice"))},
    "one approval, and 2 refunds": {"effects": (*GOOD.deeds, GOOD.deeds[-1]._replace(ref="refund_2"))},
}  # fmt: skip


@pytest.mark.parametrize("said", OF_THE_MONTH)
def test_what_is_wrong_with_the_month_fails_it(said: str) -> None:
    """Events, instants of the schedule, rows that only one book has: each alone is FAIL, in words."""
    how, reasons = verdict(GOOD, **OF_THE_MONTH[said])
    assert how == FAIL and any(said in one for one in reasons), reasons


def test_a_person_who_was_not_heeded_is_a_fault() -> None:
    """The order says that it is rejected, and the row that it was approved."""
    night = replace(GOOD, order=order(says=Says.REJECTS))
    assert any("order N-1" in one for one in verdict(night)[1]) and verdict(night)[0] == FAIL


TRIALS: dict[str, tuple[str, dict[str, Any]]] = {
    "1 of 2 kills": (INCONCLUSIVE, {"kills": {"run.woken": 1}}),
    "nothing was killed": (INCONCLUSIVE, {"kills": {}, "wanted": 0}),
    "no event was duplicate": (INCONCLUSIVE, {"answers": {"resumed": 1, "buffered": 1}}),
    "nothing was decided twice": (INCONCLUSIVE, {"refused": {}}),
    "the month did not end": (FAIL, {"ended": False}),
    "breaches were accounted for twice": (FAIL, {"answers": {**TRIED.answers, "acknowledged again": 1}}),
    "a decision was refused as excluded": (FAIL, {"refused": {"already_answered": 1, "excluded": 1}}),
}


@pytest.mark.parametrize("said", TRIALS)
def test_what_was_not_tried_or_went_wrong_outside_is_said(said: str) -> None:
    """INCONCLUSIVE for what did not come, FAIL for what should not have."""
    every = found(month(GOOD.order), books(GOOD, {}), since_ms=SINCE_MS)
    how, other = TRIALS[said]
    got, reasons = judge(replace(every, endings={one.value: 1 for one in Ending}), replace(TRIED, **other))
    assert got == how and any(said in one for one in reasons)
