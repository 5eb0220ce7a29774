"""Passive checkpoints, on a connection and a thread of their own.

Owns when the log is copied into the main file (W11). Refuses to make the writer wait. Invariant: the mark is
written after each checkpoint, and the files compared (W10) before it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import apsw

from agentplane.core import bounds
from agentplane.core.errors import AgentplaneError
from agentplane.journal.store import Store, connect
from agentplane.journal.units import store_failed

OVERDUE = 4
"""A log of so many times the pages of one checkpoint is copied by the writer itself."""


class Checkpointer:
    """A thread that checkpoints when told that the log is long. ``failed`` is called with what must stop the
    plane."""

    def __init__(
        self, store: Store, failed: Callable[[AgentplaneError], None], pages: int = bounds.CHECKPOINT_PAGES
    ) -> None:
        self._store = store
        self._failed = failed
        self._pages = pages
        self._wanted = threading.Event()
        self._stopping = False
        self._copy = True
        self._copied_at = 0
        self._log_pages = 0
        self._thread = threading.Thread(target=self._main, name="agentplane-checkpoint", daemon=True)

    def watch(self, connection: apsw.Connection) -> None:
        """Install the hook on the writer's connection: SQLite tells the length of the log at each commit."""

        def hook(_: apsw.Connection, __: str, pages: int) -> int:
            self._log_pages = pages
            if pages < self._copied_at:
                self._copied_at = 0  # the log was begun anew
            if pages - self._copied_at >= self._pages:
                # A log that could not be begun anew goes on growing; copying its tail at each commit would
                # cost syncs.
                self._copied_at = pages
                self._wanted.set()
            return apsw.SQLITE_OK

        connection.set_wal_hook(hook)

    def watched_connection(self) -> apsw.Connection:
        """The writer's connection, with the hook in it: made on the writer's thread."""
        connection = self._store.writer_connection()
        self.watch(connection)
        return connection

    def between(self, connection: apsw.Connection) -> None:
        """Called by the writer between two transactions. Under a load that never pauses the thread's copies
        always miss the newest pages, so that the log is never begun anew; past OVERDUE times its length the
        writer copies the rest itself."""
        if self._log_pages >= OVERDUE * self._pages:
            self._log_pages = 0
            try:
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            except apsw.Error as error:
                self._failed(store_failed(error))

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, copy: bool = True) -> None:
        """End the thread. ``copy`` False: nobody knows what the disk holds, and closing must not copy the log."""
        self._copy = copy
        self._stopping = True
        self._wanted.set()
        self._thread.join(timeout=bounds.FLUSH_MAX_S)

    def _main(self) -> None:
        connection: apsw.Connection | None = None
        try:
            while True:
                self._wanted.wait()
                if self._stopping:
                    return
                self._wanted.clear()
                if connection is None:
                    connection = connect(self._store.path, vfs=self._store.vfs)
                self._store.same_files()
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
                if self._store.held is None:
                    self._store.write_mark(connection)
        except apsw.Error as error:
            self._failed(store_failed(error))
        except AgentplaneError as error:
            self._failed(error)
        finally:
            if connection is not None:
                if not self._copy:
                    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
                connection.close()
