"""Runs that wait, group and are taken back, held to Saga and EffectGroup by their records. Needs Java.

The runs are real ones, on a plane of their own; what the specifications do not allow is made of them by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from trio.testing import MockClock

from agentplane import Compensation, node, plan, skill
from agentplane.authoring.group import Invariant
from agentplane.authoring.skill import Skill
from agentplane.core.dispositions import Disposition
from agentplane.core.records import (
    EffectDone,
    EffectFailed,
    EffectStarted,
    Fault,
    GroupSettled,
    Record,
    RunConcluded,
    StepCompensated,
    StepFinished,
    UnwindBegan,
)
from agentplane.testkit.fakes import FakeProvider
from spec import tlc
from spec.histories import group_judged, saga_judged
from stories.scenes import ME, opened, paying, records, recovered

pytestmark = pytest.mark.heavy

UNDO, PIVOT, FREE, SILENT = Compensation
DAY_MS = 86_400_000
CHAIN = {0: set[int](), 1: {0}, 2: {1}}


@pytest.fixture(autouse=True)
def checker(need_tool: Callable[[str], str]) -> None:
    need_tool("java")
    try:
        tlc.jar()
    except tlc.Missing as error:
        pytest.skip(f"missing: {error}")


def step(
    provider: FakeProvider, name: str, declared: Compensation, *, fails: bool = False, waits: bool = False
) -> Skill:
    """A step that does one thing, and then waits or fails if it is told to; its compensation waits a day first."""
    do, undo = paying(provider, f"do.{name}"), paying(provider, f"undo.{name}")

    @skill(f"step.{name}", compensation=SILENT if declared is UNDO else declared)
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        done = await cx.do(do(order=name))
        if waits:
            await cx.sleep(days=1)
        if fails:
            raise RuntimeError("not today")
        return done

    if declared is UNDO:

        @body.compensate
        async def back(cx: Any, request: dict, output: Any) -> None:  # type: ignore[type-arg]
            await cx.sleep(days=1)
            await cx.do(undo(order=name))

    return body


async def unwound(where: Path, *steps: Skill, cancelled: bool = False) -> list[Record]:
    """The records of a chain of steps, woken until it has ended; cancelled when it first waits."""
    names = [one.name.rpartition(".")[2] for one in steps]
    nodes = [node(name, f"step.{name}", after=names[at - 1 : at] if at else ()) for at, name in enumerate(names)]
    whole: Any = plan("story.run", nodes)
    async with opened(where, *steps, whole) as plane:
        run = (await plane.run("story.run", {})).run
        if cancelled:
            await plane.cancel(run, ME, "enough")
        for days in range(2, 8):
            await plane.sweep.tick(plane.runs.world.now_ms() + days * DAY_MS)
            await plane.runs.wait_idle()
            await recovered(plane)
        return records(plane, run)


async def failed(where: Path) -> list[Record]:
    one = FakeProvider()
    return await unwound(where, step(one, "a", UNDO), step(one, "b", UNDO), step(one, "c", UNDO, fails=True))


async def cancelled(where: Path) -> list[Record]:
    one = FakeProvider()
    chain = step(one, "a", FREE), step(one, "b", UNDO), step(one, "c", UNDO, waits=True)
    return await unwound(where, *chain, cancelled=True)


async def pivoted(where: Path) -> list[Record]:
    one = FakeProvider()
    chain = step(one, "a", UNDO), step(one, "b", PIVOT), step(one, "c", UNDO, waits=True)
    return await unwound(where, *chain, cancelled=True)


SAGAS = {
    "failed": (failed, (UNDO, UNDO, UNDO)), "cancelled": (cancelled, (FREE, UNDO, UNDO)),
    "pivoted": (pivoted, (UNDO, PIVOT, UNDO)),
}  # fmt: skip


@pytest.mark.parametrize("name", SAGAS)
async def test_a_real_unwind_is_a_behaviour_of_the_saga(autojump_clock: MockClock, tmp_path: Path, name: str) -> None:
    """A failure whose compensations wait, a cancel of a waiting step, and one that stops at a pivot."""
    run, declared = SAGAS[name]
    found = await run(tmp_path)
    assert any(isinstance(one, UnwindBegan) for one in found) and isinstance(found[-1], RunConcluded)
    assert saga_judged(found, CHAIN, dict(enumerate(declared))).accepted


def without(found: list[Record], wanted: Callable[[Record], bool]) -> list[Record]:
    at = next(index for index, one in enumerate(found) if wanted(one))
    return found[:at] + found[at + 1 :]


def again(found: list[Record], kind: type[Record]) -> list[Record]:
    at = next(index for index, one in enumerate(found) if isinstance(one, kind))
    return [*found[: at + 1], found[at], *found[at + 1 :]]


def in_doubt(found: list[Record]) -> list[Record]:
    """The last forward effect of the chain did not answer."""
    at = max(index for index, one in enumerate(found) if isinstance(one, EffectDone) and one.phase is None)
    done = found[at]
    doubt = EffectFailed(
        seq=done.seq, run=done.run, epoch=done.epoch, v=done.v, at=done.at, step=done.step, effect_key=done.effect_key,
        fault=Fault(code="timeout", message="no answer"), disposition=Disposition.IN_DOUBT,
    )  # fmt: skip
    return [*found[:at], doubt, *found[at + 1 :]]


def in_order_of_steps(found: list[Record]) -> list[Record]:
    """The compensations swapped, each with all that it did."""
    begins = next(index for index, one in enumerate(found) if isinstance(one, UnwindBegan)) + 1
    first = next(index for index, one in enumerate(found) if isinstance(one, StepCompensated)) + 1
    return [*found[:begins], *found[first:-1], *found[begins:first], found[-1]]


def concluded_as(outcome: str) -> Callable[[list[Record]], list[Record]]:
    return lambda found: [*found[:-1], msgspec.structs.replace(found[-1], outcome=outcome)]


DOCTORED_SAGAS: dict[str, Callable[[list[Record]], list[Record]]] = {
    "in order of the steps": in_order_of_steps,
    "around doubt": in_doubt,
    "undone before it is said that the run only undoes": lambda f: without(f, lambda one: isinstance(one, UnwindBegan)),
    "one step left": lambda f: without(f, lambda one: isinstance(one, StepCompensated) and one.step == 0),
    "said twice": lambda f: again(f, StepCompensated),
    "begun twice": lambda f: again(f, UnwindBegan),
    "cancelled by nobody": concluded_as("cancelled"),
    "succeeded": concluded_as("succeeded"),
    "of a step that never ended": lambda f: without(f, lambda one: isinstance(one, StepFinished) and one.step == 1),
}


@pytest.mark.parametrize("how", DOCTORED_SAGAS)
async def test_a_doctored_unwind_is_none(autojump_clock: MockClock, tmp_path: Path, how: str) -> None:
    """Its records moved, doubled, changed or left out."""
    found = DOCTORED_SAGAS[how](await failed(tmp_path))
    assert not saga_judged(found, CHAIN, dict.fromkeys(range(3), UNDO)).accepted


@pytest.mark.parametrize("declared", [(UNDO, SILENT, UNDO), (UNDO, PIVOT, UNDO), (FREE, UNDO, UNDO)])
async def test_an_unwind_that_its_declarations_forbid_is_none(
    autojump_clock: MockClock, tmp_path: Path, declared: tuple[Compensation, ...]
) -> None:
    """The same records under code that declared something else."""
    assert not saga_judged(await failed(tmp_path), CHAIN, dict(enumerate(declared))).accepted


# --- groups -----------------------------------------------------------------------------------------------------------


async def group_run(where: Path, *, holds: bool, waits: bool = False, refused: bool = False) -> list[Record]:
    """Three reservations, two notices: committed, or taken back because of what does not hold or is refused."""
    provider = FakeProvider()
    hold, free, tell = (paying(provider, f"shop.{name}") for name in ("hold", "free", "tell"))
    if refused:
        provider.tell("tell", *["did_not_happen"] * 3)

    @skill("story.run")
    async def body(cx: Any, request: dict) -> str:  # type: ignore[type-arg]
        async with cx.group("checkout", ["stock", "mail"]) as group:
            for name in "abc":
                await group.reversible("stock", hold(order=name), undo=free(order=name))
                if waits and name == "a":
                    await cx.sleep(days=1)
            group.deferred("mail", tell(order="d"))
            group.deferred("mail", tell(order="e"))
            await group.commit(Invariant("it fits", holds))
        return "done"

    async with opened(where, body) as plane:
        run = (await plane.run("story.run", {})).run
        await plane.sweep.tick(plane.runs.world.now_ms() + 2 * DAY_MS)
        await plane.runs.wait_idle()
        await recovered(plane)
        return records(plane, run)


GROUPS = {
    "committed": {"holds": True}, "across a wait": {"holds": True, "waits": True}, "rejected": {"holds": False},
    "refused at the gate": {"holds": True, "refused": True},
}  # fmt: skip


@pytest.mark.parametrize("name", GROUPS)
async def test_a_real_group_is_a_behaviour_of_the_group(autojump_clock: MockClock, tmp_path: Path, name: str) -> None:
    """Committed, also when it spans a wait; taken back by an invariant, or by what failed first behind it."""
    found = await group_run(tmp_path, **GROUPS[name])
    settled = [one.outcome for one in found if isinstance(one, GroupSettled)]
    assert settled == ["committed" if name in ("committed", "across a wait") else "aborted"]
    assert group_judged(found, 0).accepted


def settled_as(outcome: str) -> Callable[[list[Record]], list[Record]]:
    return lambda found: [
        msgspec.structs.replace(one, outcome=outcome) if isinstance(one, GroupSettled) else one for one in found
    ]


def of_role(role: str, at: int, found: list[Record]) -> tuple[str, list[Record]]:
    """The records of the ``at``-th member of a role, and its key."""
    keys = [one.effect_key for one in found if isinstance(one, EffectStarted) and one.role == role]
    return str(keys[at]), [one for one in found if one.effect_key == keys[at]]


def left_out(role: str, at: int) -> Callable[[list[Record]], list[Record]]:
    return lambda found: [one for one in found if one.effect_key != of_role(role, at, found)[0]]


def in_front(role: str, at: int, of: str, of_at: int = -1) -> Callable[[list[Record]], list[Record]]:
    def moved(found: list[Record]) -> list[Record]:
        rest, (first, _) = left_out(role, at)(found), of_role(of, of_at, found)
        to = next(index for index, one in enumerate(rest) if one.effect_key == first)
        return [*rest[:to], *of_role(role, at, found)[1], *rest[to:]]

    return moved


DOCTORED_GROUPS: dict[str, tuple[bool, Callable[[list[Record]], list[Record]]]] = {
    "a notice before the last reservation": (True, in_front("deferred", 0, "reversible")),
    "a notice that was never sent": (True, left_out("deferred", 1)),
    "aborted over what stands": (True, settled_as("aborted")),
    "never settled": (True, lambda f: without(f, lambda one: isinstance(one, GroupSettled))),
    "settled twice": (True, lambda f: again(f, GroupSettled)),
    "a reservation that nobody took back": (False, left_out("reversal", 2)),
    "taken back in order": (False, in_front("reversal", 2, "reversal", 0)),
    "committed over what was taken back": (False, settled_as("committed")),
}


@pytest.mark.parametrize("how", DOCTORED_GROUPS)
async def test_a_doctored_group_is_none(autojump_clock: MockClock, tmp_path: Path, how: str) -> None:
    """Its records moved, doubled, changed or left out."""
    holds, doctor = DOCTORED_GROUPS[how]
    found = doctor(await group_run(tmp_path, holds=holds))
    assert not group_judged(found, 0).accepted
