"""``agentplane bench``: where it measures, what it prints.

Owns the directory, the progress and the two outputs. Refuses nothing but a directory that cannot be written. Invariant:
what it made on the disk is gone when it ends.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from argparse import Namespace
from pathlib import Path

import trio

from agentplane.core.build import __version__
from agentplane.core.errors import EXIT_YES, InvalidRequest
from agentplane.lab.bench.lives import after_kills
from agentplane.lab.bench.loads import in_process
from agentplane.lab.bench.rows import table
from agentplane.lab.bench.undoing import all_of

QUICK: float = 0.2
"""How much of the whole a quick look takes."""


def bench(args: Namespace) -> int:
    """Measure in ``--directory`` (default: a temporary one of the system's) and print a table, or JSON."""
    where: Path | None = args.directory
    if where is not None and not where.is_dir():
        raise InvalidRequest(f"There is no directory {where} to measure in; make it, or leave --directory out.")
    began = time.monotonic()

    def told(what: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {what}", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="agentplane-bench-", dir=where) as made:
        directory = Path(made)
        disk = file_system(directory)
        rows = trio.run(in_process, directory, QUICK if args.quick else 1.0, told)
        rows += trio.run(all_of, directory, QUICK if args.quick else 1.0, told)
        rows += after_kills(directory, told)
    if args.json:
        said = {"schema": "agentplane.bench/1", "version": __version__, "quick": args.quick, "file_system": disk}
        print(json.dumps(said | {"rows": [named(one) for one in rows]}, indent=2))
        return EXIT_YES
    print(f"agentplane {__version__}, on {disk}{', quick' if args.quick else ''}, {time.monotonic() - began:.0f} s")
    if disk in ("tmpfs", "ramfs"):
        print("This is memory: a sync costs nothing here, so that only counts and CPU mean anything.")
    print(table(rows))
    return EXIT_YES


def named(one: object) -> dict[str, object]:
    import msgspec

    return dict(msgspec.to_builtins(one))


def file_system(directory: Path) -> str:
    """The kind of file system that ``directory`` is on, or "unknown"."""
    best, kind = "", "unknown"
    try:
        mounts = Path("/proc/self/mounts").read_text("utf-8", "replace").splitlines()
    except OSError:
        return kind
    here = str(directory.resolve())
    for line in mounts:
        _, point, found, *_ = line.split(" ")
        if (here == point or here.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best, kind = point, found
    return kind
