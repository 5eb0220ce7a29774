"""The row of a task: what it is opened with, and what is read back of it.

Owns the columns of the table of tasks and their types. Refuses to judge and to write. Invariant: what a column cannot
be read as is an error, and never a default.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from agentplane.core import bounds, canonical
from agentplane.core import tasks as rules
from agentplane.core.deciding import Output
from agentplane.core.errors import JournalCorrupt
from agentplane.core.records import Actor, Basis
from agentplane.core.tasks import TaskFacts
from agentplane.journal.tx import Row, Value, number, raw, text
from agentplane.journal.worklist import TOLD


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """What a task is opened with: its id, the wait that it is (run and key, 32 bytes), the case of the run, the
    capability of the run, the end of its window, who is barred, and the recorded proposal."""

    task: str
    run: str
    key: bytes
    case: str | None
    kind: str
    due_ms: int | None
    excluded: tuple[str, ...]
    proposal: Output


class Action(msgspec.Struct, frozen=True):
    """What the row takes over from a proposed action."""

    digest: str


class Asked(msgspec.Struct, frozen=True):
    """What the row takes over from a proposal."""

    audience: tuple[str, ...]
    least_basis: str
    four_eyes: bool
    priority: str
    on_expiry: str
    escalate_to: tuple[str, ...] | None = None
    action: Action | None = None


class TaskRow(msgspec.Struct, frozen=True, kw_only=True):
    """One task. ``priority``: 0 (low) to 3 (urgent); ``digest``: of the action in force; ``decision``: the output of
    its wait; ``delivered``: its run was told; ``consumed``: step, phase and ordinal of the effect that the approval was
    consumed by. Times: ms UTC."""

    task: str
    run: str
    key: bytes
    case: str | None
    kind: str
    priority: int
    state: str
    created_ms: int
    due_ms: int | None
    on_expiry: str
    escalate_to: tuple[str, ...]
    audience: tuple[str, ...]
    excluded: tuple[str, ...]
    least_basis: str
    four_eyes: bool
    assignee: str | None
    assignee_basis: str | None
    assignee_uid: int | None
    claimed_ms: int | None
    digest: str | None
    approved: bool | None
    decided_by: Actor | None
    decided_ms: int | None
    delivered: bool
    consumed: tuple[int, int, int] | None
    decision: Output | None
    proposal: Output

    @property
    def cursor(self) -> tuple[int, int, str]:
        """Its place in the queue."""
        return self.priority, self.created_ms, self.task

    def facts(self) -> TaskFacts:
        return TaskFacts(
            state=self.state, assignee=self.assignee, audience=self.audience, excluded=self.excluded,
            least_basis=self.least_basis, four_eyes=self.four_eyes,
        )  # fmt: skip

    def version(self) -> str:
        """The digest that a decision on this row names."""
        return rules.version_digest(
            task=self.task, proposal=canonical.encode(self.proposal), audience=self.audience, excluded=self.excluded,
            least_basis=self.least_basis, four_eyes=self.four_eyes, priority=self.priority, due_ms=self.due_ms,
            on_expiry=self.on_expiry, escalate_to=self.escalate_to, state=self.state,
        )  # fmt: skip


COLUMNS: Final = (
    "task, run, key, case_id, kind, priority, state, created_ms, due_ms, on_expiry, escalate_to, audience, excluded, "
    "least_basis, four_eyes, assignee, assignee_basis, assignee_uid, claimed_ms, digest, approved, decided_by, "
    "decided_basis, decided_uid, decided_ms, delivered, used_step, used_phase, used_ordinal, decision, proposal"
)
NAMES: Final = COLUMNS.split(", ")


def task_row(row: Row) -> TaskRow:
    """The task of a row of COLUMNS. Raises JournalCorrupt."""
    given = dict(zip(NAMES, row, strict=True))
    by = None
    if given["decided_by"] is not None:
        basis = Basis(text(given["decided_basis"]))
        by = Actor(actor=text(given["decided_by"]), basis=basis, uid=_number(given["decided_uid"]))
    place = tuple(_number(given[name]) or 0 for name in ("used_step", "used_phase", "used_ordinal"))
    decision, approved = given["decision"], given["approved"]
    return TaskRow(
        task=text(given["task"]), run=text(given["run"]), key=raw(given["key"]), case=_text(given["case_id"]),
        kind=text(given["kind"]), priority=number(given["priority"]), state=text(given["state"]),
        created_ms=number(given["created_ms"]), due_ms=_number(given["due_ms"]), on_expiry=text(given["on_expiry"]),
        escalate_to=_names(given["escalate_to"]), audience=_names(given["audience"]),
        excluded=_names(given["excluded"]), least_basis=text(given["least_basis"]), four_eyes=bool(given["four_eyes"]),
        assignee=_text(given["assignee"]), assignee_basis=_text(given["assignee_basis"]),
        assignee_uid=_number(given["assignee_uid"]), claimed_ms=_number(given["claimed_ms"]),
        digest=_text(given["digest"]), approved=None if approved is None else bool(approved), decided_by=by,
        decided_ms=_number(given["decided_ms"]), delivered=given["delivered"] == TOLD,
        consumed=None if given["used_step"] is None else (place[0], place[1], place[2]),
        decision=None if decision is None else _data(raw(decision)), proposal=_data(raw(given["proposal"])),
    )  # fmt: skip


def _text(value: Value) -> str | None:
    return None if value is None else text(value)


def _number(value: Value) -> int | None:
    return None if value is None else number(value)


def _names(value: Value) -> tuple[str, ...]:
    return tuple(msgspec.json.decode(text(value), type=list[str]))


def _data(value: bytes) -> Output:
    # A decision holds an amendment or an answer, each as large as a proposal may be.
    found = canonical.decode(value, max_bytes=4 * bounds.PROPOSAL_BYTES_MAX)
    if not isinstance(found, dict):
        raise JournalCorrupt("A task's proposal or decision is no object.")
    return found


def names_text(names: Sequence[str]) -> str:
    """Names as a column holds them."""
    return canonical.encode(list(names)).decode()
