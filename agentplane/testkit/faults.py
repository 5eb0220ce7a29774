"""A disk that fails on demand, and loses its power.

Owns a VFS over the platform's own, and beside it the image of what the disk really holds: the bytes of the last honest
sync, and in order what was written since. Refuses to fail by itself: one fault, at one counted point, as asked.
Invariant: what ``Image.after_power_loss`` makes holds every synced byte, and of the others only what was written.

The model, of the files that SQLite opens for a store (main file, log, rollback journal):

- *Points.* Each ``xWrite`` and ``xTruncate`` is a write point, each ``xSync`` a sync point; both are counted from 1.
- *Errors at a write*: ``eio`` (nothing of it is written, once), ``full`` (nothing of it, and of no later write, until
  ``heal``), ``short`` (its first half is written and the disk is full until ``heal``).
- *Errors at a sync*: ``sync-eio`` (it fails once and syncs nothing; a later sync would), ``sync-lies`` (it fails, the
  cache calls what was unsynced clean, and no later sync of those bytes does anything).
- *Power lost* at any point, with what was not synced: ``dropped``; ``kept``; ``torn`` (kept, of the last write its
  first half); ``prefix`` (the first of them, the last torn at a sector); ``subset`` (any of them, some in sectors);
  ``reordered`` (the last of them without the first). The latter three draw from a seed.
- *Latency*: each sync counts ``latency_us`` into ``waited_us``, and calls ``pause`` with it where one is given.

Outside of it: the shared memory of the log (no disk holds it), deletion and creation (durable at once, but a file that
was never synced may be empty), a read that fails, a sync that lies without ever having failed (no store survives it),
and bytes that decay.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import apsw
import msgspec

from agentplane.testkit.counting import kind_of, lock

WRITE_ERRORS: Final = ("eio", "full", "short")
SYNC_ERRORS: Final = ("sync-eio", "sync-lies")
CERTAIN_LOSSES: Final = ("dropped", "kept", "torn")
SEEDED_LOSSES: Final = ("prefix", "subset", "reordered")
SECTOR: Final = 512


class Fault(NamedTuple):
    """One error of the model, at the ``at``-th point of its kind."""

    kind: str
    at: int


class Op(NamedTuple):
    """One change of a file: ``data`` at ``offset``, or, without data, the file cut to ``offset`` bytes."""

    file: str
    offset: int
    data: bytes | None

    def on(self, content: bytearray) -> None:
        if self.data is None:
            del content[self.offset :]
            content.extend(bytes(self.offset - len(content)))
            return
        content.extend(bytes(max(0, self.offset - len(content))))
        content[self.offset : self.offset + len(self.data)] = self.data


class Image(msgspec.Struct, frozen=True):
    """What a disk held at one instant: ``synced`` bytes by file name, and the changes that no sync covered yet."""

    synced: dict[str, bytes]
    unsynced: tuple[Op, ...]

    def after_power_loss(self, how: str, random: Random) -> dict[str, bytes]:
        """The files as the next boot finds them. Raises ValueError for a ``how`` that is not of the model."""
        files = {name: bytearray(content) for name, content in self.synced.items()}
        for op in _kept(self.unsynced, how, random):
            op.on(files.setdefault(op.file, bytearray()))
        return {name: bytes(content) for name, content in files.items()}


def _kept(ops: tuple[Op, ...], how: str, random: Random) -> list[Op]:
    match how:
        case "dropped":
            return []
        case "kept":
            return list(ops)
        case "torn":
            return [*ops[:-1], *(_half(op) for op in ops[-1:])]
        case "prefix":
            kept = ops[: random.randint(0, len(ops))]
            return [*kept[:-1], *(_half(op, random) for op in kept[-1:])]
        case "subset":
            return [part for op in ops if random.random() < 0.5 for part in _sectors(op, random)]
        case "reordered":
            return list(ops[random.randint(0, len(ops)) :])
    raise ValueError(f"power is not lost with {how}; there are {', '.join(CERTAIN_LOSSES + SEEDED_LOSSES)}")


def _half(op: Op, random: Random | None = None) -> Op:
    """The beginning of a write, at a sector where it has several."""
    if op.data is None:
        return op
    sectors = len(op.data) // SECTOR
    if sectors < 2:
        return op._replace(data=op.data[: len(op.data) // 2])
    return op._replace(data=op.data[: SECTOR * (sectors // 2 if random is None else random.randint(0, sectors))])


def _sectors(op: Op, random: Random) -> list[Op]:
    """A write whole, or, one time in three, any of its sectors."""
    if op.data is None or len(op.data) <= SECTOR or random.random() > 1 / 3:
        return [op]
    return [
        Op(op.file, op.offset + at, op.data[at : at + SECTOR])
        for at in range(0, len(op.data), SECTOR)
        if random.random() < 0.5
    ]


class Disk:
    """The state behind one ``FaultVFS``: counts, images, and the fault that waits for its point.

    ``at_point(kind, count)`` is called at each ``write`` and ``sync``, when a write has reached the cache and a sync
    has not reached the disk; it may take ``image()``. Any thread may write.
    """

    def __init__(
        self, fault: Fault | None = None, *, at_point: Callable[[str, int], object] | None = None,
        latency_us: int = 0, pause: Callable[[float], object] | None = None,
    ) -> None:  # fmt: skip
        if fault is not None and fault.kind not in WRITE_ERRORS + SYNC_ERRORS:
            raise ValueError(f"no fault {fault.kind}; there are {', '.join(WRITE_ERRORS + SYNC_ERRORS)}")
        self.fault = fault
        self.fired = False
        self.is_full = False
        self.writes = 0
        self.syncs = 0
        self.waited_us = 0
        self.at_point = at_point
        self._latency_us = latency_us
        self._pause = pause
        self._synced: dict[str, bytes] = {}
        self._unsynced: list[Op] = []
        self._lock = threading.RLock()

    def image(self) -> Image:
        """What the disk and its cache hold now."""
        with self._lock:
            return Image(dict(self._synced), tuple(self._unsynced))

    def heal(self) -> None:
        """There is room again."""
        self.is_full = False

    # --- what files do to it ------------------------------------------------------------------------------------------

    def meet(self, name: str, content: Callable[[], bytes]) -> None:
        """A file is opened; what an unknown one holds is on the disk."""
        with self._lock:
            if name not in self._synced:
                self._synced[name] = content()

    def write(self, op: Op, perform: Callable[[Op], object]) -> None:
        with self._lock:
            self.writes += 1
            if self.is_full:
                raise apsw.FullError("the disk is full")
            kind = self._due(WRITE_ERRORS, self.writes)
            if kind == "eio":
                raise apsw.IOError("the disk failed at a write")
            self.is_full = kind in ("full", "short")
            if kind == "full" or (kind == "short" and op.data is None):
                raise apsw.FullError("the disk is full")
            written = op if kind is None or op.data is None else op._replace(data=op.data[: len(op.data) // 2])
            perform(written)
            self._unsynced.append(written)
            if kind == "short":
                raise apsw.FullError("the disk is full")
            self._tell("write", self.writes)

    def sync(self, name: str, perform: Callable[[], object]) -> None:
        with self._lock:
            self.syncs += 1
            self._tell("sync", self.syncs)
            kind = self._due(SYNC_ERRORS, self.syncs)
            if kind is not None:
                if kind == "sync-lies":
                    # As a kernel does that marks the pages clean whose writing failed: they stay readable.
                    self._unsynced = [op for op in self._unsynced if op.file != name]
                raise apsw.IOError("the disk failed at a sync")
            self.waited_us += self._latency_us
            if self._pause is not None and self._latency_us:
                self._pause(self._latency_us / 1e6)
            perform()
            mine = [op for op in self._unsynced if op.file == name]
            if mine:
                content = bytearray(self._synced[name])
                for op in mine:
                    op.on(content)
                self._synced[name] = bytes(content)
                self._unsynced = [op for op in self._unsynced if op.file != name]

    def gone(self, name: str) -> None:
        with self._lock:
            self._synced.pop(name, None)
            self._unsynced = [op for op in self._unsynced if op.file != name]

    def _due(self, kinds: tuple[str, ...], count: int) -> str | None:
        fault = self.fault
        if fault is None or self.fired or fault.kind not in kinds or fault.at != count:
            return None
        self.fired = True
        return fault.kind

    def _tell(self, kind: str, count: int) -> None:
        if self.at_point is not None:
            self.at_point(kind, count)


class _File(apsw.VFSFile):
    """A file of the platform's, whose changes pass by the disk."""

    def __init__(
        self, base: str, filename: str | apsw.URIFilename | None, flags: list[int], disk: Disk, name: str
    ) -> None:
        super().__init__(base, filename, flags)
        self._disk = disk
        self._name = name

    def xWrite(self, data: bytes, offset: int) -> None:
        write = super().xWrite
        self._disk.write(Op(self._name, offset, bytes(data)), lambda op: write(op.data or b"", op.offset))

    def xTruncate(self, newsize: int) -> None:
        truncate = super().xTruncate
        self._disk.write(Op(self._name, newsize, None), lambda op: truncate(op.offset))

    def xSync(self, flags: int) -> None:
        sync = super().xSync
        self._disk.sync(self._name, lambda: sync(flags))

    def xLock(self, level: int) -> None:
        lock(super().xLock, level)


def _content(file: Path) -> bytes:
    return file.read_bytes() if file.exists() else b""


class FaultVFS(apsw.VFS):
    """``disk`` between SQLite and the platform, registered as ``name`` until ``unregister`` (or the end of its
    ``with``). One store to a disk: files are known by their names without the directory."""

    def __init__(self, name: str, disk: Disk, *, base: str = "") -> None:
        self.name = name
        self.disk = disk
        self._base = base
        super().__init__(name, base)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        if kind_of(flags[0]) == "other":
            return apsw.VFSFile(self._base, name, flags)
        path = Path(name.filename() if isinstance(name, apsw.URIFilename) else str(name))
        # All of a store at the first of its files, before SQLite has one open through us: closing a descriptor of an
        # open database drops its locks.
        main = path.name.removesuffix("-wal").removesuffix("-journal")
        for sibling in (path.with_name(main + end) for end in ("", "-wal", "-journal")):
            if sibling == path or sibling.exists():
                self.disk.meet(sibling.name, partial(_content, sibling))
        return _File(self._base, name, flags, self.disk, path.name)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        super().xDelete(filename, syncdir)
        self.disk.gone(Path(filename).name)

    def __enter__(self) -> FaultVFS:
        return self

    def __exit__(self, *_: object) -> None:
        self.unregister()
