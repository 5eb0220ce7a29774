"""The whole lab, as the verb runs it: it passes on the source as it is, and fails on each sabotaged copy of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time

import pytest

from agentplane.lab.sabotage import REFUNDS, SABOTAGES, workload_of

pytestmark = pytest.mark.heavy

SEED = int(os.environ.get("AGENTPLANE_SEED", time.time_ns() % 1_000_000))
KILLS = "40" if os.environ.get("AGENTPLANE_SWEEP") == "long" else "12"


def demo(*args: str) -> tuple[int, dict[str, object], str]:
    done = subprocess.run(
        [sys.executable, "-m", "agentplane.cli.main", "demo", "--json", "--seed", str(SEED), "--kills", KILLS, *args],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    print(f"seed {SEED}: {done.stdout}{done.stderr}")
    return done.returncode, json.loads(done.stdout), done.stderr


def test_thirty_tickets_survive_every_window() -> None:
    """PASS: nothing twice, both books agree, a kill in each window, a replay, a control that pays twice, and every
    refund above the ceiling with its one approval."""
    status, said, _ = demo()
    assert (status, said["verdict"]) == (0, "PASS")
    assert said["work"] == {"total": 30, "concluded": 30} and said["refunds"] == 18 and said["duplicates"] == 0
    assert said["books_agree"] is True and said["replays"] > 0  # type: ignore[operator]
    kills = said["kills"]
    assert isinstance(kills, dict) and all(kills[window] > 0 for window in ("W1", "W2", "W3", "W4"))
    assert said["windows"] == {"W5": "held", "W6": "held", "W7": "held"}
    approvals = said["approvals"]
    assert isinstance(approvals, dict) and (approvals["asked"], approvals["consumed"], approvals["agree"]) == (
        3,
        3,
        True,
    )
    assert all(approvals["review"].values())
    control = said["control"]
    assert isinstance(control, dict) and control["refunds_twice"] is True and len(control["references"]) == 2


@pytest.mark.parametrize("name", [name for name in SABOTAGES if workload_of(name) == REFUNDS])
def test_a_sabotaged_source_fails_naming_the_order(name: str) -> None:
    """FAIL, status 1, and a sentence that names what was paid or sent twice, or lost."""
    # An announcement that comes late has no window of its own to be killed in: only the kills at random meet it, and
    # nine of them once met none.
    more = ("--kills", "30") if name == "announce-late" else ()
    status, said, reasons = demo("--sabotage", name, *more)
    assert (status, said["verdict"]) == (1, "FAIL")
    assert re.search(r"order \S+ (has \d+ (refund|reship|notice)s|was lost)", reasons)
