"""Where it lives: settings, listeners, signals, drain.

Owns the process around a plane. Refuses to decide about runs. Invariant: nothing is served before the store is
recognised, and
the control socket answers until the last run has ended.
"""

from __future__ import annotations
