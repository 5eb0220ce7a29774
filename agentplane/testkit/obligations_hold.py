"""The battery's checks of what was promised for when: obligations, their account, and how far a schedule has come.

Owns what a store must guarantee about a date that was promised. Refuses to reckon dates. Invariant: each check holds
one guarantee, so that a store which breaks one is told by one name.
"""

from __future__ import annotations

from agentplane.core.errors import CaseConflict, NotFound, NotPending
from agentplane.core.instants import to_text
from agentplane.core.records import Actor, Basis, DeadlineRegistered, DeadlineTransition, Record
from agentplane.journal import obligations
from agentplane.testkit.battery import check
from agentplane.testkit.cases_hold import bound, case_id, close, correlate
from agentplane.testkit.ledger import Ledger, Probe, StoreHandle, ask, run_id
from agentplane.work import schedules

ANNA = Actor(actor="anna", basis=Basis.AUTHENTICATED, uid=7)
BEN = Actor(actor="ben", basis=Basis.CONNECTED)


def promised(store: StoreHandle, subject: str, name: str, due_ms: int, warn_ms: int = 0) -> int:
    return ask(store, obligations.register, subject, name, due_ms, warn_ms or due_ms - 10, run_id(1), "00" * 32)


def registered(one: Ledger, name: str, due_ms: int) -> Record:
    return one.record(
        DeadlineRegistered, name=name, resolved_at=to_text(due_ms), warn_at=to_text(due_ms - 10),
        calendar_digest="00" * 32,
    )  # fmt: skip


def states(store: StoreHandle, subject: str) -> list[str]:
    return [row.state for row in ask(store, obligations.of_subject, subject)]


@check
def a_record_takes_on_the_obligation_of_its_case_or_run(probe: Probe, store: StoreHandle) -> None:
    one, alone = bound(store, 1, 1), Ledger(store, 2).admit()
    one.append(registered(one, "reply", 90))
    alone.append(registered(alone, "reply", 80))
    (of_case,) = ask(store, obligations.of_subject, case_id(1))
    (of_run,) = ask(store, obligations.of_subject, alone.run)
    probe.hold((of_case.run, of_case.due_ms, of_case.warn_ms) == (one.run, 90, 80), "an obligation is not its record's")
    probe.hold((of_run.subject, of_run.state) == (alone.run, "pending"), "a run without a case has no obligation")
    alone.append(alone.record(DeadlineTransition, name="reply", before="pending", to="met"))
    probe.hold(states(store, alone.run) == ["met"], "a recorded move did not move the obligation")
    probe.hold(states(store, case_id(1)) == ["pending"], "a move moved another subject's obligation")


@check
def an_obligation_of_a_name_is_open_once(probe: Probe, store: StoreHandle) -> None:
    one = Ledger(store).admit()
    one.append(registered(one, "reply", 90))
    probe.refused(CaseConflict, lambda: one.append(registered(one, "reply", 95)), "a name was promised twice at once")
    ask(store, obligations.warn, one.run, "reply", 1)
    probe.refused(CaseConflict, lambda: one.append(registered(one, "reply", 95)), "one that was warned of is not open")
    one.append(one.record(DeadlineTransition, name="reply", before="warned", to="met"))
    one.append(registered(one, "reply", 95))
    found = [(row.nth, row.state) for row in ask(store, obligations.of_subject, one.run)]
    probe.hold(found == [(1, "met"), (2, "pending")], "the next of a name is not its second, or took the first's place")
    open_one = ask(store, obligations.open_one, one.run, "reply")
    probe.hold(open_one is not None and open_one.nth == 2, "the open one of a name is not its last")
    probe.hold(ask(store, obligations.open_of, one.run) == 1, "what is open is miscounted")


@check
def a_move_is_from_the_state_that_stands(probe: Probe, store: StoreHandle) -> None:
    for name in ("a", "b"):
        promised(store, case_id(1), name, 90)
    ask(store, obligations.warn, case_id(1), "a", 1)
    for name, before in (("a", "pending"), ("b", "warned"), ("c", "pending")):
        probe.refused(
            CaseConflict, lambda name=name, before=before: ask(
                store, obligations.move, case_id(1), name, before, "met"
            ), "an obligation moved from a state that it was not in",
        )  # fmt: skip
    ask(store, obligations.move, case_id(1), "a", "warned", "cancelled")
    probe.refused(
        CaseConflict, lambda: ask(store, obligations.move, case_id(1), "a", "cancelled", "met"), "one that ended moved"
    )
    probe.hold(states(store, case_id(1)) == ["cancelled", "pending"], "a refused move changed a row")


@check
def a_closed_case_takes_on_no_obligation(probe: Probe, store: StoreHandle) -> None:
    correlate(store, 1, order="1")
    close(store, 1)
    probe.refused(CaseConflict, lambda: promised(store, case_id(1), "reply", 90), "a closed case promised something")
    probe.hold(states(store, case_id(1)) == [], "a refused promise was kept")


@check
def what_is_due_comes_by_its_next_act(probe: Probe, store: StoreHandle) -> None:
    for name, due, warn in (("a", 90, 20), ("b", 40, 30), ("c", 50, 50), ("d", 200, 150)):
        promised(store, case_id(1), name, due, warn)
    ask(store, obligations.warn, case_id(1), "a", 1)
    paged: list[str] = []
    after: tuple[int, str, str, int] | None = None
    while (page := ask(store, obligations.due, 100, 1, after)) and len(paged) < 9:
        paged += [row.name for row in page]
        last = page[-1]
        after = (last.next_ms or 0, last.subject, last.name, last.nth)
    probe.hold(paged == ["b", "c", "a"], "what was warned of stands before what is nearer, or is left out")
    probe.hold([row.name for row in ask(store, obligations.due, 30, 9)] == ["b"], "something comes before its instant")
    probe.hold(ask(store, obligations.next_due_ms) == 30, "the next instant is another")
    for name in ("b", "c"):
        ask(store, obligations.move, case_id(1), name, "pending", "met")
    probe.hold([row.name for row in ask(store, obligations.due, 100, 9)] == ["a"], "what was met is due still")


@check
def a_warning_and_a_breach_are_of_the_state_that_was_read(probe: Probe, store: StoreHandle) -> None:
    for name in ("a", "b"):
        promised(store, case_id(1), name, 90)
    probe.hold(ask(store, obligations.warn, case_id(1), "a", 1), "a pending obligation was not warned of")
    probe.hold(not ask(store, obligations.warn, case_id(1), "a", 1), "it was warned of twice")
    probe.hold(not ask(store, obligations.breach, case_id(1), "a", 1, "pending"), "a breach of what moved was applied")
    probe.hold(ask(store, obligations.breach, case_id(1), "a", 1, "warned"), "a breach was not applied")
    probe.hold(not ask(store, obligations.breach, case_id(1), "a", 1, "breached"), "a breach was applied twice")
    ask(store, obligations.move, case_id(1), "b", "pending", "met")
    probe.hold(not ask(store, obligations.breach, case_id(1), "b", 1, "met"), "what was met was breached")
    probe.hold(states(store, case_id(1)) == ["breached", "met"], "a state is not the last one that was set")


@check
def a_breach_is_accounted_for_once(probe: Probe, store: StoreHandle) -> None:
    for name in ("a", "b"):
        promised(store, case_id(1), name, 90)
        ask(store, obligations.breach, case_id(1), name, 1, "pending")
    probe.hold(ask(store, obligations.owed, 9) == [], "a breach with its account is owed one")
    store.unit(lambda tx: tx.run("UPDATE obligation SET noted = 0 WHERE tenant = ? AND name = 'b'", tx.tenant))
    probe.hold(
        [row.name for row in ask(store, obligations.owed, 9)] == ["b"], "a breach without its account is not owed"
    )
    told = [ask(store, obligations.mark_noted, case_id(1), "b", 1) for _ in range(2)]
    probe.hold(told == [True, False] and ask(store, obligations.owed, 9) == [], "one account was given twice")


@check
def a_breach_is_acknowledged_once_and_stays_one(probe: Probe, store: StoreHandle) -> None:
    correlate(store, 1, order="1")
    for name in ("late", "met"):
        promised(store, case_id(1), name, 90)
    ask(store, obligations.move, case_id(1), "met", "pending", "met")
    acknowledge = obligations.acknowledge
    probe.refused(
        NotPending, lambda: ask(store, acknowledge, case_id(1), "late", ANNA, "n"), "no breach was accounted for"
    )
    ask(store, obligations.breach, case_id(1), "late", 1, "pending")
    close(store, 1)
    probe.hold(ask(store, obligations.breached, 9) != [], "a breach did not outlive the closing of its case")
    told = [ask(store, acknowledge, case_id(1), "late", who, "a note") for who in (ANNA, BEN)]
    probe.hold(told == [(True, "anna"), (False, "anna")], "the second account displaced the first")
    row = ask(store, obligations.latest, case_id(1), "late")
    probe.hold(row is not None and row.state == "breached", "an account made a breach something else")
    probe.hold(
        row is not None and (row.acknowledged, row.note) == (ANNA, "a note"), "an account is not as it was given"
    )
    probe.hold(ask(store, obligations.breached, 9) == [], "a breach that was accounted for is listed still")
    probe.refused(
        NotFound, lambda: ask(store, acknowledge, case_id(1), "none", ANNA, "n"), "no obligation was answered"
    )
    probe.refused(
        NotPending, lambda: ask(store, acknowledge, case_id(1), "met", ANNA, "n"), "a met one was accounted for"
    )


@check
def breaches_are_listed_longest_overdue_first(probe: Probe, store: StoreHandle) -> None:
    for number, due in ((1, 30), (2, 20), (3, 30), (4, 10)):
        promised(store, case_id(number), "late", due)
        ask(store, obligations.breach, case_id(number), "late", 1, "pending")
    paged: list[str] = []
    after: tuple[int, str, str, int] | None = None
    while (page := ask(store, obligations.breached, 1, after)) and len(paged) < 9:
        paged += [row.subject for row in page]
        after = page[-1].cursor
    probe.hold(paged == [case_id(number) for number in (4, 2, 1, 3)], "breaches are repeated, skipped or out of order")


@check
def a_schedule_never_goes_back(probe: Probe, store: StoreHandle) -> None:
    probe.hold(ask(store, schedules.last, "nightly") is None, "a schedule that was never seen has an instant")
    for ms in (50, 70, 60):
        ask(store, schedules.advance, "nightly", ms)
    ask(store, schedules.advance, "weekly", 5)
    probe.hold(ask(store, schedules.last, "nightly") == 70, "a schedule went back, or stood still")
    probe.hold(ask(store, schedules.forget, "nightly"), "a schedule was not forgotten")
    probe.hold(not ask(store, schedules.forget, "nightly"), "a schedule was forgotten twice")
    probe.hold(ask(store, schedules.last, "weekly") == 5, "another schedule was forgotten")
