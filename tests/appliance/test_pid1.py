"""The executable as PID 1: every signal at every moment, the processes it inherits, and what it passes to its own.

The table that the first test makes is docs/pid1.md. (S164 to S166)
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentplane.journal import lists
from agentplane.journal.store import read_only
from appliance.pid1 import SKILLS, PidOne
from house.ratchet import ROOT

pytestmark = pytest.mark.heavy

TERM, INT, HUP, KILL = signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL
SIGNALS: dict[str, tuple[signal.Signals, ...]] = {
    "TERM": (TERM,),
    "INT": (INT,),
    "HUP": (HUP,),
    "TERM, TERM": (TERM, TERM),
    "TERM, HUP": (TERM, HUP),
    "KILL": (KILL,),
}
MOMENTS = ("in the first 50 ms", "while it recovers", "idle", "an effect in flight", "in a drain")
PAGE = ROOT / "docs" / "pid1.md"
HEAD = """# Signals to PID 1

Written by `tests/appliance/test_pid1.py`: the executable as PID 1 of a namespace, signals at each moment, the status
that it leaves with, and what its store holds then. Thereafter the same store is served again by a new process,
everything in it ends, and no act happened twice.

| moment | signals | status | the store then |
|---|---|---|---|
"""


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[PidOne]:
    made = PidOne.made(tmp_path / "plane", skills=SKILLS)
    yield made
    if made.child is not None:
        made.child.kill()
        made.child.wait()


def held(plane: PidOne) -> str:
    """The runs of the store by status, and how many effects have no outcome, in words."""
    path = plane.directory / "plane.db"
    readers = read_only(path)
    try:
        rows = readers.read(lambda tx: lists.runs(tx))
        histories = [readers.read(lambda tx, row=row: lists.whole_history(tx, row.run)) for row in rows]
    finally:
        readers.close()
    counts = Counter(row.status for row in rows)
    kinds = Counter(type(one.record).__name__ for records in histories for one in records)
    doubtful = kinds["EffectStarted"] - kinds["EffectDone"] - kinds["EffectFailed"]
    runs = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()) if count) or "no run"
    return runs + (f"; {doubtful} announced and not answered" if doubtful else "")


def bring_to(plane: PidOne, moment: str) -> None:
    """Start it, and bring it there."""
    if moment == "while it recovers":
        plane.start()
        for number in range(4):
            plane.run("desk.chain", {"order": f"R{number}", "count": 60}, "--detach")
        plane.until(lambda: steps(plane) > 8)
        plane.tell(KILL)
        plane.status()
    before = steps(plane)
    plane.begin("--drain-mode", "park")
    if moment == "in the first 50 ms":
        return
    plane.until(plane.answers)
    if moment == "while it recovers":
        plane.until(lambda: steps(plane) > before)
    if moment in ("an effect in flight", "in a drain"):
        plane.run("desk.pair", {"order": "A"}, "--detach")
        plane.until(lambda: plane.book() == ["A-1"])
    if moment == "in a drain":
        plane.tell(TERM)
        plane.until(lambda: "draining" in plane.log.read_text())


def steps(plane: PidOne) -> int:
    """Of the chains, done so far."""
    return len(list(plane.directory.glob("again-*")))


def settle(plane: PidOne) -> None:
    """Serve the store again; every run of it ends or is set aside for a person, and no act happened twice."""
    plane.open_gate()
    plane.start()
    for row in plane.verb("runs", "--json").body["runs"]:
        if row["status"] == "running":
            assert plane.verb("wait", row["run"], "--timeout", "30").status in (0, 1, 4), plane.log.read_text()
    rows = plane.verb("runs", "--json").body["runs"]
    assert {row["status"] for row in rows} <= {"succeeded", "quarantined"}, rows
    assert len(plane.book()) == len(set(plane.book())), plane.book()
    plane.tell(TERM)
    assert plane.status() == 0


def cell(plane: PidOne, moment: str, name: str) -> tuple[str, str]:
    """What one signal at one moment does: the status, and what the store holds then."""
    signals = SIGNALS[name]
    bring_to(plane, moment)
    if moment == "in the first 50 ms":
        time.sleep(0.05 * (list(SIGNALS).index(name) + 0.5) / len(SIGNALS))
    plane.tell(*signals)
    if signals == (HUP,) and moment != "in a drain":
        plane.until(plane.answers)
        told = "serves on, "
        plane.until(lambda: "reloaded" in plane.log.read_text() or "reload" in plane.log.read_text())
        plane.tell(TERM)
    else:
        told = ""
    second = moment == "in a drain" and signals[0] in (TERM, INT)
    if signals not in ((KILL,), (TERM, TERM)) and not second:
        while plane.running and "draining" not in plane.log.read_text():
            time.sleep(0.01)
        plane.open_gate()
    left = "killed" if KILL in signals else str(plane.status())
    if KILL in signals:
        plane.status()
    store = held(plane)
    # How far its recovery had come is chance, and that it loses nothing is seen in what follows.
    return f"{told}{left}" + (" at TERM" if told else ""), store.partition(";")[0] if "recovers" in moment else store


def test_every_signal_at_every_moment(tmp_path: Path) -> None:
    """TERM and INT drain, a second one ends at once, HUP reloads, KILL loses nothing that was acknowledged."""
    lines = []
    for moment in MOMENTS:
        for name in SIGNALS:
            where = tmp_path / f"{MOMENTS.index(moment)}-{name.replace(', ', '-')}"
            plane = PidOne.made(where, skills=SKILLS)
            try:
                status, store = cell(plane, moment, name)
                lines.append(f"| {moment} | {name} | {status} | {store} |")
                settle(plane)
            finally:
                if plane.child is not None:
                    plane.child.kill()
                    plane.child.wait()
    page = HEAD + "\n".join(lines) + "\n"
    print(page)
    if os.environ.get("AGENTPLANE_TRANSCRIPTS") == "write":
        PAGE.write_text(page, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page


def test_orphans_are_reaped_and_its_own_children_are_not(plane: PidOne) -> None:
    """What others left behind is no zombie for long; a child of a skill's keeps its status for whoever started it."""
    plane.start()
    run = plane.run("desk.parent", {})
    assert run.body["output"] == 7, run
    left = [path for path in children(plane.pid) if state(path) == "Z"]
    assert left == []
    plane.tell(TERM)
    assert plane.status() == 0


def children(pid: int) -> list[str]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += (task / "children").read_text().split()
    return found


def state(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


def test_a_child_sees_nothing_of_the_freezing(plane: PidOne) -> None:
    """No library path of ours, no socket of the service manager's."""
    plane.begin(env={"NOTIFY_SOCKET": "/nowhere/notify", "LISTEN_FDS": "0", "WATCHDOG_USEC": "30000000", "MINE": "1"})
    plane.until(plane.answers)
    seen = plane.run("desk.child", {}).body["output"]
    strange = ("LD_LIBRARY", "_PYI", "_MEI", "NOTIFY_", "LISTEN_", "WATCHDOG_")
    assert "MINE" in seen and not [name for name in seen if name.startswith(strange)], seen
    plane.tell(TERM)
    assert plane.status() == 0


def test_a_stuck_loop_does_not_deafen_the_second_signal(plane: PidOne) -> None:
    """The first cannot be heeded; the second ends the process from its own thread, with what was cut named."""
    plane.start()
    plane.run("desk.busy", {"order": "B"}, "--detach")
    plane.until(lambda: "now busy" in plane.book())
    plane.tell(TERM, TERM)
    assert plane.status(within_s=5) == 5
    assert "cut:" in plane.log.read_text()
