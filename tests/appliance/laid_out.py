"""What a plane in a laid out image is given, and what it must do.

Owns the application, its token and its volume, and the two questions of every container: does it work, does it stop.
Refuses nothing. Invariant: what is asked is asked by the image's own commands.
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

from appliance.container import Container
from appliance.executable import executable
from house.ratchet import ROOT
from surface.terminals import environment

DOCKERFILE = ROOT / "Dockerfile"
PROGRAM = "/usr/local/bin/agentplane"
SKILL = """
import trio

from agentplane import Recovery, effect, skill


@effect("desk.note", recovery=Recovery.RETRY)
async def note(call, *, order: str):
    return {"noted": order}


@skill("desk.settle")
async def settle(cx, request: dict):
    return await cx.do(note(order=request["order"]))


@effect("desk.slow", timeout_s=20)
async def slow(call, *, order: str):
    await trio.sleep(2)
    return {"noted": order}


@skill("desk.patient")
async def patient(cx, request: dict):
    first = await cx.do(slow(order=request["order"]))
    await cx.do(note(order=request["order"]))
    return first
"""
RUN = [PROGRAM, "run", "desk.settle", "--input", json.dumps({"order": "o-1"})]
OPERATOR_PORT, PROBE_PORT = 9090, 9091


def application(at: Path) -> None:
    """What `agentplane init` writes, with a skill that needs no provider."""
    subprocess.run([executable(), "init", at], check=True, capture_output=True, env=environment())
    (at / "skills" / "refunds.py").unlink()
    (at / "skills" / "desk.py").write_text(SKILL)


def token_of(at: Path) -> str:
    """A token of a new token file in a plane's directory."""
    command = [executable(), "token", "new", "--plane", at, "--actor", "ci", "--role", "operator"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment())
    return str(json.loads(done.stdout)["token"])


def works(container: Container) -> None:
    """The hooks say that it lives, and a run comes to its end."""
    container.until(lambda: container.exec([PROGRAM, "status", "--ready"]).status == 0)
    health = container.exec(container.image.config.health)
    assert health.status == 0, (health.err, container.log.read_text())
    done = container.exec(RUN)
    assert done.status == 0 and json.loads(done.out)["output"] == {"noted": "o-1"}, (done.out, done.err)


def stops(container: Container, signal_name: str, grace_s: float) -> None:
    """Told by that signal, it ends by itself within the grace, with nothing cut."""
    began = time.monotonic()
    container.tell(signal_name)
    assert container.ended(grace_s) == 0, container.log.read_text()
    assert time.monotonic() - began < grace_s
