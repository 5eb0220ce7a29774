"""A listener ends in order: what has arrived is answered; nobody who idles, stalls or hangs holds it up."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import trio
import trio.testing

from agentplane.appliance import exchange, listeners
from agentplane.appliance.connection import Limits
from agentplane.core import errors
from appliance.served import PATIENCE_S, Client, Gate, Plane, make_app, serving

NEXT_PROCESS = """
import socket, sys, trio
from agentplane.appliance import exchange, listeners

async def app(scope, receive, send):
    assert scope["type"] == "http"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    await send({"type": "http.response.body", "body": b"next"})

sock = listeners.bind(listeners.Inherited(int(sys.argv[1])))
trio.run(listeners.Server(app, sock, name="operator", inherited=True).serve)
"""


@pytest.mark.parametrize("pauses", range(25))
async def test_a_request_on_an_idle_connection_at_the_moment_of_shutdown_is_answered(
    pauses: int, tmp_path: Path
) -> None:
    """Sent before, at and after the close, it gets its answer, which says that it was the last."""
    async with serving(make_app(), tmp_path) as plane:
        clients = [await plane.connect() for _ in range(4)]
        for client in clients:
            await client.get()
        plane.nursery.start_soon(plane.close)
        for client in clients:
            for _ in range(pauses):
                await trio.lowlevel.checkpoint()
            await client.send()
        for client in clients:
            answer = await client.answer()
            assert (answer.status, answer.headers["connection"]) == (200, "close")
            assert await client.rest() == b""
            await client.stream.aclose()
    assert not plane.faults


async def test_an_idle_connection_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """After the linger it is half-closed, with an hour of grace left: nothing is cut, and nothing waits."""
    async with serving(make_app(), tmp_path) as plane:
        used, fresh = await plane.connect(), await plane.connect()
        await used.get()
        assert await plane.close() == 0
        assert (await used.rest(), await fresh.rest()) == (b"", b"")


class Late(trio.abc.Instrument):
    """Sends once, after the loop has asked the kernel for news and before it looks at deadlines that have
    passed.
    """

    def __init__(self, plane: Plane, sock: socket.socket) -> None:
        self._plane = plane
        self._sock = sock

    def after_io_wait(self, timeout: float) -> None:
        (connection,) = self._plane.server._connections
        if connection.draining and trio.current_time() >= connection._reading.deadline:
            trio.lowlevel.remove_instrument(self)
            self._sock.send(b"GET / HTTP/1.1\r\nHost: plane\r\n\r\n")


async def test_a_request_that_comes_with_the_end_of_the_linger_is_answered(tmp_path: Path) -> None:
    """The read has been given up, and before the half-close the kernel is asked once more."""
    async with serving(make_app(), tmp_path, linger_ms=20) as plane:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(plane.path))
            sock.setblocking(False)
            while not plane.server.connections:
                await trio.testing.wait_all_tasks_blocked()
            trio.lowlevel.add_instrument(Late(plane, sock))
            assert await plane.close() == 0
            assert b" 200 " in sock.recv(4096).split(b"\r\n")[0]


async def test_the_end_of_an_answer_is_told_whatever_cancels_the_application(tmp_path: Path) -> None:
    """A framework cancels its request in the middle of its last send: the answer is whole, the connection of
    use.
    """

    async def app(scope: exchange.Scope, receive: exchange.Receive, send: exchange.Send) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"whole", "more_body": True})
            with trio.CancelScope() as cancelled:
                cancelled.cancel()
                await send({"type": "http.response.body", "body": b""})

    async with serving(app, tmp_path) as plane:
        client = await plane.connect()
        for _ in range(2):
            assert (await client.get()).body == b"whole"


async def test_bytes_that_lie_unread_when_the_linger_ends_are_a_request(tmp_path: Path) -> None:
    """The deadline of a read and the request may come in one turn of the loop: the request wins."""
    async with serving(make_app(), tmp_path, linger_ms=0) as plane:
        client = await plane.connect()
        await client.get()
        plane.nursery.start_soon(plane.close)
        await client.send()
        assert (await client.answer()).status == 200


async def test_an_idle_connection_is_closed_after_its_timeout(tmp_path: Path) -> None:
    """Also one that has served a request (under quart-trio with Hypercorn's own server it never was)."""
    async with serving(make_app(), tmp_path, limits=Limits(keep_alive_s=0.05)) as plane:
        used, fresh = await plane.connect(), await plane.connect()
        assert (await used.get()).status == 200
        assert (await used.rest(), await fresh.rest()) == (b"", b"")


async def test_a_request_in_flight_is_answered_and_says_it_was_the_last(tmp_path: Path) -> None:
    """However much longer than the linger it takes."""
    gate = Gate()
    async with serving(make_app(gate), tmp_path, linger_ms=0) as plane:
        client = await plane.connect()
        await client.send("/gate")
        await gate.entered.wait()
        closed = trio.Event()

        async def close() -> None:
            assert await plane.close() == 0
            closed.set()

        plane.nursery.start_soon(close)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert not closed.is_set()
        gate.open.set()
        answer = await client.answer()
        assert (answer.body, answer.headers["connection"]) == (b"through", "close")
        assert await client.rest() == b""
        await closed.wait()


async def test_a_request_whose_first_bytes_have_arrived_is_served(tmp_path: Path) -> None:
    """Half a head at the moment of shutdown, the rest long after the linger."""
    async with serving(make_app(), tmp_path, linger_ms=0) as plane:
        client = await plane.connect()
        await client.get()
        await client.stream.send_all(b"GET / HTTP/1.1\r\nHo")
        plane.nursery.start_soon(plane.close)
        await trio.testing.wait_all_tasks_blocked(0.02)
        await client.stream.send_all(b"st: plane\r\n\r\n")
        assert b"200" in (await client.rest()).split(b"\r\n")[0]


async def test_requests_that_came_one_behind_the_other_are_both_answered(tmp_path: Path) -> None:
    """The first does not say that it was the last, since it was not."""
    gate = Gate()
    async with serving(make_app(gate), tmp_path) as plane:
        client = await plane.connect()
        await client.stream.send_all(b"GET /gate HTTP/1.1\r\nHost: plane\r\n\r\nGET / HTTP/1.1\r\nHost: plane\r\n\r\n")
        await gate.entered.wait()
        plane.nursery.start_soon(plane.close)
        gate.open.set()
        first, second = (await client.rest()).split(b"HTTP/1.1 200")[1:]
        assert b"through" in first and b"close" not in first
        assert b"connection: close" in second.lower()


async def test_a_stream_ends_when_the_application_ends_it(tmp_path: Path) -> None:
    """Its last event and its end arrive whole; then its connection idles and is closed."""
    gate = Gate()
    async with serving(make_app(gate), tmp_path) as plane:
        client = await plane.connect()
        await client.send("/stream")
        await gate.entered.wait()
        plane.nursery.start_soon(plane.close)
        await trio.testing.wait_all_tasks_blocked(0.01)
        gate.open.set()
        assert (await client.answer()).body == b"event: hello\n\nevent: draining\n\n"
        assert await client.rest() == b""


async def test_a_client_that_never_reads_cannot_hold_up_the_end(tmp_path: Path) -> None:
    """Its send is shielded, and cut at the hard deadline."""
    async with serving(make_app(), tmp_path) as plane:
        client = await plane.connect()
        await client.send("/flood")
        await client.head()
        assert await plane.close(grace_s=0.2) == 1
        assert plane.server.connections == 0


async def test_a_client_that_stops_reading_is_dropped(tmp_path: Path) -> None:
    """Without any shutdown, after the stall."""
    async with serving(make_app(), tmp_path, limits=Limits(stall_s=0.05)) as plane:
        client = await plane.connect()
        await client.send("/flood")
        await plane.all_gone()


async def test_cancelling_the_listener_cuts_through_every_shield(tmp_path: Path) -> None:
    """A nursery that is cancelled ends at once, whatever a client does not read."""
    async with serving(make_app(), tmp_path) as plane:
        client = await plane.connect()
        await client.send("/flood")
        await client.head()
        with trio.fail_after(PATIENCE_S):
            plane.nursery.cancel_scope.cancel()
            await trio.lowlevel.checkpoint_if_cancelled()


async def test_an_application_that_ignores_its_end_is_left_behind(tmp_path: Path) -> None:
    """It waits in a thread that nobody can cancel: close goes on without it."""
    entered, release = trio.Event(), trio.Event()

    async def app(scope: exchange.Scope, receive: exchange.Receive, send: exchange.Send) -> None:
        if scope["type"] == "http":
            with trio.CancelScope(shield=True):
                entered.set()
                await release.wait()

    async with serving(app, tmp_path) as plane:
        client = await plane.connect()
        await client.send()
        await entered.wait()
        assert await plane.close(grace_s=0) == 1
        release.set()


# --- accepting --------------------------------------------------------------------------------------


async def test_what_has_connected_to_a_socket_of_ours_is_served(tmp_path: Path) -> None:
    """A connection in the backlog at the signal was made before it; later ones find nobody."""
    async with serving(make_app(), tmp_path) as plane:
        early = socket.socket(socket.AF_UNIX)
        early.connect(str(plane.path))
        early.send(b"GET / HTTP/1.1\r\nHost: plane\r\n\r\n")
        plane.server.stop_accepting()
        with pytest.raises(OSError), socket.socket(socket.AF_UNIX) as late:
            late.connect(str(plane.path))
        plane.nursery.start_soon(plane.close)
        early.setblocking(False)
        client = Client(trio.SocketStream(trio.socket.from_stdlib_socket(early)))
        plane.streams.append(client.stream)
        assert b"200" in (await client.rest()).split(b"\r\n")[0]
    assert not plane.path.exists()


async def test_an_inherited_socket_serves_the_next_process(tmp_path: Path) -> None:
    """Stopped here, it stays open: what connected meanwhile waits in its backlog, which keeps its length, and
    the
    next process answers."""
    parents = socket.create_server(("127.0.0.1", 0), backlog=77)
    sock = listeners.bind(listeners.Inherited(parents.fileno()))
    server = listeners.Server(make_app(), sock, name="operator", inherited=True)
    address = parents.getsockname()
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve)
        first = Client(await trio.open_tcp_stream(*address))
        assert (await first.get()).status == 200
        await first.stream.aclose()
        parked = [await _parked(address)]
        server.stop_accepting()
        between = [Client(await trio.open_tcp_stream(*address)) for _ in range(5)]
        between += parked
        for client in between:
            await client.send()
        with trio.fail_after(PATIENCE_S):
            assert await server.close(hard_deadline=trio.current_time() + 3600) == 0
    assert parents.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
    # For a listening socket the kernel shows its backlog's length where acknowledgements stand otherwise.
    assert struct.unpack_from("I", parents.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 28)[0] == 77
    process = subprocess.Popen([sys.executable, "-c", NEXT_PROCESS, str(parents.fileno())], pass_fds=[parents.fileno()])
    try:
        for client in [*between, Client(await trio.open_tcp_stream(*address))]:
            answer = await (client.answer() if client in between else client.get())
            assert answer.body == b"next"
            await client.stream.aclose()
    finally:
        process.kill()
        process.wait()
        parents.close()


async def _parked(address: tuple[str, int]) -> Client:
    """Connected, and not yet seen by a loop that does not run meanwhile."""
    sock = socket.create_connection(address)
    sock.setblocking(False)
    return Client(trio.SocketStream(trio.socket.from_stdlib_socket(sock)))


async def test_connections_over_the_limit_are_refused_politely(tmp_path: Path) -> None:
    """503 and when to come again; who is in stays in, and a place that is free again is given again."""
    async with serving(make_app(), tmp_path, limits=Limits(connections_max=1)) as plane:
        first = await plane.connect()
        assert (await first.get()).status == 200
        second = await plane.connect()
        refused = await second.get()
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert (await first.get()).status == 200
        await first.stream.aclose()
        await plane.all_gone()
        assert (await (await plane.connect()).get()).status == 200


# --- who is there, and what they may do ---------------------------------------------------------------


async def test_the_application_sees_who_is_there(tmp_path: Path) -> None:
    """The kernel's word on the process that called connect: uid, gid, groups, pid."""
    async with serving(make_app(), tmp_path) as plane:
        answer = await (await plane.connect()).get()
    gids = sorted({os.getegid(), *os.getgroups()})
    for part in (f'"uid":{os.geteuid()}', f'"gid":{os.getegid()}', f'"pid":{os.getpid()}'):
        assert part.encode() in answer.body
    found = answer.body.split(b'"gids":[')[1].split(b"]")[0]
    assert sorted(int(gid) for gid in found.split(b",")) == gids


async def test_another_uid_is_seen_with_its_groups(open_dir: Path, second_uid: int) -> None:
    """A client that gave up its rights before connecting has none here."""
    async with serving(make_app(), open_dir, mode=0o666) as plane:
        plane.path.parent.chmod(0o755)
        answer = await trio.to_thread.run_sync(_ask_as, second_uid, [4001, 4002], str(plane.path))
    assert f'"uid":{second_uid}'.encode() in answer
    assert f'"gids":[{second_uid},4001,4002]'.encode() in answer


def _ask_as(uid: int, groups: list[int], path: str) -> bytes:
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Newer Pythons warn of a fork beside threads; the child asks once and leaves.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        try:
            os.setgroups(groups)
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(path)
                sock.send(b"GET / HTTP/1.1\r\nHost: plane\r\nConnection: close\r\n\r\n")
                while data := sock.recv(4096):
                    os.write(writer, data)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        answer = stream.read()
    os.waitpid(child, 0)
    return answer


async def test_a_head_that_does_not_arrive_is_given_up(tmp_path: Path) -> None:
    """A byte now and then does not make the time longer: 408, and the place is free."""
    async with serving(make_app(), tmp_path, limits=Limits(head_s=0.1)) as plane:
        client = await plane.connect()

        async def drip() -> None:
            for _ in range(100_000):
                try:
                    await client.stream.send_all(b"G")
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return
                await trio.sleep(0.01)

        plane.nursery.start_soon(drip)
        assert b"408" in (await client.rest()).split(b"\r\n")[0]


async def test_a_head_too_large_is_refused(tmp_path: Path) -> None:
    """431, readable although the client had more to say."""
    async with serving(make_app(), tmp_path) as plane:
        client = await plane.connect()
        await client.stream.send_all(b"GET / HTTP/1.1\r\nX: " + b"x" * 40_000)
        assert b"431" in (await client.rest()).split(b"\r\n")[0]


async def test_a_defect_of_the_application_is_told_and_stays_its_own(tmp_path: Path) -> None:
    """500 to this request, the error to whoever is to know, and the next request is served."""

    async def app(scope: exchange.Scope, receive: exchange.Receive, send: exchange.Send) -> None:
        raise LookupError(scope["type"])

    async with serving(app, tmp_path) as plane:
        for _ in range(2):
            assert (await (await plane.connect()).get()).status == 500
        assert [str(error) for error in plane.faults if isinstance(error, LookupError)] == ["http", "http"]


async def test_an_application_that_does_not_start_is_not_served(tmp_path: Path) -> None:
    """Its own word for why is in the error."""
    app = make_app()

    @app.before_serving
    async def fails() -> None:
        raise LookupError("no ledger")

    with pytest.RaisesGroup(pytest.RaisesExc(errors.InvariantViolation, match="no ledger"), flatten_subgroups=True):
        async with serving(app, tmp_path):
            pytest.fail("it was served")


async def test_a_body_that_nobody_reads_holds_up_nothing(tmp_path: Path) -> None:
    """The application answers early: the answer is readable, and the connection ends."""

    async def app(scope: exchange.Scope, receive: exchange.Receive, send: exchange.Send) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 413, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})

    async with serving(app, tmp_path) as plane:
        client = await plane.connect()
        head = b"POST / HTTP/1.1\r\nHost: plane\r\nContent-Length: 9999999\r\n\r\n"
        await client.stream.send_all(head + b"x" * 200_000)
        assert b"413" in (await client.rest()).split(b"\r\n")[0]
        await client.stream.aclose()
        assert await plane.close() == 0


async def test_a_websocket_is_refused(tmp_path: Path) -> None:
    """There is none; and a connection that became one would drain by no rule."""
    async with serving(make_app(), tmp_path) as plane:
        client = await plane.connect()
        upgrade = ["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"]
        await client.send("/", *upgrade, "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")
        assert b" 403 " in (await client.rest()).split(b"\r\n")[0]


async def test_an_upgrade_in_clear_text_is_not_taken_up(tmp_path: Path) -> None:
    """Neither by header nor by preface: HTTP/1.1 is answered as HTTP/1.1."""
    async with serving(make_app(), tmp_path) as plane:
        client = await plane.connect()
        answer = await client.get("/", "Upgrade: h2c", "Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: ")
        assert answer.status == 200
        preface = await plane.connect()
        await preface.stream.send_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert (await preface.rest()).startswith(b"HTTP/1.1 ")


async def test_a_client_that_leaves_is_noticed(tmp_path: Path) -> None:
    """The application's request is cancelled, and the connection is gone."""
    gate = Gate()
    async with serving(make_app(gate), tmp_path) as plane:
        client = await plane.connect()
        await client.send("/gate")
        await gate.entered.wait()
        await client.stream.aclose()
        await plane.all_gone()
