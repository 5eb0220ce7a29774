"""What stands in a store: the chain head of every run, verified, and what strict replay says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentplane.engine.foresight import foresee
from agentplane.engine.plane import by_name, wall_ms
from agentplane.engine.strict import replay_strict
from agentplane.engine.world import World
from agentplane.journal import lists
from agentplane.journal.store import read_only


async def judged(path: Path, code: list[Any]) -> dict[str, Any]:
    """By run: capability, status, records, head (hex) and verdicts; the plane's own runs have no code to replay."""
    readers = read_only(path)
    skills, world = by_name(code), World(now_ms=wall_ms)

    async def read_blob(digest: bytes) -> object:
        return readers.read(lambda tx: lists.value(tx, digest))

    found: dict[str, Any] = {}
    try:
        rows = readers.read(lambda tx: [*lists.runs(tx, limit=1000), *lists.runs(tx, limit=1000, own=True)])
        for row in rows:
            # Reading it verifies every link of its chain, up to the head that the index names.
            stored = lists.read_history(readers.read, row.run)
            found[row.run] = {
                "capability": row.capability, "status": row.status, "records": len(stored), "own": row.own,
                "head": stored[-1].hash.hex(),
            }  # fmt: skip
            if not row.own:
                verdict = await replay_strict(row.run, stored, skills, world, read_blob)
                foreseen = await foresee(row.run, stored, skills, world, read_blob)
                found[row.run] |= {
                    "strict": [verdict.verdict, verdict.reason, verdict.effects],
                    "foreseen": [foreseen.verdict, foreseen.reason, list(foreseen.notes)],
                }
    finally:
        readers.close()
    return found
