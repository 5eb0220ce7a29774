"""Whether this build can take a run further.

Owns that one question, asked of committed rows before a run is taken. Refuses to guess: a run whose records cannot be
read is somebody else's to hold out, by name. Invariant: a run that is left has its lease and its timers untouched, so
that a build that has the code finds it as it was.
"""

from __future__ import annotations

from agentplane.authoring.skill import Skill
from agentplane.core import plan as plans
from agentplane.core.errors import JournalCorrupt
from agentplane.core.history import History, read_all
from agentplane.engine.executor import Capabilities
from agentplane.journal import lists
from agentplane.journal.tx import Tx


def has_code(tx: Tx, run: str, skills: Capabilities) -> bool:
    """Every step that is left to run has its skill here (P16: a finished step's code is not asked), or, where the run
    only undoes or was asked to, every step whose landed work stands. Raises NotFound."""
    asked = lists.cancellation(tx, run) is not None
    try:
        plan = lists.plan_of(tx, run)
        if plan is not None and not asked and _all_here([node.capability for node in plan.nodes], skills):
            return True
        history = read_all(run, (item.record for item in lists.whole_history(tx, run)))
    except JournalCorrupt:
        return True  # to be held out by whoever reads it next, with its name
    if history.plan is None:
        return False
    nodes = plans.from_data(history.plan.plan).nodes
    finished = {step for step, record in history.finished.items() if record.outcome == "succeeded"}
    if asked or history.unwind is not None:
        return _all_here(undoing(history), skills)
    return _all_here([node.capability for node in nodes if node.id not in finished], skills)


def _all_here(names: list[str], skills: Capabilities) -> bool:
    return all(isinstance(skills.get(name), Skill) for name in names)


def undoing(history: History) -> list[str]:
    """The skills whose landed work stands: nobody else can say what they declare."""
    steps = {series.spot.step for series in history.standing()} | {spot.step for spot in history.open_groups()}
    return sorted({history.started[step].skill for step in steps if step not in history.undone})
