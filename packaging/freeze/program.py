"""The first module of the executable; what it does is in agentplane.cli.frozen.

Owns nothing. Refuses nothing: a source from before that module is started as it was, for trials of upgrades.
"""

from __future__ import annotations

import signal

try:
    from agentplane.cli.frozen import main
except ModuleNotFoundError:
    from agentplane.cli.main import main

    # The launcher holds them, and no code of that time lets them through.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))

main()
