"""P3, P4: a run that kills its process is started four times at most, is named, and its neighbours conclude."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from stories.processes import run_to_its_end

PROGRAM = """
import json, os, sys
import trio
from agentplane import Plane, Recovery, effect, skill
from agentplane.engine.admission import Wanted

where, how = sys.argv[1], sys.argv[2]

@effect("pay.refund", recovery=Recovery.IDEMPOTENT)
async def refund(call, *, order):
    with open(os.path.join(where, "paid"), "a") as book:
        book.write(order + "\\n")
    return order

@effect("pay.abort", recovery=Recovery.IDEMPOTENT)
async def act_and_abort(call):
    with open(os.path.join(where, "starts"), "a") as book:
        book.write("x")
    if os.path.exists(os.path.join(where, "second")):
        os.abort()
    await trio.sleep_forever()

@skill("story.poison")
async def poison(cx, request: dict):
    if how == "skill":
        with open(os.path.join(where, "starts"), "a") as book:
            book.write("x")
        if os.path.exists(os.path.join(where, "second")):
            os.abort()
        await trio.sleep_forever()
    await cx.do(act_and_abort())

@skill("story.good")
async def good(cx, request: dict):
    if not os.path.exists(os.path.join(where, "second")):
        await trio.sleep_forever()
    return await cx.do(refund(order=request["order"]))

async def main():
    async with Plane.open(os.path.join(where, "plane.db"), skills=[poison, good]) as plane:
        if len(sys.argv) > 3:
            for index in range(3):
                await plane.start(Wanted(capability="story.good", input={"order": str(index)}))
            await plane.start(Wanted(capability="story.poison", input={}))
            for index in range(3, 5):
                await plane.start(Wanted(capability="story.good", input={"order": str(index)}))
            while not os.path.exists(os.path.join(where, "starts")):
                await trio.sleep(0.01)
            os.abort()
        while True:
            rows = await plane.read(lambda tx: tx.all("SELECT capability, status, reason, code FROM run WHERE own = 0"))
            if all(row[1] != "running" for row in rows):
                break
            await trio.sleep(0.01)
        print(json.dumps(rows))

trio.run(main)
"""


@pytest.mark.parametrize("how", ["skill", "act"])
def test_a_run_that_kills_its_process_is_named_and_its_neighbours_conclude(tmp_path: Path, how: str) -> None:
    """Four starts, then a crash suspect naming its step; in an act, also the effect that nobody can account for.

    Spec: Drain.NoResumePastTheBound.
    """
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    status, _ = run_to_its_end(program, str(tmp_path), how, "first")
    assert status == -signal.SIGABRT
    (tmp_path / "second").touch()
    lives = 1
    rows: list[list[str]] = []
    while not rows:
        status, lines = run_to_its_end(program, str(tmp_path), how)
        lives += 1
        assert lives < 12, "the plane never came to rest"
        rows = lines[0] if status == 0 else []
    starts = len((tmp_path / "starts").read_text())
    ended = {row[0]: row for row in rows if row[0] == "story.poison"}["story.poison"]
    assert ended[1] == "quarantined"
    assert starts <= 4, f"{starts} starts"
    assert ended[3] == "crash_suspect" and "step 0" in ended[2]
    good = [row for row in rows if row[0] == "story.good"]
    assert len(good) == 5 and {row[1] for row in good} == {"succeeded"}
    assert set((tmp_path / "paid").read_text().split()) == {"0", "1", "2", "3", "4"}
