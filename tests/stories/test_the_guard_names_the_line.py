"""The guard of the deterministic zone: what skill code may not do beside ``cx``, told with file and line.

The hook stays in its process, so each story is a process of its own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from stories.processes import run_to_its_end

PROGRAM = """
import json, logging, os, socket, subprocess, sys, tempfile
import trio
from agentplane import Plane, Recovery, effect, skill

where = sys.argv[1]
logging.basicConfig(handlers=[logging.FileHandler(os.path.join(where, "log"), delay=True)])

@effect("pay.refund", recovery=Recovery.IDEMPOTENT)
async def refund(call):
    with open(os.path.join(where, "written"), "w") as file:
        file.write("by an act")
    socket.socket().close()
    return "paid"

@effect("pay.block", recovery=Recovery.IDEMPOTENT)
def block(call):
    socket.socket().close()
    return "paid"

@skill("story.async")
async def coroutine(cx, request: dict):
    await cx.do(refund())
    await cx.do(block())
    %(body)s
    return await cx.do(refund())

@skill("story.thread")
def thread(cx, request: dict):
    cx.do(refund())
    cx.do(block())
    %(body)s
    return cx.do(refund())

async def main():
    async with Plane.open(os.path.join(where, "plane.db"), skills=[coroutine, thread], guard_steps=True) as plane:
        for name in ("story.async", "story.thread"):
            outcome = await plane.run(name, {})
            verdict = await plane.replay(outcome.run, strict=True)
            print(json.dumps({"status": outcome.status, "code": outcome.code, "reason": outcome.reason,
                              "verdict": verdict.verdict}))

trio.run(main)
"""
HOLES = [number for number, line in enumerate(PROGRAM.splitlines(), 1) if "%(body)s" in line]
LINES = dict(zip(("story.async", "story.thread"), HOLES, strict=True))


def of(tmp_path: Path, body: str) -> list[dict[str, str]]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM % {"body": body})
    status, lines = run_to_its_end(program, str(tmp_path))
    assert status == 0 and len(lines) == 2
    return lines


@pytest.mark.parametrize(
    "body",
    [
        "socket.socket()",
        "socket.getaddrinfo('localhost', 80)",
        "subprocess.run(['true'])",
        "os.system('true')",
        "open(os.path.join(where, 'x'), 'w')",
        "open(os.path.join(where, 'x'), 'a+b')",
        "os.open(os.path.join(where, 'x'), os.O_CREAT | os.O_WRONLY)",
        "os.mkdir(os.path.join(where, 'x'))",
        "os.rename(where, where + 'x')",
        "os.unlink(os.path.join(where, 'written'))",
        "tempfile.NamedTemporaryFile()",
        "import sqlite3; sqlite3.connect(os.path.join(where, 'x'))",
        "os.kill(os.getpid(), 0)",
    ],
)
def test_what_reaches_the_world_is_refused(tmp_path: Path, body: str) -> None:
    """In a coroutine and in a thread: the run is quarantined, naming file and line of the skill."""
    for name, found in zip(("story.async", "story.thread"), of(tmp_path, body), strict=True):
        assert (found["status"], found["code"]) == ("quarantined", "outside_step"), found
        assert f"{tmp_path / 'program.py'}:{LINES[name]}" in found["reason"]


def test_a_refusal_cannot_be_swallowed(tmp_path: Path) -> None:
    """Caught by the skill, it latches all the same."""
    body = "\n    ".join(["try: socket.socket()", "except BaseException: pass"])
    for found in of(tmp_path, body):
        assert (found["status"], found["code"]) == ("quarantined", "outside_step")


@pytest.mark.parametrize(
    "body",
    [
        "open(os.path.join(where, 'written')).read()",
        "os.listdir(where)",
        "import colorsys",
        "import xmlrpc.client",
        "logging.getLogger('story').warning('seen')",
        "json.dumps({'a': 1})",
    ],
)
def test_what_only_reads_passes(tmp_path: Path, body: str) -> None:
    """Reads, imports (which may write bytecode) and logging are none of its business; acts are not touched."""
    for found in of(tmp_path, body):
        assert (found["status"], found["verdict"]) == ("succeeded", "verified"), found
    assert (tmp_path / "written").read_text() == "by an act"
