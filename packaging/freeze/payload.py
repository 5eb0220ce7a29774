"""The frozen tree as bytes behind the launcher.

Owns the manifest, the tar, its compression and the trailer that packaging/launcher.c reads. Refuses nothing. Invariant:
no time, owner or order of a directory is in what it makes.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import struct
import tarfile
from pathlib import Path

import zstandard

MAGIC = b"agentplane-payload-1"
MANIFEST = "MANIFEST"
WINDOW_LOG = 25
"""What the launcher holds while it unpacks: 32 MB."""
BLOCK = 4096
GLIBC = re.compile(rb"GLIBC_2\.(\d+)\x00")


def manifest(tree: Path) -> bytes:
    """A line a file, as sha256sum writes it, by name."""
    paths = sorted(path for path in tree.rglob("*") if path.is_file() and path.name != MANIFEST)
    return "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(tree).as_posix()}\n" for path in paths
    ).encode()


def packed(tree: Path) -> tuple[bytes, int]:
    """The tree as one tar, and the bytes that its files take on a disk."""
    out = io.BytesIO()
    taken = 0
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(tree.rglob("*")):
            entry = tarfile.TarInfo(path.relative_to(tree).as_posix())
            entry.mode = 0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644
            data = b""
            if path.is_symlink():
                entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(path)
            elif path.is_dir():
                entry.type = tarfile.DIRTYPE
            else:
                data = path.read_bytes()
                entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
            taken += max(1, -(-len(data) // BLOCK)) * BLOCK
    return out.getvalue(), taken


def compressed(tar: bytes, level: int) -> bytes:
    """One zstd frame. The same whatever the number of threads, as long as there is one beside the caller."""
    how = zstandard.ZstdCompressionParameters.from_level(
        level, window_log=WINDOW_LOG, threads=2, write_content_size=False
    )
    return zstandard.ZstdCompressor(compression_params=how).compress(tar)


def behind(launcher: bytes, payload: bytes, listed: bytes, taken: int) -> bytes:
    """The executable: launcher, payload, trailer."""
    digests = hashlib.sha256(payload).digest() + hashlib.sha256(listed).digest()
    return launcher + payload + digests + struct.pack("<QQ24s", len(payload), taken, MAGIC)


def least_glibc(tree: Path) -> int:
    """The N of the newest GLIBC_2.N that a library inside asks for."""
    found = [0]
    for path in tree.rglob("*"):
        if path.is_file() and path.suffix != ".py":
            data = path.read_bytes()
            if data.startswith(b"\x7fELF"):
                found += map(int, GLIBC.findall(data))
    return max(found)


def differences(one: Path, other: Path) -> list[str]:
    """The files in which two trees differ."""
    left, right = (_digests(tree) for tree in (one, other))
    return [name for name in sorted(left.keys() | right.keys()) if left.get(name) != right.get(name)]


def _digests(tree: Path) -> dict[str, str]:
    lines = manifest(tree).decode().splitlines()
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
