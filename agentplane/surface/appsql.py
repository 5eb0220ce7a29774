"""The migration of an application's own tables, as an act on the plane.

Owns the unit of it: the script, and the sealed run that says who ran it. Refuses to run beside other work. Invariant:
tables and record are one commit, or neither is there.
"""

from __future__ import annotations

import os

from agentplane.core import ids
from agentplane.core.records import Actor, PlaneActed
from agentplane.engine.plane import Plane
from agentplane.engine.recovery import own_run
from agentplane.journal import application
from agentplane.journal.application import Migrated
from agentplane.journal.tx import Tx


async def apply(plane: Plane, actor: Actor, script: str) -> Migrated:
    """Run ``script`` in a transaction of its own. Raises InvalidRequest, AtomicRefused naming statement and line."""
    application.check_script(script)
    owner, world = plane.owner, plane.runs.world
    run = ids.new_id("run", world.now_ms(), os.urandom(10))

    def unit(tx: Tx) -> Migrated:
        migrated = application.migrate_app(tx, script)
        detail = {"digest": migrated.digest, "statements": migrated.statements}
        acted = {"action": "app_sql", "acted_by": actor, "detail": detail}
        own_run(
            tx, tx.tenant, [(PlaneActed, acted)], "acted", run, "agentplane.act", world.incarnation, owner.owner,
            owner.opening,
        )  # fmt: skip
        return migrated

    return await plane.writer.do(unit, solo=True)
