"""The error table: one row a class, sorted by who must act, read by every surface."""

from __future__ import annotations

import pytest

from agentplane.authoring import raising
from agentplane.core import errors
from agentplane.core.errors import AgentplaneError, InvariantViolation, Refusal, ensure, every_error, violated

EVERY = every_error()


def test_each_code_occurs_once() -> None:
    """A code is what a caller's program matches on."""
    codes = [cls.row.code for cls in EVERY]
    assert len(codes) == len(set(codes)) > 30


@pytest.mark.parametrize("cls", EVERY, ids=lambda cls: cls.__name__)
def test_each_class_has_a_whole_row_of_its_own(cls: type[AgentplaneError]) -> None:
    """Who acts, an exit status, an HTTP status, and one sentence of what to do next."""
    assert "row" in vars(cls)
    assert cls.row.who in {"caller", "wait", "operator", "us"}
    assert cls.row.exit in range(1, 7)
    assert 400 <= cls.row.http <= 599
    assert cls.row.next.endswith(".") and len(cls.row.next) < 100
    assert cls.row.code == cls.row.code.lower().replace(" ", "_")


def test_every_class_of_the_module_is_in_the_table() -> None:
    """An error that is defined and not listed would be told as `internal`."""
    defined = {c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, AgentplaneError)}
    assert defined == set(EVERY)


@pytest.mark.parametrize(
    ("cls", "exit_status", "http"),
    [
        (errors.InvalidRequest, 2, 400), (errors.InvalidInput, 2, 422), (errors.UnknownCapability, 2, 404),
        (errors.PayloadTooLarge, 2, 413), (errors.Unauthenticated, 4, 401), (errors.Forbidden, 1, 403),
        (errors.DuplicateAdmission, 1, 409), (errors.LeaseHeld, 4, 409), (errors.Draining, 4, 503),
        (errors.DiskLow, 4, 507), (errors.TooManyRuns, 4, 429), (errors.UndecidedEffect, 1, 409),
        (errors.StoreLocked, 4, 503), (errors.NotServing, 4, 503), (errors.Undecodable, 6, 500),
        (errors.StoreLevel, 6, 500), (errors.Settings, 2, 500), (errors.SkillFault, 2, 500),
        (errors.Diverged, 1, 409), (errors.PlanRefused, 2, 422), (errors.BudgetFault, 2, 422),
        (errors.AtomicRefused, 1, 409), (errors.CaseConflict, 1, 409), (errors.ObligationOpen, 1, 409),
        (errors.InvalidEvent, 2, 400), (errors.ReservedKind, 1, 403), (errors.Excluded, 1, 403),
        (errors.WrongRole, 1, 403), (errors.BasisTooWeak, 1, 403), (errors.NotPending, 1, 409),
        (errors.AlreadyClaimed, 1, 409), (errors.NotHeld, 1, 409), (errors.AlreadyAnswered, 1, 409),
        (errors.StaleVersion, 1, 412), (errors.AmendmentRefused, 1, 422), (errors.ApprovalRefused, 1, 409),
    ],
)  # fmt: skip
def test_the_statuses_that_others_lean_on(cls: type[AgentplaneError], exit_status: int, http: int) -> None:
    """Scripts and clients read these numbers; they do not move."""
    assert (cls.row.exit, cls.row.http) == (exit_status, http)


def test_what_is_told_is_the_sentence_the_code_the_next_step_and_the_details() -> None:
    """A detail of the same name never takes the place of one of the three."""
    told = errors.LeaseHeld("Held by p1.", run="run_1", code="mine", error="mine", next="mine").to_wire()
    row = errors.LeaseHeld.row
    assert told == {"run": "run_1", "error": "Held by p1.", "code": row.code, "next": row.next}
    assert str(errors.LeaseHeld("Held by p1.")) == "Held by p1."


def test_what_a_unit_decides_is_a_refusal_and_what_breaks_is_not() -> None:
    """W3 rests on the difference: a refusal rolls its unit back, and its batch goes on."""
    refusals = {cls.__name__ for cls in EVERY if issubclass(cls, Refusal)}
    decided = {"Fenced", "HeadMoved", "LeaseHeld", "LeaseNotHeld", "DuplicateEffect", "DuplicateAdmission"}
    decided |= {"CaseConflict", "ObligationOpen", "Excluded", "NotPending", "AlreadyAnswered", "StaleVersion"}
    assert decided | {"RunSealed", "OpenEffects", "DiskLow", "NotFound", "WaitDue", "AtomicRefused"} <= refusals
    assert (
        not {"PlanRefused", "BudgetFault", "InvariantViolation", "StoreFailed", "JournalCorrupt", "StoreBusy"}
        & refusals
    )


def test_a_refused_plan_tells_every_fault() -> None:
    """The sentence is one; the list travels beside it."""
    told = errors.PlanRefused("The plan cannot run: a.", faults=["a", "b"]).to_wire()
    assert (told["code"], told["faults"]) == ("plan_refused", ["a", "b"])


@pytest.mark.parametrize(
    "error",
    [
        raising.GroupAborted("order", "the_sum_is_zero"), raising.GroupForgotten("order"),
        raising.OutsideGroup("order", "mail.send"), raising.OutsideFootprint("order", "stock", ["ledger"]),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_what_is_raised_about_a_group_names_it_and_has_a_row_of_its_own(error: AgentplaneError) -> None:
    """One sentence, with a code that no other error has."""
    assert "order" in str(error) and str(error).endswith(".") and "\n" not in str(error)
    assert "row" in vars(type(error)) and error.row.next.endswith(".")
    assert error.row.code not in {cls.row.code for cls in EVERY}


def test_an_invariant_is_held_without_assert() -> None:
    """`-O` removes assertions; durable truths stay."""
    ensure(True, "INV-00 holds")
    with pytest.raises(InvariantViolation, match="INV-00 does not hold"):
        ensure(False, "INV-00 does not hold")
    with pytest.raises(InvariantViolation, match="INV-00"):
        violated("INV-00")
