"""The routes by operation name, for clients that load nothing else.

Owns the pairs of method and path. Refuses to know handlers. Invariant: they are those of the operations table; a
test holds it.
"""

from __future__ import annotations

from typing import Final

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
    "app_sql": ("POST", "/app-sql"),
}
