"""A plane that is served as ever, by a clock that its test moves: `python moved.py CLOCK DIRECTORY`."""

from __future__ import annotations

import sys
from pathlib import Path

from agentplane.appliance import serve, settings
from agentplane.lab.moved_clock import MovedClock


def main(clock_file: str, directory: str) -> int:
    clock = MovedClock(Path(clock_file))
    return serve.serve(settings.load(Path(directory)), clock=clock, now_ms=clock.now_ms, boot_ms=clock.boot_ms)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
