"""The atomic members of a group: statements over the application's own tables, in the journal's own transaction.

Owns the one unit that runs them and records them. Refuses to apply anything on a re-walk: what the journal holds has
happened, and what it does not hold has not. Invariant: row and record are one commit, so that a death on either side
of its sync leaves no doubt; what the file refused is recorded as never having happened.
"""

from __future__ import annotations

import msgspec

from agentplane.authoring.sql import SqlDescription
from agentplane.core import canonical
from agentplane.core.dispositions import Disposition
from agentplane.core.effects import Phase, Place, effect_key, idempotency_key
from agentplane.core.errors import AtomicRefused, DiskLow
from agentplane.core.history import Spot
from agentplane.core.records import Descriptor, EffectDone, EffectFailed, EffectStarted, Fault, RetryTerms, Terms
from agentplane.core.recovery import Mode
from agentplane.engine.dispatch import Dispatcher
from agentplane.engine.linking import Spec, place_of
from agentplane.engine.stops import Divergence, WouldPerform
from agentplane.journal import atomic
from agentplane.journal.tx import Tx

KIND = "app.sql"


async def transact(dispatcher: Dispatcher, members: list[tuple[Spot, SqlDescription]]) -> None:
    """Run the statements and record them, in one transaction that holds nothing else. A refusal is recorded as such and
    decided by the group. Raises the stops, and what the log refuses."""
    live = dispatcher.live
    if live.strict:
        raise WouldPerform(f"step {dispatcher.step}: the history has no transaction of the group")
    live.hear_cancel(deaf=dispatcher.deaf)
    live.gate.check(0)
    await live.log.room()
    announced = [_announcement(dispatcher, spot, statement) for spot, statement in members]
    specs: list[Spec] = []
    for (_, statement), started in zip(members, announced, strict=True):
        specs += [(EffectStarted, started), (EffectDone, place_of(started) | {"output": {"rows": statement.rows}})]
    statements = [statement for _, statement in members]
    reserved: list[dict[str, object]] = []

    def run(tx: Tx) -> None:
        live.check_room()
        atomic.run_members(tx, statements)

    live.world.observe("group.transacting", run=live.run, step=dispatcher.step)
    try:
        for (spot, _), started in zip(members, announced, strict=True):
            dispatcher.within_budget(spot, started)
            reserved.append(started)
        while True:
            try:
                await live.log.barrier(*specs, extra=run, solo=True)
                break
            except DiskLow:
                # A full disk is a state, at the frontier too: the group waits with everything it holds.
                await live.wait_for_room(deaf=dispatcher.deaf)
    except AtomicRefused as refused:
        _record_refused(dispatcher, announced, live.world.secrets.sentence(refused.message))
    finally:
        for started in reserved:
            if str(started["effect_key"]) not in live.history.by_key:
                live.history.ledger.unreserve_effect()
    live.world.observe("group.transacted", run=live.run, step=dispatcher.step)


def _record_refused(dispatcher: Dispatcher, announced: list[dict[str, object]], why: str) -> None:
    """The file refused the transaction whole: each member is announced and known not to have happened, so that every
    later walk decides the group as this one does."""
    specs: list[Spec] = []
    for started in announced:
        fault = Fault(code="atomic_refused", message=why)
        specs += [
            (EffectStarted, started),
            (EffectFailed, place_of(started) | {
                "fault": fault, "disposition": Disposition.DID_NOT_HAPPEN, "permanent": True,
            }),
        ]  # fmt: skip
    dispatcher.live.log.ride(*specs, linger=False)


def _announcement(dispatcher: Dispatcher, spot: Spot, statement: SqlDescription) -> dict[str, object]:
    args = msgspec.to_builtins({"sql": statement.sql, "params": list(statement.params), "rows": statement.rows})
    raw = canonical.encode(args)
    place = Place(spot.step, spot.phase, spot.ordinal, 1)
    members: dict[str, object] = {
        "step": spot.step, "effect_key": effect_key(place, KIND, raw).hex(),
        "descriptor": Descriptor(kind=KIND, args=args),
        "terms": Terms(mode=Mode.RETRY, timeout_ms=0, settle_ms=0), "retry": RetryTerms(max_attempts=1),
        "mutates": True, "attempt": 1, "ordinal": spot.ordinal, "local": True,
        "idempotency_key": idempotency_key(
            dispatcher.live.origin, spot.step, spot.phase, spot.ordinal, KIND, raw, 0
        ),
    }  # fmt: skip
    if spot.phase is not Phase.forward:
        members["phase"] = spot.phase.wire
    if dispatcher.member is not None:
        members["group"], members["role"] = dispatcher.member
    return members


def same(dispatcher: Dispatcher, spot: Spot, statement: SqlDescription) -> None:
    """P18: raises Divergence when the journal holds another statement at this place."""
    series = dispatcher.live.history.series.get(spot)
    if series is None:
        return
    asked = _announcement(dispatcher, spot, statement)
    if series.first.effect_key != asked["effect_key"]:
        raise Divergence(
            f"step {spot.step}, {spot.phase.wire}, ordinal {spot.ordinal}: recorded {series.first.descriptor.kind}, "
            f"asked another statement",
            spot,
        )
