"""The rules of the prefix runner can fail: each is shown a history in which it alone is broken, and says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from trio.testing import MockClock

from agentplane.authoring.skill import Compensation
from agentplane.core.budget import Ledger
from agentplane.core.dispositions import Disposition
from agentplane.core.records import (
    EffectDone,
    EffectFailed,
    Fault,
    GroupSettled,
    Record,
    StepCompensated,
    StepFinished,
    UnwindBegan,
)
from agentplane.journal.lists import Stored
from agentplane.journal.timers import Timer
from agentplane.testkit import FakeProvider
from agentplane.testkit.prefix_rules import Seen, broken
from agentplane.testkit.worlds import Kept, kept_runs
from crash.undo_workloads import chain, grouped, step
from stories.scenes import opened

Change = Callable[[list[Record]], list[Record]]


async def recorded(where: Path, workload: str) -> Kept:
    """A run as it was recorded, before anybody changed it."""
    provider = FakeProvider()
    if workload == "saga":
        capability, beside = chain("order", step(provider, "a"), step(provider, "b"), step(provider, "c", fails=True))
    elif workload == "order":
        capability, beside = chain("order", step(provider, "a"), step(provider, "b"))
    else:
        capability, beside = grouped(provider, holds=workload == "committed"), []  # type: ignore[assignment]
    async with opened(where, capability, *beside) as plane:
        run = (await plane.run(capability.name, {})).run
    return kept_runs(where / "plane.db")[run]


def changed(kept: Kept, change: Change, **row: Any) -> Kept:
    """The same run with other records, numbered again."""
    records = change([item.record for item in kept.stored])
    stored = [
        Stored(msgspec.structs.replace(record, seq=at + 1), kept.stored[0].body, kept.stored[0].hash)
        for at, record in enumerate(records)
    ]
    return Kept(msgspec.structs.replace(kept.row, **row), stored)


def seen(kept: Kept, **more: Any) -> Seen:
    fields: dict[str, Any] = {"before": kept, "after": kept, "acted": [], "leased": False, "timers": [],
                              "declared": {}} | more  # fmt: skip
    return Seen(**fields)


def said(look: Seen) -> str:
    return " | ".join(broken(look, Counter(), at_rest=True))


def without(kind: type[Record], at: int = 0) -> Change:
    def change(records: list[Record]) -> list[Record]:
        found = [record for record in records if isinstance(record, kind)]
        return [record for record in records if record is not found[at]]

    return change


def with_each(kind: type[Record], **members: Any) -> Change:
    return lambda records: [
        msgspec.structs.replace(record, **members) if isinstance(record, kind) else record for record in records
    ]


def swapped(records: list[Record]) -> list[Record]:
    """The two compensations, and only they, in the other order."""
    one, two = (at for at, record in enumerate(records) if isinstance(record, StepCompensated))
    records[one], records[two] = records[two], records[one]
    return records


def doubtful(records: list[Record]) -> list[Record]:
    """The first effect in doubt."""
    at = next(at for at, record in enumerate(records) if isinstance(record, EffectDone))
    records[at] = EffectFailed(
        seq=1, run=records[at].run, epoch=1, v=1, at=records[at].at, step=0, effect_key=records[at].effect_key,
        fault=Fault(code="x", message="x"), disposition=Disposition.IN_DOUBT,
    )  # fmt: skip
    return records


BROKEN: list[tuple[str, Change, dict[str, Any], str]] = [
    ("order", without(StepFinished, 1), {}, "step 1 did not finish"),
    ("order", without(EffectDone), {}, "has no outcome and is not named"),
    ("order", with_each(StepFinished), {"log_index": None}, "a succeeded run is not sealed"),
    ("saga", swapped, {}, "unwound behind one that stood before it"),
    ("saga", doubtful, {}, "an unwind began while 1 effects were in doubt"),
    ("saga", without(UnwindBegan), {}, "unwound before the unwind began"),
    ("saga", with_each(StepCompensated, step=7), {}, "unwound before"),
    ("saga", without(StepCompensated), {"status": "cancelled"}, "a cancelled run has 1 effects standing"),
    ("saga", with_each(UnwindBegan), {"status": "cancelled"}, "a cancelled run is not sealed"),
    ("saga", with_each(UnwindBegan), {"landed": 1}, "0 effects stand by the records, 1 by the row"),
    ("saga", with_each(UnwindBegan), {"status": "running"}, "never came to rest"),
    ("committed", without(GroupSettled), {}, "was never settled"),
    ("committed", with_each(GroupSettled, outcome="aborted"), {}, "its deferred member is out"),
    ("committed", with_each(GroupSettled, outcome="aborted"), {}, "and member 0 stands"),
    ("aborted", with_each(GroupSettled, outcome="committed"), {}, "and a member of it was taken back"),
]


@pytest.mark.parametrize(("workload", "change", "row", "sentence"), BROKEN, ids=[case[3][:40] for case in BROKEN])
async def test_a_broken_history_is_said_to_be(
    autojump_clock: MockClock, tmp_path: Path, workload: str, change: Change, row: dict[str, Any], sentence: str
) -> None:
    """As it was recorded nothing is wrong with it; changed in one place, that is named."""
    kept = await recorded(tmp_path, workload)
    assert said(seen(kept)) == ""
    assert sentence in said(seen(changed(kept, change, **row)))


async def test_what_was_not_there_to_take_back(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A compensation of a step that neither completed nor landed anything."""
    kept = await recorded(tmp_path, "saga")

    def never(records: list[Record]) -> list[Record]:
        last = next(record for record in reversed(records) if isinstance(record, StepCompensated))
        return [msgspec.structs.replace(record, step=2) if record is last else record for record in records]

    assert "step 2 was taken back and never did anything" in said(seen(changed(kept, never)))


async def test_a_pivot_that_did_not_hold(autojump_clock: MockClock, tmp_path: Path) -> None:
    """What the build declares is held against what was taken back."""
    kept = await recorded(tmp_path, "saga")
    found = said(seen(kept, declared={"step.b": Compensation.PIVOT}))
    assert "step 0 was taken back, at or before the pivot 1" in found


async def test_a_ledger_and_timers_that_are_not_the_records(autojump_clock: MockClock, tmp_path: Path) -> None:
    """What an execution counted, and what stands in the table, are compared with the chain."""
    kept = await recorded(tmp_path, "order")
    assert "the ledger counted 0 effects, and the records say 2" in said(seen(kept, ledger=Ledger()))
    timer = Timer(kept.row.run, b"x" * 32, 1)
    assert "has 1 timers, and 0 waits" in said(seen(kept, timers=[timer]))


async def test_what_was_done_and_was_done_again(autojump_clock: MockClock, tmp_path: Path) -> None:
    """By the process that resumed, or by one process twice."""
    kept = await recorded(tmp_path, "order")
    key = next(item.record.effect_key for item in kept.stored if isinstance(item.record, EffectDone)) or ""
    found = said(seen(kept, acted=[key, key]))
    assert "had an outcome and was performed again" in found and "performed twice by one process" in found
