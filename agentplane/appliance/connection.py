"""One client's connection, from its first byte to its last, whatever protocol is spoken on it.

Owns the socket, its deadlines and how it ends. Refuses heads that do not arrive and clients that do not read.
Invariant: a request whose first bytes have arrived is answered; only the reading task ends a connection, and
who else wants it ended moves the deadline of its read; no write outlasts a client that stopped reading, and
no shield outlasts ``cut``. A client that takes nothing while a drain looks, for longer than the way to it explains,
is not waited for by that drain.
"""

from __future__ import annotations

import fcntl
import math
import socket
import ssl
import struct
import termios
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, Protocol

import trio

from agentplane.appliance.exchange import Shields

READ_BYTES: Final = 64 * 1024
WRITE_BYTES: Final = 64 * 1024
"""Written at once; a client must take this much within ``stall_s``."""
PARTING_S: Final = 1.0
"""How long a client may take to read our last words before the connection goes."""
IDLE_PARTING_S: Final = 0.05
"""The same in a drain, for a client whose last answer is older than the linger: it has had that to read it."""
SHUT_S: Final = 0.2
"""A client that took nothing for so long, though everything that was sent has reached it, has stopped reading."""
UNHEARD_S: Final = 1.0
"""The same of one that has not acknowledged all of it: the network may have lost some, which takes longer to mend."""
ROUND_TRIPS: Final = 4
"""What a client far away has at least."""
UNACKED_AT: Final = 24
RTT_AT: Final = 68
TCP_INFO_BYTES: Final = 72
"""Where the kernel's `struct tcp_info` has packets that are under way and the microseconds of a round trip, and as much
of it as is read."""
GONE: Final = (
    trio.BrokenResourceError,
    trio.ClosedResourceError,
    trio.BusyResourceError,
    trio.TooSlowError,
    OSError,
)
"""What a client can cause by going away, or by not keeping up."""


class Limits(NamedTuple):
    """Bounds of one listener and its connections, in the unit of the name."""

    connections_max: int = 512
    head_bytes_max: int = 16 * 1024
    head_s: float = 10.0
    """From a request's first byte to the end of its head, however busily single bytes come."""
    keep_alive_s: float = 75.0
    """More than the minute for which proxies commonly keep a connection, so that they close it and not we."""
    stall_s: float = 30.0
    """How long a client may take none of what is written to it."""
    handshake_s: float = 10.0
    streams_max: int = 100
    """Requests at once on one HTTP/2 connection."""


class Spoken(Protocol):
    """A protocol as its connection sees it."""

    @property
    def idle(self) -> bool:
        """No request is in hand."""

    @property
    def begun(self) -> bool:
        """Bytes of a request are here whose head is not whole."""

    @property
    def unsent(self) -> int:
        """Bytes of answers that wait here until the client opens a window for them."""

    async def initiate(self) -> None: ...

    async def feed(self, data: bytes) -> None:
        """Bytes from the client; none at its end."""

    async def lost(self) -> None:
        """Nothing more will come: tell whoever is in the middle of a request."""

    async def drain(self) -> None:
        """Ask the client to begin no more here, where the protocol has a word for it."""

    async def farewell(self) -> None:
        """The last word to a client without a request in hand."""

    async def refuse_slow(self) -> None:
        """The answer to a head that did not arrive in time."""


class Outgoing:
    """What one client has yet to take: ``left`` of the write in hand, and what its protocol holds back. A drain looks
    at it again and again."""

    def __init__(self, sock: trio.socket.SocketType) -> None:
        self._sock = sock
        self.protocol: Spoken | None = None
        self.left = 0
        self.taken_at = math.inf
        self._unsent: int | None = None
        self._looked_at = self._since = math.inf

    def stands(self, for_s: float) -> bool:
        """Whether the client has stopped reading: something waits for it, of which it took nothing for a while, nor
        since a look ``for_s`` ago. What lies in the kernel counts as well.
        """
        now, waiting = trio.current_time(), self.left + (0 if self.protocol is None else self.protocol.unsent)
        if not waiting:
            self._unsent = None
            return False
        unsent = waiting + _asked(self._sock, termios.TIOCOUTQ)
        if unsent != self._unsent:
            # What it took before the first look nobody saw, but for the write in hand, which had begun by then.
            self._since = min(now, self.taken_at) if self._unsent is None else now
            self._unsent, self._looked_at = unsent, now
        return now - self._looked_at >= for_s and now - self._since >= self._patience_s()

    def _patience_s(self) -> float:
        try:
            info = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
        except OSError:
            return SHUT_S  # A Unix socket: nothing is under way.
        (unacknowledged,), (trip_us,) = (struct.unpack_from("I", info, at) for at in (UNACKED_AT, RTT_AT))
        return max(UNHEARD_S if unacknowledged else SHUT_S, ROUND_TRIPS * trip_us / 1_000_000)


class Connection:
    """``speak(alpn, nursery, connection)`` makes the protocol once it is known which. Times are trio's."""

    def __init__(
        self,
        sock: socket.socket,
        *,
        limits: Limits,
        linger_s: float,
        tls: ssl.SSLContext | None,
        speak: Callable[[str | None, trio.Nursery, Connection], Spoken],
    ) -> None:
        self.shields = Shields()
        self.draining = False
        self._limits = limits
        self._linger_s = linger_s
        self._tls = tls
        self._speak = speak
        self._transport = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        self._stream: trio.SocketStream | trio.SSLStream[trio.SocketStream] = self._transport
        self._protocol: Spoken | None = None
        self._sending = trio.Lock()
        self._whole = trio.CancelScope()
        self._reading = trio.CancelScope()
        self._feeding = False
        self._quiet_since = trio.current_time()
        self._begun_at = math.inf
        self._linger_until = math.inf
        self._closing = False
        self.outgoing = Outgoing(self._transport.socket)

    async def run(self) -> None:
        """Serve until either side ends it. Raises nothing that a client causes by going away."""
        try:
            with self._whole:
                alpn = await self._shake_hands()
                async with trio.open_nursery() as nursery:
                    protocol = self._protocol = self.outgoing.protocol = self._speak(alpn, nursery, self)
                    await protocol.initiate()
                    if self.draining:
                        await protocol.drain()
                    self.changed()
                    await self._serve(protocol)
                    await protocol.lost()
                    parting_s = self._linger_s if self.draining else PARTING_S
                    if self.draining and protocol.idle and trio.current_time() - self._quiet_since >= self._linger_s:
                        parting_s = min(self._linger_s, IDLE_PARTING_S)
                    await part(self._stream, parting_s)
                    # Whoever still sends, sends to nobody.
                    self.shields.cut()
        except* GONE:
            pass
        finally:
            await trio.aclose_forcefully(self._transport)

    def drain(self, linger_until: float) -> None:
        """Answer what has arrived, saying that it was the last; kept until ``linger_until`` when idle."""
        self.draining = True
        self._linger_until = linger_until
        self._move()

    async def announce(self) -> None:
        """Tell the client of the drain now, where the protocol can."""
        if self._protocol is not None:
            try:
                await self._protocol.drain()
            except GONE:
                return

    def cut(self) -> None:
        """End now: requests are cancelled, shields give way, bytes not yet written are dropped."""
        self.shields.cut()
        self._whole.cancel()

    # --- for the protocol ---------------------------------------------------------------------------

    async def write(self, data: bytes) -> None:
        """Write all or end the connection: cut in the middle, nothing more could be said on it."""
        async with self._sending:
            for start in range(0, len(data), WRITE_BYTES):
                if self._closing:
                    return
                send = partial(self._stream.send_all, data[start : start + WRITE_BYTES])
                self.outgoing.left, self.outgoing.taken_at = len(data) - start, trio.current_time()
                try:
                    whole = await self.shields.over(send, self._limits.stall_s)
                except GONE:
                    whole = False
                finally:
                    self.outgoing.left, self.outgoing.taken_at = 0, trio.current_time()
                if not whole:
                    self.end()

    def end(self) -> None:
        """No more is read, and what is written from now on is dropped."""
        self._closing = True
        self._move()

    def changed(self) -> None:
        """A request began or ended."""
        self._quiet_since = trio.current_time()
        self._move()

    # --- reading ------------------------------------------------------------------------------------

    async def _shake_hands(self) -> str | None:
        if self._tls is None:
            return None
        stream = trio.SSLStream(self._transport, self._tls, server_side=True, https_compatible=True)
        with trio.fail_after(self._limits.handshake_s):
            await stream.do_handshake()
        self._stream = stream
        return stream.selected_alpn_protocol()

    async def _serve(self, protocol: Spoken) -> None:
        while not self._closing:
            with trio.CancelScope(deadline=self._until()) as self._reading:
                data = await self._stream.receive_some(READ_BYTES)
            if self._reading.cancelled_caught:
                if await self._is_over(protocol):
                    return
                continue
            if data and self._begun_at == math.inf:
                self._begun_at = trio.current_time()
            await self._feed(protocol, bytes(data))
            if not data:
                return

    async def _feed(self, protocol: Spoken, data: bytes) -> None:
        """May wait for an earlier answer, or for the application to take the body; not past the end."""
        self._feeding = True
        try:
            with trio.CancelScope(deadline=self._until()) as self._reading:
                await protocol.feed(data)
        finally:
            self._feeding = False
        if not protocol.begun:
            self._begun_at = math.inf

    def _until(self) -> float:
        """When the read that waits, or comes next, has waited long enough."""
        if self._closing:
            return -math.inf
        if self._feeding or self._protocol is None or not self._protocol.idle:
            return math.inf
        if self._begun_at != math.inf:
            return self._begun_at + self._limits.head_s
        until = self._quiet_since + self._limits.keep_alive_s
        if self.draining:
            until = min(until, max(self._linger_until, self._quiet_since + self._linger_s))
        return until

    def _move(self) -> None:
        self._reading.deadline = self._until()

    async def _is_over(self, protocol: Spoken) -> bool:
        """A read has waited long enough: whether this is the end. Bytes that lie in the kernel are a request
        begun.
        """
        if self._closing:
            return True
        if self._until() > trio.current_time():
            return False
        if self._begun_at != math.inf:
            await protocol.refuse_slow()
        elif _asked(self._transport.socket, termios.FIONREAD):
            self._begun_at = trio.current_time()
            return False
        else:
            await protocol.farewell()
            self._half_close()
        return True

    def _half_close(self) -> None:
        """End our half in the turn that saw no request: one that comes after our end can have no answer, and while
        this waited for its turn others had theirs. With TLS the end is a record, which `part` writes."""
        if self._tls is None:
            try:
                self._transport.socket.shutdown(socket.SHUT_WR)
            except OSError:
                return  # The client has gone; whoever reads next learns of it.


def _asked(sock: trio.socket.SocketType, what: int) -> int:
    """Bytes that the kernel holds: for us (FIONREAD), or of ours for the client (TIOCOUTQ)."""
    return int(struct.unpack("i", fcntl.ioctl(sock.fileno(), what, bytes(4)))[0])


async def part(stream: trio.SocketStream | trio.SSLStream[trio.SocketStream], seconds: float) -> None:
    """Half-close, and read until the client has seen it, for at most ``seconds``.

    Closed over unread bytes, the kernel would drop what the client has not read yet.
    """
    with trio.move_on_after(seconds):
        try:
            if isinstance(stream, trio.SSLStream):
                await stream.unwrap()
            else:
                await stream.send_eof()
                while await stream.receive_some(READ_BYTES):
                    pass
        except GONE:
            return
