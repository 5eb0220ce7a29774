"""Who may act on a task: each refusal in its order, four-eyes on people, and what a task, an action and a version are
known by."""

from __future__ import annotations

from hashlib import sha256
from itertools import product
from typing import Any

import msgspec
import pytest

from agentplane.core import canonical, lifecycle
from agentplane.core.errors import (
    AlreadyAnswered,
    AlreadyClaimed,
    BasisTooWeak,
    Excluded,
    NotHeld,
    NotPending,
    Refusal,
    StaleVersion,
    WrongRole,
)
from agentplane.core.people import People
from agentplane.core.records import Basis
from agentplane.core.tasks import (
    PENDING,
    Reviewer,
    TaskFacts,
    TaskState,
    action_digest,
    may_claim,
    may_decide,
    may_release,
    may_take_over,
    stale,
    task_id,
    version_digest,
)

PEOPLE: People = {"anna": ["os:anna", "anna@corp.example"], "bob": ["os:bob", "bob@corp.example"]}
BOB = Reviewer(actor="os:bob", basis=Basis.CONNECTED, roles=("reader", "reviewer"))
OPEN = TaskFacts(state="open", audience=("reviewer",), excluded=("os:anna",))


def who(actor: str = "os:bob", **members: Any) -> Reviewer:
    return msgspec.structs.replace(BOB, actor=actor, **members)


def facts(**members: Any) -> TaskFacts:
    return msgspec.structs.replace(OPEN, **members)


def kind(refused: Refusal | None) -> type[Refusal] | None:
    assert refused is None or (refused.message.endswith(".") and "\n" not in refused.message)
    return None if refused is None else type(refused)


# --- the order -------------------------------------------------------------------------------------------------------

CLAIM_ORDER = (Excluded, WrongRole, BasisTooWeak, NotPending, AlreadyClaimed)
DECIDE_ORDER = (Excluded, WrongRole, BasisTooWeak, AlreadyAnswered, NotPending, StaleVersion, AlreadyClaimed)


def arranged(faults: set[type[Refusal]]) -> tuple[TaskFacts, Reviewer]:
    """A task and a person, with exactly these things in the way."""
    state = "claimed" if AlreadyClaimed in faults else "open"
    if NotPending in faults:
        state = "withdrawn"
    if AlreadyAnswered in faults:
        state = "completed"
    task = facts(
        state=state, assignee="os:carl" if AlreadyClaimed in faults else None,
        least_basis="authenticated" if BasisTooWeak in faults else "connected",
        audience=("supervisor",) if WrongRole in faults else ("reviewer",),
        excluded=("os:bob",) if Excluded in faults else ("os:anna",),
    )  # fmt: skip
    return task, who()


def test_a_claim_is_refused_for_the_first_thing_in_the_way() -> None:
    """All 32 sets of faults: what will never be yours before what might be tomorrow."""
    for bits in range(2 ** len(CLAIM_ORDER)):
        faults = {fault for at, fault in enumerate(CLAIM_ORDER) if bits >> at & 1}
        task, person = arranged(faults)
        assert kind(may_claim(task, person, PEOPLE)) == next((one for one in CLAIM_ORDER if one in faults), None)


def test_a_decision_is_refused_for_the_first_thing_in_the_way() -> None:
    """All 128 sets: a stale version is refused behind what no newer one would change, and before any claim."""
    for bits in range(2 ** len(DECIDE_ORDER)):
        faults = {fault for at, fault in enumerate(DECIDE_ORDER) if bits >> at & 1}
        task, person = arranged(faults)
        version = {"named": "old" if StaleVersion in faults else "now", "version": "now"}
        # A task has one state: one that was decided is not withdrawn too.
        expected = next((one for one in DECIDE_ORDER if one in faults), None)
        assert kind(may_decide(task, person, PEOPLE, **version)) == expected


def test_a_takeover_is_refused_as_a_claim_is_and_for_another_holder() -> None:
    """It needs the same eligibility, and names whom it displaces."""
    for bits in range(2 ** len(CLAIM_ORDER)):
        faults = {fault for at, fault in enumerate(CLAIM_ORDER) if bits >> at & 1}
        task, person = arranged(faults | {AlreadyClaimed})
        expected = next((one for one in CLAIM_ORDER[:4] if one in faults), None)
        assert kind(may_take_over(task, person, "os:carl", PEOPLE)) == expected
        assert kind(may_take_over(task, person, "os:dora", PEOPLE)) == (expected or NotHeld)
    assert kind(may_take_over(OPEN, who(), "os:carl", PEOPLE)) == NotHeld
    escalated = facts(state="escalated", assignee="os:carl")
    assert may_take_over(escalated, who(), "os:carl", PEOPLE) is None


def test_a_claim_of_ones_own_is_no_contention() -> None:
    """Under any name that the table joins; under a name that only looks alike it is another's."""
    held = facts(state="claimed", assignee="os:bob")
    assert may_claim(held, who(), PEOPLE) is None and may_decide(held, who(), PEOPLE) is None
    assert may_claim(held, who("bob@corp.example"), PEOPLE) is None
    assert kind(may_claim(held, who("token:bob"), PEOPLE)) == AlreadyClaimed
    assert kind(may_decide(held, who("os:carl"), PEOPLE)) == AlreadyClaimed


def test_only_the_holder_releases() -> None:
    """In every state, whoever else asks does not hold it; and what is over is held by nobody."""
    for state, assignee in product(TaskState, (None, "os:bob", "os:carl")):
        expected = None if state in PENDING and assignee == "os:bob" else NotHeld
        assert kind(may_release(facts(state=str(state), assignee=assignee), who(), PEOPLE)) == expected


def test_a_state_that_awaits_nothing_is_told_as_what_it_is() -> None:
    """A second decision is a conflict with the first; a late one has no task any more."""
    expected: dict[TaskState, Any] = dict.fromkeys(PENDING) | {TaskState.COMPLETED: AlreadyAnswered}
    for state in TaskState:
        task = facts(state=str(state))
        assert kind(may_decide(task, who(), PEOPLE)) == expected.get(state, NotPending)
        assert kind(may_claim(task, who(), PEOPLE)) == (None if state in PENDING else NotPending)


def test_a_version_that_is_not_named_is_not_compared() -> None:
    """And one that is, must be the row's."""
    assert stale(None, "now") is None and stale("now", "now") is None
    assert kind(stale("old", "now")) == StaleVersion and kind(stale("old", None)) == StaleVersion


# --- eligibility -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("actor", ["os:anna", "anna@corp.example", "anna", "token:anna", "OS:anna"])
def test_who_asked_for_the_work_does_not_decide_it_under_any_name(actor: str) -> None:
    """Four-eyes compares people."""
    assert kind(may_claim(OPEN, who(actor), PEOPLE)) == Excluded


@pytest.mark.parametrize("actor", ["os:root", "root", "os:#0", "os:nobody", "os:plane", "token:plane", ""])
@pytest.mark.parametrize("asked_by", ["os:carl", "os:root", "os:plane", "schedule:nightly"])
def test_nobody_is_no_second_person(actor: str, asked_by: str) -> None:
    """Root and the plane's own uid never satisfy four-eyes, whoever asked; without four-eyes they may be let in."""
    person = who(actor, own="os:plane")
    assert kind(may_claim(facts(excluded=(asked_by,)), person, PEOPLE)) == Excluded
    assert may_claim(facts(excluded=(), four_eyes=False), person, PEOPLE) is None


def test_a_machine_is_no_second_person() -> None:
    """Whatever it is called."""
    assert kind(may_claim(OPEN, who(machine=True), PEOPLE)) == Excluded


def test_what_one_nobody_asked_for_another_does_not_decide() -> None:
    """They count as one, where somebody is excluded by name without four-eyes too."""
    task = facts(excluded=("os:root",), four_eyes=False)
    assert kind(may_claim(task, who("os:plane", own="os:plane"), PEOPLE)) == Excluded


@pytest.mark.parametrize(
    ("audience", "person", "let_in"),
    [
        (("reviewer",), who(), True), (("supervisor",), who(), False), (("supervisor", "reviewer"), who(), True),
        (("group:refunds",), who(groups=("group:refunds",)), True), (("group:refunds",), who(), False),
        (("os:bob",), who(roles=()), True), (("bob@corp.example",), who(roles=()), True),
        (("bob",), who(roles=()), False), (("os:reviewer",), who("os:reviewer", roles=()), True),
        (("refunds-lead",), who(roles=("refunds-lead",)), True), ((), who(), False),
        (("reviewer",), who("reviewer", roles=("reader",)), False),
        (("reviewer",), who("x", roles=(), groups=("reviewer",)), False),
    ],
)  # fmt: skip
def test_a_task_is_for_roles_groups_and_names(audience: tuple[str, ...], person: Reviewer, let_in: bool) -> None:
    """Who is called as a role is called has not the role by that; and a likeness lets nobody in."""
    assert kind(may_claim(facts(audience=audience), person, PEOPLE)) == (None if let_in else WrongRole)


def test_the_least_basis_is_a_floor() -> None:
    """Weakest first: asserted, connected, authenticated; one that no build knows is met by nobody."""
    for asked, has in product(Basis, Basis):
        enough = list(Basis).index(has) >= list(Basis).index(asked)
        assert kind(may_claim(facts(least_basis=str(asked)), who(basis=has), PEOPLE)) == (
            None if enough else BasisTooWeak
        )
    for has in Basis:
        assert kind(may_claim(facts(least_basis="notarized"), who(basis=has), PEOPLE)) == BasisTooWeak


# --- identities ------------------------------------------------------------------------------------------------------

RUN, KEY = "run_01KB9ZJ5Y3QWERTYASDFGHZXCV", "0f" * 32
ROW: dict[str, Any] = {
    "task": "7e" * 32, "proposal": b'{"summary":"x"}', "audience": ("reviewer", "os:eva"), "excluded": ("os:anna",),
    "least_basis": "connected", "four_eyes": True, "priority": 1, "due_ms": 5, "on_expiry": "escalate",
    "escalate_to": ("supervisor",), "state": "open",
}  # fmt: skip


def test_a_task_is_known_by_run_and_place() -> None:
    """The worklist is one table that every run shares."""
    assert task_id(RUN, KEY) == sha256((RUN + KEY).encode()).hexdigest()
    assert len({task_id(RUN, KEY), task_id(RUN, "0e" * 32), task_id(RUN[:-1] + "X", KEY)}) == 3


def test_the_digest_of_an_action_is_of_its_kind_and_its_exact_arguments() -> None:
    """Fixed bytes; the order of members is nothing, every value is something, and no boundary can be moved."""
    args = {"order": "A-1", "minor": 4200}
    raw = b"agentplane.action.v1\x00" + (10).to_bytes(8, "big") + b"pay.refund" + b'{"minor":4200,"order":"A-1"}'
    assert action_digest("pay.refund", args) == sha256(raw).hexdigest()
    assert action_digest("pay.refund", dict(reversed(args.items()))) == action_digest("pay.refund", args)
    others = [
        ("pay.refunD", args), ("pay.refund", args | {"minor": 4201}), ("pay.refund", args | {"minor": "4200"}),
        ("pay.refund", args | {"note": None}), ("pay.refund", {"order": "A-1"}), ("pay.refund{", args),
        ("pay.refund", [args]), ("pay.refund", None), ("", args),
    ]  # fmt: skip
    digests = {action_digest(kind_of, value) for kind_of, value in [("pay.refund", args), *others]}
    assert len(digests) == len(others) + 1


def test_every_member_of_a_row_is_in_its_version_and_a_claim_is_not() -> None:
    """A person decides on what they read: what a claim or a release changes is nothing they read."""
    first = version_digest(**ROW)
    changed: dict[str, Any] = {
        "task": "7f" * 32, "proposal": b'{"summary":"y"}', "audience": ("reviewer",), "excluded": (),
        "least_basis": "authenticated", "four_eyes": False, "priority": 2, "due_ms": None, "on_expiry": "deny",
        "escalate_to": (), "state": "escalated",
    }  # fmt: skip
    assert changed.keys() == ROW.keys()
    versions = {version_digest(**(ROW | {name: value})) for name, value in changed.items()}
    assert len(versions | {first}) == len(ROW) + 1
    assert version_digest(**(ROW | {"state": "claimed"})) == first
    assert version_digest(**(ROW | {"audience": ("os:eva", "reviewer")})) == first
    ends = {version_digest(**(ROW | {"state": str(state)})) for state in TaskState}
    assert len(ends) == len(TaskState) - 1


def test_a_version_is_of_fixed_bytes() -> None:
    """A decision that named one before an upgrade names the same behind it."""
    members = [
        "7e" * 32, sha256(b'{"summary":"x"}').hexdigest(), ["os:eva", "reviewer"], ["os:anna"], "connected", True, 1, 5,
        "escalate", ["supervisor"], "pending",
    ]  # fmt: skip
    assert version_digest(**ROW) == sha256(canonical.encode(members)).hexdigest()


def test_the_states_are_those_of_the_table() -> None:
    """And what is pending is what a decision leaves."""
    assert {str(state) for state in TaskState} == set(lifecycle.states(lifecycle.TASK)) - {"none"}
    assert {str(state) for state in PENDING} == {before for before, event in lifecycle.TASK if event == "decide"}
