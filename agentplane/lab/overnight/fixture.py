"""A month of orders as data: when each begins, how its shipping event comes, and what a person says.

Owns the fixture, a function of a seed, a count and a number of days. Refuses to decide at run time. Invariant: the same
seed gives the same month, and any eight orders in a row that begin a block hold every way in which one may end.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

CAPABILITY: Final = "order.overnight"
NIGHTLY: Final = "nightly"
CRON: Final = "30 2 * * *"
TZ: Final = "Europe/Berlin"
EVENT: Final = "shipment.sent"
CURRENCY: Final = "EUR"
BLOCK: Final = 8
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
KEPT_S: Final = 2 * 86_400
"""How long an event waits for somebody to claim it."""
LATE_MS: Final = 200
"""How long after its arrival a deed of an order that can only be asked after is committed."""
TAIL_DAYS: Final = 12
"""Days behind the last beginning: patience, working days over any holidays, the review, and the keeping of events."""


class Comes(StrEnum):
    """How the carrier's word comes."""

    IN_TIME = "in time"
    EARLY = "before anybody waits"
    TWICE = "twice"
    LATE = "after the deadline"
    NEVER = "never"


class Says(StrEnum):
    """What a person says of the deposit."""

    APPROVES = "approves"
    AMENDS = "amends"
    REJECTS = "rejects"
    NOBODY = "says nothing"


MISSES: Final = (Comes.LATE, Comes.NEVER)
_PATTERN: Final = (
    (Comes.IN_TIME, Says.APPROVES), (Comes.EARLY, Says.AMENDS), (Comes.LATE, Says.APPROVES),
    (Comes.TWICE, Says.APPROVES), (Comes.NEVER, Says.APPROVES), (Comes.EARLY, Says.NOBODY),
    (Comes.TWICE, Says.REJECTS), (Comes.IN_TIME, Says.AMENDS),
)  # fmt: skip


@dataclass(frozen=True)
class Order:
    """One order. ``begins_h`` and ``event_h``: hours from the month's beginning; ``patience_h``: hours from its
    admission until it had to be shipped. Amounts in minor units."""

    order: str
    comes: Comes
    says: Says
    recovery: str
    amount_minor: int
    begins_h: float
    patience_h: int
    event_h: float | None

    @property
    def admission_key(self) -> str:
        """The key it is submitted under, however often."""
        return f"night-{self.order}"

    @property
    def event_id(self) -> str:
        """What the carrier calls the event."""
        return f"sent-{self.order}"

    @property
    def misses(self) -> bool:
        """Whether its word does not come in time."""
        return self.comes in MISSES

    def request(self) -> dict[str, object]:
        """The input of the capability."""
        return {
            "order": self.order, "amount_minor": self.amount_minor, "currency": CURRENCY, "recovery": self.recovery,
            "patience_h": self.patience_h,
        }  # fmt: skip

    def amended(self) -> dict[str, object]:
        """What the person makes of the deposit who amends it."""
        return {"order": self.order, "amount_minor": self.amount_minor // 2, "currency": CURRENCY}


@dataclass(frozen=True)
class Stray:
    """An event about an order that nobody has."""

    event_id: str
    order: str
    event_h: float


@dataclass(frozen=True)
class Month:
    """Everything that will happen, in hours from its beginning."""

    orders: tuple[Order, ...]
    strays: tuple[Stray, ...]
    days: int


def month(seed: int, count: int, days: int) -> Month:
    """``count`` orders in the first ``days`` less ``TAIL_DAYS``, and an event about nobody's order for every block."""
    chance = random.Random(seed)
    first_h = (days - TAIL_DAYS) * 24
    orders = tuple(_orders(chance, count, first_h))
    strays = tuple(
        Stray(f"stray-{number}", f"N-{900 + number}", round(chance.uniform(2, first_h), 2))
        for number in range(count // BLOCK)
    )
    return Month(orders, strays, days)


def _orders(chance: random.Random, count: int, first_h: float) -> Iterator[Order]:
    for number in range(count):
        comes, says = _PATTERN[number % BLOCK]
        begins, patience = chance.uniform(2, first_h), chance.choice((36, 48, 72))
        after = {
            Comes.IN_TIME: chance.uniform(0.1, 0.8) * patience,
            Comes.TWICE: chance.uniform(0.1, 0.8) * patience,
            Comes.EARLY: -chance.uniform(0.5, 1.5),
            Comes.LATE: patience + chance.uniform(7, 20),
            Comes.NEVER: None,
        }[comes]
        yield Order(
            f"N-{100 + number}", comes, says, ("keyed", "asked")[(number + number // BLOCK) % 2],
            chance.randrange(2_000, 40_000), round(begins, 2), patience,
            None if after is None else round(begins + after, 2),
        )  # fmt: skip


def provider_rules(order: Order) -> tuple[dict[str, object], ...]:
    """How the provider treats this order, as rules of its control API."""
    if order.recovery == "asked":
        return ({"method": "POST", "order": order.order, "ignore_keys": True, "late_ms": LATE_MS},)
    return ()
