"""What a matter is: cases and their obligations, as a person asks for them.

Owns the lists of cases and of breaches, one case whole, and the acknowledgement. Refuses to say that anything was met:
an obligation that was breached stays so. Invariant: every list is a page in a total order, made from committed rows.
"""

from __future__ import annotations

from typing import Any

from agentplane.core.errors import InvalidRequest
from agentplane.core.ids import InvalidId, parse_id
from agentplane.core.instants import to_text
from agentplane.core.lifecycle import CASE_STATUSES
from agentplane.core.records import (
    DeadlineRegistered,
    DeadlineTransition,
    EffectDone,
    EffectStarted,
    Record,
    RunAdmitted,
    RunConcluded,
)
from agentplane.journal import lists, obligations
from agentplane.journal.obligations import Obligation
from agentplane.journal.tx import Tx
from agentplane.surface.asking import Ask, Body, Host, Reply, schema, writable
from agentplane.surface.paging import after, cursor
from agentplane.surface.requests import (
    AcknowledgeBody,
    CaseListQuery,
    CaseQuery,
    PageQuery,
    convert,
    convert_query,
)
from agentplane.work import matters
from agentplane.work.matters import Matter


async def list_cases(host: Host, ask: Ask) -> Reply:
    """Cases of one status (escalated unless told), or all, newest first."""
    query: CaseListQuery = convert_query(ask.query, CaseListQuery, "GET /cases")
    limit = lists.page_limit(query.limit)
    status = None if query.status == "all" else query.status
    if status is not None and status not in CASE_STATUSES:
        raise InvalidRequest(f"A case is {', '.join(CASE_STATUSES)}, or all of them; not {status[:60]!r}.")
    behind = None if query.after is None else after(query.after, int, str)

    def body(tx: Tx) -> Body:
        found = matters.by_status(tx, status, limit, behind)
        more = len(found) == limit
        return {
            "cases": [_view(row) for row in found],
            "truncated": more,
            "next": cursor(found[-1].opened_ms, found[-1].case) if more else None,
        }

    return Reply(200, schema("cases", **await host.read(body)))


async def show_case(host: Host, ask: Ask) -> Reply:
    """One case: its keys, its state, its obligations, and what happened to it over all its runs."""
    case = case_id(ask.run)
    query: CaseQuery = convert_query(ask.query, CaseQuery, "GET /cases/{case}")
    limit = lists.page_limit(query.limit)

    def body(tx: Tx) -> Body:
        row = matters.get(tx, case)
        found = matters.history(tx, case, limit)
        return {
            **_view(row),
            "state": row.state,
            "version": row.version,
            "deadlines": [deadline_view(one) for one in obligations.of_subject(tx, case)],
            "history": [
                {
                    "run": one.record.run,
                    "seq": one.record.seq,
                    "at": one.record.at,
                    "kind": type(one.record).__name__,
                    "what": _what(one.record),
                }
                for one in found
            ],
            "history_truncated": len(found) == limit,
        }

    return Reply(200, schema("case", **await host.read(body)))


async def list_obligations(host: Host, ask: Ask) -> Reply:
    """Breaches that nobody has accounted for, the longest overdue first."""
    query: PageQuery = convert_query(ask.query, PageQuery, "GET /obligations")
    limit = lists.page_limit(query.limit)
    behind = None if query.after is None else after(query.after, int, str, str, int)

    def body(tx: Tx) -> Body:
        found = obligations.breached(tx, limit, behind)
        more = len(found) == limit
        return {
            "obligations": [deadline_view(one) for one in found],
            "truncated": more,
            "next": cursor(found[-1].due_ms, found[-1].subject, found[-1].name, found[-1].nth) if more else None,
        }

    return Reply(200, schema("obligations", **await host.read(body)))


async def acknowledge(host: Host, ask: Ask) -> Reply:
    """Account for a breach, once: the first account stands."""
    body: AcknowledgeBody = convert(ask.body, AcknowledgeBody, "acknowledge")
    subject = subject_id(body.case)
    recorded, first = await writable(host).worklist.acknowledge(
        subject, body.obligation, ask.who.as_actor(), body.note
    )  # fmt: skip
    members: Body = {
        "case": subject, "obligation": body.obligation, "acknowledged_by": first, "recorded": recorded, "applied": True,
    }  # fmt: skip
    return Reply(200, schema("acknowledge", **members))


def _what(record: Record) -> str:
    """What a record is about, in a word or two, and never what it says."""
    match record:
        case EffectStarted():
            return record.descriptor.kind
        case EffectDone():
            return "" if record.by is None else f"by {record.by.actor}"
        case RunAdmitted():
            return record.capability
        case DeadlineRegistered():
            return record.name
        case DeadlineTransition():
            return f"{record.name}: {record.to}"
        case RunConcluded():
            return str(record.outcome)
    return ""


def case_id(text: str) -> str:
    try:
        return parse_id(text, "case")
    except InvalidId:
        raise InvalidRequest(f"A case id looks like case_ and 26 characters; {text[:60]!r} does not.") from None


def subject_id(text: str) -> str:
    """What has obligations: a case, or a run that has none. Raises InvalidRequest."""
    for prefix in ("case", "run"):
        try:
            return parse_id(text, prefix)
        except InvalidId:
            continue
    raise InvalidRequest(f"An obligation is of a case or of a run; {text[:60]!r} is no id of either.")


def _view(row: Matter) -> Body:
    return {
        "case": row.case,
        "kind": row.kind,
        "status": row.status,
        "correlation": [f"{key.namespace}={key.value}" for key in row.keys],
        "opened": to_text(row.opened_ms),
        "closed": None if row.closed_ms is None else to_text(row.closed_ms),
    }


def deadline_view(row: Obligation) -> Body:
    view: dict[str, Any] = {
        "case": row.subject,
        "obligation": row.name,
        "state": row.state,
        "due": to_text(row.due_ms),
        "warn": to_text(row.warn_ms),
        "run": row.run,
    }
    if row.acknowledged_by is not None:
        view["acknowledged_by"] = row.acknowledged_by
        view["note"] = row.note
    return view
