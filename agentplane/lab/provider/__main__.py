"""``python -m agentplane.lab.provider``: the provider as a process; everything it does is in
``process.main``."""

from __future__ import annotations

import sys

from agentplane.lab.provider.process import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
