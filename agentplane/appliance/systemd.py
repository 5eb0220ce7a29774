"""What a service manager passes to a service, and what it wants to hear.

Owns the protocol of LISTEN_FDS, NOTIFY_SOCKET and WATCHDOG_USEC. Refuses sockets meant for another process and counts
that contradict each other. Invariant: what was read is gone from the environment, so no child takes our
sockets for its own or speaks in our name.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping
from typing import Final, NamedTuple

from agentplane.core import errors

FIRST_FD: Final = 3
FDS_MAX: Final = 64
"""More than any plane listens on: a larger number is a mistake, not a service."""
VARIABLES: Final = ("LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PID", "LISTEN_PIDFDID")
WATCHDOG: Final = ("WATCHDOG_USEC", "WATCHDOG_PID")
WATCHDOG_MAX_US: Final = 86_400 * 1_000_000
"""A day: a longer period, or none that is a number, is no watchdog."""
UNNAMED: Final = "unknown"


class Given(NamedTuple):
    """A descriptor that the parent passed, and the name it passed it under (``unknown`` without one)."""

    fd: int
    name: str


def given(environ: MutableMapping[str, str], pid: int) -> list[Given]:
    """The sockets passed to process ``pid``, in order, closed to our own children from now on; none when they
    are not for it.

    Removes the variables. Raises Settings when they contradict each other or a descriptor is not open.
    """
    said = {name: environ.pop(name, "") for name in VARIABLES}
    if not said["LISTEN_FDS"] or said["LISTEN_PID"] != str(pid):
        return []
    count = _count(said["LISTEN_FDS"])
    names = said["LISTEN_FDNAMES"].split(":") if said["LISTEN_FDNAMES"] else [UNNAMED] * count
    if len(names) != count:
        raise errors.Settings(f"LISTEN_FDS says {count} sockets and LISTEN_FDNAMES names {len(names)}.")
    found = [Given(FIRST_FD + index, name) for index, name in enumerate(names)]
    for one in found:
        try:
            os.set_inheritable(one.fd, False)
        except OSError as error:
            raise errors.Settings(
                f"LISTEN_FDS passes descriptor {one.fd} ({one.name}), and {error.strerror}."
            ) from None
    return found


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 4) or int(text) > FDS_MAX:
        raise errors.Settings(f"LISTEN_FDS is a number of sockets up to {FDS_MAX}, not {text[:20]!r}.")
    return int(text)


def watchdog_s(environ: MutableMapping[str, str], pid: int) -> float | None:
    """How long the manager waits for a sign of life of process ``pid``, in seconds; None when it waits for none.

    Removes the variables. They come from a manager that would act on them: what is no number is none of its own.
    """
    usec, meant = (environ.pop(name, "") for name in WATCHDOG)
    if meant and meant != str(pid):
        return None
    if not (usec.isascii() and usec.isdigit() and len(usec) < 16) or not 0 < int(usec) <= WATCHDOG_MAX_US:
        return None
    return int(usec) / 1_000_000


class Notifier:
    """Tells the service manager how this process stands. Never blocks and never fails: a manager that is gone
    hears nothing. ``watchdog_s``: how often it wants to hear that this process lives, at least; None for never.
    """

    def __init__(self, address: str | None, watchdog_s: float | None = None) -> None:
        self._address = address
        self.watchdog_s = None if address is None else watchdog_s
        self._stopping = False

    @classmethod
    def of(cls, environ: MutableMapping[str, str], pid: int) -> Notifier:
        """From NOTIFY_SOCKET and WATCHDOG_*, which are removed. An address of another family (vsock) is treated as
        none."""
        address, period_s = environ.pop("NOTIFY_SOCKET", ""), watchdog_s(environ, pid)
        if address.startswith("@"):
            return cls("\0" + address[1:], period_s)
        return cls(address if address.startswith("/") else None, period_s)

    @property
    def listened_to(self) -> bool:
        """Whether anybody asked to be told."""
        return self._address is not None

    def ready(self, status: str = "") -> bool:
        """Store and sockets are held and admission is open. Whether the manager was told."""
        return self._tell("READY=1", *_status(status))

    def stopping(self, status: str = "") -> bool:
        """The end has begun; said once, whoever asked for it."""
        if self._stopping:
            return False
        self._stopping = True
        return self._tell("STOPPING=1", *_status(status))

    def reloading(self, monotonic_us: int) -> bool:
        """A reload begins; ``ready`` ends it. ``monotonic_us`` is CLOCK_MONOTONIC in microseconds, as the
        manager wants it.
        """
        return self._tell("RELOADING=1", f"MONOTONIC_USEC={monotonic_us}")

    def status(self, status: str) -> bool:
        """One line for `systemctl status`."""
        return self._tell(*_status(status))

    def alive(self) -> bool:
        """The sign of life that the watchdog waits for."""
        return self._tell("WATCHDOG=1")

    def extend(self, seconds: float) -> bool:
        """Start or end take longer: the manager is to wait at least so long from now on."""
        return self._tell(f"EXTEND_TIMEOUT_USEC={round(seconds * 1_000_000)}")

    def _tell(self, *fields: str) -> bool:
        if self._address is None or not fields:
            return False
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
                sock.connect(self._address)
                sock.send("\n".join(fields).encode())
        except OSError:
            return False
        return True


def _status(text: str) -> list[str]:
    return [f"STATUS={' '.join(text.split())}"] if text else []
