"""L3: while the clock is suspect no key window counts as open, until a person or a synchronised kernel lets go."""

from __future__ import annotations

from pathlib import Path

import pytest
from trio.testing import MockClock

from agentplane.engine import clockwatch
from agentplane.engine.admission import Wanted
from agentplane.engine.plane import Plane
from agentplane.testkit import FakeProvider
from stories.scenes import ME, frozen_at, one_call, opened, paying, recovered, undecided, until


@pytest.fixture(autouse=True)
def kernel(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What the kernel says of its own clock: not synchronised, unless a test changes it."""
    said = [False]
    monkeypatch.setattr(clockwatch, "kernel_synchronised", lambda: said[0])
    return said


async def test_a_store_from_the_future_makes_the_clock_suspect(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A doubt that would be sent again inside its window is given to a person; released, it is sent again."""
    provider = FakeProvider()
    provider.tell("refund", "hang")
    skill = one_call(paying(provider))
    async with opened(tmp_path, skill) as plane:
        run = await _killed_in_the_act(plane, provider)
        where = frozen_at(plane, tmp_path)
        provider.release()
    earlier_ms = 1_700_000_000_000
    async with opened(where, skill, now_ms=lambda: earlier_ms, recover=False) as plane:
        assert plane.clock.why is not None and "behind the last record" in plane.clock.why
        assert plane.world.trusted_now_ms() is None
        # A copy without its mark is held; that is another story.
        await plane.state.release_held(ME, "a test")
        await recovered(plane)
        assert [one.kind for one in undecided(plane, run)] == ["pay.refund"]
        assert plane.clock.release() is True and plane.clock.release() is False
        assert plane.world.trusted_now_ms() == earlier_ms


async def _killed_in_the_act(plane: Plane, provider: FakeProvider) -> str:
    run = (await plane.start(Wanted(capability="story.run", input={}))).run
    await until(lambda: bool(provider.asked))
    return str(run)


async def test_a_jump_while_running_is_seen_and_a_synchronised_kernel_lets_go(
    autojump_clock: MockClock, tmp_path: Path, kernel: list[bool]
) -> None:
    """Ten minutes at once: suspect at the next look, and believed again when the kernel's clock is kept by somebody."""
    times = [1_800_000_000_000]
    async with opened(tmp_path, one_call(paying(FakeProvider())), now_ms=lambda: times[0], recover=False) as plane:
        plane.clock.look()
        assert plane.clock.why is None
        times[0] += 600_000
        plane.clock.look()
        assert plane.clock.why is not None and plane.world.clock_suspect
        kernel[0] = True
        plane.clock.look()
        assert plane.clock.why is None and not plane.world.clock_suspect
