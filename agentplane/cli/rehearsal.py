"""What a new build makes of a copy of the store: the inner half of `upgrade-check`, run by the new build itself.

Owns the rehearsal (settings, code, levels, and every open run asked strictly) and its lines on standard output, one
JSON object each. Refuses to touch anything but the copy that it was given, which is nobody's store. Invariant: what a
skill prints is never taken for a line, and the last line says that the rehearsal came to its end.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec
import trio

from agentplane.core import bounds, errors
from agentplane.core.build import __version__
from agentplane.core.errors import EXIT_YES
from agentplane.engine.executor import Capabilities
from agentplane.engine.foresight import DIVERGES, UNREADABLE, VERIFIED, Foreseen, ReadBlob, foresee
from agentplane.engine.plane import by_name, wall_ms
from agentplane.engine.world import World
from agentplane.journal import levels, lists, schema
from agentplane.journal.lists import RunRow
from agentplane.journal.store import Readers, read_only

SCHEMA: Final = "agentplane.rehearsal/1"
OPEN: Final = ("running", "suspended", "exhausted", "quarantined")
"""What goes on: by itself, or when a person lets it."""
SET_PDEATHSIG: Final = 1
TOLD_EVERY_S: Final = 1.0

Said = Mapping[str, object]
Tell = Callable[[Said], None]


def rehearse(args: argparse.Namespace) -> int:
    """Try the copy ``args.inner`` with this build and the directory's code; always 0 when it came to its end."""
    _end_with_parent()
    tell = _lines()
    tell({"schema": SCHEMA, "build": __version__, "level": schema.LEVEL, "floor": schema.FLOOR})
    try:
        _rehearse(args, tell)
    except errors.AgentplaneError as error:
        tell({"refused": error.message, "code": error.row.code})
    tell({"end": True})
    return EXIT_YES


def _end_with_parent() -> None:
    """Killed, whoever asked ends nothing: the kernel ends this process then, whatever code of the operator runs."""
    ctypes.CDLL(None).prctl(SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _lines() -> Tell:
    """The way out for lines; standard output becomes standard error, for whatever the operator's code prints."""
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)

    def tell(said: Said) -> None:
        out.write(msgspec.json.encode(said) + b"\n")

    return tell


def _rehearse(args: argparse.Namespace, tell: Tell) -> None:
    from agentplane.appliance import code, settings
    from agentplane.engine import guard

    flags = {name: str(path.absolute()) for name in ("skills", "vendor") if (path := getattr(args, name)) is not None}
    located, wrong = settings.examine(settings.find(args.plane, {}), flags, os.environ)
    for sentence in wrong:
        tell({"refused": sentence, "code": "settings"})
    if located is None:
        return
    writable = code.writable(located)
    if writable is not None:
        tell({"refused": writable, "code": "settings"})
        return
    guard.install()
    loaded = code.imported(located)
    for sentence in (*code.without_secrets(located, loaded), *code.unknown_schedules(located, loaded)):
        tell({"refused": sentence, "code": "settings"})
    table = by_name(loaded.skills)
    tell({"skills": sorted(table)})
    before, after = levels.raise_copy(args.inner, wall_ms(), __version__)
    tell({"store_level": before, "raised_to": after})
    world = World(now_ms=wall_ms, settings=located.plane.settings)
    readers = read_only(args.inner)
    try:
        trio.run(_every_run, readers, table, world, args.limit, tell)
    finally:
        readers.close()


async def _every_run(readers: Readers, table: Capabilities, world: World, limit: int, tell: Tell) -> None:
    """One line for each open run, and for what is verified one a second."""
    counts = readers.read(lists.count_by_status)
    total = sum(counts.get(status, 0) for status in OPEN)
    tell({"open": total})
    examined, told = 0, time.monotonic()

    async def read_blob(digest: bytes) -> object:
        return readers.read(lambda tx: lists.value(tx, digest))

    for row in _open_runs(readers):
        if examined == limit:
            break
        examined += 1
        found = await _foreseen(row, readers, table, world, read_blob)
        if found.verdict != VERIFIED or found.notes or time.monotonic() - told >= TOLD_EVERY_S:
            told = time.monotonic()
            known = row.code == "diverged" and found.verdict == DIVERGES
            tell({
                "capability": row.capability, "status": row.status, "known": known, "examined": examined,
                **msgspec.to_builtins(found),
            })  # fmt: skip
    tell({"examined": examined, "left_out": total - examined})


async def _foreseen(
    row: RunRow, readers: Readers, table: Capabilities, world: World, read_blob: ReadBlob
) -> Foreseen:  # fmt: skip
    try:
        stored = lists.read_history(readers.read, row.run)
    except errors.JournalCorrupt as error:
        return Foreseen(run=row.run, verdict=UNREADABLE, reason=error.message)
    return await foresee(row.run, stored, table, world, read_blob)


def _open_runs(readers: Readers) -> Iterator[RunRow]:
    """Every open run of callers, by status, newest first, a page in a transaction each."""
    for status in OPEN:
        before: tuple[int, str] | None = None
        while True:
            page = readers.read(functools.partial(lists.runs, status=status, before=before))
            yield from (row for row in page if not row.own)
            if len(page) < bounds.LIST_PAGE:
                break
            before = (page[-1].admitted_ms, page[-1].run)
