"""`drain --wait`: until a process has let go of its store, and how it ended.

Owns the words of that wait. Refuses to guess what was cut: the process said so in the note of its lock, or it is not
known here, and that is no 0. Invariant: it returns once the next process may start.
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
    nothing was, 5 when something was or nobody says. Without ``store`` (a plane elsewhere) only its silence is known,
    and said."""
    running = None
    while True:
        try:
            _, body = client.call("status")
        except (Lost, errors.Unreachable):
            break
        if body["pid"] != pid:
            break
        if body["running"] != running:
            running = body["running"]
            tell(f"{running} runs in hand")
        time.sleep(PAUSE_S)
    if store is None:
        tell(f"pid {pid} answers no more; what it cut is in its log")
        return EXIT_YES
    note = read_note(lock_path(store))
    while (note is None or note.pid == pid) and not is_free(store):
        time.sleep(STORE_PAUSE_S)
        note = read_note(lock_path(store))
    return _said(pid, note)


def _said(pid: int, note: Note | None) -> int:
    ends = [] if note is None else [note.ended, note.before]
    ended = next((one for one in ends if one is not None and one.pid == pid), None)
    if ended is None:
        tell(f"pid {pid} ended before it could say what it cut; the next process finds it in the journal")
        return EXIT_PARTIAL
    for run, where in ended.cut.items():
        tell(safe(f"cut: {run} {where}"))
    if ended.cut_count > len(ended.cut):
        tell(f"cut: {ended.cut_count - len(ended.cut)} more")
    return EXIT_PARTIAL if ended.cut_count else EXIT_YES
