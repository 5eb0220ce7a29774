"""What undoes, met by a cancel at every commit and by each other: groups side by side, waits, replans, ceilings.

A cancel is recorded with the plane down, in every prefix, and served by whoever resumes it. The last tests draw whole
workloads by a seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from agentplane import Recovery, skill
from agentplane.authoring.plan import PlanTemplate, node, plan
from agentplane.authoring.skill import Skill
from agentplane.engine.plane import Outcome, Plane
from agentplane.testkit import FakeProvider, Report, crash_at_every_commit
from agentplane.testkit.worlds import Kept
from crash.undo_random import Program
from crash.undo_workloads import (
    COUNTED,
    all_or_nothing,
    cancelled,
    chain,
    grouped,
    replanned,
    side_by_side,
    step,
    with_a_pivot,
    with_entries,
)
from stories.scenes import ME, paying

Workload = tuple[PlanTemplate | Skill, list[Skill]]
HONEST = {"undeclared", "undecided", "compensation_failed", "group_quarantined", "group_open"}
"""Why a run may need a person; a quarantine for anything else is a defect of ours."""


def honestly(also: Callable[[Kept, Path], Iterable[str]] | None = None) -> Callable[[Kept, Path], Iterable[str]]:
    """No run is set aside for a defect; and ``also``."""

    def look(kept: Kept, store: Path) -> Iterable[str]:
        if kept.row.status == "quarantined" and kept.row.code not in HONEST:
            yield f"quarantined as {kept.row.code}: {kept.row.reason}"
        if also is not None:
            yield from also(kept, store)

    return look


def counted(report: Report) -> Report:
    report.check()
    COUNTED.update({"worlds": report.worlds, **{f"ended {end}": times for end, times in report.ends.items()}})
    return report


def two_groups(provider: FakeProvider) -> Workload:
    """One that commits, one that is given up, and a gather behind them; the undoing gathers too."""
    hold, release = paying(provider, "deed.hold"), paying(provider, "deed.release")
    mail, last, back = paying(provider, "deed.mail"), paying(provider, "deed.last"), paying(provider, "deed.back")

    @skill("step.two")
    async def two(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        async with cx.group("one", ["stock", "notify"]) as group:
            await group.reversible("stock", hold(order="1"), undo=lambda out: release(order=out["reference"]))
            group.deferred("notify", mail(order="1"))
            group.deferred("notify", mail(order="2"))
            await group.commit()
        async with cx.group("two", ["stock"]) as group:
            await group.reversible("stock", hold(order="3"), undo=lambda out: release(order=out["reference"]))
            await group.abort("not needed")
        return await cx.gather(last(order="1"), last(order="2"))

    @two.compensate
    async def undo(cx: Any, request: dict, output: Any) -> Any:  # type: ignore[type-arg]
        return await cx.gather(back(order="1"), back(order="2"))

    return two, []


def groups_side_by_side(provider: FakeProvider, *, fails: bool) -> Workload:
    """Two steps that wait inside of a group; both waits are due at once, and one step may fail behind its own."""

    def waiting(name: str, hours: int) -> Skill:
        hold, release = paying(provider, f"deed.hold-{name}"), paying(provider, f"deed.release-{name}")
        mail = paying(provider, f"deed.mail-{name}")

        @skill(f"step.{name}")
        async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
            async with cx.group(name, ["stock", "notify"]) as group:
                await group.reversible("stock", hold(), undo=release())
                group.deferred("notify", mail())
                await cx.sleep(hours=1)
                if fails and name == "x":
                    raise ValueError("no truck")
                if hours:
                    await cx.sleep(hours=hours)
                await group.commit()
            return name

        return body

    return side_by_side("order.groups", waiting("x", 0), waiting("y", 5))


def branches(provider: FakeProvider, *, fails: bool) -> Workload:
    """Two branches, one of which waits, and a step behind both."""
    a, b, c, d = (step(provider, "a"), step(provider, "b", days=1), step(provider, "c", fails=fails),
                  step(provider, "d"))  # fmt: skip
    nodes = [node(a.name), node(b.name), node(d.name, after=a.name), node(c.name, after=[b.name, d.name])]
    return plan("order.branches", nodes), [a, b, c, d]


async def raised(plane: Plane, outcome: Outcome) -> None:
    if outcome.status == "exhausted":
        await plane.raise_ceilings(outcome.run, {"max_effects": 9}, ME, "go on")


WORKLOADS: dict[str, Callable[[FakeProvider], Workload]] = {
    "two groups": two_groups,
    "groups side by side": lambda provider: groups_side_by_side(provider, fails=False),
    "groups side by side, one fails": lambda provider: groups_side_by_side(provider, fails=True),
    "branches": lambda provider: branches(provider, fails=False),
    "branches, then a failure": lambda provider: branches(provider, fails=True),
    "a pivot": with_a_pivot,
    "a replan": replanned,
    "a compensation that waits": lambda provider: chain(
        "order.wait", step(provider, "reserve", undo_days=1), step(provider, "close", fails=True)
    ),
    "a group across a wait": lambda provider: (grouped(provider, days=1), []),
    "a group that aborts": lambda provider: (grouped(provider, holds=False), []),
    "a group with an atomic member": lambda provider: (grouped(provider, atomic=True), []),
    "a group at its ceiling": lambda provider: (grouped(provider), []),
    "a failure beside a wait": lambda provider: side_by_side(
        "order.beside", step(provider, "hold", days=1), step(provider, "fall", fails=True)
    ),
}
PLAIN = {("groups side by side, one fails", False), ("groups side by side", False), ("a group that aborts", True),
         ("a compensation that waits", True)}  # fmt: skip
"""Those that once found a defect: the rest is heavy."""
MET = [
    pytest.param(name, met, id=f"{name}{', cancelled' if met else ''}",
                 marks=() if (name, met) in PLAIN else pytest.mark.heavy)
    for name in WORKLOADS for met in (False, True)
]  # fmt: skip


@pytest.mark.parametrize(("name", "met"), MET)
async def test_a_cancel_at_every_commit(autojump_clock: MockClock, name: str, met: bool) -> None:
    """Whatever the run is at, it is heard, or needs a person for a reason that a person can judge; without one, the
    same workload ends as it did."""
    provider = FakeProvider()
    workload, beside = WORKLOADS[name](provider)
    more: dict[str, Any] = {}
    if "atomic" in name:
        more = {"prepare": with_entries, "inside_units": False}
    if "ceiling" in name:
        more = {"asked": {"budget": {"max_effects": 2}}, "after": raised}
    if name.startswith("a group") and not met:
        more["also"] = None if "ceiling" in name else all_or_nothing(provider)
    report = await crash_at_every_commit(
        workload, {}, beside=beside, provider=provider, meanwhile=cancelled if met else None,
        as_well={"cancelled", "quarantined"} if met else (), **(more | {"also": honestly(more.get("also"))}),
    )  # fmt: skip
    counted(report)
    assert not met or report.ends["cancelled"] >= 2


async def test_doubts_side_by_side_are_all_named(autojump_clock: MockClock) -> None:
    """P3: of a gather, and of steps side by side, every effect that a person must answer for is named with the run."""
    provider = FakeProvider()
    pay = paying(provider, recovery=Recovery.REQUIRES_OPERATOR)

    @skill("step.three")
    async def three(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return await cx.gather(pay(order="1"), pay(order="2"), pay(order="3"))

    both = plan("order.both", [node("one", "step.three"), node("two", "step.three")])
    for met in (None, cancelled):
        report = await crash_at_every_commit(
            both, {}, beside=[three], provider=provider, meanwhile=met, also=honestly(),
            as_well=("quarantined", "cancelled"),
        )  # fmt: skip
        assert counted(report).ends["quarantined"] >= 6


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=() if seed in (2, 12) else pytest.mark.heavy) for seed in range(14)]
)
@pytest.mark.parametrize("met", [False, True])
async def test_a_drawn_workload(autojump_clock: MockClock, seed: int, met: bool) -> None:
    """Two to four steps of anything, with refusals and doubts of the provider, keep every rule at every commit."""
    program = Program(seed)
    report = await crash_at_every_commit(
        program.plan(), {}, beside=[*program.skills, program.spare], provider=program.provider, same_places=False,
        meanwhile=cancelled if met else None, also=honestly(),
        as_well=("succeeded", "failed", "quarantined", "cancelled"),
    )  # fmt: skip
    counted(report)
