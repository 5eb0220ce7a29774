"""Runs a test's body as another uid when the tests are root's, since to root no permission is refused.

It owns the drop and nothing of what is tested. The body runs in a forked child: what it returns comes back,
what it raises fails the test. A drop that cannot be made is an error, never a skip: a permission test that
ran as root has shown nothing.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import stat
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

# Not the overflow uid (65534), which planes refuse as nobody's, and inside the 65,536 ids that a container
# usually has.
OTHER_UID = 61_234
CLONE_NEWNS = 0x00020000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000

T = TypeVar("T")


class ChildFailed(Exception):
    """The body's traceback, or why it could not be run."""


def run_as(uid: int, body: Callable[..., T], *arguments: Any, trees: list[Path], gid: int | None = None) -> T:
    """Runs `body(*arguments)` in a child with that uid, that gid (the uid's number unless told) and no groups; the
    result must pickle.

    `trees` stay readable to it even below directories that are closed to others.
    """
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Newer Pythons warn of a fork beside threads; the child runs one function and leaves.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        os.close(reader)
        _in_child(writer, uid, uid if gid is None else gid, body, arguments, trees)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        answer = stream.read()
    os.waitpid(child, 0)
    if not answer:
        raise ChildFailed("the child ended without an answer")
    is_value, value = pickle.loads(answer)  # noqa: S301 (our own child wrote it)
    if not is_value:
        raise ChildFailed(value)
    result: T = value
    return result


def _in_child(
    writer: int, uid: int, gid: int, body: Callable[..., Any], arguments: tuple[Any, ...], trees: list[Path]
) -> NoReturn:
    try:
        os.umask(0o022)
        open_the_way([Path(os.path.realpath(tree)) for tree in trees])
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        if 0 in os.getresuid():
            raise PermissionError("still root")
        os.environ["HOME"] = "/nonexistent"
        answer = pickle.dumps((True, body(*arguments)))
    except BaseException:
        answer = pickle.dumps((False, traceback.format_exc()))
    with os.fdopen(writer, "wb") as stream:
        stream.write(answer)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def open_the_way(trees: list[Path]) -> None:
    """Lets others reach trees below directories closed to them, in a mount namespace of this process alone.

    A closed directory is covered by an empty one in which only what is needed is bound at its old place; no
    mode on the disk changes. Needs CAP_SYS_ADMIN, and only where something is closed.
    """
    closed: dict[Path, set[Path]] = {}
    for tree in trees:
        barrier = next((place for place in [*reversed(tree.parents), tree] if not _is_open(place)), None)
        if barrier:
            closed.setdefault(barrier, set()).update([tree] if _is_open(tree) else tree.iterdir())
    if not closed:
        return
    libc = ctypes.CDLL(None, use_errno=True)

    def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
        encoded = [text.encode() if text is not None else None for text in (source, target, kind)]
        if libc.mount(*encoded, ctypes.c_ulong(flags), data.encode() if data else None):
            raise OSError(ctypes.get_errno(), f"cannot open the way to {target} for another uid")

    if libc.unshare(CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), f"cannot open {sorted(map(str, closed))} to another uid (unshare)")
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    held = {leaf: os.open(leaf, os.O_PATH) for leaves in closed.values() for leaf in leaves if not leaf.is_symlink()}
    for barrier in closed:
        mount("none", str(barrier), "tmpfs", 0, "mode=755")
    for leaf, descriptor in held.items():
        if stat.S_ISDIR(os.stat(descriptor).st_mode):
            leaf.mkdir(parents=True, exist_ok=True)
        else:
            leaf.parent.mkdir(parents=True, exist_ok=True)
            leaf.touch()
        mount(f"/proc/self/fd/{descriptor}", str(leaf), None, MS_BIND | MS_REC)
        os.close(descriptor)
    os.chdir("/")


def _is_open(place: Path) -> bool:
    return place.stat().st_mode & 0o005 == 0o005 or (place.is_dir() and bool(place.stat().st_mode & 0o001))
