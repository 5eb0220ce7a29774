"""The fixture of thirty tickets holds what the lab says of it, and the app settles exactly these."""

from __future__ import annotations

from collections import Counter

from agentplane.lab.provider.faults import parse_rule
from agentplane.lab.tickets import AMENDED, AMENDED_MINOR, LATE, REVIEWS, TICKETS, TWICE, expected, provider_rules


def test_there_are_eighteen_refunds_nine_reships_and_three_escalations() -> None:
    """Eighteen refunds of 2,042.04 together, three above 300; orders and keys are all different."""
    assert Counter(each.kind for each in TICKETS) == {"refund": 18, "reship": 9, "escalate": 3}
    assert sum(each.amount_minor for each in TICKETS) == 204_204
    assert sum(30_000 < each.amount_minor <= 31_200 for each in TICKETS) == 3
    assert all((each.amount_minor > 0) == (each.kind == "refund") for each in TICKETS)
    assert len({each.order for each in TICKETS}) == len({each.admission_key for each in TICKETS}) == 30


def test_a_third_reconciles_and_one_needs_a_person() -> None:
    """Ten of every kind of work under reconcile, one refund under operator."""
    assert Counter(each.recovery for each in TICKETS) == {"idempotent": 19, "reconcile": 10, "operator": 1}
    asked = Counter(each.kind for each in TICKETS if each.recovery == "reconcile")
    assert asked == {"refund": 6, "reship": 3, "escalate": 1}
    assert [each.kind for each in TICKETS if each.recovery == "operator"] == ["refund"]


def test_three_refunds_wait_for_a_person_each_in_its_way() -> None:
    """The three above the ceiling: one is decided twice, one late, one amended."""
    above = [each.order for each in TICKETS if each.needs_a_person]
    assert list(REVIEWS) == above and list(REVIEWS.values()) == [TWICE, LATE, AMENDED]
    assert {each.recovery for each in TICKETS if each.needs_a_person} == {"reconcile", "operator"}


def test_a_settled_ticket_leaves_known_rows_at_the_provider() -> None:
    """A refund or reship and a notice, or a notice alone; amounts only where money moves, and what a person amends is
    what the book must hold."""
    rows = [row for each in TICKETS for row in expected(each)]
    assert Counter(row.path for row in rows) == {"/refunds": 18, "/reships": 9, "/notices": 30}
    assert sum(row.amount_minor or 0 for row in rows) == 204_204 - 30_575 + AMENDED_MINOR


def test_the_providers_rules_for_tickets_are_rules_it_accepts() -> None:
    """Reconciled orders meet ignored keys and late commits, the operator's ignored keys, the others
    nothing."""
    for each in TICKETS:
        rules = [parse_rule(told) for told in provider_rules(each)]
        sets = {name for rule in rules for name in rule.sets}
        wanted = {"reconcile": {"ignore_keys", "late_ms"}, "operator": {"ignore_keys"}, "idempotent": set()}
        assert sets == wanted[each.recovery]
        assert all(rule.match["order"] == each.order for rule in rules)
