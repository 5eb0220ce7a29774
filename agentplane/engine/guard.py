"""The guard of the deterministic zone.

Owns one audit hook a process, installed only when a plane asks. Refuses sockets, subprocesses and file writes from
inside a step, naming the line, and latches the step. It finds mistakes; it does not contain an adversary. Invariant:
outside a step, and for every event not in the fixed set, it returns at once.
"""

from __future__ import annotations

import os
import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from agentplane.engine.stops import Quarantine

if TYPE_CHECKING:
    from agentplane.engine.context import StepContext

IN_STEP: ContextVar[StepContext | None] = ContextVar("agentplane_in_step", default=None)
"""The step whose own code runs; None inside an act, an import or a logging handler, and outside steps."""

EVENTS: Final = frozenset({
    "open", "socket.__new__", "socket.connect", "socket.bind", "socket.getaddrinfo", "socket.sendto",
    "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "os.remove", "os.rename",
    "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink", "os.chmod", "os.chown", "os.kill", "pty.spawn",
    "socket.gethostbyname", "shutil.copyfile", "shutil.move", "shutil.rmtree",
    "sqlite3.connect", "urllib.Request", "ftplib.connect", "smtplib.connect", "http.client.connect",
})  # fmt: skip
_WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_READS: Final = frozenset({"r", "rb", "rt"})
_PASSED: Final = ("<frozen importlib", "importlib/", "/logging/__init__.py", "/logging/handlers.py")

_OUTERMOST: Final = (f"engine{os.sep}executor.py", f"engine{os.sep}blocking.py")
"""Frames of ours that a step's own code is called from: what stands outside them is not the step's."""
_LIBRARY: Final = (os.path.dirname(os.__file__) + os.sep, "<")

_installed = False


class OutsideStep(Quarantine):
    """Skill code reached the world beside ``cx``."""

    def __init__(self, event: str, place: str) -> None:
        super().__init__(f"{place} does {event} inside a step; put it into an effect", "outside_step")


def install() -> None:
    """Add the hook to this process, once; it cannot be removed, and costs a set look-up while no step runs."""
    global _installed
    if not _installed:
        _installed = True
        sys.addaudithook(_hook)


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if event not in EVENTS or (event == "open" and args[1] in _READS):
        return
    cx = IN_STEP.get()
    if cx is None or (event == "open" and not _writes(args)):
        return
    place = _place()
    if place is None:
        return
    stop = OutsideStep(event, place)
    cx.latch(stop)
    raise stop


def _writes(args: tuple[Any, ...]) -> bool:
    path, mode, flags = (*args, None, None, None)[:3]
    if isinstance(path, int) or str(path).endswith(".pyc"):
        return False
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return isinstance(flags, int) and bool(flags & _WRITES)


def _place() -> str | None:
    """``file:line`` of the nearest frame that is not ours or the library's; None for imports and logging."""
    frame = sys._getframe(2)
    nearest: str | None = None
    while frame is not None:
        name = frame.f_code.co_filename
        if any(part in name for part in _PASSED):
            return None
        if name.endswith(_OUTERMOST):
            break
        if nearest is None and not name.startswith(_LIBRARY) and "site-packages" not in name:
            nearest = f"{name}:{frame.f_lineno}"
        parent = frame.f_back
        if parent is None:
            break
        frame = parent
    return nearest or "code"
