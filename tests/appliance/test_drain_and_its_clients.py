"""Who is answered while a plane drains and restarts: on old connections and new ones, at a terminal, with an
acknowledgement."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentplane.core.errors import AgentplaneError
from agentplane.surface.access import new_token
from agentplane.surface.client import HttpClient, Lost, Remote
from appliance.drained import SKILLS, begun, book, draining, ended, leaves, log, open_gate
from surface.terminals import Plane, Said


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    made = Plane.made(tmp_path / "plane", skills=SKILLS)
    yield made
    if made.child is not None:
        made.child.kill()
        made.child.wait()


# --- who is answered ------------------------------------------------------------------------------------------------


class Restarts:
    """A supervisor that holds the listening socket, and restarts the plane when told to."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.listener.set_inheritable(True)
        self.port = self.listener.getsockname()[1]
        toml = plane.directory / "plane.toml"
        said = (
            f'operator_addr = "fd:{self.listener.fileno()}"\noperator_names = ["127.0.0.1:{self.port}"]\n\n[settings]'
        )
        toml.write_text(toml.read_text().replace("[settings]", said))
        self.token = new_token(plane.directory / "tokens.json", "sweep", ["reader", "author"], 1, None)[0]

    def start(self, *flags: str) -> None:
        self.plane.start("--drain-mode", "park", *flags, pass_fds=(self.listener.fileno(),))


class Caller(threading.Thread):
    """Connects again and again, and keeps what went wrong."""

    def __init__(self, port: int, token: str) -> None:
        super().__init__(daemon=True)
        self.port, self.token = port, token
        self.wrong: list[str] = []
        self.answers = 0
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            try:
                connection.request("GET", "/status", headers={"Authorization": f"Bearer {self.token}"})
                answer = connection.getresponse()
                answer.read()
                if answer.status != 200:
                    self.wrong.append(f"status {answer.status}")
                self.answers += 1
            except (OSError, http.client.HTTPException) as error:
                self.wrong.append(repr(error))
            finally:
                connection.close()


def test_a_restart_over_an_inherited_socket_refuses_nobody(plane: Plane) -> None:
    """Ten restarts under clients that connect all the time: none refused, none reset, every one answered."""
    supervisor = Restarts(plane)
    supervisor.start()
    callers = [Caller(supervisor.port, supervisor.token) for _ in range(4)]
    for caller in callers:
        caller.start()
    for _ in range(10):
        assert plane.stop() == 0
        supervisor.start()
    for caller in callers:
        caller.stopping.set()
        caller.join(60)
    assert [caller.wrong for caller in callers] == [[]] * 4 and sum(caller.answers for caller in callers) > 40
    assert plane.stop() == 0
    supervisor.listener.close()


def test_a_run_from_the_terminal_survives_a_restart(plane: Plane) -> None:
    """It repeats with its key, is never carried out by the terminal itself, and ends 0 with exactly one run."""
    plane.start("--drain-mode", "park")
    said: list[Said] = []
    request = json.dumps({"order": "A", "count": 40, "ms": 50})
    terminals = [
        threading.Thread(
            target=lambda n=n: said.append(
                plane.verb("run", "desk.chain", "--input", request.replace('"A"', f'"A{n}"'), timeout=120)
            )
        )
        for n in range(3)
    ]
    for terminal in terminals:
        terminal.start()
    plane.until(lambda: len(book(plane)) > 6)
    for _ in range(3):
        assert plane.stop() == 0
        time.sleep(0.3)
        plane.start("--drain-mode", "park")
    for terminal in terminals:
        terminal.join(120)
    assert [one.status for one in said] == [0, 0, 0], said
    assert all(one.body["output"] == 40 for one in said) and len(plane.verb("runs").body["runs"]) == 3
    assert len(book(plane)) == len(set(book(plane))) == 120
    assert plane.stop() == 0


def test_runs_begun_during_restarts_are_admitted_once_each(plane: Plane) -> None:
    """Terminals that start while nothing serves, or while it drains, wait for the plane that they were told of."""
    plane.start("--drain-mode", "park")
    said: list[Said] = []
    stopping = threading.Event()

    def work(name: int) -> None:
        for number in range(100):
            if stopping.is_set():
                return
            said.append(
                plane.verb(
                    "run",
                    "desk.chain",
                    "--input",
                    json.dumps({"order": f"{name}.{number}", "count": 2, "ms": 1}),
                    timeout=120,
                )
            )

    workers = [threading.Thread(target=work, args=(name,)) for name in range(2)]
    for worker in workers:
        worker.start()
    for _ in range(3):
        time.sleep(0.4)
        plane.verb("drain")
        assert plane.child is not None and plane.child.wait(30) == 0
        begin_again(plane)
    stopping.set()
    for worker in workers:
        worker.join(120)
    # A terminal that began in the gap found the plane down, and served itself: that is what a write does then.
    assert {one.status for one in said} == {0}, [one for one in said if one.status]
    assert len(book(plane)) == len(set(book(plane))) == 2 * len(said) and len(said) > 4
    assert plane.stop() == 0


def begin_again(plane: Plane) -> None:
    """As a supervisor does: while a command holds the store, the start is repeated."""
    until = time.monotonic() + 30
    while True:
        plane.begin("--drain-mode", "park")
        assert plane.child is not None
        while plane.child.poll() is None:
            if plane.verb("status").status == 0:
                return
        assert time.monotonic() < until, log(plane)


def test_idle_and_fresh_connections_are_answered_while_it_drains(plane: Plane) -> None:
    """A keep-alive connection that was idle gets its answer, and is told that it was the last."""
    supervisor = Restarts(plane)
    supervisor.start("--drain-linger-ms", "5000")
    begun(plane, "desk.pair", "gated A-1")
    idle = [http.client.HTTPConnection("127.0.0.1", supervisor.port, timeout=30) for _ in range(5)]
    headers = {"Authorization": f"Bearer {supervisor.token}", "Content-Type": "application/json"}

    def ask(
        connection: http.client.HTTPConnection, method: str, path: str, body: str | None = None
    ) -> tuple[int, str | None, str | None]:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status, answer.headers.get("Connection"), answer.headers.get("Retry-After")

    for connection in idle:
        assert ask(connection, "GET", "/status")[0] == 200
    assert plane.child is not None
    plane.child.send_signal(signal.SIGTERM)
    draining(plane)
    assert ask(idle[0], "POST", "/runs", '{"capability": "desk.chain", "input": {}}') == (503, "close", "1")
    for connection in idle[1:]:
        assert ask(connection, "GET", "/status")[:2] == (200, "close")
    open_gate(plane)
    assert leaves(plane) == 0
    for connection in idle:
        connection.close()
    supervisor.listener.close()


def test_every_admission_that_was_answered_exists(plane: Plane) -> None:
    """Submitted without pause into a drain: what was acknowledged is in the journal, and no run is there twice for a
    key.

    Spec: Drain.AnsweredIsAdmitted.
    """
    plane.start("--drain-mode", "park")
    path = plane.directory / "run" / "control.sock"
    acknowledged: dict[str, str] = {}

    def submit(name: int) -> None:
        for number in range(10_000):
            key = f"{name}-{number}"
            try:
                _, body = HttpClient(path=path).call(
                    "start", body={"capability": "desk.chain", "input": {"order": key, "count": 3, "ms": 1}}, key=key
                )
            except (Lost, Remote, AgentplaneError):
                return
            acknowledged[key] = body["run"]

    clients = [threading.Thread(target=submit, args=(name,)) for name in range(4)]
    for client in clients:
        client.start()
    plane.until(lambda: len(acknowledged) > 20)
    assert plane.stop() == 0
    for client in clients:
        client.join(30)
    plane.start()
    for run in acknowledged.values():
        assert ended(plane, run)["status"] == "succeeded"
    assert plane.stop() == 0
    done = book(plane)
    assert len(done) == len(set(done)) >= 3 * len(acknowledged)
    assert "cut:" not in log(plane)
