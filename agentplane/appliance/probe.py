"""The probe listener: whether the plane lives and whether it admits, in one word, to whoever asks.

Owns two routes, `GET /live` and `GET /ready`, answered 200 `ok` or 503 `no`. Refuses every other request with an empty
404, says nothing else of the plane, and takes no credential; more connections than its bound, heads that are long and
heads that do not arrive. Invariant: it answers from memory alone, on the loop whose progress it reports, and until the
last run of a drain has ended; one answer a connection.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Final

import trio

from agentplane.appliance import sockets, systemd
from agentplane.appliance.settings import PlaneSettings

HEAD_BYTES_MAX: Final = 4096
ANSWER_S: Final = 5.0
"""From the first byte to the last, whatever the client does."""
CONNECTIONS_MAX: Final = 32
"""A few supervisors ask every few seconds. Beyond these the oldest goes: who asks is answered at once, so that what is
old says nothing."""
ACCEPT_PAUSE_S: Final = 0.1
NOT_FOUND: Final = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

Asked = Mapping[str, Callable[[], bool]]


class Probe:
    """One probe listener. ``asked`` holds the two questions by their path. ``where``: its address, to be shown."""

    def __init__(self, sock: socket.socket, asked: Asked, *, inherited: bool = False) -> None:
        self._sock = sock
        self._asked = asked
        self._inherited = inherited
        self._held: dict[object, trio.CancelScope] = {}
        self.where = address_of(sock)

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Answer until cancelled. An inherited socket stays open for the next process."""
        try:
            async with trio.open_nursery() as nursery:
                task_status.started()
                while True:
                    await trio.lowlevel.wait_readable(self._sock)
                    try:
                        taken, _ = self._sock.accept()
                    except (BlockingIOError, ConnectionAbortedError):
                        continue
                    except OSError:
                        await trio.sleep(ACCEPT_PAUSE_S)
                        continue
                    if len(self._held) >= CONNECTIONS_MAX:
                        self._held.pop(next(iter(self._held))).cancel()
                    patience = self._held[taken] = trio.move_on_after(ANSWER_S)
                    nursery.start_soon(self._one, taken, patience)
        finally:
            sockets.put_away(self._sock, inherited=self._inherited)

    async def _one(self, taken: socket.socket, patience: trio.CancelScope) -> None:
        taken.setblocking(False)
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(taken))
        try:
            with patience:
                await stream.send_all(self._answer(await _head(stream)))
                await stream.send_eof()
                # Bytes of theirs that are still on the way would turn our answer into a reset.
                while await stream.receive_some(HEAD_BYTES_MAX):
                    pass
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            return
        finally:
            await trio.aclose_forcefully(stream)
            self._held.pop(taken, None)

    def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path, _, version = rest.partition(b"\r\n")[0].partition(b" ")
        asked = self._asked.get(path.decode("ascii", "replace")) if method == b"GET" else None
        if asked is None or version not in (b"HTTP/1.1", b"HTTP/1.0"):
            return NOT_FOUND
        status, word = (b"200 OK", b"ok") if asked() else (b"503 Service Unavailable", b"no")
        return (
            b"HTTP/1.1 " + status + b"\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n"
            b"Cache-Control: no-store\r\nConnection: close\r\n\r\n" + word
        )


async def _head(stream: trio.SocketStream) -> bytes:
    """The request up to the empty line behind its head; what is longer, or ends before, is no request: empty."""
    head = b""
    while b"\r\n\r\n" not in head:
        more = await stream.receive_some(HEAD_BYTES_MAX)
        head += more
        if not more or len(head) > HEAD_BYTES_MAX:
            return b""
    return head


def address_of(sock: socket.socket) -> str:
    """Where a listener is, as a client on this node would say it."""
    if sock.family == socket.AF_UNIX:
        return f"unix:{sock.getsockname()}"
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def probe(said: PlaneSettings, given: list[systemd.Given], asked: Asked) -> Probe | None:
    """The listener that ``probe_addr`` asks for, bound; None where it is off. Raises Settings."""
    if said.probe_addr is None:
        return None
    endpoint = sockets.parse_address(said.probe_addr, given=given)
    return Probe(sockets.bind(endpoint), asked, inherited=endpoint.inherited)
