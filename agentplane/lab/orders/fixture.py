"""Orders as data: what each is meant to run into, and how the provider treats it.

Owns the fixture, a function of a seed and a count. Refuses to decide at run time: the fate of an order, its recovery,
where it sleeps and when it is cancelled stand in it. Invariant: the same seed gives the same orders, and any twelve
in a row that begin a block hold every kind of ending.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

CAPABILITY: Final = "order.take"
BLOCK: Final = 12
LIMIT_MINOR: Final = 500_000
LATE_MS: Final = 200
SLOW_MS: Final = 2_500
"""How long after its arrival a slow parcel is committed; its effect settles in three seconds."""
WELL: Final = "well"
SPARED: Final = "well, and nobody thinks better of it"
FORGETS: Final = "forgets its group"
NOTICE_STAYS: Final = "its notice is refused"
NOTICE_MENDS: Final = "its notice is refused until somebody mends it"

REFUSED: Final = {
    "its authorisation is refused": "/authorisations",
    "its parcel is refused": "/parcels",
    "its invoice is refused": "/invoices",
    "its shipment is refused": "/shipments",
    "its receipt is refused": "/receipts",
    NOTICE_STAYS: "/notices",
    NOTICE_MENDS: "/notices",
}
"""Fates that are a refusal of the provider's for certain, and the path of it."""
OVER: Final = ("its amount is over the limit", "its ledger refuses the amount")
HOW: Final = ("keyed", "asked", "keyed", "asked", "keyed", "manual")
WAITS: Final = ("", "group", "pack", "back", "", "")
CANCELLED_WITHIN: Final = (4, 70)
"""The observer points of a run between which a cancel of it is asked for."""


@dataclass(frozen=True)
class Order:
    """One order; amounts in minor units. ``cancel_after``: the observer point of its run, counted over all lives, at
    which somebody asks it to stop. ``mishap``: what goes wrong once with an answer, as members of a provider's rule."""

    order: str
    fate: str
    recovery: str
    amount_minor: int
    limit_minor: int
    slow: bool = False
    waits: str = ""
    cancel_after: int | None = None
    mishap: dict[str, object] | None = None

    @property
    def admission_key(self) -> str:
        """The key it is submitted under, however often."""
        return f"shop-{self.order}"

    def request(self) -> dict[str, object]:
        """The input of the capability ``order.take``."""
        return {
            "order": self.order, "amount_minor": self.amount_minor, "limit_minor": self.limit_minor,
            "recovery": self.recovery, "slow": self.slow, "forgets": self.fate == FORGETS, "waits": self.waits,
        }  # fmt: skip


def orders(seed: int, count: int) -> tuple[Order, ...]:
    """``count`` orders. One of twelve is slow, and goes well but for the cancel that meets it in doubt."""
    chance = random.Random(seed)
    return tuple(_generate(chance, count))


def _generate(chance: random.Random, count: int) -> Iterator[Order]:
    number = 0
    while number < count:
        fates = _block(number // BLOCK)
        chance.shuffle(fates)
        for fate, slow in fates[: count - number]:
            yield _order(chance, number, fate, slow)
            number += 1


def _block(nth: int) -> list[tuple[str, bool]]:
    """Twelve fates: four go well (one of them slow, one never asked to stop), one forgets, five are refused, and of the
    notices and the amounts one each."""
    refused = [fate for fate in REFUSED if fate not in (NOTICE_STAYS, NOTICE_MENDS)]
    fates = [FORGETS, *refused, (NOTICE_MENDS, NOTICE_STAYS)[nth % 2], OVER[nth % 2]]
    return [(WELL, True), (SPARED, False), (WELL, False), (WELL, False), *((fate, False) for fate in fates)]


def _order(chance: random.Random, number: int, fate: str, slow: bool) -> Order:
    cancelled = not slow and fate not in (FORGETS, SPARED) and chance.random() < 0.4
    amount = chance.randrange(1_000, LIMIT_MINOR)
    limit = LIMIT_MINOR
    if fate == OVER[0]:
        amount = LIMIT_MINOR + 1
    elif fate == OVER[1]:
        amount, limit = 2_000_000, 3_000_000
    recovery = "keyed" if slow or fate == FORGETS else HOW[number % len(HOW)]
    return Order(
        f"O-{100 + number}", fate, recovery, amount, limit, slow, "" if slow else chance.choice(WAITS),
        chance.randrange(*CANCELLED_WITHIN) if cancelled else None,
        chance.choice(_MISHAPS) if recovery == "keyed" and chance.random() < 0.5 else None,
    )  # fmt: skip


_MISHAPS: Final[tuple[dict[str, object], ...]] = (
    {"status_after": 503},
    {"reset": "after"},
    {"reset": "before"},
    {"retry_after_s": 1},
    {"delay_after_ms": 150},
)


def provider_rules(order: Order) -> tuple[dict[str, object], ...]:
    """How the provider treats this order for the whole run, as rules of its control API; a refusal comes first, so that
    its number is known to whoever mends it."""
    post = {"method": "POST", "order": order.order}
    rules: list[dict[str, object]] = []
    if order.fate in REFUSED:
        rules.append(post | {"path": REFUSED[order.fate], "status_before": 422})
    if order.recovery != "keyed":
        rules.append(post | {"ignore_keys": True})
    if order.recovery == "asked":
        rules.append(post | {"late_ms": LATE_MS})
    if order.slow:
        rules.append(post | {"path": "/parcels", "late_ms": SLOW_MS, "late_answer": "drop", "ignore_keys": True})
    if order.mishap is not None:
        rules.append(post | {"times": 1, "skip": len(order.order + order.fate) % 4} | order.mishap)
    return tuple(rules)
