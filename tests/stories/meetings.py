"""A run that is built from two features, and the processes that it lives in.

Owns one fragment of work into which each feature puts what it is, and where a run is stopped for those that come from
outside. Nothing here asserts about the end: the story does.

What the features do to the fragment: ``retry``: a call is refused once; ``reconcile``: its answer is lost, and a probe
tells; ``gather``, ``group``, ``atomic``, ``suspend``: the calls are made side by side, as members, beside a row, with
a wait between them; ``saga``: all of it happens in a compensation; ``replan``: in a plan that replaced another;
``budget``: a ceiling stops it in the middle; ``cancel``, ``drain``, ``takeover``, ``held``: a person, a drain, a death
or a restored copy comes while a call is in flight.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import trio

from agentplane import Budget, Invariant, Recovery, effect, skill, sql
from agentplane.authoring.plan import PlanTemplate, node, plan
from agentplane.authoring.raising import Replan
from agentplane.authoring.skill import Compensation, Skill
from agentplane.engine.admission import Wanted
from agentplane.engine.plane import Plane
from agentplane.testkit import FakeProvider
from agentplane.testkit.worlds import fit_mark
from stories.checkouts import with_table
from stories.scenes import AT_ONCE, ME, Points, frozen_at, opened, paying, recovered

FEATURES = (
    "retry", "reconcile", "saga", "group", "atomic", "cancel", "budget", "replan", "suspend", "gather", "takeover",
    "drain", "held",
)  # fmt: skip
STOPS = ("drain", "takeover", "held")
"""Features that end a process, in the order in which two of them come."""
PAUSE_S = 31.0
"""Longer than the fragment waits."""


class Meeting:
    """One run of ``features``. ``met`` is what was seen of those that come from outside, ``acted`` which attempts the
    last process performed."""

    def __init__(self, where: Path, features: set[str]) -> None:
        self.features = features
        self.where = where
        # Where nothing may be sent twice the provider keeps no keys, and would do it twice.
        twice = len(features.intersection(STOPS)) == 2
        self.provider = FakeProvider(honours={"more": twice, "mail": False, "late": "reconcile" not in features})
        self.run = ""
        self.met: set[str] = set()
        self.acted: list[str] = []
        self._meets = ["trigger" if {"saga", "cancel"} <= features else "late", "more"]
        self._skip = int("retry" in features and self._meets[0] == "late")
        self.arrived, self.released = trio.Event(), trio.Event()
        terms = {"timeout_s": 10.0, "settle_s": 1.0}
        recovery = Recovery.RECONCILE if "reconcile" in features else Recovery.IDEMPOTENT
        self.pay = paying(self.provider, "meet.pay", **terms)
        self.late = self._meeting("late", recovery, **terms)
        self.more = self._meeting("more", Recovery.IDEMPOTENT, **terms)
        self.trigger = self._meeting("trigger", Recovery.RETRY, mutates=False, **terms)
        self.look = paying(self.provider, "meet.look", mutates=False)
        self.mail = paying(self.provider, "meet.mail")
        self.back = paying(self.provider, "meet.back")
        told = [("retry", "did_not_happen"), ("reconcile", "in_doubt_after_landing")]
        self.provider.tell("late", *(how for feature, how in told if feature in features))

    def has(self, *names: str) -> bool:
        return any(name in self.features for name in names)

    # --- what is run -------------------------------------------------------------------------------------------------

    def _meeting(self, name: str, recovery: Recovery, **terms: Any) -> Any:
        """A call during which the story may be told to come: what it did is done, and its answer is not there yet."""
        provider = self.provider

        @effect(f"meet.{name}", recovery=recovery, retry=AT_ONCE, **terms)
        async def body(call: Any, *, order: str = "A-1") -> Any:
            try:
                return await provider.call(call, name, {"order": order})
            finally:
                await self._meet(name)

        if recovery is Recovery.RECONCILE:

            @body.reconcile
            async def probe(call: Any, *, order: str = "A-1") -> Any:
                return await provider.probe(call)

        return body

    async def _meet(self, name: str) -> None:
        if not self.is_met_in_flight or not self._meets or self._meets[0] != name:
            return
        if self._skip:
            self._skip -= 1
            return
        self._meets.pop(0)
        self.arrived.set()
        await self.released.wait()

    @property
    def is_met_in_flight(self) -> bool:
        return self.has("cancel", *STOPS) and not self.is_met_at_rest

    @property
    def is_met_at_rest(self) -> bool:
        """Whether somebody comes while the run waits, or is exhausted, instead of while a call is in flight."""
        return (self.has("suspend") and self.has("cancel", "drain", "held")) or {"budget", "cancel"} <= self.features

    async def fragment(self, cx: Any) -> None:
        if not self.has("group", "atomic"):
            return await self._calls(cx, cx.do)
        async with cx.group("both", ["all"]) as g:
            await self._calls(cx, lambda call: g.reversible("all", call, undo=self.back()))
            if self.has("atomic"):
                g.atomic("all", sql("INSERT INTO app_entries VALUES (?, ?)", cx.run, 1, rows=1))
            if self.has("group"):
                g.deferred("all", self.mail())
            await g.commit(Invariant("it holds", True))

    async def _calls(self, cx: Any, perform: Any) -> None:
        grouped, early = self.has("group", "atomic"), self.has("takeover")
        if self.has("gather") and not grouped:
            await cx.gather(self.pay(order="1"), self.late(), self.pay(order="2"))
        else:
            if self.has("gather"):
                await cx.gather(self.look(order="1"), self.look(order="2"))
            await perform(self.pay(order="1"))
            if self.has("suspend") and early:
                await cx.sleep(seconds=30)
            await perform(self.late())
        if self.has("suspend") and not early:
            await cx.sleep(seconds=30)
        await perform(self.more())

    def capabilities(self) -> list[Skill | PlanTemplate]:
        undone = Compensation.UNDECLARED

        @skill("step.work", compensation=undone)
        async def work(cx: Any, request: dict) -> str:  # type: ignore[type-arg]
            await self.fragment(cx)
            return "done"

        if self.has("cancel"):

            @work.compensate
            async def undo(cx: Any, request: Any, output: Any) -> None:
                await cx.do(self.back())

        @skill("step.base")
        async def base(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
            return await cx.do(self.pay(order="base"))

        @base.compensate
        async def back(cx: Any, request: Any, output: Any) -> None:
            await self.fragment(cx)

        @skill("step.last")
        async def last(cx: Any, request: dict) -> None:  # type: ignore[type-arg]
            if self.has("cancel"):
                await cx.do(self.trigger())
                await cx.do(self.look())
            raise ValueError("no truck")

        nodes = [node("step.base"), node("step.last", after="step.base")] if self.has("saga") else [node("step.work")]

        @skill("step.first", compensation=Compensation.UNNECESSARY)
        async def first(cx: Any, request: dict) -> None:  # type: ignore[type-arg]
            raise Replan("it no longer fits", nodes)

        begun = nodes[:1] if self.has("saga") else []
        after = "step.base" if self.has("saga") else ()
        replanned = [*begun, node("step.first", after=after)]
        whole = plan("story.plan", replanned if self.has("replan") else nodes, budget=self._budget())
        return [whole, work, base, last, first]

    def _budget(self) -> Budget | None:
        if not self.has("budget"):
            return None
        if self.has("replan"):
            return Budget(max_replans=0)
        return Budget(max_effects=1 if self.has("saga") else 2)

    # --- the processes -----------------------------------------------------------------------------------------------

    async def play(self, at_the_end: Callable[[Plane], Awaitable[None]]) -> None:
        """Begin, be stopped as often as the features say, and go on to the end, which the story looks at."""
        directory = self.where
        stops = [one for one in STOPS if one in self.features]
        for at, stop in enumerate([*stops, ""]):
            points = Points()
            self.arrived, self.released = trio.Event(), trio.Event()
            async with opened(directory, *self.capabilities(), observe=points) as plane:
                await (self._begin(plane) if not self.run else self._go_on(plane, stops[at - 1]))
                if self.has("cancel") and at == 0:
                    await self._reached(plane)
                    assert (await plane.cancel(self.run, ME, "not wanted")).recorded
                if stop:
                    await self._reached(plane)
                    directory = await self._stopped(plane, stop, at)
                    continue
                self.released.set()
                await self._finish(plane)
                self.acted = [str(fields["effect"]) for point, fields in points.seen if point == "effect.acting"]
                await at_the_end(plane)

    async def _begin(self, plane: Plane) -> None:
        if self.has("atomic"):
            await with_table(plane)
        self.run = (await plane.start(Wanted(capability="story.plan", input={}))).run

    async def _reached(self, plane: Plane) -> None:
        if self.is_met_in_flight:
            # A run that waits first wakes by itself; what is reached is a call in flight.
            with trio.fail_after(3 * PAUSE_S):
                await self.arrived.wait()
            return
        await plane.runs.wait_idle()
        assert (await plane.outcome(self.run)).status == ("exhausted" if self.has("budget") else "suspended")

    async def _stopped(self, plane: Plane, how: str, at: int) -> Path:
        """End the process as ``how`` says; where the next one finds its store."""
        if how != "drain":
            copy = frozen_at(plane, self.where, f"{at}-{how}")
            if how == "takeover":
                fit_mark(copy / "plane.db")
            return copy
        rested = (await plane.outcome(self.run)).status if self.is_met_at_rest else None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: plane.drain(park=True))
            while not plane.draining:
                await trio.lowlevel.checkpoint()
            self.released.set()
        if rested is None:
            assert self.run in plane.runs.parked, "the drain let it end"
        else:
            await trio.sleep(PAUSE_S)
            assert (await plane.outcome(self.run)).status == rested, "a plane that drains wakes nobody"
        self.met.add("drain")
        return plane.store.path.parent

    async def _go_on(self, plane: Plane, stopped: str) -> None:
        """The next process: takes up what the last one left."""
        if stopped == "held":
            assert plane.state.held is not None and not plane.runs.live
            await trio.sleep(PAUSE_S)
            assert not plane.runs.live, "a held store begins nothing"
            await plane.state.release_held(ME, "I looked", None)
            plane.begin_recovery()
        else:
            assert plane.state.held is None
        self.met.add(stopped)
        if stopped == STOPS[-1] or not self.has(*STOPS[STOPS.index(stopped) + 1 :]):
            self.released.set()
            await recovered(plane)

    async def _finish(self, plane: Plane) -> None:
        for _ in range(20):
            await plane.runs.wait_idle()
            outcome = await plane.outcome(self.run)
            if outcome.status == "exhausted" and not self.has("cancel"):
                limit = "max_replans" if self.has("replan") else "max_effects"
                await plane.raise_ceilings(self.run, {limit: 50}, ME, "go on")
            elif outcome.status in ("suspended", "running", "exhausted"):
                await trio.sleep(PAUSE_S)
            else:
                return
        raise AssertionError(f"it never came to an end: {outcome}")
