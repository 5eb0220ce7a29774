"""The worklist: what waits for a person, and what a person does about it.

Owns the tasks as they are shown, with the text that a person should read beside the value, and claim, release,
takeover, decide. Refuses a name from a body: who decides is who was identified. Invariant: every view carries the
version of the row that it shows, and whether this very caller may decide it.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from agentplane.core.errors import InvalidRequest, NotFound
from agentplane.core.instants import to_text
from agentplane.core.rendering import render, render_value
from agentplane.core.tasks import Reviewer
from agentplane.engine.worklist import Verdict
from agentplane.journal import lists
from agentplane.journal.tx import Tx
from agentplane.surface.access import Who, own_name
from agentplane.surface.asking import Ask, Body, Host, Reply, schema, writable
from agentplane.surface.paging import after, cursor
from agentplane.surface.requests import (
    ClaimBody,
    DecideBody,
    TakeoverBody,
    TaskListQuery,
    convert,
    convert_query,
)
from agentplane.work import tasks
from agentplane.work.tasks import TaskRow

TASK_ID = re.compile(r"[0-9a-f]{64}")
TASK_PREFIX = re.compile(r"[0-9a-f]{8,64}")
SAID = ("approve", "reject", "answer")
PRIORITIES = ("low", "normal", "high", "urgent")


async def list_tasks(host: Host, ask: Ask) -> Reply:
    """What waits for a decision, the most urgent first; of one role when told."""
    query: TaskListQuery = convert_query(ask.query, TaskListQuery, "GET /tasks")
    limit = lists.page_limit(query.limit)
    behind = None if query.after is None else after(query.after, int, int, str)

    def body(tx: Tx) -> Body:
        found = tasks.queue(tx, limit, behind, role=query.role)
        more = len(found) == limit
        return {
            "tasks": [task_view(row, ask.who, host) for row in found],
            "truncated": more,
            "next": cursor(*found[-1].cursor) if more else None,
        }

    return Reply(200, schema("tasks", **await host.read(body)))


async def show_task(host: Host, ask: Ask) -> Reply:
    task = await task_id(host, ask.run)
    row = await host.read(lambda tx: tasks.get(tx, task))
    return Reply(200, schema("task", **task_view(row, ask.who, host)))


async def claim(host: Host, ask: Ask) -> Reply:
    """Reserve a task, so that two people do not read the same matter."""
    task = await task_id(host, ask.run)
    convert(ask.body, ClaimBody, "claim")
    row = await writable(host).worklist.claim(task, reviewer(ask.who), ask.who.as_actor())
    return Reply(200, schema("task", **task_view(row, ask.who, host), applied=True))


async def release(host: Host, ask: Ask) -> Reply:
    task = await task_id(host, ask.run)
    convert(ask.body, ClaimBody, "release")
    row = await writable(host).worklist.release(task, reviewer(ask.who), ask.who.as_actor())
    return Reply(200, schema("task", **task_view(row, ask.who, host), applied=True))


async def takeover(host: Host, ask: Ask) -> Reply:
    """Displace the holder, by name."""
    task = await task_id(host, ask.run)
    body: TakeoverBody = convert(ask.body, TakeoverBody, "takeover")
    row = await writable(host).worklist.take_over(
        task, reviewer(ask.who), ask.who.as_actor(), body.holder, body.reason
    )  # fmt: skip
    return Reply(200, schema("task", **task_view(row, ask.who, host), applied=True))


async def decide(host: Host, ask: Ask) -> Reply:
    """Record a decision on the version that was read; the run goes on where this process may take it."""
    task = await task_id(host, ask.run)
    body: DecideBody = convert(ask.body, DecideBody, "decide")
    if body.decision not in SAID:
        raise InvalidRequest(f"A decision is {', '.join(SAID)}; not {body.decision[:40]!r}.")
    plane = writable(host)
    verdict = Verdict(
        said=body.decision, reason=body.reason, amendment=body.amendment, answer=body.answer, version=body.digest
    )
    done = await plane.worklist.decide(task, reviewer(ask.who), ask.who.as_actor(), verdict)
    applied = host.serving
    outcome = (done.row.decision or {}).get("outcome")
    members: Body = {
        "task": task, "run": done.row.run, "decision": body.decision, "outcome": outcome,
        "decided_by": ask.who.actor, "delivery": done.delivery, "applied": applied,
    }  # fmt: skip
    return Reply(200, schema("decide", **members, **({} if applied else {"next": "agentplane serve"})))


async def task_id(host: Host, text: str) -> str:
    """The task of an id, or of its first 8 or more characters. Raises NotFound and InvalidRequest."""
    if not TASK_PREFIX.fullmatch(text):
        raise InvalidRequest(f"A task id is 64 hex digits, or the first 8 or more of them; {text[:60]!r} is not.")
    found: list[str] = [text] if len(text) == 64 else await host.read(lambda tx: tasks.beginning(tx, text, 2))
    if not found:
        raise NotFound(f"There is no task that begins with {text}; `agentplane tasks` lists what waits.")
    if len(found) > 1:
        raise InvalidRequest(f"Several tasks begin with {text}; give more of the id.")
    return found[0]


def reviewer(who: Who) -> Reviewer:
    """The caller as the rules of tasks see one."""
    return Reviewer(
        actor=who.actor, basis=who.basis, roles=who.roles, groups=who.groups, machine=who.machine, own=own_name()
    )  # fmt: skip


def task_view(row: TaskRow, who: Who, host: Host) -> Body:
    """One task: the value that a program reads, and beside it the text that a person should."""
    proposal: dict[str, Any] = row.proposal
    shown = {name: proposal.get(name) for name in ("summary", "action", "confidence", "cost", "evidence")}
    action = shown["action"]
    if isinstance(action, dict):
        shown["action"] = {"kind": action.get("kind"), "args": action.get("args"), "digest": action.get("digest")}
    rendered = render_value(shown)
    refused = tasks.refusal(row, reviewer(who), host.people)
    view: Body = {
        "id": row.task,
        "run": row.run,
        "summary": render(str(proposal.get("summary", ""))).text,
        "case": row.case,
        "kind": row.kind,
        "priority": PRIORITIES[row.priority],
        "state": row.state,
        "created": to_text(row.created_ms),
        "due_at": None if row.due_ms is None else to_text(row.due_ms),
        "on_expiry": row.on_expiry,
        "audience": list(row.audience),
        "least_basis": row.least_basis,
        "assignee": row.assignee,
        "justification": shown,
        "rendering": rendered.text,
        "escaped": rendered.escaped,
        "mixed_script": rendered.mixed,
        "digest": row.version(),
        "decidable_by_you": refused is None,
    }
    if refused is not None:
        view["why_not"] = refused.message
    else:
        said = "approve|reject" if isinstance(shown["action"], dict) else "answer --answer JSON"
        view["next"] = f"agentplane decide {row.task} {said} --digest {view['digest']} --reason ..."
    if row.decision is not None:
        view["decision"] = msgspec.to_builtins(row.decision)
        view["decided_by"] = None if row.decided_by is None else row.decided_by.actor
    return view
