"""The lab's clock: wall, boot and monotonic time move together, never back, and only while nothing is in flight."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from agentplane import Plane, Recovery, effect, skill
from agentplane.lab import moved_clock
from agentplane.lab.moved_clock import MovedClock
from agentplane.lab.overnight import timekeeper
from agentplane.lab.overnight.timekeeper import BUSY, DUE, Timekeeper
from agentplane.lab.provider_process import Provider
from agentplane.work import schedules

HOUR_MS = 3_600_000


@pytest.fixture
def file(tmp_path: Path) -> Path:
    moved_clock.write(tmp_path / "clock", 0)
    return tmp_path / "clock"


def test_a_sleep_ends_when_time_is_moved(file: Path) -> None:
    """An hour of the loop passes in a moment of ours, and the three clocks say the same."""
    clock = MovedClock(file)

    async def main() -> tuple[float, int, int]:
        began, wall, boot = trio.current_time(), clock.now_ms(), clock.boot_ms()
        await trio.sleep(3600)
        return trio.current_time() - began, clock.now_ms() - wall, clock.boot_ms() - boot

    timer = threading.Timer(0.05, moved_clock.write, (file, HOUR_MS))
    timer.start()
    real = time.monotonic()
    loop, wall, boot = trio.run(main, clock=clock)
    assert time.monotonic() - real < 20
    assert abs(loop * 1000 - wall) < 1000 and abs(wall - boot) < 1000 and wall >= HOUR_MS


def test_no_clock_moves_while_a_task_holds_the_loop(file: Path) -> None:
    """Two readings in one turn of the loop agree, whatever the file says meanwhile; else they would look like drift."""
    clock = MovedClock(file)

    async def main() -> tuple[int, int, int]:
        wall = clock.now_ms()
        moved_clock.write(file, HOUR_MS)
        held = clock.now_ms() - wall, clock.boot_ms()
        await trio.sleep(0.05)
        return held[0], clock.now_ms() - wall, clock.boot_ms() - held[1]

    held, after, boot = trio.run(main, clock=clock)
    assert held < 10_000 and after >= HOUR_MS and boot >= HOUR_MS


def test_time_never_goes_back_and_outlives_the_process(file: Path) -> None:
    """A smaller offset changes nothing; who reads the file anew begins where time stood."""
    moved_clock.write(file, HOUR_MS)
    clock = MovedClock(file)
    moved_clock.write(file, 5)
    clock.current_time()
    assert clock.now_ms() - time.time_ns() // 1_000_000 >= HOUR_MS - 1000
    moved_clock.write(file, 2 * HOUR_MS)
    assert MovedClock(file).now_ms() - time.time_ns() // 1_000_000 >= 2 * HOUR_MS - 1000


class QuietProvider:
    """Says whether a request or a commit is before it."""

    is_quiet = True

    def quiet(self, wait_ms: int) -> bool:
        return self.is_quiet


@effect("slow.read", mutates=False, recovery=Recovery.RETRY, timeout_s=20)
async def slow(call: Any) -> int:
    await GATE[0].wait()
    return 1


GATE: list[trio.Event] = []


@skill("slow")
async def slowly(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
    return await cx.do(slow())


@skill("sleeper")
async def sleeper(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
    return await cx.sleep(seconds=request["seconds"])


async def test_time_stands_while_a_run_executes_or_the_provider_is_busy(tmp_path: Path) -> None:
    """Refused while an effect is in flight, and while the provider has something before it; held points go on after."""
    provider, held = QuietProvider(), []
    GATE[:] = [trio.Event()]
    store = tmp_path / "plane.db"
    keeper = Timekeeper(tmp_path / "clock", store, cast(Provider, provider), held.append)
    async with Plane.open(store, skills=[slowly], sweep_every_s=0.05) as plane:
        await plane.writer.do(lambda tx: schedules.advance(tx, timekeeper.NIGHTLY, keeper.now_ms))
        admission = await plane.run("slow", {}, wait_s=0.01)
        ahead = keeper.now_ms + 60_000
        assert await trio.to_thread.run_sync(keeper.step_to, ahead) == BUSY
        GATE[0].set()
        await plane.runs.wait_for(admission.run)
        provider.is_quiet = False
        assert await trio.to_thread.run_sync(keeper.step_to, ahead) == BUSY and moved_clock.read(keeper.clock) == 0
        provider.is_quiet = True
        assert await trio.to_thread.run_sync(keeper.step_to, ahead) is None
    assert keeper.now_ms >= ahead and moved_clock.read(keeper.clock) > 50_000
    assert held == [True, False] * 3


async def test_time_stands_while_something_is_due(tmp_path: Path) -> None:
    """What fell due and was not done is waited for, unless the step is over it."""
    store = tmp_path / "plane.db"
    keeper = Timekeeper(tmp_path / "clock", store, cast(Provider, QuietProvider()), lambda on: None)
    async with Plane.open(store, skills=[sleeper], recover=False) as plane:  # nobody sweeps
        await plane.writer.do(lambda tx: schedules.advance(tx, timekeeper.NIGHTLY, keeper.now_ms))
        await plane.run("sleeper", {"seconds": 30})
        look = trio.to_thread.run_sync
        assert await look(keeper.step_to, keeper.now_ms + 31_000) is None
        assert await look(keeper.step_to, keeper.now_ms + 31_000) == DUE
        over = lambda: keeper.step_to(keeper.now_ms + 31_000, over_what_is_due=True)  # noqa: E731
        assert await look(over) is None
