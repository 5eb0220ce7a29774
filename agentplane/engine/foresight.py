"""What a resume of an open run would meet under this code, asked without performing anything.

Owns the verdict on a run that goes on (verified, diverges, refused, unreadable) and the place where ``cx.changed``
belongs. Refuses every act and every append: it is strict replay up to where the history ends. Invariant: what a resume
would ask again is asked here, and a finished step, which no resume asks (P16), is told apart from that.
"""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import msgspec
import trio

from agentplane.authoring.skill import Skill
from agentplane.core import plan as plans
from agentplane.core.effects import Phase
from agentplane.core.errors import JournalCorrupt
from agentplane.core.history import History, read_all
from agentplane.core.records import CANON
from agentplane.engine.executor import Capabilities, StepResult, read_back, run_step
from agentplane.engine.having import undoing
from agentplane.engine.live import Gate, LiveRun
from agentplane.engine.stops import Divergence, Dropped, Quarantine, Stop, WouldPerform
from agentplane.engine.strict import ReadOnlyLog
from agentplane.engine.unwind import compensate
from agentplane.engine.world import World
from agentplane.journal.lists import Stored

ReadBlob = Callable[[bytes], Awaitable[object]]
VERIFIED: Final = "verified"
DIVERGES: Final = "diverges"
REFUSED: Final = "refused"
UNREADABLE: Final = "unreadable"


class Foreseen(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one run. ``reason``: one sentence; step, phase and ordinal: the place; ``where``: file and line of
    the skill; ``remedy``: what to write there; ``notes``: what differs and is asked by nobody."""

    run: str
    verdict: str
    reason: str | None = None
    step: int | None = None
    phase: str | None = None
    ordinal: int | None = None
    where: str | None = None
    remedy: str | None = None
    notes: tuple[str, ...] = ()
    effects: int = 0


async def foresee(run: str, stored: list[Stored], skills: Capabilities, world: World, read_blob: ReadBlob) -> Foreseen:
    """Walk whatever a resume of ``run`` would walk, up to the end of its records. Raises only trio.Cancelled."""
    try:
        history = read_all(run, [item.record for item in stored])
    except JournalCorrupt as error:
        return Foreseen(run=run, verdict=UNREADABLE, reason=error.message)
    why = _refused(history, skills)
    if why is not None:
        return Foreseen(run=run, verdict=REFUSED, reason=why, effects=len(history.series))
    live = _walking(run, history, world, read_blob)
    # A resume that undoes asks no forward step again, and one that goes forward no compensation.
    found = await (_forward(live, skills) if history.unwind is None else _back(live, skills))
    notes = tuple(await _ended(live, skills)) if found is None and history.unwind is None else ()
    await trio.lowlevel.checkpoint()
    if found is None:
        return Foreseen(run=run, verdict=VERIFIED, notes=notes, effects=len(history.series))
    return msgspec.structs.replace(found, effects=len(history.series))


def _walking(run: str, history: History, world: World, read_blob: ReadBlob) -> LiveRun:
    origin = bytes.fromhex(history.admitted.origin) if history.admitted is not None else b""
    live = LiveRun(run, ReadOnlyLog(run, history), history, world, Gate(), origin=origin)
    live.read_blob = read_blob
    live.strict = True
    return live


def _refused(history: History, skills: Capabilities) -> str | None:
    """Why this build would not take the run up at all."""
    if history.admitted is None or history.plan is None:
        return "the run has no admission and plan"
    if history.admitted.canon != CANON:
        return f"the run was recorded under canonicalization {history.admitted.canon}"
    if history.unwind is not None:
        missing = [name for name in undoing(history) if not isinstance(skills.get(name), Skill)]
        return f"this plane does not provide {missing[0]}, whose work is to be taken back" if missing else None
    for node in plans.from_data(history.plan.plan).nodes:
        if not _done(history, node.id) and not isinstance(skills.get(node.capability), Skill):
            return f"this plane does not provide {node.capability}, which step {node.id} needs"
    return None


def _done(history: History, step: int) -> bool:
    record = history.finished.get(step)
    return record is not None and record.outcome == "succeeded"


async def _forward(live: LiveRun, skills: Capabilities) -> Foreseen | None:
    """Walk every step of the plan in force that began and has not succeeded. The first finding, or None."""
    history = live.history
    admitted, frozen = history.admitted, history.plan
    if admitted is None or frozen is None:
        return None
    nodes = plans.from_data(frozen.plan).nodes
    outputs: dict[int, object] = {}
    for node in nodes:
        if _done(history, node.id):
            outputs[node.id] = (await read_back(live, history.finished[node.id])).output
    begun = [node for node in nodes if node.id in history.started and not _done(history, node.id)]
    live.going_on = frozenset(node.id for node in begun)
    for node in begun:
        skill = skills[node.capability]
        if isinstance(skill, Skill):
            found = _judge(live.run, skill, await run_step(live, node, skill, admitted.input, outputs))
            if found is not None:
                return found
    return None


async def _back(live: LiveRun, skills: Capabilities) -> Foreseen | None:
    """Walk every compensation that began and is not recorded as done. The first finding, or None."""
    history = live.history
    live.unwinding = True
    begun = sorted({spot.step for spot in history.series if spot.phase is Phase.compensating} - history.undone.keys())
    live.going_on = frozenset(begun)
    for step in begun:
        skill = skills.get(history.started[step].skill)
        if isinstance(skill, Skill):
            found = _judge(live.run, skill, await compensate(live, skill, step))
            if found is not None:
                return found
    return None


async def _ended(live: LiveRun, skills: Capabilities) -> list[str]:
    """Steps that are done, and whose code would ask something else now: nothing asks it again."""
    history = live.history
    live.going_on = frozenset()
    notes: list[str] = []
    outputs: dict[int, object] = {}
    request = history.admitted.input if history.admitted is not None else None
    for step, record in sorted(history.finished.items(), key=lambda item: item[1].seq):
        skill = skills.get(history.started[step].skill)
        if record.outcome != "succeeded":
            continue
        if isinstance(skill, Skill):
            result = await run_step(live, history.nodes()[step], skill, request, outputs)
            if isinstance(result.stop, Divergence | WouldPerform):
                notes.append(f"{result.stop.reason}; step {step} has ended, so nothing asks it again")
        outputs[step] = (await read_back(live, record)).output
    return notes


def _judge(run: str, skill: Skill, result: StepResult) -> Foreseen | None:
    """What a walk that came to the end of the history found; None where the code may go on from there."""
    stop = result.stop
    if isinstance(stop, Divergence):
        return _diverges(run, skill, result.step, stop)
    if isinstance(stop, Quarantine):
        # A doubt is the journal's and not the code's: it is decided alike by every build.
        return None if stop.code == "undecided" else _found(run, REFUSED, skill, result.step, stop.reason, stop)
    if isinstance(stop, Dropped):
        return _found(run, REFUSED, skill, result.step, stop.reason, stop)
    if stop is None and result.fault is not None and result.fault.code == "invalid_input":
        return _found(run, REFUSED, skill, result.step, f"step {result.step}: {result.fault.message}", None)
    return None


def _diverges(run: str, skill: Skill, step: int, stop: Divergence) -> Foreseen:
    where = _line(skill, stop)
    guard = '`if await cx.changed("a-name-for-it"):`'
    if where is None:
        remedy = f"{skill.where}: go on asking for what is recorded, and leave it out only under {guard}."
    else:
        remedy = f"{where}: put what is new under {guard}, and what was recorded beside it, under `else:`."
    found = _found(run, DIVERGES, skill, step, stop.reason, stop)
    if stop.spot is not None:
        found = msgspec.structs.replace(found, phase=stop.spot.phase.wire, ordinal=stop.spot.ordinal)
    return msgspec.structs.replace(found, remedy=remedy)


def _found(run: str, verdict: str, skill: Skill, step: int, reason: str, stop: Stop | None) -> Foreseen:
    where = None if stop is None else _line(skill, stop)
    return Foreseen(run=run, verdict=verdict, reason=reason, step=step, where=where or skill.where)


def _line(skill: Skill, stop: Stop) -> str | None:
    """File and line of the operator's code that asked, the innermost one; None where none of it did."""
    home = str(Path(skill.body.__code__.co_filename).parent)
    frames = [frame for frame in traceback.extract_tb(stop.__traceback__) if frame.filename.startswith(home)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None
