"""TLS: both protocols are spoken over it, and both end in the order that clear text does."""

from __future__ import annotations

import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import h2.config
import h2.connection
import h2.events
import httpx
import pytest
import trio
import trio.testing

from agentplane.appliance import exchange, listeners
from agentplane.appliance.connection import Limits
from appliance.served import PATIENCE_S, Client, Gate, Plane, make_app, make_certificate, trusting


@asynccontextmanager
async def serving_tls(app: Any, directory: Path, **options: Any) -> AsyncIterator[tuple[Plane, str]]:
    """Serve ``app`` on a port of loopback with a certificate of its own; the plane and the certificate."""
    cert, key = make_certificate(directory)
    endpoint = listeners.parse_address("localhost:0", tls_cert=cert, tls_key=key)
    sock = listeners.bind(endpoint)
    faults: list[BaseException] = []
    server = listeners.Server(app, sock, name="operator", tls=endpoint.tls, fault=faults.append, **options)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve)
        plane = Plane(server, Path(str(sock.getsockname()[1])), faults, nursery, [])
        try:
            yield plane, cert
        finally:
            for stream in plane.streams:
                await trio.aclose_forcefully(stream)
        await plane.close(0)


async def connect(plane: Plane, cert: str, *protocols: str) -> trio.SSLStream[trio.SocketStream]:
    tcp = await trio.open_tcp_stream("localhost", int(str(plane.path)))
    # Not as browsers do it: an end without TLS's own word for it is an error here.
    stream = trio.SSLStream(tcp, trusting(cert, *protocols), server_hostname="localhost")
    plane.streams.append(stream)
    with trio.fail_after(PATIENCE_S):
        await stream.do_handshake()
    return stream


class Http2:
    """An HTTP/2 client that says every frame itself."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.seen: list[h2.events.Event] = []

    async def send(self, stream_id: int, path: str, *, method: str = "GET", body: bytes = b"") -> None:
        head = [(":method", method), (":path", path), (":authority", "plane"), (":scheme", "https")]
        self.h2.send_headers(stream_id, head, end_stream=not body)
        if body:
            self.h2.send_data(stream_id, body, end_stream=True)
        await self.stream.send_all(self.h2.data_to_send())

    async def until(self, kind: type, stream_id: int | None = None) -> Any:
        """The next event of a kind; None when the connection ends before."""
        while True:
            for event in self.seen:
                if isinstance(event, kind) and stream_id in (None, getattr(event, "stream_id", None)):
                    self.seen.remove(event)
                    return event
            with trio.fail_after(PATIENCE_S):
                data = await self.stream.receive_some(65536)
            if not data:
                return None
            self.seen += self.h2.receive_data(bytes(data))
            if out := self.h2.data_to_send():
                await self.stream.send_all(out)

    async def status(self, stream_id: int) -> int:
        answer = await self.until(h2.events.ResponseReceived, stream_id)
        assert await self.until(h2.events.StreamEnded, stream_id) is not None
        return int(dict(answer.headers)[":status"])


@pytest.mark.parametrize("http2", [False, True])
async def test_both_protocols_are_answered(http2: bool, tmp_path: Path) -> None:
    """By a client that knows nothing of us, which trusts this certificate alone."""
    async with serving_tls(make_app(), tmp_path) as (plane, cert):
        async with httpx.AsyncClient(http2=http2, verify=trusting(cert), trust_env=False) as client:
            for _ in range(3):
                answer = await client.get(f"https://localhost:{plane.path}/")
                assert (answer.status_code, answer.http_version) == (200, "HTTP/2" if http2 else "HTTP/1.1")
                assert answer.json()["client"][0] in ("127.0.0.1", "::1")
            answer = await client.get(f"https://localhost:{plane.path}/closing")
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert not plane.faults


async def test_a_request_on_an_idle_connection_at_shutdown_is_answered_over_tls(tmp_path: Path) -> None:
    """As in clear text; and an idle one is told of the end and not waited for."""
    async with serving_tls(make_app(), tmp_path) as (plane, cert):
        busy, idle = Client(await connect(plane, cert)), Client(await connect(plane, cert))
        await busy.get()
        await idle.get()
        plane.nursery.start_soon(plane.close)
        await trio.testing.wait_all_tasks_blocked()
        assert (await busy.get()).headers["connection"] == "close"
        assert (await idle.rest(), await busy.rest()) == (b"", b"")


async def test_http2_is_told_of_the_end_and_its_streams_are_served(tmp_path: Path) -> None:
    """GOAWAY at once; streams in flight and on the wire are answered; then comes the second GOAWAY."""
    gate = Gate()
    async with serving_tls(make_app(gate), tmp_path) as (plane, cert):
        client = Http2(await connect(plane, cert, "h2"))
        await client.send(1, "/gate")
        await gate.entered.wait()
        plane.nursery.start_soon(plane.close)
        first = await client.until(h2.events.ConnectionTerminated)
        assert first.last_stream_id == 2**31 - 1
        # The library takes the first GOAWAY for the last; the protocol lets a stream on the wire be.
        client.h2.state_machine.state = h2.connection.ConnectionState.CLIENT_OPEN
        await client.send(3, "/")
        assert await client.status(3) == 200
        gate.open.set()
        assert await client.status(1) == 200
        client.h2.state_machine.state = h2.connection.ConnectionState.CLIENT_OPEN
        second = await client.until(h2.events.ConnectionTerminated)
        assert second.last_stream_id == 3


async def test_an_early_answer_does_not_cost_the_other_streams(tmp_path: Path) -> None:
    """The rest of a body that was answered already is taken and dropped."""

    async def app(scope: exchange.Scope, receive: exchange.Receive, send: exchange.Send) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 413, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    async with serving_tls(app, tmp_path) as (plane, cert):
        client = Http2(await connect(plane, cert, "h2"))
        head = [(":method", "POST"), (":path", "/"), (":authority", "plane"), (":scheme", "https")]
        client.h2.send_headers(1, head)
        await client.stream.send_all(client.h2.data_to_send())
        assert await client.until(h2.events.ResponseReceived, 1) is not None
        client.h2.send_data(1, b"late" * 1000, end_stream=True)
        await client.stream.send_all(client.h2.data_to_send())
        await client.send(3, "/")
        assert await client.status(3) == 413
    assert not plane.faults


async def test_an_http2_client_that_opens_no_window_cannot_hold_up_the_end(tmp_path: Path) -> None:
    """Its stream waits in a buffer, which does not grow; the hard deadline cuts it."""
    async with serving_tls(make_app(), tmp_path) as (plane, cert):
        client = Http2(await connect(plane, cert, "h2"))
        await client.send(1, "/flood")
        assert await client.until(h2.events.ResponseReceived, 1) is not None
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000
        assert await plane.close(grace_s=0.2) == 1
        assert plane.server.connections == 0


async def test_who_does_not_shake_hands_is_dropped(tmp_path: Path) -> None:
    """Silence, and clear text: neither holds a place, and the next client is served."""
    async with serving_tls(make_app(), tmp_path, limits=Limits(handshake_s=0.05)) as (plane, _):
        for words in (b"", b"GET / HTTP/1.1\r\nHost: plane\r\n\r\n"):
            tcp = await trio.open_tcp_stream("localhost", int(str(plane.path)))
            plane.streams.append(tcp)
            await tcp.send_all(words)
            with trio.fail_after(PATIENCE_S):
                while await tcp.receive_some(4096):
                    pass
        await plane.all_gone()
        assert not plane.faults
