"""The battery that holds every store engine to one contract.

Owns the list of guarantees that a journal's units may lean on, each as a check over a fresh store. Refuses to
stop at the first violation. Invariant: every violation is reported, and a check that checked nothing is one.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

import msgspec

from agentplane.testkit.ledger import Probe, StoreHandle

OpenStore = Callable[[], StoreHandle]
Check = Callable[[Probe, StoreHandle], None]
C = TypeVar("C", bound=Check)

CHECKS: dict[str, Check] = {}
"""Every check by its name, which is the guarantee; filled by the modules ``..._hold``."""


class Violation(msgspec.Struct, frozen=True):
    """One guarantee that did not hold, and how that showed."""

    check: str
    sentence: str


class Report(msgspec.Struct, frozen=True):
    """What was checked (statements held to, by check), and every violation."""

    held: dict[str, int]
    violations: tuple[Violation, ...]

    @property
    def sound(self) -> bool:
        return not self.violations and sum(self.held.values()) > 0

    def broken(self) -> set[str]:
        """The names of the checks that found something."""
        return {violation.check for violation in self.violations}


def check(body: C) -> C:
    """Add a check under its own name."""
    CHECKS[body.__name__] = body
    return body


def run_battery(open_store: OpenStore, checks: dict[str, Check] | None = None) -> Report:
    """Run every check on a fresh store of its own. Raises nothing: what a check dies of is a violation."""
    held: dict[str, int] = {}
    violations: list[Violation] = []
    for name, body in every_check().items() if checks is None else checks.items():
        probe = Probe()
        try:
            body(probe, open_store())
        except Exception as error:
            # The store under test may do anything; the battery goes on and says what it did.
            probe.violations.append(f"it ended with {type(error).__name__}: {error}")
        if not probe.held and not probe.violations:
            probe.violations.append("it checked nothing")
        held[name] = probe.held
        violations += [Violation(name, sentence) for sentence in probe.violations]
    if not held:
        violations.append(Violation("run_battery", "there was nothing to check"))
    return Report(held, tuple(violations))


def checks_of_work() -> dict[str, Check]:
    """The checks of what outlives a run: cases, obligations, events, tasks."""
    from agentplane.testkit import cases_hold, events_hold, obligations_hold, tasks_hold

    return _named(cases_hold, obligations_hold, events_hold, tasks_hold)


def every_check() -> dict[str, Check]:
    """All checks by name, in the order in which they are run."""
    # Imported here, because the modules of checks import this one to add theirs.
    from agentplane.testkit import appends_hold, leases_hold, undo_hold

    return _named(leases_hold, appends_hold, undo_hold) | checks_of_work()


def _named(*rooms: ModuleType) -> dict[str, Check]:
    return {name: CHECKS[name] for room in rooms for name in vars(room) if name in CHECKS}
