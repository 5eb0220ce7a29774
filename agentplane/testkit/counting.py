"""Syncs and writes, counted where SQLite makes them.

Owns a VFS over the platform's own that counts ``xSync`` (and, when asked, ``xWrite``) of every file opened through it:
main file, log and journal, on the writer's connection, the checkpointer's and those that open and heal. Refuses to
alter anything: each call is handed on as it came. Invariant: what is counted was asked of the disk, and a count never
waits for another thread.

What it costs: every call of SQLite to a file crosses into Python (some 40 µs an effect of a run that is alone, nothing
that can be measured at 64), and each needs the interpreter's lock. Count with it, and time without it, in two passes.
Not counted: the mark beside the store, which no SQLite call writes (two syncs a checkpoint), and the lock file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final

import apsw

_KINDS: Final[Mapping[int, str]] = {
    apsw.SQLITE_OPEN_MAIN_DB: "main",
    apsw.SQLITE_OPEN_WAL: "wal",
    apsw.SQLITE_OPEN_MAIN_JOURNAL: "journal",
}
_MASK: Final = apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL


def kind_of(flags: int) -> str:
    """Which file of a store is opened with ``flags``: main, wal, journal, or other (temporary files)."""
    return _KINDS.get(flags & _MASK, "other")


def lock(of_base: Callable[[int], None], level: int) -> None:
    """Lock, as every file of a VFS of ours does.

    A read-only connection asks for the exclusive lock when it is closed, in case it is the last one. The platform
    refuses it as an error of the disk, which SQLite passes over and a Python VFS would raise out of the close; BUSY
    says the same and is passed over by both.
    """
    try:
        of_base(level)
    except apsw.IOError:
        if level < apsw.SQLITE_LOCK_EXCLUSIVE:
            raise
        raise apsw.BusyError("not to be locked") from None


class _Tally:
    """One file's counts. A file belongs to one connection, and that to one thread at a time."""

    __slots__ = ("kind", "syncs", "writes")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.syncs = 0
        self.writes = 0


class _SyncsCounted(apsw.VFSFile):
    """A file of the platform's, whose syncs are counted."""

    def __init__(self, base: str, filename: str | apsw.URIFilename | None, flags: list[int], tally: _Tally) -> None:
        super().__init__(base, filename, flags)
        self._tally = tally

    def xSync(self, flags: int) -> None:
        self._tally.syncs += 1
        super().xSync(flags)

    def xLock(self, level: int) -> None:
        lock(super().xLock, level)


class _WritesCounted(_SyncsCounted):
    """The same, with its writes."""

    def xWrite(self, data: bytes, offset: int) -> None:
        self._tally.writes += 1
        super().xWrite(data, offset)


class CountingVFS(apsw.VFS):
    """Registered as ``name`` from when it is made until ``unregister`` (or the end of its ``with``).

    Give its name to ``Plane.open(vfs=)`` or ``Store.open(vfs=)``. Unregister after the last connection through it is
    closed. ``writes`` stays 0 unless ``count_writes``: that costs a call of Python a write.
    """

    def __init__(self, name: str = "agentplane-counting", *, base: str = "", count_writes: bool = False) -> None:
        self.name = name
        self._base = base
        self._file: type[_SyncsCounted] = _WritesCounted if count_writes else _SyncsCounted
        self._tallies: list[_Tally] = []
        self._then: dict[str, tuple[int, int]] = {}
        super().__init__(name, base)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        tally = _Tally(kind_of(flags[0]))
        file = self._file(self._base, name, flags, tally)
        self._tallies.append(tally)
        return file

    @property
    def syncs(self) -> int:
        """``xSync`` of any file since the last ``reset``, checkpoints included."""
        return sum(count for count, _ in self._since().values())

    @property
    def writes(self) -> int:
        """``xWrite`` of any file since the last ``reset``."""
        return sum(count for _, count in self._since().values())

    @property
    def syncs_by_kind(self) -> dict[str, int]:
        """The syncs of ``main``, ``wal``, ``journal`` and ``other`` files; what had none is left out."""
        return {kind: syncs for kind, (syncs, _) in self._since().items() if syncs}

    def reset(self) -> None:
        """Count from here. Files that are open go on being counted."""
        self._then = self._totals()

    def _totals(self) -> dict[str, tuple[int, int]]:
        syncs: Counter[str] = Counter()
        writes: Counter[str] = Counter()
        for tally in list(self._tallies):
            syncs[tally.kind] += tally.syncs
            writes[tally.kind] += tally.writes
        return {kind: (syncs[kind], writes[kind]) for kind in syncs}

    def _since(self) -> dict[str, tuple[int, int]]:
        # What is counted only grows, so that nobody who counts has to be stopped for a reset.
        then = self._then
        return {
            kind: (syncs - then.get(kind, (0, 0))[0], writes - then.get(kind, (0, 0))[1])
            for kind, (syncs, writes) in self._totals().items()
        }

    def __enter__(self) -> CountingVFS:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.unregister()
