"""What waits: for time, and for people.

Owns the two lists that an operator looks at first, made from committed rows. Refuses to judge: each condition is one
query, and names the verb that ends it. Invariant: a condition that this build does not look for is named as not
checked, so that silence is not taken for health.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from agentplane.core.instants import to_text
from agentplane.journal import lists
from agentplane.journal.tx import Tx
from agentplane.surface.asking import Ask, Body, Host, Reply, schema
from agentplane.surface.paging import after_run, run_cursor
from agentplane.surface.requests import AttentionQuery, PageQuery, convert_query

SUBJECTS_MAX: Final = 10
"""Subjects that a condition lists; the rest is counted."""


async def waiting(host: Host, ask: Ask) -> Reply:
    """Suspended runs, the one that wakes first first."""
    query: PageQuery = convert_query(ask.query, PageQuery, "GET /runs/waiting")
    limit = lists.page_limit(query.limit)
    after = None if query.after is None else after_run(query.after)

    def body(tx: Tx) -> Body:
        found = lists.waiting(tx, limit, after)
        more = len(found) == limit
        return {
            "runs": [
                {
                    "run": one.run,
                    "waiting_for": one.reason,
                    "until": None if one.until_ms is None else to_text(one.until_ms),
                }
                for one in found
            ],
            "truncated": more,
            "next": run_cursor(*found[-1].cursor) if more else None,
        }

    return Reply(200, schema("waiting", **await host.read(body)))


class Condition(msgspec.Struct, frozen=True):
    """What is looked for, and what ends it."""

    name: str
    find: Callable[[Tx, int], list[str]]
    remedy: str


def _of_status(status: str) -> Callable[[Tx, int], list[str]]:
    return lambda tx, limit: [row.run for row in lists.runs(tx, status=status, limit=limit) if not row.own]


CONDITIONS: Final = (
    Condition(
        "run.quarantined", _of_status("quarantined"),
        "agentplane reconcile RUN, or restore the code, then agentplane quarantine RUN",
    ),
    Condition(
        "run.exhausted", _of_status("exhausted"),
        "agentplane replay RUN --raise CEILING=N --reason ..., or agentplane cancel RUN",
    ),
    Condition(
        "run.failed_with_landed_work",
        lambda tx, limit: [row.run for row in lists.failed_with_landed(tx, limit)],
        "agentplane replay RUN, or agentplane cancel RUN",
    ),
    Condition(
        "group.unsettled_under_seal",
        lambda tx, limit: [row.run for row in lists.unsettled_groups(tx, limit)],
        "whether its members stand is for a person to find out: agentplane history RUN",
    ),
)  # fmt: skip
NOT_CHECKED: Final = ("obligations", "tasks", "events", "drill", "push")
"""What later builds look for."""


async def attention(host: Host, ask: Ask) -> Reply:
    """Every condition that a person must end, with who is concerned."""
    query: AttentionQuery = convert_query(ask.query, AttentionQuery, "GET /attention")
    limit = lists.page_limit(query.limit)

    def body(tx: Tx) -> Body:
        found: list[Body] = []
        for one in CONDITIONS:
            subjects = one.find(tx, limit)
            if subjects:
                shown = subjects[:SUBJECTS_MAX]
                found.append({
                    "condition": one.name, "found": len(subjects), "at_least": len(subjects) == limit,
                    "subjects": shown, "unlisted": len(subjects) - len(shown), "remedy": one.remedy,
                })  # fmt: skip
        return {"needs_attention": bool(found), "conditions": found, "not_checked": list(NOT_CHECKED)}

    return Reply(200, schema("attention", **await host.read(body)))
