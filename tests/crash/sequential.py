"""One run of N sequential external effects against a provider on loopback; prints effects and commits. Run it
under strace:

strace -f -c -e trace=fsync,fdatasync python tests/crash/sequential.py 500
"""

from __future__ import annotations

import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import trio

from agentplane import Call, Plane, Recovery, Step, effect, skill


class Provider(BaseHTTPRequestHandler):
    """Answers every POST at once."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(201)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: Any) -> None:
        return


@effect("load.post", recovery=Recovery.IDEMPOTENT)
async def post(call: Call, *, number: int) -> Any:
    """One outward call."""
    answer = await call.http.post(
        call.setting("url"), json={"number": number}, headers={"Idempotency-Key": call.idempotency_key}
    )
    return answer.json()


@skill("load.sequence")
async def sequence(cx: Step, request: dict[str, Any]) -> int:
    for number in range(request["effects"]):
        await cx.do(post(number=number))
    return int(request["effects"])


async def main(effects: int, directory: str) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    settings = {"url": f"http://127.0.0.1:{server.server_port}/"}
    async with Plane.open(Path(directory) / "plane.db", skills=[sequence], settings=settings) as plane:
        outcome = await plane.run("load.sequence", {"effects": effects})
        print(f"{outcome.status}: {effects} effects, {plane.writer.commits} commits", flush=True)
    server.shutdown()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as where:
        trio.run(main, int(sys.argv[1]), where)
