"""Where a store may live.

Owns the checks on the path, the directory and the file system. Refuses network, FUSE, 9p and virtiofs file
systems, where locks and syncs promise less than they say. Invariant: nothing is created before the place was
found fit.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from agentplane.core.errors import StoreUnfit

UNFIT: Final = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "ncpfs",
        "afs",
        "ceph",
        "glusterfs",
        "lustre",
        "9p",
        "virtiofs",
        "vboxsf",
        "prl_fs",
        "beegfs",
        "orangefs",
        "gfs2",
        "ocfs2",
        "davfs",
        "sshfs",
    }
)


def file_system(path: Path, mounts: str) -> str:
    """The type of the file system that holds ``path`` (absolute, resolved), from the text of a mountinfo
    file."""
    best, kind = "", "unknown"
    for line in mounts.splitlines():
        fields = line.split(" ")
        if "-" not in fields or len(fields) < 10:
            continue
        point = fields[4].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
        inside = point == "/" or str(path) == point or str(path).startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, fields[fields.index("-") + 1]
    return kind


def unfit(kind: str) -> bool:
    return kind in UNFIT or (kind.startswith("fuse") and kind != "fuseblk")


def check_place(store: Path, *, create: bool, mounts: str | None = None) -> None:
    """Raises StoreUnfit with the one thing to change, before anything is made."""
    try:
        _check_place(store, create=create, mounts=mounts)
    except OSError as error:
        raise StoreUnfit(f"The store {store} cannot be looked at: {error.strerror}.") from None


def _check_place(store: Path, *, create: bool, mounts: str | None) -> None:
    directory = store.parent
    if not directory.is_dir():
        raise StoreUnfit(f"The directory {directory} does not exist; make it, or name another store.")
    if mounts is None:
        try:
            with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
                mounts = file.read()
        except OSError:
            mounts = ""
    kind = file_system(directory.resolve(), mounts)
    if unfit(kind):
        raise StoreUnfit(
            f"The store {store} is on a {kind} file system, where locks and syncs do not hold; use a local disk."
        )
    if store.is_symlink():
        # A second name for the file would have a lock, a log and a mark of its own.
        raise StoreUnfit(f"The store {store} is a symbolic link; name the file that it points to.")
    if store.exists() and not store.is_file():
        raise StoreUnfit(f"The store {store} is not a file.")
    if store.exists() and store.stat().st_nlink > 1:
        raise StoreUnfit(f"The store {store} has a second name (a hard link); remove one of the two.")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise StoreUnfit(f"The directory {directory} is not writable by uid {os.getuid()}.")
    if store.exists() and not os.access(store, os.R_OK | os.W_OK):
        raise StoreUnfit(f"The store {store} is not writable by uid {os.getuid()}.")
    if not store.exists() and not create:
        raise StoreUnfit(f"There is no store {store}; `agentplane init` and `agentplane serve` create one.")
