"""Thirty tickets of a shop's support desk, as data: what is to be done, and what must be in the provider's
book after.

It owns the fixture: 18 refunds of 2,042.04 together (three of them over 300), 9 reships, 3 escalations. It
refuses randomness: the list is the same in every run, so that two runs can be compared order by order. Its
invariant: every ticket makes at least two provider calls, ten of the thirty are settled under ``reconcile``
(6 refunds, 3 reships, 1 escalation), exactly one refund under ``operator``, the rest under ``idempotent``; the
three refunds over 300 wait for a person, and each of them meets the reviewer in another way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

CURRENCY = "EUR"
COUNT = 30
OPERATOR_TICKET = 13  # a refund, counted from zero, that is not one of the reconciled third
LATE_MS = 300  # how long after its arrival a reconciled ticket's call commits
CEILING_MINOR = 30_000  # a refund above it waits for a person
AMENDED_MINOR = 25_000  # what the person makes of the refund that they amend
TWICE, LATE, AMENDED = "decided twice", "decided late", "amended"
MACHINE, STALE, ANSWERED = "a machine refused", "stale_version", "already_answered"
REVIEWED = (TWICE, LATE, AMENDED, MACHINE, STALE, ANSWERED)
"""What the reviewer does, and what they are refused on the way: nobody stood behind it, the task had changed since it
was read, it had its decision."""

# One desk's ten tickets, three times over. Ten and three share no factor, so "every third ticket" meets each
# position once: the reconciled third has the same mixture as the whole.
_PATTERN = (
    "refund",
    "refund",
    "reship",
    "refund",
    "reship",
    "refund",
    "escalate",
    "refund",
    "reship",
    "refund",
)
_AMOUNTS_MINOR = (
    4_210, 12_995, 6_480, 30_150, 3_375, 18_450,
    9_120, 5_599, 31_040, 7_745, 2_890, 14_260,
    8_835, 4_675, 30_575, 6_190, 3_905, 3_710,
)  # fmt: skip


@dataclass(frozen=True)
class Ticket:
    """One ticket; ``amount_minor`` in minor units of ``currency``, zero where no money moves.

    ``kind`` is refund, reship or escalate; ``recovery`` is idempotent, reconcile or operator.
    """

    ticket: str
    order: str
    kind: str
    amount_minor: int
    currency: str
    recovery: str

    @property
    def admission_key(self) -> str:
        """The key it is submitted under, however often."""
        return f"desk-{self.ticket}"

    @property
    def needs_a_person(self) -> bool:
        """Whether it is a refund that somebody has to allow."""
        return self.kind == "refund" and self.amount_minor > CEILING_MINOR

    def request(self) -> dict[str, Any]:
        """The input of the capability ``tickets.settle``."""
        return asdict(self)


class Expected(NamedTuple):
    """One effect that the provider must have exactly once when the ticket is settled."""

    path: str
    order: str
    amount_minor: int | None


def _recovery(number: int) -> str:
    if number == OPERATOR_TICKET:
        return "operator"
    return "reconcile" if number % 3 == 2 else "idempotent"


def _generate() -> Iterator[Ticket]:
    amounts = iter(_AMOUNTS_MINOR)
    for number in range(COUNT):
        kind = _PATTERN[number % len(_PATTERN)]
        amount = next(amounts) if kind == "refund" else 0
        yield Ticket(f"T-{number + 1:02d}", f"B-{7300 + 7 * number}", kind, amount, CURRENCY, _recovery(number))


TICKETS: tuple[Ticket, ...] = tuple(_generate())
REVIEWS: Mapping[str, str] = dict(
    zip((each.order for each in TICKETS if each.needs_a_person), (TWICE, LATE, AMENDED), strict=True)
)
"""What the reviewer does with each of the three, by order."""


def expected(ticket: Ticket) -> tuple[Expected, ...]:
    """What the provider's book must hold, once each, for a settled ticket."""
    notice = Expected("/notices", ticket.order, None)
    if ticket.kind == "refund":
        amended = REVIEWS.get(ticket.order) == AMENDED
        return Expected("/refunds", ticket.order, AMENDED_MINOR if amended else ticket.amount_minor), notice
    if ticket.kind == "reship":
        return Expected("/reships", ticket.order, None), notice
    return (notice,)


def provider_rules(ticket: Ticket, *, late_ms: int = LATE_MS) -> tuple[dict[str, Any], ...]:
    """How the provider treats this ticket's order for the whole run, as rules of its control API.

    A reconciled ticket meets a provider that ignores keys and commits late; the operator's refund meets one
    that ignores keys; the others meet one that honours them.
    """
    if ticket.recovery == "reconcile":
        return ({"method": "POST", "order": ticket.order, "ignore_keys": True, "late_ms": late_ms},)
    if ticket.recovery == "operator":
        return ({"method": "POST", "path": "/refunds", "order": ticket.order, "ignore_keys": True},)
    return ()
