"""The provider seen from the driver: start it, tell it what to do wrong, wait at its gates, end it.

It owns the child process and the only write end of its lifeline, so that the provider ends whenever this
process does, also by SIGKILL. It refuses to guess a port: the provider announces it. Its invariant: ``stop``
returns only when the process is gone. Standard library only; it speaks the control API and never touches the
provider's file.
"""

from __future__ import annotations

import http.client
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

START_S = 20.0
STOP_S = 5.0
LINE_MAX = 4096


class ProviderFailed(RuntimeError):
    """The provider did not start, ended, or answered what its control API does not answer."""


def _read_line(fd: int, deadline: float) -> bytes:
    read = b""
    while not read.endswith(b"\n") and len(read) < LINE_MAX:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([fd], [], [], left)[0]:
            raise ProviderFailed(f"the provider was not ready within {START_S:.0f} s")
        chunk = os.read(fd, LINE_MAX)
        if not chunk:
            raise ProviderFailed("the provider ended before it was ready")
        read += chunk
    return read


class Provider:
    """A running provider. A context manager; ``url`` is its base URL, ``db`` its file."""

    def __init__(self, db: Path, *, port: int = 0, command: Sequence[str] | None = None) -> None:
        self.db = db
        self._asked_port = port
        self._command = list(command or (sys.executable, "-m", "agentplane.lab.provider"))
        self._child: subprocess.Popen[bytes] | None = None
        self._lifeline = -1
        self.port = 0
        self.pid = 0
        self._token = ""

    def start(self) -> Provider:
        """Starts the process and waits for its ready line. Raises ``ProviderFailed``."""
        ready_r, ready_w = os.pipe()
        life_r, self._lifeline = os.pipe()
        told = ["--db", str(self.db), "--port", str(self._asked_port), "--ready-fd", str(ready_w)]
        try:
            self._child = subprocess.Popen(
                [*self._command, *told, "--lifeline-fd", str(life_r)],
                pass_fds=(ready_w, life_r),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
            os.close(ready_w)
            ready_w = -1
            said = json.loads(_read_line(ready_r, time.monotonic() + START_S))
        except BaseException:
            self.stop()
            raise
        finally:
            for fd in (ready_r, ready_w, life_r):
                if fd >= 0:
                    os.close(fd)
        self.port, self.pid, self._token = said["port"], said["pid"], said["control_token"]
        return self

    def __enter__(self) -> Provider:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """The base URL, without a slash at its end."""
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        """Closes the lifeline and waits; a provider that does not end in ``STOP_S`` is killed. May be called
        twice."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        if self._child is not None:
            try:
                self._child.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        timeout_s: float = 40.0,
    ) -> tuple[int, dict[str, str], Any]:
        """One request on a connection of its own: status, headers (lower case) and decoded JSON. Raises
        ``OSError`` (and ``http.client.HTTPException``) when there is no whole answer."""
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            sent = None if body is None else json.dumps(body).encode()
            line.request(method, path, sent, {"Content-Type": "application/json", **(headers or {})})
            answer = line.getresponse()
            raw = answer.read()
            return (
                answer.status,
                {name.lower(): value for name, value in answer.getheaders()},
                json.loads(raw),
            )
        finally:
            line.close()

    def control(self, method: str, path: str, body: Any = None) -> Any:
        """One control request; the answer's JSON. Raises ``ProviderFailed`` when it is refused."""
        status, _, said = self.request(method, f"/control/{path}", body, headers={"Control-Token": self._token})
        if status >= 400:
            raise ProviderFailed(f"{method} /control/{path}: {said.get('error', status)}")
        return said

    def rule(self, **told: Any) -> int:
        """Adds a rule (members as the provider's docstring lists them); answers its number."""
        return int(self.control("POST", "rules", told)["rule"])

    def clear(self, rule: int | None = None) -> None:
        """Drops a rule, or all."""
        self.control("POST", "clear", {} if rule is None else {"rule": rule})

    def held(self, gate: str, wait_ms: int = 0) -> list[dict[str, Any]]:
        """The requests held at a gate, waiting up to ``wait_ms`` (at most 30,000) for the first."""
        return list(self.control("GET", f"gates/{gate}?wait_ms={wait_ms}")["held"])

    def release(self, gate: str) -> int:
        """Opens a gate for good; answers how many requests it let go."""
        return int(self.control("POST", f"gates/{gate}/release", {})["released"])

    def forget(self, *, key: str | None = None, order: str | None = None) -> int:
        """Makes the provider forget keys: one, those of an order, or all; answers how many."""
        told = {name: value for name, value in (("key", key), ("order", order)) if value is not None}
        return int(self.control("POST", "forget", told)["forgotten"])

    def quiet(self, wait_ms: int = 10_000) -> bool:
        """Waits until no request is active and no late commit pending; False when ``wait_ms`` passed
        first."""
        said = self.control("GET", f"state?wait_ms={wait_ms}")
        return said["active"] == 0 and said["pending"] == 0
