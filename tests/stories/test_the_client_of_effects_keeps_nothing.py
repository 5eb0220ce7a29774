"""``call.http``: one attempt's request is its own: no redirect is followed, and no cookie of another's goes out."""

from __future__ import annotations

import httpx
import pytest
from trio.testing import MockClock

from agentplane.authoring.raising import EffectError
from agentplane.engine.http import BlockingHttp, GuardedHttp, async_client, blocking_client

SEEN: list[tuple[str, str | None]] = []


def provider(request: httpx.Request) -> httpx.Response:
    """Sets a cookie, redirects what asks for /moved, and answers everything else."""
    SEEN.append((request.url.path, request.headers.get("Cookie")))
    headers = {"Set-Cookie": "session=of-somebody-else; Path=/"}
    if request.url.path == "/moved":
        return httpx.Response(307, headers=headers | {"Location": "http://provider.test/paid"})
    return httpx.Response(200, headers=headers, json={})


async def test_a_cookie_goes_nowhere_and_a_redirect_is_an_answer(autojump_clock: MockClock) -> None:
    """Also when the author asks for it: a second request would be a second deed."""
    SEEN.clear()
    client, plain = async_client(), blocking_client()
    client._transport, plain._transport = httpx.MockTransport(provider), httpx.MockTransport(provider)
    guarded = GuardedHttp(client, mutates=True, earlier=False, now_ms=0)
    blocking = BlockingHttp(plain, mutates=True, earlier=False, now_ms=0)
    for _ in range(2):
        await guarded.post("http://provider.test/pay")
        blocking.post("http://provider.test/pay")
    with pytest.raises(EffectError):
        await guarded.post("http://provider.test/moved", follow_redirects=True)
    with pytest.raises(EffectError):
        blocking.post("http://provider.test/moved", follow_redirects=True)
    await client.aclose()
    plain.close()
    assert SEEN == [("/pay", None)] * 4 + [("/moved", None)] * 2
