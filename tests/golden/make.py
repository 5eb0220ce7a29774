"""Makes the golden journals of this build: one small store for each kind of history, and what stands in them.

    python tests/golden/make.py DIRECTORY          from the checkout, with the tests on the path

Run once for a level, by the build that is released with it, and its files are checked in: they are what stores out
there look like, and every later build verifies them (tests/golden/test_golden_journals.py). Never run again over files
that are checked in.
"""

from __future__ import annotations

import json
import lzma
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import trio
from trio.testing import MockClock

from agentplane.core.build import __version__
from agentplane.core.records import Actor, Basis
from agentplane.core.tasks import Reviewer
from agentplane.engine.admission import Wanted
from agentplane.engine.plane import Plane
from agentplane.engine.worklist import Verdict
from agentplane.journal import copy, schema
from agentplane.testkit.inline import open_inline
from golden.judged import judged
from golden.level_1.code import CODE
from stories.checkouts import with_table

BOB = Actor(actor="os:bob", basis=Basis.CONNECTED)
Story = Callable[[Plane], Awaitable[None]]


async def _started(plane: Plane, name: str, order: str = "O-1", **more: Any) -> str:
    admission = await plane.start(Wanted(capability=f"gold.{name}", input={"order": order}, **more))
    await plane.runs.wait_for(admission.run)
    return admission.run


async def _plain(plane: Plane) -> None:
    await plane.run("gold.plain", {"order": "O-1", "lines": ["one", "three"]})
    await plane.run("gold.again", {"order": "O-1"})
    await plane.run("gold.ship", {"order": "O-1"})


async def _thread(plane: Plane) -> None:
    await plane.run("gold.thread", {"order": "O-1", "lines": ["one", "two"]})


async def _saga(plane: Plane) -> None:
    await plane.run("gold.saga", {"order": "O-1"})
    await _started(plane, "lent")


async def _group(plane: Plane) -> None:
    await with_table(plane, "CREATE TABLE app_gold (run TEXT NOT NULL, name TEXT NOT NULL) STRICT;")
    await plane.run("gold.group", {"order": "O-1"})


async def _wait(plane: Plane) -> None:
    slept = await _started(plane, "sleeper")
    await trio.sleep(8_000)
    await plane.runs.wait_for(slept)
    await _started(plane, "sleeper", "O-2")
    heard = await _started(plane, "awaiting", "O-3")
    await plane.deliver("gold.arrived", {"by": "post"}, id="e-1", correlation={"order": "O-3"}, source="peer:post")
    await trio.sleep(1)
    await plane.runs.wait_for(heard)
    await _started(plane, "awaiting", "O-4")
    timed = await _started(plane, "awaiting", "O-5")
    await trio.sleep(80_000)
    await trio.sleep(10_000)
    await plane.runs.wait_for(timed)
    await _started(plane, "awaiting", "O-6")
    await _started(plane, "sleeper", "O-7")


async def _task(plane: Plane) -> None:
    for order, said in (("O-1", "approve"), ("O-2", "reject"), ("O-3", None)):
        run = await _started(plane, "asking", order)
        if said is not None:
            one = next(task for task in await plane.tasks() if task.run == run)
            who = Reviewer(actor=BOB.actor, basis=BOB.basis, roles=("reviewer",), groups=(), machine=False)
            await plane.worklist.decide(one.task, who, BOB, Verdict(said=said, reason="I looked"))
            await trio.sleep(1)
            await plane.runs.wait_for(run)


async def _case(plane: Plane) -> None:
    await _started(plane, "matter", "O-1", correlate={"order": "O-1"})
    await _started(plane, "awaiting", "O-2", correlate={"order": "O-2"})


async def _quarantined(plane: Plane) -> None:
    await plane.run("gold.doubtful", {"order": "O-1"})
    await plane.run("gold.dear", {"order": "O-1"})


async def _cancelled(plane: Plane) -> None:
    for name in ("sleeper", "asking", "stay"):
        run = await _started(plane, name, "O-1")
        await plane.cancel(run, BOB, "not wanted")
        await trio.sleep(1)
        await plane.runs.wait_for(run)


async def _killed(plane: Plane) -> None:
    await plane.start(Wanted(capability="gold.killed", input={"order": "O-1"}))
    await trio.sleep(1)


STORIES: dict[str, Story] = {
    "plain": _plain, "thread": _thread, "saga": _saga, "group": _group, "wait": _wait, "task": _task, "case": _case,
    "quarantined": _quarantined, "cancelled": _cancelled, "killed": _killed,
}  # fmt: skip


async def _made(path: Path, story: Story) -> None:
    # A skill that blocks needs the real loop, and a stopped clock the inline writer.
    opened = Plane.open if story is _thread else open_inline
    async with opened(path, skills=CODE, owner="golden:1") as plane:
        await story(plane)


def main(directory: Path) -> None:
    stores: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        for name, story in STORIES.items():
            path = Path(place) / f"{name}.db"
            trio.run(_made, path, story, clock=None if story is _thread else MockClock(autojump_threshold=0))
            copy.take(path, path.with_suffix(".copy"))
            (directory / f"{name}.db.xz").write_bytes(lzma.compress(path.with_suffix(".copy").read_bytes(), preset=9))
            stores[name] = trio.run(judged, path.with_suffix(".copy"), CODE)
    said = {"build": __version__, "level": schema.LEVEL, "stores": stores}
    (directory / "stands.json").write_text(json.dumps(said, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
