"""The battery's checks of cases: correlation, state by comparison, status, and what happened over all runs.

Owns what a store must guarantee about a matter that many runs share. Refuses to check obligations beyond their hold on
a closing. Invariant: each check holds one guarantee, so that a store which breaks one is told by one name.
"""

from __future__ import annotations

from typing import Any

from agentplane.core import bounds
from agentplane.core.errors import CaseConflict, InvalidRequest, InvariantViolation, NotFound, ObligationOpen
from agentplane.core.records import CaseBound, Key, Record
from agentplane.journal import lists, obligations
from agentplane.journal.tx import Tx
from agentplane.testkit.battery import check
from agentplane.testkit.ledger import Ledger, Probe, StoreHandle, ask, run_id
from agentplane.work import matters
from agentplane.work.matters import Bound


def case_id(number: int) -> str:
    return f"case_{number:026d}"


def keys(**values: str) -> tuple[Key, ...]:
    return tuple(Key(namespace=name, value=value) for name, value in values.items())


def correlate(store: StoreHandle, number: int, **values: str) -> Bound:
    return ask(store, matters.correlate, keys(**values), "kind", case_id(number))


def close(store: StoreHandle, number: int) -> None:
    row = ask(store, matters.get, case_id(number))
    ask(store, matters.set_status, row.case, row.status, "closed")


class CaseLedger(Ledger):
    """A run whose records name a case."""

    def __init__(self, store: StoreHandle, number: int, case: str) -> None:
        super().__init__(store, number)
        self.case = case

    def record(self, kind: type[Record], *, seq: int | None = None, **members: Any) -> Record:
        return super().record(kind, seq=seq, **{"case": self.case, **members})


def bound(store: StoreHandle, run: int, case: int) -> Ledger:
    """An admitted run that is bound to a case."""
    one = CaseLedger(store, run, case_id(case))
    one.admit()
    one.append(one.record(CaseBound, case_kind="kind", opened=False, correlation=list(keys(order="1"))))
    return one


@check
def the_same_keys_name_one_case(probe: Probe, store: StoreHandle) -> None:
    probe.hold(correlate(store, 1, order="1") == Bound(case_id(1), True, "kind"), "a first case was not opened")
    again = ask(store, matters.correlate, keys(order="1"), "other", case_id(2))
    probe.hold(again == Bound(case_id(1), False, "kind"), "the same key did not name the open case, or its kind")
    probe.hold(correlate(store, 3, order="2").opened, "another value named a case that it is not of")
    probe.hold(correlate(store, 4, parcel="1").opened, "another namespace named a case that it is not of")
    probe.hold(ask(store, matters.get, case_id(1)).opened_ms == store.now_ms, "a case was not opened at its instant")


@check
def free_keys_become_the_cases_own(probe: Probe, store: StoreHandle) -> None:
    correlate(store, 1, order="1")
    correlate(store, 2, order="1", parcel="9")
    probe.hold(correlate(store, 3, parcel="9").case == case_id(1), "a key that joined does not name its case")
    known = ask(store, matters.get, case_id(1)).keys
    probe.hold(known == keys(order="1", parcel="9"), "a case is not shown with every key that it has")
    more = {f"k{number}": "1" for number in range(bounds.CASE_KEYS_MAX - 1)}
    probe.refused(InvalidRequest, lambda: correlate(store, 4, order="1", **more), "a case got more keys than one has")
    probe.hold(ask(store, matters.by_key, Key(namespace="k0", value="1")) is None, "a refused key was taken")


@check
def keys_of_two_open_cases_are_a_conflict(probe: Probe, store: StoreHandle) -> None:
    correlate(store, 1, order="1")
    correlate(store, 2, parcel="9")
    told = probe.refused(
        CaseConflict, lambda: correlate(store, 3, order="1", parcel="9", invoice="7"), "two cases were joined"
    )
    probe.hold(told.get("cases") == [case_id(1), case_id(2)], "the conflict does not name both cases")
    probe.hold(correlate(store, 4, invoice="7").opened, "a refused correlation took a key")


@check
def a_closed_case_is_found_by_nobody(probe: Probe, store: StoreHandle) -> None:
    correlate(store, 1, order="1")
    close(store, 1)
    row = ask(store, matters.get, case_id(1))
    probe.hold((row.status, row.closed_ms) == ("closed", store.now_ms), "a closing is not in its row")
    probe.hold(correlate(store, 2, order="1").opened, "a closed case was found by its key")


@check
def reopening_takes_back_only_free_keys(probe: Probe, store: StoreHandle) -> None:
    correlate(store, 1, order="1", parcel="9")
    close(store, 1)
    correlate(store, 2, order="1")
    would = ask(store, matters.would_set, case_id(1), "closed", "open")
    lost = ask(store, matters.set_status, case_id(1), "closed", "open")
    probe.hold(would == lost == keys(order="1"), "a key that another case has by now is not named as lost")
    probe.hold(correlate(store, 3, order="1").case == case_id(2), "reopening took a key from an open case")
    probe.hold(correlate(store, 4, parcel="9").case == case_id(1), "reopening did not take a free key back")
    row = ask(store, matters.get, case_id(1))
    probe.hold((row.keys, row.closed_ms) == (keys(parcel="9"), None), "a reopened case is shown as it was")
    close(store, 2)
    correlate(store, 5, order="1", parcel="9")
    probe.hold(correlate(store, 6, order="1").case == case_id(1), "a key that got free was not taken again")


@check
def a_stale_state_is_not_written(probe: Probe, store: StoreHandle) -> None:
    correlate(store, 1, order="1")
    put = [ask(store, matters.put_state, case_id(1), raw, at) for raw, at in ((b'{"a":1}', 0), (b'{"a":2}', 1))]
    stale = [ask(store, matters.put_state, case_id(1), b'{"a":3}', at) for at in (1, 0, 3)]
    probe.hold(put == [True, True] and stale == [False] * 3, "a write over another version was taken, or refused")
    probe.hold(ask(store, matters.state_of, case_id(1)) == ({"a": 2}, 2, "open"), "a state is not what was written")
    close(store, 1)
    probe.hold(not ask(store, matters.put_state, case_id(1), b"{}", 2), "a closed case was written")
    probe.hold(ask(store, matters.get, case_id(1)).version == 2, "a change of status moved the version of the state")


@check
def a_status_moves_from_the_one_that_was_read(probe: Probe, store: StoreHandle) -> None:
    correlate(store, 1, order="1")
    moved = ask(store, matters.set_status, case_id(1), "open", "awaiting_human")
    stale = ask(store, matters.set_status, case_id(1), "open", "awaiting_external")
    probe.hold(moved == () and stale is None, "a status moved from one that it was not at")
    probe.hold(ask(store, matters.escalate, case_id(1)), "a case that waits was not escalated")
    probe.hold(not ask(store, matters.escalate, case_id(1)), "a case was escalated twice")
    close(store, 1)
    probe.hold(not ask(store, matters.escalate, case_id(1)), "a closed case was escalated")
    probe.refused(
        CaseConflict, lambda: ask(store, matters.set_status, case_id(1), "closed", "awaiting_human"),
        "a closed case became something else than open",
    )  # fmt: skip


@check
def what_is_no_case_is_not_found(probe: Probe, store: StoreHandle) -> None:
    for act in (
        lambda: ask(store, matters.get, case_id(9)),
        lambda: ask(store, matters.put_state, case_id(9), b"{}", 0),
        lambda: ask(store, matters.set_status, case_id(9), "open", "closed"),
    ):
        probe.refused(NotFound, act, "a write or a read of a case that is not there was answered")


@check
def an_open_obligation_keeps_its_case_open(probe: Probe, store: StoreHandle) -> None:
    correlate(store, 1, order="1")
    for name in ("reply", "pay"):
        ask(store, obligations.register, case_id(1), name, 90, 50, run_id(1), "00")
    ask(store, obligations.warn, case_id(1), "pay", 1)
    for before, name in (("pending", "reply"), ("warned", "pay")):
        probe.refused(ObligationOpen, lambda: close(store, 1), "a case was closed over an open obligation")
        ask(store, obligations.move, case_id(1), name, before, "met")
    close(store, 1)
    probe.hold(ask(store, matters.get, case_id(1)).status == "closed", "a case without open obligations did not close")


@check
def a_run_is_bound_to_one_case(probe: Probe, store: StoreHandle) -> None:
    one, other = bound(store, 1, 1), Ledger(store, 2).admit()
    probe.refused(
        InvariantViolation,
        lambda: one.append(one.record(CaseBound, case_kind="kind", opened=False, correlation=list(keys(a="1")))),
        "a run was bound twice",
    )
    found = [(row.run, row.case) for row in ask(store, matters.runs_of, case_id(1))]
    probe.hold(found == [(one.run, case_id(1))], "the runs of a case are not those that are bound to it")
    probe.hold(ask(store, lists.get_run, other.run).case is None, "a run without a case has one")


@check
def a_case_history_is_one_order_over_its_runs(probe: Probe, store: StoreHandle) -> None:
    one, two, foreign = bound(store, 1, 1), bound(store, 2, 1), bound(store, 3, 2)
    for key in range(1, 4):
        store.now_ms += 1
        for ledger in (two, one, foreign):
            ledger.append(ledger.started(key, mutates=False))
    store.now_ms -= 2
    one.append(one.done(1))
    paged: list[tuple[str, str, int]] = []
    after: tuple[int, str, int] | None = None
    while (page := ask(store, matters.history, case_id(1), 3, after)) and len(paged) < 20:
        paged += [(item.record.at, item.record.run, item.record.seq) for item in page]
        last = page[-1].record
        after = (ask(store, at_of, last.run, last.seq), last.run, last.seq)
    probe.hold(len(paged) == 11, "a case's history misses a record, repeats one, or has another case's")
    probe.hold(paged == sorted(paged), "a case's history is not in the order of (at, run, seq)")


def at_of(tx: Tx, run: str, seq: int) -> int:
    row = tx.one("SELECT at_ms FROM record WHERE tenant = ? AND run = ? AND seq = ?", tx.tenant, run, seq)
    return -1 if row is None else int(str(row[0]))


@check
def cases_are_paged_without_a_gap(probe: Probe, store: StoreHandle) -> None:
    for number in range(1, 6):
        correlate(store, number, order=str(number))
        store.now_ms += number % 2
    close(store, 3)
    for status, expected in ((None, [5, 4, 3, 2, 1]), ("open", [5, 4, 2, 1]), ("closed", [3])):
        paged: list[str] = []
        after: tuple[int, str] | None = None
        while (page := ask(store, matters.by_status, status, 2, after)) and len(paged) < 9:
            paged += [row.case for row in page]
            after = page[-1].cursor
        probe.hold(paged == [case_id(number) for number in expected], f"cases ({status}) are repeated or skipped")
    probe.hold(ask(store, matters.census) == {"open": 4, "closed": 1}, "the census miscounts")
