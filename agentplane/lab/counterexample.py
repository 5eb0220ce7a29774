"""The control: an agent whose key changes between attempts, against the same provider. It must pay twice.

It owns the one run that has to go wrong. A lab that finds no duplicate proves something only if its provider
would have made one and its audit would have shown it; so the same crash that the appliance survives is played
by hand, with a fresh key for the second attempt. It refuses to read the result off its own answers: the two
references come from the provider's database. Its invariant: nothing of the plane takes part.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentplane.lab.provider import audit
from agentplane.lab.provider_process import Provider

ORDER = "CONTROL-1"
AMOUNT_MINOR = 30_000


@dataclass(frozen=True)
class Control:
    """Whether the order has two refunds, and the provider's references of them."""

    refunds_twice: bool
    references: tuple[str, ...]


def _attempt(provider: Provider, key: str, order: str) -> bool:
    body = {"order": order, "amount_minor": AMOUNT_MINOR, "currency": "EUR"}
    try:
        status, _, _ = provider.request("POST", "/refunds", body, headers={"Idempotency-Key": key})
    except ConnectionError:
        return False
    return status in (200, 201)


def run_control(provider: Provider, *, key_per_attempt: bool = True, order: str = ORDER) -> Control:
    """Two attempts at one refund; the first lands and its answer is lost. With one key the second is the
    replay of the first (that is how the control is itself checked), with a key an attempt it pays again."""
    rule = provider.rule(method="POST", path="/refunds", order=order, times=1, reset="after")
    for attempt in (1, 2):
        key = f"control-{order}-{attempt if key_per_attempt else 0}"
        if _attempt(provider, key, order):
            break
    provider.clear(rule)
    with audit.open_book(provider.db) as book:
        refs = tuple(row.ref for row in audit.refunds(book, order=order))
    return Control(len(refs) == 2, refs)
