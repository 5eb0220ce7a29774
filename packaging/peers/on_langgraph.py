"""LangGraph's side: a node that runs once a step, with a SQLite checkpointer and ``durability="sync"``.

Owns one graph in two forms: ``threads`` over SqliteSaver with ``graph.batch``, ``gather`` over AsyncSqliteSaver with
``asyncio.gather``. A graph and not the functional API, because only here is a step a checkpoint: the results of
``@task`` are handed to a background thread and the next task does not wait for them. Refuses other tuning. Invariant:
the pragmas that are printed were read on the saver's own connection.
"""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import Any, TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from sizes import SYNCHRONOUS, Form, answer, asked, say, timed


class State(TypedDict):
    """What a checkpoint holds: how far it is, how far it goes, and what the last step answered."""

    number: int
    steps: int
    got: dict[str, Any]


def act(state: State) -> dict[str, Any]:
    """A step that is answered at once."""
    return {"number": state["number"] + 1, "got": answer(state["number"])}


async def act_async(state: State) -> dict[str, Any]:
    return act(state)


def more(state: State) -> str:
    return "act" if state["number"] < state["steps"] else END


def compiled(node: Any, saver: Any) -> Any:
    """The graph: one node, again and again."""
    builder = StateGraph(State)
    builder.add_node("act", node)
    builder.add_edge(START, "act")
    builder.add_conditional_edges("act", more)
    return builder.compile(checkpointer=saver)


def beginning(steps: int) -> State:
    return {"number": 0, "steps": steps, "got": {}}


def config(name: str, steps: int) -> dict[str, Any]:
    """A thread of its own for each workflow, and room for its steps."""
    return {"configurable": {"thread_id": name}, "recursion_limit": steps + 10}


def threads(saver: Any) -> Form:
    """The synchronous saver: one invoke, or ``graph.batch`` with the threads that it takes by itself."""
    graph = compiled(act, saver)

    async def one(name: str, steps: int) -> int:
        done = await asyncio.to_thread(graph.invoke, beginning(steps), config(name, steps), durability="sync")
        return int(done["number"])

    async def together(names: list[str], steps: int) -> list[int]:
        inputs, configs = [beginning(steps) for _ in names], [config(name, steps) for name in names]
        done = await asyncio.to_thread(graph.batch, inputs, configs, durability="sync")
        return [int(end["number"]) for end in done]

    return Form("threads", one, together)


def gather(saver: Any) -> Form:
    """The asynchronous saver, on this event loop."""
    graph = compiled(act_async, saver)

    async def one(name: str, steps: int) -> int:
        done = await graph.ainvoke(beginning(steps), config(name, steps), durability="sync")
        return int(done["number"])

    async def together(names: list[str], steps: int) -> list[int]:
        return await asyncio.gather(*(one(name, steps) for name in names))

    return Form("gather", one, together)


def durability(mode: str, level: int) -> str:
    return (
        f"SQLite, found journal_mode={mode}, synchronous={SYNCHRONOUS[level]}: after each step its writes and its"
        " checkpoint are committed, each with a sync of the log, before the next; nothing is written before a step runs"
    )


async def main() -> None:
    args = asked("LangGraph's side of the comparison", ("threads", "gather"))
    measured: list[dict[str, Any]] = []
    said = ""
    with SqliteSaver.from_conn_string(str(args.directory / "threads.sqlite")) as saver:
        measured += await timed(args, [threads(saver)])
        if "threads" in args.form:
            (mode,), (level,) = (saver.conn.execute(f"PRAGMA {name}").fetchone() for name in PRAGMAS)
            said = durability(mode, level)
    async with AsyncSqliteSaver.from_conn_string(str(args.directory / "gather.sqlite")) as later:
        measured += await timed(args, [gather(later)])
        if not said:
            rows = [await (await later.conn.execute(f"PRAGMA {name}")).fetchone() for name in PRAGMAS]
            said = durability(*(row[0] for row in rows if row))
    say("LangGraph", version("langgraph"), said, measured)


PRAGMAS = ("journal_mode", "synchronous")

if __name__ == "__main__":
    asyncio.run(main())
