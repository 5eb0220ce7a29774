"""L3: a served plane whose wall clock is set under it, by libfaketime, forward and backward and across a restart.

The file that libfaketime reads is changed while the plane serves. The monotonic clock is left alone, but for one
variant, in which all clocks go on together. Whether the kernel says that somebody keeps its clock is the machine's
affair: the served program of these tests answers it from a file.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentplane.journal.store import read_only
from agentplane.surface.client import HttpClient
from appliance.drained import book, ended, kinds
from surface.terminals import Plane, environment

SKILLS = '''
"""Acts that are written into a book under their keys and wait for a gate, and one whose first answer gets lost."""
import os
from pathlib import Path

import trio

from agentplane import DidNotHappenError, InDoubtError, Recovery, RetryPolicy, effect, skill

HERE = Path(__file__).parent.parent
SOON = RetryPolicy(max_attempts=400, base_ms=50, cap_ms=50)


def write(line):
    descriptor = os.open(HERE / "book", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, (line + "\\n").encode())
    os.close(descriptor)


@effect("desk.gated", recovery=Recovery.IDEMPOTENT, timeout_s=300, retry=SOON)
async def gated(call, *, order: str):
    write(f"gated {order}")
    while not (HERE / "gate").exists():
        await trio.sleep(0.005)
    return order


@effect("desk.busy", recovery=Recovery.IDEMPOTENT, retry=SOON)
async def busy(call, *, order: str):
    """Refused until the gate is open."""
    if not (HERE / "gate").exists():
        raise DidNotHappenError("not yet")
    write(f"busy {order}")
    return order


@effect("desk.lossy", recovery=Recovery.IDEMPOTENT, retry=SOON)
async def lossy(call, *, order: str):
    write(f"lossy {order}")
    if call.attempt == 1:
        raise InDoubtError("the answer got lost")
    return order


@skill("desk.gating")
async def gating(cx, request: dict):
    return await cx.do(gated(order=request["order"]))


@skill("desk.backing")
async def backing(cx, request: dict):
    return await cx.do(busy(order=request["order"]))


@skill("desk.losing")
async def losing(cx, request: dict):
    return await cx.do(lossy(order=request["order"]))
'''

SERVE = """
import sys
from pathlib import Path
from agentplane.engine import clockwatch, recovery

kept = Path(sys.argv.pop(1))
clockwatch.kernel_synchronised = kept.exists
clockwatch.TICK_S = recovery.TICK_S = 0.05
sys.argv[1:1] = ["serve"]
from agentplane.cli.main import main
sys.exit(main())
"""
HOUR_MS = 3_600_000
TTL_S = 2
INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")


class Faked:
    """A plane served under a wall clock that a file says, as an offset from the real one."""

    def __init__(self, plane: Plane, library: Path) -> None:
        self.plane = plane
        self.kept = plane.directory.parent / "kept"
        self._entry = plane.directory.parent / "serve.py"
        self._entry.write_text(SERVE)
        self._offset = plane.directory.parent / "offset"
        self._library = library
        self.set("+0")

    def set(self, offset: str) -> None:
        """At once and whole: the library may read it at any moment."""
        beside = self._offset.with_name("offset.next")
        beside.write_text(offset + "\n")
        beside.rename(self._offset)

    def start(self, *, monotonic: bool = False) -> None:
        told = {
            "LD_PRELOAD": str(self._library), "FAKETIME_TIMESTAMP_FILE": str(self._offset), "FAKETIME_NO_CACHE": "1",
            "PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }  # fmt: skip
        if not monotonic:
            told |= {"DONT_FAKE_MONOTONIC": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        with open(self.plane.log, "ab") as log:
            self.plane.child = subprocess.Popen(
                [sys.executable, str(self._entry), str(self.kept), str(self.plane.directory)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment() | told,
            )  # fmt: skip
        self.plane.until(self.plane.answers)

    def clock(self) -> str | None:
        _, status = HttpClient(path=self.plane.directory / "run" / "control.sock").call("status")
        return None if status["clock"] is None else str(status["clock"])

    def begin(self, capability: str, order: str) -> str:
        client = HttpClient(path=self.plane.directory / "run" / "control.sock")
        return str(
            client.call("start", body={"capability": capability, "input": {"order": order}}, key=order)[1]["run"]
        )

    def ask(self, sql: str) -> list[Any]:
        readers = read_only(self.plane.directory / "plane.db")
        try:
            return [row[0] for row in readers.read(lambda tx: tx.all(sql))]
        finally:
            readers.close()

    def renewed(self, run: str, ahead_ms: int) -> bool:
        """Whether the run's lease ends within its TTL from now, on the clock that the plane is shown."""
        (expires_ms,) = self.ask(f"SELECT expires_ms FROM lease WHERE run = '{run}'")
        return 0 < expires_ms - (time.time() * 1000 + ahead_ms) <= TTL_S * 1000

    def undisturbed(self) -> bool:
        """Nobody took anything over, not even from itself."""
        sweeps = self.ask("SELECT run FROM run WHERE own = 1 AND capability = 'agentplane.sweep'")
        epochs = self.ask("SELECT l.epoch FROM lease l JOIN run r ON r.run = l.run WHERE r.own = 0")
        return not sweeps and set(epochs) == {1}


@pytest.fixture
def faked(tmp_path: Path, need_tool: Callable[[str], str]) -> Iterator[Faked]:
    need_tool("faketime")
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not found:
        pytest.skip("missing: the library libfaketimeMT.so.1")
    plane = Plane.made(tmp_path / "plane", skills=SKILLS, toml=f"lease_ttl_secs = {TTL_S}")
    yield Faked(plane, found[0])
    if plane.child is not None:
        plane.child.kill()
        plane.child.wait()


@pytest.mark.parametrize(
    ("offset", "again", "ahead_ms", "let_go"),
    [
        ("+3h", "+6h", 3 * HOUR_MS, "kernel"),
        pytest.param("+8d", "+16d", 8 * 24 * HOUR_MS, "person", marks=pytest.mark.heavy),
        pytest.param("-1d", "-2d", -24 * HOUR_MS, "person", marks=pytest.mark.heavy),
    ],
)
def test_a_clock_that_is_set_under_a_serving_plane_fires_nothing(
    faked: Faked, offset: str, again: str, ahead_ms: int, let_go: str
) -> None:
    """Suspect, with both times said: leases are kept and renewed, runs in flight and in backoff conclude, no key window
    counts as open. A person or a kernel whose clock somebody keeps lets go, and doubt is sent again."""
    plane = faked.plane
    faked.start()
    held, backing = faked.begin("desk.gating", "A"), faked.begin("desk.backing", "B")
    plane.until(lambda: "gated A" in book(plane))
    assert faked.clock() is None
    faked.set(offset)
    plane.until(lambda: faked.clock() is not None)
    assert len(INSTANT.findall(str(faked.clock()))) == 2
    doubtful = ended(plane, faked.begin("desk.losing", "C"))
    assert doubtful["status"] == "quarantined" and [one["kind"] for one in doubtful["undecided"]] == ["desk.lossy"]
    plane.until(lambda: faked.renewed(held, ahead_ms))
    # Once more, while passes of recovery come far oftener than renewals: what has lapsed is seen by one first.
    faked.set(again)
    plane.until(lambda: faked.renewed(held, 2 * ahead_ms))
    assert faked.clock() is not None and ended_yet(plane, held) == ended_yet(plane, backing) == "running"
    (plane.directory / "gate").touch()
    assert ended(plane, held)["status"] == ended(plane, backing)["status"] == "succeeded"
    assert faked.undisturbed() and book(plane).count("gated A") == book(plane).count("busy B") == 1
    if let_go == "person":
        assert plane.verb("release", "--clock").status == 0
    else:
        faked.kept.touch()
    plane.until(lambda: faked.clock() is None)
    assert ended(plane, faked.begin("desk.losing", "D"))["status"] == "succeeded"
    assert (book(plane).count("lossy C"), book(plane).count("lossy D")) == (1, 2)
    assert plane.stop() == 0


@pytest.mark.heavy
@pytest.mark.parametrize(("offset", "said"), [("-1d", "behind the last record"), ("+8d", "more than seven days")])
def test_a_clock_that_is_wrong_at_a_start_sends_nothing_again(faked: Faked, offset: str, said: str) -> None:
    """Killed in an act and started under another time: what was in flight is given to a person, by name."""
    plane = faked.plane
    faked.start()
    run = faked.begin("desk.gating", "A")
    plane.until(lambda: "gated A" in book(plane))
    plane.stop(signal.SIGKILL)
    faked.set(offset)
    (plane.directory / "gate").touch()
    faked.start()
    assert said in str(faked.clock()) and len(INSTANT.findall(str(faked.clock()))) == 2
    found = ended(plane, run)
    assert found["status"] == "quarantined" and [one["kind"] for one in found["undecided"]] == ["desk.gated"]
    assert book(plane) == ["gated A"] and "EffectFailed" not in kinds(plane, run)
    assert plane.verb("release", "--clock").status == 0
    assert ended(plane, faked.begin("desk.losing", "D"))["status"] == "succeeded"
    assert plane.stop() == 0


def test_clocks_that_go_on_together_are_believed(faked: Faked) -> None:
    """Eight days on all clocks, as behind a long sleep of the machine: not suspect. The act in flight has timed out and
    its key's window has passed, so it is given to a person and not sent again; leases are kept, and new work runs."""
    plane = faked.plane
    faked.start(monotonic=True)
    run = faked.begin("desk.gating", "A")
    plane.until(lambda: "gated A" in book(plane))
    faked.set("+8d")
    found = ended(plane, run)
    assert found["status"] == "quarantined" and [one["kind"] for one in found["undecided"]] == ["desk.gated"]
    assert faked.clock() is None and faked.undisturbed() and book(plane) == ["gated A"]
    assert ended(plane, faked.begin("desk.losing", "D"))["status"] == "succeeded"
    assert plane.stop() == 0


def ended_yet(plane: Plane, run: str) -> str:
    client = HttpClient(path=plane.directory / "run" / "control.sock")
    return str(client.call("show", run=run)[1]["status"])
