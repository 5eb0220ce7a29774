"""W9: what a killed process left in the log is on the disk, in the main file, before the next one writes anything.

The end of any connection copies the log as well, and says nothing of how that went; so the order is what is looked at.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from agentplane.testkit.faults import Disk, FaultVFS, Op
from agentplane.testkit.ledger import Ledger
from journal.stores import PlainStore, opened


def left_behind(store_path: Path) -> tuple[Path, bytes, bytes]:
    """A store as a killed process leaves it: its path, its log, and the run that only the log holds."""
    plain = PlainStore(store_path)
    run = Ledger(plain).admit().run.encode()
    left = store_path.with_name("left") / "plane.db"
    left.parent.mkdir()
    for end in ("", "-wal"):
        shutil.copyfile(f"{store_path}{end}", f"{left}{end}")
    plain.close()
    log = Path(f"{left}-wal").read_bytes()
    assert run not in left.read_bytes() and run in log
    return left, log, run


class Watched(Disk):
    """A disk that hands each change of a file to `look` before it is made."""

    def __init__(self, look: Callable[[Op], object]) -> None:
        super().__init__()
        self.look = look

    def write(self, op: Op, perform: Callable[[Op], object]) -> None:
        self.look(op)
        super().write(op, perform)


def test_the_log_is_copied_and_synced_before_the_first_write(store_path: Path) -> None:
    """W9: at the first byte that an opening adds to the log, the main file on the disk has the killed one's run."""
    left, log, run = left_behind(store_path)
    found: list[bool] = []

    def look(op: Op) -> None:
        if op.file == "plane.db-wal" and op.data is not None and op.data != log[op.offset : op.offset + len(op.data)]:
            found.append(run in disk.image().synced["plane.db"])

    disk = Watched(look)
    with FaultVFS("copies-first", disk):
        opened(left, vfs="copies-first").close()
    assert found and all(found)


def test_the_log_is_written_anew_before_it_is_copied(store_path: Path) -> None:
    """W9: what a failed sync left in the cache alone is on the disk, or fails, before the main file takes it over."""
    left, log, _ = left_behind(store_path)
    again, copied = bytearray(), []

    def look(op: Op) -> None:
        if op.file == "plane.db":
            copied.append(bytes(again) == log and not disk.image().unsynced)
        elif op.data is not None and not copied:
            assert op.offset == len(again)
            again.extend(op.data)

    disk = Watched(look)
    with FaultVFS("writes-anew", disk):
        opened(left, vfs="writes-anew").close()
    assert copied and copied[0]
