"""The routes by operation name, for clients that load nothing else.

Owns the pairs of method and path. Refuses to know handlers. Invariant: they are those of the operations table; a
test holds it.
"""

from __future__ import annotations

import re
from typing import Final

PATH_ID: Final = re.compile(r"\{(run|task|case)\}")
"""Where an id stands in a path: one at most."""

ROUTES: Final[dict[str, tuple[str, str]]] = {
    "status": ("GET", "/status"),
    "runs": ("GET", "/runs"),
    "waiting": ("GET", "/runs/waiting"),
    "attention": ("GET", "/attention"),
    "start": ("POST", "/runs"),
    "show": ("GET", "/runs/{run}"),
    "history": ("GET", "/runs/{run}/history"),
    "cancel": ("POST", "/runs/{run}/cancel"),
    "reconcile": ("POST", "/runs/{run}/reconcile"),
    "reopen": ("POST", "/runs/{run}/reopen"),
    "abandon": ("POST", "/runs/{run}/abandon"),
    "replay": ("POST", "/runs/{run}/replay"),
    "drain": ("POST", "/drain"),
    "pause": ("POST", "/pause"),
    "release": ("POST", "/release"),
    "reload": ("POST", "/reload"),
    "cases": ("GET", "/cases"),
    "case": ("GET", "/cases/{case}"),
    "obligations": ("GET", "/obligations"),
    "acknowledge": ("POST", "/obligations/acknowledge"),
    "tasks": ("GET", "/tasks"),
    "task": ("GET", "/tasks/{task}"),
    "claim": ("POST", "/tasks/{task}/claim"),
    "unclaim": ("POST", "/tasks/{task}/release"),
    "takeover": ("POST", "/tasks/{task}/takeover"),
    "decide": ("POST", "/tasks/{task}/decide"),
    "deliver": ("POST", "/events"),
    "dead_letters": ("GET", "/dead-letters"),
    "app_sql": ("POST", "/app-sql"),
}
