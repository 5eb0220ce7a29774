"""A run that waits holds no task, no thread and no lease: another process goes on with it."""

import tempfile

import trio

from agentplane import Plane, effect, skill


@effect("mail.send", mutates=False)
async def send(call, *, text: str) -> str:
    return text


@skill("invoice.remind")
async def remind(cx, request: dict) -> str:
    await cx.do(send(text="your invoice"))
    await cx.sleep(seconds=request["seconds"])
    return await cx.do(send(text="a reminder"))


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with Plane.open(f"{directory}/plane.db", skills=[remind]) as plane:
            outcome = await plane.run("invoice.remind", {"seconds": 1})
            print("first process:", outcome.status)
        async with Plane.open(f"{directory}/plane.db", skills=[remind]) as plane:
            while (outcome := await plane.outcome(outcome.run)).status != "succeeded":
                await trio.sleep(0.1)
            print("second process:", outcome.output)


trio.run(main)
