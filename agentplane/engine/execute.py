"""One run, from its history to its conclusion.

Owns the run's nursery, the reading of its request and plan, and the unit that concludes it. Refuses to conclude under
cancellation. Invariant: a run that was cut, parked or dropped writes nothing more; one that ended concludes, seals and
frees its lease in one unit.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import trio

from agentplane.authoring.skill import Skill
from agentplane.core import plan as plans
from agentplane.core.errors import AgentplaneError
from agentplane.core.records import CLOSING, Actor, Basis, RunCancelled, RunConcluded, Undecided
from agentplane.engine.executor import StepResult, run_plan, worst
from agentplane.engine.linking import Spec
from agentplane.engine.live import LiveRun
from agentplane.engine.stops import Dropped, Quarantine
from agentplane.journal import appends, leases
from agentplane.journal.lists import Cancel
from agentplane.journal.tx import Tx
from agentplane.journal.writer import WriterLike


class End(msgspec.Struct, frozen=True, kw_only=True):
    """How a run left this process. ``outcome``: a conclusion's, or parked, dropped, cut."""

    outcome: str
    output: object = None
    reason: str | None = None
    code: str | None = None
    undecided: tuple[Undecided, ...] = ()


async def drive(live: LiveRun, skills: Mapping[str, Skill], writer: WriterLike) -> End:
    """Execute until the run ends, is parked, or is cut. Raises only trio.Cancelled from outside the run."""
    end = End(outcome="cut")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(live.relay)
        with live.scope:
            end = await _steps(live, skills, writer)
        nursery.cancel_scope.cancel()
    if end.outcome == "cut" and live.log.latched is not None:
        return End(outcome="dropped", reason=live.log.latched.message, code=live.log.latched.row.code)
    return end


async def _steps(live: LiveRun, skills: Mapping[str, Skill], writer: WriterLike) -> End:
    history = live.history
    if history.admitted is None or history.plan is None:
        return End(outcome="dropped", reason="the run has no admission and plan", code="journal_corrupt")
    plan = plans.from_data(history.plan.plan)
    before = live.log.appended
    while True:
        results = await run_plan(live, plan, skills, history.admitted.input)
        stopped = worst(results)
        # P15: a cancel heard by one member while another's announcement was in the writer does not stand over what that
        # one did. The step is walked again, and the cancel is not heard any more.
        if stopped is None or stopped.outcome != "cancelled" or not history.landed():
            break
    live.world.observe("run.concluding", run=live.run)
    if stopped is not None and stopped.outcome in ("parked", "dropped"):
        reason = stopped.stop.reason if stopped.stop is not None else None
        live.log.flush()
        return End(outcome=stopped.outcome, reason=reason)
    end = _end_of(plan, results, stopped)
    if live.log.appended == before and not live.log.uncommitted and _same(live, end):
        await writer.do(lambda tx: leases.release(tx, live.log.lease))
        return end
    try:
        await conclude(live, end)
    except (Dropped, AgentplaneError) as error:
        return End(outcome="dropped", reason=str(error))
    return end


def _end_of(plan: plans.Plan, results: list[StepResult], stopped: StepResult | None) -> End:
    if stopped is None:
        lowest = plans.terminal(plan)
        return End(outcome="succeeded", output=next(result.output for result in results if result.step == lowest))
    if stopped.fault is not None:
        return End(outcome="failed", reason=stopped.fault.message, code=stopped.fault.code)
    stop = stopped.stop
    if isinstance(stop, Quarantine):
        return End(outcome="quarantined", reason=stop.reason, code=stop.code, undecided=stop.undecided)
    return End(outcome=stopped.outcome, reason=stop.reason if stop is not None else None)


def _same(live: LiveRun, end: End) -> bool:
    """A resume that reached what the history already concludes appends nothing."""
    last = live.history.conclusion
    return last is not None and (last.outcome, last.reason) == (end.outcome, end.reason)


async def conclude(live: LiveRun, end: End) -> None:
    """Conclusion, seal where nothing may resume, and release: one unit. Raises Dropped or what the unit was refused
    for."""
    specs: list[Spec] = []
    cancel = live.cancel
    if end.outcome == "cancelled" and cancel is not None:
        specs.append((RunCancelled, {"cancelled_by": actor_of(cancel), "reason": cancel.reason}))
    specs.append((RunConcluded, {
        "outcome": end.outcome, "reason": None if end.outcome == "cancelled" else end.reason, "code": end.code,
        "undecided": list(end.undecided), "live_spend": live.history.spend,
    }))  # fmt: skip
    run, lease = live.run, live.log.lease

    def after(tx: Tx) -> None:
        if end.outcome in CLOSING:
            appends.seal(tx, run)
        leases.release(tx, lease)

    await live.log.barrier(*specs, after=after)
    live.world.observe("run.concluded", run=live.run)


def actor_of(cancel: Cancel) -> Actor:
    return Actor(actor=cancel.actor, basis=Basis(cancel.basis), uid=cancel.uid)
