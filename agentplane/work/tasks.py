"""Tasks of people: opened with their wait, claimed, decided, expired, escalated.

Owns the worklist and every act on a row of it, judged by ``core/tasks`` on the row of the very transaction. Refuses in
the order that is written there, and to decide or to expire what was decided. Invariant: a task is decided once, by a
person or by its window; what was decided is told to its run once; who is barred stays barred through every escalation.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import msgspec

from agentplane.core import bounds, canonical, deciding
from agentplane.core import tasks as rules
from agentplane.core.deciding import Output
from agentplane.core.errors import NotFound, Refusal
from agentplane.core.people import People
from agentplane.core.records import Actor
from agentplane.core.tasks import Reviewer
from agentplane.journal import lists
from agentplane.journal.tx import Tx, number, text
from agentplane.journal.worklist import PENDING, unlist
from agentplane.work.task_row import COLUMNS, NAMES, Asked, names_text, task_row
from agentplane.work.task_row import Opening as Opening
from agentplane.work.task_row import TaskRow as TaskRow

# --- acts -------------------------------------------------------------------------------------------------------------


def open(tx: Tx, row: Opening) -> bool:
    """Put a task on the worklist; False where it is there already, whatever became of it."""
    asked = msgspec.convert(row.proposal, Asked)
    priority = rules.PRIORITIES.index(asked.priority)
    made = tx.run(
        "INSERT INTO task (tenant, task, run, key, case_id, kind, priority, state, created_ms, due_ms, on_expiry, "
        "escalate_to, audience, excluded, least_basis, four_eyes, digest, proposal) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, 'open', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (tenant, task) DO NOTHING",
        tx.tenant, row.task, row.run, row.key, row.case, row.kind, priority, tx.now_ms, row.due_ms, asked.on_expiry,
        names_text(asked.escalate_to or ()), names_text(asked.audience), names_text(row.excluded), asked.least_basis,
        int(asked.four_eyes), None if asked.action is None else asked.action.digest, canonical.encode(row.proposal),
    )  # fmt: skip
    if made:
        _list(tx, row.task, asked.audience, priority, tx.now_ms)
    return made == 1


def _list(tx: Tx, task: str, audience: Sequence[str], priority: int, created_ms: int) -> None:
    for name in audience:
        tx.run(
            "INSERT INTO task_audience (tenant, task, role, priority, created_ms) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (tenant, task, role) DO NOTHING",
            tx.tenant, task, name, priority, created_ms,
        )  # fmt: skip


def get(tx: Tx, task: str) -> TaskRow:
    """Raises NotFound."""
    row = tx.one(f"SELECT {COLUMNS} FROM task WHERE tenant = ? AND task = ?", tx.tenant, task)
    if row is None:
        raise NotFound(f"There is no task {task}.", task=task)
    return task_row(row)


def refusal(row: TaskRow, who: Reviewer, people: People) -> Refusal | None:
    """Why ``who`` may not decide the task as it stands; None where they may."""
    return rules.may_decide(row.facts(), who, people)


def claim(tx: Tx, task: str, who: Reviewer, actor: Actor, people: People) -> TaskRow:
    """Reserve the task; one's own claim again changes nothing. Raises the refusals of ``core/tasks``, and NotFound."""
    row = get(tx, task)
    refused = rules.may_claim(row.facts(), who, people)
    if refused is not None:
        raise refused
    return row if row.assignee is not None else _assign(tx, row, actor)


def take_over(tx: Tx, task: str, who: Reviewer, actor: Actor, holder: str, people: People) -> TaskRow:
    """Displace ``holder``. Raises what a claim does but contention, and NotHeld."""
    row = get(tx, task)
    refused = rules.may_take_over(row.facts(), who, holder, people)
    if refused is not None:
        raise refused
    return _assign(tx, row, actor)


def _assign(tx: Tx, row: TaskRow, actor: Actor) -> TaskRow:
    tx.run(
        "UPDATE task SET assignee = ?, assignee_basis = ?, assignee_uid = ?, claimed_ms = ?, "
        f"state = CASE state WHEN 'open' THEN 'claimed' ELSE state END WHERE tenant = ? AND task = ? AND {PENDING}",
        actor.actor, actor.basis.value, actor.uid, tx.now_ms, tx.tenant, row.task,
    )  # fmt: skip
    return get(tx, row.task)


def release(tx: Tx, task: str, who: Reviewer, people: People) -> TaskRow:
    """Give a claim back. Raises NotHeld for everybody but the holder, and NotFound."""
    refused = rules.may_release(get(tx, task).facts(), who, people)
    if refused is not None:
        raise refused
    tx.run(
        "UPDATE task SET assignee = NULL, assignee_basis = NULL, assignee_uid = NULL, claimed_ms = NULL, "
        f"state = CASE state WHEN 'claimed' THEN 'open' ELSE state END WHERE tenant = ? AND task = ? AND {PENDING}",
        tx.tenant, task,
    )  # fmt: skip
    return get(tx, task)


def decide(
    tx: Tx, task: str, who: Reviewer, actor: Actor, people: People, *, said: str, reason: str,
    amendment: object = None, answer: object = None, version: str | None = None,
) -> TaskRow:  # fmt: skip
    """Record what a person says of the task, claimed before or not. Raises the refusals of ``core/tasks`` in their
    order, then those of ``core/deciding``, and nothing is claimed."""
    row = get(tx, task)
    refused = rules.may_decide(row.facts(), who, people, named=version, version=row.version())
    if refused is not None:
        raise refused
    output = deciding.decide(row.proposal, said, reason=reason, amendment=amendment, answer=answer)
    _settle(tx, task, "completed", output, actor)
    return get(tx, task)


def expire(tx: Tx, task: str) -> bool:
    """The window is over: what the proposal says of that becomes the decision; False where one came before. Raises
    NotFound."""
    row = get(tx, task)
    return _settle(tx, task, "expired", deciding.expired(row.on_expiry, row.proposal), None)


def _settle(tx: Tx, task: str, state: str, output: Output, by: Actor | None) -> bool:
    """The one decision of a task; False where it has one, or is withdrawn."""
    assigned = "" if by is None else "assignee = ?8, assignee_basis = ?9, assignee_uid = ?10, claimed_ms = ?11, "
    settled = tx.run(
        f"UPDATE task SET {assigned}state = ?3, decision = ?4, approved = ?5, digest = ?6, decided_ms = ?7, "
        "decided_by = ?8, decided_basis = ?9, decided_uid = ?10 "
        f"WHERE tenant = ?1 AND task = ?2 AND {PENDING}",
        tx.tenant, task, state, canonical.encode(output), int(output["approved"] is True), _digest(output), tx.now_ms,
        None if by is None else by.actor, None if by is None else by.basis.value, None if by is None else by.uid,
        *(() if by is None else (tx.now_ms,)),
    )  # fmt: skip
    if settled:
        unlist(tx, task)
    return settled == 1


def _digest(output: Output) -> str | None:
    digest = output["digest"]
    return digest if isinstance(digest, str) else None


def escalate(tx: Tx, task: str) -> bool:
    """The window is over and others are asked beside the first: the audience gets wider, a claim is cleared, and the
    window is not asked about again. False where the task is not open or claimed any more. Raises NotFound."""
    row = get(tx, task)
    audience = tuple(dict.fromkeys((*row.audience, *row.escalate_to)))
    moved = tx.run(
        "UPDATE task SET state = 'escalated', audience = ?, assignee = NULL, assignee_basis = NULL, "
        "assignee_uid = NULL, claimed_ms = NULL WHERE tenant = ? AND task = ? AND state IN ('open', 'claimed')",
        names_text(audience), tx.tenant, task,
    )  # fmt: skip
    if moved:
        _list(tx, task, audience, row.priority, row.created_ms)
    return moved == 1


# --- lists ------------------------------------------------------------------------------------------------------------


def queue(
    tx: Tx, limit: int = bounds.LIST_PAGE, after: tuple[int, int, str] | None = None, *, role: str | None = None
) -> list[TaskRow]:
    """What waits for a decision, the most urgent first, then by (created, task); ``role``: only what is for that role,
    group or name; ``after``: the last one's ``cursor``."""
    lists.page_limit(limit)
    top = len(rules.PRIORITIES) - 1 if after is None else after[0]
    found: list[TaskRow] = []
    for priority in range(top, -1, -1):
        at = (-1, "") if after is None or priority < after[0] else after[1:]
        found += _of_priority(tx, priority, at, limit - len(found), role)
        if len(found) == limit:
            break
    return found


def _of_priority(tx: Tx, priority: int, after: tuple[int, str], limit: int, role: str | None) -> list[TaskRow]:
    if role is None:
        rows = tx.all(
            f"SELECT {COLUMNS} FROM task WHERE tenant = ? AND {PENDING} AND priority = ? "
            "AND (created_ms, task) > (?, ?) ORDER BY created_ms, task LIMIT ?",
            tx.tenant, priority, *after, limit,
        )  # fmt: skip
        return [task_row(row) for row in rows]
    named = tx.all(
        "SELECT task FROM task_audience WHERE tenant = ? AND role = ? AND priority = ? "
        "AND (created_ms, task) > (?, ?) ORDER BY created_ms, task LIMIT ?",
        tx.tenant, role, priority, *after, limit,
    )  # fmt: skip
    return [get(tx, text(row[0])) for row in named]


def overdue(
    tx: Tx, now_ms: int, limit: int, after: tuple[int, str] | None = None
) -> list[TaskRow]:  # fmt: skip
    """Open and claimed tasks whose window is over at ``now_ms``, by (due, task); an escalated one is not among them.
    ``after``: that pair of the last one."""
    return _due(tx, "state IN ('open', 'claimed') AND due_ms IS NOT NULL AND due_ms <= ?", (now_ms,), limit, after)


def unanswered(tx: Tx, now_ms: int, limit: int) -> list[TaskRow]:
    """Tasks whose window is over and that wait for a person still, escalated ones among them, by (due, task)."""
    escalated = _due(tx, "state = 'escalated'", (), limit, None)
    merged = heapq.merge(overdue(tx, now_ms, limit), escalated, key=lambda row: (row.due_ms or 0, row.task))
    return list(merged)[:limit]


def _due(
    tx: Tx, where: str, params: tuple[int, ...], limit: int, after: tuple[int, str] | None
) -> list[TaskRow]:  # fmt: skip
    rows = tx.all(
        f"SELECT {COLUMNS} FROM task WHERE tenant = ? AND {where} AND (due_ms, task) > (?, ?) "
        "ORDER BY due_ms, task LIMIT ?",
        tx.tenant, *params, *(after or (-(2**63), "")), limit,
    )  # fmt: skip
    return [task_row(row) for row in rows]


def undelivered(tx: Tx, limit: int, after: tuple[int, str] | None = None) -> list[TaskRow]:
    """Decided tasks whose run waits and was not told, by (decided, task); ``after``: that pair of the last one."""
    wanted = ", ".join(f"t.{name}" for name in NAMES)
    rows = tx.all(
        f"SELECT {wanted} FROM task t CROSS JOIN run r ON r.tenant = t.tenant AND r.run = t.run WHERE t.tenant = ? "
        "AND t.decided_ms IS NOT NULL AND t.delivered = 0 AND r.status = 'suspended' "
        "AND (t.decided_ms, t.task) > (?, ?) ORDER BY t.decided_ms, t.task LIMIT ?",
        tx.tenant, *(after or (-1, "")), limit,
    )  # fmt: skip
    return [task_row(row) for row in rows]


def decided_at(tx: Tx, run: str, key: bytes) -> TaskRow | None:
    """The task of the wait announced under ``key``, when it was decided and its run was not told."""
    row = tx.one(
        f"SELECT {COLUMNS} FROM task WHERE tenant = ? AND run = ? AND key = ? AND decided_ms IS NOT NULL "
        "AND delivered = 0",
        tx.tenant, run, key,
    )  # fmt: skip
    return None if row is None else task_row(row)


def decided_of(tx: Tx, run: str) -> list[TaskRow]:
    """Every such task of the run, by key."""
    rows = tx.all(
        f"SELECT {COLUMNS} FROM task WHERE tenant = ? AND run = ? AND decided_ms IS NOT NULL AND delivered = 0 "
        "ORDER BY key",
        tx.tenant, run,
    )  # fmt: skip
    return [task_row(row) for row in rows]


def for_case(
    tx: Tx, case: str, limit: int = bounds.LIST_PAGE, after: tuple[int, str] | None = None
) -> list[TaskRow]:  # fmt: skip
    """Tasks of a case, whatever became of them, by (created, task); ``after``: that pair of the last one."""
    rows = tx.all(
        f"SELECT {COLUMNS} FROM task WHERE tenant = ? AND case_id = ? AND (created_ms, task) > (?, ?) "
        "ORDER BY created_ms, task LIMIT ?",
        tx.tenant, case, *(after or (-1, "")), lists.page_limit(limit),
    )  # fmt: skip
    return [task_row(row) for row in rows]


def opened_since(tx: Tx, since_ms: int, limit: int) -> list[tuple[int, str]]:
    """(created, task) of the tasks that were opened behind ``since_ms``, whatever became of them, in that order."""
    rows = tx.all(
        "SELECT created_ms, task FROM task WHERE tenant = ? AND created_ms > ? ORDER BY created_ms, task LIMIT ?",
        tx.tenant, since_ms, limit,
    )  # fmt: skip
    return [(number(row[0]), text(row[1])) for row in rows]


def expired_since(tx: Tx, since_ms: int, limit: int) -> list[tuple[int, str]]:
    """(decided, task) of the windows that nobody answered in and that were over behind ``since_ms``, in that order."""
    rows = tx.all(
        "SELECT decided_ms, task FROM task WHERE tenant = ? AND state = 'expired' AND decided_ms > ? "
        "ORDER BY decided_ms, task LIMIT ?",
        tx.tenant, since_ms, limit,
    )  # fmt: skip
    return [(number(row[0]), text(row[1])) for row in rows]


def windows(tx: Tx, limit: int) -> list[tuple[int, int]]:
    """(created, due) of the open and claimed tasks with a window, the first to be over first."""
    rows = tx.all(
        "SELECT created_ms, due_ms FROM task WHERE tenant = ? AND state IN ('open', 'claimed') AND due_ms IS NOT NULL "
        "ORDER BY due_ms, task LIMIT ?",
        tx.tenant, limit,
    )  # fmt: skip
    return [(number(row[0]), number(row[1])) for row in rows]


def next_due_ms(tx: Tx) -> int | None:
    """When the first window of an open or claimed task is over; None without one."""
    row = tx.one(
        "SELECT min(due_ms) FROM task WHERE tenant = ? AND state IN ('open', 'claimed') AND due_ms IS NOT NULL",
        tx.tenant,
    )  # fmt: skip
    return None if row is None or row[0] is None else number(row[0])


def beginning(tx: Tx, prefix: str, limit: int) -> list[str]:
    """The ids of tasks that begin with ``prefix`` (lower-case hex), by id."""
    rows = tx.all(
        "SELECT task FROM task WHERE tenant = ? AND task >= ? AND task < ? ORDER BY task LIMIT ?",
        tx.tenant, prefix, prefix + "g", limit,
    )  # fmt: skip
    return [text(row[0]) for row in rows]


def count_open(tx: Tx) -> int:
    """How many tasks wait for a decision."""
    row = tx.one(f"SELECT count(*) FROM task WHERE tenant = ? AND {PENDING}", tx.tenant)
    return 0 if row is None else number(row[0])
