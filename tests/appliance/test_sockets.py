"""Sockets are bound with the rights asked for, over nobody alive, and what cannot be is one sentence."""

from __future__ import annotations

import os
import select
import socket
import stat
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentplane.appliance import sockets, systemd
from agentplane.appliance.sockets import Inherited, Tcp, Unix
from agentplane.core import errors


def refusal(endpoint: sockets.Endpoint) -> str:
    """The one sentence of a bind that must not succeed."""
    with pytest.raises(errors.Settings) as caught:
        sockets.bind(endpoint).close()
    assert caught.value.message.count("\n") == 0
    return caught.value.message


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_a_socket_has_the_mode_asked_for_under_any_umask(
    umask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Directory 0750 and socket 0660, and the umask, which every thread shares, is not touched."""
    before = os.umask(umask)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(os, "umask", lambda _: pytest.fail("the umask was changed"))
            sock = sockets.bind(Unix(tmp_path / "run" / "control.sock"))
    finally:
        os.umask(before)
    with sock:
        assert mode_of(tmp_path / "run") == 0o750
        assert mode_of(tmp_path / "run" / "control.sock") == 0o660
        assert not sock.get_inheritable()


def test_a_live_socket_is_not_unlinked(tmp_path: Path) -> None:
    """Something answers there: the path stays its own, and the refusal names its process."""
    path = tmp_path / "control.sock"
    with sockets.bind(Unix(path)) as live:
        sentence = refusal(Unix(path))
        assert f"process {os.getpid()}" in sentence
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            live.accept()[0].close()  # the probe's
            live.accept()[0].close()


def test_a_live_socket_with_a_full_backlog_is_alive(tmp_path: Path) -> None:
    """A plane too busy to accept is not a plane that has gone."""
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as live:
        live.bind(str(path))
        live.listen(0)
        waiting = []
        for _ in range(8):
            client = socket.socket(socket.AF_UNIX)
            client.setblocking(False)
            waiting.append(client)
            try:
                client.connect(str(path))
            except BlockingIOError:
                break
        assert "in use" in refusal(Unix(path))
        for client in waiting:
            client.close()


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    """Nobody answers there: a plane that was killed leaves its socket, and the next one starts."""
    path = tmp_path / "control.sock"
    sockets.bind(Unix(path)).close()
    assert path.is_socket()
    with sockets.bind(Unix(path)), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    """A mistaken path costs nobody a file."""
    path = tmp_path / "plane.db"
    path.write_text("precious")
    assert "not a socket" in refusal(Unix(path))
    assert path.read_text() == "precious"


@pytest.mark.parametrize(("length", "fits"), [(107, True), (108, False), (120, False)])
def test_a_path_that_the_kernel_cannot_hold_is_refused(length: int, fits: bool, open_dir: Path) -> None:
    """107 bytes fit; more is said with both numbers, before anything is made."""
    path = open_dir / "r" / ("s" * (length - len(os.fsencode(open_dir)) - 3))
    assert len(os.fsencode(path)) == length
    if fits:
        sockets.bind(Unix(path)).close()
        return
    assert f"{length} bytes" in refusal(Unix(path))
    assert not path.parent.exists()


def test_a_directory_open_to_others_is_refused(tmp_path: Path) -> None:
    """Whoever may write there could put a socket of his own in our place."""
    run = tmp_path / "run"
    run.mkdir()
    run.chmod(0o770)
    assert "writable by group or others" in refusal(Unix(run / "control.sock"))


def _bind_in(directory: Path) -> str:
    return refusal(Unix(directory / "run" / "control.sock")) + "\n" + refusal(Unix(directory / "s"))


def test_a_directory_that_cannot_be_written_is_named(open_dir: Path, as_other_uid: Callable[..., Any]) -> None:
    """Neither the directory nor the socket can be made, and each sentence says what and as whom."""
    open_dir.chmod(0o555)
    first, second = as_other_uid(_bind_in, open_dir).splitlines()
    assert str(open_dir / "run") in first
    assert "cannot be" in second and "denied" in second


def test_two_that_bind_at_once_do_not_both_win(tmp_path: Path) -> None:
    """Between a probe and a bind nobody else removes or binds: the second waits, and then finds the first."""
    path = tmp_path / "control.sock"
    with sockets._alone_in(tmp_path):
        reader, writer = os.pipe()
        with warnings.catch_warnings():
            # Newer Pythons warn of a fork beside threads; the child binds and leaves.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if not child:
            try:
                sockets.bind(Unix(path))
                os.write(writer, b"bound")
            except errors.Settings as error:
                os.write(writer, error.message.encode())
            finally:
                os._exit(0)
        assert select.select([reader], [], [], 0.3)[0] == [], "the other did not wait"
        sock = sockets._bound_unix(path, 0o660, -1)
    answer = os.read(reader, 1000).decode()
    os.waitpid(child, 0)
    sock.close()
    os.close(reader)
    os.close(writer)
    assert "in use" in answer


def test_a_port_in_use_is_said(tmp_path: Path) -> None:
    """The address is named, and no traceback comes."""
    with sockets.bind(Tcp("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        assert f"127.0.0.1:{port} is in use" in refusal(Tcp("127.0.0.1", port))


def test_an_address_of_another_host_is_said() -> None:
    """192.0.2.1 is nobody's."""
    assert "not one of this host's" in refusal(Tcp("192.0.2.1", 0))


def _bind_low() -> str:
    return refusal(Tcp("127.0.0.1", 81))


def test_a_port_that_takes_a_right_says_which(as_other_uid: Callable[..., Any]) -> None:
    """Under 1024 the sentence names the capability."""
    if int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text()) <= 81:
        pytest.skip("this kernel gives low ports to everybody")
    assert "CAP_NET_BIND_SERVICE" in as_other_uid(_bind_low)


def test_put_away_removes_our_own_file_and_nobody_elses(tmp_path: Path) -> None:
    """The file goes with the listener; one that the next process bound meanwhile stays."""
    path = tmp_path / "control.sock"
    sockets.put_away(sockets.bind(Unix(path)), inherited=False)
    assert not path.exists()
    old = sockets.bind(Unix(path))
    path.unlink()
    with sockets.bind(Unix(path)):
        sockets.put_away(old, inherited=False)
        assert path.is_socket()


def test_an_inherited_socket_is_taken_as_it_is() -> None:
    """Not listened on again, closed to children, and open after it was put away."""
    with socket.create_server(("127.0.0.1", 0)) as parents:
        parents.set_inheritable(True)
        taken = sockets.bind(Inherited(parents.fileno()))
        assert not os.get_inheritable(parents.fileno())
        assert Inherited(parents.fileno()).loopback
        sockets.put_away(taken, inherited=True)
        socket.create_connection(parents.getsockname()).close()


def test_an_inherited_descriptor_that_cannot_serve_is_left_open(tmp_path: Path) -> None:
    """A file and a socket that does not listen are refused, and stay their owner's."""
    with open(tmp_path / "file", "w") as file, socket.socket() as deaf:
        assert "not an open socket" in refusal(Inherited(file.fileno()))
        assert "does not listen" in refusal(Inherited(deaf.fileno(), "operator"))
        os.fstat(file.fileno())
        os.fstat(deaf.fileno())


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("127.0.0.1:8080", "127.0.0.1", 8080), ("[::1]:80", "::1", 80), ("localhost:0", "localhost", 0)],
)
def test_addresses_are_read(text: str, host: str, port: int) -> None:
    """Host and port, IPv6 in brackets."""
    found = sockets.parse_address(text)
    assert isinstance(found, Tcp)
    assert (found.host, found.port, found.loopback, found.inherited) == (host, port, True, False)


@pytest.mark.parametrize("text", ["", "8080", ":8080", "host:", "host:x", "host:65536", "::1:80", "a:" + "9" * 99])
def test_what_is_no_address_is_refused(text: str) -> None:
    """One sentence that says what an address looks like."""
    with pytest.raises(errors.Settings, match="is not an address"):
        sockets.parse_address(text)


def test_a_passed_socket_is_found_by_name() -> None:
    """`systemd:NAME`; a name that was not passed is answered with those that were."""
    passed = [systemd.Given(3, "operator"), systemd.Given(4, "peers")]
    assert sockets.parse_address("systemd:peers", given=passed) == Inherited(4, "peers")
    assert sockets.parse_address("fd:7") == Inherited(7)
    with pytest.raises(errors.Settings, match="operator, peers"):
        sockets.parse_address("systemd:mcp", given=passed)


def test_a_certificate_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """Missing, and there but no certificate."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    with pytest.raises(errors.Settings, match=r"cert\.pem cannot be read"):
        sockets.tls_context(str(cert), str(key))
    cert.write_text("no certificate")
    key.write_text("no key")
    with pytest.raises(errors.Settings, match="not a certificate chain"):
        sockets.tls_context(str(cert), str(key))
