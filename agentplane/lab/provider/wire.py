"""HTTP/1.1 with keep-alive on loopback: framing, bounds, routing, and the reset that is no answer at all.

It owns the sockets. It refuses bodies over ``BODY_MAX``, bodies without a length, and control requests
without the token. Its invariant: an answer leaves in one write, and a connection that is to be reset is
closed with RST and never with a polite end of stream, so that the caller cannot take it for an empty answer.
"""

from __future__ import annotations

import hmac
import json
import socket
import socketserver
import sqlite3
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from agentplane.lab.provider.book import PREFIX
from agentplane.lab.provider.faults import NAME_MAX, RuleError, parse_rule
from agentplane.lab.provider.service import Invalid, Reply, Service, parse_body

BODY_MAX = 64 * 1024
IDLE_S = 60.0  # a connection that says nothing for so long is closed
CONNECTIONS_MAX = 256  # a thread each
WAIT_MAX_MS = 30_000
_RST_ON_CLOSE = struct.pack("ii", 1, 0)


class Server(ThreadingHTTPServer):
    """The listening socket and a thread a connection."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, port: int, service: Service, control_token: str) -> None:
        self.service = service
        self.control_token = control_token
        self._open: set[int] = set()
        self._reset: set[int] = set()
        self._lock = threading.Lock()
        super().__init__(("127.0.0.1", port), Handler)

    def server_bind(self) -> None:
        """Binds without the reverse look-up of ``HTTPServer``, which may ask a name server about loopback."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]

    def verify_request(self, request: Any, client_address: Any) -> bool:
        with self._lock:
            if len(self._open) >= CONNECTIONS_MAX:
                return False
            self._open.add(id(request))
            return True

    def reset_on_close(self, request: socket.socket) -> None:
        """The connection's end will be RST."""
        with self._lock:
            self._reset.add(id(request))

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(id(request))
            reset = id(request) in self._reset
            self._reset.discard(id(request))
        if not reset:
            super().shutdown_request(request)
            return
        try:
            request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST_ON_CLOSE)
        except OSError:
            pass  # the peer was faster
        self.close_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A killed client is the lab's daily bread; its broken connection is no news."""


class Handler(BaseHTTPRequestHandler):
    """One connection. Requests are read whole before anything is done with them."""

    protocol_version = "HTTP/1.1"
    server_version = "lab-provider/1"
    sys_version = ""
    disable_nagle_algorithm = True
    wbufsize = 64 * 1024
    timeout = IDLE_S
    server: Server

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: what happened is in the book."""

    def _serve(self) -> None:
        try:
            raw = self._body()
        except Invalid as wrong:
            self.close_connection = True  # where the next request begins is not known
            self._answer(Reply(wrong.status, {"error": str(wrong)}))
            self._linger()
            return
        try:
            reply = self._route(raw)
        except Invalid as wrong:
            reply = Reply(wrong.status, {"error": str(wrong)})
        except sqlite3.Error as wrong:
            reply = Reply(500, {"error": f"the book refused: {wrong}"})
        if reply.reset:
            self.close_connection = True
            self.server.reset_on_close(self.connection)
            return
        self._answer(reply)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding"):
            raise Invalid(411, "send a Content-Length")
        told = self.headers.get("Content-Length")
        if told is None:
            if self.command == "POST":
                raise Invalid(411, "send a Content-Length")
            return b""
        if not (told.isascii() and told.isdigit()):
            raise Invalid(400, "Content-Length is not a number")
        if len(told) > 9 or int(told) > BODY_MAX:
            raise Invalid(413, f"a body has at most {BODY_MAX} bytes")
        raw = self.rfile.read(int(told))
        if len(raw) != int(told):
            raise ConnectionResetError("the caller stopped in the middle of a body: nothing has arrived")
        return raw

    def _answer(self, reply: Reply) -> None:
        body = json.dumps(reply.body).encode()
        self.send_response(reply.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, value in reply.headers.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def _linger(self) -> None:
        """Reads on after a refusal until the caller has stopped, bounded: closing over unread bytes resets
        the connection, and the caller would lose the answer that says why."""
        try:
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(1.0)
            left = 16 * BODY_MAX
            while left > 0 and (read := self.connection.recv(BODY_MAX)):
                left -= len(read)
        except OSError:
            pass

    def _route(self, raw: bytes) -> Reply:
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        query = dict(parse_qsl(parts.query, keep_blank_values=True, max_num_fields=16))
        if path.startswith("/control/"):
            return self._control(path.removeprefix("/control/"), query, raw)
        if self.command == "GET":
            return self.server.service.read(path, query)
        if path not in PREFIX:
            return Reply(404, {"error": "no such path"})
        return self.server.service.mutate(path, self.headers.get("Idempotency-Key"), raw)

    def _control(self, path: str, query: dict[str, str], raw: bytes) -> Reply:
        offered = self.headers.get("Control-Token") or ""
        if not hmac.compare_digest(offered.encode(), self.server.control_token.encode()):
            return Reply(403, {"error": "the control token is wrong or missing"})
        try:
            return self._ask(path, _wait_s(query)) if self.command == "GET" else self._tell(path, raw)
        except RuleError as wrong:
            return Reply(400, {"error": str(wrong)})

    def _ask(self, path: str, wait_s: float) -> Reply:
        service = self.server.service
        if path == "state":
            active, pending = service.quiet.wait(wait_s)
            return Reply(200, {"active": active, "pending": pending, "rules": service.rules.count()})
        if path.startswith("gates/"):
            return Reply(200, {"held": service.gates.held(_gate(path.removeprefix("gates/")), wait_s)})
        return Reply(404, {"error": "no such control path"})

    def _tell(self, path: str, raw: bytes) -> Reply:
        service = self.server.service
        told = parse_body(raw or b"{}")
        if path == "rules":
            return Reply(201, {"rule": service.rules.add(parse_rule(told))})
        if path == "clear":
            return Reply(200, {"cleared": service.rules.clear(told.get("rule"))})
        if path == "forget":
            return Reply(200, {"forgotten": service.book.forget(key=told.get("key"), order=told.get("order"))})
        if path.startswith("gates/") and path.endswith("/release"):
            name = _gate(path.removeprefix("gates/").removesuffix("/release"))
            return Reply(200, {"released": service.gates.release(name)})
        return Reply(404, {"error": "no such control path"})


def _gate(name: str) -> str:
    if not 1 <= len(name) <= NAME_MAX or "/" in name:
        raise RuleError(f"a gate's name has 1 to {NAME_MAX} characters and no slash")
    return name


def _wait_s(query: dict[str, str]) -> float:
    told = query.get("wait_ms", "0")
    if not (told.isascii() and told.isdigit()) or int(told[:9]) > WAIT_MAX_MS or len(told) > 9:
        raise RuleError(f"wait_ms must be from 0 to {WAIT_MAX_MS}")
    return int(told) / 1000
