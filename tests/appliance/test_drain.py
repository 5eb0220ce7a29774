"""A drain, with real processes: what is parked, what is cut and named, and what the next process finds."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from agentplane.engine.runs import Runs
from agentplane.journal import lists
from agentplane.surface.client import HttpClient, Remote
from appliance.drained import SKILLS, begun, book, draining, ended, kinds, leaves, log, open_gate, records
from surface.doors import Gate, door
from surface.terminals import Plane, Said


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    made = Plane.made(tmp_path / "plane", skills=SKILLS)
    yield made
    if made.child is not None:
        made.child.kill()
        made.child.wait()


# --- parking --------------------------------------------------------------------------------------------------------


def test_an_effect_that_does_not_fit_is_not_begun(plane: Plane) -> None:
    """Parked at that boundary, named, status 0; the next process goes on without doubt, and every act happens once."""
    plane.start()
    run = begun(plane, "desk.two", "gated A-1")
    assert plane.child is not None
    plane.child.send_signal(signal.SIGTERM)
    draining(plane)
    open_gate(plane)
    assert leaves(plane) == 0
    assert "1 parked" in log(plane) and f"parked: {run}" in log(plane) and "cut:" not in log(plane)
    assert kinds(plane, run)[-1] == "EffectDone" and book(plane) == ["gated A-1"]
    plane.start()
    assert plane.verb("wait", run, "--timeout", "20").body["output"] == "both"
    assert book(plane) == ["gated A-1", "far A-2"] and "EffectFailed" not in kinds(plane, run)
    assert {record.epoch for record in records(plane, run)} == {1, 2}
    assert plane.stop() == 0


def test_in_park_mode_a_run_stops_at_its_next_boundary_though_it_would_fit(plane: Plane) -> None:
    """A deploy lasts as long as the longest effect in flight; finish mode lets the same run end."""
    plane.start("--drain-mode", "park")
    run = begun(plane, "desk.pair", "gated A-1")
    assert plane.child is not None
    plane.child.send_signal(signal.SIGTERM)
    draining(plane)
    open_gate(plane)
    assert leaves(plane) == 0 and book(plane) == ["gated A-1"]
    plane.start("--drain-mode", "finish")
    assert plane.verb("wait", run, "--timeout", "20").status == 0
    (plane.directory / "gate").unlink()
    other = begun(plane, "desk.pair", "gated B-1", order="B")
    plane.child.send_signal(signal.SIGTERM)
    plane.until(lambda: log(plane).count("draining:") == 2)
    open_gate(plane)
    assert leaves(plane) == 0 and book(plane)[-1] == "quick B-2"
    assert kinds(plane, other)[-1] == "RunConcluded" and "EffectFailed" not in kinds(plane, run) + kinds(plane, other)


def test_a_signal_in_the_middle_of_recovery_leaves_every_run_whole(plane: Plane) -> None:
    """Runs parked again and again, by signals at every moment of a start: no effect is cut, and each happens once.

    Spec: Drain.NothingIsForgotten.
    """
    plane.start("--drain-mode", "park")
    runs = [
        plane.run("desk.chain", {"order": f"R{n}", "count": 12, "ms": 15}, "--detach").body["run"] for n in range(12)
    ]
    assert plane.stop() == 0
    for number in range(10):
        plane.begin("--drain-mode", "park" if number % 2 else "finish")
        plane.until((plane.directory / "run" / "control.sock").exists)
        time.sleep(number * 0.012)
        assert plane.stop() == 0, log(plane)
    plane.start()
    for run in runs:
        assert ended(plane, run)["status"] == "succeeded"
    assert plane.stop() == 0
    done = book(plane)
    assert len(done) == len(set(done)) == 12 * 12
    assert not [run for run in runs if "EffectFailed" in kinds(plane, run)] and "cut:" not in log(plane)


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what a thread or another task brings about."""
    while not holds():
        await trio.lowlevel.checkpoint()


async def cut_midway(directory: Path) -> str:
    """A run that stands abandoned in the act of its effect when its plane has ended."""
    async with door(directory) as desk:
        run = (await desk.post({"capability": "desk.glancing", "input": {}})).body["run"]
        await trio.testing.wait_all_tasks_blocked(0.05)
        desk.plane.runs.live[run].stop()
        await desk.plane.runs.wait_idle()
    return str(run)


def resumes_are_held(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """From now on a resume says that it began to read its run, and waits to be released."""
    entered, released, read = threading.Event(), threading.Event(), Runs._read_run

    def held(runs: Runs, run: str) -> Any:
        entered.set()
        assert released.wait(30)
        return read(runs, run)

    monkeypatch.setattr(Runs, "_read_run", held)
    return entered, released


async def test_a_run_that_is_being_resumed_when_the_last_one_ends_announces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recovery pass between a run's lease and its first step, when nothing else runs any more: parked where it
    begins."""
    run = await cut_midway(tmp_path)
    entered, released = resumes_are_held(monkeypatch)
    async with door(tmp_path) as desk:
        with trio.fail_after(30):
            await until(entered.is_set)
            desk.drain.begin()
            stopped = await desk.drain.wait()
            assert not stopped.cut
            released.set()
            await until(lambda: run in desk.plane.runs.parked)
        found = desk.plane.store.readers.read(lambda tx: lists.whole_history(tx, run))
        assert {item.record.epoch for item in found} == {1}
        Gate.opened.set()


async def test_a_run_that_begins_as_the_last_one_ends_is_parked_and_not_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same, with its first step begun between the plane's last look and the drain's: nothing of it is in doubt.

    Spec: Drain.NothingActsAfterTheLastLook.
    """
    run = await cut_midway(tmp_path)
    entered, released = resumes_are_held(monkeypatch)
    async with door(tmp_path) as desk:
        drained = desk.plane.drain

        async def late(*args: Any, **options: Any) -> list[str]:
            cut = await drained(*args, **options)
            released.set()
            await until(lambda: run in desk.plane.runs.live)
            return cut

        monkeypatch.setattr(desk.plane, "drain", late)
        with trio.fail_after(30):
            await until(entered.is_set)
            desk.drain.begin()
            stopped = await desk.drain.wait()
        assert not stopped.cut and stopped.parked == [run]
        Gate.opened.set()


# --- cutting --------------------------------------------------------------------------------------------------------


def test_what_is_cut_is_named_with_run_step_and_effect(plane: Plane) -> None:
    """Every effect in flight when the grace ends, status 5, and nothing is written for it: recovery decides.

    Spec: Drain.ZeroMeansNothingWasCut.
    """
    plane.start("--drain-secs", "0.3")
    run = begun(plane, "desk.endlessly", "endless A-2")
    assert plane.child is not None
    plane.child.send_signal(signal.SIGTERM)
    assert leaves(plane) == 5
    (cut,) = [line for line in log(plane).splitlines() if line.startswith("cut:")]
    started = [record for record in records(plane, run) if type(record).__name__ == "EffectStarted"]
    assert run in cut and "step 0" in cut and cut.count("desk.endless") == 2
    assert all((record.effect_key or "")[:12] in cut for record in started) and len(started) == 2
    assert kinds(plane, run)[-1] == "EffectStarted"
    plane.start()
    view = plane.verb("wait", run, "--timeout", "20")
    assert view.body["status"] == "quarantined" and plane.stop() == 0


def test_a_second_signal_ends_it_at_once(plane: Plane) -> None:
    """While an effect runs: status 5 without waiting for the grace, and what was cut is named all the same."""
    plane.start("--drain-secs", "600")
    run = begun(plane, "desk.endlessly", "endless A-2")
    assert plane.child is not None
    plane.child.send_signal(signal.SIGTERM)
    draining(plane)
    assert plane.child.poll() is None
    plane.child.send_signal(signal.SIGTERM)
    assert leaves(plane) == 5
    assert [
        line for line in log(plane).splitlines() if line.startswith("cut:") and run in line and "desk.endless" in line
    ]


def test_a_second_signal_when_nothing_is_in_flight_is_no_loss(plane: Plane) -> None:
    """Ctrl-C twice at an idle plane: nothing was cut, and the status says so."""
    plane.start()
    assert plane.child is not None
    for _ in range(2):
        plane.child.send_signal(signal.SIGINT)
    assert leaves(plane) == 0


def test_a_loop_that_is_stuck_hears_the_second_signal(plane: Plane) -> None:
    """A skill in a busy loop keeps the plane from anything else: the second signal is acted on by itself."""
    plane.start("--drain-secs", "600")
    begun(plane, "desk.busy", "gated A")
    open_gate(plane)
    plane.until(lambda: "quick now busy" in book(plane))
    assert plane.child is not None
    plane.child.send_signal(signal.SIGTERM)
    plane.child.send_signal(signal.SIGINT)
    time.sleep(0.2)
    if plane.child.poll() is None:
        plane.child.send_signal(signal.SIGTERM)
    assert leaves(plane) == 5


def test_a_loop_that_is_stuck_ends_with_its_grace(plane: Plane) -> None:
    """The first signal alone is enough in the end: no supervisor has to kill what does not answer any more."""
    plane.start("--drain-secs", "0.5")
    begun(plane, "desk.busy", "gated A")
    open_gate(plane)
    plane.until(lambda: "quick now busy" in book(plane))
    assert plane.child is not None
    plane.child.send_signal(signal.SIGTERM)
    assert leaves(plane, 20) == 5


@pytest.mark.parametrize("capability", ["desk.threaded", "desk.blocking"])
def test_threads_are_not_waited_for(plane: Plane, capability: str) -> None:
    """A blocking effect, or a blocking skill, that lasts longer than the grace: cut, named, and the process leaves."""
    plane.start("--drain-secs", "0.3")
    line = {"desk.threaded": "thread A", "desk.blocking": "quick A"}[capability]
    run = begun(plane, capability, line)
    assert plane.child is not None
    plane.child.send_signal(signal.SIGTERM)
    assert leaves(plane) == 5
    (cut,) = [one for one in log(plane).splitlines() if one.startswith("cut:")]
    assert run in cut and ("desk.thread" in cut if capability == "desk.threaded" else "between effects" in cut)
    plane.start()
    said = plane.verb("wait", run, "--timeout", "2")
    assert said.body["status"] == ("quarantined" if capability == "desk.threaded" else "running")
    plane.child.kill()


# --- the verb -------------------------------------------------------------------------------------------------------


def test_a_drain_is_asked_for_over_the_socket(plane: Plane) -> None:
    """It answers at once with what is still running; the control socket answers on, and admits nothing."""
    plane.start()
    run = begun(plane, "desk.pair", "gated A-1")
    first = plane.verb("drain")
    assert first.status == 0 and first.body["running"] == [run] and first.body["already_draining"] is False
    assert plane.verb("drain").body["already_draining"] is True
    status = plane.verb("status")
    assert status.status == 0 and status.body["state"] == "draining" and status.body["ready"] is False
    assert plane.verb("status", "--ready").status == 1
    assert [row["run"] for row in plane.verb("runs").body["runs"]] == [run]
    assert plane.verb("show", run).body["status"] == "running"
    refused = plane.verb("pause", "--reason", "x")
    assert refused.status in (0, 4)
    socket_path = plane.directory / "run" / "control.sock"
    with pytest.raises(Remote) as told:
        HttpClient(path=socket_path).call("start", body={"capability": "desk.chain", "input": {}}, key="k")
    assert told.value.status == 503 and told.value.body["code"] == "draining"
    open_gate(plane)
    assert leaves(plane) == 0
    assert plane.verb("status").status == 4 and plane.verb("runs").body["runs"][0]["status"] == "succeeded"


def test_a_cancel_is_heard_during_a_drain(plane: Plane) -> None:
    """What runs on in the grace can still be asked to stop, at its next boundary."""
    plane.start()
    run = begun(plane, "desk.looking", "look A")
    plane.verb("drain")
    said = plane.verb("cancel", run, "--reason", "enough", "--yes")
    assert said.status == 0 and said.body["recorded"] is True
    assert plane.verb("drain", "--now").status == 0
    assert leaves(plane) == 5


def test_a_drain_now_ends_it_at_once(plane: Plane) -> None:
    """Also when a drain has begun already."""
    plane.start("--drain-secs", "600")
    run = begun(plane, "desk.endlessly", "endless A-2")
    assert plane.verb("drain").body["running"] == [run]
    assert plane.verb("drain", "--now").body["already_draining"] is True
    assert leaves(plane) == 5 and run in log(plane)


def test_a_drain_takes_another_grace(plane: Plane) -> None:
    """Shorter than drain_secs, and again shorter while it drains; never longer by a second asker."""
    plane.start("--drain-secs", "600")
    begun(plane, "desk.endlessly", "endless A-2")
    plane.verb("drain", "--grace", "500")
    plane.verb("drain", "--grace", "0.2")
    assert leaves(plane) == 5
    for bad in ("nan", "-1", "1e9", "soon"):
        assert plane.verb("drain", "--grace", bad).status in (2, 4)


def test_drain_wait_returns_when_the_next_may_start(plane: Plane) -> None:
    """`drain --wait && serve`: the store is free when it returns, and it follows what is still running."""
    plane.start()
    begun(plane, "desk.pair", "gated A-1")
    said: list[Said] = []
    waiter = threading.Thread(target=lambda: said.append(plane.verb("drain", "--wait")))
    waiter.start()
    draining(plane)
    open_gate(plane)
    waiter.join(30)
    assert said[0].status == 0 and "1" in said[0].err
    first = plane.child
    plane.begin()
    plane.until(plane.answers)
    assert first is not None and first.wait(1) == 0
    assert plane.stop() == 0


def test_drain_wait_knows_of_an_end_when_the_next_has_the_store(plane: Plane) -> None:
    """S147: a deploy's new process takes the lock at once, and its note says how the one before it ended."""
    plane.start("--drain-secs", "600")
    run = begun(plane, "desk.endlessly", "endless A-2")
    first = plane.child
    said: list[Said] = []
    waiter = threading.Thread(target=lambda: said.append(plane.verb("drain", "--wait", "--grace", "2")))
    waiter.start()
    draining(plane)
    plane.begin("--wait-lock", "60")
    waiter.join(60)
    assert first is not None and first.wait(10) == 5
    assert said[0].status == 5 and f"cut: {run} in step" in said[0].err, said[0].err


@pytest.mark.parametrize("end", ["grace", "second signal", "kill"])
def test_drain_wait_says_what_was_cut(plane: Plane, end: str) -> None:
    """S147: status 5, and the run with step and effect, as the log has it; of one that was killed, that."""
    plane.start("--drain-secs", "600")
    run = begun(plane, "desk.endlessly", "endless A-2")
    said: list[Said] = []
    waiter = threading.Thread(
        target=lambda: said.append(plane.verb("drain", "--wait", *(("--grace", "0.2") if end == "grace" else ())))
    )
    waiter.start()
    # Until its answer has gone out.
    plane.until(lambda: "/drain" in plane.log.read_text())
    assert plane.child is not None
    if end == "second signal":
        # The drain that was asked for is none: it is the second of two signals that ends it.
        for number in (signal.SIGTERM, signal.SIGINT):
            plane.child.send_signal(number)
    elif end == "kill":
        plane.child.send_signal(signal.SIGKILL)
    waiter.join(30)
    assert said[0].status == 5
    words = f"cut: {run} in step" if end != "kill" else "ended before it could say what it cut"
    assert words in said[0].err, said[0].err
