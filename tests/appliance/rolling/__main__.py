"""Rolling deploys under load: hundreds of restarts, and what clients, store and provider saw.

    python -m appliance.rolling [--mode held|unheld|killed|dropped|all] [--restarts N] [--seed S] [--json FILE] [--page]

run from tests/. The program is the executable (AGENTPLANE_EXECUTABLE, else the built one). ``all`` is the first three,
15, 5 and 5 restarts, or 300, 50 and 50 with AGENTPLANE_SWEEP=long; ``dropped`` shows that the harness sees what it is
there to see. Exit status 0 when every verdict is PASS, 1 when one is FAIL.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from appliance.executable import executable
from appliance.rolling.lanes import BESIDE, SCHEMA, Judged, rolled
from appliance.rolling.page import write
from appliance.rolling.restarts import MODES, roll

SHORT = {"held": 15, "unheld": 5, "killed": 5}
LONG = {"held": 300, "unheld": 50, "killed": 50}
DROPPED = 2


def counts() -> dict[str, int]:
    """Restarts of each mode that ``all`` makes."""
    return dict(LONG if os.environ.get("AGENTPLANE_SWEEP") == "long" else SHORT)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m appliance.rolling", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mode", choices=(*MODES, "all"), default="all")
    parser.add_argument("--restarts", type=int, help="of each mode")
    parser.add_argument("--beside", type=int, default=BESIDE, help="planes at once")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the reports there too")
    parser.add_argument("--page", action="store_true", help="write them into docs/deploys.md")
    parser.add_argument("--part", nargs=2, metavar=("MODE", "N"), help="one plane alone, with its report as JSON")
    parser.add_argument("--keep", action="store_true", help="of a part: leave its store and logs where they were made")
    return parser.parse_args()


def part(mode: str, restarts: int, args: argparse.Namespace) -> None:
    """One plane; a report there is only of one that came to its end."""
    directory = Path(tempfile.mkdtemp(prefix=f"agentplane-rolling-{mode}-"))
    try:
        report = roll(mode, executable(), directory, restarts, args.seed)
    finally:
        if args.keep:
            print(f"kept in {directory}", file=sys.stderr)
        else:
            shutil.rmtree(directory, ignore_errors=True)
    text = json.dumps(report.as_dict())
    if args.json is not None:
        args.json.write_text(text)
    else:
        print(text)


def many(args: argparse.Namespace) -> list[Judged]:
    wanted = counts() if args.mode == "all" else {args.mode: counts().get(args.mode, DROPPED)}
    if args.restarts:
        wanted = dict.fromkeys(wanted, args.restarts)
    with tempfile.TemporaryDirectory(prefix="agentplane-rolling-") as directory:
        return rolled(wanted, args.seed, Path(directory), beside=args.beside)


def main() -> int:
    args = arguments()
    # What was started is ended also when this is told to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if args.part:
        part(args.part[0], int(args.part[1]), args)
        return 0
    found = many(args)
    for one in found:
        print(one.text(), end="\n\n", flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps({"schema": SCHEMA, "modes": [one.as_dict() for one in found]}, indent=1))
    if args.page:
        write(found)
    return 1 if any(one.wrong for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
