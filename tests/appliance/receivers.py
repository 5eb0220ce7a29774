"""A receiver of webhooks: a real server on this host that keeps what it was sent and answers as it is told.

Owns the bytes as they came, so that a signature is checked over what was received. Nothing here asserts.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any, NamedTuple

KEY = bytes(range(32))


class Message(NamedTuple):
    path: str
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> dict[str, Any]:
        return dict(json.loads(self.raw))

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    def conditions(self) -> dict[str, int]:
        return {one["condition"]: one["count"] for one in self.body["conditions"]}

    def is_signed(self, key: bytes = KEY) -> bool:
        """By the published rule: base64 of HMAC-SHA256 over id, time and body, with dots between them."""
        signed = b".".join([self.id.encode(), self.headers["webhook-timestamp"].encode(), self.raw])
        wanted = base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
        return self.headers["webhook-signature"] == f"v1,{wanted}"


class Receiver:
    """``status``: what the next messages are answered with; ``before``: done when one came, before its answer."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.status = 204
        self.headers: dict[str, str] = {}
        self.endless = False
        self.before: Callable[[], object] = lambda: None
        self.silent = Event()
        self.silent.set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/hook?for=desk"

    def close(self) -> None:
        self.silent.set()
        self._server.shutdown()
        self._server.server_close()


def _handler(receiver: Receiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.messages.append(Message(self.path, headers, raw))
            receiver.before()
            receiver.silent.wait(30)
            self.send_response(receiver.status)
            for name, value in receiver.headers.items():
                self.send_header(name, value)
            if not receiver.endless:
                self.send_header("content-length", "0")
            self.end_headers()
            try:
                while receiver.endless:
                    self.wfile.write(b"x" * 65_536)
            except OSError:
                pass  # the reader has had enough

        def do_GET(self) -> None:
            receiver.messages.append(Message(self.path, {}, b"{}"))
            self.send_error(404)

        def log_message(self, *said: object) -> None:
            pass

    return Handler


def secret_in(directory: Path, key: bytes = KEY, name: str = "notify") -> Path:
    """The file of a signing secret, as an operator writes it."""
    path = directory / name
    path.write_text(f"whsec_{base64.b64encode(key).decode()}\n")
    path.chmod(0o600)
    return path
