"""Taking a run's work back, step by step (the saga).

Owns the walk through the moves that ``core.saga`` decides, one compensation at a time. Refuses to move while forward
work is in doubt, and to go on behind a compensation that failed. Invariant: from ``UnwindBegan`` on the run only
undoes; a resumed unwind finds the same list without what is recorded as undone, and records no step twice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from agentplane.authoring.plan import PlanTemplate
from agentplane.authoring.skill import Skill
from agentplane.core import bounds
from agentplane.core import plan as plans
from agentplane.core.effects import Phase
from agentplane.core.errors import AgentplaneError, SkillFault
from agentplane.core.history import History, Series
from agentplane.core.records import (
    Actor,
    Basis,
    Exhaustion,
    RunCancelled,
    StepCompensated,
    StepFinished,
    StepKept,
    Undecided,
    UnwindBegan,
)
from agentplane.core.saga import Action, Cause, Compensation, InDoubt, Move, Nothing, StepFacts, Unwind, decide_unwind
from agentplane.engine import waits
from agentplane.engine.act import fresh
from agentplane.engine.blocking import run_blocking
from agentplane.engine.context import StepContext
from agentplane.engine.dispatch import REVERSAL
from agentplane.engine.executor import StepResult, read_back, run_step, walk, worst
from agentplane.engine.having import undoing
from agentplane.engine.linking import Spec
from agentplane.engine.live import LiveRun
from agentplane.engine.runlog import UNRECORDABLE
from agentplane.engine.stops import Dropped, Quarantine, Stop
from agentplane.journal import timers
from agentplane.journal.lists import Cancel

Capabilities = Mapping[str, Skill | PlanTemplate]
WHY = {Action.KEEP_PIVOT: "pivot", Action.KEEP_UNNECESSARY: "unnecessary"}


class End(msgspec.Struct, frozen=True, kw_only=True):
    """How a run left this process. ``outcome``: a conclusion's, or suspended, parked, dropped, cut."""

    outcome: str
    output: object = None
    reason: str | None = None
    code: str | None = None
    undecided: tuple[Undecided, ...] = ()
    exhaustion: Exhaustion | None = None


async def unwind(live: LiveRun, skills: Capabilities, cause: Cause) -> End:
    """Unwind a run that failed or was asked to stop, as far as it may be. Raises what the log refuses."""
    history = live.history
    settled = False
    while True:
        under_way = history.unwind
        if under_way is None and live.cancel is not None:
            cause = Cause.CANCELLED
        begun = under_way is not None and under_way.cause == cause.value
        missing = _missing(history, skills)
        if missing is not None:
            return _without(history, missing, cause, begun=begun)
        decided = decide_unwind(facts(history, skills), cause, begun=begun)
        lost = waits.lost(history)
        if lost and (cause is Cause.CANCELLED or isinstance(decided, Unwind)):
            live.log.ride(*lost)
        if isinstance(decided, InDoubt):
            # A doubt that a machine can settle is settled where it stands: a stop may not quarantine a run that a plain
            # resume would have finished. A failure asks only where no resume walks to it: the taking back of a
            # sibling's group, which had begun.
            again = decided.steps if cause is Cause.CANCELLED else _half_taken_back(history)
            if settled or not again:
                return _doubtful(history, cause, decided)
            settled = True
            stopped = await _walk_again(live, skills, again)
            if stopped is not None:
                return stopped
            continue
        if isinstance(decided, Nothing) and cause is Cause.FAILED:
            return ended(history, cause)
        # Of a cancelled run no group stays open, also one in which nothing landed: it is sealed.
        if not begun and history.open_groups():
            stopped = await settle_groups(live, skills, history.started)
            if stopped is not None:
                return stopped
            continue
        if isinstance(decided, Nothing):
            return ended(history, cause)
        live.unwinding = True
        if not begun:
            await _begin(live, cause, decided.moves)
        for move in decided.moves:
            end = await _make(live, skills, move)
            if end is not None:
                return end
        if live.cancel is None or cause is Cause.CANCELLED:
            return ended(history, cause)
        # Asked to stop while it unwound for a failure: the list that was begun is done, and what the failure left alone
        # is taken back as well.
        cause = Cause.CANCELLED


def facts(history: History, skills: Capabilities) -> list[StepFacts]:
    """What the journal says of every step that ever began, whichever plan it was of."""
    landed: dict[int, int] = {}
    for series in history.landed():
        landed[series.spot.step] = max(landed.get(series.spot.step, 0), _last_seq(series))
    doubts = {series.spot.step for series in history.doubts() if series.spot.phase is Phase.forward}
    found: list[StepFacts] = []
    for step, started in sorted(history.started.items()):
        finished = history.finished.get(step)
        skill = skills.get(started.skill)
        found.append(StepFacts(
            step=step,
            declared=skill.compensation if isinstance(skill, Skill) else Compensation.UNDECLARED,
            completed=_completed(finished, landed.get(step)),
            failed=finished is not None and finished.outcome == "failed",
            landed=landed.get(step), in_doubt=step in doubts, undone=step in history.undone,
        ))  # fmt: skip
    return found


def _completed(finished: StepFinished | None, landed: int | None) -> int | None:
    """When the step came to its end; one that asked for another plan ended too, and what it landed stands since."""
    if finished is None or finished.outcome == "failed" or (finished.outcome == "replanned" and landed is None):
        return None
    return finished.seq


def _without(history: History, missing: SkillFault, cause: Cause, *, begun: bool) -> End:
    """Code is missing that says what a step declares: a failed run stays as it is (a cancel takes its work back where
    the code is), an unwind that began is left to a build that has it, and a cancel is a person's to decide."""
    if begun:
        return End(outcome="dropped", reason=missing.message, code=missing.row.code)
    if cause is Cause.FAILED:
        return ended(history, cause)
    return End(outcome="quarantined", reason=missing.message, code=missing.row.code)


def _half_taken_back(history: History) -> list[int]:
    """Steps of an open group of which a reversal is in doubt."""
    doubts = {(series.spot.step, series.first.group) for series in history.doubts() if series.first.role == REVERSAL}
    return sorted({spot.step for spot in history.open_groups() if (spot.step, spot.nth) in doubts})


def _missing(history: History, skills: Capabilities) -> SkillFault | None:
    """Without its code nobody can say what a step declares about its landed work: the run is left to a build that has
    it."""
    for name in undoing(history):
        if not isinstance(skills.get(name), Skill):
            return SkillFault(f"This plane does not provide {name}, whose work may have to be taken back.")
    return None


def _last_seq(series: Series) -> int:
    last = series.last
    return max([last.started.seq, *([last.outcome.seq] if last.outcome else []), *(said.seq for said in last.said)])


def _doubtful(history: History, cause: Cause, found: InDoubt) -> End:
    if cause is Cause.FAILED:
        # A resume decides it; a quarantine would make a person's work of it.
        return ended(history, cause)
    undecided = tuple(
        Undecided(
            effect=series.last.started.effect_key or "", step=series.spot.step, phase=series.spot.phase.wire,
            kind=series.first.descriptor.kind, doubt=series.doubt().value,
        )
        for series in history.doubts()[: bounds.UNDECIDED_NAMED_MAX]
    )  # fmt: skip
    steps = ", ".join(map(str, found.steps))
    return End(outcome="quarantined", code="undecided", undecided=undecided,
               reason=f"asked to stop, and the work of step {steps} is in doubt: nothing was taken back")  # fmt: skip


def ended(history: History, cause: Cause) -> End:
    """How the run ends once nothing more is to be taken back; a failed one with the fault of its lowest failed step."""
    if cause is Cause.CANCELLED:
        return End(outcome="cancelled")
    faults = [
        record.fault
        for _, record in sorted(history.finished.items())
        if record.outcome == "failed" and record.fault is not None
    ]
    if not faults:
        return End(outcome="failed")
    return End(outcome="failed", reason=faults[0].message, code=faults[0].code)


def cancelled_specs(history: History, cancel: Cancel | None) -> list[Spec]:
    """``RunCancelled`` with who asked first and why, once."""
    if cancel is None or history.cancelled is not None:
        return []
    by = Actor(actor=cancel.actor, basis=Basis(cancel.basis), uid=cancel.uid)
    return [(RunCancelled, {"cancelled_by": by, "reason": cancel.reason})]


async def settle_groups(live: LiveRun, skills: Capabilities, steps: Collection[int]) -> End | None:
    """One of ``steps`` that was interrupted with a group open is walked to where it stood, and its group is taken back
    there; how the run ends when that cannot be, else None."""
    history = live.history
    stopped = await _walk_again(live, skills, {spot.step for spot in history.open_groups()}.intersection(steps))
    if stopped is not None:
        return stopped
    left = [spot for spot in history.open_groups() if spot.step in steps]
    if left:
        reason = (
            f"a group of step {left[0].step} is past its frontier and not settled, so nothing was taken back; "
            "where a ceiling stops it, raise it"
        )
        return End(outcome="quarantined", reason=reason, code="group_open")
    return None


async def _walk_again(live: LiveRun, skills: Capabilities, steps: Collection[int]) -> End | None:
    """Walk steps to where they stopped, and no further: what only their own code can settle there is settled. How the
    run ends when that cannot be, else None; every one of them is walked before the worst is reported (P10)."""
    history = live.history
    request = history.admitted.input if history.admitted is not None else None
    # An unwind hears no cancel, and these must.
    unwinding, live.unwinding, live.stopping = live.unwinding, False, True
    stuck: list[StepResult] = []
    try:
        for step in sorted(steps):
            skill = skills[history.started[step].skill]
            if isinstance(skill, Skill):
                try:
                    outputs = await outputs_of(live, step)
                except Stop as stop:
                    stuck.append(StepResult(step, stop.outcome, stop=stop))
                    continue
                result = await run_step(live, history.nodes()[step], skill, request, outputs)
                if result.outcome in ("quarantined", "parked", "dropped"):
                    stuck.append(result)
    finally:
        live.unwinding, live.stopping = unwinding, False
    found = worst(stuck)
    if found is None:
        return None
    if isinstance(found.stop, Quarantine):
        found.stop.naming_all(result.stop for result in stuck)
    return _stuck(live, found.step, history.started[found.step].skill, found)


async def _begin(live: LiveRun, cause: Cause, moves: tuple[Move, ...]) -> None:
    """One unit: who asked, what will be taken back, and the end of every wait that nothing walks to any more."""
    specs = cancelled_specs(live.history, live.cancel) if cause is Cause.CANCELLED else []
    specs += waits.ended(live.history, phase=Phase.forward)
    specs.append((UnwindBegan, {"cause": cause.value, "steps": [move.step for move in moves]}))
    run = live.run
    await live.log.barrier(*specs, after=lambda tx: timers.disarm_run(tx, run))
    live.world.observe("run.unwinding", run=run)


async def _make(live: LiveRun, skills: Capabilities, move: Move) -> End | None:
    """Make one move; how the run ends when it cannot go on, else None."""
    history = live.history
    name = history.started[move.step].skill
    if move.action is Action.ESCALATE:
        reason = (
            f"step {move.step} ({name}) did what changes the world and declares nothing about taking it back: "
            "what was done before it stands"
        )
        return End(outcome="quarantined", reason=reason, code="undeclared")
    if move.action is not Action.COMPENSATE:
        live.log.ride((StepKept, {"step": move.step, "why": WHY[move.action]}))
        return None
    skill = skills[name]
    if not isinstance(skill, Skill):  # pragma: no cover - _missing was asked
        return End(outcome="dropped", reason=f"{name} is no skill", code="skill_fault")
    while True:
        result = await compensate(live, skill, move.step)
        if result.outcome != "suspended":
            break
        # A refund that waits for its window is still a refund: the run suspends, and this goes on when it is due.
        if await waits.suspend(live, waits.waits_of([result.stop])):
            return End(outcome="suspended", reason=result.stop.reason if result.stop else None)
    if result.outcome == "succeeded":
        members: dict[str, object] = {
            "step": move.step, "phase": Phase.compensating.wire, "compensation": skill.compensation.value,
        }  # fmt: skip
        try:
            live.log.ride((StepCompensated, members | {"outcome": result.output}))
        except UNRECORDABLE:
            # What it returned is no part of what was undone; that it was undone is.
            live.log.ride((StepCompensated, members))
        live.world.observe("step.compensated", run=live.run, step=move.step)
        return None
    return _stuck(live, move.step, name, result)


def _stuck(live: LiveRun, step: int, name: str, result: StepResult) -> End:
    """A compensation that did not end well: nothing is taken back behind it."""
    stop = result.stop
    if result.outcome in ("parked", "dropped"):
        code = stop.error.row.code if isinstance(stop, Dropped) else None
        return End(outcome=result.outcome, reason=stop.reason if stop is not None else None, code=code)
    live.world.observe("step.compensation_failed", run=live.run, step=step)
    if isinstance(stop, Quarantine):
        return End(outcome="quarantined", reason=f"taking back step {step} ({name}): {stop.reason}", code=stop.code,
                   undecided=stop.undecided)  # fmt: skip
    why = result.fault.message if result.fault is not None else (stop.reason if stop is not None else result.outcome)
    return End(outcome="quarantined", code="compensation_failed",
               reason=f"the compensation of step {step} ({name}) failed: {why}"[:2000])  # fmt: skip


async def compensate(live: LiveRun, skill: Skill, step: int) -> StepResult:
    """Walk the compensation of a step from its beginning."""
    undo = skill.undo
    if undo is None:
        reason = f"{skill.name} says that it can be compensated and has no compensation"
        return StepResult(step, "quarantined", stop=Quarantine(reason, "compensation_failed"))
    cx = StepContext(live, step, Phase.compensating)
    try:
        wanted, output = await _given(live, skill, step)
    except (Stop, ValueError, AgentplaneError) as error:
        stop = error if isinstance(error, Stop) else Quarantine(str(error), "compensation_failed")
        return StepResult(step, stop.outcome, stop=stop)

    async def body() -> object:
        if skill.undo_blocking:
            return await run_blocking(cx, lambda here, asked: undo(here, asked, output), wanted,
                                      live.world.skill_threads)  # fmt: skip
        return await undo(cx, wanted, output)

    result = await walk(live, cx, body)
    if result.fault is not None and result.fault.code in ("not_data", "too_large"):
        # What it returned is no part of what it undid.
        return StepResult(step, "succeeded")
    return result


async def _given(live: LiveRun, skill: Skill, step: int) -> tuple[object, object]:
    """The request that the step had, and the output that it gave (None where it never did). It resolves from what ran,
    not from the plan in force."""
    history = live.history
    outputs = await outputs_of(live, step)
    request = history.admitted.input if history.admitted is not None else None
    return skill.read_request(plans.bind(history.nodes()[step], request, outputs)), fresh(outputs.get(step))


async def outputs_of(live: LiveRun, step: int) -> dict[int, object]:
    """The recorded outputs of the step and of those that it was bound to. Raises Quarantine for one that is gone."""
    history = live.history
    node = history.nodes()[step]
    needed = {step, *(bound["node"] for bound in (node.args or {}).values() if "node" in bound)}
    found: dict[int, object] = {}
    for other in needed:
        record = history.finished.get(int(str(other)))
        if record is not None and record.outcome == "succeeded":
            result = await read_back(live, record)
            if result.stop is not None:
                raise result.stop
            found[record.step or 0] = result.output
    return found
