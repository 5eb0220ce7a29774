"""Every series that the recovery tests decide: endings, what was said, modes and ages, and their words.

It owns the enumeration and the notation, and nothing of what is right. It takes the module under test as an
argument, so that a mutated copy goes through the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from types import ModuleType
from typing import Any, NamedTuple

from agentplane.core.dispositions import Disposition
from agentplane.core.retry import RetryPolicy

NOW = 1_800_000_000_000
FRESH = NOW - 60_000
PAST = NOW - 72_000_001
WINDOW_S = 72_000
POLICY = RetryPolicy(max_attempts=2, max_deaths=1)
PATIENT = RetryPolicy(max_attempts=50, max_deaths=1)

ENDINGS: dict[str, dict[str, Any]] = {
    "orphan": {},
    "done": {"done": True},
    "refused": {"ending": Disposition.DID_NOT_HAPPEN},
    "refused for good": {"ending": Disposition.DID_NOT_HAPPEN, "permanent": True},
    "refused for now": {"ending": Disposition.DID_NOT_HAPPEN, "retry_after_ms": 7_000},
    "in doubt": {"ending": Disposition.IN_DOUBT},
    "in doubt for good": {"ending": Disposition.IN_DOUBT, "permanent": True},
    "lost": {"ending": Disposition.IN_DOUBT, "by_death": True},
    "landed": {"ending": Disposition.LANDED},
    "landed for good": {"ending": Disposition.LANDED, "permanent": True},
    "replayed failure": {"ending": Disposition.IN_DOUBT, "permanent": True, "replayed_failure": True},
}
SAID: dict[str, tuple[tuple[str, bool], ...]] = {
    "": (),
    "probe: landed": (("landed", False),),
    "probe: did not happen": (("did_not_happen", False),),
    "probe: unknown": (("inconclusive", False),),
    "probe: unknown x3": (("inconclusive", False),) * 3,
    "probe: so far": (("so_far", False),),
    "probe: so far, did not happen": (("so_far", False), ("did_not_happen", False)),
    "person: landed": (("landed", True),),
    "person: did not happen": (("did_not_happen", True),),
    "person: again": (("retry_granted", True),),
}
EARLIER = [
    ("orphan", ""),
    ("done", ""),
    ("refused", ""),
    ("refused for good", ""),
    ("in doubt", ""),
    ("lost", ""),
    ("landed", ""),
    ("replayed failure", ""),
    ("in doubt", "probe: landed"),
    ("in doubt", "probe: did not happen"),
    ("in doubt", "probe: unknown"),
    ("lost", "person: did not happen"),
    ("replayed failure", "person: did not happen"),
    ("refused", "person: again"),
]
LAST = list(product(ENDINGS, SAID))
AGES = {
    "fresh": (FRESH, FRESH, NOW),
    "past": (PAST, PAST, NOW),
    "unknown": (None, None, NOW),
    "backwards": (NOW + 5_000, NOW + 5_000, NOW),
    "suspect clock": (FRESH, FRESH, None),
}

Spec = tuple[tuple[str, str], ...]


class Row(NamedTuple):
    """One question to ``decide_recovery``, in words and as values."""

    spec: Spec
    mode: str
    probe: bool
    mutates: bool
    age_name: str
    attempts: Any
    declared: Any
    age: Any

    def words(self) -> str:
        series = "; ".join(ending + (f" ({said})" if said else "") for ending, said in self.spec)
        kind, probe = "mutates" if self.mutates else "reads", "probe" if self.probe else "no probe"
        return f"{self.mode:<17} {kind:<7} {probe:<8} {self.age_name:<13} {series}"


def attempts_of(module: ModuleType, spec: Spec) -> Any:
    return tuple(
        module.Attempt(
            number=number,
            said=tuple(module.Said(module.Answer(answer), by_person=person) for answer, person in SAID[said]),
            **ENDINGS[ending],
        )
        for number, (ending, said) in enumerate(spec, start=1)
    )


def row(module: ModuleType, spec: Spec, mode: str, probe: bool, mutates: bool, age: str) -> Row:
    declared = module.Declared(mode=module.Mode(mode), mutates=mutates, probe=probe, window_s=WINDOW_S)
    first, last, now = AGES[age]
    asked = module.Age(first_ms=first, last_ms=last, now_ms=now)
    return Row(spec, mode, probe, mutates, age, attempts_of(module, spec), declared, asked)


def rows(module: ModuleType, depth: int) -> Iterator[Row]:
    """All rows up to ``depth`` attempts; the ages that only a key window looks at where there is one."""
    settings = [
        row(module, (("done", ""),), mode, probe, mutates, age)
        for mode, probe, mutates, age in product(
            [str(mode) for mode in module.Mode], (True, False), (True, False), AGES
        )
        if mode == "idempotent" or age in ("fresh", "unknown")
    ]
    for length in range(1, depth + 1):
        # With an output before it, a third attempt changes nothing that the second did not show.
        before = [spec for spec in EARLIER if length < 3 or not (spec[0] == "done" or "landed" in spec[1])]
        for spec in ((*earlier, last) for earlier in product(before, repeat=length - 1) for last in LAST):
            attempts = attempts_of(module, spec)
            for setting in settings:
                yield setting._replace(spec=spec, attempts=attempts)
