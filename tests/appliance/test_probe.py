"""The probe listener: one word for two questions, nothing for anything else, and an answer as long as runs last."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from agentplane.appliance import probe as probing
from agentplane.appliance import systemd
from agentplane.appliance.probe import CONNECTIONS_MAX, HEAD_BYTES_MAX, NOT_FOUND, Probe, probe
from agentplane.appliance.settings import PlaneSettings
from agentplane.core import errors
from agentplane.surface.client import HttpClient
from surface.doors import door
from surface.terminals import Plane

PATIENCE_S = 30


class Asked:
    """Two answers that a test sets."""

    live = True
    ready = True


@asynccontextmanager
async def listening(*, inherited: bool = False) -> AsyncIterator[tuple[Asked, int]]:
    asked = Asked()
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    one = Probe(sock, {"/live": lambda: asked.live, "/ready": lambda: asked.ready}, inherited=inherited)
    port: int = sock.getsockname()[1]
    async with trio.open_nursery() as nursery:
        await nursery.start(one.serve)
        yield asked, port
        nursery.cancel_scope.cancel()


async def said(port: int, request: bytes) -> bytes:
    """All that comes for ``request``, until the other end closes."""
    found = b""
    with trio.fail_after(PATIENCE_S):
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(request)
            while more := await stream.receive_some(4096):
                found += more
    return found


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\nUser-Agent: a-probe\r\n\r\n".encode()


async def test_one_word_for_each_question() -> None:
    """S135: 200 ok, 503 no; without a credential, whatever the Host."""
    async with listening() as (asked, port):
        for path in ("/live", "/ready"):
            answer = await said(port, get(path))
            assert answer.startswith(b"HTTP/1.1 200 ") and answer.endswith(b"\r\n\r\nok")
        asked.ready = False
        answer = await said(port, get("/ready"))
        assert answer.startswith(b"HTTP/1.1 503 ") and answer.endswith(b"\r\n\r\nno")
        assert (await said(port, get("/live"))).endswith(b"ok")


@pytest.mark.parametrize(
    "request_",
    [
        get("/"), get("/status"), get("/live/"), get("/live?x=1"), get("/LIVE"), get("//live"), get("/%6cive"),
        get("/live").replace(b"GET", b"POST"), get("/live").replace(b"GET", b"HEAD"),
        get("/live").replace(b"/1.1", b"/2"),
        b"\x16\x03\x01\x02\x00\r\n\r\n", b"\r\n\r\n", b"GET /live\r\n\r\n", b"GET /live HTTP/1.1\nHost: x\n\n\r\n\r\n",
        b"x" * (HEAD_BYTES_MAX + 10),
    ],
)  # fmt: skip
async def test_nothing_for_anything_else(request_: bytes) -> None:
    """S135: an empty 404, that says nothing of the plane."""
    async with listening() as (_, port):
        assert await said(port, request_) == NOT_FOUND


async def test_clients_that_say_nothing_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """S135: beyond the bound the oldest goes, however long it might have stayed, and who asks is answered at once."""
    monkeypatch.setattr(probing, "ANSWER_S", 3600)
    async with listening() as (_, port):
        idle = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(CONNECTIONS_MAX + 8)]
        assert (await said(port, get("/live"))).endswith(b"ok")
        gone = 0
        with trio.move_on_after(3):
            for stream in idle[:8]:
                with contextlib.suppress(trio.BrokenResourceError):
                    assert await stream.receive_some(1) == b""
                gone += 1
        assert gone == 8
        for stream in idle:
            await trio.aclose_forcefully(stream)


async def test_a_slow_client_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """S135: half a head is waited for so long and no longer."""
    monkeypatch.setattr(probing, "ANSWER_S", 0.05)
    async with listening() as (_, port):
        try:
            assert await said(port, b"GET /live HTTP/1.1\r\nHos") == b""
        except trio.BrokenResourceError:
            pass


@pytest.mark.parametrize("inherited", [False, True])
async def test_an_inherited_socket_stays_open_for_the_next_process(inherited: bool) -> None:
    """S135: one of our own is closed; the parent's is neither shut down nor closed."""
    async with listening(inherited=inherited) as (_, port):
        assert (await said(port, get("/live"))).endswith(b"ok")
    connected = False
    with trio.move_on_after(5):
        try:
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            connected = True
            await stream.aclose()
        except OSError:
            pass
    assert connected is inherited


def test_it_is_off_and_takes_no_socket_of_another_name() -> None:
    """S135: only a socket that was passed as `probe` is inherited."""
    passed = [systemd.Given(3, "operator")]
    assert probe(PlaneSettings(), passed, {}) is None
    with pytest.raises(errors.Settings, match="'probe'"):
        probe(PlaneSettings(probe_addr="systemd:probe"), passed, {})


async def test_ready_is_whether_admission_is_open(tmp_path: Path) -> None:
    """S135: a pause and a drain close it; the plane lives through both. `status` says the same."""
    async with door(tmp_path) as at:
        assert at.host.live() and at.host.ready()
        await at.ask("POST", "/pause", {"reason": "an incident"})
        assert at.host.live() and not at.host.ready()
        body = (await at.ask("GET", "/status")).body
        assert (body["live"], body["ready"]) == (True, False)
        await at.ask("POST", "/release", {"paused": True})
        assert at.host.ready()
        at.drain.begin()
        assert at.host.live() and not at.host.ready()


def word(port: int, path: str) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as sock:
        sock.sendall(get(path))
        return sock.makefile("rb").read()


def served(plane: Plane) -> Path:
    return plane.directory / "run" / "control.sock"


def now(plane: Plane) -> dict[str, Any]:
    """`status` over the socket itself: a broken plane.toml stands in nobody's way there."""
    return HttpClient(path=served(plane)).call("status")[1]


@pytest.mark.heavy
def test_a_plane_that_drains_lives_and_is_not_ready(tmp_path: Path) -> None:
    """S135: until its last run has ended; then nobody answers there."""
    plane = Plane.made(tmp_path / "plane")
    free = socket.create_server(("127.0.0.1", 0))
    port = free.getsockname()[1]
    free.close()
    plane.start("--probe-addr", f"127.0.0.1:{port}")
    try:
        assert word(port, "/live").endswith(b"ok") and word(port, "/ready").endswith(b"ok")
        assert plane.verb("status").body["listeners"]["probe"] == f"http://127.0.0.1:{port}"
        plane.run("desk.waiting", {"seconds": 3}, "--detach")
        plane.until(lambda: plane.verb("status").body["running"] == 1)
        plane.verb("drain")
        assert word(port, "/live").endswith(b"ok") and word(port, "/ready").endswith(b"no")
        assert plane.child is not None and plane.child.wait(PATIENCE_S) == 0
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1)
    finally:
        if plane.child is not None and plane.child.poll() is None:
            plane.child.kill()
            plane.child.wait()


@pytest.mark.heavy
def test_a_hangup_and_reload_read_the_level_of_the_log_again(tmp_path: Path) -> None:
    """S136: with the tokens; a file that is broken keeps what was read last and is said, a flag stays stronger, and
    what only a restart would change is named."""
    plane = Plane.made(tmp_path / "plane", toml='log_level = "info"')
    toml = plane.directory / "plane.toml"
    good = toml.read_text()
    plane.start()
    try:
        toml.write_text(good.replace('"info"', '"debug"').replace("drain_secs = 25", "drain_secs = 20"))
        answer = plane.verb("reload")
        assert answer.status == 0 and answer.body["log_level"] == "debug"
        assert answer.body["needs_restart"] == ["drain_secs"]
        plane.run("desk.settle", {"order": "1"})
        lines = [json.loads(line) for line in plane.log.read_text().splitlines()]
        assert "run.admitted" in {line["event"] for line in lines}
        toml.write_text(good.replace('"info"', "7"))
        assert plane.child is not None
        plane.child.send_signal(signal.SIGHUP)
        plane.until(lambda: now(plane)["settings_fault"] is not None)
        body = now(plane)
        assert body["log_level"] == "debug" and "What was read last stays" in plane.log.read_text()
        refused = plane.verb("reload", "--socket", str(served(plane)), plane=False)
        # A typo in a file that is read at the next start ends no plane that lives.
        alive = plane.verb("status", "--live")
        assert alive.status == 0 and "is asked all the same" in alive.err
        assert refused.status == 2 and len(refused.err.splitlines()) == 1 and "plane.toml" in refused.err
        toml.write_text(good)
        plane.child.send_signal(signal.SIGHUP)
        plane.until(lambda: now(plane)["settings_fault"] is None)
        assert now(plane)["log_level"] == "info" and plane.stop() == 0
        plane.start("--log-level", "error")
        said = plane.log.stat().st_size
        toml.write_text(good.replace('"info"', '"debug"'))
        assert plane.verb("reload").body["log_level"] == "error"
        assert plane.stop() == 0 and plane.log.stat().st_size == said
    finally:
        if plane.child is not None and plane.child.poll() is None:
            plane.child.kill()
            plane.child.wait()
