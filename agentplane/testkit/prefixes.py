"""The crash-prefix runner: a run is performed once, and then resumed from every commit of its journal.

Owns the worlds that a kill can leave behind; the rules that each must keep are ``prefix_rules``. Refuses to call a
history good that it did not resume. Invariant: a prefix is that of a commit, taken at the instant of it, and each is
resumed twice where it makes a difference: as if the process had died at once, and as if it had died just before the
next commit, with all that the outside world had seen by then. A world's clock goes on from there, and is moved to the
instant that a run waits for.

What is not seen: two processes at once (leases are for that), a lying disk (the fault VFS is for that), and effects
that reach the world beside ``provider``: those are performed again in every world that asks for them.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import trio
from trio.testing import wait_all_tasks_blocked

from agentplane.authoring.plan import PlanTemplate
from agentplane.authoring.skill import Skill
from agentplane.core.budget import Ledger
from agentplane.core.errors import NotApplicable, NotFound
from agentplane.core.records import Actor, Basis, Undecided
from agentplane.core.saga import Compensation
from agentplane.engine import acts
from agentplane.engine.live import LiveRun
from agentplane.engine.plane import Outcome, Plane, wall_ms
from agentplane.journal import timers
from agentplane.journal.units import Unit
from agentplane.testkit.fakes import FakeProvider, Snapshot
from agentplane.testkit.inline import clock_stopped, open_inline, trio_now_ms
from agentplane.testkit.prefix_rules import Seen, broken, waits_and_timers
from agentplane.testkit.worlds import Kept, Moved, armed, copy_store, fit_mark, kept_runs, leased, replant

PASSES_MAX = 60
"""Passes, ticks, waits and answers of the operator after which a world counts as never at rest."""

Capability = Skill | PlanTemplate
Act = Callable[[Plane, str], Awaitable[object]]
"""Something that a person does to the run of that id."""

Outside = Callable[[Plane, str], Awaitable[bool]]
"""What comes from outside for the run of that id while it rests; whether it was anything new."""

Operator = Callable[[Undecided], tuple[str, object]]
"""Answers an undecided effect: ("landed", output) or ("did-not-happen", None)."""

OPERATOR = Actor(actor="crash-runner", basis=Basis.ASSERTED)


class Cut(msgspec.Struct, frozen=True):
    """What one commit made durable, and how the provider stood when it did."""

    store: Path
    provider: Snapshot | None
    later: Snapshot | None
    at_ms: int


class World(msgspec.Struct, frozen=True):
    """One place to resume from: a store and a provider. ``inside``: within a unit, which no commit can leave."""

    name: str
    store: Path
    provider: Snapshot | None
    at_ms: int
    inside: bool = False


class Report(msgspec.Struct, kw_only=True):
    """What the runner found. ``worlds`` were resumed; ``ends`` counts how their runs stood at rest, ``checked`` how
    often each rule had something to look at."""

    outcome: Outcome
    commits: int = 0
    worlds: int = 0
    inside: int = 0
    refused: int = 0
    duplicate_effects: int = 0
    ends: dict[str, int] = {}
    checked: Counter[str] = msgspec.field(default_factory=Counter)
    violations: list[str] = []

    @property
    def ok(self) -> bool:
        return self.worlds > 0 and not self.violations

    def check(self) -> Report:
        """Itself, or AssertionError naming every violation."""
        if not self.ok:
            raise AssertionError("\n".join(self.violations) or "no world was resumed: nothing was checked")
        return self


class _Setting(msgspec.Struct, frozen=True, kw_only=True):
    """How planes are opened and answered throughout one call of the runner."""

    skills: list[Capability]
    options: dict[str, Any]
    provider: FakeProvider | None
    operator: Operator | None
    later_ms: int
    same_places: bool
    meanwhile: Act | None
    also: Callable[[Kept, Path], Iterable[str]] | None
    keep: Callable[[int], bool] | None
    outside: Outside | None
    ends: frozenset[str] = frozenset()

    @property
    def declared(self) -> dict[str, Compensation]:
        return {skill.name: skill.compensation for skill in self.skills if isinstance(skill, Skill)}


async def crash_at_every_commit(
    skill: Capability, input: object, *, beside: Iterable[Capability] = (), provider: FakeProvider | None = None,
    key: str | None = None, operator: Operator | None = None, later_ms: int = 0, inside_units: bool = True,
    resumed_by: Iterable[Capability] | None = None, prepare: Callable[[Plane], Awaitable[object]] | None = None,
    after: Callable[[Plane, Outcome], Any] | None = None, at_commit: tuple[int, Act] | None = None,
    meanwhile: Act | None = None, keep: Callable[[int], bool] | None = None, same_places: bool = True,
    as_well: Iterable[str] = (), also: Callable[[Kept, Path], Iterable[str]] | None = None,
    asked: Mapping[str, Any] | None = None, outside: Outside | None = None, **options: Any,
) -> Report:  # fmt: skip
    """Run ``skill`` once, resume it from every commit, and report every violated rule.

    ``provider`` is what the effects call, if it is to be held to account. ``operator`` answers what is undecided, in
    the original and in every world. ``later_ms``: how much later than the kill the worlds are opened; a run that waits
    then has its clock moved to what it waits for, until it rests. ``prepare`` is awaited with the plane before the
    run. ``after`` is awaited with the plane and the outcome of the original run, for acts of a person that belong to
    its history; ``at_commit``: a number of commits of the original, and what a person does when so many were made;
    ``meanwhile``: what a person does in every world before anything is resumed there, with no process running the run.
    ``keep``: which commits, by number from 1, are resumed (none inside a unit then); all without it. ``resumed_by``:
    the skills of the build that resumes; ``same_places`` False when it may ask less than the original did. A world's
    run ends as the original did, before or after what ``after`` did to it; ``as_well``: other ends that are right.
    ``also``: what else is wrong with a run at rest, given its records and its store. ``asked``: budget, plan or
    case of the run. ``outside`` is awaited whenever the run rests, in the original and in every world, before the clock
    is moved. ``options`` go to ``Plane.open``. Under trio's autojump clock nothing is waited for.
    """
    setting = _Setting(
        skills=[skill, *beside], options=options, provider=provider, operator=operator, later_ms=later_ms,
        same_places=same_places, meanwhile=meanwhile, also=also, keep=keep, outside=outside,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="agentplane-prefixes-") as name:
        directory = Path(name)
        wanted = _Wanted(capability=skill.name, input=input, key=key, asked=dict(asked or {}), prepare=prepare,
                         after=after, at_commit=at_commit)  # fmt: skip
        cuts, commits, outcome, ends = await _perform(setting, directory, wanted)
        setting = msgspec.structs.replace(setting, ends=frozenset({*ends, *as_well}))
        report = Report(outcome=outcome, commits=commits)
        original = kept_runs(directory / "original" / "plane.db")[outcome.run]
        if resumed_by is not None:
            setting = msgspec.structs.replace(setting, skills=list(resumed_by))
        worlds = _worlds(cuts)
        if inside_units and keep is None:
            worlds += _inside(cuts, original, outcome.run, directory)
        for world in worlds:
            await _resume(setting, world, outcome, original, report)
    return report


@asynccontextmanager
async def _opened(setting: _Setting, path: Path, clock: Moved, **more: Any) -> AsyncIterator[Plane]:
    options = {"skills": setting.skills, **setting.options, "now_ms": clock.now_ms, **more}
    opened = open_inline(path, **options) if clock_stopped() else Plane.open(path, **options)
    with clock.since_boot():
        async with opened as plane:
            yield plane


def _wall_ms() -> int:
    return trio_now_ms() if clock_stopped() else wall_ms()


# --- the original ----------------------------------------------------------------------------------------------------


class _Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The original run, and what is done to it."""

    capability: str
    input: object
    key: str | None
    asked: dict[str, Any]
    prepare: Callable[[Plane], Awaitable[object]] | None
    after: Callable[[Plane, Outcome], Any] | None
    at_commit: tuple[int, Act] | None


class _Cutter:
    """Copies the original's store between a commit and its answers, so that nothing has happened on account of it."""

    def __init__(self, setting: _Setting, directory: Path, clock: Moved, at_commit: int | None) -> None:
        self.source = directory / "original" / "plane.db"
        self.source.parent.mkdir()
        self.cuts: list[Cut] = []
        self.commits = 0
        self.reached = trio.Event()
        self._setting = setting
        self._directory = directory
        self._clock = clock
        self._at = at_commit
        self._token = trio.lowlevel.current_trio_token()
        self._open: tuple[Path, Snapshot | None, int] | None = None

    def observe(self, point: str, **_: object) -> None:
        if point != "writer.committed":
            return
        self.commits += 1
        self.close()
        if self.commits == self._at:
            self._token.run_sync_soon(self.reached.set)
        if self._setting.keep is None or self._setting.keep(self.commits):
            target = self._directory / f"cut-{self.commits}" / "plane.db"
            copy_store(self.source, target)
            self._open = target, self._now(), self._clock.now_ms()

    def close(self) -> None:
        """The world of the last cut ends here: what the provider had seen by now, a death before this commit had."""
        if self._open is not None:
            store, provider, at_ms = self._open
            self.cuts.append(Cut(store, provider, self._now(), at_ms))
            self._open = None

    def _now(self) -> Snapshot | None:
        return self._setting.provider.snapshot() if self._setting.provider is not None else None


async def _perform(setting: _Setting, directory: Path, wanted: _Wanted) -> tuple[list[Cut], int, Outcome, set[str]]:
    clock = Moved(_wall_ms())
    at, act = wanted.at_commit or (None, None)
    cutter = _Cutter(setting, directory, clock, at)

    async def interfere(plane: Plane) -> None:
        await cutter.reached.wait()
        for run in list(plane.runs.live):
            if act is not None:
                await act(plane, run)

    # What would take runs up by itself is driven by hand, so that a rest is one.
    async with _opened(setting, cutter.source, clock, recover=False, observe=cutter.observe) as plane:
        if wanted.prepare is not None:
            await wanted.prepare(plane)
        async with trio.open_nursery() as nursery:
            if act is not None:
                nursery.start_soon(interfere, plane)
            outcome = await plane.run(wanted.capability, wanted.input, key=wanted.key, **wanted.asked)
            if cutter.reached.is_set():
                await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        ends = {outcome.status}
        if wanted.after is not None:
            await wanted.after(plane, outcome)
        outcome = await _to_rest(plane, setting, outcome.run, clock) or outcome
    cutter.close()
    if setting.operator is not None:
        ends.discard("quarantined")
    return cutter.cuts, cutter.commits, outcome, {*ends, outcome.status} - {"suspended"}


async def _to_rest(
    plane: Plane, setting: _Setting, run: str, clock: Moved, at_a_wait: Callable[[], object] = lambda: None
) -> Outcome | None:
    """Recover, fire what is due, let the operator answer, and move the clock to what the run waits for, until nothing
    moves any more; the outcome, or None for no such run. ``at_a_wait`` is called before the clock is moved."""
    for _ in range(PASSES_MAX):
        found = await plane.recovery.once()
        await plane.runs.wait_idle()
        ticked = await plane.sweep.tick(clock.now_ms())
        await plane.runs.wait_idle()
        moved = bool(
            found.took_over
            or found.suspects
            or found.finished
            or found.empty
            or ticked.fired
            or ticked.cancels
            or ticked.redelivered
            or ticked.tasks_expired
            or ticked.rearmed
        )
        if moved or await _answer(plane, setting.operator, run):
            continue
        if setting.outside is not None and await setting.outside(plane, run):
            await plane.runs.wait_idle()
            continue
        waiting = await plane.read(lambda tx: timers.of_run(tx, run))
        if not waiting or waiting[0].due_ms <= clock.now_ms():
            break
        at_a_wait()
        clock.move_to(waiting[0].due_ms)
    known = await plane.read(lambda tx: tx.one("SELECT 1 FROM run WHERE tenant = ? AND run = ?", tx.tenant, run))
    return None if known is None else await plane.outcome(run)


async def _answer(plane: Plane, operator: Operator | None, run: str) -> bool:
    """An operator's whole answer to a quarantine; False when there is nothing to answer."""
    if operator is None or run in plane.runs.held_out:
        return False
    known = await plane.read(lambda tx: tx.one("SELECT status FROM run WHERE tenant = ? AND run = ?", tx.tenant, run))
    if known is None or known[0] != "quarantined":
        return False
    history = (await plane.read(lambda tx: acts.load(tx, run)))[1]
    for one in acts.undecided(history):
        verdict, output = operator(one)
        await plane.writer.do(
            acts.reconcile(run, one.effect, verdict, OPERATOR, "looked up", plane.owner, output=output)
        )
    await plane.reopen(run, OPERATOR, "answered")
    return True


# --- the worlds ------------------------------------------------------------------------------------------------------


def _worlds(cuts: list[Cut]) -> list[World]:
    found: list[World] = []
    for cut in cuts:
        name = cut.store.parent.name.removeprefix("cut-")
        found.append(World(f"commit {name}, at once", cut.store, cut.provider, cut.at_ms))
        if cut.later != cut.provider:
            found.append(World(f"commit {name}, just before the next", cut.store, cut.later, cut.at_ms))
    return found


def _inside(cuts: list[Cut], original: Kept, run: str, directory: Path) -> list[World]:
    """Stores that hold a unit's records in part: no commit leaves them, and they must be refused or healed all the
    same."""
    heads: dict[int, Cut] = {}
    for cut in cuts:
        kept = kept_runs(cut.store).get(run)
        if kept is not None:
            heads.setdefault(len(kept.stored), cut)
    found: list[World] = []
    for count in range(1, len(original.stored)):
        if count in heads:
            continue
        target = directory / f"inside-{count}" / "plane.db"
        behind = next(cut for head, cut in sorted(heads.items()) if head > count)
        replant(target, original.stored[:count], now_ms=behind.at_ms)
        found.append(World(f"inside a unit, behind record {count}", target, behind.provider, behind.at_ms, inside=True))
    return found


class _Watch:
    """What one world's plane does, as it does it."""

    def __init__(self) -> None:
        self.acted: list[str] = []
        self.duplicates = 0
        self.said: list[str] = []
        self.last: LiveRun | None = None

    def observe(self, point: str, **fields: object) -> None:
        if point == "effect.acting":
            self.acted.append(str(fields["effect"]))

    def error(self, error: BaseException | None) -> None:
        self.duplicates += type(error).__name__ == "DuplicateEffect"

    def executions(self, plane: Plane) -> None:
        """Keep hold of every execution, for its ledger."""
        begin = plane.runs.begin

        def beginning(*args: Any, **kwargs: Any) -> LiveRun:
            self.last = begin(*args, **kwargs)
            return self.last

        vars(plane.runs)["begin"] = beginning

    def ledger(self, dropped: bool) -> Ledger | None:
        return None if self.last is None or dropped else self.last.history.ledger


async def _resume(setting: _Setting, world: World, outcome: Outcome, original: Kept, report: Report) -> None:
    # A store of its own: what an earlier world made of this prefix is no part of it.
    run, store = outcome.run, world.store.parent / f"world-{report.worlds}" / "plane.db"
    copy_store(world.store, store)
    fit_mark(store)
    before = kept_runs(store).get(run)
    if setting.provider is not None and world.provider is not None:
        setting.provider.restore(world.provider)
    watch, clock = _Watch(), Moved(world.at_ms + setting.later_ms)
    async with _opened(setting, store, clock, recover=False, observe=watch.observe) as plane:
        _listen(plane, watch.error)
        watch.executions(plane)
        if setting.meanwhile is not None and before is not None:
            try:
                await setting.meanwhile(plane, run)
            except (NotApplicable, NotFound):
                pass  # it came too late, or before there was anything
        rest = await _to_rest(
            plane, setting, run, clock,
            lambda: watch.said.extend(waits_and_timers(kept_runs(store)[run], armed(store, run), report.checked)),
        )  # fmt: skip
        dropped = run in plane.runs.held_out or run in plane.runs.dropped
    report.worlds += 1
    report.inside += world.inside
    report.duplicate_effects += watch.duplicates
    found = watch.said
    if watch.duplicates:
        found.append(f"the unique index saved replay {watch.duplicates} times")
    if rest is not None and before is not None:
        report.ends[rest.status] = report.ends.get(rest.status, 0) + 1
        # Half an admission is left to nobody; whatever else was in part is refused by name, or healed.
        refused = world.inside and not watch.acted and (dropped or watch.last is None)
        report.refused += refused
        seen = Seen(
            before=before, after=kept_runs(store)[run], acted=watch.acted, leased=leased(store, run),
            timers=armed(store, run), declared=setting.declared,
            ledger=watch.ledger(dropped), original=original if setting.same_places else None, provider=setting.provider,
        )  # fmt: skip
        found += broken(seen, report.checked, at_rest=not refused)
        if not refused and rest.status not in setting.ends:
            found.append(f"the run ended {rest.status} ({rest.reason}), not {' or '.join(sorted(setting.ends))}")
        if setting.also is not None and not refused:
            found += setting.also(seen.after, store)
    report.violations += [f"{world.name}: {sentence}" for sentence in found]


def _listen(plane: Plane, count: Callable[[BaseException | None], None]) -> None:
    """Be told of every unit's error, before its asker is."""
    submit = plane.writer.submit

    def listening(unit: Unit[Any]) -> None:
        deliver = unit.deliver

        def heard(value: Any, error: BaseException | None) -> None:
            count(error)
            deliver(value, error)

        unit.deliver = heard
        submit(unit)

    vars(plane.writer)["submit"] = listening


__all__ = ["Act", "Cut", "Operator", "Report", "World", "crash_at_every_commit"]
