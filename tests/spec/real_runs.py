"""Real runs, watched: what the specification's traces are made of.

Owns a plane with an observer that notes every point and, at each commit, what a reader finds of the run. Refuses to
leave anything out. Invariant: what is noted at a commit was read from the store by another connection.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import apsw

from agentplane import Recovery, RetryPolicy, skill
from agentplane.authoring.skill import Skill
from agentplane.engine.plane import Plane
from agentplane.journal.store import connect
from agentplane.testkit.fakes import FakeProvider
from agentplane.testkit.worlds import fit_mark
from spec.traces import Trace, translate
from stories.scenes import frozen_at, one_call, opened, paying, records, recovered

KINDS = {"refund": "pay.refund", "notice": "pay.notice"}


class Watch:
    """An observer of one store with one caller's run."""

    def __init__(self, store: Path) -> None:
        self.seen: list[tuple[str, dict[str, Any]]] = []
        self._store = store
        self._reader: apsw.Connection | None = None

    def __call__(self, point: str, **fields: Any) -> None:
        if point == "writer.committed":
            fields = {**fields, "durable": self._durable()}
        self.seen.append((point, fields))

    def _durable(self) -> int:
        if self._reader is None:
            self._reader = connect(self._store, read_only=True)
        rows = self._reader.execute(
            "SELECT count(*) FROM record r JOIN run u ON u.tenant = r.tenant AND u.run = r.run WHERE u.own = 0"
        )
        return int(str(next(iter(rows))[0]))

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()


def _booked(provider: FakeProvider) -> dict[str, int]:
    return {KINDS[name]: count for name, count in Counter(row.name for row in provider.book).items()}


async def one_life(where: Path, provider: FakeProvider, body: Skill) -> Trace:
    """The trace of a run of ``body`` in one process, every unit a commit."""
    watch = Watch(where / "plane.db")
    async with opened(where, body, observe=watch) as plane:
        outcome = await plane.run("story.run", {})
        found = records(plane, outcome.run)
    watch.close()
    return translate(watch.seen, found, _booked(provider))


async def grouped(where: Path, provider: FakeProvider, body: Skill) -> Trace:
    """The same under the writer's own thread, which commits groups."""
    where.mkdir(parents=True, exist_ok=True)
    watch = Watch(where / "plane.db")
    async with Plane.open(where / "plane.db", skills=[body], observe=watch) as plane:
        outcome = await plane.run("story.run", {})
        found = records(plane, outcome.run)
    watch.close()
    return translate(watch.seen, found, _booked(provider))


async def killed_and_recovered(where: Path, provider: FakeProvider, body: Skill, point: str) -> Trace:
    """The trace of a run that was killed at the first ``point`` and taken over by the next process. What the first one
    sent until its end arrives, as far as the next is concerned, late."""
    cut: list[Path] = []
    first = Watch(where / "plane.db")
    planes: list[Plane] = []
    before: list[tuple[str, dict[str, Any]]] = []

    def observe(name: str, **fields: Any) -> None:
        first(name, **fields)
        if name == point and not cut:
            before.extend(first.seen)
            cut.append(frozen_at(planes[0], where))

    async with opened(where, body, observe=observe) as plane:
        planes.append(plane)
        run = (await plane.run("story.run", {})).run
    first.close()
    fit_mark(cut[0] / "plane.db")
    watch = Watch(cut[0] / "plane.db")
    async with opened(cut[0], body, recover=False, observe=watch) as plane:
        await recovered(plane)
        found = records(plane, run)
    watch.close()
    return translate([*before, ("crash", {}), *watch.seen], found, _booked(provider))


def refund(provider: FakeProvider, **terms: Any) -> Skill:
    return one_call(paying(provider, **terms))


def gather_of_two(provider: FakeProvider) -> Skill:
    """A refund that a person would have to settle, and a notice under a key, at once."""
    pay = paying(provider, recovery=Recovery.REQUIRES_OPERATOR)
    note = paying(provider, "pay.notice", retry=RetryPolicy(base_ms=1))

    @skill("story.run")
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return await cx.gather(pay(), note())

    return body
