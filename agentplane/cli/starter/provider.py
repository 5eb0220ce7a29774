"""A payment provider to try the skill against: `python provider.py` (standard library only, forgets at exit)."""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from urllib.parse import parse_qs, urlsplit

REFUNDS: dict[str, dict] = {}
LOCK = Lock()


class Provider(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = self.headers.get("Idempotency-Key", "")
        with LOCK:
            replayed = key in REFUNDS
            refund = REFUNDS.setdefault(key, body | {"id": f"re_{len(REFUNDS) + 1}", "key": key})
        self.answer(200 if replayed else 201, refund, replayed=replayed)

    def do_GET(self) -> None:
        key = parse_qs(urlsplit(self.path).query).get("key", [""])[0]
        with LOCK:
            found = [REFUNDS[key]] if key in REFUNDS else []
        self.answer(200, found)

    def answer(self, status: int, body: object, replayed: bool = False) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        if replayed:
            self.send_header("Idempotent-Replayed", "true")
        self.end_headers()
        self.wfile.write(raw)


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8099
    print(f"a payment provider on http://127.0.0.1:{port}; Ctrl-C stops it", flush=True)
    try:
        ThreadingHTTPServer(("127.0.0.1", port), Provider).serve_forever()
    except KeyboardInterrupt:
        pass
