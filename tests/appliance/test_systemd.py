"""What a service manager passes is taken once, and it is told how the service stands without ever being
waited for.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from agentplane.appliance import systemd
from agentplane.appliance.systemd import Given, Notifier
from agentplane.core import errors

PASSED = """
import json, os, socket, sys
from agentplane.appliance import systemd
first, second = socket.create_server(("127.0.0.1", 0)), socket.create_server(("127.0.0.1", 0))
os.dup2(first.fileno(), 13), os.dup2(second.fileno(), 14)
os.dup2(13, 3), os.dup2(14, 4)
os.environ.update(LISTEN_FDS="2", LISTEN_FDNAMES="operator:peers", LISTEN_PID=str(os.getpid()))
found = systemd.given(os.environ, os.getpid())
left = [name for name in os.environ if name.startswith("LISTEN_")]
print(json.dumps([found, [os.get_inheritable(fd) for fd, _ in found], left]))
sys.stdout.flush()
os._exit(0)
"""


def test_sockets_are_taken_in_order_and_the_environment_forgets_them() -> None:
    """S140: names and numbers, closed to children, and nothing left that a child could take for its own."""
    done = subprocess.run([sys.executable, "-c", PASSED], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[[3, "operator"], [4, "peers"]], [False, False], []]


def test_sockets_for_another_process_are_not_taken() -> None:
    """LISTEN_PID names who they are for; the variables go all the same."""
    environ = {"LISTEN_FDS": "1", "LISTEN_PID": "1", "HOME": "/"}
    assert systemd.given(environ, 2) == []
    assert environ == {"HOME": "/"}


def test_no_sockets_were_passed() -> None:
    """Started by hand there are none, and nothing to complain of."""
    assert systemd.given({}, 2) == []


@pytest.mark.parametrize(
    ("count", "names"), [("two", ""), ("-1", ""), ("65", ""), ("2", "operator"), ("1", "a:b"), ("\u0663", "")]
)
def test_counts_that_contradict_each_other_are_refused(count: str, names: str) -> None:
    """One sentence, and the variables are gone."""
    environ = {"LISTEN_FDS": count, "LISTEN_FDNAMES": names, "LISTEN_PID": "2"}
    with pytest.raises(errors.Settings):
        systemd.given(environ, 2)
    assert environ == {}


def test_a_descriptor_that_is_not_open_is_named() -> None:
    """The parent said sixty-four and passed none."""
    with pytest.raises(errors.Settings, match="descriptor"):
        systemd.given({"LISTEN_FDS": "64", "LISTEN_PID": "2"}, 2)


@pytest.mark.parametrize("abstract", [False, True])
def test_the_manager_is_told(abstract: bool, tmp_path: Path) -> None:
    """Ready, reloading, stopping, with a status on one line; NOTIFY_SOCKET is gone from the environment."""
    address = f"@agentplane-{os.getpid()}" if abstract else str(tmp_path / "notify")
    environ = {"NOTIFY_SOCKET": address}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + address[1:] if abstract else address)
        manager.settimeout(30)
        told = Notifier.of(environ, 2)
        assert environ == {} and told.listened_to
        assert told.ready("serving\nREADY=0") and told.reloading(17) and told.stopping()
        assert told.alive() and told.extend(1.5)
        assert manager.recv(1000) == b"READY=1\nSTATUS=serving READY=0"
        assert manager.recv(1000) == b"RELOADING=1\nMONOTONIC_USEC=17"
        assert manager.recv(1000) == b"STOPPING=1"
        assert manager.recv(1000) == b"WATCHDOG=1"
        assert manager.recv(1000) == b"EXTEND_TIMEOUT_USEC=1500000"


def test_a_manager_that_does_not_listen_is_never_waited_for(tmp_path: Path) -> None:
    """None, gone, of another family, or with a full queue: the answer is False at once."""
    assert not Notifier.of({}, 2).ready() and not Notifier.of({}, 2).listened_to
    assert not Notifier.of({"NOTIFY_SOCKET": str(tmp_path / "gone")}, 2).ready()
    assert not Notifier.of({"NOTIFY_SOCKET": "vsock:2:1234"}, 2).ready()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        told = Notifier(str(tmp_path / "notify"))
        heard = [told.status("busy") for _ in range(5000)]
        assert heard[0] and not heard[-1]


def test_a_name_is_unknown_where_none_was_given() -> None:
    """LISTEN_FDNAMES may be absent: systemd's own word for it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        script = (
            "import os;from agentplane.appliance import systemd;"
            f"os.dup2({listening.fileno()},3);"
            "print(systemd.given({'LISTEN_FDS':'1','LISTEN_PID':'9'},9))"
        )
        done = subprocess.run(
            [sys.executable, "-c", script],
            pass_fds=[listening.fileno()], capture_output=True, text=True, check=True,
        )  # fmt: skip
    assert done.stdout.strip() == str([Given(3, "unknown")])


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "2"}, 30.0),
        ({"WATCHDOG_USEC": "1500000"}, 1.5),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "-5"}, None),
        ({"WATCHDOG_USEC": "9" * 40}, None),
        ({"WATCHDOG_PID": "2"}, None),
        ({}, None),
    ],
)
def test_the_watchdogs_period_is_for_the_process_that_it_names(said: dict[str, str], seconds: float | None) -> None:
    """S140: one that is meant for another process, or is no number, is none; the variables go all the same."""
    environ = said | {"NOTIFY_SOCKET": "/nowhere", "HOME": "/"}
    assert Notifier.of(environ, 2).watchdog_s == seconds
    assert environ == {"HOME": "/"}
    assert Notifier.of(dict(said), 2).watchdog_s is None, "nobody could be told"


def test_the_end_is_said_once(tmp_path: Path) -> None:
    """S145: whoever else begins a drain, and how often."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        told = Notifier(str(tmp_path / "notify"))
        assert [told.stopping("draining") for _ in range(3)] == [True, False, False]
