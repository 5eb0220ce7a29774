"""What every side of the comparison shares: the arguments, the timed parts, the line of JSON.

Owns the shape of one measurement: warm up, time one workflow of many steps, time many workflows of few. Standard
library only, since it is imported in each peer's environment. Refuses a round that did not return every step's answer.
Invariant: no side decides when its clock starts; all go through ``timed``.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

WARM_STEPS = 20
"""Steps of one workflow before the first clock; then as many concurrent ones as are timed run one step each."""
MOST = 100_000

SYNCHRONOUS = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}
"""What the number that SQLite answers with is called."""


class Form(NamedTuple):
    """One way in which a side's documentation runs workflows.

    ``one`` takes a name and a number of steps and answers how many steps were done; None where the form has nothing to
    say about a single workflow. ``together`` takes the names of workflows and the steps of each, and answers one number
    a workflow.
    """

    name: str
    one: Callable[[str, int], Awaitable[int]] | None
    together: Callable[[list[str], int], Awaitable[Iterable[int]]]


class WrongAnswer(Exception):
    """A workflow answered another number of steps than it was given."""


def asked(description: str, forms: tuple[str, ...], settings: tuple[str, ...] = ("default",)) -> argparse.Namespace:
    """The arguments of a side: where its store lies, which setting and forms, and the sizes of the two parts."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--directory", type=Path, required=True, help="an empty directory for the store")
    parser.add_argument("--setting", choices=settings, default=settings[0])
    parser.add_argument("--form", choices=forms, action="append", help="time only this form (repeatable)")
    parser.add_argument("--steps", type=size, default=500, help="steps of the one sequential workflow")
    parser.add_argument("--flows", type=size, default=50, help="how many concurrent workflows")
    parser.add_argument("--each", type=size, default=20, help="steps of each of those")
    parser.add_argument("--server", type=Path, help="the peer's server, where it has one")
    args = parser.parse_args()
    if not args.directory.is_dir():
        parser.error(f"there is no directory {args.directory}")
    args.form = args.form or list(forms)
    return args


def size(text: str) -> int:
    """A number of steps or workflows."""
    if not text.isdecimal() or not 1 <= int(text[:9]) <= MOST:
        raise argparse.ArgumentTypeError(f"a size is a number from 1 to {MOST}")
    return int(text)


def answer(number: int) -> dict[str, Any]:
    """What a step of every side returns."""
    return {"number": number, "accepted": True}


async def timed(args: argparse.Namespace, forms: Iterable[Form]) -> list[dict[str, Any]]:
    """Warm up, then time both parts of each form that was asked for.

    Steps a second as ``one`` (null where the form has no single workflow) and ``many``; ``span_one`` and ``span_many``
    are their wall-clock spans in seconds, for whoever traces the process.
    """
    measured = []
    for form in forms:
        if form.name not in args.form:
            continue
        if form.one is not None:
            whole([await form.one(f"{form.name}-warm", WARM_STEPS)], 1, WARM_STEPS)
        await form.together([f"{form.name}-warm-{number}" for number in range(args.flows)], 1)
        row: dict[str, Any] = {"form": form.name, "one": None, "span_one": None}
        if form.one is not None:
            began, clock = time.time(), time.perf_counter()
            did = await form.one(f"{form.name}-one", args.steps)
            row["one"] = args.steps / (time.perf_counter() - clock)
            row["span_one"] = [began, time.time()]
            whole([did], 1, args.steps)
        names = [f"{form.name}-many-{number}" for number in range(args.flows)]
        began, clock = time.time(), time.perf_counter()
        several = list(await form.together(names, args.each))
        row["many"] = args.flows * args.each / (time.perf_counter() - clock)
        row["span_many"] = [began, time.time()]
        whole(several, args.flows, args.each)
        measured.append(row)
    return measured


def whole(did: list[int], flows: int, steps: int) -> None:
    """Every workflow answered, and with the number of steps that it was given. Raises WrongAnswer."""
    if did != [steps] * flows:
        raise WrongAnswer(f"{flows} workflows of {steps} steps answered {sorted(set(did))} ({len(did)} of them).")


def say(side: str, version: str, durability: str, forms: list[dict[str, Any]]) -> None:
    """Print what was measured: one line of JSON, the last of standard output."""
    print(json.dumps({"side": side, "version": version, "durability": durability, "forms": forms}), flush=True)
