"""S141: a socket that the service manager passed is one that a listener here answers on, or the start is refused in a
sentence."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentplane.appliance import sockets
from agentplane.appliance.sockets import Inherited, Tcp
from agentplane.appliance.systemd import Given
from agentplane.core import errors

Addresses = dict[str, str | None]


@pytest.fixture
def passed() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=7) as listening:
        yield listening


def refusal(given: list[Given], addresses: Addresses) -> str:
    """The one sentence."""
    with pytest.raises(errors.Settings) as refused:
        sockets.check_given(given, addresses)
    return refused.value.message


def test_a_socket_by_its_listeners_name_is_taken(passed: socket.socket) -> None:
    """`systemd:NAME` whatever it is bound to, HOST:PORT when it is bound there, fd:N under any name."""
    port, given = passed.getsockname()[1], [Given(passed.fileno(), "operator")]
    for text in ("systemd:operator", f"127.0.0.1:{port}", f"localhost:{port}"):
        sockets.check_given(given, {"operator": text, "probe": None})
        assert sockets.parse_address(text, given=given, listener="operator") == Inherited(passed.fileno(), "operator")
    sockets.check_given([Given(passed.fileno(), "unknown")], {"operator": f"fd:{passed.fileno()}", "probe": None})
    os.fstat(passed.fileno())


def test_without_a_passed_socket_the_same_address_is_bound() -> None:
    """One plane.toml for both: under a manager, and at a terminal."""
    assert isinstance(sockets.parse_address("127.0.0.1:8080", given=[], listener="operator"), Tcp)
    other = [Given(3, "probe")]
    assert isinstance(sockets.parse_address("127.0.0.1:8080", given=other, listener="operator"), Tcp)


def test_a_name_that_no_listener_has_is_refused(passed: socket.socket) -> None:
    """What waits there would wait for ever; the names that there are are named."""
    sentence = refusal([Given(passed.fileno(), "peers")], {"operator": "systemd:operator", "probe": None})
    assert "'peers'" in sentence and "operator, probe" in sentence
    long = refusal([Given(passed.fileno(), "x" * 5000)], {"operator": None, "probe": None})
    assert len(long) < 300


def test_the_control_socket_is_never_passed(passed: socket.socket) -> None:
    """Its file, its group and its life are the plane's: a passed one is refused like any unknown name."""
    sentence = refusal([Given(passed.fileno(), "control")], {"operator": "systemd:operator", "probe": "systemd:probe"})
    assert "'control'" in sentence and "operator, probe" in sentence


def test_two_under_one_name_are_refused(passed: socket.socket) -> None:
    """Nobody would accept from the second."""
    given = [Given(passed.fileno(), "operator"), Given(passed.fileno(), "operator")]
    assert "twice" in refusal(given, {"operator": "systemd:operator"})


def test_a_socket_of_a_listener_that_is_off_is_refused(passed: socket.socket) -> None:
    """Its socket unit runs and plane.toml does not name it."""
    assert "probe_addr is off" in refusal([Given(passed.fileno(), "probe")], {"operator": None, "probe": None})


def test_a_socket_at_another_address_is_refused(passed: socket.socket, tmp_path: Path) -> None:
    """Both addresses are said; a Unix socket is at no HOST:PORT."""
    port = passed.getsockname()[1]
    sentence = refusal([Given(passed.fileno(), "operator")], {"operator": f"127.0.0.1:{port + 1}"})
    assert f"127.0.0.1:{port}," in sentence and str(port + 1) in sentence and "systemd:operator" in sentence
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(tmp_path / "sock"))
        unix.listen()
        assert str(tmp_path / "sock") in refusal([Given(unix.fileno(), "operator")], {"operator": f"127.0.0.1:{port}"})
        sockets.check_given([Given(unix.fileno(), "operator")], {"operator": "systemd:operator"})


def test_the_probes_socket_is_taken_by_its_name_alone(passed: socket.socket) -> None:
    """The manager answers a connect while no plane runs: who passes it says so in plane.toml too."""
    port, given = passed.getsockname()[1], [Given(passed.fileno(), "probe")]
    assert "systemd:probe" in refusal(given, {"operator": None, "probe": f"127.0.0.1:{port}"})
    sockets.check_given(given, {"operator": None, "probe": "systemd:probe"})


def test_another_kind_of_socket_is_refused(tmp_path: Path) -> None:
    """A datagram socket, one that does not listen, a FIFO: and each stays its owner's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams, socket.socket() as deaf:
        assert "not a stream socket" in refusal(
            [Given(datagrams.fileno(), "operator")], {"operator": "systemd:operator"}
        )
        assert "does not listen" in refusal([Given(deaf.fileno(), "operator")], {"operator": "systemd:operator"})
        os.mkfifo(tmp_path / "fifo")
        fifo = os.open(tmp_path / "fifo", os.O_RDWR)
        assert "not an open socket" in refusal([Given(fifo, "operator")], {"operator": "systemd:operator"})
        for descriptor in (datagrams.fileno(), deaf.fileno(), fifo):
            os.fstat(descriptor)
        os.close(fifo)
