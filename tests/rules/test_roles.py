"""Roles: listed sets of actions, and one decision."""

from __future__ import annotations

import pytest

from agentplane.core.roles import ACTIONS, ROLES, SPEAKS_FOR_A_PERSON, may

WHO_MAY = {
    "api:run.read": {"reader", "author", "reviewer", "operator", "supervisor", "auditor"},
    "api:run.start": {"author"},
    "api:event.deliver": {"author"},
    "api:task.decide": {"reviewer"},
    "api:task.claim": {"reviewer"},
    "api:task.release": {"reviewer"},
    "api:task.list": {"reviewer"},
    "api:task.takeover": {"supervisor"},
    "api:case.list": {"reader", "reviewer", "operator", "supervisor", "auditor"},
    "api:case.read": {"reader", "reviewer", "operator", "supervisor", "auditor"},
    "api:obligation.list": {"reader", "reviewer", "operator", "supervisor", "auditor"},
    "api:obligation.acknowledge": {"operator", "supervisor"},
    "api:deadletter.list": {"reader", "reviewer", "operator", "supervisor", "auditor"},
    "api:notify.test": {"operator", "supervisor"},
    "api:run.cancel": {"operator", "supervisor"},
    "api:effect.reconcile": {"operator", "supervisor"},
    "api:plane.drain": {"operator", "supervisor"},
    "api:plane.release": {"operator", "supervisor"},
    "api:run.reopen": {"supervisor"},
    "api:run.retry": {"supervisor"},
    "api:token": {"supervisor"},
    "api:export": {"auditor"},
}


@pytest.mark.parametrize("action", sorted(WHO_MAY))
def test_an_action_belongs_to_the_roles_that_are_written_down(action: str) -> None:
    """No more and no fewer than operating.md lists."""
    assert {role for role in ROLES if may([role], action)} == WHO_MAY[action]


def test_the_roles_are_six_and_grant_only_known_actions() -> None:
    """An action that no table knows would be granted to nobody, or worse, to a misspelling."""
    assert set(ROLES) == {"reader", "author", "reviewer", "operator", "supervisor", "auditor"}
    assert set().union(*ROLES.values()) == ACTIONS
    assert all(action.startswith("api:") for action in ACTIONS)
    assert SPEAKS_FOR_A_PERSON <= ACTIONS


def test_nobody_may_anything_without_a_role() -> None:
    """No role, an unknown role or an unknown action grant nothing."""
    assert not any(may([], action) or may(["root"], action) for action in ACTIONS)
    assert not may(list(ROLES), "api:everything")


def test_a_machine_never_speaks_for_a_person() -> None:
    """With every role, root and the plane's own uid still may not decide what a person decides."""
    for action in ACTIONS:
        assert may(list(ROLES), action, machine=True) == (action not in SPEAKS_FOR_A_PERSON)
    tasks = {f"api:task.{verb}" for verb in ("claim", "release", "takeover", "decide")}
    assert tasks | {"api:obligation.acknowledge"} <= SPEAKS_FOR_A_PERSON
    assert "api:effect.reconcile" in SPEAKS_FOR_A_PERSON and "api:run.cancel" not in SPEAKS_FOR_A_PERSON
