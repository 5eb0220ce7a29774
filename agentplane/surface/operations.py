"""The operations: one table for CLI, socket, HTTP and page.

Owns each operation's name, action, method and path, request type and handler. Refuses unknown members. Invariant: a
handler does
the same whether it is reached over a socket, over HTTP or in the terminal's own process, and differs in ``applied``
alone.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import trio

from agentplane.core import bounds, errors
from agentplane.core.instants import to_text
from agentplane.core.records import Record
from agentplane.engine import acts
from agentplane.engine.admission import Wanted
from agentplane.engine.plane import Outcome
from agentplane.journal import lists, timers
from agentplane.journal.tx import Tx
from agentplane.surface import appsql
from agentplane.surface.asking import Ask, Body, Host, Operation, Reply, schema, writable
from agentplane.surface.attention import attention, next_command, waiting
from agentplane.surface.cases import acknowledge, list_cases, list_obligations, show_case
from agentplane.surface.desk import claim, decide, list_tasks, show_task, takeover
from agentplane.surface.desk import release as release_task
from agentplane.surface.inbox import dead_letters, deliver
from agentplane.surface.paging import after_run, run_cursor
from agentplane.surface.requests import (
    AppSqlBody,
    DrainBody,
    HistoryQuery,
    ListQuery,
    ReasonBody,
    ReconcileBody,
    ReleaseBody,
    ReplayBody,
    StartBody,
    WaitQuery,
    admission_key,
    convert,
    convert_query,
    outcome_of_list,
    run_id,
)

POLL_S: Final = 0.1
"""How often committed rows are looked at for whoever waits for them."""
PAGE_BYTES_MAX: Final = 2 * bounds.MIB
"""Record bytes of one page of history: a page is held in memory whole, here and by its reader."""
PAGE_STEP: Final = 16
GOES_ON: Final = ("running", "suspended")
"""Statuses of a run of which records are still to come by themselves."""


# --- handlers: runs -------------------------------------------------------------------------------------------------


async def start(host: Host, ask: Ask) -> Reply:
    """Admit work, durable before it is answered; wait for its end when told to."""
    body: StartBody = convert(ask.body, StartBody, "POST /runs")
    query: WaitQuery = convert_query(ask.query, WaitQuery, "POST /runs")
    plane = writable(host)
    key = None if ask.key is None else admission_key(ask.key)
    wanted = Wanted(capability=body.capability, input=body.input, key=key, actor=ask.who.as_actor(), budget=body.budget,
                    correlate=body.correlate)  # fmt: skip
    admission = await plane.start(wanted)
    with trio.move_on_after(_wait(query.wait)):
        await plane.runs.wait_for(admission.run)
    outcome = await plane.outcome(admission.run)
    members = _outcome(outcome) | {"admitted": admission.admitted}
    return Reply(201 if admission.admitted else 200, schema("run", **members))


async def show(host: Host, ask: Ask) -> Reply:
    """One run from committed rows; ``wait`` holds the answer until it has left running."""
    run = run_id(ask.run)
    query: WaitQuery = convert_query(ask.query, WaitQuery, "GET /runs/{run}")
    view = await host.read(lambda tx: run_view(tx, run))
    with trio.move_on_after(_wait(query.wait)):
        while view["status"] == "running" and host.plane is not None and host.serving and not _draining(host):
            if run in host.plane.runs.live:
                await host.plane.runs.wait_for(run)
            else:
                # Open, and nobody executes it here: paused, held, or waiting for its turn.
                await trio.sleep(POLL_S)
            view = await host.read(lambda tx: run_view(tx, run))
    return Reply(200, schema("show", **view))


async def list_runs(host: Host, ask: Ask) -> Reply:
    """All runs, newest first, or those of one outcome."""
    query: ListQuery = convert_query(ask.query, ListQuery, "GET /runs")
    before = None if query.after is None else after_run(query.after)
    outcome, limit = outcome_of_list(query.outcome), lists.page_limit(query.limit)

    def body(tx: Tx) -> Body:
        found = lists.runs(tx, status=outcome, limit=limit, before=before)
        rows = [
            {
                "run": row.run,
                "capability": row.capability,
                "status": row.status,
                "admitted": to_text(row.admitted_ms),
                "records": row.head_seq,
                "reason": row.reason,
            }
            for row in found
            if not row.own
        ]
        more = len(found) == limit
        return {
            "runs": rows,
            "truncated": more,
            "next": run_cursor(found[-1].admitted_ms, found[-1].run) if more else None,
        }

    return Reply(200, schema("runs", **await host.read(body)))


async def history(host: Host, ask: Ask) -> Reply:
    """Records of a run from a seq on; ``wait`` holds an empty answer until there is one more."""
    run = run_id(ask.run)
    query: HistoryQuery = convert_query(ask.query, HistoryQuery, "GET /runs/{run}/history")
    limit = lists.page_limit(query.limit)

    def body(tx: Tx) -> Body:
        row = lists.get_run(tx, run)
        found = _page(tx, run, query.start - 1, limit)
        following = found[-1].record.seq + 1 if found else query.start
        return {
            "run": run,
            "status": row.status,
            "records": [record_view(item.record, item.hash) for item in found],
            "truncated": following <= row.head_seq,
            "next_from": following,
        }

    answer = await host.read(body)
    with trio.move_on_after(_wait(query.wait)):
        while not answer["records"] and answer["status"] in GOES_ON and host.serving and not _draining(host):
            await trio.sleep(POLL_S)
            answer = await host.read(body)
    return Reply(200, schema("history", **answer))


def _page(tx: Tx, run: str, after: int, limit: int) -> list[lists.Stored]:
    """Records behind ``after``: at most ``limit``, and one at least whatever its size."""
    found: list[lists.Stored] = []
    size = 0
    while len(found) < limit and size < PAGE_BYTES_MAX:
        some = lists.history(tx, run, after=after + len(found), limit=min(PAGE_STEP, limit - len(found)))
        if not some:
            break
        for item in some:
            size += len(item.body)
            if found and size > PAGE_BYTES_MAX:
                return found
            found.append(item)
    return found


def _draining(host: Host) -> bool:
    return host.plane is not None and host.plane.draining


async def cancel(host: Host, ask: Ask) -> Reply:
    run = run_id(ask.run)
    body: ReasonBody = convert(ask.body, ReasonBody, "cancel")
    answer = await writable(host).cancel(run, ask.who.as_actor(), body.reason)
    applied = host.serving or answer.concluded
    members: Body = {"run": run, "recorded": answer.recorded, "requested_by": answer.requested_by, "applied": applied}
    return Reply(202, schema("cancel", **members, **_continue(applied, "agentplane serve")))


async def reconcile(host: Host, ask: Ask) -> Reply:
    run = run_id(ask.run)
    body: ReconcileBody = convert(ask.body, ReconcileBody, "reconcile")
    plane = writable(host)
    unit = acts.reconcile(
        run,
        body.effect,
        body.outcome,
        ask.who.as_actor(),
        body.note,
        plane.owner,
        output=body.output,
        new_key=body.new_key,
    )
    left = await plane.writer.do(unit)
    members: Body = {
        "run": run,
        "effect": body.effect,
        "outcome": body.outcome,
        "undecided": [msgspec.to_builtins(one) for one in left],
        "applied": host.serving,
        "next": f"agentplane quarantine {run} --decision reopen --reason ...",
    }
    return Reply(200, schema("reconcile", **members))


async def reopen(host: Host, ask: Ask) -> Reply:
    """Hand a quarantined run back; answers what it reached, or, with the plane down, the command that continues."""
    run = run_id(ask.run)
    body: ReasonBody = convert(ask.body, ReasonBody, "reopen")
    plane = writable(host)
    actor = ask.who.as_actor()
    members: Body = {"run": run, "decision": "reopen", "decided_by": actor.actor, "applied": host.serving}
    if host.serving:
        outcome = await plane.reopen(run, actor, body.reason)
        return Reply(200, schema("quarantine", **(members | _outcome(outcome))))
    await plane.writer.do(acts.reopen(run, actor, body.reason, plane.owner))
    return Reply(200, schema("quarantine", **members, status="running", **_continue(False, "agentplane serve")))


async def abandon(host: Host, ask: Ask) -> Reply:
    run = run_id(ask.run)
    body: ReasonBody = convert(ask.body, ReasonBody, "abandon")
    plane = writable(host)
    actor = ask.who.as_actor()
    index = await plane.writer.do(acts.abandon(run, actor, body.reason, plane.owner))
    members: Body = {
        "run": run,
        "decision": "abandon",
        "decided_by": actor.actor,
        "status": "abandoned",
        "reason": body.reason,
        "log_index": index,
        "applied": True,
    }
    return Reply(200, schema("quarantine", **members))


async def replay(host: Host, ask: Ask) -> Reply:
    """Strictly: a pure read. Else a failed or exhausted run is walked on; with ``retry`` its failure is asked again,
    with ``raise`` its ceilings are other ones."""
    run = run_id(ask.run)
    body: ReplayBody = convert(ask.body, ReplayBody, "replay")
    plane = writable(host)
    if body.strict:
        verdict = await plane.replay(run, strict=True)
        return Reply(200, schema("replay", run=run, strict=True, **msgspec.to_builtins(verdict)))
    if body.retry and body.raised:
        raise errors.InvalidRequest("A retry asks a failure again and a raise gives more room; ask for one of them.")
    actor = ask.who.as_actor()
    if body.raised:
        outcome = await plane.raise_ceilings(run, body.raised, actor, body.reason)
    elif body.retry:
        outcome = await plane.retry(run, actor, body.reason)
    else:
        outcome = await plane.replay(run)
    return Reply(200, schema("replay", strict=False, **_outcome(outcome)))


# --- handlers: the plane --------------------------------------------------------------------------------------------


async def status(host: Host, ask: Ask) -> Reply:
    return Reply(200, schema("status", **await host.status()))


async def drain(host: Host, ask: Ask) -> Reply:
    body: DrainBody = convert(ask.body, DrainBody, "drain")
    return Reply(202, schema("drain", **await host.drain(now=body.now, grace_s=body.grace)))


async def pause(host: Host, ask: Ask) -> Reply:
    body: ReasonBody = convert(ask.body, ReasonBody, "pause")
    plane = writable(host)
    reason = acts.reason_text(body.reason)
    changed = await plane.state.pause(ask.who.as_actor(), reason)
    return Reply(200, schema("pause", paused=True, already_paused=not changed, reason=plane.state.paused))


async def release(host: Host, ask: Ask) -> Reply:
    """Let go of what is held, paused or suspect; without ``confirmed`` a held store only shows the gap."""
    body: ReleaseBody = convert(ask.body, ReleaseBody, "release")
    plane = writable(host)
    if body.paused:
        changed = await plane.state.release_paused(ask.who.as_actor(), body.reason)
        if changed:
            plane.begin_recovery()
        return Reply(200, schema("release", released=["paused"] if changed else [], already_released=not changed))
    if body.clock:
        changed = plane.clock.release()
        return Reply(200, schema("release", released=["clock"] if changed else [], already_released=not changed))
    if plane.state.held is None and not plane.state.holding:
        raise errors.NotApplicable("The store is not held.")
    gap: Body = msgspec.to_builtins(await host.read(plane.state.gap))
    if not body.confirmed:
        return Reply(200, schema("release", released=[], gap=gap, warning=_warning(gap)))
    chosen: list[str] | None = None
    if body.runs:
        chosen = [run_id(run) for run in body.runs]
    elif body.batch is not None:
        chosen = sorted(plane.state.holding)[: max(0, body.batch)]
    elif not body.all:
        raise errors.InvalidRequest("Say what to release: all, a batch, runs, or paused.")
    released = await plane.state.release_held(ask.who.as_actor(), body.reason, chosen)
    plane.begin_recovery()
    return Reply(200, schema("release", released=released, held=plane.state.held is not None, gap=gap))


def _warning(gap: Body) -> str:
    return (
        f"{len(gap['open_runs'])} open runs are held. "
        f"Effects performed after {_instant(gap['gap_from_ms'])} by the original are not in this copy: "
        "work re-submitted under its admission key reaches the provider under the key it had, "
        "and is not paid again where the provider honours keys; where it does not, it may be."
    )


def _instant(ms: int | None) -> str:
    return "its last record" if ms is None else to_text(ms)


async def reload(host: Host, ask: Ask) -> Reply:
    return Reply(200, schema("reload", **await host.reload()))


async def app_sql(host: Host, ask: Ask) -> Reply:
    """Make or change the application's own tables, whole or not at all; recorded with who did it."""
    body: AppSqlBody = convert(ask.body, AppSqlBody, "app-sql")
    migrated = await appsql.apply(writable(host), ask.who.as_actor(), body.sql)
    members = {"statements": migrated.statements, "digest": migrated.digest}
    return Reply(200, schema("app-sql", **members, applied=True))


# --- views ----------------------------------------------------------------------------------------------------------


def _wait(seconds: float) -> float:
    return min(max(0.0, seconds), bounds.WAIT_MAX_S)


def _continue(applied: bool, command: str) -> Body:
    return {} if applied else {"next": command}


def _outcome(outcome: Outcome) -> Body:
    members: Body = {"run": outcome.run, "status": outcome.status}
    if outcome.status == "succeeded":
        members["output"] = outcome.output
    elif outcome.status == "suspended":
        members["waiting_for"] = outcome.reason
    elif outcome.reason is not None:
        members["error"] = outcome.reason
    return members


def run_view(tx: Tx, run: str) -> Body:
    """One run, with its output or error, its doubt and what may be done about it."""
    row = lists.get_run(tx, run)
    view: Body = {
        "run": run,
        "capability": row.capability,
        "status": row.status,
        "admitted": to_text(row.admitted_ms),
        "concluded": None if row.concluded_ms is None else to_text(row.concluded_ms),
        "records": row.head_seq,
        "sealed": row.log_index is not None,
        "log_index": row.log_index,
    }
    if row.status == "succeeded":
        view["output"] = lists.run_output(tx, run)
    if row.reason is not None and row.status != "suspended":
        view["error"] = {"code": row.code, "message": row.reason}
    asked = lists.cancellation(tx, run)
    if asked is not None:
        view["cancellation_requested_by"] = asked.actor
    if row.status == "quarantined":
        _, found, _ = acts.load(tx, run)
        view["undecided"] = [msgspec.to_builtins(one) for one in acts.undecided(found)]
        view["next"] = next_command(run, view["undecided"])
    elif row.status in ("failed", "exhausted", "suspended"):
        view |= _stopped(tx, run, row)
    return view


def _stopped(tx: Tx, run: str, row: lists.RunRow) -> Body:
    """What a run that stopped without being closed waits for, and the verb that goes on."""
    if row.status == "suspended":
        due = timers.of_run(tx, run)
        return {"waiting_for": row.reason, "until": to_text(min(one.due_ms for one in due)) if due else None}
    _, found, _ = acts.load(tx, run)
    view: Body = {}
    if row.landed:
        view["landed_work"] = sorted({series.first.descriptor.kind for series in found.standing()})
    last = found.conclusion
    if last is not None and last.exhaustion is not None:
        view["exhaustion"] = msgspec.to_builtins(last.exhaustion)
        view["next"] = f"agentplane replay {run} --raise {last.exhaustion.limit}=... --reason ..."
    elif found.unwind is not None:
        view["next"] = f"agentplane cancel {run} --reason ..." if row.landed else None
    else:
        # A retry asks an effect again; what a skill raised by itself is walked again.
        retry = " --retry --reason ..." if row.code == "effect_failed" else ""
        view["next"] = f"agentplane replay {run}{retry}"
    return view


def record_view(record: Record, digest: bytes) -> Body:
    """A record as data, with its hash."""
    return {**msgspec.to_builtins(record), "hash": digest.hex()}


def _table() -> tuple[Operation, ...]:
    def row(name: str, action: str, method: str, path: str, handler: Any, **more: Any) -> Operation:
        return Operation(name=name, action="api:" + action, method=method, path=path, handler=handler, **more)

    return (
        row("status", "status.read", "GET", "/status", status, down="none"),
        row("runs", "run.list", "GET", "/runs", list_runs),
        row("waiting", "run.waiting", "GET", "/runs/waiting", waiting),
        row("attention", "attention", "GET", "/attention", attention),
        row("start", "run.start", "POST", "/runs", start, down="write", needs_skills=True),
        row("show", "run.read", "GET", "/runs/{run}", show),
        row("history", "run.history", "GET", "/runs/{run}/history", history),
        row("cancel", "run.cancel", "POST", "/runs/{run}/cancel", cancel, down="write"),
        row("reconcile", "effect.reconcile", "POST", "/runs/{run}/reconcile", reconcile, down="write"),
        row("reopen", "run.reopen", "POST", "/runs/{run}/reopen", reopen, down="write"),
        row("abandon", "run.abandon", "POST", "/runs/{run}/abandon", abandon, down="write"),
        row("replay", "run.replay", "POST", "/runs/{run}/replay", replay, down="write", needs_skills=True),
        row("drain", "plane.drain", "POST", "/drain", drain, down="none"),
        row("pause", "plane.pause", "POST", "/pause", pause, down="write"),
        row("release", "plane.release", "POST", "/release", release, down="write"),
        row("reload", "plane.reload", "POST", "/reload", reload, down="none"),
        row("cases", "case.list", "GET", "/cases", list_cases),
        row("case", "case.read", "GET", "/cases/{case}", show_case),
        row("obligations", "obligation.list", "GET", "/obligations", list_obligations),
        row("acknowledge", "obligation.acknowledge", "POST", "/obligations/acknowledge", acknowledge, down="write"),
        row("tasks", "task.list", "GET", "/tasks", list_tasks),
        row("task", "task.read", "GET", "/tasks/{task}", show_task),
        row("claim", "task.claim", "POST", "/tasks/{task}/claim", claim, down="write"),
        row("unclaim", "task.release", "POST", "/tasks/{task}/release", release_task, down="write"),
        row("takeover", "task.takeover", "POST", "/tasks/{task}/takeover", takeover, down="write"),
        row("decide", "task.decide", "POST", "/tasks/{task}/decide", decide, down="write"),
        row("deliver", "event.deliver", "POST", "/events", deliver, down="write", raw=True),
        row("dead_letters", "deadletter.list", "GET", "/dead-letters", dead_letters),
        row("app_sql", "plane.app_sql", "POST", "/app-sql", app_sql, down="write"),
    )


def _speaks(body: Body) -> str | None:
    if body.get("raise"):
        return "api:run.raise"
    return "api:run.retry" if body.get("retry") else None


OPERATIONS: Final = _table()
BY_NAME: Final = {operation.name: operation for operation in OPERATIONS}
EXTRA_ACTIONS: Final = {"replay": lambda body: _speaks(body) if isinstance(body, dict) else None}
"""Actions that depend on what is asked: a retry speaks for a person."""
ACTIONS_OF: Final = frozenset(operation.action for operation in OPERATIONS) | {"api:run.retry", "api:run.raise"}
