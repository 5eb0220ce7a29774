"""P19: what walks skills has one order of sets in every process."""

from __future__ import annotations

from pathlib import Path

from surface.terminals import Plane

SKILL = """
from agentplane import effect, skill


@effect("desk.note", mutates=False)
async def note(call, *, words: list):
    return words


@skill("desk.words")
async def words(cx, request: dict):
    return await cx.do(note(words=list({"alpha", "beta", "gamma", "delta", "epsilon"})))
"""


def test_sets_have_one_order_in_every_process(tmp_path: Path) -> None:
    """Three processes, served and not: the same order, and a strict replay in a fourth verifies."""
    plane = Plane.made(tmp_path / "plane", SKILL)
    first = plane.run("desk.words", {}).body
    second = plane.run("desk.words", {}).body
    plane.start()
    third = plane.run("desk.words", {}).body
    assert plane.stop() == 0
    assert first["output"] == second["output"] == third["output"]
    assert plane.verb("replay", first["run"], "--strict").body["verdict"] == "verified"
