"""DBOS's side: ``@DBOS.step`` in ``@DBOS.workflow``, over its SQLite system database.

Owns the two settings: ``default`` changes nothing; ``wal-full`` sets journal_mode=WAL and synchronous=FULL on every
connection that DBOS opens. Refuses other tuning: pool, threads and polling are DBOS's defaults. Invariant: the pragmas
that are printed were read on a connection that DBOS itself used.
"""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import Any

import sqlalchemy
from dbos import DBOS
from sizes import SYNCHRONOUS, Form, answer, asked, say, timed

QUEUE = "peers"


@DBOS.step()
async def act(number: int) -> dict[str, Any]:
    """A step that is answered at once."""
    return answer(number)


@DBOS.workflow()
async def flow(steps: int) -> int:
    """``steps`` steps, one after the other."""
    done = 0
    for number in range(steps):
        got = await act(number)
        done += bool(got["accepted"])
    return done


async def one(name: str, steps: int) -> int:
    return await flow(steps)


async def started(names: list[str], steps: int) -> list[int]:
    """All begun in this process, then all awaited."""
    handles = [await DBOS.start_workflow_async(flow, steps) for _ in names]
    return [await handle.get_result() for handle in handles]


async def queued(names: list[str], steps: int) -> list[int]:
    """All put on a queue of this process's, then all awaited."""
    handles = [await DBOS.enqueue_workflow_async(QUEUE, flow, steps) for _ in names]
    return [await handle.get_result() for handle in handles]


def durability(connection: Any) -> str:
    """What a connection of DBOS's says of itself, and what that means here."""
    mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
    level = SYNCHRONOUS[connection.execute("PRAGMA synchronous").fetchone()[0]]
    how = "the log" if mode == "wal" else "the rollback journal, the file and the directory"
    return (
        f"SQLite, found journal_mode={mode}, synchronous={level}: a step's result is committed by itself after the"
        f" step, before the next, with syncs of {how}; nothing is written before a step runs"
    )


async def main() -> None:
    args = asked("DBOS's side of the comparison", ("start_workflow_async", "queue"), ("default", "wal-full"))
    connections: list[Any] = []

    def connected(connection: Any, _record: Any) -> None:
        if args.setting == "wal-full":
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
        connections.append(connection)

    sqlalchemy.event.listen(sqlalchemy.Engine, "connect", connected)
    url = f"sqlite:///{args.directory}/dbos.sqlite"
    DBOS(config={"name": "peers", "system_database_url": url, "log_level": "ERROR"})
    DBOS.launch()
    try:
        if "queue" in args.form:
            await DBOS.register_queue_async(QUEUE)
        measured = await timed(args, [Form("start_workflow_async", one, started), Form("queue", None, queued)])
        said = await asyncio.to_thread(durability, connections[-1])
    finally:
        DBOS.destroy()
    say("DBOS", version("dbos"), said, measured)


if __name__ == "__main__":
    asyncio.run(main())
