"""The lives of runs, steps, effects and groups: every pair of state and event is legal or refused."""

from __future__ import annotations

from itertools import product

import pytest

from agentplane.core import lifecycle
from agentplane.core.errors import InvariantViolation
from agentplane.core.records import CLOSING

NAMES = sorted(lifecycle.TABLES)


@pytest.mark.parametrize("name", NAMES)
def test_every_pair_is_legal_or_refused(name: str) -> None:
    """What the table does not have is refused by name, and nothing else is."""
    table = lifecycle.TABLES[name]
    legal = 0
    for state, event in product(lifecycle.states(table), lifecycle.events(table)):
        if (state, event) in table:
            assert lifecycle.step(table, state, event) == table[(state, event)]
            legal += 1
        else:
            with pytest.raises(InvariantViolation, match="INV-01"):
                lifecycle.step(table, state, event)
    assert legal == len(table)


@pytest.mark.parametrize("name", NAMES)
def test_every_state_is_reached_from_nothing(name: str) -> None:
    """A state that no history reaches is a mistake in the table."""
    table = lifecycle.TABLES[name]
    reached, size = {"none"}, 0
    while size != len(reached):
        size = len(reached)
        reached |= {after for (before, _), after in table.items() if before in reached}
    assert reached == set(lifecycle.states(table))


def test_what_seals_is_left_by_no_event() -> None:
    """A run that nothing may resume has no row that leaves it, and the records agree on which those are."""
    final = set(lifecycle.states(lifecycle.RUN)) - {before for before, _ in lifecycle.RUN}
    assert final == {"succeeded", "cancelled", "abandoned"}
    assert final <= CLOSING


def test_no_effect_leaves_done_and_doubt_leaves_only_by_an_answer() -> None:
    """P2 as a table: a refusal after a doubtful attempt is still doubt."""
    effect = lifecycle.EFFECT
    assert not [pair for pair in effect if pair[0] == "done"]
    assert effect[("announced in doubt", "EffectFailed did_not_happen")] == "in doubt"
    out_of_doubt = {event for (before, event), after in effect.items() if before == "in doubt" and after != "in doubt"}
    assert out_of_doubt == {"EffectReconciled landed", "EffectReconciled did_not_happen", "EffectStarted"}
    assert not [pair for pair, after in effect.items() if pair[0] == "landed" and after != "done"]


def unwinding(state: str) -> bool:
    return state.startswith("unwinding")


def test_a_run_that_unwinds_never_goes_forward_again() -> None:
    """It is suspended, parked or orphaned as what it is, and ends failed, cancelled or quarantined."""
    run = lifecycle.RUN
    ends = {after for (before, _), after in run.items() if unwinding(before) and not unwinding(after)}
    assert ends == {"failed", "cancelled", "quarantined"}
    for event in ("suspend", "park", "crash"):
        left = lifecycle.step(run, "unwinding", event)
        assert {after for (before, _), after in run.items() if before == left} == {"unwinding"}


def test_only_a_running_run_begins_to_unwind() -> None:
    """One that waits, is exhausted or is in quarantine is never unwound where it stands; one that was unwinding when it
    was quarantined goes on doing so."""
    begun = {pair for pair, after in lifecycle.RUN.items() if after == "unwinding" and not unwinding(pair[0])}
    assert begun == {("running", "UnwindBegan"), ("quarantined", "reopen unwinding")}


def test_exhaustion_is_a_pause_that_three_things_end() -> None:
    """A ceiling is raised, the run is replayed, or it is cancelled; its mutations stand till then."""
    left = {event for before, event in lifecycle.RUN if before == "exhausted"}
    assert left == {"raise", "replay", "cancel"}


def test_what_an_unwind_has_dealt_with_stays_dealt_with() -> None:
    """No row leaves a compensated or kept step, and none that is still running is either."""
    step = lifecycle.STEP
    assert not [pair for pair in step if pair[0] in ("compensated", "kept")]
    unwound = {before for before, event in step if event in ("StepCompensated", "StepKept")}
    assert unwound == {"succeeded", "interrupted", "failed", "replanned"}


def test_a_group_leaves_quarantine_by_a_last_word_and_nothing_else() -> None:
    """Committed and aborted are final; a group that nobody can account for is settled once more when somebody can."""
    group = lifecycle.GROUP
    final = set(lifecycle.states(group)) - {before for before, _ in group}
    assert final == {"committed", "aborted"}
    assert {after for (before, _), after in group.items() if before == "quarantined"} == final


def test_a_closed_case_is_left_by_reopening_alone() -> None:
    """It takes on nothing, so nothing of it is breached; open, it may be anything, and every breach escalates it."""
    case = lifecycle.CASE
    assert {event for before, event in case if before == "closed"} == {"reopen"}
    assert {after for (_, event), after in case.items() if event == "breach"} == {"escalated"}
    named = set(lifecycle.states(case)) - {"none", "closed"}
    for before in named:
        reached = {after for (state, event), after in case.items() if state == before and event.startswith("set ")}
        assert reached == named - {before} and (before, "close") in case and (before, "breach") in case


def test_a_task_ends_once_and_an_escalated_one_does_not_expire() -> None:
    """Completed, expired and withdrawn are final; what was escalated waits for a person, whoever claims it."""
    task = lifecycle.TASK
    final = set(lifecycle.states(task)) - {before for before, _ in task}
    assert final == {"completed", "expired", "withdrawn"}
    assert ("escalated", "expire") not in task and ("escalated", "escalate") not in task
    assert lifecycle.step(task, "escalated", "claim") == lifecycle.step(task, "escalated", "release") == "escalated"


def test_a_breach_is_for_good() -> None:
    """It may be accounted for, and is one still."""
    duty = lifecycle.OBLIGATION
    left = {(event, after) for (before, event), after in duty.items() if before == "breached"}
    assert left == {("acknowledge", "breached")}
    assert not [pair for pair in duty if pair[0] in ("met", "cancelled")]


def test_an_event_leaves_the_buffer_once() -> None:
    """Consumed and dead are final; back goes only a claim whose wait ended otherwise."""
    event = lifecycle.EVENT
    assert set(lifecycle.states(event)) - {before for before, _ in event} == {"consumed", "dead"}
    assert [pair for pair, after in event.items() if after == "buffered"] == [("none", "store"), ("claimed", "retire")]


@pytest.mark.parametrize("name", NAMES)
def test_the_diagram_has_every_row(name: str) -> None:
    """What the docs show is made from the table, one line a row."""
    table = lifecycle.TABLES[name]
    lines = lifecycle.mermaid(table).splitlines()
    assert lines[0] == "stateDiagram-v2"
    assert len(lines) == len(set(lines)) == len(table) + 1
    assert any(line.startswith("    [*] --> ") for line in lines)
    assert all(" " not in line.strip().split(" --> ")[0] for line in lines[1:])
