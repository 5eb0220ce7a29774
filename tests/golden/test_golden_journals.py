"""Journals of released builds, checked in: every later build verifies them, and replays what stands in them.

A level that a build makes stores at has a directory, made once by ``make.py``; what it holds is never changed.
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest
import trio

from agentplane import Recovery, effect
from agentplane.core.errors import JournalCorrupt
from agentplane.journal import schema
from agentplane.journal.store import connect, read_only
from agentplane.testkit.inline import open_inline
from agentplane.testkit.worlds import fit_mark
from golden.judged import judged
from golden.level_1 import code as level_1
from stories.waiting_scenes import settled

HERE = Path(__file__).parent
CODE = {1: level_1.CODE}
"""By level: the code as it was."""
STANDS: dict[int, Any] = {
    level: json.loads((HERE / f"level_{level}" / "stands.json").read_text(encoding="utf-8")) for level in CODE
}
STORES = [(level, name) for level in CODE for name in STANDS[level]["stores"]]


def unpacked(level: int, name: str, where: Path) -> Path:
    """A copy of the store of that name, to be opened."""
    path = where / "plane.db"
    path.write_bytes(lzma.decompress((HERE / f"level_{level}" / f"{name}.db.xz").read_bytes()))
    return path


def test_every_level_that_is_known_has_its_journals() -> None:
    """A build that makes stores of another level brings journals of that level with it, of each kind of history."""
    released = len([one for one in schema.MIGRATIONS if not one.name.startswith("planted")])
    assert set(CODE) >= set(range(schema.FLOOR, released + 1))
    kinds = {
        "plain", "thread", "saga", "group", "wait", "task", "case", "quarantined", "cancelled", "killed",
    }  # fmt: skip
    assert all(set(stands["stores"]) >= kinds for stands in STANDS.values())
    for level, name in STORES:
        assert (HERE / f"level_{level}" / f"{name}.db.xz").is_file()


@pytest.mark.parametrize(("level", "name"), STORES)
def test_a_journal_of_a_released_build_stands_as_it_stood(level: int, name: str, tmp_path: Path) -> None:
    """S150: every chain verifies up to the head that was written down, and strict replay says of every run what the
    build said that wrote it."""
    found = trio.run(judged, unpacked(level, name, tmp_path), CODE[level])
    assert found == STANDS[level]["stores"][name] and found


def test_they_are_found_out_when_they_are_touched(tmp_path: Path) -> None:
    """One byte of one record, which says what it said before: it is named."""
    path = unpacked(1, "wait", tmp_path)
    run = next(run for run, one in STANDS[1]["stores"]["wait"].items() if one["status"] == "suspended")
    connection = connect(path)
    ((body,),) = connection.execute("SELECT body FROM record WHERE run = ? AND seq = 4", (run,)).fetchall()
    # Still the same JSON: what it says is as before, and its bytes are not.
    connection.execute("UPDATE record SET body = ? WHERE run = ? AND seq = 4", (bytes(body) + b" ", run))
    connection.close()
    with pytest.raises(JournalCorrupt, match="record 4"):
        trio.run(judged, path, level_1.CODE)


def test_code_that_was_changed_is_found_by_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdicts depend on the code: with another effect in its place, what was verified diverges."""

    @effect("gold.hold", recovery=Recovery.RETRY)
    async def renamed(call: Any, *, article: str) -> Any:
        return None

    monkeypatch.setattr(level_1, "hold", lambda item: renamed(article=item))
    found = trio.run(judged, unpacked(1, "wait", tmp_path), level_1.CODE)
    verdicts = {one["foreseen"][0] for one in found.values() if one["status"] == "suspended"}
    assert verdicts == {"diverges"}
    assert {one["strict"][0] for one in found.values()} == {"diverged", "cannot_replay"}


async def test_a_store_of_a_released_build_is_opened_and_goes_on(autojump_clock: Any, tmp_path: Path) -> None:
    """What waited in it wakes: two that slept past their instant, and whoever waited for what never came."""
    path = unpacked(1, "wait", tmp_path)
    fit_mark(path)
    readers = read_only(path)
    last_ms = readers.read(lambda tx: tx.one("SELECT last_ms FROM store"))
    readers.close()
    assert last_ms is not None
    began_ms = int(str(last_ms[0])) + 2 * 86_400_000

    def now_ms() -> int:
        return began_ms + round(trio.current_time() * 1000)

    async with open_inline(path, skills=level_1.CODE, now_ms=now_ms) as plane:
        assert plane.store.found.level == 1 and plane.store.held is None
        # The sweep finds at once what was due long ago.
        await trio.sleep(60)
        for run in STANDS[1]["stores"]["wait"]:
            assert await settled(plane, run) == "succeeded"
