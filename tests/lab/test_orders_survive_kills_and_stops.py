"""The order workload, as the verb runs it: every order ends whole or taken back under kills and stops, and each of its
sabotages ends FAIL with an order's name."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time

import pytest

from agentplane.lab import sabotage

SEED = int(os.environ.get("AGENTPLANE_SEED", time.time_ns() % 1_000_000))
SABOTAGES = [name for name in sabotage.SABOTAGES if sabotage.workload_of(name) == sabotage.ORDERS]


def demo(*args: str) -> tuple[int, dict[str, object], str]:
    done = subprocess.run(
        [sys.executable, "-m", "agentplane.cli.main", "demo", "--json", *args],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    print(f"{args}: {done.stdout}{done.stderr}")
    return done.returncode, json.loads(done.stdout), done.stderr


def test_a_dozen_orders_survive_four_kills() -> None:
    """PASS: what does not end whole is taken back, held by its pivot, or quarantined by name; nothing is done twice."""
    status, said, _ = demo("--workload", "orders", "--kills", "4", "--seed", "3")
    orders = said["orders"]
    assert isinstance(orders, dict)
    assert (status, said["verdict"], said["duplicates"]) == (0, "PASS", 0)
    assert orders["total"] == 12 and sum(orders.values()) == 24 and orders["whole"] and orders["taken_back"]


@pytest.mark.heavy
@pytest.mark.parametrize("nth", range(3))
def test_orders_survive_sixty_kills(nth: int) -> None:
    """Sixty kills over every kind of place; quarantines are met, answered from the provider's book, and what is left is
    named."""
    status, said, _ = demo("--workload", "orders", "--kills", "60", "--seed", str(SEED + nth))
    kills, orders = said["kills"], said["orders"]
    assert isinstance(kills, dict) and isinstance(orders, dict)
    assert (status, said["verdict"], kills["total"], said["duplicates"]) == (0, "PASS", 60, 0)
    assert len(kills["at"]) >= 10 and orders["whole"] and orders["taken_back"] and orders["held"]
    assert said["quarantines"] and said["answers"]


LATE_SEED = 964743
"""With which no parcel loses its answer before the last of twenty kills."""


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "seed"), [*((name, SEED) for name in SABOTAGES), ("unwind-under-doubt", LATE_SEED)],
    # The seed of the day is in no name: two workers of one run have to name their tests alike.
    ids=[*SABOTAGES, "unwind-under-doubt-late"],
)  # fmt: skip
def test_a_sabotaged_source_fails_naming_the_order(name: str, seed: int) -> None:
    """FAIL, status 1, with any seed: what stands of an order that says otherwise, deed by deed."""
    status, said, reasons = demo("--sabotage", name, "--kills", "20", "--seed", str(seed))
    assert (status, said["verdict"]) == (1, "FAIL")
    part = {"unwind-under-doubt": r"is cancelled and not taken back: .*parcel pc_",
            "commit-by-forgetting": r"is succeeded and not whole: reservation rv_"}[name]  # fmt: skip
    assert re.search(rf"order O-\d+ {part}", reasons)
