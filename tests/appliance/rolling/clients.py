"""Clients that do not retry: one request is one outcome, whatever becomes of its connection.

Owns the bytes of a request, on a connection of its own or on a kept one, and the word for how it ended. Refuses to send
anything twice. Invariant: a kept connection is looked at immediately before a request is written to it; one that the
server has ended by then is no loss of a request, and another is opened.
"""

from __future__ import annotations

import errno
import json
import socket
from typing import Any, NamedTuple

import h11
import trio

PATIENCE_S = 60.0
"""Longer than any drain and start together."""
READ_BYTES = 64 * 1024
ANSWERED, DRAINING = "answered", "draining"
REFUSED, RESET, UNANSWERED, LATE, FAULT = "refused", "reset", "unanswered", "timeout", "5xx"
LOSSES = (REFUSED, RESET, UNANSWERED, LATE, FAULT)
"""What a client that does not retry has to tell its user."""
ONCE, OPENED, REUSED = "closed after it", "kept, its first", "kept, a later"
"""What connection a request is on: one of its own, or one that is kept, as the first request there or not."""
PLACES = (ONCE, OPENED, REUSED)


class Asked(NamedTuple):
    """A request: ``key`` is sent as Idempotency-Key."""

    method: str
    path: str
    body: bytes = b""
    key: str | None = None


class Ended(NamedTuple):
    """How a request ended: seconds of the monotonic clock from before the connection to the last byte; the status
    and body where there was an answer."""

    kind: str
    asked: Asked
    on: str
    begun_at: float
    ended_at: float
    status: int = 0
    body: Any = None
    detail: str = ""


class _Line:
    """One connection of one client."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.speaks = h11.Connection(h11.CLIENT)

    @property
    def over(self) -> bool:
        """Whether the server has ended it, or said what nobody asked."""
        try:
            self.sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def send(self, data: bytes) -> None:
        """A whole request in one write; it fits into the buffer of any socket."""
        if self.sock.send(data) != len(data):
            raise AssertionError("a request did not fit into the socket's buffer")

    def expect(self, asked: Asked) -> None:
        """An answer is next, to what was just sent."""
        self.speaks.send(h11.Request(method=asked.method, target=asked.path, headers=[("Host", "x")]))
        self.speaks.send(h11.EndOfMessage())

    def close(self) -> None:
        self.sock.close()


class Clients:
    """Users of one listener at ``where`` with one token; ``kept`` of them keep their connections."""

    def __init__(self, where: tuple[str, int], token: str, kept: int) -> None:
        self._where = where
        self._head = f"Host: {where[0]}:{where[1]}\r\nAuthorization: Bearer {token}\r\n"
        self._kept: list[_Line] = []
        self._kept_max = kept
        self.reopened = 0
        """Kept connections that the server had ended before the next request on them."""

    async def ask(self, asked: Asked, *, keep: bool, which: int = 0) -> Ended:
        """One request. With ``keep`` on a kept connection if one is free (the ``which``-th of these), which stays
        open."""
        begun_at = trio.current_time()
        line, on = self._free(which) if keep else None, OPENED if keep else ONCE

        def ended(kind: str, detail: object = "", status: int = 0, body: Any = None) -> Ended:
            return Ended(kind, asked, on, begun_at, trio.current_time(), status, body, str(detail))

        data = self._bytes_of(asked, keep=keep)
        try:
            with trio.fail_after(PATIENCE_S):
                # Between the look and the write is nothing, so that the server has had hardly time to end it.
                if line is not None and not line.over:
                    on = REUSED
                    line.send(data)
                else:
                    if line is not None:
                        self.reopened += 1
                        line.close()
                    line = await self._connect()
                    line.send(data)
                line.expect(asked)
                status, headers, body = await _answer(line)
        except trio.TooSlowError:
            return self._lost(line, ended(LATE))
        except ConnectionRefusedError as error:
            return self._lost(line, ended(REFUSED, error))
        except (h11.RemoteProtocolError, EOFError) as error:
            return self._lost(line, ended(UNANSWERED, error))
        except OSError as error:
            known = error.errno in (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN)
            return self._lost(line, ended(RESET if known else UNANSWERED, error))
        self._put_back(line, keep=keep)
        said = json.loads(body) if body else None
        if status == 503 and "retry-after" in headers and isinstance(said, dict) and said.get("code") == "draining":
            return ended(DRAINING, status=status, body=said)
        return ended(FAULT if status >= 500 else ANSWERED, status if status >= 500 else "", status, said)

    def close(self) -> None:
        for line in self._kept:
            line.close()
        self._kept.clear()

    def _free(self, which: int) -> _Line | None:
        return self._kept.pop(which % len(self._kept)) if self._kept else None

    def _put_back(self, line: _Line, *, keep: bool) -> None:
        stays = line.speaks.our_state is h11.DONE and line.speaks.their_state is h11.DONE
        if keep and stays and len(self._kept) < self._kept_max:
            line.speaks.start_next_cycle()
            self._kept.append(line)
        else:
            line.close()

    def _lost(self, line: _Line | None, ended: Ended) -> Ended:
        if line is not None:
            line.close()
        return ended

    async def _connect(self) -> _Line:
        sock = trio.socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            await sock.connect(self._where)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException:
            sock.close()
            raise
        plain = socket.socket(fileno=sock.detach())
        plain.setblocking(False)
        return _Line(plain)

    def _bytes_of(self, asked: Asked, *, keep: bool) -> bytes:
        lines = f"{asked.method} {asked.path} HTTP/1.1\r\n{self._head}"
        if asked.key is not None:
            lines += f"Idempotency-Key: {asked.key}\r\n"
        if asked.body:
            lines += f"Content-Type: application/json\r\nContent-Length: {len(asked.body)}\r\n"
        if not keep:
            lines += "Connection: close\r\n"
        return lines.encode() + b"\r\n" + asked.body


async def _answer(line: _Line) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body. Raises EOFError, h11.RemoteProtocolError or OSError where there is no whole one."""
    status, headers, body = 0, {}, b""
    while True:
        event = line.speaks.next_event()
        if event is h11.NEED_DATA:
            await trio.lowlevel.wait_readable(line.sock)
            try:
                data = line.sock.recv(READ_BYTES)
            except BlockingIOError:
                continue
            if not data and not status:
                raise EOFError("the connection ended before an answer")
            line.speaks.receive_data(data)
        elif isinstance(event, h11.Response):
            status = event.status_code
            headers = {name.decode().lower(): value.decode() for name, value in event.headers}
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            return status, headers, body
        else:
            raise EOFError("the connection ended in the middle of an answer")
