"""Sweeps of signals over an appliance under load, with the audit of both books at the end.

Run by ``test_sweeps.py``, and by hand: ``python tests/crash/sweep.py --signal KILL --times 100 --seed 7``.
The appliance is the real one, on an inherited listening socket, so that a client sees a deploy as it would on
a node.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentplane.core.errors import AgentplaneError
from agentplane.core.history import read_all
from agentplane.core.records import Record
from agentplane.engine import acts
from agentplane.journal import lists
from agentplane.journal.store import read_only
from agentplane.lab.books import series_of
from agentplane.lab.provider import audit
from agentplane.lab.provider_process import Provider
from agentplane.surface.access import new_token
from agentplane.surface.client import HttpClient, Lost, Remote

HERE = Path(__file__).parent
WORKERS = 8
IDLE = 4
READY_S = 30.0


@dataclass
class Found:
    """What a sweep counts. Everything but ``signals``, ``acknowledged`` and ``ended`` has to be empty or
    zero."""

    signals: int = 0
    acknowledged: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    missing: list[str] = field(default_factory=list)
    duplicates: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)
    running: list[str] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    cut: list[str] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)
    answered_idle: int = 0
    refused: int = 0
    unaccounted: list[str] = field(default_factory=list)

    def faults(self, sign: str) -> list[str]:
        """Every sentence that must not be said."""
        said = [f"acknowledged and gone: {run}" for run in self.missing]
        said += [f"paid twice: {order}" for order in self.duplicates]
        said += [f"quarantined and not named: {run}" for run in self.unnamed]
        said += [f"never ended: {run}" for run in self.running]
        said += [f"the books differ: {what}" for what in self.unaccounted]
        if sign == "TERM":
            said += [f"exit status {status}, {count} times" for status, count in self.statuses.items() if status != 0]
            said += [f"cut: {line}" for line in self.cut]
            said += [f"unanswered on an idle connection: {what}" for what in self.unanswered]
            said += [f"quarantined by a drain, {self.ended['quarantined']} times"] if self.ended["quarantined"] else []
        return said


class Load:
    """Clients that submit work under keys until told to stop, and remember what was acknowledged."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.acknowledged: dict[str, str] = {}
        self.stopping = threading.Event()
        self._lock = threading.Lock()
        self._next = 0
        self._chance = random.Random(seed)
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(WORKERS)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self.stopping.set()
        for thread in self._threads:
            thread.join(10)

    def _take(self) -> tuple[str, dict[str, Any]]:
        with self._lock:
            self._next += 1
            number = self._next
            kind = ("manual", "keyed", "asked")[number % 3]
            return f"load-{number}", {
                "order": f"L-{number}",
                "kind": kind,
                "ms": self._chance.randint(50, 500),
            }

    def _work(self) -> None:
        while not self.stopping.is_set():
            key, request = self._take()
            run = self._submit(key, request)
            if run is not None:
                self._wait(run)

    def _submit(self, key: str, request: dict[str, Any]) -> str | None:
        while not self.stopping.is_set():
            try:
                _, body = HttpClient(path=self.path).call(
                    "start", body={"capability": "load.work", "input": request}, key=key
                )
            except (Lost, Remote, AgentplaneError):
                time.sleep(0.02)
                continue
            with self._lock:
                self.acknowledged[key] = body["run"]
            return str(body["run"])
        return None

    def _wait(self, run: str) -> None:
        """At most a moment: what was killed goes on by itself, and the load with it."""
        for _ in range(2):
            try:
                HttpClient(path=self.path).call("show", run=run, query={"wait": 1}, wait_s=1)
                return
            except (Lost, Remote, AgentplaneError):
                time.sleep(0.02)


class Sweep:
    """One sweep of ``times`` signals in ``directory``."""

    def __init__(self, directory: Path, sign: str, times: int, seed: int, mode: str) -> None:
        self.directory = directory
        self.sign = sign
        self.times = times
        self.chance = random.Random(seed)
        self.seed = seed
        self.mode = mode
        self.plane = directory / "plane"
        self.found = Found()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = self.listener.getsockname()[1]
        self.token = ""

    def run(self) -> Found:
        with Provider(self.directory / "provider.db") as provider:
            for path in ("/refunds", "/reships"):
                provider.rule(method="POST", path=path, ignore_keys=True)
            self._prepare(provider.url)
            load = Load(self.plane / "run" / "control.sock", self.seed)
            load.start()
            for number in range(self.times):
                child = self._start()
                time.sleep(self.chance.uniform(0.0, 0.7))
                self._signal(child)
                if number % 10 == 9:
                    print(
                        f"{number + 1}/{self.times} SIG{self.sign}, {len(load.acknowledged)} runs acknowledged",
                        file=sys.stderr,
                    )
            load.stop()
            self._settle(load)
            provider.quiet()
            self._audit(load, provider.db)
        self.listener.close()
        return self.found

    def _prepare(self, url: str) -> None:
        (self.plane / "skills").mkdir(parents=True)
        shutil.copy(HERE / "load_skill.py", self.plane / "skills" / "load_skill.py")
        (self.plane / "plane.toml").write_text(
            f'name = "sweep"\noperator_addr = "fd:{self.listener.fileno()}"\n'
            f'drain_secs = 25\ndrain_mode = "{self.mode}"\n'
            f'max_running = 64\noperator_names = ["127.0.0.1:{self.port}"]\n\n[settings]\nprovider_url = "{url}"\n'
        )
        for path in (self.plane, self.plane / "skills"):
            path.chmod(0o755)
        for path in (self.plane / "plane.toml", self.plane / "skills" / "load_skill.py"):
            path.chmod(0o644)
        self.token, _ = new_token(self.plane / "tokens.json", "sweep", ["reader"], time.time_ns() // 1_000_000, None)

    def _start(self) -> subprocess.Popen[bytes]:
        log = open(self.directory / "serve.log", "ab")  # noqa: SIM115 - the child keeps it
        os.set_inheritable(self.listener.fileno(), True)
        child = subprocess.Popen(
            [sys.executable, "-m", "agentplane.cli.main", "serve", str(self.plane)], pass_fds=(self.listener.fileno(),),
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
        log.close()
        until = time.monotonic() + READY_S
        while time.monotonic() < until and child.poll() is None:
            try:
                HttpClient(path=self.plane / "run" / "control.sock").call("status")
                return child
            except AgentplaneError:
                time.sleep(0.02)
        raise AssertionError(f"the appliance did not start: {(self.directory / 'serve.log').read_text()[-2000:]}")

    def _signal(self, child: subprocess.Popen[bytes]) -> None:
        idle = [self._connection() for _ in range(IDLE)] if self.sign == "TERM" else []
        child.send_signal(signal.SIGKILL if self.sign == "KILL" else signal.SIGTERM)
        self.found.signals += 1
        for number, connection in enumerate(idle):
            self._ask_idle(number, connection)
        self.found.statuses[child.wait(60)] += 1

    def _connection(self) -> http.client.HTTPConnection:
        """A keep-alive connection that was used once and is idle now."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        self._status(connection)
        return connection

    def _status(self, connection: http.client.HTTPConnection) -> int:
        connection.request("GET", "/status", headers={"Authorization": f"Bearer {self.token}"})
        answer = connection.getresponse()
        answer.read()
        return answer.status

    def _ask_idle(self, number: int, connection: http.client.HTTPConnection) -> None:
        try:
            status = self._status(connection)
            if status not in (200, 503):
                self.found.unanswered.append(f"signal {self.found.signals}, connection {number}: status {status}")
            self.found.answered_idle += 1
        except (OSError, http.client.HTTPException) as error:
            self.found.unanswered.append(f"signal {self.found.signals}, connection {number}: {type(error).__name__}")
        finally:
            connection.close()

    def _settle(self, load: Load) -> None:
        """One last appliance, until nothing runs any more; then it drains."""
        child = self._start()
        until = time.monotonic() + 90
        while time.monotonic() < until:
            _, status = HttpClient(path=self.plane / "run" / "control.sock").call("status")
            if not status["running"] and not status["runs"].get("running"):
                break
            time.sleep(0.1)
        child.send_signal(signal.SIGTERM)
        child.wait(60)
        self.found.acknowledged = len(load.acknowledged)

    def _audit(self, load: Load, db: Path) -> None:
        readers = read_only(self.plane / "plane.db")
        records: list[Record] = []
        named: dict[str, list[str]] = {}
        try:
            for row in lists.every_run(readers.read):
                found = [item.record for item in lists.read_history(readers.read, row.run)]
                records += found
                self.found.ended[row.status] += 1
                named[row.run] = [one.kind for one in acts.undecided(read_all(row.run, found))]
                if row.status == "running":
                    self.found.running.append(row.run)
                if row.status == "quarantined" and not named[row.run] and row.code != "crash_suspect":
                    self.found.unnamed.append(f"{row.run} ({row.reason})")
        finally:
            readers.close()
        self.found.missing = [run for run in load.acknowledged.values() if run not in named]
        with audit.open_book(db) as book:
            effects = audit.effects(book)
        counted = Counter((row.path, row.order) for row in effects)
        self.found.duplicates = [f"{path} {order}: {count}" for (path, order), count in counted.items() if count > 1]
        self._compare(effects, records)
        log = (self.directory / "serve.log").read_text()
        self.found.cut = [json.loads(line)["text"] for line in log.splitlines() if '"event":"cut"' in line]

    def _compare(self, effects: list[audit.Effect], records: list[Any]) -> None:
        """Every effect of the provider's book is one that the journal has as landed, or names as undecided."""
        known = {(series.path, series.order): series.state for series in series_of(records)}
        for row in effects:
            state = known.get((row.path, row.order))
            if state not in ("landed", "open"):
                self.found.unaccounted.append(f"{row.path} {row.order}: the journal says {state}")
        have = {(row.path, row.order) for row in effects}
        self.found.unaccounted += [
            f"{path} {order}: landed in the journal only"
            for (path, order), state in known.items()
            if state == "landed" and (path, order) not in have
        ]


def sweep(sign: str, times: int, seed: int, mode: str = "finish") -> Found:
    """Run one sweep in a directory of its own."""
    directory = Path(tempfile.mkdtemp(prefix="agentplane-sweep-"))
    try:
        return Sweep(directory, sign, times, seed, mode).run()
    finally:
        if os.environ.get("AGENTPLANE_KEEP"):
            print(f"kept in {directory}", file=sys.stderr)
        else:
            shutil.rmtree(directory, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--signal", choices=("KILL", "TERM"), default="KILL")
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--mode", choices=("finish", "park"), default="finish")
    args = parser.parse_args()
    found = sweep(args.signal, args.times, args.seed, args.mode)
    faults = found.faults(args.signal)
    print(
        json.dumps(
            {
                "seed": args.seed,
                "signal": args.signal,
                "signals": found.signals,
                "acknowledged": found.acknowledged,
                "ended": dict(found.ended),
                "exit_statuses": dict(found.statuses),
                "idle_answered": found.answered_idle,
                "faults": faults[:50],
            },
            indent=2,
        )
    )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
