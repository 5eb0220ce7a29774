"""The appliance under test: the ordinary appliance, with an observer that reports and waits, and where it is told so
with a clock that its driver moves.

Owns nothing but the wiring: production code has no hook for tests. Refuses to run without a driver. Invariant: what is
served is ``appliance.serve`` itself.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from pathlib import Path

from agentplane.appliance import serve, settings
from agentplane.core.errors import EXIT_OPERATIONAL, AgentplaneError
from agentplane.lab.moved_clock import MovedClock
from agentplane.lab.pipe import PointReporter


def main(argv: list[str] | None = None) -> int:
    """``--observe-fd N [--clock FILE] DIR``: serve the plane in DIR, reporting every observer point over descriptor N,
    by the time that FILE moves."""
    parser = argparse.ArgumentParser(prog="appliance_entry")
    parser.add_argument("--observe-fd", type=int, required=True)
    parser.add_argument("--clock", type=Path)
    parser.add_argument("directory", type=Path)
    args = parser.parse_args(argv)
    reporter = PointReporter(socket.socket(fileno=args.observe_fd))
    try:
        located = settings.load(args.directory, environ=os.environ)
        if args.clock is None:
            return serve.serve(located, observe=reporter.observe)
        clock = MovedClock(args.clock)
        return serve.serve(
            located, observe=reporter.observe, clock=clock, now_ms=clock.now_ms, boot_ms=clock.boot_ms
        )  # fmt: skip
    except AgentplaneError as error:
        print(f"agentplane: {error.message} {error.row.next}", file=sys.stderr)
        return error.row.exit or EXIT_OPERATIONAL


if __name__ == "__main__":
    sys.exit(main())
