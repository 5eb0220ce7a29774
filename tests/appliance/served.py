"""A served application and a client that says every byte itself, for the tests of listeners.

Owns both ends of a real socket. The client parses answers with h11, which the tests' subject also uses for
parsing requests and not for this.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import h11
import trio
import trio.testing
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from quart import Response, request
from quart_trio import QuartTrio

from agentplane.appliance import listeners

PATIENCE_S = 30
"""Longer than anything here takes: whoever waits this long waits for ever."""


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Client:
    """One connection. Requests are sent as they are given; answers are read whole."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._h11 = h11.Connection(h11.CLIENT)

    async def send(self, path: str = "/", *headers: str, method: str = "GET") -> None:
        """One request without a body."""
        lines = [f"{method} {path} HTTP/1.1", "Host: plane", *headers, "", ""]
        self._h11.send(h11.Request(method=method, target=path, headers=[("Host", "plane")]))
        self._h11.send(h11.EndOfMessage())
        await self.stream.send_all("\r\n".join(lines).encode())

    async def answer(self) -> Answer:
        """The next whole answer. Raises h11.RemoteProtocolError when the connection ends before."""
        head, body = await self.head(), b""
        while not isinstance(event := await self._event(), h11.EndOfMessage):
            assert isinstance(event, h11.Data)
            body += event.data
        if self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE:
            self._h11.start_next_cycle()
        return head._replace(body=body)

    async def head(self) -> Answer:
        event = await self._event()
        assert isinstance(event, h11.Response), event
        headers = {name.decode().lower(): value.decode() for name, value in event.headers}
        return Answer(event.status_code, headers, b"")

    async def _event(self) -> Any:
        while (event := self._h11.next_event()) is h11.NEED_DATA:
            with trio.fail_after(PATIENCE_S):
                self._h11.receive_data(bytes(await self.stream.receive_some(65536)))
        return event

    async def get(self, path: str = "/", *headers: str) -> Answer:
        await self.send(path, *headers)
        return await self.answer()

    async def rest(self) -> bytes:
        """All that comes until the server ends the connection."""
        found = b""
        with trio.fail_after(PATIENCE_S):
            while data := await self.stream.receive_some(65536):
                found += data
        return found


class Plane(NamedTuple):
    """A listener that is served, and where."""

    server: listeners.Server
    path: Path
    faults: list[BaseException]
    nursery: trio.Nursery
    streams: list[trio.abc.Stream]

    async def connect(self) -> Client:
        """A connection that is closed at the end of the test."""
        self.streams.append(await trio.open_unix_socket(str(self.path)))
        return Client(self.streams[-1])

    async def all_gone(self) -> None:
        """Until no connection is left, without any being closed here."""
        with trio.fail_after(PATIENCE_S):
            while self.server.connections:
                await trio.testing.wait_all_tasks_blocked(0.001)

    async def close(self, grace_s: float = 3600) -> int:
        """Close; an hour of grace, unless told, so that nothing passes by waiting for its end."""
        with trio.fail_after(PATIENCE_S):
            return await self.server.close(hard_deadline=trio.current_time() + grace_s)


@asynccontextmanager
async def serving(app: Any, directory: Path, **options: Any) -> AsyncIterator[Plane]:
    """Serve ``app`` on a Unix socket in ``directory``; closed and gone at the end."""
    path = directory / "run" / "plane.sock"
    faults: list[BaseException] = []
    sock = listeners.bind(listeners.Unix(path, mode=options.pop("mode", 0o660)))
    server = listeners.Server(app, sock, name="test", unix=True, fault=faults.append, **options)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve)
        plane = Plane(server, path, faults, nursery, [])
        try:
            yield plane
        finally:
            for stream in plane.streams:
                await trio.aclose_forcefully(stream)
        await plane.close(0)


class Gate:
    """What an application waits for, and where it tells that it waits."""

    def __init__(self) -> None:
        self.entered = trio.Event()
        self.open = trio.Event()

    async def passed(self) -> None:
        self.entered.set()
        await self.open.wait()


def make_app(gate: Gate | None = None) -> QuartTrio:
    """An application as the surface's are: Quart on trio."""
    app = QuartTrio(__name__)

    @app.get("/")
    async def root() -> dict[str, Any]:
        return {"peer": request.scope["state"].get("peer"), "client": request.scope["client"]}

    @app.get("/gate")
    async def through() -> str:
        assert gate is not None
        await gate.passed()
        return "through"

    @app.get("/stream")
    async def stream() -> Response:
        async def events() -> AsyncIterator[bytes]:
            yield b"event: hello\n\n"
            if gate is not None:
                await gate.passed()
            yield b"event: draining\n\n"

        answer = Response(events(), content_type="text/event-stream")
        answer.timeout = None
        return answer

    @app.get("/flood")
    async def flood() -> Response:
        async def bytes_for_ever() -> AsyncIterator[bytes]:
            while True:
                yield b"x" * 1_000_000

        answer = Response(bytes_for_ever())
        answer.timeout = None
        return answer

    @app.get("/closing")
    async def closing() -> tuple[str, int, dict[str, str]]:
        return "DRAINING", 503, {"Connection": "close", "Retry-After": "1"}

    @app.get("/broken")
    async def broken() -> str:
        raise trio.TrioInternalError("not handled by Quart's own handler of Exception")

    return app


def make_certificate(directory: Path) -> tuple[str, str]:
    """A self-signed certificate for ``localhost`` and its key, as paths."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    cert_path, key_path = directory / "cert.pem", directory / "key.pem"
    cert_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return str(cert_path), str(key_path)


def trusting(cert: str, *protocols: str) -> ssl.SSLContext:
    """A client's context that trusts this certificate alone."""
    context = ssl.create_default_context(cafile=cert)
    if protocols:
        context.set_alpn_protocols(list(protocols))
    return context
