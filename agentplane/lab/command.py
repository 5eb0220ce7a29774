"""The verb ``agentplane demo``: one of the lab's workloads, its verdict, and its status.

Owns the arguments, the temporary directory and what is kept of it. Refuses a sabotage of another workload: under it the
run would prove nothing. Invariant: the status is the verdict's, and nothing is left behind that was not asked for.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from agentplane.core.errors import EXIT_OPERATIONAL, InvalidRequest
from agentplane.lab import chaos, report, sabotage
from agentplane.lab.books import STATUS, Judgement
from agentplane.lab.orders import driver
from agentplane.lab.orders import report as orders_report
from agentplane.lab.overnight import driver as overnight
from agentplane.lab.overnight import report as overnight_report
from agentplane.lab.sabotage import ORDERS, OVERNIGHT, REFUNDS

KILLS_MAX: Final = 1000
KILLS: Final = {REFUNDS: chaos.KILLS, ORDERS: driver.KILLS, OVERNIGHT: overnight.KILLS}


class Said(NamedTuple):
    """A workload's judgement, and its result as data and for a person."""

    judgement: Judgement
    data: Mapping[str, object]
    table: str


def demo(args: argparse.Namespace) -> int:
    """Run the lab, print its table or JSON, answer its verdict's status."""
    workload = _workload(args.workload, args.sabotage)
    if args.sabotage and args.appliance is not None:
        raise InvalidRequest("--sabotage changes the source; build that copy, and name what came out as --appliance.")
    if workload != REFUNDS and args.seconds is not None:
        raise InvalidRequest("--seconds is of the refunds; the others take as long as they have to do.")
    seed = args.seed if args.seed is not None else int.from_bytes(os.urandom(3), "big")
    kills = args.kills if args.kills is not None else KILLS[workload]
    if not 0 <= kills <= KILLS_MAX:
        raise InvalidRequest(f"--kills is between 0 and {KILLS_MAX}.")
    keep: Path | None = args.keep
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise InvalidRequest(f"{keep} is not empty; name another directory for --keep.")
    directory = Path(tempfile.mkdtemp(prefix="agentplane-demo-"))
    try:
        source = sabotage.copy(args.sabotage, directory / "source") if args.sabotage else _appliance(args.appliance)
        say = not args.json or sys.stderr.isatty()
        if not args.json:
            print(f"{_what(workload, kills)}, {kills} SIGKILLs, seed {seed}", file=sys.stderr, flush=True)
        said = _run(workload, directory, seed, kills, args.seconds, source, say)
        if sys.stderr.isatty():
            print(file=sys.stderr)
        if args.json:
            print(json.dumps(said.data, indent=2))
            for line in report.reasons(said.judgement):
                print(line, file=sys.stderr)
        else:
            print(said.table)
        return STATUS[said.judgement.verdict]
    except OSError as error:
        print(f"agentplane: the lab cannot go on: {error}.", file=sys.stderr)
        return EXIT_OPERATIONAL
    finally:
        if keep is not None and directory.exists():
            keep.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(directory, keep, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.sock"))
            print(f"kept in {keep}", file=sys.stderr)
        shutil.rmtree(directory, ignore_errors=True)


def _appliance(executable: Path | None) -> Path | None:
    """The executable to kill in the place of this program. Raises InvalidRequest."""
    if executable is None:
        return None
    found = executable.absolute()
    if not found.is_file() or not os.access(found, os.X_OK):
        raise InvalidRequest(f"{executable} is no executable file; --appliance names one, such as dist/agentplane.")
    return found


def _what(workload: str, kills: int) -> str:
    if workload == OVERNIGHT:
        count, days = overnight.size_of(kills)
        return f"{count} orders in {days} days"
    return "thirty tickets" if workload == REFUNDS else f"{driver.count_of(kills)} orders"


def _workload(asked: str | None, sabotaged: str | None) -> str:
    """The workload that was asked for, else that of the sabotage, else the refunds. Raises InvalidRequest."""
    wanted = sabotage.workload_of(sabotaged) if sabotaged else asked or REFUNDS
    if asked not in (None, wanted):
        raise InvalidRequest(f"The sabotage {sabotaged} is of the {wanted}; leave --workload away, or name that one.")
    return wanted


def _run(
    workload: str, directory: Path, seed: int, kills: int, seconds: float | None, source: Path | None, say: bool
) -> Said:
    if workload == REFUNDS:
        refunds = chaos.run(directory, seed=seed, kills=kills, seconds=seconds, source=source, say=say)
        return Said(refunds.judgement, report.as_json(refunds), report.as_table(refunds))
    if workload == OVERNIGHT:
        nights = overnight.Nights(directory, seed=seed, kills=kills, source=source, say=say).run()
        return Said(nights.judgement, overnight_report.as_json(nights), overnight_report.as_table(nights))
    done = driver.Shop(directory, seed=seed, kills=kills, source=source, say=say).run()
    return Said(done.judgement, orders_report.as_json(done), orders_report.as_table(done))
