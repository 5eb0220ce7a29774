"""Kills at every point and at random, of every workload: slices here, the whole by ``python tests/crash/kills.py``.

The seed is printed and may be given as AGENTPLANE_SEED; AGENTPLANE_SWEEP=long makes the slice 10,000 kills.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agentplane.lab import sabotage
from house.ratchet import ROOT

SEED = int(os.environ.get("AGENTPLANE_SEED", time.time_ns() % 1_000_000))
LONG = os.environ.get("AGENTPLANE_SWEEP") == "long"
UNHURT = {"drain": None, "park": False, "signals": [], "stall": None, "trace": False}


def swept(*arguments: str, first: Path | None = None, timeout: float = 120) -> tuple[int, dict[str, Any]]:
    """The driver's status and report; the package is taken from ``first`` where it is given."""
    path = [str(one) for one in (first, ROOT, ROOT / "tests") if one is not None]
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "crash" / "kills.py"), "--json", *arguments],
        capture_output=True, text=True, timeout=timeout, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
    )  # fmt: skip
    assert done.returncode in (0, 1) and done.stdout, done.stderr[-3000:]
    return done.returncode, json.loads(done.stdout)


def answered_and_killed(workload: str) -> str:
    """The provider has answered its first deed, and the process dies before anything is recorded of it."""
    life = UNHURT | {"aim": ["provider.answered", 1]}
    return json.dumps({"kind": "point", "workload": workload, "lives": [life]})


def test_a_handful_of_kills_loses_nothing_and_does_nothing_twice() -> None:
    """A few points and every other kind of kill, of three workloads."""
    print(f"seed {SEED}")
    names = [part for name in ("refund", "manual", "drain") for part in ("--workload", name)]
    status, said = swept("--kills", "16", "--seed", str(SEED), *names)
    assert said["found"] == [] and status == 0
    assert said["kills"] >= 16 and said["points_killed"] >= 3


@pytest.mark.parametrize(
    ("broken", "workload"), [("announce-late", "manual"), ("key-per-attempt", "refund"), ("doubt-is-failure", "manual")]
)
def test_a_sabotaged_child_is_found_to_act_twice(tmp_path: Path, broken: str, workload: str) -> None:
    """Acted before the announcement is durable, under a key of its own for each attempt, or with doubt taken for
    failure: one kill behind the provider's answer is a duplicate. The same kill of the product itself is none."""
    case = answered_and_killed(workload)
    status, said = swept("--case", case, "--kills", "1", first=sabotage.copy(broken, tmp_path))
    assert status == 1 and said["kills"] == 1
    assert [each["what"] for each in said["found"] if each["what"] == "duplicates"] == ["duplicates"]
    status, said = swept("--case", case, "--kills", "1")
    assert (status, said["kills"], said["found"]) == (0, 1, [])


@pytest.mark.parametrize("aim", [None, ["provider.sent", 3]])
def test_a_machine_that_stands_still_before_an_act_pays_nothing_twice(aim: list[Any] | None) -> None:
    """P5: the request goes out late, arrives later still, and the sender gives it up or is killed under it. Counted
    from its announcement it could no longer arrive; it is on its way, and the provider's "I know nothing of it" is not
    believed yet."""
    life = UNHURT | {"aim": aim, "stall": ["effect.acting", 2, 0.35]}
    case = json.dumps({"kind": "stall", "workload": "probe", "lives": [life]})
    status, said = swept("--case", case, "--kills", "1")
    assert (status, said["kills"], said["found"]) == (0, int(aim is not None), [])


@pytest.mark.heavy
def test_kills_at_every_kind_of_instant_lose_nothing_and_do_nothing_twice() -> None:
    """All ten workloads: points of engine and provider, statements, random instants, recovery, drain, opening, twice in
    a row, stops. No acknowledged run is lost, no deed done twice, the books agree and every quarantine is named."""
    print(f"seed {SEED}")
    kills = 10_000 if LONG else 200
    status, said = swept("--kills", str(kills), "--seed", str(SEED), timeout=7200 if LONG else 300)
    print({row["kind"]: row["kills"] for row in said["rows"]}, said["seconds"])
    assert said["found"] == [] and status == 0
    assert said["kills"] >= kills
    assert {"point", "statement", "random", "recovery", "double", "drain", "open"} <= {
        row["kind"] for row in said["rows"] if row["kills"]
    }
