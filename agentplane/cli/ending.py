"""`drain --wait`: until a process has let go of its store, and how it ended.

Owns the words of that wait. Refuses to guess what was cut: the process said so in the note of its lock, or it is not
known here. Invariant: it returns once the next process may start.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from agentplane.cli.connect import Client, Lost
from agentplane.cli.render import safe, tell
from agentplane.cli.steady import PAUSE_S
from agentplane.core import errors
from agentplane.core.errors import EXIT_PARTIAL, EXIT_YES
from agentplane.journal.lock import Note, is_free, lock_path, read_note

STORE_PAUSE_S: Final = PAUSE_S / 4


def until_stopped(client: Client, pid: int, store: Path | None) -> int:
    """Wait for the end of process ``pid``; what it still has in hand is told meanwhile, and then what it cut. 0 when
    nothing was, 5 when something was or it was killed. Without ``store`` (a plane elsewhere) only its silence is
    known."""
    running = None
    while True:
        try:
            _, body = client.call("status")
        except (Lost, errors.Unreachable):
            break
        if body["pid"] != pid:
            return _ended(pid, None if store is None else read_note(lock_path(store)))
        if body["running"] != running:
            running = body["running"]
            tell(f"{running} runs in hand")
        time.sleep(PAUSE_S)
    if store is None:
        return EXIT_YES
    while not is_free(store):
        note = read_note(lock_path(store))
        if note is not None and note.pid != pid:
            break
        time.sleep(STORE_PAUSE_S)
    return _ended(pid, read_note(lock_path(store)))


def _ended(pid: int, note: Note | None) -> int:
    if note is None or note.pid != pid:
        tell(f"pid {pid} has ended and another has its store; what it cut is in its log")
        return EXIT_YES
    if note.cut is None:
        tell(f"pid {pid} was killed before it could say what it cut; the next process finds it in the journal")
        return EXIT_PARTIAL
    for run, where in note.cut.items():
        tell(safe(f"cut: {run} {where}"))
    if note.cut_count > len(note.cut):
        tell(f"cut: {note.cut_count - len(note.cut)} more")
    return EXIT_PARTIAL if note.cut_count else EXIT_YES
