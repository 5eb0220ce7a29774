"""The control: the lab can see a duplicate, because it makes one whenever it is asked to."""

from __future__ import annotations

from agentplane.lab.books import duplicates
from agentplane.lab.counterexample import ORDER, run_control
from agentplane.lab.provider import audit
from agentplane.lab.provider_process import Provider


def test_a_key_an_attempt_refunds_twice_and_the_references_are_the_providers(provider: Provider) -> None:
    """Two rows for one order in the provider's database, and the audit calls them a duplicate."""
    control = run_control(provider)
    assert control.refunds_twice
    with audit.open_book(provider.db) as book:
        assert audit.repeated_orders(book) == {ORDER: list(control.references)}
        assert [each.refs for each in duplicates(audit.effects(book))] == [control.references]


def test_the_same_crash_with_one_key_refunds_once(provider: Provider) -> None:
    """What makes the difference is the key and nothing else."""
    control = run_control(provider, key_per_attempt=False)
    assert not control.refunds_twice
    assert len(control.references) == 1
