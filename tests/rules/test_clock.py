"""L3: when wall time cannot be believed."""

from __future__ import annotations

import pytest

from agentplane.core.clock import suspect_at_start, suspect_while_running

DAY_MS = 86_400_000
NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("wall_ms", "last_ms", "suspect"),
    [
        (NOW_MS, None, False),
        (NOW_MS, NOW_MS, False),
        (NOW_MS, NOW_MS - 7 * DAY_MS, False),
        (NOW_MS, NOW_MS - 7 * DAY_MS - 1, True),
        (NOW_MS, NOW_MS + 1, True),
    ],
)
def test_at_start_the_last_record_is_the_witness(wall_ms: int, last_ms: int | None, suspect: bool) -> None:
    """Behind the last record, or more than seven days ahead of it, the clock is suspect; an empty store says
    nothing."""
    assert (suspect_at_start(wall_ms, last_ms) is not None) == suspect


@pytest.mark.parametrize(
    ("drift_ms", "suspect"), [(0, False), (300_000, False), (-300_000, False), (300_001, True), (-300_001, True)]
)
def test_while_running_elapsed_boot_time_is_the_witness(drift_ms: int, suspect: bool) -> None:
    """More than five minutes between wall time and boot time, either way."""
    assert (suspect_while_running(NOW_MS + DAY_MS + drift_ms, DAY_MS, NOW_MS, 0) is not None) == suspect


def test_both_times_are_said() -> None:
    """A person reads what the clock says and what was to be expected."""
    said = suspect_while_running(NOW_MS + DAY_MS, 1_000, NOW_MS, 0)
    assert said == "the clock says 2027-01-16T08:00:00.000Z where 2027-01-15T08:00:01.000Z was to be expected"
