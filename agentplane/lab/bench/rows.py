"""The rows of a bench, as a table and as JSON.

Owns their names and units. Refuses a row whose name is not in ``NAMES``. Invariant: a figure without its floor shows a
blank, never a guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

NAMES: Final[dict[str, tuple[str, str]]] = {
    "fdatasync_us": ("us", "append 4 KiB and fdatasync (median)"),
    "syncs_per_sequential_effect": ("syncs", "one run, effects one after the other, each settled by a machine"),
    "syncs_per_operator_effect": ("syncs", "the same, each of which only a person could settle"),
    "syncs_per_effect_8": ("syncs", "8 runs side by side"),
    "syncs_per_effect_64": ("syncs", "64 runs side by side"),
    "syncs_per_effect_256": ("syncs", "256 runs side by side"),
    "syncs_per_local_effect": ("syncs", "an effect that touches nothing outside"),
    "cpu_per_effect_us": ("us", "CPU of the whole process, one run"),
    "cpu_per_effect_64_us": ("us", "CPU of the whole process, 64 runs"),
    "local_effect_us": ("us", "time of a local effect, one run"),
    "guard_event_us": ("us", "the audit hook, for an event that a step may raise"),
    "replay_us": ("us", "an effect served from its history, async skill"),
    "effects_per_s_1": ("1/s", "one run"),
    "effects_per_s_8": ("1/s", "8 runs"),
    "effects_per_s_64": ("1/s", "64 runs"),
    "effects_per_s_256": ("1/s", "256 runs"),
    "resume_10k_s": ("s", "open after a kill and resume 10,000 effects of 256 B"),
    "resume_10k_rss_mb": ("MB", "resident memory of that process at its highest"),
    "recovery_1000_s": ("s", "open after a kill and conclude 1,000 abandoned runs"),
    "plan_step_us": ("us", "a step of a ready set of 1,000, with one effect"),
    "plan_over_gather": ("x", "that ready set against the same effects in one gather"),
    "plan_contract_10k_s": ("s", "finding no fault in a plan of 10,000 steps"),
    "resume_undo_s": ("s", "open and go on with a compensation that waited at step 500 of 1,000"),
    "commits_per_atomic": ("", "commits a transaction of atomic members adds: its own, and that of what came before"),
}
"""Name: unit, and what it is, in the order of the table."""


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One figure. ``floor``: the least that the disk or the interpreter alone would take, in the same unit."""

    name: str
    value: float
    unit: str
    floor: float | None = None


def row(name: str, value: float, floor: float | None = None) -> Row:
    """The row of that name; raises KeyError for a name that no row has."""
    unit, _ = NAMES[name]
    return Row(name=name, value=rounded(value), unit=unit, floor=None if floor is None else rounded(floor))


def rounded(value: float) -> float:
    """Three significant figures after the point of small values, none of large ones."""
    return round(value, 3) if value < 100 else round(value, 1)


def table(rows: Sequence[Row]) -> str:
    """Rows as text, in the order of ``NAMES``."""
    order = list(NAMES)
    lines = [f"{'':30} {'measured':>12} {'floor':>10} {'':6} "]
    for one in sorted(rows, key=lambda one: order.index(one.name)):
        floor = "" if one.floor is None else f"{one.floor:,.6g}"
        lines.append(f"{one.name:30} {one.value:>12,.6g} {floor:>10} {one.unit:6} {NAMES[one.name][1]}")
    return "\n".join(lines)
