"""What the clients of rolling deploys call the end of a request, told by servers that misbehave in one way each."""

from __future__ import annotations

import json
import random
import socket
import struct
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from appliance.rolling import clients as subject
from appliance.rolling.clients import (
    ANSWERED,
    DRAINING,
    FAULT,
    LATE,
    ONCE,
    OPENED,
    REFUSED,
    RESET,
    REUSED,
    UNANSWERED,
    Asked,
    Clients,
    Ended,
)
from appliance.rolling.load import Load
from appliance.rolling.world import Flights

GET = Asked("GET", "/runs")
Answer = Callable[[trio.SocketStream], Awaitable[None]]


def response(status: int, body: object, *more: str) -> bytes:
    data = json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(data)}", *more]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


async def say(data: bytes, stream: trio.SocketStream) -> None:
    await stream.send_all(data)


async def reset(stream: trio.SocketStream) -> None:
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def be_silent(stream: trio.SocketStream) -> None:
    await trio.sleep_forever()


async def asked_of(answer: Answer, *, keep: bool = False, times: int = 1) -> list[Ended]:
    """Ends of requests, one after the other, to a server that answers each on its connection by ``answer``."""

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            while b"\r\n\r\n" in await stream.receive_some(4096):
                await answer(stream)
                if answer is reset or answer is hang_up:
                    return

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        clients = Clients(listeners[0].socket.getsockname(), "token", 4)
        found = [await clients.ask(GET, keep=keep) for _ in range(times)]
        clients.close()
        nursery.cancel_scope.cancel()
    return found


async def hang_up(stream: trio.SocketStream) -> None:
    """End the connection without a word."""


DRAINED = response(503, {"code": "draining"}, "Retry-After: 1")


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (partial(say, response(200, {})), ANSWERED),
        (partial(say, response(404, {})), ANSWERED),
        (partial(say, DRAINED), DRAINING),
        (partial(say, response(503, {"code": "draining"})), FAULT),
        (partial(say, response(503, {"code": "busy"}, "Retry-After: 1")), FAULT),
        (partial(say, response(500, {})), FAULT),
        (reset, RESET),
        (hang_up, UNANSWERED),
        (partial(say, b"no HTTP\r\n\r\n"), UNANSWERED),
    ],
)
async def test_how_a_request_ended(answer: Answer, kind: str) -> None:
    """Each end has one word; a refusal for the drain is one only with the words that make a client come again."""
    assert [one.kind for one in await asked_of(answer)] == [kind]


async def test_half_an_answer_is_none() -> None:
    """The connection ends before the body that was announced."""

    async def half(stream: trio.SocketStream) -> None:
        await stream.send_all(response(200, {"run": "run_1"})[:-4])
        await stream.send_eof()

    assert (await asked_of(half))[0].kind == UNANSWERED


async def test_nobody_listens() -> None:
    """Refused, and so no other loss."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert (await Clients(bound.getsockname(), "token", 4).ask(GET, keep=False)).kind == REFUSED


async def test_no_answer_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request is not waited for without end."""
    monkeypatch.setattr(subject, "PATIENCE_S", 0.05)
    assert (await asked_of(be_silent))[0].kind == LATE


async def test_a_kept_connection_is_used_again_and_an_ended_one_is_not() -> None:
    """The second request is on the first one's connection, unless the server said that it was the last."""
    again = await asked_of(partial(say, response(200, {})), keep=True, times=3)
    assert [one.on for one in again] == [OPENED, REUSED, REUSED]
    last = await asked_of(partial(say, response(200, {}, "Connection: close")), keep=True, times=2)
    assert [one.on for one in last] == [OPENED, OPENED] and {one.kind for one in last} == {ANSWERED}
    assert [one.on for one in await asked_of(partial(say, response(200, {})), times=2)] == [ONCE, ONCE]


def load(directory: Path) -> Load:
    return Load(Clients(("127.0.0.1", 1), "token", 4), Flights(directory / "flights"), random.Random(1), 9)


def admitted(status: int, body: Any, order: str = "o1") -> tuple[Asked, Ended]:
    asked = Asked("POST", "/runs", json.dumps({"input": {"order": order, "ms": [50]}}).encode(), f"key-{order}")
    kind = FAULT if status >= 500 else ANSWERED
    return asked, Ended(kind, asked, ONCE, 0.0, 1.0, status, body)


def read(body: Any, status: int = 200) -> tuple[Asked, Ended]:
    asked = Asked("GET", f"/runs/{body.get('run')}")
    return asked, Ended(ANSWERED, asked, ONCE, 0.0, 1.0, status, body)


RUN = {"run": "run_1", "status": "running"}
DONE = {"run": "run_1", "status": "succeeded", "output": {"order": "o1", "deeds": 1}}


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([admitted(201, RUN), admitted(200, RUN), read(RUN), read(DONE), read(DONE)], []),
        ([admitted(201, RUN), admitted(503, {})], []),
        ([admitted(201, RUN), admitted(200, RUN | {"run": "run_2"})], ["the key of run_1 was answered with another"]),
        ([admitted(201, RUN), admitted(201, RUN)], ["run_1 was admitted twice"]),
        ([admitted(201, RUN), read(DONE), read(RUN)], ["run_1 was succeeded, and later running"]),
        ([admitted(201, RUN), read(DONE | {"output": {}})], ["run_1 has the output"]),
        ([admitted(201, RUN), read(RUN, status=404)], ["GET /runs/run_1 was answered 404"]),
        ([admitted(422, {})], ["POST /runs was answered 422"]),
    ],
)
async def test_an_answer_that_contradicts_another_is_told(
    tmp_path: Path, answers: list[tuple[Asked, Ended]], said: list[str]
) -> None:
    """A key has one run, a run does not unhappen, and what ended stays ended."""
    subject = load(tmp_path)
    for asked, ended in answers:
        subject.told(asked, ended)
    assert len(subject.requests) == len(answers)
    assert [one[: len(word)] for one, word in zip(subject.wrong, said, strict=True)] == said
