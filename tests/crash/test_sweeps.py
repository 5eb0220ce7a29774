"""Random signals under load: a bounded slice here, the whole under AGENTPLANE_SWEEP=long. The seed is printed
and may be given."""

from __future__ import annotations

import os
import time

import pytest

from crash.sweep import sweep

pytestmark = pytest.mark.heavy

LONG = os.environ.get("AGENTPLANE_SWEEP") == "long"
SEED = int(os.environ.get("AGENTPLANE_SEED", time.time_ns() % 1_000_000))


def test_sigkill_at_random_instants_loses_nothing_and_pays_nothing_twice() -> None:
    """Every acknowledged run exists, no order is paid twice, and every run ends or names what a person must
    look at."""
    print(f"seed {SEED}")
    found = sweep("KILL", 400 if LONG else 25, SEED)
    assert found.faults("KILL") == []
    assert found.acknowledged > 25 and found.ended["succeeded"] > 0


@pytest.mark.parametrize("mode", ["finish", "park"])
def test_sigterm_under_load_cuts_nothing_that_fitted(mode: str) -> None:
    """No effect is cut, no acknowledgement lost, and a request on an idle keep-alive connection is answered."""
    print(f"seed {SEED}")
    found = sweep("TERM", 100 if LONG else 12, SEED, mode)
    assert found.faults("TERM") == []
    assert found.answered_idle == found.signals * 4
