"""L3: a clock that was found suspect is not believed again by itself, however well it goes from then on."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from agentplane.engine import clockwatch
from agentplane.testkit.inline import trio_now_ms
from stories.scenes import opened


async def test_looks_alone_do_not_let_it_go(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L3: look after look finds nothing new and the kernel unsynchronised: suspect; a person lets go."""
    monkeypatch.setattr(clockwatch, "kernel_synchronised", lambda: False)
    monkeypatch.setattr(clockwatch, "boot_ms", lambda: round(trio.current_time() * 1000))
    jump = [0]
    async with opened(tmp_path, recover=False, now_ms=lambda: trio_now_ms() + jump[0]) as plane:
        plane.clock.look()
        assert plane.clock.why is None
        jump[0] = 600_000
        for _ in range(3):
            plane.clock.look()
            assert plane.clock.why is not None and plane.world.trusted_now_ms() is None
        jump[0] = 0
        plane.clock.look()
        assert plane.world.trusted_now_ms() is None, "it came back, and nobody knows why it had left"
        assert plane.clock.release() and plane.world.trusted_now_ms() is not None
