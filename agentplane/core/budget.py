"""Budgets: what a run may use, what it has used, and when it must stop and ask.

Owns the ceilings, the count of what the records say was used, and the verdict between the two. Refuses a ceiling that
is no natural number, a request that widens one and a raise that raises nothing. Invariant: counting record by record
is counting them all, in whatever order series met; what is exempt from the verdict is counted all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from agentplane.core import bounds
from agentplane.core.errors import BudgetFault
from agentplane.core.records import (
    EffectDone,
    EffectFailed,
    EffectStarted,
    Exhaustion,
    PlanFrozen,
    Record,
    StepStarted,
)

What = Literal["step", "effect", "replan", "denial"]
"""What is asked for: beginning a step, announcing an attempt, freezing a successor, surviving one more denial."""


class Budget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The ceilings of a run; what is not named is not limited.

    Units: steps begun, attempts announced, successors of the plan, denials, steps side by side, tokens, minor units of
    the plane's currency, seconds between the first and the last recorded reading of the clock. Raises BudgetFault.
    """

    max_steps: int | None = None
    max_effects: int | None = None
    max_replans: int | None = None
    max_denials: int | None = None
    max_parallel_steps: int | None = None
    max_tokens: int | None = None
    max_minor_units: int | None = None
    max_wallclock_s: int | None = None

    def __post_init__(self) -> None:
        for name in MEMBERS:
            value = getattr(self, name)
            if value is not None:
                _check(name, value)

    def to_data(self) -> dict[str, int]:
        """The ceilings that are set, by name: what ``RunAdmitted.budget`` holds."""
        return {name: value for name in MEMBERS if (value := getattr(self, name)) is not None}


MEMBERS: Final = Budget.__struct_fields__
"""The names of the ceilings."""

SPENDS: Final = ("max_tokens", "max_minor_units")
"""Ceilings of which nobody knows what an operation will take until it has ended."""

ASKED: Final[Mapping[str, tuple[str, ...]]] = {
    "step": ("max_steps", *SPENDS, "max_wallclock_s"),
    "effect": ("max_effects", *SPENDS, "max_wallclock_s"),
    "replan": ("max_replans",),
    "denial": ("max_denials",),
}
"""Which ceilings each question is held against, in the order in which the first that is reached is named."""


def _check(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise BudgetFault(f"The ceiling {name} must be a whole number, not {value!r:.40}.", limit=name)
    least = 1 if name == "max_parallel_steps" else 0
    if not least <= value <= bounds.CEILING_MAX:
        shown = value if abs(value) <= bounds.CEILING_MAX else "a larger number"
        raise BudgetFault(
            f"The ceiling {name} must be a whole number from {least} to {bounds.CEILING_MAX}, not {shown}.", limit=name
        )


def _known(data: object) -> dict[str, object]:
    if not isinstance(data, Mapping):
        raise BudgetFault(f"A budget is an object of ceilings by name, such as max_effects, not {data!r:.40}.")
    for name in data:
        if name not in MEMBERS:
            raise BudgetFault(f"A budget has no ceiling {name!r:.80}; it has {', '.join(MEMBERS)}.")
    return dict(data)


def from_data(data: object) -> Budget:
    """The budget in plain data (names of ceilings to natural numbers, or None for no ceiling). Raises BudgetFault."""
    found: dict[str, object] = _known(data)
    for name, value in found.items():
        if value is not None:
            _check(name, value)
    return msgspec.convert(found, Budget)


def narrow(outer: Budget | None, inner: Budget | None) -> Budget:
    """The ceilings that hold when ``inner`` is asked for inside of ``outer``. Raises BudgetFault where it is wider."""
    outer, inner = outer or Budget(), inner or Budget()
    held = outer.to_data()
    for name, wanted in inner.to_data().items():
        if wanted > held.get(name, wanted):
            raise BudgetFault(
                f"A budget may only narrow: {name} is {held[name]} here, and {wanted} was asked for.", limit=name
            )
        held[name] = wanted
    return from_data(held)


def raised(budget: Budget, ceilings: Mapping[str, int]) -> Budget:
    """``budget`` with ``ceilings`` in the place of the lower ones that hold. Raises BudgetFault for anything else."""
    held = budget.to_data()
    wanted = _known(ceilings)
    if not wanted:
        raise BudgetFault(f"Name at least one ceiling to raise, of {', '.join(MEMBERS)}.")
    for name, value in wanted.items():
        _check(name, value)
        if name not in held:
            raise BudgetFault(f"The run has no ceiling {name}, so there is none to raise.", limit=name)
        if ceilings[name] <= held[name]:
            raise BudgetFault(
                f"The ceiling {name} is {held[name]}; raise it to more than that, not to {value}.", limit=name
            )
    return from_data(held | wanted)


def serial(budget: Budget) -> bool:
    """Whether a step may have one effect in flight at most: only so does a ceiling on spend overshoot by no more than
    one operation of each step."""
    return any(getattr(budget, name) is not None for name in SPENDS)


class Ledger:
    """What a run has used, by its records. ``reserved`` counts announcements that are queued and not read back."""

    __slots__ = ("denials", "effects", "first_s", "last_s", "minor_units", "plans", "reserved", "steps", "tokens")

    def __init__(self) -> None:
        self.steps = 0
        self.effects = 0
        self.plans = 0
        self.denials = 0
        """Counted by whoever decides a denial; no record of one exists yet."""
        self.tokens = 0
        self.minor_units = 0
        self.first_s: int | None = None
        self.last_s: int | None = None
        self.reserved = 0

    @property
    def replans(self) -> int:
        """Plans after the first."""
        return max(0, self.plans - 1)

    def add(self, record: Record, *, reserved: bool = False) -> None:
        """Count one record, whichever it is; a kind that uses nothing changes nothing.

        Every announcement takes its slot and every outcome its bill, a compensation's and a reversal's too.
        ``reserved``: this announcement had been reserved, and from here on it is counted as recorded.
        """
        if isinstance(record, EffectStarted):
            self.effects += 1
            if record.clock_s is not None:
                self.read(record.clock_s)
            if reserved:
                self.unreserve_effect()
        elif isinstance(record, EffectDone | EffectFailed):
            self.tokens += record.spend.tokens
            self.minor_units += record.spend.minor_units
        elif isinstance(record, StepStarted):
            self.steps += 1
        elif isinstance(record, PlanFrozen):
            self.plans += 1

    def read(self, at_s: int) -> None:
        """Take in one recorded reading of the clock, in seconds."""
        self.first_s = at_s if self.first_s is None else min(self.first_s, at_s)
        self.last_s = at_s if self.last_s is None else max(self.last_s, at_s)

    def reserve_effect(self) -> None:
        """An announcement is queued: it takes its slot now, so that those side by side with it see it taken."""
        self.reserved += 1

    def unreserve_effect(self) -> None:
        """A reserved announcement was withdrawn or refused, and will never be recorded."""
        self.reserved = max(0, self.reserved - 1)

    def used(self, limit: str, now_s: int | None = None) -> int | None:
        """What counts against the ceiling ``limit``; None where it has no count (or no reading of the clock)."""
        if limit == "max_effects":
            return self.effects + self.reserved
        if limit == "max_wallclock_s":
            return self._span(now_s)
        if limit == "max_parallel_steps":
            return None
        count: int = getattr(self, limit.removeprefix("max_"))
        return count

    def _span(self, now_s: int | None) -> int | None:
        if now_s is None or self.first_s is None or self.last_s is None:
            return None
        # A clock that was set back must not give time back.
        return max(self.last_s, now_s) - min(self.first_s, now_s)


def verdict(ledger: Ledger, budget: Budget, what: What, now_s: int | None = None) -> Exhaustion | None:
    """The first ceiling that ``what`` would go past, or None when it may go on.

    ``now_s``: the reading that the announcement would record. Whoever asks for a compensation or a reversal does not
    ask here: refusing to undo would strand what the ceiling was to bound.
    """
    for limit in ASKED[what]:
        allowed = getattr(budget, limit)
        if allowed is None:
            continue
        used = ledger.used(limit, now_s)
        if used is not None and used >= allowed:
            return Exhaustion(limit=limit, allowed=allowed, used=used)
    return None
