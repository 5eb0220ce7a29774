"""P8 and S4 on the wire: how far a request came, and what a stored failure is known by.

The provider is a socket, since what is asked is whether bytes went out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from agentplane.authoring.raising import DidNotHappenError, EffectError, InDoubtError, ReplayedFailureError
from agentplane.engine.http import BlockingHttp, GuardedHttp, async_client, blocking_client

HANG_S = 30
REPLAYED = b"HTTP/1.1 402 Payment Required\r\nIdempotent-Replayed: true\r\nContent-Length: 2\r\n\r\n{}"
REFUSED = b"HTTP/1.1 402 Payment Required\r\nContent-Length: 2\r\n\r\n{}"
CUT_SHORT = b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{"


@asynccontextmanager
async def answering(raw: bytes) -> AsyncIterator[str]:
    """A provider that reads a request, answers these bytes and hangs up; its URL."""

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some(65_536)
            if raw:
                await stream.send_all(raw)

    with trio.fail_after(HANG_S):
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, serve, listeners)
            yield f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/refunds"
            nursery.cancel_scope.cancel()


async def sent(url: str, *, blocking: bool, mutates: bool = True) -> EffectError | None:
    """What a call is told, None for a complete answer."""
    try:
        if blocking:
            with blocking_client() as plain:
                http = BlockingHttp(plain, mutates=mutates, earlier=False, now_ms=0)
                await trio.to_thread.run_sync(lambda: http.post(url, json={"order": "A-1"}))
        else:
            async with async_client() as client:
                guarded = GuardedHttp(client, mutates=mutates, earlier=False, now_ms=0)
                await guarded.post(url, json={"order": "A-1"})
    except EffectError as error:
        return error
    return None


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
async def test_a_stored_failure_is_known_by_its_header(blocking: bool) -> None:
    """P8: marked as a replay it ends the attempts; the same answer unmarked is a plain refusal."""
    async with answering(REPLAYED) as url:
        replayed = await sent(url, blocking=blocking)
    async with answering(REFUSED) as url:
        refused = await sent(url, blocking=blocking)
    assert type(replayed) is ReplayedFailureError and replayed.permanent
    assert type(refused) is DidNotHappenError and refused.permanent


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
@pytest.mark.parametrize("raw", [b"", CUT_SHORT], ids=["no-answer", "cut-short"])
async def test_an_exchange_that_broke_off_is_in_doubt(raw: bytes, blocking: bool) -> None:
    """S4: once a byte of the request went out nobody can say that nothing happened."""
    async with answering(raw) as url:
        told = await sent(url, blocking=blocking)
    assert type(told) is InDoubtError


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
async def test_a_connection_that_was_refused_did_not_happen(blocking: bool) -> None:
    """S4: before the first byte nothing can have happened."""
    async with answering(b"") as url:
        pass
    told = await sent(url, blocking=blocking)
    assert type(told) is DidNotHappenError and not told.permanent
