"""The battery's checks of waiting and undoing: timers, suspensions, groups, and what of landed work still stands.

Owns what a store must guarantee about work that waits or is taken back. Refuses to check plain appends. Invariant: each
check holds one guarantee, so that a store which breaks one is told by one name.
"""

from __future__ import annotations

from typing import Any

from agentplane.core.errors import InvariantViolation, LandedWork, OpenEffects
from agentplane.core.records import (
    EffectStarted,
    GroupOpened,
    GroupSettled,
    Record,
    RunSuspended,
    StepCompensated,
    StepKept,
)
from agentplane.journal import lists, timers
from agentplane.journal.timers import Timer
from agentplane.testkit.battery import check
from agentplane.testkit.ledger import Ledger, Probe, StoreHandle, ask, key_of, run_id

SHAPE = ("descriptor", "terms", "retry", "idempotency_key")


def member(one: Ledger, key: int, **members: Any) -> Record:
    """An announcement whose place is said; it mutates."""
    kept: dict[str, Any] = {name: getattr(one.started(key), name) for name in SHAPE}
    place = {"step": 0, "effect_key": key_of(key), "mutates": True, "attempt": 1, "ordinal": key}
    return one.record(EffectStarted, **{**place, **kept, **members})


def landed(one: Ledger) -> int:
    return ask(one.store, lists.get_run, one.run).landed


@check
def what_is_due_is_found_in_one_total_order(probe: Probe, store: StoreHandle) -> None:
    for run, key, due in ((2, 1, 50), (1, 2, 50), (1, 1, 50), (3, 1, 40), (4, 1, 51)):
        ask(store, timers.arm, run_id(run), bytes([key]) * 32, due)
    paged: list[Timer] = []
    after: tuple[int, str, bytes] | None = None
    while (page := ask(store, timers.due, 50, 2, after)) and len(paged) < 20:
        paged += page
        after = (page[-1].due_ms, page[-1].run, page[-1].key)
    found = [(one.run, one.key[0]) for one in paged]
    probe.hold(found == [(run_id(3), 1), (run_id(1), 1), (run_id(1), 2), (run_id(2), 1)], "timers are out of order")


@check
def a_run_that_ended_has_no_timer(probe: Probe, store: StoreHandle) -> None:
    one, other = Ledger(store).admit(), Ledger(store, 2).admit()
    for run in (one.run, other.run):
        ask(store, timers.arm, run, bytes(32), 50)
    probe.refused(InvariantViolation, lambda: other.append(other.concluded("succeeded")), "a run succeeded over one")
    one.append(one.concluded("failed"))
    left = [timer.run for timer in ask(store, timers.due, 51, 10)]
    probe.hold(left == [other.run], "a failed run kept its timer, or another run lost its own")


@check
def a_suspended_run_says_why_and_until_when(probe: Probe, store: StoreHandle) -> None:
    one = Ledger(store).admit()
    ask(store, timers.arm, one.run, bytes(32), 70)
    one.append(one.started(1, mutates=False), one.record(RunSuspended, seq=3, reason="it waits"))
    found = [(row.run, row.reason, row.until_ms) for row in ask(store, lists.waiting)]
    probe.hold(found == [(one.run, "it waits", 70)], "a suspended run is not listed with its reason and its instant")


@check
def an_aborted_group_stands_no_more(probe: Probe, store: StoreHandle) -> None:
    one = Ledger(store).admit()
    for index in (0, 1):
        one.append(one.record(GroupOpened, step=0, group="g", index=index, resources=["r"]))
    for key, group in ((1, 0), (2, 1), (3, None)):
        one.append(member(one, key, group=group))
        one.append(one.done(key))
    one.append(member(one, 4, group=0))
    aborted: dict[str, Any] = {"step": 0, "group": "g", "index": 0, "outcome": "aborted"}
    probe.refused(
        OpenEffects, lambda: one.append(one.record(GroupSettled, **aborted)), "aborted over a call in the air"
    )
    one.append(one.done(4))
    one.append(one.record(GroupSettled, **aborted))
    probe.hold(landed(one) == 2, "an aborted group's work still counts, or work beside it does not")


@check
def work_taken_back_or_kept_by_right_stands_no_more(probe: Probe, store: StoreHandle) -> None:
    one = Ledger(store).admit()
    for key, step in ((1, 0), (2, 1)):
        one.append(member(one, key, step=step))
        one.append(one.done(key))
    one.append(member(one, 3, phase="compensating"))
    probe.refused(
        OpenEffects,
        lambda: one.append(one.record(StepCompensated, step=0, phase="compensating", compensation="c")),
        "a step was taken back over a call in the air",
    )
    one.append(one.done(3))
    probe.hold(landed(one) == 2, "what a compensation does counts as landed work")
    one.append(one.record(StepCompensated, step=0, phase="compensating", compensation="c"))
    probe.hold(landed(one) == 1, "work that was taken back still counts, or another step's does not")
    probe.refused(LandedWork, lambda: one.append(one.concluded("cancelled")), "it was cancelled over landed work (P15)")
    one.append(one.record(StepKept, step=1, phase="compensating", why="pivot"))
    probe.hold(landed(one) == 0, "work that stands by right still counts")
