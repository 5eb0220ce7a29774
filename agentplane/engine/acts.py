"""What a person does to a run: reconcile, reopen, abandon, retry, raise, cancel.

Owns each act as one unit over a run that nobody executes, with the refusals that protect history. Refuses to replace a
recorded fact: only what is in doubt may be answered. Invariant: every act of a person is recorded with actor and basis,
and none declares an outcome that the runtime then has to believe without walking the history again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from agentplane.core import bounds
from agentplane.core import budget as budgets
from agentplane.core.effects import Phase
from agentplane.core.errors import InvalidRequest, NotApplicable, UndecidedEffect
from agentplane.core.history import GroupSpot, History, Series, read_all
from agentplane.core.records import (
    Actor,
    Basis,
    BudgetRaised,
    EffectReconciled,
    QuarantineDecided,
    RetryGranted,
    RunCancelled,
    RunConcluded,
    Undecided,
)
from agentplane.core.recovery import in_doubt
from agentplane.engine import waits
from agentplane.engine.linking import Spec, link
from agentplane.engine.live import budget_of
from agentplane.journal import appends, leases, lists
from agentplane.journal.appends import Head
from agentplane.journal.leases import Lease
from agentplane.journal.tx import Tx


class Owner(msgspec.Struct, frozen=True):
    """Who takes the lease for the act: the process, its opening, the TTL in ms."""

    owner: str
    opening: str
    ttl_ms: int


def undecided(history: History) -> list[Undecided]:
    """The effects that nobody can account for, with the doubt each is in."""
    found = []
    named = {one.effect for one in history.conclusion.undecided} if history.conclusion is not None else set()
    for series in history.series.values():
        escalated = series.last.started.effect_key in named and not any(_by_person(said) for said in series.last.said)
        if escalated or _open_question(series):
            started = series.last.started
            found.append(Undecided(
                effect=started.effect_key or "", step=series.spot.step, phase=series.spot.phase.wire,
                kind=started.descriptor.kind, doubt=series.doubt().value,
            ))  # fmt: skip
    return found


def _by_person(said: EffectReconciled | RetryGranted) -> bool:
    return isinstance(said, RetryGranted) or said.asserted_by is not None


def _open_question(series: Series) -> bool:
    failure = series.failure()
    stored_failure = failure is not None and failure.replayed_failure and not series.last.said
    return in_doubt(series.attempts(), series.first.mutates) or (stored_failure and series.first.mutates)


def reason_text(text: str, name: str = "reason") -> str:
    """A person's sentence. Raises InvalidRequest when it is empty or too long."""
    text = text.strip()
    if not text or len(text) > bounds.TEXT_CHARS_MAX:
        raise InvalidRequest(f"A {name} of 1 to {bounds.TEXT_CHARS_MAX} characters is needed.")
    return text


def load(tx: Tx, run: str) -> tuple[lists.RunRow, History, Head]:
    row = lists.get_run(tx, run)
    stored = lists.whole_history(tx, run)
    head = Head(stored[-1].record.seq, stored[-1].hash, stored[-1].record.case) if stored else Head()
    return row, read_all(run, (item.record for item in stored)), head


def _load_only(tx: Tx, run: str, status: str, done: str) -> tuple[History, Head]:
    """A run that has ``status``; raises NotApplicable naming the one that it has."""
    row, history, head = load(tx, run)
    if row.status != status:
        raise NotApplicable(f"The run {run} is {row.status}; only a {status} run is {done}.", status=row.status)
    return history, head


def _not_unwound(run: str, history: History) -> None:
    if history.unwind is not None:
        raise NotApplicable(f"The run {run} has taken work back; it only undoes, and is not walked forward any more.")


def _append(tx: Tx, lease: Lease, head: Head, specs: list[Spec]) -> Head:
    return appends.append(tx, lease.run, lease.epoch, head, link(lease.run, lease.epoch, head, specs, tx.now_ms))


def reconcile(
    run: str,
    effect: str,
    outcome: str,
    actor: Actor,
    note: str,
    who: Owner,
    *,
    output: object = None,
    new_key: bool = False,
) -> Callable[[Tx], list[Undecided]]:
    """The unit that supplies a missing fact; its value is what stays undecided.

    Raises NotApplicable for a run that is not quarantined, UndecidedEffect for an effect that is not in doubt.
    """
    if outcome not in ("landed", "did-not-happen", "did_not_happen"):
        raise InvalidRequest("The outcome is landed or did-not-happen.")
    verdict = outcome.replace("-", "_")
    note = reason_text(note, "note")
    if new_key and verdict != "did_not_happen":
        raise InvalidRequest("A new key goes with did-not-happen only: what landed is never sent again.")

    def unit(tx: Tx) -> list[Undecided]:
        history, head = _load_only(tx, run, "quarantined", "reconciled")
        open_now = undecided(history)
        found = [
            one for one in open_now if one.effect == effect or (one.effect.startswith(effect) and len(effect) >= 8)
        ]
        if len(found) != 1:
            known = ", ".join(one.effect[:16] for one in open_now) or "none"
            raise UndecidedEffect(
                f"The effect {effect[:64]} of {run} is not in doubt; undecided are: {known}.", run=run
            )
        one = found[0]
        lease = leases.acquire(tx, run, who.owner, who.opening, who.ttl_ms, progress=True)
        members: dict[str, object] = {
            "step": one.step,
            "effect_key": one.effect,
            "verdict": verdict,
            "note": note,
            "asserted_by": actor,
            "new_key": new_key,
        }
        if one.phase != "forward":
            members["phase"] = one.phase
        if verdict == "landed":
            members["output"] = output
        _append(tx, lease, head, [(EffectReconciled, members)])
        leases.release(tx, lease)
        return [other for other in open_now if other.effect != one.effect]

    return unit


def reopen(run: str, actor: Actor, reason: str, who: Owner) -> Callable[[Tx], Lease]:
    """The unit that hands a quarantined run back to the runtime; the lease stays ours, for one pass."""
    reason = reason_text(reason)

    def unit(tx: Tx) -> Lease:
        _, head = _load_only(tx, run, "quarantined", "reopened")
        lease = leases.acquire(tx, run, who.owner, who.opening, who.ttl_ms, progress=True)
        _append(tx, lease, head, [(QuarantineDecided, {"decider": actor, "reason": reason, "decision": "reopen"})])
        return lease

    return unit


def abandon(run: str, actor: Actor, reason: str, who: Owner) -> Callable[[Tx], int]:
    """The unit that closes a quarantined run where it stands, unwinding nothing; its value is the log index."""
    reason = reason_text(reason)

    def unit(tx: Tx) -> int:
        history, head = _load_only(tx, run, "quarantined", "abandoned")
        lease = leases.acquire(tx, run, who.owner, who.opening, who.ttl_ms, progress=True)
        _append(
            tx,
            lease,
            head,
            [
                (QuarantineDecided, {"decider": actor, "reason": reason, "decision": "abandon"}),
                *waits.ended(history),
                (
                    RunConcluded,
                    {
                        "outcome": "abandoned",
                        "undecided": undecided(history)[: bounds.UNDECIDED_NAMED_MAX],
                        "live_spend": history.spend,
                    },
                ),
            ],
        )
        index = appends.seal(tx, run)
        leases.release(tx, lease)
        return index

    return unit


UNDOING: Final = frozenset({"compensation_failed", "group_quarantined"})
"""Quarantines in which something that undoes failed for certain, and may be asked again."""


def _is_finished(history: History, series: Series) -> bool:
    finished = history.finished.get(series.spot.step)
    return series.spot.phase is Phase.forward and finished is not None and finished.outcome == "succeeded"


def _may_be_asked(history: History, series: Series, undoing: bool) -> bool:
    """A group that was taken back is settled: no member of it is asked again."""
    index = series.first.group
    group = None if index is None else history.groups.get(GroupSpot(series.spot.step, series.spot.phase, index))
    if group is not None and group.settled is not None and group.settled.outcome == "aborted":
        return False
    return undoing or series.spot.phase is Phase.forward


def retry(run: str, actor: Actor, reason: str, who: Owner) -> Callable[[Tx], Lease]:
    """P9: the unit that asks the final failure at the frontier again, where its series is without doubt."""
    reason = reason_text(reason)

    def unit(tx: Tx) -> Lease:
        row, history, head = load(tx, run)
        undoing = row.status == "quarantined" and row.code in UNDOING
        if row.status != "failed" and not undoing:
            raise NotApplicable(
                f"The run {run} is {row.status}; retried is a failed run, or one whose compensation failed.",
                status=row.status,
            )
        if not undoing:
            _not_unwound(run, history)
        failed = [
            series
            for series in history.series.values()
            if series.failure() is not None
            # What a finished step swallowed is no frontier.
            and not _is_finished(history, series)
            # What a probe said of it leaves it the failure that it was.
            and not any(_by_person(said) for said in series.last.said)
            and _may_be_asked(history, series, undoing)
        ]
        if not failed:
            raise NotApplicable(f"The run {run} did not fail in an effect; `agentplane replay {run}` walks it again.")
        frontier = max(failed, key=lambda series: series.last.started.seq)
        if in_doubt(frontier.attempts(), frontier.first.mutates):
            raise UndecidedEffect(f"The failure at the frontier of {run} is in doubt; reconcile it first.", run=run)
        if frontier.landed():
            raise NotApplicable(f"The effect at the frontier of {run} took effect; it is never repeated.")
        lease = leases.acquire(tx, run, who.owner, who.opening, who.ttl_ms, progress=True)
        members: dict[str, object] = {
            "step": frontier.spot.step,
            "effect_key": frontier.last.started.effect_key,
            "granted_by": actor,
            "reason": reason,
        }
        if frontier.spot.phase is not Phase.forward:
            members["phase"] = frontier.spot.phase.wire
        _append(tx, lease, head, [(RetryGranted, members)])
        return lease

    return unit


def take(run: str, who: Owner) -> Callable[[Tx], Lease]:
    """The unit that takes a failed or exhausted run for another walk (`replay RUN`), recording nothing."""

    def unit(tx: Tx) -> Lease:
        row, history, _ = load(tx, run)
        if row.status not in ("failed", "exhausted", "running"):
            raise NotApplicable(
                f"The run {run} is {row.status}; only failed, exhausted and open runs are replayed.", status=row.status
            )
        if row.status != "running":
            _not_unwound(run, history)
        return leases.acquire(tx, run, who.owner, who.opening, who.ttl_ms, progress=True)

    return unit


def raise_ceilings(
    run: str, ceilings: Mapping[str, int], actor: Actor, reason: str, who: Owner
) -> Callable[[Tx], Lease]:
    """The unit that raises ceilings of an exhausted run and takes it for another walk. Raises BudgetFault for a ceiling
    that the run does not have, or that would not be raised."""
    reason = reason_text(reason)
    budgets.from_data(dict(ceilings))

    def unit(tx: Tx) -> Lease:
        row, history, head = load(tx, run)
        if row.status != "exhausted" and (row.status, row.code) != ("quarantined", "group_open"):
            raise NotApplicable(
                f"The run {run} is {row.status}; given more room is an exhausted run, or one whose group a ceiling "
                "stopped past its frontier.",
                status=row.status,
            )
        budgets.raised(budget_of(history) or budgets.Budget(), ceilings)
        lease = leases.acquire(tx, run, who.owner, who.opening, who.ttl_ms, progress=True)
        _append(tx, lease, head, [
            (BudgetRaised, {"raised_by": actor, "ceilings": dict(ceilings), "reason": reason}),
        ])  # fmt: skip
        return lease

    return unit


class CancelAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """``recorded`` False: somebody asked first. ``concluded``: the run ended at once (nothing executed it)."""

    recorded: bool
    requested_by: str
    concluded: bool = False


def cancel(run: str, actor: Actor, reason: str, who: Owner) -> Callable[[Tx], CancelAnswer]:
    """The unit that asks for a stop. A failed or exhausted run of which nothing stands is concluded in it; any other
    hears it at its next boundary, and one that waits is taken up by the sweep."""
    reason = reason_text(reason)

    def unit(tx: Tx) -> CancelAnswer:
        row, history, head = load(tx, run)
        if row.log_index is not None:
            raise NotApplicable(f"The run {run} is {row.status} and closed.", status=row.status)
        if row.status == "quarantined":
            raise NotApplicable(
                f"The run {run} is quarantined: a cancel would unwind around doubt; use `agentplane reconcile`, then "
                "`agentplane quarantine`.",
                status=row.status,
            )  # fmt: skip
        recorded, first = appends.request_cancel(tx, run, actor.actor, actor.basis.value, actor.uid, reason)
        done = any(record.outcome == "succeeded" for record in history.finished.values())
        if (
            row.status not in ("failed", "exhausted")
            or done
            or history.standing()
            or history.doubts()
            or history.open_groups()
            or (waits.lost(history))
        ):
            return CancelAnswer(recorded=recorded, requested_by=first)
        asked = lists.cancellation(tx, run)
        lease = leases.acquire(tx, run, who.owner, who.opening, who.ttl_ms, progress=True)
        by = actor if asked is None else Actor(actor=asked.actor, basis=Basis(asked.basis), uid=asked.uid)
        _append(tx, lease, head, [
            (RunCancelled, {"cancelled_by": by, "reason": reason if asked is None else asked.reason}),
            *waits.ended(history),
            (RunConcluded, {"outcome": "cancelled", "live_spend": history.spend}),
        ])  # fmt: skip
        appends.seal(tx, run)
        leases.release(tx, lease)
        return CancelAnswer(recorded=recorded, requested_by=first, concluded=True)

    return unit
