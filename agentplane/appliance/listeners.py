"""Listeners: one accept loop over one application. The only place that knows Hypercorn.

Owns which connections exist, and the order in which a listener ends. Refuses more connections than its limit,
WebSockets, and HTTP/2 in clear text. Invariant: after ``stop_accepting`` nothing is taken from an inherited
socket, which is never shut down and never listened on again; ``close`` returns soon after its deadline
whatever clients do or leave undone.

From Hypercorn come the two protocols, which turn bytes into ASGI messages and back, and the lifespan. Its own
server is not used: it listens again on an inherited descriptor, removes a live Unix socket, sets the umask of
the whole process, closes idle connections over a request on the wire, keeps them past their timeout under
quart-trio, and waits for ever for a client that stopped reading. Its "terminated" flag is never set here,
since what the protocols do then (reset new streams) is what a drain must not.
"""

from __future__ import annotations

import math
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import h2.events
import h2.exceptions
import h11
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.events import Response
from hypercorn.protocol.h2 import H2Protocol
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import parse_socket_addr

from agentplane.appliance import exchange
from agentplane.appliance.connection import GONE, PARTING_S, Connection, Limits, part
from agentplane.appliance.exchange import Answer, App, Fault, Inbox, Message, Scope
from agentplane.appliance.sockets import (
    Endpoint,
    Inherited,
    Tcp,
    Unix,
    bind,
    parse_address,
    peer_of,
    put_away,
    tls_context,
)
from agentplane.core import bounds

ACCEPT_PAUSE_S: Final = 0.1
"""After an accept that failed for want of descriptors or memory."""
REFUSING_MAX: Final = 64
"""Connections over the limit that are being told so; beyond these they are just closed."""
LOOK_EVERY_S: Final = 0.05
"""How often a drain looks whether clients take what waits for them."""
CUT_S: Final = 1.0
"""How long requests that were cut may take to end before ``close`` goes on without them."""
REFUSAL: Final = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
GOAWAY_SOON: Final = b"\x00\x00\x08\x07\x00\x00\x00\x00\x00\x7f\xff\xff\xff\x00\x00\x00\x00"
"""RFC 9113, 6.8, the first of two GOAWAY frames: begin no more streams; every one that is begun is served."""


class _Http1(H11Protocol):
    """HTTP/1.1 that says in its last answer that it was the last."""

    def __init__(self, connection: Connection, *rest: Any) -> None:
        super().__init__(*rest)
        self._of = connection

    @property
    def idle(self) -> bool:
        return self.stream is None

    @property
    def begun(self) -> bool:
        return self.idle and bool(self.connection.trailing_data[0])

    unsent = 0

    async def feed(self, data: bytes) -> None:
        await self.handle(RawData(data))

    async def lost(self) -> None:
        await self.handle(Closed())

    async def drain(self) -> None:
        """HTTP/1.1 has no word for it but in an answer."""

    async def farewell(self) -> None:
        """Nor here: the half-close says it."""

    async def refuse_slow(self) -> None:
        if self.connection.our_state is h11.IDLE:
            await self._send_error_response(408)

    async def stream_send(self, event: StreamEvent) -> None:
        # A request that came right behind this one has arrived too: its own answer will be the last.
        if isinstance(event, Response) and self._of.draining and not self.connection.trailing_data[0]:
            if not any(name.lower() == b"connection" for name, _ in event.headers):
                event = replace(event, headers=[*event.headers, (b"connection", b"close")])
        await super().stream_send(event)

    async def _check_protocol(self, event: h11.Request) -> None:
        """An upgrade to HTTP/2 in clear text is not taken up: the request is answered as HTTP/1.1."""


class _Http2(H2Protocol):
    """HTTP/2 that announces its end, and takes the body of a request that was answered already."""

    begun = False

    @property
    def unsent(self) -> int:
        return sum(len(buffer.buffer) for buffer in self.stream_buffers.values())

    async def feed(self, data: bytes) -> None:
        await self.handle(RawData(data))

    async def lost(self) -> None:
        await self.handle(Closed())
        for buffer in list(self.stream_buffers.values()):
            await buffer.close()

    async def drain(self) -> None:
        await self.send(RawData(GOAWAY_SOON))

    async def farewell(self) -> None:
        self.connection.close_connection()
        await self._flush()

    async def refuse_slow(self) -> None:
        """A slow body has its deadline in the application."""

    async def _send_data(self, stream_id: int) -> None:
        buffer = self.stream_buffers.get(stream_id)
        if buffer is not None and buffer.buffer and self._room(stream_id) <= 0:
            # Hypercorn would take nothing out of the buffer and conclude that there is room in it: the memory
            # of a client that opens no window would grow without bound.
            self.priority.block(stream_id)
            return
        await super()._send_data(stream_id)

    def _room(self, stream_id: int) -> int:
        try:
            return int(self.connection.local_flow_control_window(stream_id))
        except h2.exceptions.ProtocolError:
            return 1  # A stream that is closed by now is tidied up where data is sent.

    async def _handle_events(self, events: list[h2.events.Event]) -> None:
        for event in events:
            if isinstance(event, h2.events.DataReceived) and event.stream_id not in self.streams:
                self.connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            else:
                await super()._handle_events([event])
        await self._flush()


class _Requests:
    """What Hypercorn's protocols know as a task group: they start each request in it."""

    def __init__(self, server: Server, connection: Connection, nursery: trio.Nursery) -> None:
        self._server = server
        self._connection = connection
        self._nursery = nursery

    def spawn(self, call: Callable[..., Awaitable[object]], *arguments: Any) -> None:
        self._nursery.start_soon(call, *arguments)

    async def spawn_app(
        self, app: App, config: Config, scope: Scope, answer: Answer
    ) -> Callable[[Message], Awaitable[None]]:
        inbox = Inbox()
        self._nursery.start_soon(self._request, app, scope, inbox, answer)
        return inbox.put

    async def _request(self, app: App, scope: Scope, inbox: Inbox, answer: Answer) -> None:
        if scope["type"] == "websocket":
            inbox.close()
            await answer({"type": "websocket.close"})
            await answer(None)
            return
        stall_s = self._server.limits.stall_s
        shields, fault = self._connection.shields, self._server.fault
        await exchange.run(app, scope, inbox, answer, shields=shields, stall_s=stall_s, fault=fault)


class Server:
    """One listener over one ASGI application, which it starts and stops: one application object a listener.

    The application finds ``scope["state"]["peer"]`` (``sockets.Peer``) on a Unix socket, and
    ``scope["client"]`` (address, port) on a network one; in Quart ``scope`` is ``request.scope``. ``fault``
    is told of each defect of the application, and of a connection whose bytes a protocol stumbled over.
    """

    def __init__(
        self,
        app: App,
        sock: socket.socket,
        *,
        name: str,
        unix: bool = False,
        inherited: bool = False,
        linger_ms: int = bounds.DRAIN_LINGER_MS,
        tls: ssl.SSLContext | None = None,
        limits: Limits | None = None,
        fault: Fault | None = None,
    ) -> None:
        self.app = app
        self.name = name
        self.tls = tls
        self.limits = limits if limits is not None else Limits()
        self.fault = fault if fault is not None else _tell_nobody
        self._config = _config(self.limits)
        self._context = WorkerContext(None)
        self._linger_s = linger_ms / 1000
        self._sock = sock
        self._unix = unix
        self._inherited = inherited
        self._stopped = False
        self._accepting = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self._connections: set[Connection] = set()
        self._refusing = 0
        self._one_less = trio.Event()
        self._ended = trio.Event()
        self._linger_until = math.inf

    @property
    def connections(self) -> int:
        """Connections now."""
        return len(self._connections)

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until stopped and the last connection has gone; cancelled, everything is cut at once."""
        lifespan = exchange.Lifespan(self.app, self.fault)
        try:
            async with trio.open_nursery() as outer:
                outer.start_soon(lifespan.run)
                await lifespan.tell("startup")
                async with trio.open_nursery() as self._nursery:
                    task_status.started()
                    try:
                        with self._accepting:
                            await self._accept(self._nursery)
                        while self._connections or self._refusing:
                            self._one_less = trio.Event()
                            await self._one_less.wait()
                    finally:
                        self._cut(self._connections)
                await lifespan.tell("shutdown")
                outer.cancel_scope.cancel()
        finally:
            self._nursery = None
            self.stop_accepting()
            self._ended.set()

    def stop_accepting(self) -> None:
        """At once. What waits in the backlog of a socket of our own has connected, and is served; an
        inherited one
        keeps its backlog for the next process."""
        if self._stopped:
            return
        if not self._inherited and self._nursery is not None:
            try:
                while self._take(self._nursery):
                    pass
            except OSError:
                pass  # No descriptor is left for them; their clients are told by the close.
        self._stopped = True
        self._accepting.cancel()
        put_away(self._sock, inherited=self._inherited)

    async def close(self, *, hard_deadline: float, waited_for: trio.Event | None = None) -> int:
        """Stop, and end every connection: idle ones after the linger, others after their answer.

        ``hard_deadline`` is on trio's clock; what is open then is cut. Whose client stopped reading is cut before, from
        the moment on that ``waited_for`` is set: that nothing else is. The number of both is returned.
        """
        self.stop_accepting()
        self._linger_until = min(trio.current_time() + self._linger_s, hard_deadline)
        if self._nursery is None:
            return 0
        for connection in self._connections:
            connection.drain(self._linger_until)
            self._nursery.start_soon(connection.announce)
        cut: set[Connection] = set()
        while not self._ended.is_set() and trio.current_time() < hard_deadline:
            stuck = {connection for connection in self._connections if connection.outgoing.stands(self._linger_s)}
            if waited_for is None or waited_for.is_set():
                cut |= self._cut(stuck)
            with trio.move_on_at(min(hard_deadline, trio.current_time() + LOOK_EVERY_S)):
                await self._ended.wait()
        if not self._ended.is_set():
            cut |= self._cut(self._connections)
            with trio.move_on_after(CUT_S):
                await self._ended.wait()
        return len(cut)

    def _cut(self, connections: set[Connection]) -> set[Connection]:
        cut = set(connections)
        for connection in cut:
            connection.cut()
        return cut

    async def _accept(self, nursery: trio.Nursery) -> None:
        while not self._stopped:
            # Seen and taken in two steps: stopped between them, nothing is taken.
            await trio.lowlevel.wait_readable(self._sock)
            try:
                while self._take(nursery):
                    await trio.lowlevel.checkpoint()
            except OSError:
                await trio.sleep(ACCEPT_PAUSE_S)

    def _take(self, nursery: trio.Nursery) -> bool:
        """Take one connection that waits; whether there was one. Raises OSError without room for it."""
        if self._stopped:
            return False
        try:
            sock, _ = self._sock.accept()
        except BlockingIOError:
            return False
        except ConnectionAbortedError:
            return True
        sock.setblocking(False)
        if len(self._connections) < self.limits.connections_max:
            self._welcome(sock, nursery)
        elif self.tls is None and self._refusing < REFUSING_MAX:
            self._refusing += 1
            nursery.start_soon(self._refuse, sock)
        else:
            sock.close()
        return True

    def _welcome(self, sock: socket.socket, nursery: trio.Nursery) -> None:
        try:
            speak = partial(
                self._speak,
                {"peer": peer_of(sock)} if self._unix else {},
                parse_socket_addr(sock.family, sock.getpeername()),
                parse_socket_addr(sock.family, sock.getsockname()),
            )
        except OSError:
            # Gone already, or of an identity that the kernel does not tell.
            sock.close()
            return
        connection = Connection(sock, limits=self.limits, linger_s=self._linger_s, tls=self.tls, speak=speak)
        self._connections.add(connection)
        nursery.start_soon(self._run, connection)

    def _speak(
        self,
        state: dict[str, Any],
        client: Any,
        here: Any,
        alpn: str | None,
        nursery: trio.Nursery,
        of: Connection,
    ) -> _Http1 | _Http2:
        async def send(event: Event) -> None:
            if isinstance(event, RawData):
                await of.write(event.data)
            elif isinstance(event, Closed):
                of.end()
            else:
                of.changed()

        requests = _Requests(self, of, nursery)
        secure = self.tls is not None
        shared: tuple[Any, ...] = (
            *(self.app, self._config, self._context, requests, ConnectionState(state)),
            *(secure, client, here, send),
        )
        return _Http2(*shared) if alpn == "h2" else _Http1(of, *shared)

    async def _run(self, connection: Connection) -> None:
        try:
            await connection.run()
        except* Exception as error:
            # What a protocol stumbles over in one client's bytes is that client's loss alone.
            self.fault(error)
        finally:
            self._connections.discard(connection)
            self._one_less.set()

    async def _refuse(self, sock: socket.socket) -> None:
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        try:
            with trio.move_on_after(PARTING_S):
                await stream.send_all(REFUSAL)
                await part(stream, PARTING_S)
        except GONE:
            return
        finally:
            await trio.aclose_forcefully(stream)
            self._refusing -= 1
            self._one_less.set()


def _tell_nobody(error: BaseException) -> None:
    """A listener made without ``fault`` drops the news; its clients still get their 500."""


def _config(limits: Limits) -> Config:
    config = Config()
    # Its log would be written from the loop; what is worth saying comes by ``fault``, and access lines are
    # the surface's.
    config.errorlog = None
    config.include_server_header = False
    config.h11_max_incomplete_size = limits.head_bytes_max
    config.h2_max_header_list_size = limits.head_bytes_max
    config.h2_max_concurrent_streams = limits.streams_max
    return config


__all__ = ["Endpoint", "Inherited", "Limits", "Server", "Tcp", "Unix", "bind", "parse_address", "tls_context"]
