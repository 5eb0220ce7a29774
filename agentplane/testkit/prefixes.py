"""The crash-prefix runner: a run is performed once, and then resumed from every commit of its journal.

Owns the worlds that a kill can leave behind and the rules that each must keep. Refuses to call a history good that it
did not resume. Invariant: a prefix is that of a commit, taken at the instant of it, and each is resumed twice where it
makes a difference: as if the process had died at once, and as if it had died just before the next commit, with all
that the outside world had seen by then.

What is not seen: two processes at once (leases are for that), a lying disk (the fault VFS is for that), and effects
that reach the world beside ``provider``: those are performed again in every world that asks for them.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec

from agentplane.authoring.skill import Skill
from agentplane.core.history import History, Spot, read_all
from agentplane.core.records import (
    Actor,
    Basis,
    EffectDone,
    EffectFailed,
    EffectReconciled,
    EffectStarted,
    Undecided,
)
from agentplane.core.recovery import Mode
from agentplane.engine import acts
from agentplane.engine.plane import Outcome, Plane, wall_ms
from agentplane.journal.lists import Stored
from agentplane.journal.units import Unit
from agentplane.testkit.fakes import FakeProvider, Snapshot
from agentplane.testkit.inline import clock_stopped, open_inline, trio_now_ms
from agentplane.testkit.worlds import Kept, copy_store, fit_mark, kept_runs, leased, replant

PASSES_MAX = 12
"""Recovery passes and answers of the operator after which a world counts as never at rest."""

Operator = Callable[[Undecided], tuple[str, object]]
"""Answers an undecided effect: ("landed", output) or ("did-not-happen", None)."""

OPERATOR = Actor(actor="crash-runner", basis=Basis.ASSERTED)


class Cut(msgspec.Struct, frozen=True):
    """What one commit made durable, and how the provider stood when it did."""

    store: Path
    provider: Snapshot | None


class World(msgspec.Struct, frozen=True):
    """One place to resume from: a store and a provider. ``inside``: within a unit, which no commit can leave."""

    name: str
    store: Path
    provider: Snapshot | None
    inside: bool = False


class Report(msgspec.Struct, kw_only=True):
    """What the runner found. ``worlds`` were resumed; ``ends`` counts how their runs stood at rest."""

    outcome: Outcome
    commits: int = 0
    worlds: int = 0
    inside: int = 0
    refused: int = 0
    duplicate_effects: int = 0
    ends: dict[str, int] = {}
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

    skills: list[Skill]
    options: dict[str, Any]
    provider: FakeProvider | None
    operator: Operator | None
    later_ms: int
    same_places: bool
    ends: frozenset[str] = frozenset()


async def crash_at_every_commit(
    skill: Skill, input: object, *, beside: Iterable[Skill] = (), provider: FakeProvider | None = None,
    key: str | None = None, operator: Operator | None = None, later_ms: int = 0, inside_units: bool = True,
    resumed_by: Iterable[Skill] | None = None,
    after: Callable[[Plane, Outcome], Any] | None = None, same_places: bool = True, as_well: Iterable[str] = (),
    **options: Any,
) -> Report:  # fmt: skip
    """Run ``skill`` once, resume it from every commit, and report every violated rule.

    ``provider`` is what the effects call, if it is to be held to account. ``operator`` answers what is undecided, in
    the original and in every world. ``later_ms``: how much later than the kill the worlds are opened. ``after`` is
    awaited with the plane and the outcome of the original run, for acts of a person that belong to its history.
    ``resumed_by``: the skills of the build that resumes; ``same_places`` False when it may ask less than the original
    did. A world's run ends as the original did, before or after what ``after`` did to it; ``as_well``: other ends that
    are right. ``options`` go to ``Plane.open``. Under trio's autojump clock nothing is waited for.
    """
    setting = _Setting(
        skills=[skill, *beside], options=options, provider=provider, operator=operator, later_ms=later_ms,
        same_places=same_places,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="agentplane-prefixes-") as name:
        directory = Path(name)
        cuts, outcome, ends = await _perform(setting, directory, skill.name, input, key, after)
        setting = msgspec.structs.replace(setting, ends=frozenset({*ends, *as_well}))
        report = Report(outcome=outcome, commits=len(cuts))
        original = kept_runs(directory / "original" / "plane.db")[outcome.run]
        if resumed_by is not None:
            setting = msgspec.structs.replace(setting, skills=list(resumed_by))
        worlds = _worlds(cuts, provider)
        if inside_units:
            worlds += _inside(cuts, original, outcome.run, directory)
        for world in worlds:
            await _resume(setting, world, outcome, original, report)
    return report


def _opened(setting: _Setting, path: Path, **more: Any) -> AbstractAsyncContextManager[Plane]:
    options = {"skills": setting.skills, **setting.options, **more}
    return open_inline(path, **options) if clock_stopped() else Plane.open(path, **options)


# --- the original ----------------------------------------------------------------------------------------------------


async def _perform(
    setting: _Setting, directory: Path, capability: str, input: object, key: str | None,
    after: Callable[[Plane, Outcome], Any] | None,
) -> tuple[list[Cut], Outcome, set[str]]:  # fmt: skip
    source = directory / "original" / "plane.db"
    source.parent.mkdir()
    cuts: list[Cut] = []

    def observe(point: str, **_: object) -> None:
        # Between the commit and its answers, so that nothing has happened on account of it.
        if point == "writer.committed":
            target = directory / f"cut-{len(cuts)}" / "plane.db"
            copy_store(source, target)
            cuts.append(Cut(target, setting.provider.snapshot() if setting.provider is not None else None))

    async with _opened(setting, source, observe=observe) as plane:
        outcome = await plane.run(capability, input, key=key)
        ends = {outcome.status}
        if after is not None:
            await after(plane, outcome)
        outcome = await _to_rest(plane, setting, outcome.run) or outcome
    if setting.operator is not None:
        ends.discard("quarantined")
    return cuts, outcome, {*ends, outcome.status}


async def _to_rest(plane: Plane, setting: _Setting, run: str) -> Outcome | None:
    """Recover, and let the operator answer, until nothing moves any more; the outcome, or None for no such run."""
    for _ in range(PASSES_MAX):
        found = await plane.recovery.once()
        await plane.runs.wait_idle()
        moved = bool(found.took_over or found.suspects or found.finished or found.empty)
        if not moved and not await _answer(plane, setting.operator, run):
            break
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


def _worlds(cuts: list[Cut], provider: FakeProvider | None) -> list[World]:
    found: list[World] = []
    last = provider.snapshot() if provider is not None else None
    for index, cut in enumerate(cuts):
        found.append(World(f"commit {index + 1}, at once", cut.store, cut.provider))
        later = cuts[index + 1].provider if index + 1 < len(cuts) else last
        if later != cut.provider:
            found.append(World(f"commit {index + 1}, just before the next", cut.store, later))
    return found


def _inside(cuts: list[Cut], original: Kept, run: str, directory: Path) -> list[World]:
    """Stores that hold a unit's records in part: no commit leaves them, and they must be refused or healed all the
    same."""
    heads: dict[int, Snapshot | None] = {}
    for cut in cuts:
        kept = kept_runs(cut.store).get(run)
        if kept is not None:
            heads.setdefault(len(kept.stored), cut.provider)
    found: list[World] = []
    for count in range(1, len(original.stored)):
        if count in heads:
            continue
        target = directory / f"inside-{count}" / "plane.db"
        replant(target, original.stored[:count], now_ms=trio_now_ms() if clock_stopped() else wall_ms())
        behind = next(snapshot for head, snapshot in sorted(heads.items()) if head > count)
        found.append(World(f"inside a unit, behind record {count}", target, behind, inside=True))
    return found


async def _resume(setting: _Setting, world: World, outcome: Outcome, original: Kept, report: Report) -> None:
    # A store of its own: what an earlier world made of this prefix is no part of it.
    store = world.store.parent / f"world-{report.worlds}" / "plane.db"
    copy_store(world.store, store)
    fit_mark(store)
    before = kept_runs(store).get(outcome.run)
    provider = setting.provider
    if provider is not None and world.provider is not None:
        provider.restore(world.provider)
    acted: list[str] = []
    duplicates = 0
    now_ms = trio_now_ms if clock_stopped() else wall_ms

    def observe(point: str, **fields: object) -> None:
        if point == "effect.acting":
            acted.append(str(fields["effect"]))

    def count(error: BaseException | None) -> None:
        nonlocal duplicates
        duplicates += type(error).__name__ == "DuplicateEffect"

    more: dict[str, Any] = {
        "recover": False,
        "observe": observe,
        "now_ms": lambda: now_ms() + setting.later_ms,
    }
    async with _opened(setting, store, **more) as plane:
        _listen(plane, count)
        rest = await _to_rest(plane, setting, outcome.run)
        refused = outcome.run in plane.runs.held_out or outcome.run in plane.runs.dropped
    report.worlds += 1
    report.inside += world.inside
    report.duplicate_effects += duplicates
    found: list[str] = []
    if duplicates:
        found.append(f"the unique index saved replay {duplicates} times")
    if rest is not None and before is not None:
        report.ends[rest.status] = report.ends.get(rest.status, 0) + 1
        after = kept_runs(store)[outcome.run]
        if world.inside and refused and not acted:
            report.refused += 1
        else:
            found += _at_rest(before, after, leased(store, outcome.run))
            if rest.status not in setting.ends:
                found.append(f"the run ended {rest.status} ({rest.reason}), not {' or '.join(sorted(setting.ends))}")
        found += _never_again(before, after, acted)
        found += _to_the_end(original if setting.same_places else None, after)
        found += _of_the_provider(provider, after)
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

    plane.writer.submit = listening  # type: ignore[method-assign]


# --- the rules -------------------------------------------------------------------------------------------------------


def _history(kept: Kept) -> History:
    return read_all(kept.row.run, (item.record for item in kept.stored))


def _complete(history: History) -> dict[Spot, int]:
    """Places that need nothing any more, with how many attempts they took."""
    return {spot: len(series.trials) for spot, series in history.series.items() if series.output_record() is not None}


def _at_rest(before: Kept, after: Kept, is_leased: bool) -> list[str]:
    found: list[str] = []
    status = after.row.status
    if status == "running" or is_leased:
        found.append(f"the run never came to rest: it is {status}, its lease {'held' if is_leased else 'free'}")
    bodies = [item.body for item in after.stored[: len(before.stored)]]
    if bodies != [item.body for item in before.stored]:
        found.append("what was durable was changed")
    return found + _outcomes(after.stored)


def _outcomes(stored: list[Stored]) -> list[str]:
    """P3: at rest every announcement has exactly one outcome, a verdict, or is named as undecided."""
    found: list[str] = []
    outcomes: Counter[str] = Counter()
    said: set[str] = set()
    named: set[str] = set()
    announced: Counter[str] = Counter()
    for item in stored:
        record, key = item.record, item.record.effect_key or ""
        if isinstance(record, EffectStarted):
            announced[key] += 1
        elif isinstance(record, EffectDone | EffectFailed):
            outcomes[key] += 1
        elif isinstance(record, EffectReconciled):
            said.add(key)
        named |= {one.effect for one in getattr(record, "undecided", [])}
    for key, times in announced.items():
        if times > 1:
            found.append(f"the effect {key[:16]} was announced {times} times")
        if outcomes[key] > 1:
            found.append(f"the effect {key[:16]} has {outcomes[key]} outcomes")
        if not outcomes[key] and key not in said and key not in named:
            found.append(f"the effect {key[:16]} has no outcome and is not named as undecided")
    return found


def _never_again(before: Kept, after: Kept, acted: list[str]) -> list[str]:
    """Nothing recorded as done is performed again, and a place keeps one idempotency key a generation."""
    found: list[str] = []
    earlier, later = _history(before), _history(after)
    for spot, attempts in _complete(earlier).items():
        if len(later.series[spot].trials) != attempts:
            found.append(f"the effect at {spot} was recorded as complete and attempted again")
    done_before = {key for key, (_, trial) in earlier.by_key.items() if trial.outcome is not None}
    found += [f"the effect {key[:16]} had an outcome and was performed again" for key in acted if key in done_before]
    twice = [key for key, times in Counter(acted).items() if times > 1]
    found += [f"the attempt {key[:16]} was performed twice by one process" for key in twice]
    for spot, series in later.series.items():
        keys = {(trial.started.generation, trial.started.idempotency_key) for trial in series.trials}
        if len(keys) != len({generation for generation, _ in keys}):
            found.append(f"the effect at {spot} was sent under more than one key: {sorted(keys)}")
    return found


def _to_the_end(original: Kept | None, after: Kept) -> list[str]:
    """Success implies that every step of the plan ran, and every effect that the original completed."""
    if after.row.status != "succeeded":
        return []
    history = _history(after)
    found: list[str] = []
    if after.row.log_index is None:
        found.append("a succeeded run is not sealed")
    steps = history.plan.steps if history.plan is not None else []
    for step in range(len(steps)):
        finished = history.finished.get(step)
        if finished is None or finished.outcome != "succeeded":
            found.append(f"the run succeeded and step {step} did not finish")
    if original is not None and original.row.status == "succeeded":
        missing = _complete(_history(original)).keys() - _complete(history).keys()
        found += [f"the run succeeded without the effect at {spot}" for spot in sorted(missing)]
    return found


def _of_the_provider(provider: FakeProvider | None, after: Kept) -> list[str]:
    """At most one deed a key, where the effect does not declare that repeating it is harmless."""
    if provider is None:
        return []
    history = _history(after)
    landings = provider.landings()
    found = [f"the key {key} came with another body" for key in provider.mismatched]
    for series in history.series.values():
        if not series.first.mutates or series.first.terms.mode is Mode.RETRY:
            continue
        for key in {trial.started.idempotency_key for trial in series.trials}:
            if landings[key] > 1:
                found.append(f"{series.first.descriptor.kind} took effect {landings[key]} times under {key}")
    return found


__all__ = ["Cut", "Operator", "Report", "World", "crash_at_every_commit"]
