"""Two features in one run: whichever two meet, each does what it is for, and every rule of a run holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from agentplane.core.dispositions import Disposition
from agentplane.core.history import History
from agentplane.core.records import (
    BudgetReadmitted,
    BudgetRefused,
    EffectDone,
    EffectFailed,
    EffectReconciled,
    EffectStarted,
    GroupSettled,
    PlanFrozen,
    Record,
    RunCancelled,
    RunSuspended,
    StepCompensated,
)
from agentplane.engine.plane import Plane
from agentplane.journal import lists, timers
from agentplane.testkit.prefix_rules import Seen, broken
from agentplane.testkit.worlds import Kept
from stories.checkouts import entries
from stories.meetings import FEATURES, STOPS, Meeting
from stories.scenes import history, records

CHECKED: Counter[str] = Counter()
PAIRS = [tuple(pair) for pair in combinations(FEATURES, 2)]


def side_by_side(found: list[Record]) -> int:
    """How many announcements stood without an outcome at once."""
    most, standing = 0, set[str | None]()
    for record in found:
        if isinstance(record, EffectStarted):
            standing.add(record.effect_key)
        elif isinstance(record, EffectDone | EffectFailed):
            standing.discard(record.effect_key)
        most = max(most, len(standing))
    return most


def refused_and_asked_again(read: History) -> bool:
    return any(
        isinstance(trial.outcome, EffectFailed) and trial.outcome.disposition is Disposition.DID_NOT_HAPPEN
        for series in read.series.values()
        for trial in series.trials[:-1]
    )


def has_kind(kind: type[Any], **wanted: Any) -> Callable[[Meeting, list[Record], History], bool]:
    def holds(meeting: Meeting, found: list[Record], read: History) -> bool:
        return any(
            isinstance(one, kind) and all(getattr(one, name) == value for name, value in wanted.items())
            for one in found
        )

    return holds


def budget_met(meeting: Meeting, found: list[Record], read: History) -> bool:
    """Refused and, given more, readmitted; where the run only undid, it went past the ceiling and was counted."""
    if meeting.has("saga") and not meeting.has("replan"):
        return read.ledger.effects > 1 and not has_kind(BudgetRefused)(meeting, found, read)
    readmitted = meeting.has("cancel") or has_kind(BudgetReadmitted)(meeting, found, read)
    return readmitted and has_kind(BudgetRefused)(meeting, found, read)


def group_met(meeting: Meeting, found: list[Record], read: History) -> bool:
    """Committed, and sent what waited; where it was stopped going forward, taken back and nothing sent."""
    mailed = sum(row.name == "mail" for row in meeting.provider.book)
    stopped = meeting.has("cancel") and not meeting.has("saga")
    wanted = "aborted" if stopped else "committed"
    return mailed == int(not stopped) and has_kind(GroupSettled, outcome=wanted)(meeting, found, read)


SEEN: dict[str, Callable[[Meeting, list[Record], History], bool]] = {
    "retry": lambda meeting, found, read: refused_and_asked_again(read),
    "reconcile": has_kind(EffectReconciled, verdict="landed"),
    "saga": has_kind(StepCompensated),
    "group": group_met,
    "atomic": lambda meeting, found, read: True,  # its row is looked at below
    "cancel": has_kind(RunCancelled),
    "budget": budget_met,
    "replan": lambda meeting, found, read: sum(isinstance(one, PlanFrozen) for one in found) == 2,
    "suspend": has_kind(RunSuspended),
    "gather": lambda meeting, found, read: side_by_side(found) >= 2,
    "takeover": lambda meeting, found, read: "takeover" in meeting.met and len({one.epoch for one in found}) > 1,
    "drain": lambda meeting, found, read: "drain" in meeting.met,
    "held": lambda meeting, found, read: "held" in meeting.met and len({one.epoch for one in found}) > 1,
}
"""What each feature leaves behind where it was at work."""


def rules(meeting: Meeting, plane: Plane) -> list[str]:
    """What is wrong with the run at its end, by the rules that hold of every run; reading it verifies its chain."""
    run = meeting.run
    row, stored, armed = plane.store.readers.read(
        lambda tx: (lists.get_run(tx, run), lists.whole_history(tx, run), timers.of_run(tx, run))
    )
    leased = plane.store.readers.read(lambda tx: tx.one("SELECT owner FROM lease WHERE run = ?", run))
    after = Kept(row, stored)
    declared = {one.name: one.compensation for one in meeting.capabilities() if hasattr(one, "compensation")}
    seen = Seen(before=Kept(row, []), after=after, acted=meeting.acted, leased=bool(leased and leased[0]),
                timers=armed, declared=declared, provider=meeting.provider)  # fmt: skip
    return broken(seen, CHECKED, at_rest=True)


def can_meet(features: tuple[str, ...]) -> bool:
    """Whether one run of the fragment can show all of them: each is stopped at one place only."""
    these = set(features)
    stops = these.intersection(STOPS)
    return not (
        ("budget" in these and (stops or "cancel" in these))
        or ("cancel" in these and (len(stops) > 1 or (stops and "suspend" in these)))
        or len(stops) > 2
        or these == {"suspend", "gather", "takeover"}
    )


async def meet(where: Path, features: tuple[str, ...]) -> None:
    """Build and play a run of ``features`` and look at its end."""
    meeting = Meeting(where, set(features))
    looked = []

    async def look(plane: Plane) -> None:
        looked.append(plane)
        found, read = records(plane, meeting.run), history(plane, meeting.run)
        outcome = await plane.outcome(meeting.run)
        wanted = "cancelled" if "cancel" in features else "failed" if "saga" in features else "succeeded"
        assert outcome.status == wanted, outcome
        assert rules(meeting, plane) == []
        for feature in features:
            assert SEEN[feature](meeting, found, read), f"{feature} was not at work"
        if "atomic" in features:
            assert len(entries(plane)) == int("cancel" not in features or "saga" in features)
        sent = Counter(one.key for one in meeting.provider.asked)
        announced = Counter(one.idempotency_key for one in found if isinstance(one, EffectStarted))
        assert not sent - announced, "a request that no record announces"
        if wanted != "cancelled":
            assert (await plane.replay(meeting.run, strict=True)).verdict == "verified"
            assert sent == Counter(one.key for one in meeting.provider.asked), "a strict replay asked"

    await meeting.play(look)
    assert looked


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
async def test_two_features_meet(autojump_clock: MockClock, tmp_path: Path, pair: tuple[str, str]) -> None:
    """Both were at work in the run, it ended as it should, no rule is broken, nothing was sent that is not announced,
    and what it was told is what it is told when it is replayed."""
    await meet(tmp_path, pair)


@pytest.mark.heavy
@pytest.mark.parametrize("three", [three for three in combinations(FEATURES, 3) if can_meet(three)], ids="-".join)
async def test_three_features_meet(autojump_clock: MockClock, tmp_path: Path, three: tuple[str, ...]) -> None:
    """The same of any three that one run can show."""
    await meet(tmp_path, three)
