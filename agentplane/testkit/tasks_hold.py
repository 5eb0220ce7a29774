"""The battery's checks of tasks: who holds one, who decided it, whom it is told to, and what its approval is used for.

Owns what a store must guarantee about work that a person does. Refuses to judge who may: ``core/tasks`` does, and the
checks hold that its verdict is the transaction's. Invariant: each check holds one guarantee, so that a store which
breaks one is told by one name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from agentplane.core.errors import (
    AgentplaneError,
    AlreadyAnswered,
    AlreadyClaimed,
    AmendmentRefused,
    ApprovalRefused,
    BasisTooWeak,
    Excluded,
    NotFound,
    NotHeld,
    NotPending,
    StaleVersion,
    WrongRole,
)
from agentplane.core.history import TASK
from agentplane.core.records import Actor, Approved, Basis, EffectDone, RunSuspended
from agentplane.core.tasks import Reviewer, action_digest, task_id
from agentplane.testkit.battery import check
from agentplane.testkit.events_hold import announced, wait_key
from agentplane.testkit.ledger import Ledger, Probe, StoreHandle, ask, key_of, run_id
from agentplane.testkit.undo_hold import member
from agentplane.work import tasks
from agentplane.work.tasks import Opening, TaskRow

ARGS: dict[str, object] = {"order": "1", "amount": 5}
SCHEMA = {"type": "object", "properties": {"amount": {"type": "integer"}}}
DIGEST = action_digest("pay.refund", ARGS)
ACTION = {"kind": "pay.refund", "args": ARGS, "digest": DIGEST, "schema": SCHEMA}
PROPOSAL: dict[str, object] = {
    "summary": "refund?", "action": ACTION, "confidence": None, "cost": None, "evidence": None,
    "audience": ["reviewer"], "excluded": [], "least_basis": "connected", "four_eyes": True, "priority": "normal",
    "due": None, "on_expiry": "deny", "escalate_to": None,
}  # fmt: skip
PEOPLE: dict[str, list[str]] = {}


def task_of(number: int) -> str:
    return f"{number:064x}"


def opened(
    store: StoreHandle, run: str = run_id(1), key: bytes = wait_key(1), number: int | None = None, *,
    due_ms: int | None = None, excluded: tuple[str, ...] = (), case: str | None = None, **proposal: object,
) -> str:  # fmt: skip
    """A task on the worklist; its id."""
    task = task_of(number) if number is not None else task_id(run, key.hex())
    row = Opening(
        task=task, run=run, key=key, case=case, kind="desk.refund", due_ms=due_ms, excluded=excluded,
        proposal={**PROPOSAL, **proposal},
    )  # fmt: skip
    ask(store, tasks.open, row)
    return task


def actor(name: str, basis: Basis = Basis.CONNECTED) -> Actor:
    return Actor(actor=name, basis=basis, uid=5)


def reviewer(name: str, *roles: str, basis: Basis = Basis.CONNECTED) -> Reviewer:
    return Reviewer(actor=name, basis=basis, roles=roles or ("reviewer",))


def claim(store: StoreHandle, task: str, name: str, *roles: str) -> TaskRow:
    return ask(store, tasks.claim, task, reviewer(name, *roles), actor(name), PEOPLE)


def decide(store: StoreHandle, task: str, name: str = "ben", said: str = "approve", **more: Any) -> TaskRow:
    return ask(store, tasks.decide, task, reviewer(name), actor(name), PEOPLE, said=said, reason="looked", **more)


def asking(store: StoreHandle, number: int, **members: Any) -> Ledger:
    """A suspended run whose one wait is for a person."""
    one = Ledger(store, number).admit()
    one.append(announced(one, 1, TASK))
    opened(store, one.run, wait_key(1), number, **members)
    one.append(one.record(RunSuspended, reason="it waits"))
    return one


@check
def a_task_is_opened_once(probe: Probe, store: StoreHandle) -> None:
    first = opened(store, number=1, excluded=("anna",), due_ms=90)
    made = ask(store, tasks.get, first)
    probe.hold(
        (made.state, made.audience, made.excluded) == ("open", ("reviewer",), ("anna",)), "it is not as asked for"
    )
    probe.hold(
        (made.digest, made.priority, made.due_ms) == (DIGEST, 1, 90), "the action in force is not the proposed one"
    )
    claim(store, first, "ben")
    store.now_ms += 1
    opened(store, number=1, summary="another")
    again = ask(store, tasks.get, first)
    probe.hold((again.assignee, again.proposal["summary"]) == ("ben", "refund?"), "opened again, a task began anew")
    probe.refused(NotFound, lambda: ask(store, tasks.get, task_of(9)), "a task that is not there was read")


@check
def a_task_is_held_by_one_claimer(probe: Probe, store: StoreHandle) -> None:
    task = opened(store, number=1)
    held = claim(store, task, "ben")
    probe.hold((held.state, held.assignee, held.claimed_ms) == ("claimed", "ben", store.now_ms), "a claim is not kept")
    told = probe.refused(AlreadyClaimed, lambda: claim(store, task, "cleo"), "a task was claimed by two")
    probe.hold(told.get("holder") == "ben", "the refusal does not name the holder")
    store.now_ms += 1
    probe.hold(claim(store, task, "ben") == held, "one's own claim again is another claim")
    probe.refused(AlreadyClaimed, lambda: decide(store, task, "cleo"), "a task was decided past its holder")


@check
def what_will_never_be_yours_is_said_before_who_has_it(probe: Probe, store: StoreHandle) -> None:
    task = opened(store, number=1, excluded=("anna",), least_basis="authenticated")
    sure = reviewer("ben", basis=Basis.AUTHENTICATED)
    held = ask(store, tasks.claim, task, sure, actor("ben", Basis.AUTHENTICATED), PEOPLE)
    orders: list[tuple[type[AgentplaneError], str, Reviewer]] = [
        (Excluded, "anna", reviewer("anna", "author")),
        (WrongRole, "cleo", reviewer("cleo", "author")),
        (BasisTooWeak, "cleo", reviewer("cleo")),
        (AlreadyClaimed, "cleo", reviewer("cleo", basis=Basis.AUTHENTICATED)),
    ]
    for kind, name, who in orders:
        for act in (
            lambda who=who, name=name: ask(store, tasks.claim, task, who, actor(name), PEOPLE),
            lambda who=who, name=name: ask(
                store, tasks.decide, task, who, actor(name), PEOPLE, said="approve", reason="r"
            ),
        ):  # fmt: skip
            probe.refused(kind, act, "a refusal is out of its order")
    refused = tasks.refusal(held, reviewer("anna"), PEOPLE)
    probe.hold(isinstance(refused, Excluded), "a view says otherwise than the claim")
    probe.hold(ask(store, tasks.get, task).assignee == "ben", "a refused act changed the holder")


@check
def only_the_holder_releases_and_a_takeover_names_them(probe: Probe, store: StoreHandle) -> None:
    task = opened(store, number=1)
    probe.refused(
        NotHeld, lambda: ask(store, tasks.release, task, reviewer("ben"), PEOPLE), "what nobody holds was released"
    )
    claim(store, task, "ben")
    cleo = reviewer("cleo")
    probe.refused(NotHeld, lambda: ask(store, tasks.release, task, cleo, PEOPLE), "another's claim was released")
    probe.refused(
        NotHeld, lambda: ask(store, tasks.take_over, task, cleo, actor("cleo"), "dora", PEOPLE),
        "a third person was displaced unseen",
    )  # fmt: skip
    taken = ask(store, tasks.take_over, task, cleo, actor("cleo"), "ben", PEOPLE)
    probe.hold((taken.assignee, taken.state) == ("cleo", "claimed"), "a takeover did not change the holder")
    freed = ask(store, tasks.release, task, cleo, PEOPLE)
    probe.hold((freed.assignee, freed.claimed_ms, freed.state) == (None, None, "open"), "a release freed nothing")
    probe.hold(claim(store, task, "ben").assignee == "ben", "a released task cannot be claimed")


@check
def a_task_is_decided_once(probe: Probe, store: StoreHandle) -> None:
    task, late = opened(store, number=1, due_ms=50), opened(store, key=wait_key(2), number=2, due_ms=50)
    row = decide(store, task)
    probe.hold((row.state, row.approved, row.digest) == ("completed", True, DIGEST), "a decision is not in its row")
    probe.hold((row.decided_by, row.assignee) == (actor("ben"), "ben"), "who decided is not known")
    probe.refused(AlreadyAnswered, lambda: decide(store, task, "cleo", "reject"), "a task was decided twice")
    probe.hold(not ask(store, tasks.expire, task), "a window closed over a decision")
    probe.hold(not ask(store, tasks.escalate, task), "a decided task was escalated")
    probe.hold(ask(store, tasks.get, task) == row, "a late act changed a decision")
    probe.hold(ask(store, tasks.expire, late), "a window did not close")
    probe.hold(not ask(store, tasks.expire, late), "a window closed twice")
    over = ask(store, tasks.get, late)
    probe.hold(
        (over.state, over.approved, over.decided_by) == ("expired", False, None), "nobody's decision has a decider"
    )
    refused = tasks.refusal(over, reviewer("ben"), PEOPLE)
    probe.hold(refused is not None, "a task whose window closed can be decided")


@check
def a_decision_is_on_the_version_that_was_read(probe: Probe, store: StoreHandle) -> None:
    task = opened(store, number=1, due_ms=50, on_expiry="escalate", escalate_to=["boss"])
    first = ask(store, tasks.get, task).version()
    probe.hold(claim(store, task, "ben").version() == first, "a claim made another version of what is decided")
    ask(store, tasks.escalate, task)
    now = ask(store, tasks.get, task)
    probe.hold(now.version() != first, "a wider audience is the version that was read")
    probe.refused(StaleVersion, lambda: decide(store, task, version=first), "a decision on a stale version was taken")
    bad = {"amount": "much"}
    probe.refused(
        AmendmentRefused, lambda: decide(store, task, version=now.version(), amendment=bad), "a misfit was approved"
    )
    probe.hold(ask(store, tasks.get, task) == now, "a refused decision claimed the task, or changed it")
    amended = {"order": "1", "amount": 3}
    row = decide(store, task, version=now.version(), amendment=amended)
    probe.hold(row.digest == action_digest("pay.refund", amended), "an amended decision is not the amended call")


@check
def an_escalation_frees_widens_and_leaves_the_scan(probe: Probe, store: StoreHandle) -> None:
    task = opened(
        store, number=1, due_ms=50, on_expiry="escalate", escalate_to=["boss", "reviewer"], excluded=("anna",)
    )
    claim(store, task, "ben")
    probe.hold([row.task for row in ask(store, tasks.overdue, 50, 9)] == [task], "a window that is over is not found")
    probe.hold(ask(store, tasks.overdue, 49, 9) == [], "a window is over before its instant")
    probe.hold(ask(store, tasks.escalate, task), "a task was not escalated")
    probe.hold(not ask(store, tasks.escalate, task), "a task was escalated twice")
    row = ask(store, tasks.get, task)
    probe.hold((row.state, row.assignee, row.claimed_ms) == ("escalated", None, None), "a stale claim was not cleared")
    probe.hold(
        (row.audience, row.excluded) == (("reviewer", "boss"), ("anna",)), "who may decide is not as it should be"
    )
    probe.hold(ask(store, tasks.overdue, 99, 9) == [], "an escalated task stands in the scan still")
    probe.hold([row.task for row in ask(store, tasks.unanswered, 99, 9)] == [task], "nobody is told of it")
    for role in ("reviewer", "boss"):
        found = [row.task for row in ask(store, tasks.queue, 9, role=role)]
        probe.hold(found == [task], "an escalated task is not on the list of everybody that it is for")
    probe.refused(Excluded, lambda: claim(store, task, "anna", "boss"), "an escalation let in who was barred")
    held = claim(store, task, "dora", "boss")
    probe.hold(
        (held.assignee, held.state) == ("dora", "escalated"), "an escalated task cannot be claimed, or went back"
    )


@check
def the_queue_is_paged_the_most_urgent_first(probe: Probe, store: StoreHandle) -> None:
    order = {4: "normal", 3: "urgent", 2: "low", 1: "high", 6: "urgent", 5: "normal"}
    for number, priority in order.items():
        audience = ["boss"] if number == 3 else ["boss", "reviewer"]
        opened(store, key=wait_key(number), number=number, priority=priority, audience=audience)
        store.now_ms += number not in (3, 4)
    for role, expected in ((None, [3, 6, 1, 4, 5, 2]), ("boss", [3, 6, 1, 4, 5, 2]), ("reviewer", [6, 1, 4, 5, 2])):
        for size in (1, 2, 4):
            paged: list[TaskRow] = []
            while (page := ask(store, tasks.queue, size, paged[-1].cursor if paged else None, role=role)) and (
                len(paged) < 12
            ):
                paged += page
            found = [int(row.task, 16) for row in paged]
            probe.hold(found == expected, f"the queue of {role} is out of order, repeats or skips")
    probe.hold(ask(store, tasks.queue, 9, role="nobody") == [], "a role has tasks that are not for it")


@check
def the_backlog_counts_what_waits_for_a_decision(probe: Probe, store: StoreHandle) -> None:
    for number in range(1, 6):
        opened(store, key=wait_key(number), number=number, due_ms=50 + number % 2)
    claim(store, task_of(1), "ben")
    ask(store, tasks.escalate, task_of(2))
    decide(store, task_of(3))
    ask(store, tasks.expire, task_of(4))
    left = {task_of(number) for number in (1, 2, 5)}
    probe.hold(
        ask(store, tasks.count_open) == 3, "claimed and escalated tasks are not of the backlog, or ended ones are"
    )
    for found in (ask(store, tasks.queue, 9), ask(store, tasks.queue, 9, role="reviewer")):
        probe.hold({row.task for row in found} == left, "a list has what was decided, or lacks what was not")
    overdue = [row.task for row in ask(store, tasks.overdue, 99, 9)]
    probe.hold(overdue == [task_of(1), task_of(5)], "the scan of windows has another content, or another order")
    rest = ask(store, tasks.overdue, 99, 9, (51, task_of(1)))
    probe.hold([row.task for row in rest] == [task_of(5)], "a page of the scan repeats or skips one")
    told = [row.task for row in ask(store, tasks.unanswered, 99, 9)]
    probe.hold(told == [task_of(2), task_of(1), task_of(5)], "what nobody answered in its time is not told, in order")


@check
def a_task_goes_with_its_wait(probe: Probe, store: StoreHandle) -> None:
    for number, ended in ((1, "done"), (2, "failed")):
        one = asking(store, number, due_ms=50)
        one.append(one.done(1) if ended == "done" else one.failed(1))
        row = ask(store, tasks.get, task_of(number))
        probe.hold(row.state == "withdrawn", "a task outlived the outcome of its wait")
        probe.hold(not ask(store, tasks.expire, row.task), "what was withdrawn expired")
        probe.refused(NotPending, lambda row=row: claim(store, row.task, "ben"), "what was withdrawn was claimed")
        opened(store, one.run, wait_key(1), number)
        probe.hold(ask(store, tasks.get, row.task).state == "withdrawn", "what was withdrawn came back")
    listed = ask(store, tasks.queue, 9) + ask(store, tasks.queue, 9, role="reviewer")
    probe.hold(listed == [] and ask(store, tasks.overdue, 99, 9) == [], "what was withdrawn is on a list")


@check
def a_decision_is_told_once(probe: Probe, store: StoreHandle) -> None:
    runs = [asking(store, number) for number in (1, 2, 3)]
    for number in (3, 1, 2):
        decide(store, task_of(number))
        store.now_ms += 1
    found = [row.task for row in ask(store, tasks.undelivered, 9)]
    probe.hold(found == [task_of(3), task_of(1), task_of(2)], "what was decided is not found, the oldest first")
    rest = ask(store, tasks.undelivered, 9, (store.now_ms - 3, task_of(3)))
    probe.hold([row.task for row in rest] == found[1:], "a page of it repeats or skips one")
    at = ask(store, tasks.decided_at, run_id(1), wait_key(1))
    probe.hold(at is not None and at.decision is not None and at.approved is True, "the look does not find it")
    runs[0].append(runs[0].done(1))
    runs[1].append(runs[1].failed(1))
    runs[2].append(runs[2].concluded("failed"))
    told = [ask(store, tasks.get, task_of(number)) for number in (1, 2, 3)]
    probe.hold([row.delivered for row in told] == [True, False, False], "what was told is not marked, or more is")
    probe.hold([row.state for row in told] == ["completed"] * 3, "the outcome of its wait took a decision away")
    probe.hold(ask(store, tasks.undelivered, 9) == [], "what was told, or never will be, is to be told still")
    again = [ask(store, tasks.decided_at, run_id(number), wait_key(1)) for number in (1, 2, 3)]
    probe.hold([row is not None for row in again] == [False, False, True], "the look finds another decision")
    probe.hold(len(ask(store, tasks.decided_of, run_id(3))) == 1, "a run that may go on lost its decision")


@check
def a_run_that_ended_for_good_asks_nobody(probe: Probe, store: StoreHandle) -> None:
    outcomes = {1: "failed", 2: "exhausted", 3: "quarantined", 4: "abandoned"}
    for number, outcome in outcomes.items():
        one = asking(store, number)
        opened(store, one.run, wait_key(2), 10 + number)
        decide(store, task_of(10 + number))
        one.append(one.concluded(outcome))
    states = [ask(store, tasks.get, task_of(number)).state for number in outcomes]
    probe.hold(
        states == ["open"] * 3 + ["withdrawn"], "a run that may go on lost its task, or one that may not kept it"
    )
    left = [len(ask(store, tasks.decided_of, run_id(number))) for number in outcomes]
    probe.hold(left == [1, 1, 1, 0], "a decision is to be told to a run that has ended for good")
    probe.hold(ask(store, tasks.count_open) == 3, "the backlog counts what nobody waits for")
    by_role = [row.task for row in ask(store, tasks.queue, 9, role="reviewer")]
    probe.hold(by_role == [task_of(number) for number in (1, 2, 3)], "a role's list has what nobody waits for")


@check
def an_approval_is_consumed_at_one_place(probe: Probe, store: StoreHandle) -> None:
    one, other = asking(store, 1), asking(store, 2)
    approved = Approved(task=task_of(1), digest=DIGEST)

    def use(ledger: Ledger, key: int, approval: Approved = approved, **place: Any) -> None:
        ledger.append(member(ledger, key, approval=approval, **{"ordinal": 7, **place}))

    def refused(sentence: str, act: Callable[[], object]) -> None:
        probe.refused(ApprovalRefused, act, sentence)

    refused("what nobody decided was used", lambda: use(one, 2))
    decide(store, task_of(1))
    refused("a decision was used before its run was told", lambda: use(one, 2))
    one.append(one.record(EffectDone, step=0, effect_key=key_of(1), by=actor("ben")))
    refused("another run used it", lambda: use(other, 2))
    other_args = Approved(task=task_of(1), digest="11" * 32)
    refused("it was used for other arguments", lambda: use(one, 2, other_args))
    use(one, 2)
    probe.hold(ask(store, tasks.get, task_of(1)).consumed == (0, 0, 7), "where it was used is not known")
    one.append(one.failed(2))
    use(one, 3, attempt=2)
    probe.hold(ask(store, tasks.get, task_of(1)).consumed == (0, 0, 7), "the next attempt did not share it")
    for place in ({"ordinal": 8}, {"step": 1}, {"phase": "compensating"}):
        refused("it was used at a second place", partial(use, one, 4, **place))
    decide(store, task_of(2), said="reject")
    other.append(other.record(EffectDone, step=0, effect_key=key_of(1), by=actor("ben")))
    rejected = Approved(task=task_of(2), digest=DIGEST)
    refused("what was rejected was used", lambda: use(other, 2, rejected))


@check
def tasks_of_a_case_are_paged_without_a_gap(probe: Probe, store: StoreHandle) -> None:
    for number in range(1, 6):
        opened(store, key=wait_key(number), number=number, case="case_1" if number != 3 else None)
        store.now_ms += number % 2
    decide(store, task_of(2))
    paged: list[TaskRow] = []
    after: tuple[int, str] | None = None
    while (page := ask(store, tasks.for_case, "case_1", 1, after)) and len(paged) < 9:
        paged += page
        after = (page[-1].created_ms, page[-1].task)
    probe.hold(
        [row.task for row in paged] == [task_of(n) for n in (1, 2, 4, 5)], "a case's tasks are repeated or skipped"
    )
