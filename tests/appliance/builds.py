"""Two builds of the program over one store, and a load that does not care which of them serves it.

A build is a file that is started, as an operator has one. Here it is the source, copied; a build of higher levels is
the source with the planted migrations in it. Any executable can stand in the place of either.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentplane.core.errors import AgentplaneError
from agentplane.surface.client import HttpClient
from appliance.executable import NAMED
from house.ratchet import ROOT
from surface.terminals import Said, environment, spoken

PLANTED = Path(__file__).parent.parent / "journal" / "planted_migrations.py"
PATIENCE_S = 60.0


def build(where: Path, *, planted: bool = False) -> Path:
    """An executable of the source as it is, in ``where``; with the planted levels, where it is to have them. The frozen
    ones instead, where the environment names them."""
    named = os.environ.get(f"{NAMED}_PLANTED" if planted else NAMED)
    if named:
        return Path(named).absolute()
    where.mkdir(parents=True)
    shutil.copytree(ROOT / "agentplane", where / "source" / "agentplane", ignore=shutil.ignore_patterns("__pycache__"))
    if planted:
        shutil.copy(PLANTED, where / "source" / "agentplane" / "_planted.py")
    return script(
        where / "agentplane",
        f'exec env PYTHONPATH={where / "source"} {sys.executable} -P -m agentplane.cli.main "$@"',
    )


def script(path: Path, *lines: str) -> Path:
    """A program of the shell."""
    path.write_text("#!/bin/sh\n" + "\n".join(lines) + "\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def say(binary: Path, *arguments: str, timeout: float = PATIENCE_S) -> Said:
    """Run a command of this build to its end, as a script would."""
    done = subprocess.run(
        [str(binary), *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout,
        check=False, env=environment(),
    )  # fmt: skip
    return Said(done.returncode, done.stdout, done.stderr)


STARTED: list[Served] = []


def end_all() -> None:
    """Kill what a test left running, with its last words for whoever reads of its failure."""
    while STARTED:
        one = STARTED.pop()
        if one.child.poll() is None:
            print(one.said()[-2000:])
            one.child.kill()
            one.child.wait()


class Served:
    """A process of one build that serves the plane in ``directory``."""

    def __init__(self, binary: Path, directory: Path, *flags: str) -> None:
        self.directory = directory
        self.log = directory.parent / f"{directory.name}.{time.monotonic_ns()}.log"
        with open(self.log, "ab") as log:
            self.child = subprocess.Popen(
                [str(binary), "serve", str(directory), *flags], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=environment(),
            )  # fmt: skip
        STARTED.append(self)

    def said(self) -> str:
        return spoken(self.log.read_text(encoding="utf-8", errors="replace"))

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait for what the process is about to bring about."""
        until = time.monotonic() + PATIENCE_S
        while not holds():
            assert self.child.poll() is None and time.monotonic() < until, self.said()[-1500:]
            time.sleep(0.01)

    def serves(self) -> Served:
        """Itself, once it says that it serves."""
        self.until(lambda: "control socket" in self.said())
        return self

    def term(self) -> None:
        self.child.send_signal(signal.SIGTERM)

    def end(self) -> int:
        """Its exit status; killed where it does not end."""
        try:
            return self.child.wait(PATIENCE_S)
        finally:
            self.child.kill()
            self.child.wait()


def asked(directory: Path, name: str, **more: Any) -> dict[str, Any]:
    """An answer of the plane's control socket."""
    return HttpClient(path=directory / "run" / "control.sock").call(name, **more)[1]


class Load:
    """Clients that start runs under keys of their own, and ask again until they are acknowledged, whoever serves."""

    def __init__(self, directory: Path, capability: str, request: dict[str, Any]) -> None:
        self.acknowledged: dict[str, str] = {}
        self._directory = directory
        self._wanted = {"capability": capability, "input": request}
        self._stop = threading.Event()

    def _client(self, number: int) -> None:
        client = HttpClient(path=self._directory / "run" / "control.sock")
        at = 0
        while not self._stop.is_set():
            key = f"load-{number}-{at}"
            request = self._wanted["input"] | {"order": key}
            try:
                _, body = client.call("start", body=self._wanted | {"input": request}, key=key)
            except AgentplaneError:
                time.sleep(0.02)
                continue
            self.acknowledged[key] = str(body["run"])
            at += 1
            time.sleep(0.005)

    @contextmanager
    def on(self, clients: int = 3) -> Iterator[Load]:
        threads = [threading.Thread(target=self._client, args=(number,)) for number in range(clients)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            for thread in threads:
                thread.join(PATIENCE_S)

    def more(self, than: int) -> bool:
        return len(self.acknowledged) > than


def json_of(said: Said) -> dict[str, Any]:
    assert said.out, said.err
    return dict(json.loads(said.out))


def left_behind(directory: Path) -> list[str]:
    """What a check left beside the store."""
    return sorted(name for name in os.listdir(directory) if "upgrade-check" in name or name.endswith(".part"))
