"""The application's own test: `python tests/test_refunds.py`, or with pytest."""

from __future__ import annotations

import sys
import tempfile
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path

import trio

HERE = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(HERE), str(HERE / "skills")]

from provider import REFUNDS, Provider  # noqa: E402
from refunds import issue  # noqa: E402

from agentplane import Plane  # noqa: E402


def test_a_refund_is_paid_once() -> None:
    """The same admission key is the same run, and the provider is asked once."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    request = {"order": "A-1", "amount_minor": 4200}

    async def main(store: str) -> None:
        url = f"http://127.0.0.1:{server.server_port}"
        async with Plane.open(store, skills=[issue], settings={"payments_url": url}) as plane:
            first = await plane.run("refunds.issue", request, key="ticket-1")
            again = await plane.run("refunds.issue", request, key="ticket-1")
            assert first.status == "succeeded" and again.run == first.run
            verdict = await plane.replay(first.run, strict=True)
            assert verdict.verdict == "verified"

    with tempfile.TemporaryDirectory() as directory:
        trio.run(main, directory + "/plane.db")
    server.shutdown()
    assert len(REFUNDS) == 1


if __name__ == "__main__":
    test_a_refund_is_paid_once()
    print("1 passed, 0 failed")
