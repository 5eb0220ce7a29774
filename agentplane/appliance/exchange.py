"""One request of an ASGI application: what it receives, what it sends, and how both end.

Owns the queue between a connection and an application, and the shields over what must not be cut in the
middle. Refuses to let an application that reads nothing hold up its connection. Invariant: once an
application has said that its response is complete, the connection is told so in full, whatever cancels the
application meanwhile.

A framework cancels its request as soon as it hears of the disconnect, and it hears of it in the middle of its
own last send, when the server winds up the exchange. Cut there, the connection is neither idle nor closed: it
is kept past every timeout and holds up the end. So the last send is shielded; and since a client may never
read it, every shield has a deadline and gives way to a cut.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

import trio

from agentplane.core import errors

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[..., Awaitable[None]]
"""Called with Scope, Receive and Send; each framework has types of its own for them."""
Answer = Callable[[Message | None], Awaitable[None]]
"""How a protocol takes an application's messages; None says that the application has ended."""
Fault = Callable[[BaseException], None]

LIFESPAN_S: Final = 60
"""What an application's own start or end may take."""
INBOX_MAX: Final = 10
"""Parts of a request body that wait for the application; then the client waits."""


class Inbox:
    """What an application receives. Full, it makes the sender wait; closed by either side, it never does."""

    def __init__(self) -> None:
        self._put, self._take = trio.open_memory_channel[Message](INBOX_MAX)

    async def put(self, message: Message) -> None:
        """Hand over a part of the request, or the news of its end; dropped when nobody takes it."""
        if message["type"].endswith(".disconnect"):
            self._put.close()
            return
        try:
            await self._put.send(message)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return

    async def receive(self) -> Message:
        try:
            return await self._take.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError):
            return {"type": "http.disconnect"}

    def close(self) -> None:
        self._put.close()
        self._take.close()


class Shields:
    """The shields that stand on one connection, so that whoever cuts the connection cuts through them."""

    def __init__(self) -> None:
        self._standing: set[trio.CancelScope] = set()
        self._cut = False

    async def over(self, call: Callable[[], Awaitable[None]], seconds: float) -> bool:
        """Await ``call``, out of reach of every cancellation, for at most ``seconds``; whether it came to its
        end.
        """
        with trio.CancelScope(shield=True, deadline=trio.current_time() + seconds) as scope:
            if self._cut:
                scope.cancel()
            self._standing.add(scope)
            try:
                await call()
            finally:
                self._standing.discard(scope)
        return not scope.cancelled_caught

    def cut(self) -> None:
        self._cut = True
        for scope in list(self._standing):
            scope.cancel()


class Lifespan:
    """The start and the end of an application. One that knows neither, and raises or returns, is served all
    the same.
    """

    def __init__(self, app: App, fault: Fault) -> None:
        self._app = app
        self._fault = fault
        self._put, self._take = trio.open_memory_channel[Message](2)
        self._answered = trio.Event()
        self._started = False
        self._over = False
        self._failure: str | None = None

    async def run(self) -> None:
        """The application's side, for as long as it is served."""
        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": {}}
        try:
            await self._app(scope, self._take.receive, self._send)
        except* Exception as defects:
            if self._started:
                self._fault(defects)
        finally:
            self._over = True
            self._answered.set()

    async def tell(self, event: str) -> None:
        """Say ``startup`` or ``shutdown`` and wait for its end. Raises InvariantViolation when it failed or
        took too long.
        """
        if self._over:
            return
        self._answered = trio.Event()
        self._put.send_nowait({"type": f"lifespan.{event}"})
        with trio.move_on_after(LIFESPAN_S) as waiting:
            await self._answered.wait()
        if waiting.cancelled_caught or self._failure is not None:
            why = self._failure or f"no answer in {LIFESPAN_S} s"
            raise errors.InvariantViolation(f"The {event} of a surface failed: {why}.")

    async def _send(self, message: Message) -> None:
        if message["type"].endswith(".failed"):
            self._failure = str(message.get("message", "")) or "it did not say why"
        self._started = True
        self._answered.set()


async def run(
    app: App,
    scope: Scope,
    inbox: Inbox,
    answer: Answer,
    *,
    shields: Shields,
    stall_s: float,
    fault: Fault,
) -> None:
    """Run one request to its end.

    A defect of the application is told to ``fault`` and answered 500, or by a cut where an answer had begun;
    it never reaches the connection's other requests.
    """
    last: Message = {"type": "http.response.body", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] != "http.response.body" or message.get("more_body", False):
            await answer(message)
            return
        if message.get("body"):
            # The bytes may take long; only the end is shielded, and it has none.
            await answer({**message, "more_body": True})
        await shields.over(lambda: answer(last), stall_s)

    try:
        await app(scope, inbox.receive, send)
    except* Exception as defects:
        fault(defects.exceptions[0] if len(defects.exceptions) == 1 else defects)
    finally:
        inbox.close()
        await answer(None)
