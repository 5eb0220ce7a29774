"""P4: a skill that kills its process is set aside and named, and what ran beside it concludes."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentplane.core import bounds
from agentplane.core.errors import AgentplaneError
from agentplane.surface.client import HttpClient, Lost
from surface.terminals import Plane

SKILLS = '''
"""One skill that aborts, and its neighbours."""
import os
from pathlib import Path

import trio

from agentplane import Recovery, effect, skill

HERE = Path(__file__).parent.parent
BOOK, STARTS = (os.open(HERE / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600) for name in ("book", "starts"))


@effect("desk.pay", recovery=Recovery.IDEMPOTENT)
async def pay(call, *, order: str):
    while not (HERE / "starts").stat().st_size:
        await trio.sleep(0.005)
    if call.idempotency_key not in (HERE / "book").read_text():
        os.write(BOOK, f"{call.idempotency_key} {order} ".encode())
    return order


@skill("desk.good")
async def good(cx, request: dict):
    return await cx.do(pay(order=request["order"]))


@effect("desk.kept")
async def kept(call):
    """Its outcome is durable before the skill goes on, as of whatever only a person can settle."""


@effect("desk.lost", recovery=Recovery.IDEMPOTENT)
async def lost(call):
    """Its outcome waits for the next commit, and dies with the process."""


@skill("desk.poison")
async def poison(cx, request: dict):
    if request["behind"] == "kept":
        await cx.do(kept())
    elif request["behind"] == "lost":
        await cx.do(lost())
    os.write(STARTS, b"x")  # opened before: a step opens nothing itself
    os.abort()
'''
LIVES_MAX = 12


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    made = Plane.made(tmp_path / "plane", skills=SKILLS)
    yield made
    if made.child is not None:
        made.child.kill()
        made.child.wait()


def no_core() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def up(plane: Plane) -> None:
    """What a supervisor does: start it again, until it stays long enough to be asked."""
    for _ in range(LIVES_MAX):
        if plane.child is None or plane.child.poll() is not None:
            if plane.child is not None:
                assert plane.child.returncode == -signal.SIGABRT, plane.log.read_text()
            plane.begin(preexec_fn=no_core)
        while plane.child is not None and plane.child.poll() is None:
            if plane.answers():
                return
    raise AssertionError(f"{LIVES_MAX} lives, and none stays: {plane.log.read_text()}")


def ends(plane: Plane, key: str, capability: str, wanted: dict[str, object]) -> dict[str, Any]:
    """Start it under its key, as often as no answer comes, and wait for its end over every death."""
    client = HttpClient(path=plane.directory / "run" / "control.sock")
    while True:
        up(plane)
        try:
            _, body = client.call("start", body={"capability": capability, "input": wanted}, key=key)
            _, view = client.call("show", run=body["run"], query={"wait": 20}, wait_s=20)
        except (Lost, AgentplaneError):
            continue
        if view["status"] != "running":
            return dict(view)


@pytest.mark.parametrize("behind", ["nothing", pytest.param("kept", marks=pytest.mark.heavy)])
def test_a_skill_that_aborts_is_set_aside_and_its_neighbours_conclude(plane: Plane, behind: str) -> None:
    """At its first line, or behind a recorded effect: four starts at most, a crash suspect that names its step, every
    neighbour succeeds, and each of them paid once."""
    found, starts = convicted(plane, behind)
    assert 1 <= starts <= 4, f"{starts} starts"
    assert found["error"]["code"] == "crash_suspect" and "step 0" in found["error"]["message"]
    assert plane.stop() == 0


@pytest.mark.heavy
def test_a_skill_that_aborts_behind_an_outcome_that_dies_with_it_is_set_aside_as_well(plane: Plane) -> None:
    """P4: each life records that the attempt before was lost and announces another, which is no progress; a life whose
    outcome was committed after all is, once: the first, and twice as many takeovers as without."""
    found, starts = convicted(plane, "lost")
    assert 1 <= starts <= 1 + 2 * bounds.TAKEOVERS_WITHOUT_PROGRESS_MAX, f"{starts} starts"
    assert found["error"]["code"] == "crash_suspect"
    assert plane.stop() == 0


def convicted(plane: Plane, behind: str) -> tuple[dict[str, Any], int]:
    """The poison's view once it is quarantined, and its starts; its neighbours have succeeded and paid once each."""
    up(plane)
    client = HttpClient(path=plane.directory / "run" / "control.sock")
    for number in range(3):
        client.call("start", body={"capability": "desk.good", "input": {"order": f"{number}"}}, key=f"g{number}")
    found = ends(plane, "poison", "desk.poison", {"behind": behind})
    assert found["status"] == "quarantined", found
    for number in range(5):
        good = ends(plane, f"g{number}", "desk.good", {"order": f"{number}"})
        assert good["status"] == "succeeded", good
    book = (plane.directory / "book").read_text().split()
    assert sorted(book[1::2]) == ["0", "1", "2", "3", "4"] and len(set(book[::2])) == 5
    return found, (plane.directory / "starts").read_text().count("x")
