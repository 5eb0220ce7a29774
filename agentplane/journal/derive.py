"""What a record implies in the index: the run's row, its effects, groups, waits and obligations, in its own unit.

Owns the state of every attempt and the two counts of a run (landed work that stands, announcements without an outcome).
Refuses a second announcement under one key, an approval consumed twice, a success over an open announcement (P14), and
a run that ends cancelled over landed work (P15). Invariant: the index can be rebuilt from the records and is never an
authority over them; a wait that has its outcome has no row that could end it again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from agentplane.core.effects import Phase
from agentplane.core.errors import DuplicateEffect, LandedWork, NotApplicable, OpenEffects, ensure, violated
from agentplane.core.history import AWAIT, TASK, WAITS
from agentplane.core.instants import from_text
from agentplane.core.records import (
    CLOSING,
    BudgetRaised,
    CaseBound,
    DeadlineRegistered,
    DeadlineTransition,
    EffectDone,
    EffectFailed,
    EffectReconciled,
    EffectStarted,
    GroupOpened,
    GroupSettled,
    QuarantineDecided,
    Record,
    RetryGranted,
    RunAdmitted,
    RunCancelled,
    RunConcluded,
    RunSuspended,
    StepCompensated,
    StepFinished,
    StepKept,
    UnwindBegan,
)
from agentplane.journal import obligations, subscriptions, timers, worklist
from agentplane.journal.tx import Row, Tx, Value, number, raw, text

Change = tuple[int, int]
"""By how many a record changes a run's counts of landed work and of announcements without an outcome."""
NO_CHANGE: Final[Change] = (0, 0)

STANDING: Final = frozenset({"done", "landed", "in_doubt", "inconclusive"})
"""States of an attempt that took effect, or may have; ``run.landed`` counts those of mutations that go forward."""
STANDS: Final = "state IN ('done', 'landed', 'in_doubt', 'inconclusive')"
TAKEN_OFF: Final = frozenset({"undone", "kept"})
"""States of an attempt that an unwind or an aborted group has dealt with: taken back, or left standing by right."""


def _phase(record: Record) -> Phase:
    return Phase.forward if record.phase is None else Phase.from_wire(record.phase)


def _effect_started(tx: Tx, record: EffectStarted) -> Change:
    ensure(
        record.effect_key is not None and record.step is not None,
        "INV-03 an announcement names its key and step",
    )
    kind = record.descriptor.kind
    waits = kind in WAITS
    if record.approval is not None:
        place = worklist.Place(record.step or 0, _phase(record), record.ordinal)
        worklist.consume(tx, record.approval.task, record.run, place, record.approval.digest)
    try:
        tx.run(
            "INSERT INTO effect (tenant, run, key, step, phase, ordinal, attempt, mutates, state, grp, wait, lacks) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'announced', ?, ?, ?)",
            tx.tenant,
            record.run,
            bytes.fromhex(record.effect_key or ""),
            record.step,
            _phase(record),
            record.ordinal,
            record.attempt,
            int(record.mutates),
            record.group,
            kind if waits else None,
            _rows_of(record) if waits else 0,
        )
    except tx.dialect.unique_violation:
        raise DuplicateEffect(
            f"The run {record.run} has announced the effect {record.effect_key} before.",
            run=record.run, effect=record.effect_key,
        ) from None  # fmt: skip
    return 0, 1


def _rows_of(record: EffectStarted) -> int:
    """How many rows wake this wait: a timer, a task, or a subscription and the timer of its end."""
    args = record.descriptor.args
    ends = record.descriptor.kind == AWAIT and isinstance(args, dict) and args.get("until") is not None
    return 2 if ends else 1


def _effect_ended(tx: Tx, record: EffectDone | EffectFailed) -> Change:
    """An announcement has one outcome (P3)."""
    after = "done" if isinstance(record, EffectDone) else record.disposition.value
    ended = tx.one(
        "UPDATE effect SET state = ? WHERE tenant = ? AND run = ? AND key = ? AND state = 'announced' "
        "RETURNING mutates AND phase = 0, wait",
        after, tx.tenant, record.run, bytes.fromhex(record.effect_key or ""),
    )  # fmt: skip
    if ended is None:
        state, *_ = _effect_row(tx, record)
        violated(f"INV-04 an announcement has one outcome ({record.run}, record {record.seq}); this one is {state!r}")
    if ended[1] is not None:
        _wait_ended(tx, record, text(ended[1]))
    return int(bool(ended[0]) and after in STANDING), -1


def _wait_ended(tx: Tx, record: EffectDone | EffectFailed, wait: str) -> None:
    """Whatever ended it, nothing may end it again: its rows go in the unit of its outcome."""
    key = bytes.fromhex(record.effect_key or "")
    timers.disarm(tx, record.run, key)
    if wait == AWAIT:
        subscriptions.disarm(tx, record.run, key)
    if wait == TASK:
        worklist.settle(tx, record.run, key, told=isinstance(record, EffectDone))


def _effect_reconciled(tx: Tx, record: EffectReconciled) -> Change:
    """A verdict; what is done or has landed may only be said to have landed. Raises NotApplicable."""
    state, counts, *place = _effect_row(tx, record)
    if state in TAKEN_OFF or (state == "did_not_happen" and _series_is_settled(tx, record, *place)):
        if record.verdict != "landed":
            raise NotApplicable(f"The effect {record.effect_key} was settled by its unwinding.", run=record.run)
        return NO_CHANGE
    if state in ("done", "landed") and record.verdict != "landed":
        raise NotApplicable(f"The effect {record.effect_key} took place; no verdict undoes that.", run=record.run)
    if state == "done":
        return NO_CHANGE
    after = "in_doubt" if record.early and record.verdict != "landed" else record.verdict
    _set_state(tx, record, after)
    change = (after in STANDING) - (state in STANDING)
    if after == "did_not_happen":
        # The verdict is about the whole series: earlier attempts in doubt did not happen either (P2).
        change -= tx.run(
            "UPDATE effect SET state = 'did_not_happen' WHERE tenant = ? AND run = ? AND step = ? "
            "AND phase = ? AND ordinal = ? AND state IN ('in_doubt', 'inconclusive')",
            tx.tenant, record.run, *place,
        )  # fmt: skip
    return change if counts else 0, -(state == "announced")


def _series_is_settled(tx: Tx, record: Record, *place: Value) -> bool:
    """Whether an earlier attempt at the place was dealt with: then nothing said of a later one counts again."""
    row = tx.one(
        "SELECT 1 FROM effect WHERE tenant = ? AND run = ? AND step = ? AND phase = ? AND ordinal = ? "
        "AND state IN ('undone', 'kept') LIMIT 1",
        tx.tenant, record.run, *place,
    )  # fmt: skip
    return row is not None


def _effect_row(tx: Tx, record: Record) -> Row:
    row = tx.one(
        "SELECT state, mutates AND phase = 0, step, phase, ordinal FROM effect "
        "WHERE tenant = ? AND run = ? AND key = ?",
        tx.tenant, record.run, bytes.fromhex(record.effect_key or ""),
    )  # fmt: skip
    if row is None:
        violated(f"INV-04 an outcome follows its announcement ({record.run}, record {record.seq})")
    return row


def _set_state(tx: Tx, record: Record, state: str) -> None:
    tx.run(
        "UPDATE effect SET state = ? WHERE tenant = ? AND run = ? AND key = ?",
        state, tx.tenant, record.run, bytes.fromhex(record.effect_key or ""),
    )  # fmt: skip


def open_effects(tx: Tx, run: str, step: int | None = None, group: tuple[Phase, int] | None = None) -> list[str]:
    """Hex keys of announcements without an outcome, of the run, of one step, or of one group of that step; reads the
    run's effects only where its count says that there are some."""
    counted = tx.one("SELECT open FROM run WHERE tenant = ? AND run = ?", tx.tenant, run)
    if counted is None or not counted[0]:
        return []
    # Steps side by side ask this while others of the run are in flight: the index holds the open ones of every step but
    # the first, so that the one step of a plain run pays nothing for it.
    where = "" if step is None else " AND step = ?" if step == 0 else " AND step = ? AND step > 0"
    params: tuple[int, ...] = () if step is None else (step,)
    if group is not None:
        where, params = where + " AND phase = ? AND grp = ?", (*params, *group)
    rows = tx.all(
        "SELECT key FROM effect WHERE tenant = ? AND run = ? AND state = 'announced'" + where + " ORDER BY key",
        tx.tenant,
        run,
        *params,
    )
    return [raw(row[0]).hex() for row in rows]


def _step_finished(tx: Tx, record: StepFinished) -> None:
    if record.outcome == "succeeded" and open_effects(tx, record.run, record.step):
        raise OpenEffects(f"Step {record.step} of {record.run} has an announcement without an outcome.", run=record.run)


LANDED: Final = "SELECT landed FROM run WHERE tenant = ? AND run = ?"
AGAIN: Final = frozenset({"failed", "exhausted", "quarantined"})
"""Outcomes that a person or a raised ceiling resumes: the wait is armed again when it is reached again."""


def _run_concluded(tx: Tx, record: RunConcluded) -> None:
    if record.outcome in ("succeeded", "cancelled") and open_effects(tx, record.run):
        raise OpenEffects(f"The run {record.run} has an announcement without an outcome.", run=record.run)
    if record.outcome == "cancelled" and number((tx.one(LANDED, tx.tenant, record.run) or (0,))[0]):
        raise LandedWork(f"The run {record.run} has landed work that was not taken back (P15).", run=record.run)
    # Nothing wakes a run that has ended.
    if timers.disarm_run(tx, record.run) and record.outcome not in AGAIN:
        violated(f"INV-11 a run that nothing may resume ends without a timer ({record.run})")
    subscriptions.disarm_run(tx, record.run)
    if record.outcome in CLOSING:
        worklist.withdraw_run(tx, record.run)
        tx.run("UPDATE cancel SET heard = 1 WHERE tenant = ? AND run = ? AND heard = 0", tx.tenant, record.run)
    tx.run(
        "UPDATE run SET status = ?, reason = ?, code = ?, concluded_ms = ? WHERE tenant = ? AND run = ?",
        record.outcome, record.reason, record.code, tx.now_ms, tx.tenant, record.run,
    )  # fmt: skip


def _suspended(tx: Tx, record: RunSuspended) -> None:
    tx.run(
        "UPDATE run SET status = 'suspended', reason = ?, code = NULL WHERE tenant = ? AND run = ?",
        record.reason, tx.tenant, record.run,
    )  # fmt: skip


def resumed(tx: Tx, run: str) -> None:
    """The run goes on: its row says running, and no longer why it did not."""
    tx.run("UPDATE run SET status = 'running', reason = NULL, code = NULL WHERE tenant = ? AND run = ?", tx.tenant, run)


def _reopened(tx: Tx, record: RetryGranted | QuarantineDecided | UnwindBegan | BudgetRaised) -> None:
    if isinstance(record, QuarantineDecided) and record.decision == "abandon":
        return
    resumed(tx, record.run)


def _group_opened(tx: Tx, record: GroupOpened) -> None:
    ensure(record.step is not None, "INV-12 a group stands in a step")
    try:
        tx.run(
            "INSERT INTO grp (tenant, run, step, phase, idx, name) VALUES (?, ?, ?, ?, ?, ?)",
            tx.tenant, record.run, record.step, _phase(record), record.index, record.group,
        )  # fmt: skip
    except tx.dialect.unique_violation:
        violated(f"INV-12 a group is opened once ({record.run}, record {record.seq})")


def _group_settled(tx: Tx, record: GroupSettled) -> Change | None:
    """Committed and aborted are said of calls that have an outcome; an aborted group's work stands no more."""
    phase = _phase(record)
    if record.outcome != "quarantined" and open_effects(tx, record.run, record.step, (phase, record.index)):
        raise OpenEffects(f"The group {record.group!r} of {record.run} has an announcement without an outcome.",
                          run=record.run)  # fmt: skip
    settled = tx.run(
        "UPDATE grp SET outcome = ? WHERE tenant = ? AND run = ? AND step = ? AND phase = ? AND idx = ?",
        record.outcome, tx.tenant, record.run, record.step, phase, record.index,
    )  # fmt: skip
    ensure(settled == 1, f"INV-12 a settlement follows its group's opening ({record.run}, record {record.seq})")
    if record.outcome != "aborted":
        return None
    where = "step = ? AND phase = ? AND grp = ?"
    return _take_off(tx, record.run, "undone", where, record.step or 0, phase, record.index)


def _step_undone(tx: Tx, record: StepCompensated | StepKept) -> Change:
    """What the step did going forward stands no more, or stands by right; both only without a call in the air."""
    if open_effects(tx, record.run, record.step):
        raise OpenEffects(f"Step {record.step} of {record.run} has an announcement without an outcome.", run=record.run)
    after = "undone" if isinstance(record, StepCompensated) else "kept"
    return _take_off(tx, record.run, after, "step = ? AND phase = ?", record.step or 0, Phase.forward)


def _take_off(tx: Tx, run: str, after: str, where: str, *place: int) -> Change:
    """Set standing attempts at ``place`` aside; only mutations that went forward were counted."""
    rows = tx.all(
        f"UPDATE effect SET state = ? WHERE tenant = ? AND run = ? AND {where} AND {STANDS} "
        "RETURNING mutates AND phase = 0",
        after, tx.tenant, run, *place,
    )  # fmt: skip
    return -sum(number(row[0]) for row in rows), 0


def _cancelled(tx: Tx, record: RunCancelled) -> None:
    """The request beside the chain was heard: whoever looks for unheard ones need not take the run up again."""
    tx.run("UPDATE cancel SET heard = 1 WHERE tenant = ? AND run = ?", tx.tenant, record.run)


def _admitted(tx: Tx, record: RunAdmitted) -> None:
    ensure(record.seq == 1, "INV-05 a run begins with its admission")


def _case_bound(tx: Tx, record: CaseBound) -> None:
    ensure(record.case is not None, "INV-13 a run that is bound to a case names it")
    bound = tx.run(
        "UPDATE run SET case_id = ? WHERE tenant = ? AND run = ? AND case_id IS NULL",
        record.case, tx.tenant, record.run,
    )  # fmt: skip
    ensure(bound == 1, f"INV-13 a run is bound to one case, and once ({record.run})")


def _deadline_registered(tx: Tx, record: DeadlineRegistered) -> None:
    obligations.register(
        tx, record.case or record.run, record.name, from_text(record.resolved_at), from_text(record.warn_at),
        record.run, record.calendar_digest,
    )  # fmt: skip


def _deadline_moved(tx: Tx, record: DeadlineTransition) -> None:
    obligations.move(tx, record.case or record.run, record.name, record.before, record.to)


COUNTED: Final = (StepFinished, RunConcluded, GroupSettled, StepCompensated, StepKept)
"""What asks for the run's counts, and so must find them as the records before it left them."""

DERIVE: Final[dict[type[Record], Callable[[Tx, Any], Change | None]]] = {
    RunAdmitted: _admitted,
    CaseBound: _case_bound,
    DeadlineRegistered: _deadline_registered,
    DeadlineTransition: _deadline_moved,
    RunCancelled: _cancelled,
    EffectStarted: _effect_started,
    EffectDone: _effect_ended,
    EffectFailed: _effect_ended,
    EffectReconciled: _effect_reconciled,
    StepFinished: _step_finished,
    GroupOpened: _group_opened,
    GroupSettled: _group_settled,
    StepCompensated: _step_undone,
    StepKept: _step_undone,
    RunSuspended: _suspended,
    UnwindBegan: _reopened,
    BudgetRaised: _reopened,
    RunConcluded: _run_concluded,
    RetryGranted: _reopened,
    QuarantineDecided: _reopened,
}
