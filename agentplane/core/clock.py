"""When wall time cannot be believed (L3).

Owns the two comparisons and their sentences. Refuses to read a clock. Invariant: a suspect clock opens no key
window and fires nothing; it only ever makes the plane more careful.
"""

from __future__ import annotations

from agentplane.core import bounds
from agentplane.core.instants import to_text


def suspect_at_start(wall_ms: int, last_record_ms: int | None) -> str | None:
    """Why the clock is suspect beside a store whose last record says ``last_record_ms``; None when it is not."""
    if last_record_ms is None:
        return None
    if wall_ms < last_record_ms:
        return f"the clock says {to_text(wall_ms)}, behind the last record at {to_text(last_record_ms)}"
    if wall_ms - last_record_ms > bounds.CLOCK_AHEAD_MAX_S * 1000:
        return (
            f"the clock says {to_text(wall_ms)}, more than seven days after the last record at "
            f"{to_text(last_record_ms)}"
        )
    return None


def suspect_while_running(wall_ms: int, boot_ms: int, wall_then_ms: int, boot_then_ms: int) -> str | None:
    """Why the clock is suspect when wall time has left elapsed boot time; both pairs read together, in ms."""
    drift_ms = (wall_ms - wall_then_ms) - (boot_ms - boot_then_ms)
    if abs(drift_ms) <= bounds.CLOCK_DRIFT_MAX_S * 1000:
        return None
    expected = wall_then_ms + boot_ms - boot_then_ms
    return f"the clock says {to_text(wall_ms)} where {to_text(expected)} was to be expected"
