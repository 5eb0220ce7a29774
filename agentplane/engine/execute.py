"""One run, from its history to its conclusion.

Owns the run's nursery, the order forward, replan, unwind, suspend, and the unit that concludes it. Refuses to conclude
under cancellation. Invariant: a run that was cut, parked or dropped writes nothing more; one that ended concludes,
seals and frees its lease in one unit.
"""

from __future__ import annotations

import trio

from agentplane.core import plan as plans
from agentplane.core.errors import AgentplaneError
from agentplane.core.records import CLOSING, RunConcluded
from agentplane.core.saga import Cause
from agentplane.engine import waits
from agentplane.engine.executor import Capabilities, StepResult, run_plan, worst
from agentplane.engine.linking import Spec
from agentplane.engine.live import LiveRun
from agentplane.engine.replan import replan
from agentplane.engine.stops import Dropped, Exhausted, Quarantine
from agentplane.engine.unwind import End, cancelled_specs, unwind
from agentplane.journal import appends, leases, timers
from agentplane.journal.tx import Tx
from agentplane.journal.writer import WriterLike


async def drive(live: LiveRun, skills: Capabilities, writer: WriterLike) -> End:
    """Execute until the run ends, waits, is parked, or is cut. Raises only trio.Cancelled from outside the run."""
    end = End(outcome="cut")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(live.relay)
        with live.scope:
            end = await _whole(live, skills, writer)
        nursery.cancel_scope.cancel()
    if end.outcome == "cut" and live.log.latched is not None:
        return End(outcome="dropped", reason=live.log.latched.message, code=live.log.latched.row.code)
    return end


async def _whole(live: LiveRun, skills: Capabilities, writer: WriterLike) -> End:
    before = live.log.appended
    try:
        try:
            end = await _to_an_end(live, skills)
        except Quarantine as stop:
            # What a stop says of a run is a value wherever it was raised (P10).
            end = End(outcome="quarantined", reason=stop.reason, code=stop.code, undecided=stop.undecided)
        live.world.observe("run.concluding", run=live.run)
        if end.outcome in ("suspended", "dropped"):
            return end
        if end.outcome == "parked":
            live.log.flush()
            return end
        if live.log.appended == before and not live.log.uncommitted and _same(live, end):
            await writer.do(lambda tx: leases.release(tx, live.log.lease))
            return end
        await conclude(live, end)
    except (Dropped, AgentplaneError) as error:
        return End(outcome="dropped", reason=str(error))
    return end


async def _to_an_end(live: LiveRun, skills: Capabilities) -> End:
    """Go forward until nothing is left or something stops it; then back, where it may. Raises what the log refuses."""
    history = live.history
    if history.admitted is None or history.plan is None:
        return End(outcome="dropped", reason="the run has no admission and plan", code="journal_corrupt")
    while True:
        if history.unwind is not None:
            return await unwind(live, skills, Cause(history.unwind.cause))
        if live.cancel is not None:
            # A run that nobody executed is not walked to its wait only to be stopped there.
            return await unwind(live, skills, Cause.CANCELLED)
        plan = plans.from_data(history.plan.plan)
        results = await run_plan(live, plan, skills, history.admitted.input)
        stopped = worst(results)
        if stopped is None:
            lowest = plans.terminal(plan)
            return End(outcome="succeeded", output=next(result.output for result in results if result.step == lowest))
        if stopped.outcome != "suspended" or live.cancel is not None:
            live.release_waits()
        if stopped.outcome == "replanning":
            instead = await replan(live, plan, skills, stopped, results)
            if instead is None:
                continue
            if isinstance(instead, End):
                return instead
            stopped = instead
        if stopped.outcome == "suspended" and live.cancel is None:
            if await waits.suspend(live, waits.waits_of(result.stop for result in results)):
                return End(outcome="suspended", reason=stopped.stop.reason if stopped.stop is not None else None)
            continue
        if stopped.outcome == "failed" and live.cancel is None:
            return await unwind(live, skills, Cause.FAILED)
        if stopped.outcome in ("failed", "cancelled", "suspended") or (
            stopped.outcome == "exhausted" and live.cancel is not None
        ):
            return await unwind(live, skills, Cause.CANCELLED)
        return _end_of(stopped, results)


def _end_of(stopped: StepResult, results: list[StepResult]) -> End:
    stop = stopped.stop
    if isinstance(stop, Quarantine):
        stop.naming_all(result.stop for result in results)
        return End(outcome="quarantined", reason=stop.reason, code=stop.code, undecided=stop.undecided)
    if isinstance(stop, Exhausted):
        return End(outcome="exhausted", reason=stop.reason, code="exhausted", exhaustion=stop.exhaustion)
    return End(outcome=stopped.outcome, reason=stop.reason if stop is not None else None)


def _same(live: LiveRun, end: End) -> bool:
    """A resume that reached what the history already concludes appends nothing."""
    last = live.history.conclusion
    return last is not None and (last.outcome, last.reason) == (end.outcome, end.reason)


async def conclude(live: LiveRun, end: End) -> None:
    """Conclusion, seal where nothing may resume, and release: one unit. Raises Dropped or what the unit was refused
    for."""
    specs: list[Spec] = []
    closing = end.outcome in CLOSING
    if end.outcome == "cancelled":
        specs += cancelled_specs(live.history, live.cancel)
    if closing:
        specs += waits.ended(live.history)
    specs.append((RunConcluded, {
        "outcome": end.outcome, "reason": None if end.outcome == "cancelled" else end.reason, "code": end.code,
        "undecided": list(end.undecided), "exhaustion": end.exhaustion, "live_spend": live.history.spend,
    }))  # fmt: skip
    run, lease = live.run, live.log.lease

    def before(tx: Tx) -> None:
        timers.disarm_run(tx, run)

    def after(tx: Tx) -> None:
        if closing:
            appends.seal(tx, run)
        leases.release(tx, lease)

    await live.log.barrier(*specs, extra=before if live.history.waiting() else None, after=after)
    live.world.observe("run.concluded", run=live.run)
    if end.outcome == "quarantined":
        live.world.observe("run.quarantined", run=live.run, code=end.code)
