"""The sockets that a plane answers on: bound, taken over, asked who is at the other end, and put away.

Owns addresses, their errors in one sentence, the modes of a Unix socket and the credentials of its peers.
Refuses a path that something live answers on, one that is not a socket, and a directory in which others could
put a socket of theirs. Invariant: a Unix socket never exists with more rights than were asked for, only one that
nobody answers on is ever removed, and no forked child keeps one listening.
"""

from __future__ import annotations

import errno
import fcntl
import grp
import ipaddress
import os
import socket
import ssl
import stat
import struct
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypedDict

import msgspec

from agentplane.appliance import systemd
from agentplane.core import bounds, errors

BACKLOG: Final = 4096
"""Connections that the kernel holds between two passes of the loop; it cuts this to its own somaxconn."""
PROBE_S: Final = 1.0
"""How long a socket that is there may take to accept; longer is an answer too: something holds it."""
LOCK_TRIES: Final = 60
LOCK_PAUSE_S: Final = 0.05
SO_PEERGROUPS: Final = 59
BY_NAME_ALONE: Final = ("probe",)
"""Listeners that take a passed socket only when their address says so: what a probe connects to proves nothing while
nobody accepts."""
NAME_SHOWN: Final = 80
GROUPS_BYTES_MAX: Final = 1024
"""As much as the socket module asks for at once: 256 groups."""


class Peer(TypedDict):
    """Who called ``connect()``, as the kernel saw it then. ``gids`` begins with ``gid``."""

    pid: int
    uid: int
    gid: int
    gids: list[int]


class Unix(msgspec.Struct, frozen=True):
    """A socket at ``path``. The directory is made with ``dir_mode`` when it is not there; ``group`` (a name
    or a gid) gets both.
    """

    path: Path
    mode: int = 0o660
    dir_mode: int = 0o750
    group: str | int | None = None


class Tcp(msgspec.Struct, frozen=True):
    """A port of an address of this host, with TLS or without; port 0 lets the kernel choose."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None

    inherited = False

    @property
    def loopback(self) -> bool:
        return _is_loopback(self.host)


class Inherited(msgspec.Struct, frozen=True):
    """A listening socket of the parent's. It is the parent's: never bound, never listened on again, never
    shut down.
    """

    fd: int
    name: str = ""
    tls: ssl.SSLContext | None = None

    inherited = True

    @property
    def host(self) -> str:
        """The address it is bound to; empty for a Unix socket. Raises Settings where it is none."""
        sock = _take_over(self)
        try:
            return "" if sock.family == socket.AF_UNIX else str(sock.getsockname()[0])
        finally:
            sock.detach()

    @property
    def loopback(self) -> bool:
        return not self.host or _is_loopback(self.host)


Endpoint = Unix | Tcp | Inherited


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def parse_address(
    text: str,
    *,
    tls_cert: str | None = None,
    tls_key: str | None = None,
    given: Sequence[systemd.Given] | None = None,
    listener: str | None = None,
) -> Tcp | Inherited:
    """``HOST:PORT``, ``[V6]:PORT``, ``fd:N`` or ``systemd:NAME`` (the first socket passed under that name).

    ``given`` are the sockets that were passed to this process; unless told they are read from its
    environment, which forgets them. A socket that was passed under the name ``listener`` is taken in place of
    HOST:PORT (``check_given`` has compared the two). Raises Settings in one sentence.
    """
    tls = tls_context(tls_cert, tls_key) if tls_cert is not None and tls_key is not None else None
    kind, _, rest = text.partition(":")
    if kind == "fd" and rest.isascii() and rest.isdigit() and len(rest) < 8:
        return Inherited(int(rest), tls=tls)
    if kind == "systemd":
        passed = systemd.given(os.environ, os.getpid()) if given is None else given
        for one in passed:
            if one.name == rest:
                return Inherited(one.fd, one.name, tls)
        names = ", ".join(one.name for one in passed) or "none"
        raise errors.Settings(f"No socket named {rest!r} was passed to this process; the names are: {names}.")
    host, colon, port = text.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port[:6]) > 65535:
        raise errors.Settings(f"{text!r} is not an address: write HOST:PORT, [V6]:PORT, fd:N or systemd:NAME.")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if ":" in bare and bare == host:
        raise errors.Settings(f"{text!r} is not an address: an IPv6 address stands in brackets.")
    if not _is_host(bare):
        raise errors.Settings(f"{text[:80]!r} is not an address: {bare[:70]!r} is no name of a host.")
    for one in given or ():
        if one.name == listener:
            return Inherited(one.fd, one.name, tls)
    return Tcp(bare, int(port), tls)


def _is_host(name: str) -> bool:
    if name.isascii():
        # What the codec would say, which takes a start longer to load than to ask.
        return all(0 < len(label) < 64 for label in name.removesuffix(".").split("."))
    try:
        return bool(name.encode("idna"))
    except UnicodeError:
        return False


def check_given(given: Sequence[systemd.Given], addresses: Mapping[str, str | None]) -> None:
    """Every socket that was passed is one that a listener here answers on. ``addresses``: each listener that takes
    passed sockets, by name, and what it was told to answer on.

    One that nobody accepts from would hold its clients for ever: refused are an unknown name, a second of the same
    name, a listener that is off, another kind, and an address that is not the listener's. Raises Settings.
    """
    for index, one in enumerate(given):
        if f"fd:{one.fd}" in addresses.values():
            continue
        named = f"The service manager passed a socket named {one.name[:NAME_SHOWN]!r}"
        if one.name not in addresses:
            raise errors.Settings(
                f"{named}, which no listener here has; FileDescriptorName= is one of {', '.join(addresses)}."
            )
        if any(other.name == one.name for other in given[:index]):
            raise errors.Settings(f"{named} twice; a listener has one, so give its socket unit one ListenStream=.")
        text = addresses[one.name]
        if text is None:
            raise errors.Settings(f"{named}, and {one.name}_addr is off; stop its socket unit, or name it there.")
        sock = _take_over(Inherited(one.fd, one.name))
        try:
            if text != f"systemd:{one.name}" and (one.name in BY_NAME_ALONE or not _is_at(sock, text)):
                raise errors.Settings(
                    f"{named}, which listens on {_where(sock)}, and {one.name}_addr is {text}; "
                    f'write {one.name}_addr = "systemd:{one.name}", or change its ListenStream=.'
                )
        finally:
            sock.detach()


def _is_at(sock: socket.socket, text: str) -> bool:
    """Whether a socket is bound to the address that ``text`` says."""
    said = parse_address(text, given=())
    if not isinstance(said, Tcp) or sock.family == socket.AF_UNIX:
        return False
    try:
        found = socket.getaddrinfo(said.host, said.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        return False
    return sock.getsockname()[:2] in [address[:2] for *_, address in found]


def _where(sock: socket.socket) -> str:
    if sock.family == socket.AF_UNIX:
        return str(sock.getsockname())
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def tls_context(cert: str, key: str) -> ssl.SSLContext:
    """TLS 1.2 or later with this chain and key, offering HTTP/2 and HTTP/1.1. Raises Settings naming the
    file.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2", "http/1.1"])
    for path in (cert, key):
        if not os.access(path, os.R_OK):
            raise errors.Settings(f"{path} cannot be read: it must exist and be readable by uid {os.geteuid()}.")
    try:
        # A password would be asked for at the terminal; a key for a service has none.
        context.load_cert_chain(cert, key, password=lambda: "")
    except (ssl.SSLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error) or type(error).__name__
        raise errors.Settings(
            f"{cert} and {key} are not a certificate chain and its unencrypted key ({reason})."
        ) from None
    return context


def bind(endpoint: Endpoint) -> socket.socket:
    """The listening, non-blocking socket of an endpoint, closed to child processes. Raises Settings in one
    sentence.
    """
    if isinstance(endpoint, Unix):
        sock = _bind_unix(endpoint)
    else:
        sock = _bind_tcp(endpoint) if isinstance(endpoint, Tcp) else _take_over(endpoint)
    _bound.add(sock)
    return sock


_bound: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _in_child() -> None:
    # A child that outlives this process would keep the address, with nobody to accept.
    for sock in list(_bound):
        sock.close()


os.register_at_fork(after_in_child=_in_child)


def _bind_unix(endpoint: Unix) -> socket.socket:
    path = endpoint.path
    length = len(os.fsencode(path))
    if length > bounds.SOCKET_PATH_MAX:
        raise errors.Settings(
            f"The socket path {path} is {length} bytes long; the kernel takes {bounds.SOCKET_PATH_MAX}."
        )
    try:
        gid = _gid(endpoint.group)
        _make_directory(path.parent, endpoint.dir_mode, gid)
        with _alone_in(path.parent):
            _remove_stale(path)
            return _bound_unix(path, endpoint.mode, gid)
    except PermissionError as error:
        named = error.filename or path
        raise errors.Settings(f"{named} cannot be made by uid {os.geteuid()}: {error.strerror}.") from None
    except OSError as error:
        raise errors.Settings(f"The socket {path} cannot be bound: {error.strerror}.") from None


def _bound_unix(path: Path, mode: int, gid: int) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        # bind() makes the file with the socket's own mode under the umask, so it is never wider than asked
        # for and the umask, which belongs to every thread of the process, stays as it is.
        os.fchmod(sock.fileno(), mode)
        sock.bind(str(path))
        try:
            _give(path, gid)
            os.chmod(path, mode)
            sock.listen(BACKLOG)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    except BaseException:
        sock.close()
        raise
    return sock


def _gid(group: str | int | None) -> int:
    if group is None or isinstance(group, int):
        return -1 if group is None else group
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise errors.Settings(f"There is no group {group!r} here for the control socket.") from None


def _make_directory(directory: Path, mode: int, gid: int) -> None:
    try:
        os.mkdir(directory, mode)
    except FileExistsError:
        found = directory.stat()
        why = unsafe_directory(directory, found)
        if why is not None:
            raise errors.Settings(why) from None
        if gid != -1 and found.st_gid != gid and found.st_uid == os.geteuid():
            if stat.S_IMODE(found.st_mode) & 0o011 == 0o010:
                # It was made for a group, and not for this one: the socket in it would be out of its reach.
                _give(directory, gid)
        return
    except FileNotFoundError:
        raise errors.Settings(no_directory(directory)) from None
    _give(directory, gid)
    os.chmod(directory, mode)


def unsafe_directory(directory: Path, found: os.stat_result) -> str | None:
    """Why no socket is bound in ``directory``, which is there."""
    if not stat.S_ISDIR(found.st_mode):
        return f"{directory} is not a directory, and a socket was to be bound in it."
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX:
        return f"{directory} is writable by group or others; `chmod go-w {directory}`."
    return None


def no_directory(directory: Path) -> str:
    """The sentence for a directory that could not be made."""
    return f"{directory.parent} does not exist, and a socket was to be bound below it."


def no_socket(path: Path) -> str:
    """The sentence for a file in a socket's place."""
    return f"{path} exists and is not a socket; move it away, or name another path."


def _give(path: Path, gid: int) -> None:
    """Give to a group what is not its own already: the packaged unit is allowed no chown."""
    if gid != -1 and path.lstat().st_gid != gid:
        os.chown(path, -1, gid)


@contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    """One process at a time probes, removes and binds in a directory, or a live socket of the other's could
    be taken for stale.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock(descriptor, directory)
        yield
        # A child forked meanwhile shares the descriptor, and would hold the lock past our close.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, directory: Path) -> None:
    # Whoever may read the directory can hold this lock, so it is not waited for without end.
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(LOCK_PAUSE_S)
    raise errors.Settings(f"{directory} is locked by another process; see `lsof {directory}`.")


def _remove_stale(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise errors.Settings(no_socket(path))
    holder = answers(path)
    if holder is not None:
        raise errors.Settings(f"The socket {path} is in use by {holder}; drain that one first, or name another path.")
    path.unlink(missing_ok=True)


def answers(path: Path) -> str | None:
    """Who holds the socket at ``path``, in words; None when nobody does. Doubt is a holder."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_S)
        try:
            probe.connect(str(path))
            return f"process {peer_of(probe)['pid']}"
        except (ConnectionRefusedError, FileNotFoundError):
            return None
        except OSError:
            return "a process that cannot be asked"


def _bind_tcp(endpoint: Tcp) -> socket.socket:
    where = f"{endpoint.host}:{endpoint.port}"
    sock: socket.socket | None = None
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind | socket.SOCK_NONBLOCK, number)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
        return sock
    except OSError as error:
        if sock is not None:
            sock.close()
        raise errors.Settings(_why_not(where, endpoint.port, error)) from None


def _why_not(where: str, port: int, error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return f"The address {where} is not known here ({error.strerror})."
    if error.errno == errno.EADDRINUSE:
        return f"The address {where} is in use; stop what listens there, or name another port."
    if error.errno in (errno.EACCES, errno.EPERM):
        right = (
            "a port under 1024 takes CAP_NET_BIND_SERVICE, or a socket passed by systemd"
            if port < 1024
            else "not allowed"
        )
        return f"The address {where} cannot be bound by uid {os.geteuid()}: {right}."
    if error.errno == errno.EADDRNOTAVAIL:
        return f"The address {where} is not one of this host's."
    return f"The address {where} cannot be bound: {error.strerror}."


def _take_over(endpoint: Inherited) -> socket.socket:
    named = f"The inherited descriptor {endpoint.fd}" + (f" ({endpoint.name})" if endpoint.name else "")
    try:
        sock = socket.socket(fileno=endpoint.fd)
    except OSError as error:
        raise errors.Settings(f"{named} is not an open socket: {error.strerror}.") from None
    # The descriptor is the parent's to close: what is refused is left as it was found.
    if sock.type != socket.SOCK_STREAM or sock.family not in (
        socket.AF_INET,
        socket.AF_INET6,
        socket.AF_UNIX,
    ):
        sock.detach()
        raise errors.Settings(f"{named} is not a stream socket.")
    if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        sock.detach()
        raise errors.Settings(f"{named} does not listen.")
    sock.setblocking(False)
    sock.set_inheritable(False)
    return sock


def put_away(sock: socket.socket, *, inherited: bool) -> None:
    """Stop holding a listening socket. An inherited one stays open for the next process; the file of a Unix
    socket of our own goes, unless somebody else answers there by now.
    """
    if inherited:
        sock.detach()
        return
    path = sock.getsockname() if sock.family == socket.AF_UNIX else ""
    sock.close()
    if isinstance(path, str) and path:
        place = Path(path)
        try:
            with _alone_in(place.parent):
                if stat.S_ISSOCK(place.lstat().st_mode) and answers(place) is None:
                    place.unlink(missing_ok=True)
        except (OSError, errors.Settings):
            # Its directory is gone or closed to us by now: a stale socket is removed by the next bind.
            return


def peer_of(sock: socket.socket) -> Peer:
    """The credentials of a connected Unix socket's other end. Raises OSError when the kernel does not say."""
    pid, uid, gid = struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII")))
    try:
        packed = sock.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, GROUPS_BYTES_MAX)
    except OSError as error:
        if error.errno not in (errno.ERANGE, errno.ENOPROTOOPT):
            raise
        # More groups than fit, or a kernel before 4.13: fewer groups are fewer rights, never more.
        packed = b""
    others = [group for (group,) in struct.iter_unpack("I", packed) if group != gid]
    return {"pid": pid, "uid": uid, "gid": gid, "gids": [gid, *others]}
