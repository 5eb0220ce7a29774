"""Window attribution: every order of announcement, arrival, commit, kill and restart, against a table."""

from __future__ import annotations

import itertools

import pytest

from agentplane.core.records import CONSERVATIVE, Record, RunAdmitted
from agentplane.lab.books import HALVES
from agentplane.lab.windows import AtKill, Attribution, Kill, at_kill, attribute, instant_us
from lab.lab_rows import AT, done, started

ANNOUNCED, SENT, DEAD, NEXT = 1_000, 2_000, 3_000, 4_000
KILL = Kill(SENT, DEAD, NEXT)
OPEN = AtKill(True, True, "EffectStarted", "k-1", ANNOUNCED)

# Where a time can lie. `edge` members pin which side a tie falls on.
WHEN = {
    "never": (),
    "before the announcement": (ANNOUNCED - 1,),
    "before the kill": (ANNOUNCED, SENT),
    "while dying": (SENT + 1, DEAD),
    "after death": (DEAD + 1, NEXT - 1),
    "of the next process": (NEXT,),
}
# Rows: the arrival; columns: the commit, in the order of WHEN. "-" is attributed to no window.
TABLE = {
    "never":                   "W2  -   -   -   -   W2",
    "before the announcement": "-   -   -   -   -   -",
    "before the kill":         "W3  W4  W4  -   W3  W3",
    "while dying":             "-   -   -   -   -   -",
    "after death":             "-   -   -   -   -   -",
    "of the next process":     "W2  -   -   -   -   W2",
}  # fmt: skip


@pytest.mark.parametrize("arrival", WHEN)
def test_every_order_of_arrival_commit_and_kill_has_its_window(arrival: str) -> None:
    """The whole table, edges included; a commit without an arrival is an earlier attempt's or a clock's
    mistake."""
    for commit, window in zip(WHEN, TABLE[arrival].split(), strict=True):
        for arrived, committed in itertools.product(WHEN[arrival] or (None,), WHEN[commit] or (None,)):
            found = attribute(
                KILL, OPEN, [] if arrived is None else [arrived], [] if committed is None else [committed]
            )
            assert (found.window or "-") == window, (arrival, commit, arrived, committed, found)


def test_the_half_of_w4_is_whether_the_outcome_had_been_queued() -> None:
    """The observer's last word about the effect decides it, and only for W4."""
    for queued, half in ((False, HALVES[0]), (True, HALVES[1])):
        kill = Kill(SENT, DEAD, NEXT, outcome_queued=queued)
        assert attribute(kill, OPEN, [1_500], [1_600])[:2] == ("W4", half)
        assert attribute(kill, OPEN, [1_500], [])[:2] == ("W3", None)


def test_an_earlier_attempt_does_not_make_a_window_of_a_later_one() -> None:
    """A second attempt that had not arrived is not W2 (the first one did), and one that had is judged by its
    own arrival."""
    assert attribute(KILL, OPEN, [500], []).window is None
    assert attribute(KILL, OPEN, [500, 1_500], []).window == "W3"
    assert attribute(KILL, OPEN, [500, 1_500], [600]).window == "W4"


@pytest.mark.parametrize(
    ("run", "window"),
    [
        (AtKill(True, False, "RunAdmitted"), "W1"),
        (AtKill(True, False, "StepStarted"), "W1"),
        (AtKill(True, True, "EffectDone"), None),
        (AtKill(True, True, "EffectFailed"), None),
        (AtKill(True, True, "EffectStarted"), None),
        (AtKill(True, False, ""), None),
        (AtKill(False, False, "RunAdmitted"), None),
        (AtKill(False, True, "EffectStarted", "k-1", ANNOUNCED), None),
        (AtKill(False, True, "RunConcluded"), None),
    ],
)
def test_a_run_without_an_open_announcement_is_w1_or_nothing(run: AtKill, window: str | None) -> None:
    """W1 needs a held lease and a run that never announced; between two effects is no window, nor is a
    read."""
    for arrivals, commits in itertools.product(([], [1_500]), repeat=2):
        assert attribute(KILL, run, arrivals, commits).window == window


def admitted() -> Record:
    """A run's first record."""
    return RunAdmitted(
        seq=1, run="run_a", epoch=1, v=1, at=AT, capability="tickets.settle", input={},
        input_label=CONSERVATIVE, canon=1, tenant="default", origin="0" * 64, currency="EUR",
    )  # fmt: skip


def test_the_state_at_the_kill_is_the_last_durable_record() -> None:
    """What `at_kill` makes of a journal's tail."""
    began = admitted()
    assert at_kill([], lease_held=True) == AtKill(True, False, "")
    assert at_kill([began], lease_held=True) == AtKill(True, False, "RunAdmitted")
    assert at_kill([began, started()], lease_held=True) == AtKill(True, True, "EffectStarted", "k-1", instant_us(AT))
    assert at_kill([began, started(), done()], lease_held=False) == AtKill(False, True, "EffectDone")
    assert at_kill([began, started(kind="order.look")], lease_held=True) == AtKill(True, True, "EffectStarted")


def test_a_records_instant_is_read_exactly() -> None:
    """Milliseconds in UTC become microseconds without a float's rounding."""
    assert instant_us("1970-01-01T00:00:00.001Z") == 1_000
    assert instant_us("2026-11-30T12:00:00.123Z") % 1_000_000 == 123_000


def test_an_attribution_says_why() -> None:
    """Every answer carries a sentence, also the one that is no window."""
    for arrived, committed in itertools.product(([], [500], [1_500], [2_500]), repeat=2):
        found = attribute(KILL, OPEN, arrived, committed)
        assert isinstance(found, Attribution)
        assert found.reason
