"""Finding the plane: a socket, a URL, or the store in this process.

Owns the choice and the clients. Refuses to guess why a held store does not answer: it says which of permission,
namespace and
drain it is. Invariant: whichever way is taken, a call answers (status, body) of the same operation.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from agentplane.cli.render import tell
from agentplane.core import errors
from agentplane.surface.client import CONNECT_S, Answer, HttpClient, Lost, Remote

if TYPE_CHECKING:
    from agentplane.appliance.settings import Located
    from agentplane.journal.lock import Note


class Client(Protocol):
    """One way to a plane. ``up``: something serves it."""

    up: bool

    def call(
        self,
        name: str,
        *,
        run: str = "",
        body: Any = None,
        query: dict[str, Any] | None = None,
        key: str | None = None,
        wait_s: float = 0.0,
    ) -> Answer: ...


def settings_of(directory: Path) -> Located:
    """The settings in ``directory``. Raises Settings; but a plane that serves is reached all the same, since it has
    read its own: a typo in a file is no reason for a health check to end it, or for a person not to drain it."""
    from agentplane.appliance import settings
    from agentplane.journal.lock import is_free

    try:
        return settings.load(directory, environ=os.environ)
    except errors.Settings as error:
        located = settings.salvaged(directory, os.environ)
        try:
            held = located.path("store").exists() and not is_free(located.path("store"))
        except errors.StoreUnfit:
            held = True
        if not held:
            raise
        tell(f"{error.message} The plane that serves is asked all the same.")
        return located


def read_token(path: Path) -> str:
    """A token from a file: never from an argument or the environment."""
    try:
        with open(path, encoding="utf-8") as file:
            found = file.read(4096).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise errors.Settings(f"The token file {path} cannot be read: {error}.") from None
    if not found or not all("!" <= char <= "~" for char in found):
        raise errors.Settings(f"The token file {path} holds no token: one line, as `agentplane token new` printed it.")
    return found


def socket_client(path: Path, store: Path, token: str | None = None) -> HttpClient:
    """A client of the socket of whoever holds ``store``; ``token``: a person's, who speaks from this account. Raises
    Unreachable with the one reason that holds."""
    from agentplane.journal.lock import lock_path, read_note

    note = read_note(lock_path(store))
    if note is not None and note.state == "cli":
        raise errors.StoreLocked(f"The store is in use by another command, pid {note.pid}; wait for it.", pid=note.pid)
    target = path
    if note is not None and note.socket is not None and _is_missing(path):
        target = Path(note.socket)
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    probe.settimeout(CONNECT_S)
    try:
        probe.connect(str(target))
    except PermissionError:
        raise errors.Unreachable(
            f"The control socket {target} may not be used by uid {os.getuid()}: permission.", why="permission"
        ) from None
    except (FileNotFoundError, ConnectionRefusedError):
        why, sentence = _why(target, note)
        raise errors.Unreachable(sentence, why=why) from None
    except OSError as error:
        raise errors.Unreachable(f"The control socket {target} cannot be reached: {error.strerror or error}.") from None
    finally:
        probe.close()
    return HttpClient(path=target, token=token)


def _is_missing(path: Path) -> bool:
    try:
        path.stat()
    except FileNotFoundError:
        return True
    except OSError:
        # Closed to us is not missing: the attempt to connect says why.
        return False
    return False


def _why(target: Path, note: Note | None) -> tuple[str, str]:
    if note is None:
        return "unknown", f"The store is held by a process that left no note, and {target} does not answer."
    if note.state == "draining":
        return "drain", f"The plane (pid {note.pid}) is at the end of its drain: {target} is closed already."
    try:
        here = os.readlink("/proc/self/ns/pid")
    except OSError:
        here = note.pid_ns
    if note.pid_ns != here:
        return "namespace", f"The plane (pid {note.pid}) runs in another namespace, where {target} is another path."
    return (
        "starting",
        f"The plane (pid {note.pid}) holds the store and {target} does not answer yet; it may be starting.",
    )


__all__ = ["Client", "HttpClient", "Lost", "Remote", "read_token", "socket_client"]
