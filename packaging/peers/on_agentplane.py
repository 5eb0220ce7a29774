"""agentplane's side: a step is one external effect, announced on the disk before it is performed.

Owns nothing but an effect and a skill; public names and the defaults of ``Plane.open``. Refuses ``local`` effects,
which would pay no sync. Invariant: every step pays for its announcement, and a run's admission and conclusion are
inside the clock.
"""

from __future__ import annotations

from typing import Any

import trio
from sizes import SYNCHRONOUS, Form, answer, asked, say, timed

from agentplane import Call, Plane, Recovery, Step, __version__, effect, skill


@effect("peers.step", recovery=Recovery.IDEMPOTENT)
async def act(call: Call, *, number: int) -> dict[str, Any]:
    """A call to the outside that is answered at once."""
    return answer(number)


@skill("peers.flow")
async def flow(cx: Step, request: dict[str, Any]) -> int:
    """``steps`` effects, one after the other."""
    done = 0
    for number in range(request["steps"]):
        got = await cx.do(act(number=number))
        done += bool(got["accepted"])
    return done


def durability(tx: Any) -> str:
    """What the writing connection says of itself, and what that means here."""
    (mode,), (level,) = tx.one("PRAGMA journal_mode"), tx.one("PRAGMA synchronous")
    return (
        f"SQLite, found journal_mode={mode}, synchronous={SYNCHRONOUS[level]}: each step's announcement is committed"
        " and synced before the step runs, its outcome with the next announcement or with the run's end; runs side by"
        " side share a sync"
    )


async def main() -> None:
    args = asked("agentplane's side of the comparison", ("nursery",))
    async with Plane.open(args.directory / "plane.db", skills=[flow]) as plane:

        async def one(name: str, steps: int) -> int:
            outcome = await plane.run("peers.flow", {"name": name, "steps": steps})
            return outcome.output if isinstance(outcome.output, int) else -1

        async def together(names: list[str], steps: int) -> list[int]:
            did: list[int] = []

            async def keep(name: str) -> None:
                did.append(await one(name, steps))

            async with trio.open_nursery() as nursery:
                for name in names:
                    nursery.start_soon(keep, name)
            return did

        measured = await timed(args, [Form("nursery", one, together)])
        said = await plane.writer.do(durability)
    say("agentplane", __version__, said, measured)


if __name__ == "__main__":
    trio.run(main)
