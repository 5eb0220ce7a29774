"""What the stories share: a plane under a stopped clock, its records as kinds, and the skills' own shorthand.

Nothing here asserts: a story says what it holds in its own words.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from agentplane import Recovery, RetryPolicy, effect, skill
from agentplane.authoring.effect import Effect
from agentplane.authoring.skill import Skill
from agentplane.core.history import History, read_all
from agentplane.core.records import Actor, Basis, Record, Undecided
from agentplane.engine import acts
from agentplane.engine.plane import Plane
from agentplane.journal import lists
from agentplane.testkit.fakes import FakeProvider
from agentplane.testkit.inline import InlineWriter, open_inline
from agentplane.testkit.worlds import copy_store

ME = Actor(actor="mara", basis=Basis.ASSERTED)
AT_ONCE = RetryPolicy(base_ms=1)


class Points:
    """Observers of a plane: what was told, and what to do at a point."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, object]]] = []
        self.at: dict[str, Callable[[], object]] = {}

    def __call__(self, point: str, **fields: object) -> None:
        self.seen.append((point, fields))
        act = self.at.get(point)
        if act is not None:
            act()

    def count(self, point: str) -> int:
        return sum(name == point for name, _ in self.seen)


@asynccontextmanager
async def opened(where: Path, *skills: Skill, **options: Any) -> AsyncIterator[Plane]:
    """A plane under the loop's own clock, every unit a commit of its own."""
    async with open_inline(where / "plane.db", skills=skills, **options) as plane:
        yield plane


def inline(plane: Plane) -> InlineWriter:
    """The plane's writer, as what it is here."""
    assert isinstance(plane.writer, InlineWriter)
    return plane.writer


async def recovered(plane: Plane) -> None:
    """Passes until nothing is left to take over and nothing runs."""
    for _ in range(20):
        found = await plane.recovery.once()
        await plane.runs.wait_idle()
        if not (found.took_over or found.suspects or found.finished or found.empty):
            return
    raise AssertionError("recovery never came to an end")


def records(plane: Plane, run: str) -> list[Record]:
    """The run's committed records, its chain verified."""
    return [item.record for item in plane.store.readers.read(lambda tx: lists.whole_history(tx, run))]


def kinds(plane: Plane, run: str) -> list[str]:
    return [type(record).__name__ for record in records(plane, run)]


def of_kind(plane: Plane, run: str, kind: type[Any]) -> list[Any]:
    return [record for record in records(plane, run) if isinstance(record, kind)]


def history(plane: Plane, run: str) -> History:
    return read_all(run, records(plane, run))


def undecided(plane: Plane, run: str) -> list[Undecided]:
    return acts.undecided(history(plane, run))


async def reconcile(plane: Plane, run: str, outcome: str, **more: Any) -> list[Undecided]:
    """A person answers the one effect that is undecided; what stays undecided."""
    one = undecided(plane, run)[0]
    return await plane.writer.do(acts.reconcile(run, one.effect, outcome, ME, "I looked", plane.owner, **more))


def all_runs(plane: Plane) -> list[lists.RunRow]:
    return plane.store.readers.read(lambda tx: lists.runs(tx))


def frozen_at(plane: Plane, where: Path, name: str = "killed") -> Path:
    """The directory of a store as a process killed now would leave it, without its mark."""
    target = where / name / "plane.db"
    copy_store(plane.store.path, target)
    return target.parent


def paying(
    provider: FakeProvider, kind: str = "pay.refund", *, recovery: Recovery = Recovery.IDEMPOTENT, probed: bool = False,
    **terms: Any,
) -> Effect:  # fmt: skip
    """An effect that pays ``provider`` under its key; named after the kind's last part there."""
    name = kind.rpartition(".")[2]
    terms.setdefault("retry", AT_ONCE)

    @effect(kind, recovery=recovery, **terms)
    async def body(call: Any, *, order: str = "A-1") -> Any:
        return await provider.call(call, name, {"order": order})

    if probed:

        @body.reconcile
        async def probe(call: Any, *, order: str = "A-1") -> Any:
            return await provider.probe(call)

    return body


def one_call(of: Effect, name: str = "story.run") -> Skill:
    """A skill that performs one effect and returns what it answered."""

    @skill(name)
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return await cx.do(of(order=request.get("order", "A-1")))

    return body


async def until(what: Callable[[], bool]) -> None:
    """Let the loop go on until ``what`` holds; the clock does not move for it."""
    for _ in range(2_000):
        if what():
            return
        await trio.lowlevel.checkpoint()
    raise AssertionError("it never came to be")
