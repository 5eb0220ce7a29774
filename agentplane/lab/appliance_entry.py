"""The appliance under test: the ordinary appliance, with an observer that reports and waits.

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
from agentplane.lab.pipe import PointReporter


def main(argv: list[str] | None = None) -> int:
    """``--observe-fd N DIR``: serve the plane in DIR, reporting every observer point over descriptor N."""
    parser = argparse.ArgumentParser(prog="appliance_entry")
    parser.add_argument("--observe-fd", type=int, required=True)
    parser.add_argument("directory", type=Path)
    args = parser.parse_args(argv)
    reporter = PointReporter(socket.socket(fileno=args.observe_fd))
    try:
        return serve.serve(settings.load(args.directory, environ=os.environ), observe=reporter.observe)
    except AgentplaneError as error:
        print(f"agentplane: {error.message} {error.row.next}", file=sys.stderr)
        return error.row.exit or EXIT_OPERATIONAL


if __name__ == "__main__":
    sys.exit(main())
