"""Obligations: every move of every state, when the warning comes, and what a date asks for."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentplane.core import lifecycle
from agentplane.core.instants import MAX_MS, MIN_MS
from agentplane.core.obligations import DAY_MS, OPEN_STATES, Act, State, may_move, next_act, transition, warn_at

repeatable = settings(derandomize=True, database=None, deadline=None)
EVENTS = {"warned": "warn", "breached": "breach", "met": "meet", "cancelled": "cancel"}


def test_every_move_is_the_table_and_nothing_else() -> None:
    """A state that has ended is left by nothing; nobody goes back, and nobody moves to where it is."""
    for state, to in product(State, [*State, "gone", ""]):
        event = EVENTS.get(str(to), "none")
        expected = lifecycle.OBLIGATION.get((str(state), event))
        assert may_move(state, to) == (expected is not None)
        assert transition(str(state), str(to)) == expected
    ended = {State.BREACHED, State.MET, State.CANCELLED}
    assert ended | OPEN_STATES == set(State)
    assert not [move for move in product(ended, State) if may_move(*move)]


def test_the_states_are_read_as_the_text_that_rows_hold() -> None:
    """A row's state is a text, and finds itself in the tables."""
    assert "pending" in OPEN_STATES and "warned" in OPEN_STATES and "met" not in OPEN_STATES
    assert may_move("pending", "met") and not may_move("unknown", "met")


@pytest.mark.parametrize(
    ("base", "due", "before", "warned"),
    [
        (0, 8 * DAY_MS, None, 7 * DAY_MS), (0, 4 * DAY_MS, None, 3 * DAY_MS), (0, DAY_MS, None, DAY_MS * 3 // 4),
        (0, 1000, None, 750), (0, 0, None, 0), (1000, 0, None, 0),
        (0, 8 * DAY_MS, DAY_MS // 2, 8 * DAY_MS - DAY_MS // 2),
        (0, DAY_MS, 3 * DAY_MS, -2 * DAY_MS), (0, DAY_MS, 0, DAY_MS), (0, DAY_MS, -5, DAY_MS),
        (MIN_MS, MIN_MS + 4, DAY_MS, MIN_MS), (0, MAX_MS, None, MAX_MS - DAY_MS),
    ],
)  # fmt: skip
def test_the_warning_comes_a_day_or_a_quarter_of_the_window_before(
    base: int, due: int, before: int | None, warned: int
) -> None:
    """The smaller of the two where nothing is said; what is said, where it is; at no instant that nobody can write."""
    assert warn_at(base, due, before) == warned


@repeatable
@given(st.integers(MIN_MS, MAX_MS), st.integers(MIN_MS, MAX_MS), st.none() | st.integers(-(10**15), 10**15))
def test_no_warning_comes_behind_its_date(base: int, due: int, before: int | None) -> None:
    """Whatever is asked, it is an instant, and not one behind the date."""
    assert MIN_MS <= warn_at(base, due, before) <= due


def test_what_a_date_asks_for() -> None:
    """Breached at the date, warned before it, once; nothing of what has ended."""
    warn, due = 50, 100
    expected = {("pending", 49): None, ("pending", 50): Act.WARN, ("pending", 99): Act.WARN}
    expected |= {("pending", 100): Act.BREACH, ("warned", 50): None, ("warned", 99): None, ("warned", 100): Act.BREACH}
    for state, now in product(State, (0, 49, 50, 99, 100, 10**15)):
        wanted = expected.get((str(state), now), Act.BREACH if state in OPEN_STATES and now >= due else None)
        assert next_act(str(state), warn, due, now) == wanted
    assert next_act("pending", 100, 100, 100) is Act.BREACH
