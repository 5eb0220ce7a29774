"""The level of a store: shown, and raised.

Owns `upgrade`, its words and its status, and the way to `upgrade-check`. Refuses to raise the level of a store that
somebody holds, and to do it without being told twice. Invariant: without `--commit` nothing is written, and no lock is
taken.
"""

from __future__ import annotations

import argparse
import os
import time
import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from agentplane.cli.render import choose, emit, tell
from agentplane.core import errors
from agentplane.core.build import __version__
from agentplane.core.errors import EXIT_YES

if TYPE_CHECKING:
    from agentplane.journal.levels import Outlook, Raised
    from agentplane.journal.store import Identity, Store
    from agentplane.journal.tx import Tx
    from agentplane.surface.access import Who

Args = argparse.Namespace


def upgrade(args: Args) -> int:
    """0 when it was shown, or done; 4 while somebody holds the store."""
    from agentplane.cli.verbs import _located, sure
    from agentplane.journal import levels
    from agentplane.surface.access import decide, of_terminal

    store, located = _located(args)
    now_ms = time.time_ns() // 1_000_000
    found = levels.outlook(store, now_ms)
    if not args.commit:
        emit("upgrade", _shown(store, found) | {"committed": False}, choose(args.output))
        if found.steps:
            tell(f"nothing was changed; `agentplane upgrade --commit` goes from level {found.level} to {found.known}")
        return EXIT_YES
    who = of_terminal(args.actor)
    decide(who, "api:plane.upgrade")
    _nobody_holds(store)
    if found.steps:
        sure(
            args,
            f"The store {store} goes from level {found.level} to {found.known}: a build that knows no level above "
            f"{found.level} will not open it any more. The store as it is now is kept in {found.copy}.",
        )
    identity = _identity(now_ms)
    tenant = located.plane.tenant if located is not None else _tenant(store)
    raised = levels.commit(store, tenant, identity, said=tell, act=partial(_record, who, identity))
    body = _shown(store, found) | {
        "level": raised.level, "before": raised.before, "committed": bool(raised.steps),
        "copy": None if raised.copy is None else str(raised.copy),
        "steps": [msgspec.to_builtins(step) for step in raised.steps],
    }  # fmt: skip
    emit("upgrade", body, choose(args.output))
    return EXIT_YES


def upgrade_check(args: Args) -> int:
    """The verb of ``cli.upgrade_check``, which is loaded when it is asked for."""
    from agentplane.cli.upgrade_check import upgrade_check as check

    return check(args)


def _shown(store: Path, found: Outlook) -> dict[str, Any]:
    """What a commit would do. Bytes are bytes."""
    stat = os.statvfs(store.parent)
    return {
        "schema": "agentplane.upgrade/1", "store": str(store), "level": found.level, "known": found.known,
        "floor": found.floor, "build": __version__, "steps": [msgspec.to_builtins(step) for step in found.steps],
        "copy": str(found.copy) if found.steps else None, "copy_bytes": found.copy_bytes if found.steps else 0,
        "free_bytes": stat.f_bavail * stat.f_frsize,
    }  # fmt: skip


def _record(who: Who, identity: Identity, tx: Tx, store: Store, raised: Raised) -> None:
    """The act, in a sealed run of its own, as every act that is of no run."""
    from agentplane.core import ids
    from agentplane.core.records import PlaneActed
    from agentplane.engine.recovery import own_run

    run = ids.new_id("run", tx.now_ms, os.urandom(10))
    detail = {"from": raised.before, "to": raised.level, "copy": None if raised.copy is None else raised.copy.name}
    acted = (PlaneActed, {"action": "upgrade", "acted_by": who.as_actor(), "detail": detail})
    own_run(
        tx,
        tx.tenant,
        [acted],
        "acted",
        run,
        "agentplane.act",
        store.found.incarnation,
        identity.owner,
        identity.opening,
    )


def _nobody_holds(store: Path) -> None:
    """Raises StoreBusy naming the holder: a level is raised while nothing runs."""
    from agentplane.journal.lock import is_free, lock_path, read_note

    if is_free(store):
        return
    note = read_note(lock_path(store))
    who = "another process" if note is None else f"pid {note.pid} on {note.host} ({note.state})"
    raise errors.StoreBusy(f"The store is held by {who}; stop the plane, raise the level, start the plane.")


def _identity(now_ms: int) -> Identity:
    from agentplane.journal.store import Identity

    opening = uuid.uuid4().hex
    return Identity(
        opening=opening, owner=f"{os.uname().nodename}:{os.getpid()}:{opening[:8]}", build=__version__, now_ms=now_ms,
        new_incarnation=uuid.uuid4().hex,
    )  # fmt: skip


def _tenant(store: Path) -> str:
    from agentplane.journal.store import read_only

    readers = read_only(store)
    try:
        return readers.read(lambda tx: tx.tenant)
    finally:
        readers.close()
