"""What became of each order of the month, from the provider's book, the journal and the rows of what outlives a run.

Owns the rules of an order's ending and the verdict, as pure functions over rows. Refuses the plane's own count, and to
excuse one row by another. Invariant: an event ended one wait or is a dead letter, a task has one decision, a promise is
met or is one breach, an instant of the schedule is one run; else it is a fault in words that names the row.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from agentplane.core.history import AWAIT, TASK
from agentplane.core.instants import from_text, to_text
from agentplane.core.records import DeadlineRegistered, DeadlineTransition, EffectDone, EffectStarted, Record
from agentplane.lab.approvals import Approvals, reconcile
from agentplane.lab.books import FAIL, INCONCLUSIVE, PASS, Audit, Judgement, audit, series_of
from agentplane.lab.overnight.evidence import Books, Night
from agentplane.lab.overnight.evidence import Tally as Nightly
from agentplane.lab.overnight.fixture import CRON, NIGHTLY, TZ, Comes, Month, Says
from agentplane.work.cron import Cron

SHIPPED: Final = "shipped"
SETTLED: Final = "settled"
NOUN: Final = {
    "/reservations": "reservation", "/invoices": "invoice", "/refunds": "refund", "/notices": "notice",
    "/receipts": "receipt",
}  # fmt: skip
INSTANTS_MAX: Final = 1_000
ANSWERED: Final = "already_answered"
"""What whoever decides a task again is told."""


class Ending(StrEnum):
    """The classes of the report."""

    RELEASED = "deposit released"
    AMENDED = "released as amended"
    REJECTED = "rejected by a person"
    UNANSWERED = "nobody answered"
    LATE = "not shipped in time"


@dataclass(frozen=True)
class Tally:
    """What was tried: kills by place, what the plane answered to what came, refusals by code, steps of the clock."""

    wanted: int
    kills: Mapping[str, int] = field(default_factory=dict)
    answers: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, int] = field(default_factory=dict)
    steps: int = 0
    days: float = 0.0
    ended: bool = True

    @property
    def total(self) -> int:
        return sum(self.kills.values())


@dataclass(frozen=True)
class Found:
    """The endings, the counts of what outlived a run, and everything that is wrong, in words."""

    endings: Mapping[str, int]
    orders: int
    faults: tuple[str, ...]
    books: Audit
    approvals: Approvals
    claimed: int = 0
    dead: int = 0
    breached: int = 0
    met: int = 0
    nights: int = 0
    handovers: int = 0


# --- one order --------------------------------------------------------------------------------------------------------


def ending(night: Night, breaches: Mapping[str, int]) -> tuple[Ending | None, list[str]]:
    """How the order ended, and each thing that is wrong with it, in words; None where it ended in no way at all."""
    name, run = night.order.order, night.run
    if run is None:
        return None, [f"order {name} was {night.status}"]
    faults = _decisions(night)
    outcomes = ended_waits(night.records, AWAIT)
    if len(outcomes) != 1:
        faults.append(f"order {name}: its wait for the carrier has {len(outcomes)} ends ({run})")
    late = any(isinstance(one.output, dict) and one.output.get("timed_out") for one in outcomes)
    faults += _event_of(night, late=late)
    faults += _promise(night, SHIPPED, late, breaches)
    if night.status != "succeeded":
        return None, [*faults, f"order {name} did not conclude: its run {run} is {night.status}"]
    if late:
        faults += _deeds(night, {"/reservations", "/notices"}) + _case(night, "escalated")
        faults += [f"order {name}: it was not shipped, and a person was asked ({run})"] if night.tasks else []
        return Ending.LATE, faults
    faults += _promise(night, SETTLED, False, breaches) + _case(night, "closed")
    how = _how(night)
    paid = how in (Ending.RELEASED, Ending.AMENDED)
    faults += _deeds(night, {"/reservations", "/invoices"} | ({"/refunds"} if paid else set()))
    return how, faults


def ended_waits(records: Iterable[Record], kind: str) -> list[EffectDone]:
    """The outcomes of the waits of a kind."""
    asked = {one.effect_key for one in records if isinstance(one, EffectStarted) and one.descriptor.kind == kind}
    return [one for one in records if isinstance(one, EffectDone) and one.effect_key in asked]


def _event_of(night: Night, *, late: bool) -> list[str]:
    """Its event, as the order was meant to meet it, as the journal has it, and as the buffer has it."""
    order, letter = night.order, night.letter
    if letter is None:
        unsent = [] if order.comes is Comes.NEVER else [f"order {order.order}: the plane took no event of it"]
        return unsent + ([] if late else [f"order {order.order}: it went on, and its event never came ({night.run})"])
    at = f"the event {letter.producer_id} of order {order.order}"
    if order.misses and not late:
        return [f"{at} came behind its deadline, and the order went on ({night.run})"]
    if not order.misses and late:
        return [f"{at} came in time and is {letter.state}, and no wait was ended by it ({night.run})"]
    if letter.state == "consumed" and letter.run != night.run:
        return [f"{at} was consumed by {letter.run}, and the order's run is {night.run}"]
    return []


def _promise(night: Night, name: str, breached: bool, breaches: Mapping[str, int]) -> list[str]:
    """One obligation of the order: registered once, met once or breached once, and accounted for when it was."""
    order = night.order.order
    rows = [one for one in night.promises if one.name == name]
    if len(rows) != 1:
        return [f"order {order} has {len(rows)} obligations {name} ({night.run})"]
    row, wanted = rows[0], "breached" if breached else "met"
    faults = [] if row.state == wanted else [f"order {order}: its obligation {name} is {row.state}, not {wanted}"]
    registered = [one for one in night.records if isinstance(one, DeadlineRegistered) and one.name == name]
    moved = [one for one in night.records if isinstance(one, DeadlineTransition) and one.name == name]
    if len(registered) != 1 or from_text(registered[0].resolved_at) != row.due_ms:
        faults.append(f"order {order}: the journal and the row do not agree on when {name} is due ({night.run})")
    if [one.to for one in moved] != ([] if breached else ["met"]):
        faults.append(f"order {order}: the journal moved {name} {len(moved)} times ({night.run})")
    noted = breaches.get(f"{row.subject} {name}", 0)
    if noted != int(breached):
        faults.append(f"order {order}: the breach of {name} was noted {noted} times ({row.subject})")
    if (row.acknowledged is not None) != breached:
        faults.append(f"order {order}: {name} is {row.state}, accounted for by {row.acknowledged_by or 'nobody'}")
    return faults


def _case(night: Night, wanted: str) -> list[str]:
    matter = night.matter
    if matter is None:
        return [f"order {night.order.order} has no case ({night.run})"]
    order = night.order.order
    faults = [] if matter.status == wanted else [f"order {order}: its case {matter.case} is {matter.status}"]
    if [(key.namespace, key.value) for key in matter.keys] != [("order", order)]:
        faults.append(f"order {order}: its case {matter.case} is known by other keys")
    return faults


def _decisions(night: Night) -> list[str]:
    """Every task of the order: told to its run once, as it was decided, by whom."""
    faults = []
    order = night.order.order
    told: dict[str, list[EffectDone]] = defaultdict(list)
    for one in ended_waits(night.records, TASK):
        told[one.effect_key or ""].append(one)
    for task in night.tasks:
        ends = told.pop(task.key.hex(), [])
        if len(ends) != 1:
            faults.append(f"order {order}: the task {task.task[:12]} has {len(ends)} ends ({night.run})")
        for one in ends:
            if one.output != task.decision or one.by != task.decided_by:
                faults.append(f"order {order}: the task {task.task[:12]} was told otherwise than decided ({night.run})")
    if told:
        faults.append(f"order {order}: a decision of no task was told ({night.run})")
    return faults


def _how(night: Night) -> Ending | None:
    """What the person said, by the row; None where that is not what they said."""
    if len(night.tasks) != 1:
        return None
    decision = night.tasks[0].decision or {}
    outcome, amended = decision.get("outcome"), decision.get("amendment") is not None
    return {
        (Says.APPROVES, "approved", False): Ending.RELEASED,
        (Says.AMENDS, "approved", True): Ending.AMENDED,
        (Says.REJECTS, "rejected", False): Ending.REJECTED,
        (Says.NOBODY, "expired", False): Ending.UNANSWERED,
    }.get((night.order.says, str(outcome), amended))


def _deeds(night: Night, wanted: set[str]) -> list[str]:
    stands = Counter(row.path for row in night.deeds)
    if stands == Counter(wanted):
        return []
    said = ", ".join(f"{NOUN.get(row.path, row.path)} {row.ref}" for row in night.deeds) or "nothing"
    should = ", ".join(NOUN[path] for path in sorted(wanted))
    return [f"order {night.order.order}: the provider has {said}, and should have one {should} ({night.run})"]


# --- the month --------------------------------------------------------------------------------------------------------


def found(month: Month, books: Books, *, since_ms: int) -> Found:
    """All of it. ``since_ms``: when the month began."""
    counted: Counter[str] = Counter()
    faults: list[str] = []
    for night in books.nights:
        how, wrong = ending(night, books.breaches)
        faults += wrong
        if how is None and not wrong:
            name, says = night.order.order, night.order.says
            faults.append(f"order {name}: a person {says}, and it ended otherwise ({night.run})")
        if how is not None:
            counted[how.value] += 1
    faults += _letters(month, books) + _schedule(books.tallies, since_ms)
    needed = [one.order.order for one in books.nights if one.tasks]
    approvals = reconcile(books.tasks, books.records, books.effects, needed)
    promises = Counter(one.state for night in books.nights for one in night.promises)
    letters = Counter(letter.state for letter in books.letters.values())
    return Found(
        counted, len(books.nights), tuple(faults + list(approvals.faults)),
        audit(books.effects, series_of(books.records)), approvals, letters["consumed"], letters["dead"],
        promises["breached"], promises["met"], len(books.tallies), books.handovers,
    )  # fmt: skip


def _letters(month: Month, books: Books) -> list[str]:
    """Every event that the plane took: one outcome where it is consumed, and none where it is dead."""
    ends = Counter(
        str(one.output["id"])
        for one in ended_waits(books.records, AWAIT)
        if isinstance(one.output, dict) and "id" in one.output
    )
    dead = {order.event_id for order in month.orders if order.comes is Comes.LATE}
    dead |= {stray.event_id for stray in month.strays}
    faults = []
    for name, letter in sorted(books.letters.items()):
        wanted = "dead" if name in dead else "consumed"
        if letter.state != wanted:
            faults.append(f"the event {name} is {letter.state}, and should be {wanted} ({letter.event})")
        if ends[name] != int(letter.state == "consumed"):
            faults.append(f"the event {name} is {letter.state}, and ended {ends[name]} waits ({letter.event})")
    unknown = sorted(set(ends) - set(books.letters))
    faults += [f"a wait was ended by an event {name} that nobody sent" for name in unknown]
    return faults


def _schedule(tallies: Sequence[Nightly], since_ms: int) -> list[str]:
    """Each instant since the month began one run, with one receipt."""
    prefix = f"schedule:{NIGHTLY}:"
    instants = Counter(one.key.removeprefix(prefix) for one in tallies)
    faults = [f"the schedule's instant {at} was admitted {times} times" for at, times in instants.items() if times > 1]
    if instants:
        last_ms = max(from_text(at) for at in instants)
        wanted = {to_text(ms) for ms in Cron(CRON, TZ).due_between(since_ms, last_ms, INSTANTS_MAX)}
        faults += [f"the schedule's instant {at} was never admitted" for at in sorted(wanted - set(instants))]
        faults += [f"the schedule has no instant {at}, and it was admitted" for at in sorted(set(instants) - wanted)]
    for one in tallies:
        receipts = [each for each in series_of(one.records) if each.state == "landed"]
        if one.status != "succeeded" or len(receipts) != 1:
            faults.append(f"the night {one.key} is {one.status} with {len(receipts)} receipts ({one.run})")
    return faults


def judge(found: Found, tally: Tally) -> Judgement:
    """FAIL for anything broken; INCONCLUSIVE where the kills, or an ending that the claim is about, did not come."""
    broken = list(found.faults)
    broken += [
        f"order {each.order} has {len(each.refs)} {NOUN.get(each.path, each.path)}s: {', '.join(each.refs)}"
        for each in found.books.duplicates
    ]
    books = found.books
    for each in (*books.only_provider, *books.only_journal, *books.mismatches, *books.undecided):
        where = " ".join(part for part in (each.ref, each.run) if part)
        broken.append(f"order {each.order} {each.path}: {each.what} ({where})")
    if tally.answers.get("acknowledged again"):
        broken.append(f"{tally.answers['acknowledged again']} breaches were accounted for twice")
    broken += [f"a decision was refused as {code}" for code in sorted(tally.refused) if code != ANSWERED]
    if not tally.ended:
        broken.append(f"the month did not end: it stands at day {tally.days}")
    if broken:
        return Judgement(FAIL, tuple(dict.fromkeys(broken)))
    unproven = [] if tally.total >= tally.wanted else [f"{tally.total} of {tally.wanted} kills found an appliance"]
    unproven += ["nothing was killed"] if not tally.total else []
    unproven += [f"no order ended: {how.value}" for how in Ending if not found.endings.get(how)]
    unproven += [f"no event was {how}" for how in ("resumed", "buffered", "duplicate") if not tally.answers.get(how)]
    unproven += [] if found.dead and found.nights else ["no event was left over, or no night came"]
    unproven += [] if tally.refused.get(ANSWERED) else ["nothing was decided twice"]
    return Judgement(INCONCLUSIVE if unproven else PASS, tuple(unproven))
