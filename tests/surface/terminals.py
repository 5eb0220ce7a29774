"""A plane with a provider, and a terminal to work it from: real processes, as an operator has them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentplane.cli.main import command
from agentplane.core.errors import AgentplaneError
from agentplane.surface.client import HttpClient

SKILLS = '''
"""Skills of the terminal tests."""
from agentplane import Recovery, effect, skill
import msgspec
import trio


class Wanted(msgspec.Struct, forbid_unknown_fields=True):
    order: str
    amount_minor: int = 1


@effect("desk.note", recovery=Recovery.RETRY)
async def note(call, *, order: str):
    """Harmless to repeat."""
    return {"noted": order}


@effect("desk.doubt")
async def doubt(call, *, order: str):
    """Nobody can say what became of it."""
    raise RuntimeError("the line went dead")


@effect("desk.refuse", mutates=False)
async def refuse(call, *, order: str):
    """A read that fails for good."""
    from agentplane import DidNotHappenError
    raise DidNotHappenError("no such order", permanent=True)


@effect("desk.slow", mutates=False, timeout_s=60)
async def slow(call, *, seconds: float):
    """A read that takes its time."""
    await trio.sleep(seconds)
    return seconds


@effect("desk.huge", mutates=False)
async def huge(call, *, size: int):
    """A large answer."""
    return "x" * size


@skill("desk.settle")
async def settle(cx, request: Wanted):
    return await cx.do(note(order=request.order))


@skill("desk.unsure")
async def unsure(cx, request: Wanted):
    return await cx.do(doubt(order=request.order))


@skill("desk.failing")
async def failing(cx, request: Wanted):
    return await cx.do(refuse(order=request.order))


@skill("desk.waiting")
async def waiting(cx, request: dict):
    return await cx.do(slow(seconds=request["seconds"]))


@skill("desk.large")
async def large(cx, request: dict):
    return len(await cx.do(huge(size=request["size"])))
'''


START_S = 30.0


@dataclass
class Said:
    """What a command said: status, standard output, standard error."""

    status: int
    out: str
    err: str

    @property
    def body(self) -> dict[str, Any]:
        return dict(json.loads(self.out))


class Plane:
    """A plane's directory, served or not."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.child: subprocess.Popen[bytes] | None = None
        self.log = directory.parent / f"{directory.name}.log"

    @classmethod
    def made(cls, directory: Path, skills: str = SKILLS, toml: str = "") -> Plane:
        plane = cls(directory)
        said = plane.verb("init", str(directory), plane=False)
        assert said.status == 0, said.err
        (directory / "skills" / "refunds.py").unlink()
        (directory / "skills" / "desk.py").write_text(skills)
        (directory / "skills" / "desk.py").chmod(0o644)
        shutil.rmtree(directory / "tests")
        if toml:
            text = (directory / "plane.toml").read_text()
            (directory / "plane.toml").write_text(text.replace("[settings]", toml + "\n\n[settings]"))
        return plane

    def verb(self, *args: str, plane: bool = True, stdin: str = "", timeout: float = 60) -> Said:
        """Run one command to its end, as a script would."""
        where = ["--plane", str(self.directory)] if plane else []
        done = subprocess.run(
            [sys.executable, "-m", "agentplane.cli.main", args[0], *where, *args[1:]], input=stdin, capture_output=True,
            text=True, timeout=timeout, check=False, env=environment(),
        )  # fmt: skip
        return Said(done.returncode, done.stdout, done.stderr)

    def here(self, verb: str, *args: str) -> Said:
        """A verb that executes no skill, in this process: what a terminal would start another for, ten times over."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = command([verb, "--plane", str(self.directory), *args])
            except SystemExit as refused:
                status = int(refused.code or 0)
        return Said(status, out.getvalue(), err.getvalue())

    def begin(self, *flags: str, **options: Any) -> None:
        """Serve it, without waiting for anything."""
        with open(self.log, "ab") as log:
            said: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "env": environment()}
            self.child = subprocess.Popen(
                [sys.executable, "-m", "agentplane.cli.main", "serve", str(self.directory), *flags], **(said | options)
            )

    def start(self, *flags: str, **options: Any) -> None:
        """Serve it, and wait until it answers."""
        self.begin(*flags, **options)
        self.until(self.answers)

    def answers(self) -> bool:
        """Whether its control socket answers `status`."""
        try:
            return HttpClient(path=self.directory / "run" / "control.sock").call("status")[0] == 200
        except AgentplaneError:
            return False

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait for what the process is about to bring about."""
        until = time.monotonic() + START_S
        while not holds():
            assert self.child is not None and self.child.poll() is None and time.monotonic() < until, (
                self.log.read_text()
            )
            time.sleep(0.01)

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.child is not None
        if self.child.poll() is None:
            self.child.send_signal(number)
        status = self.child.wait(60)
        self.child = None
        return status

    def run(self, capability: str, given: dict[str, Any], *flags: str) -> Said:
        return self.verb("run", capability, "--input", json.dumps(given), *flags)


def spoken(log: str) -> str:
    """What a log says in words, a line each, whichever form its lines have."""
    return "\n".join(str(json.loads(line)["text"]) if line.startswith('{"at"') else line for line in log.splitlines())


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("AGENTPLANE_")}
