"""W10: nothing in the process opens the database, its log or its index but SQLite itself.

Closing any descriptor of them drops SQLite's locks. SQLite opens files without a word to Python, so that whatever
Python is told of was opened beside it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from agentplane.engine.admission import Wanted
from agentplane.engine.plane import Plane
from agentplane.testkit import FakeProvider
from stories.scenes import ME, one_call, paying

_watched: set[str] = set()
_seen: list[str] = []
_installed: list[bool] = []


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if event == "open" and _watched and isinstance(args[0], str | bytes) and os.fsdecode(args[0]) in _watched:
        _seen.append(os.fsdecode(args[0]))


def watch(store: Path) -> None:
    """Note every opening of the store's three files from now on; the hook stays in this process, and sleeps."""
    if not _installed:
        _installed.append(True)
        sys.addaudithook(_hook)
    _seen.clear()
    _watched.update(str(store) + suffix for suffix in ("", "-wal", "-shm"))


async def test_no_file_of_the_store_is_opened_beside_sqlite(tmp_path: Path) -> None:
    """W10: through an opening, a run, a pause, a strict replay and a close; the real writer and its checkpoints."""
    store = tmp_path / "plane.db"
    once = one_call(paying(FakeProvider()))
    async with Plane.open(store, skills=[once]):
        pass
    watch(store)
    try:
        async with Plane.open(store, skills=[once]) as plane:
            run = (await plane.run("story.run", {})).run
            await plane.state.pause(ME, "a look")
            await plane.state.release_paused(ME, "looked")
            assert (await plane.replay(run, strict=True)).verdict == "verified"
            await plane.start(Wanted(capability="story.run", input={"order": "A-2"}))
            await plane.drain(5)
        assert _seen == []
        with open(store, "rb"):
            pass
        assert _seen == [str(store)], "this test would have seen it"
    finally:
        _watched.clear()
