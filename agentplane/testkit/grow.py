"""A store as large as years make it: runs that ended, runs that wait, tasks that nobody decided, grown in minutes.

Owns the making of many runs of a few shapes, each with the records that the engine writes for it, linked, appended and
sealed by the journal's own functions. Refuses a store that is open. Invariant: what it grows verifies like anything
else, and is woken, decided and listed like anything else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from agentplane.core import canonical, ids
from agentplane.core import plan as plans
from agentplane.core.effects import Phase, Place, effect_key, idempotency_key, origin
from agentplane.core.history import AWAIT, SLEEP, TASK, read_all
from agentplane.core.instants import to_text
from agentplane.core.records import (
    CANON,
    CONSERVATIVE,
    Actor,
    Basis,
    Descriptor,
    EffectStarted,
    PlanFrozen,
    RunAdmitted,
    RunConcluded,
    RunSuspended,
    StepFinished,
    StepStarted,
)
from agentplane.engine.awaiting import AWAIT as AWAIT_EFFECT
from agentplane.engine.linking import Spec, link
from agentplane.engine.sleeping import SLEEP as SLEEP_EFFECT
from agentplane.engine.tasking import OPEN as TASK_EFFECT
from agentplane.journal import appends
from agentplane.journal.appends import Head
from agentplane.journal.store import connect
from agentplane.journal.tx import Tx, text
from agentplane.testkit.worlds import arm, fit_mark

RUNS_A_COMMIT = 1_000
ALICE = Actor(actor="os:alice", basis=Basis.CONNECTED)
WAITS = {AWAIT: AWAIT_EFFECT, SLEEP: SLEEP_EFFECT, TASK: TASK_EFFECT}


class Grown:
    """What one call grew: how many runs, and the last run's id."""

    def __init__(self) -> None:
        self.runs = 0
        self.last = ""


def grow(
    store: Path, *, capability: str = "grown.run", events: int = 0, sleeps: int = 0, tasks: int = 0, concluded: int = 0,
    now_ms: int, due_ms: int, tenant: str = "default", told: Callable[[int], None] = lambda count: None,
) -> Grown:  # fmt: skip
    """Grow a closed store by runs that wait for an event about ``grown=N``, for an instant or for a person, and by runs
    that ended; all admitted before ``now_ms``, and waiting until ``due_ms`` (ms UTC). ``told`` hears of each commit."""
    connection = connect(store)
    grown = Grown()
    try:
        connection.pragma("synchronous", "off")
        row = connection.execute("SELECT incarnation FROM store").fetchone()
        incarnation = "" if row is None else text(row[0])
        shapes: list[tuple[int, Callable[[int], dict[str, Any] | None], str | None]] = [
            (concluded, lambda n: None, None),
            (events, lambda n: _event(n, due_ms), AWAIT),
            (sleeps, lambda n: {"until": to_text(due_ms)}, SLEEP),
            (tasks, lambda n: _task(n, due_ms), TASK),
        ]
        for count, args, kind in shapes:
            for first in range(0, count, RUNS_A_COMMIT):
                some = range(first, min(count, first + RUNS_A_COMMIT))
                connection.execute("BEGIN IMMEDIATE")
                tx = Tx(connection, tenant, now_ms)
                for n in some:
                    _one(tx, grown, incarnation, capability, now_ms, n, args(n), kind)
                connection.execute("COMMIT")
                told(grown.runs)
        connection.execute("UPDATE store SET last_ms = ?", (now_ms,))
        connection.pragma("wal_checkpoint(TRUNCATE)")
    finally:
        connection.close()
    fit_mark(store)
    return grown


def _event(n: int, due_ms: int) -> dict[str, Any]:
    return {"kind": "grown.came", "correlation": {"grown": str(n)}, "until": to_text(due_ms), "sender": None}


def _task(n: int, due_ms: int) -> dict[str, Any]:
    return {
        "summary": f"May the {n}th go on?", "action": None, "confidence": None, "cost": None, "evidence": {"n": n},
        "audience": ["reviewer"], "excluded": [], "least_basis": "connected", "four_eyes": True,
        "priority": ("low", "normal", "high", "urgent")[n % 4], "on_expiry": "deny", "escalate_to": [],
        "due": to_text(due_ms),
    }  # fmt: skip


def _one(
    tx: Tx, grown: Grown, incarnation: str, capability: str, now_ms: int, n: int, args: dict[str, Any] | None,
    kind: str | None,
) -> None:  # fmt: skip
    """One run: admitted, begun, and ended or suspended."""
    grown.runs += 1
    at_ms = now_ms - 40_000_000_000 + grown.runs if kind is None else now_ms - 1
    run = ids.new_id("run", at_ms, hashlib.sha256(f"{grown.runs}{kind}".encode()).digest()[:10])
    grown.last = run
    specs = list(_records(tx.tenant, run, capability, n, args, kind))
    appends.admit(tx, run, capability=capability, incarnation=incarnation, at_ms=at_ms)
    tx.run(
        "INSERT INTO lease (tenant, run, owner, opening, epoch, expires_ms) VALUES (?, ?, 'grown', 'grown', 1, 1)",
        tx.tenant, run,
    )  # fmt: skip
    linked = link(run, 1, Head(), specs, at_ms)
    appends.append(tx, run, 1, Head(), linked)
    if kind is None:
        appends.seal(tx, run)
    else:
        history = read_all(run, (item.record for item in linked))
        for series in history.waiting():
            arm(tx, history, series)
    tx.run("UPDATE lease SET owner = NULL, opening = NULL WHERE tenant = ? AND run = ?", tx.tenant, run)


def _records(
    tenant: str, run: str, capability: str, n: int, args: dict[str, Any] | None, kind: str | None
) -> Iterator[Spec]:
    first = origin(tenant, run, None)
    plan = plans.single(capability)
    yield RunAdmitted, {
        "capability": capability, "input": {"n": n}, "input_label": CONSERVATIVE, "canon": CANON, "tenant": tenant,
        "origin": first.hex(), "currency": "EUR", "admitted_by": ALICE,
    }  # fmt: skip
    yield PlanFrozen, {"steps": [capability], "plan": plans.to_data(plan), "digest": plans.digest(plan)}
    yield StepStarted, {"step": 0, "skill": capability}
    if args is None or kind is None:
        yield StepFinished, {"step": 0, "outcome": "succeeded", "output": {"n": n}}
        yield RunConcluded, {"outcome": "succeeded"}
        return
    raw, effect = canonical.encode(args), WAITS[kind]
    yield EffectStarted, {
        "step": 0, "effect_key": effect_key(Place(0, Phase.forward, 0, 1), kind, raw).hex(),
        "descriptor": Descriptor(kind=kind, args=args), "terms": effect.terms(), "retry": effect.retry_terms(),
        "mutates": False, "attempt": 1, "ordinal": 0, "local": True,
        "idempotency_key": idempotency_key(first, 0, Phase.forward, 0, kind, raw, 0),
    }  # fmt: skip
    yield RunSuspended, {"reason": "grown", "until": args.get("until")}
