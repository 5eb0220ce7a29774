"""Orphans are reaped by whom the kernel hands them to, and nobody else's child is. (S165)"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from agentplane.appliance.reaper import PATIENCE_S, to_reap

ADOPTS = """
import ctypes, json, os, subprocess, sys, trio
from agentplane.appliance import reaper

PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
reaper.EVERY_S, reaper.PATIENCE_S = 0.02, 0.1
reaper.STARTED.watch()

async def main():
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reaper.forever, reaper.STARTED)
        # Its child outlives it, and is ours then; both ids are said.
        said = subprocess.run(["sh", "-c", "sleep 0.05 & echo $!"], stdout=subprocess.PIPE, check=True)
        orphan = int(said.stdout)
        own = subprocess.Popen(["sh", "-c", "exit 7"])
        forked = os.fork() or os._exit(8)
        spawned = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 9"], os.environ)
        while os.path.exists(f"/proc/{orphan}"):
            await trio.sleep(0.01)
        # They have been dead as long, and longer.
        await trio.sleep(0.3)
        json.dump([own.wait(), *(os.waitstatus_to_exitcode(os.waitpid(one, 0)[1]) for one in (forked, spawned))],
            sys.stdout)
        nursery.cancel_scope.cancel()

trio.run(main)
"""


def test_orphans_go_and_own_children_wait_for_their_starter() -> None:
    """However a child was started, its status is whoever asks for it's."""
    done = subprocess.run([sys.executable, "-c", ADOPTS], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [7, 8, 9]


@pytest.mark.parametrize(
    ("own", "dead_for", "expected"),
    [((), PATIENCE_S, [5]), ((), PATIENCE_S - 0.1, []), ((5,), PATIENCE_S * 100, []), ((), None, [])],
)
def test_nobodys_and_dead_for_long(own: tuple[int, ...], dead_for: float | None, expected: list[int]) -> None:
    """A library that forks by itself has its time to ask, and one that was not seen before has just died."""
    seen = {} if dead_for is None else {5: 100.0 - dead_for}
    assert to_reap([5], own, seen, 100.0) == expected
