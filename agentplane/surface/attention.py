"""What waits: for time, and for people.

Owns the two lists that an operator looks at first, made from committed rows. Refuses to judge: each condition is one
query, and names the verb that ends it. Invariant: a condition that this build does not look for is named as not
checked, so that silence is not taken for health.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Final

import msgspec

from agentplane.core.errors import JournalCorrupt
from agentplane.core.instants import to_text
from agentplane.engine import acts
from agentplane.engine.plane import wall_ms
from agentplane.journal import lists, obligations
from agentplane.journal.tx import Tx
from agentplane.surface.asking import Ask, Body, Host, Reply, schema
from agentplane.surface.paging import after_run, run_cursor
from agentplane.surface.requests import AttentionQuery, PageQuery, convert_query
from agentplane.work import events, tasks

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
    """What is looked for, what ends it in general, and the exact command for its first subject."""

    name: str
    find: Callable[[Tx, int], list[str]]
    remedy: str
    next: Callable[[Tx, str], str]


def _of_status(status: str) -> Callable[[Tx, int], list[str]]:
    return lambda tx, limit: [row.run for row in lists.runs(tx, status=status, limit=limit) if not row.own]


def _answer_quarantine(tx: Tx, run: str) -> str:
    try:
        _, found, _ = acts.load(tx, run)
    except JournalCorrupt:
        return f"agentplane history {run}"
    return next_command(run, [msgspec.to_builtins(one) for one in acts.undecided(found)])


def next_command(run: str, undecided: list[Body]) -> str:
    """What a person does next about a quarantined run."""
    if undecided:
        effect = undecided[0]["effect"][:16]
        return f"agentplane reconcile {run} --effect {effect} --outcome landed|did-not-happen --note ..."
    return f"agentplane quarantine {run} --decision reopen|abandon --reason ..."


def _account_for(tx: Tx, named: str) -> str:
    subject, _, name = named.partition(" ")
    return f"agentplane acknowledge {subject} --obligation {_quoted(name)} --note ..."


def _quoted(name: str) -> str:
    return shlex.quote(name)


CONDITIONS: Final = (
    Condition(
        "run.quarantined", _of_status("quarantined"),
        "agentplane reconcile RUN, or restore the code, then agentplane quarantine RUN", _answer_quarantine,
    ),
    Condition(
        "run.exhausted", _of_status("exhausted"),
        "agentplane replay RUN --raise CEILING=N --reason ..., or agentplane cancel RUN",
        lambda tx, run: f"agentplane show {run}",
    ),
    Condition(
        "run.failed_with_landed_work",
        lambda tx, limit: [row.run for row in lists.failed_with_landed(tx, limit)],
        "agentplane replay RUN, or agentplane cancel RUN", lambda tx, run: f"agentplane replay {run}",
    ),
    Condition(
        "group.unsettled_under_seal",
        lambda tx, limit: [row.run for row in lists.unsettled_groups(tx, limit)],
        "whether its members stand is for a person to find out: agentplane history RUN",
        lambda tx, run: f"agentplane history {run}",
    ),
    Condition(
        "obligation.breached",
        lambda tx, limit: [f"{row.subject} {row.name}" for row in obligations.breached(tx, limit)],
        "agentplane acknowledge CASE --obligation NAME --note ...", _account_for,
    ),
    Condition(
        "task.overdue",
        lambda tx, limit: [row.task for row in tasks.unanswered(tx, tx.now_ms, limit)],
        "agentplane tasks show TASK, then agentplane decide TASK approve|reject --reason ...",
        lambda tx, task: f"agentplane tasks show {task}",
    ),
    Condition(
        "event.dead_lettered",
        lambda tx, limit: [
            row.event for row in events.dead_letters(tx, limit) if (row.ended_ms or 0) >= tx.now_ms - LETTERS_TOLD_MS
        ],
        "compare its keys with what runs wait for: agentplane events dead-letters, agentplane waiting; it is told of "
        "for a week",
        lambda tx, event: "agentplane events dead-letters",
    ),
)  # fmt: skip
LETTERS_TOLD_MS: Final = 7 * 86_400_000
"""How long a dead letter is a condition: no verb ends it, and it stays in its list."""
NOT_CHECKED: Final = ("drill", "push")
"""What later builds look for."""


async def attention(host: Host, ask: Ask) -> Reply:
    """Every condition that a person must end, with who is concerned and the exact command for the first."""
    query: AttentionQuery = convert_query(ask.query, AttentionQuery, "GET /attention")
    found = await conditions(host, lists.page_limit(query.limit))
    unlooked = list(NOT_CHECKED) if host.serving else [*NOT_CHECKED, "clock", "schedules", "notify"]
    members = {"needs_attention": bool(found), "conditions": found, "not_checked": unlooked}
    return Reply(200, schema("attention", **members))


async def conditions(host: Host, limit: int) -> list[Body]:
    """The conditions that hold now, of committed rows and of the process that serves."""

    now_ms = wall_ms() if host.plane is None else host.plane.world.now_ms()

    def body(tx: Tx) -> list[Body]:
        tx.now_ms = now_ms
        found: list[Body] = []
        for one in CONDITIONS:
            subjects = one.find(tx, limit)
            if subjects:
                found.append(_said(one.name, subjects, len(subjects) == limit, one.remedy, one.next(tx, subjects[0])))
        return found

    found: list[Body] = await host.read(body)
    return found + _of_the_process(host)


PROCESS: Final = {
    "clock.suspect": "agentplane release --clock",
    "schedule.failing": "agentplane config check",
    "notify.failing": "agentplane notify --test",
}
"""Conditions of the process that serves, and the command that ends each, or says more."""


def _of_the_process(host: Host) -> list[Body]:
    return [_said(name, whys, False, PROCESS[name], PROCESS[name]) for name, whys in host.faults().items()]


def _said(name: str, subjects: list[str], at_least: bool, remedy: str, following: str) -> Body:
    shown = subjects[:SUBJECTS_MAX]
    return {
        "condition": name, "found": len(subjects), "at_least": at_least, "subjects": shown,
        "unlisted": len(subjects) - len(shown), "remedy": remedy, "next": following,
    }  # fmt: skip
