"""A deed that a person had to allow has one approval, consumed at one place with the arguments in force; anything else
is a fault that names the order."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentplane.core.records import Actor, Approved, Basis, EffectStarted
from agentplane.core.tasks import action_digest
from agentplane.lab.approvals import reconcile
from agentplane.lab.provider.audit import Effect
from agentplane.work.tasks import TaskRow
from lab.lab_rows import paid, started

ARGS = {"order": "A-1", "amount_minor": 4200, "currency": "EUR"}
LESS = ARGS | {"amount_minor": 2100}
KIND = "refund.keyed"


def task(task_id: str = "t1", amendment: dict[str, Any] | None = None, **other: Any) -> TaskRow:
    """The row of an approved refund for order A-1."""
    digest = action_digest(KIND, amendment or ARGS)
    members: dict[str, Any] = {
        "task": task_id, "run": "run_a", "key": b"k" * 32, "case": None, "kind": "tickets.settle", "priority": 1,
        "state": "completed", "created_ms": 1, "due_ms": 2, "on_expiry": "escalate", "escalate_to": ("supervisor",),
        "audience": ("reviewer",), "excluded": (), "least_basis": "connected", "four_eyes": True, "assignee": "mara",
        "assignee_basis": "authenticated", "assignee_uid": None, "claimed_ms": 1, "digest": digest, "approved": True,
        "decided_by": Actor(actor="mara", basis=Basis.AUTHENTICATED), "decided_ms": 2, "delivered": True,
        "consumed": (0, 0, 4), "decision": {"outcome": "approved", "amendment": amendment},
        "proposal": {"action": {"kind": KIND, "args": ARGS}},
    }  # fmt: skip
    return TaskRow(**members | other)


def acting(row: TaskRow, ordinal: int = 4, *, attempt: int = 1, **args: Any) -> EffectStarted:
    """The announcement that consumes the row's approval."""
    one = started(ordinal=ordinal, attempt=attempt, **args)
    return msgspec.structs.replace(one, approval=Approved(task=row.task, digest=row.digest or ""))


def faults(
    tasks: list[TaskRow], records: list[Any], rows: list[Effect], needed: tuple[str, ...] = ("A-1",)
) -> tuple[str, ...]:
    return reconcile(tasks, records, rows, needed).faults


def test_one_approval_one_refund_and_its_attempts_agree() -> None:
    """Two attempts at one place are one consumption; an amended refund is compared with what was allowed."""
    plain = task()
    found = reconcile([plain], [acting(plain), acting(plain, attempt=2)], [paid()], ["A-1"])
    assert (found.asked, found.consumed, found.amended, found.faults) == (1, 1, 0, ())
    amended = task(amendment=LESS)
    found = reconcile([amended], [acting(amended, amount_minor=2100)], [paid(amount_minor=2100)], ["A-1"])
    assert (found.amended, found.faults) == (1, ())


def test_what_needed_nobody_has_no_approval() -> None:
    """A refund below the ceiling without a task is in order; with an approval it is not."""
    assert faults([], [started()], [paid()], needed=()) == ()
    row = task()
    assert faults([row], [acting(row)], [paid()], needed=()) == (
        "order A-1: an approval was consumed, and it needed none (run_a)",
    )


ROW = task()
REFUSED = task(approved=False, digest=None, consumed=None, decision={"outcome": "rejected"})
BROKEN: dict[str, tuple[list[TaskRow], list[Any], list[Effect]]] = {
    "announced without an approval": ([ROW], [started()], [paid()]),
    "was asked of a person 0 times": ([], [started()], [paid()]),
    "was asked of a person 2 times": ([ROW, task("t2")], [acting(ROW)], [paid()]),
    "consumed at 0 places": ([ROW], [], [paid()]),
    "consumed at 2 places": ([ROW], [acting(ROW), acting(ROW, 5)], [paid()]),
    "the task says (0, 0, 4), the journal (0, 0, 7)": ([ROW], [acting(ROW, 7)], [paid()]),
    "one approval, and 2 refunds at the provider: rf_1, rf_2": ([ROW], [acting(ROW)], [paid(), paid("rf_2")]),
    "one approval, and 0 refunds": ([ROW], [acting(ROW)], []),
    "what was announced is not what was approved": ([ROW], [acting(ROW, amount_minor=9000)], [paid()]),
    "the provider has 9000 EUR, approved were 4200 EUR": ([ROW], [acting(ROW)], [paid(amount_minor=9000)]),
    "was not approved, and was acted on: rf_1": ([REFUSED], [], [paid()]),
    "an approval of no task, t9": ([ROW], [acting(ROW), acting(task("t9"))], [paid()]),
}


def test_the_arguments_in_force_are_those_of_the_amendment() -> None:
    """An announcement of what was proposed, under a decision that amended it, is a fault even where digests agree."""
    row = task(amendment=LESS, digest=action_digest(KIND, ARGS))
    assert faults([row], [acting(row)], [paid(amount_minor=2100)]) == (
        "order A-1: what was announced is not what was approved (run_a)",
    )


@pytest.mark.parametrize("said", BROKEN)
def test_every_difference_is_named(said: str) -> None:
    """Each alone is a fault that names the order, or the task that nobody has."""
    found = faults(*BROKEN[said])
    assert any(said in one for one in found)
    assert all("A-1" in one or "t9" in one for one in found)
