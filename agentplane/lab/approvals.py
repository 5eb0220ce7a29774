"""Approvals against the provider's book, row by row.

Owns the comparison, as a pure function over the worklist's rows, the journal's records and the provider's effects.
Refuses to net anything out: each deed that a person had to allow is looked at by itself. Invariant: the books agree
exactly when each such deed has one approval that was consumed at one place, with the arguments in force, and no other
deed has any.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agentplane.core.effects import Phase
from agentplane.core.records import EffectStarted, Record
from agentplane.core.tasks import action_digest
from agentplane.lab.books import path_of
from agentplane.lab.provider.audit import Effect
from agentplane.work.tasks import TaskRow

PATH = "/refunds"


@dataclass(frozen=True)
class Approvals:
    """``asked`` tasks; ``consumed``: approvals that an announcement used; ``amended`` among them; what is wrong, each
    in a sentence that names the order."""

    asked: int = 0
    consumed: int = 0
    amended: int = 0
    faults: tuple[str, ...] = ()


def order_of(task: TaskRow) -> str:
    """The order that the proposed action of a task is about; nothing for a question."""
    action = task.proposal.get("action")
    args = action.get("args") if isinstance(action, dict) else None
    return str(args.get("order")) if isinstance(args, dict) else ""


def in_force(task: TaskRow) -> dict[str, object]:
    """The arguments that the decision allows: those of the amendment, else those that were proposed."""
    amendment = (task.decision or {}).get("amendment")
    if isinstance(amendment, dict):
        return amendment
    action = task.proposal.get("action")
    return dict(action["args"]) if isinstance(action, dict) else {}


def reconcile(
    tasks: Sequence[TaskRow], records: Iterable[Record], effects: Sequence[Effect], needed: Iterable[str]
) -> Approvals:
    """``needed``: the orders whose deed on PATH a person has to allow, of work that has ended."""
    started = [one for one in records if isinstance(one, EffectStarted)]
    using: dict[str, list[EffectStarted]] = defaultdict(list)
    for one in started:
        if one.approval is not None:
            using[one.approval.task].append(one)
    by_order: dict[str, list[TaskRow]] = defaultdict(list)
    for task in tasks:
        by_order[order_of(task)].append(task)
    wanted = set(needed)
    faults = _beside(started, using, tasks, wanted)
    for order in sorted(wanted):
        rows = [row for row in effects if row.path == PATH and row.order == order]
        found = by_order.get(order, [])
        if len(found) != 1:
            faults.append(f"order {order} was asked of a person {len(found)} times")
        for task in found:
            faults += _one(order, task, using.get(task.task, []), rows)
    consumed = [task for task in tasks if using.get(task.task)]
    amended = sum(isinstance((task.decision or {}).get("amendment"), dict) for task in consumed)
    return Approvals(len(tasks), len(consumed), amended, tuple(faults))


def _beside(
    started: Iterable[EffectStarted], using: dict[str, list[EffectStarted]], tasks: Sequence[TaskRow], wanted: set[str]
) -> list[str]:
    """Deeds that needed an approval and had none, and approvals of what needed none."""
    faults = []
    for one in started:
        args = one.descriptor.args
        order = str(args.get("order")) if isinstance(args, dict) else ""
        if path_of(one.descriptor.kind) == PATH and order in wanted and one.approval is None:
            faults.append(f"order {order}: its refund was announced without an approval ({one.run})")
        if one.approval is not None and order not in wanted:
            faults.append(f"order {order}: an approval was consumed, and it needed none ({one.run})")
    known = {task.task for task in tasks}
    faults += [f"an approval of no task, {task}, was consumed" for task in sorted(set(using) - known)]
    return faults


def _one(order: str, task: TaskRow, using: Sequence[EffectStarted], rows: Sequence[Effect]) -> list[str]:
    """One task with all that was announced under its approval and all that the provider did for its order."""
    faults = []
    places = sorted({(one.run, *_place(one)) for one in using})
    if not task.approved:
        if using or rows:
            refs = ", ".join(row.ref for row in rows) or "no row"
            faults.append(f"order {order} was not approved, and was acted on: {refs} ({task.run})")
        return faults
    if len(places) != 1:
        faults.append(f"order {order}: its approval was consumed at {len(places)} places ({task.run})")
    elif places[0] != (task.run, *(task.consumed or ())):
        faults.append(f"order {order}: the task says {task.consumed}, the journal {places[0][1:]} ({task.run})")
    args = in_force(task)
    for one in using:
        digest = action_digest(one.descriptor.kind, one.descriptor.args)
        if one.descriptor.args != args or (one.approval is not None and {digest, one.approval.digest} != {task.digest}):
            faults.append(f"order {order}: what was announced is not what was approved ({task.run})")
    if len(rows) != 1:
        refs = ", ".join(row.ref for row in rows) or "none"
        faults.append(f"order {order}: one approval, and {len(rows)} refunds at the provider: {refs} ({task.run})")
    for row in rows:
        if (row.amount_minor, row.currency) != (args.get("amount_minor"), args.get("currency")):
            faults.append(
                f"order {order}: the provider has {row.amount_minor} {row.currency}, approved were "
                f"{args.get('amount_minor')} {args.get('currency')} ({row.ref})"
            )
    return faults


def _place(one: EffectStarted) -> tuple[int, int, int]:
    phase = Phase.forward if one.phase is None else Phase.from_wire(one.phase)
    return one.step or 0, int(phase), one.ordinal
