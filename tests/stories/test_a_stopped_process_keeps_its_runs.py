"""L1: a process that was stopped for three TTLs under acts in flight finds its runs its own."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from stories.processes import next_line, running

TTL_S = 2

PROGRAM = """
import json, os, sys
import trio
from agentplane import Plane, Recovery, effect, skill
from agentplane.engine.admission import Wanted

where = sys.argv[1]
acts = []

@effect("pay.slow", recovery=Recovery.IDEMPOTENT, timeout_s=60)
async def slow(call, *, order):
    acts.append(order)
    while not os.path.exists(os.path.join(where, "release")):
        await trio.sleep(0.01)
    return order

@effect("pay.block", recovery=Recovery.REQUIRES_OPERATOR, timeout_s=60)
def block(call, *, order):
    import time
    acts.append(order)
    while not os.path.exists(os.path.join(where, "release")):
        time.sleep(0.01)
    return order

@skill("story.slow")
async def one(cx, request: dict):
    return [await cx.do(slow(order=request["order"])), await cx.do(block(order=request["order"] + "b"))]

@skill("story.block")
def two(cx, request: dict):
    return cx.do(block(order=request["order"]))

async def main():
    async with Plane.open(os.path.join(where, "plane.db"), skills=[one, two], lease_ttl_s=2) as plane:
        for index in range(4):
            name = "story.slow" if index % 2 else "story.block"
            await plane.start(Wanted(capability=name, input={"order": str(index)}))
        while len(acts) < 4:
            await trio.sleep(0.01)
        print(json.dumps({"ready": True}), flush=True)
        while plane.runs.live:
            await plane.recovery.once()
            await trio.sleep(0.01)
        rows = await plane.read(lambda tx: tx.all(
            "SELECT r.status, l.epoch FROM run r JOIN lease l ON l.run = r.run WHERE r.own = 0"))
        sweeps = await plane.read(lambda tx: tx.one("SELECT count(*) FROM run WHERE own = 1"))
        print(json.dumps({"rows": rows, "acts": sorted(acts), "sweeps": sweeps[0]}), flush=True)

trio.run(main)
"""


def test_no_epoch_moves_and_no_act_repeats(tmp_path: Path) -> None:
    """Every lease has lapsed when it wakes, its pass runs before its renewal, and it takes nothing from itself.

    The time is the subject: the process is stopped for three TTLs of the real clock, the least TTL there is.

    Spec: Fencing.OwnRunsAreKept.
    """
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    with running(program, str(tmp_path)) as child:
        assert next_line(child) == {"ready": True}
        child.send_signal(signal.SIGSTOP)
        time.sleep(3 * TTL_S)
        child.send_signal(signal.SIGCONT)
        (tmp_path / "release").touch()
        found = next_line(child)
    assert found["rows"] == [["succeeded", 1]] * 4
    assert found["acts"] == ["0", "1", "1b", "2", "3", "3b"]
    assert found["sweeps"] == 0
