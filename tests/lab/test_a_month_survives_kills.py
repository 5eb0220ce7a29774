"""The overnight workload, as the verb runs it: a month of waits under kills ends with every book in agreement, and a
plane that loses an event ends FAIL with its name."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time

import pytest

SEED = int(os.environ.get("AGENTPLANE_SEED", time.time_ns() % 1_000_000))


def demo(*args: str) -> tuple[int, dict[str, object], str]:
    done = subprocess.run(
        [sys.executable, "-m", "agentplane.cli.main", "demo", "--json", *args],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    print(f"{args}: {done.stdout}{done.stderr}")
    return done.returncode, json.loads(done.stdout), done.stderr


def test_a_fortnight_survives_a_kill() -> None:
    """PASS: eight orders, an ending of every kind, a run of the schedule for every night."""
    status, said, _ = demo("--workload", "overnight", "--kills", "1", "--seed", "2")
    assert (status, said["verdict"], said["duplicates"], said["nights"]) == (0, "PASS", 0, 14)
    assert said["orders"] == {
        "total": 8, "released": 2, "amended": 2, "rejected": 1, "unanswered": 1, "late": 2,
    }  # fmt: skip
    assert said["obligations"] == {"met": 12, "breached": 2}
    assert said["approvals"] == {"asked": 6, "consumed": 4, "agree": True}


@pytest.mark.heavy
@pytest.mark.parametrize("nth", range(3))
def test_a_month_survives_eighteen_kills(nth: int) -> None:
    """Kills over many kinds of places; each event ends one wait or is a dead letter, each breach is one."""
    status, said, _ = demo("--workload", "overnight", "--seed", str(SEED + nth))
    kills, events = said["kills"], said["events"]
    assert isinstance(kills, dict) and isinstance(events, dict)
    assert (status, said["verdict"], kills["total"], said["duplicates"]) == (0, "PASS", 18, 0)
    assert len(kills["at"]) >= 8 and said["nights"] == 30
    assert (events["consumed"], events["dead"]) == (18, 6) and said["obligations"] == {"met": 36, "breached": 6}


@pytest.mark.heavy
def test_a_plane_that_loses_an_event_fails_naming_it() -> None:
    """FAIL, status 1: an event that came in time is consumed, and no wait was ended by it."""
    status, said, reasons = demo("--sabotage", "drop-event", "--kills", "4", "--seed", str(SEED))
    assert (status, said["verdict"]) == (1, "FAIL")
    assert re.search(
        r"the event sent-N-\d+ of order N-\d+ came in time and is consumed, and no wait was ended", reasons
    )
