"""Who may do what: actions, roles, and the one decision that every entry point asks.

Owns the ``api:`` actions, the roles as listed sets of them, and ``may``. Refuses to establish identity.
Invariant: a role grants exactly what is listed here, and every operation's action occurs in ``ACTIONS``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

READ: Final = frozenset({
    "api:status.read", "api:run.list", "api:run.read", "api:run.history", "api:run.live", "api:run.waiting",
    "api:attention", "api:check", "api:config.read", "api:metrics.read", "api:case.list", "api:case.read",
    "api:obligation.list", "api:deadletter.list",
})  # fmt: skip
AUTHOR: Final = frozenset({"api:run.start", "api:event.deliver", "api:run.read", "api:status.read"})
REVIEW: Final = frozenset({"api:task.list", "api:task.read", "api:task.claim", "api:task.release", "api:task.decide"})
OPERATE: Final = frozenset(
    {
        "api:run.cancel",
        "api:effect.reconcile",
        "api:run.replay",
        "api:halt.place",
        "api:obligation.acknowledge",
        "api:plane.drain",
        "api:plane.pause",
        "api:plane.release",
        "api:plane.reload",
        "api:plane.backup",
        "api:notify.test",
    }
)
SUPERVISE: Final = frozenset(
    {
        "api:run.reopen",
        "api:run.abandon",
        "api:task.takeover",
        "api:halt.lift",
        "api:run.raise",
        "api:run.retry",
        "api:plane.upgrade",
        "api:token",
        "api:plane.app_sql",
    }
)
AUDIT: Final = frozenset({"api:export", "api:act.history"})

ROLES: Final[dict[str, frozenset[str]]] = {
    "reader": READ,
    "author": AUTHOR,
    "reviewer": READ | REVIEW,
    "operator": READ | OPERATE,
    "supervisor": READ | OPERATE | SUPERVISE,
    "auditor": READ | AUDIT,
}
ACTIONS: Final = READ | AUTHOR | REVIEW | OPERATE | SUPERVISE | AUDIT

SPEAKS_FOR_A_PERSON: Final = frozenset({
    "api:effect.reconcile", "api:run.reopen", "api:run.abandon", "api:run.retry", "api:task.decide",
    "api:obligation.acknowledge", "api:run.raise", "api:task.claim", "api:task.release", "api:task.takeover",
})  # fmt: skip
"""Acts a machine identity (root, the plane's own uid) may not do once ``[access]`` exists."""


def may(roles: Iterable[str], action: str, *, machine: bool = False) -> bool:
    """Whether an identity with ``roles`` may do ``action``; a ``machine`` never speaks for a person."""
    if machine and action in SPEAKS_FOR_A_PERSON:
        return False
    return any(action in ROLES.get(role, frozenset()) for role in roles)
