"""What is undone in the prefix tests: skills and plans over one provider, and what its book must say in the end.

Each workload is a function of the provider, so that every test has skills of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from agentplane import skill
from agentplane.authoring.group import Invariant
from agentplane.authoring.plan import PlanTemplate, node, plan
from agentplane.authoring.raising import Replan
from agentplane.authoring.skill import Compensation, Skill
from agentplane.authoring.sql import sql
from agentplane.engine.plane import Outcome, Plane
from agentplane.testkit import FakeProvider, Report
from agentplane.testkit.worlds import Kept
from stories.scenes import ME, paying

TWO_DAYS = 2
"""Longer than a lease, shorter than what makes a clock suspect at start (seven days)."""

COUNTED: Counter[str] = Counter()
"""Worlds and ends over every report of this process, for whoever asks how much was looked at."""


def held(report: Report, *, least: int, ends: set[str], looked_at: Iterable[str] = ()) -> Report:
    """The report, once it is known to have looked at enough, at ``looked_at`` in particular, and to have found
    nothing."""
    report.check()
    assert report.commits >= least and report.worlds >= 10, (report.commits, report.worlds)
    assert report.duplicate_effects == 0, "the unique index had to save replay"
    assert report.ends and set(report.ends) <= ends, report.ends
    for rule in looked_at:
        assert report.checked[rule], f"no world had anything to say about: {rule}"
    COUNTED.update({"worlds": report.worlds, **{f"ended {end}": times for end, times in report.ends.items()}})
    return report


async def cancelled(plane: Plane, run: str) -> None:
    """A person asks the run to stop."""
    await plane.cancel(run, ME, "not wanted any more")


async def cancelled_after(plane: Plane, outcome: Outcome) -> None:
    await cancelled(plane, outcome.run)


def step(
    provider: FakeProvider, name: str, *, fails: bool = False, mutates: bool = True, days: float = 0,
    compensation: Compensation = Compensation.COMPENSATABLE, undo_days: float = 0,
) -> Skill:  # fmt: skip
    """``name`` does one deed of its name, and its compensation one of that name and ``-back``; ``days`` it waits
    behind the deed, ``undo_days`` in the middle of taking it back."""
    deed, back = paying(provider, f"deed.{name}", mutates=mutates), paying(provider, f"deed.{name}-back")
    settle = paying(provider, f"deed.{name}-settle")

    @skill(f"step.{name}", compensation=compensation)
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        done = await cx.do(deed()) if not fails else None
        if days:
            await cx.sleep(days=days)
        if fails:
            raise ValueError(f"{name} cannot be done")
        return done

    if compensation is Compensation.COMPENSATABLE:

        @body.compensate
        async def undo(cx: Any, request: dict, output: Any) -> Any:  # type: ignore[type-arg]
            await cx.do(back())
            if undo_days:
                await cx.sleep(days=undo_days)
                await cx.do(settle())
            return name

    return body


def chain(name: str, *skills: Skill) -> tuple[PlanTemplate, list[Skill]]:
    """A plan of ``skills`` one after the other, and what it needs beside it."""
    nodes = [node(each.name, after=skills[at - 1].name if at else ()) for at, each in enumerate(skills)]
    return plan(name, nodes), list(skills)


def side_by_side(name: str, *skills: Skill) -> tuple[PlanTemplate, list[Skill]]:
    return plan(name, [node(each.name) for each in skills]), list(skills)


def with_a_pivot(provider: FakeProvider) -> tuple[PlanTemplate, list[Skill]]:
    """Reserved before the pivot, noted and shipped behind it, and then it fails."""
    look = paying(provider, "deed.look", mutates=False)

    @skill("step.look")
    async def looking(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return await cx.do(look())

    return chain(
        "order.pivot",
        step(provider, "reserve"),
        step(provider, "capture", compensation=Compensation.PIVOT),
        step(provider, "note", compensation=Compensation.UNNECESSARY),
        looking,
        step(provider, "ship"),
        step(provider, "close", fails=True),
    )


def loop(provider: FakeProvider, times: int) -> Skill:
    """One step of many deeds, all taken back by one."""
    deed, back = paying(provider, "deed.one"), paying(provider, "deed.all-back")

    @skill("step.loop")
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        for at in range(times):
            await cx.do(deed(order=f"A-{at}"))
        return times

    @body.compensate
    async def undo(cx: Any, request: dict, output: Any) -> Any:  # type: ignore[type-arg]
        return await cx.do(back())

    return body


def replanned(provider: FakeProvider) -> tuple[PlanTemplate, list[Skill]]:
    """Reserved, then planned anew without the reservation; the new plan fails."""
    instead = step(provider, "instead", fails=True)

    @skill("step.rethink", compensation=Compensation.UNNECESSARY)
    async def rethink(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        raise Replan("the carrier is gone", [node(instead.name)])

    first, skills = chain("order.replan", step(provider, "reserve"), rethink)
    return first, [*skills, instead]


def grouped(
    provider: FakeProvider, *, holds: bool = True, raises: bool = False, days: float = 0, atomic: bool = False,
    **terms: Any,
) -> Skill:  # fmt: skip
    """Two holds that are released, a read, a mail that waits for the frontier, and a row of the ledger."""
    hold, release = paying(provider, "deed.hold", **terms), paying(provider, "deed.release")
    look, mail = paying(provider, "deed.look", mutates=False), paying(provider, "deed.mail")

    @skill("step.checkout")
    async def checkout(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        async with cx.group("checkout", ["stock", "ledger", "notify"]) as group:
            for order in ("1", "2"):
                await group.reversible("stock", hold(order=order), undo=release(order=order))
            await group.read("stock", look())
            group.deferred("notify", mail())
            if atomic:
                group.atomic("ledger", sql("INSERT INTO app_entries VALUES (?, ?)", cx.run, 3, rows=1))
            if days:
                await cx.sleep(days=days)
            if raises:
                raise ValueError("no truck")
            await group.commit(Invariant("the hold covers the order", holds))
        return "done"

    return checkout


async def with_entries(plane: Plane) -> None:
    """The application's own table."""
    await plane.writer.do(lambda tx: tx.run("CREATE TABLE app_entries (run TEXT PRIMARY KEY, amount INT) STRICT"))


def all_or_nothing(provider: FakeProvider) -> Callable[[Kept, Path], Iterable[str]]:
    """What the book may say of a group: a mail and both holds and no release, or no mail and as many releases as
    holds."""

    def look(kept: Kept, store: Path) -> Iterable[str]:
        deeds = Counter(row.name for row in provider.book)
        whole = deeds["mail"] == 1 and deeds["hold"] == 2 and not deeds["release"]
        none = not deeds["mail"] and deeds["hold"] == deeds["release"]
        if not (whole if kept.row.status == "succeeded" else none or kept.row.status == "quarantined"):
            yield f"the run is {kept.row.status}, and the book says {dict(deeds)}"

    return look


def taken_back(provider: FakeProvider, *pairs: tuple[str, str]) -> Callable[[Kept, Path], Iterable[str]]:
    """Of each (deed, its undoing) that the book holds, the undoing too where the run did not succeed; never else."""

    def look(kept: Kept, store: Path) -> Iterable[str]:
        deeds = {row.name for row in provider.book}
        if kept.row.status == "quarantined":
            return
        for deed, back in pairs:
            wanted = deed in deeds and kept.row.status != "succeeded"
            if (back in deeds) != wanted:
                yield f"{kept.row.status}, and of {deed} and {back} the book has {sorted(deeds & {deed, back})}"

    return look
