"""Restarts of the executable under load, all modes side by side: a slice here, the whole under AGENTPLANE_SWEEP=long.
(S168)

The seed is printed and may be given as AGENTPLANE_SEED. docs/deploys.md has the report of a long run; `python -m
appliance.rolling`, from tests/, makes one.
"""

from __future__ import annotations

import os
import time

import pytest

from appliance.rolling.__main__ import counts
from appliance.rolling.lanes import Judged, rolled

pytestmark = pytest.mark.heavy
DROPPED = {"dropped": 1}
BESIDE = 4


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Judged]:
    seed = int(os.environ.get("AGENTPLANE_SEED", time.time_ns() % 1_000_000))
    print(f"seed {seed}")
    found = rolled(counts() | DROPPED, seed, tmp_path_factory.mktemp("rolling"), beside=BESIDE)
    return {one.mode: one for one in found}


@pytest.mark.parametrize("mode", ["held", "unheld", "killed"])
def test_a_deploy_is_boring(reports: dict[str, Judged], mode: str) -> None:
    """With the socket held nobody is refused, reset or left without an answer; in every mode nothing that was
    acknowledged is lost and nothing happens twice."""
    print(reports[mode].text())
    assert reports[mode].wrong == []


def test_a_socket_that_is_let_go_is_a_fail(reports: dict[str, Judged]) -> None:
    """The same restart, its socket closed meanwhile, loses requests, and the verdict says so and nothing else."""
    print(reports["dropped"].text())
    wrong = reports["dropped"].wrong
    assert wrong and all(one.startswith(("requests refused: ", "requests reset: ")) for one in wrong)
