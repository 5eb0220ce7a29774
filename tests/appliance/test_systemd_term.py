"""How soon a plane is gone after TERM, whoever is still connected, and who is waited for."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from agentplane.appliance import connection
from agentplane.surface.access import new_token
from appliance.served import PATIENCE_S, make_app, serving
from surface.doors import Gate, door
from surface.terminals import Plane, environment

SOON_S = 0.4
TRIES = 3
"""The best of them counts: what is measured is the plane, not who else has the machine."""
BYTES = 3_000_000


async def large(scope: Any, receive: Any, send: Any) -> None:
    """An application whose one answer is more than a connection holds."""
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * BYTES})


async def test_a_client_that_stopped_reading_is_not_waited_for(tmp_path: Path) -> None:
    """S147: its window is shut and it takes nothing while the drain looks: cut, an hour early."""
    async with serving(make_app(), tmp_path, linger_ms=20) as plane:
        client = await plane.connect()
        await client.send("/flood")
        await client.head()
        with trio.move_on_after(PATIENCE_S / 3):
            assert await plane.server.close(hard_deadline=trio.current_time() + 3600) == 1
        assert plane.server.connections == 0


async def test_while_something_else_is_waited_for_nobody_is_cut(tmp_path: Path) -> None:
    """S147: while runs go on a client that stopped reading holds up nothing, and may go on reading."""
    async with serving(make_app(), tmp_path, linger_ms=20) as plane, trio.open_nursery() as nursery:
        client = await plane.connect()
        await client.send("/flood")
        await client.head()
        over, closed = trio.Event(), trio.Event()

        async def close() -> None:
            assert await plane.server.close(hard_deadline=trio.current_time() + 3600, waited_for=over) == 1
            closed.set()

        nursery.start_soon(close)
        await trio.sleep(2 * connection.SHUT_S)
        assert plane.server.connections == 1
        over.set()
        with trio.move_on_after(PATIENCE_S / 3):
            await closed.wait()
        assert closed.is_set()


async def test_a_client_that_reads_slowly_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S147: it takes something each time the drain looks, and gets its answer whole."""
    monkeypatch.setattr(connection, "SHUT_S", 0.1)
    monkeypatch.setattr(connection, "UNHEARD_S", 0.1)
    async with serving(large, tmp_path, linger_ms=100) as plane:
        client = await plane.connect()
        await client.send("/")
        found, cut = 0, []

        async def close() -> None:
            cut.append(await plane.close(grace_s=3600))

        await trio.sleep(0.1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(close)
            with trio.move_on_after(PATIENCE_S):
                while data := await client.stream.receive_some(65536):
                    found += len(data)
                    await trio.sleep(0.01)
        assert found > BYTES and cut == [0]


class Listener:
    """Stands for a listener in a drain, and keeps what was asked of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.closing = trio.Event()
        self.waited_for: trio.Event | None = None

    def stop_accepting(self) -> None:
        self.asked.append("stop")

    async def close(self, *, hard_deadline: float, waited_for: trio.Event | None = None) -> int:
        self.asked.append("close")
        self.waited_for = waited_for
        self.closing.set()
        return 0


async def test_an_end_has_an_order(tmp_path: Path) -> None:
    """S147: nothing is admitted or accepted from the first moment; what asks is answered until the last run ended."""
    async with door(tmp_path) as desk, trio.open_nursery() as nursery:
        operator, control = Listener(), Listener()
        desk.drain.listeners, desk.drain.control = [operator], control
        run = (await desk.post({"capability": "desk.waiting", "input": {}})).body["run"]
        desk.drain.begin()
        assert (operator.asked, control.asked) == (["stop"], [])
        assert (await desk.post({"capability": "desk.waiting", "input": {}})).status == 503
        nursery.start_soon(desk.drain.wait)
        with trio.fail_after(PATIENCE_S):
            await operator.closing.wait()
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert operator.waited_for is not None and not operator.waited_for.is_set()
            assert control.asked == [], "a run is in hand"
            Gate.opened.set()
            await desk.plane.runs.wait_for(run)
            await operator.waited_for.wait()
            await control.closing.wait()


# --- the process ----------------------------------------------------------------------------------------------------


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    made = Plane.made(tmp_path / "plane", toml='operator_addr = "127.0.0.1:0"')
    yield made
    if made.child is not None:
        made.child.kill()
        made.child.wait()


def connected(plane: Plane, token: str, requests: int, path: str) -> socket.socket:
    """A client of the operator listener that has sent its requests and reads nothing."""
    port = int(plane.verb("status").body["operator"].rpartition(":")[2])
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    client.sendall(request * requests)
    return client


def seconds(plane: Plane) -> float:
    """From TERM to the end of the process, which is a clean one."""
    assert plane.child is not None
    began = time.monotonic()
    plane.child.send_signal(signal.SIGTERM)
    status = plane.child.wait(60)
    took, plane.child = time.monotonic() - began, None
    assert status == 0, plane.log.read_text()
    return took


class Silent:
    """A protocol with nothing in hand."""

    idle, begun, unsent = True, False, 0

    async def farewell(self) -> None:
        """Says nothing."""


async def test_an_idle_connection_ends_in_the_turn_that_found_it_idle() -> None:
    """S168: no other task runs between the look and the end, so no request arrives in between and is dropped."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        ours, _ = listener.accept()
        ours.setblocking(False)
        client.setblocking(False)
        with ours:
            one = connection.Connection(ours, limits=connection.Limits(), linger_s=0.0, tls=None, speak=lambda *_: None)
            protocol = one._protocol = Silent()
            one.drain(trio.current_time())
            assert await one._is_over(protocol)
            try:
                seen = client.recv(1)
            except BlockingIOError:
                seen = None
            assert seen == b""


@pytest.mark.heavy
@pytest.mark.parametrize("who", ["nobody", "idle", "not reading"])
def test_an_idle_plane_is_gone_at_once(plane: Plane, who: str) -> None:
    """S146: under 400 ms with nobody connected, an idle kept connection, and a client that stopped reading."""
    token = new_token(plane.directory / "tokens.json", "sweep", ["reader"], 1, None)[0]
    plane.start()
    run = plane.run("desk.large", {"size": 900_000}).body["run"]
    took = []
    for _ in range(TRIES):
        if plane.child is None:
            plane.start()
        clients = []
        if who == "idle":
            clients.append(connected(plane, token, 1, "/status"))
            assert b" 200 " in clients[0].recv(4096)
        if who == "not reading":
            clients.append(connected(plane, token, 12, f"/runs/{run}/history"))
            assert clients[0].recv(12) == b"HTTP/1.1 200"
        took.append(seconds(plane))
        for client in clients:
            client.close()
    assert min(took) < SOON_S, took


@pytest.mark.heavy
def test_the_manager_is_told_of_a_drain_of_our_own(plane: Plane) -> None:
    """S140, S144, S145: READY, signs of life, STOPPING once by `agentplane drain`; what was passed is not passed on."""
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    path = str(plane.directory.parent / "notify")
    manager.bind(path)
    manager.settimeout(PATIENCE_S)
    seen = plane.directory.parent / "seen"
    (plane.directory / "skills" / "looking.py").write_text(
        "import os\nfrom pathlib import Path\nfound = [name for name in os.environ if name.split('_')[0] in "
        f"('NOTIFY', 'LISTEN', 'WATCHDOG')]\nPath({str(seen)!r}).write_text(repr(found))\n"
    )
    (plane.directory / "skills" / "looking.py").chmod(0o644)
    said = {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "300000", "LISTEN_FDS": "0", "LISTEN_PID": str(os.getpid())}
    plane.begin(env=environment() | said)
    heard = [manager.recv(4096).decode()]
    while not heard[-1].startswith("READY=1"):
        heard.append(manager.recv(4096).decode())
    assert plane.answers() and seen.read_text() == "[]"
    while heard.count("WATCHDOG=1") < 3:
        heard.append(manager.recv(4096).decode())
    assert plane.verb("drain").status == 0
    assert plane.child is not None and plane.child.wait(PATIENCE_S) == 0
    manager.setblocking(False)
    with pytest.raises(BlockingIOError):
        while True:
            heard.append(manager.recv(4096).decode())
    assert [one.partition("\n")[0] for one in heard if "STOPPING" in one] == ["STOPPING=1"]
    manager.close()


@pytest.mark.heavy
def test_a_manager_that_is_gone_is_no_fault(plane: Plane) -> None:
    """S144: NOTIFY_SOCKET names nobody: served, and ended, all the same."""
    said = {"NOTIFY_SOCKET": str(plane.directory / "nobody"), "WATCHDOG_USEC": "300000"}
    plane.start(env=environment() | said)
    assert plane.stop() == 0 and "defect" not in plane.log.read_text()
