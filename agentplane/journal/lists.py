"""The lists: runs, histories, acts, read a page at a time in a total order.

Owns every query that a person's list is made from. Refuses unbounded pages. Invariant: lists order by (time,
id), and a page's cursor names the last row it gave, so paging neither repeats nor skips a row that stood at
its start.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

import msgspec

from agentplane.core import bounds, chain, ids
from agentplane.core.codec import decode_body
from agentplane.core.errors import InvalidRequest, JournalCorrupt, NotFound, UnreadableRecord
from agentplane.core.plan import Plan, from_data, terminal
from agentplane.core.records import PlanFrozen, Record, StepFinished
from agentplane.journal.tx import Row, Tx, number, raw, text

T = TypeVar("T")


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """One run as the index has it. ``status``: running, suspended, or its last conclusion's outcome. Times: ms UTC."""

    run: str
    capability: str
    status: str
    reason: str | None
    code: str | None
    admitted_ms: int
    concluded_ms: int | None
    head_seq: int
    log_index: int | None
    incarnation: str
    held: bool
    landed: int
    own: bool
    case: str | None = None


class Stored(msgspec.Struct, frozen=True):
    """One record as stored: its typed form, exact bytes and hash."""

    record: Record
    body: bytes
    hash: bytes


COLUMNS = (
    "run, capability, status, reason, code, admitted_ms, concluded_ms, head_seq, log_index, incarnation, "
    "held, landed, own, case_id"
)


def _run_row(row: Row) -> RunRow:
    optional_text = [None if row[i] is None else text(row[i]) for i in (3, 4)]
    return RunRow(
        run=text(row[0]),
        capability=text(row[1]),
        status=text(row[2]),
        reason=optional_text[0],
        code=optional_text[1],
        admitted_ms=number(row[5]),
        concluded_ms=None if row[6] is None else number(row[6]),
        head_seq=number(row[7]),
        log_index=None if row[8] is None else number(row[8]),
        incarnation=text(row[9]),
        held=bool(row[10]),
        landed=number(row[11]),
        own=bool(row[12]),
        case=None if row[13] is None else text(row[13]),
    )


def page_limit(limit: int) -> int:
    """Raises InvalidRequest outside 1..PAGE_ROWS_MAX."""
    if not 1 <= limit <= bounds.PAGE_ROWS_MAX:
        raise InvalidRequest(f"A page has 1 to {bounds.PAGE_ROWS_MAX} rows; {limit} were asked for.")
    return limit


def get_run(tx: Tx, run: str) -> RunRow:
    """Raises NotFound."""
    row = tx.one(f"SELECT {COLUMNS} FROM run WHERE tenant = ? AND run = ?", tx.tenant, run)
    if row is None:
        raise NotFound(f"There is no run {run}.", run=run)
    return _run_row(row)


def runs(
    tx: Tx,
    *,
    status: str | None = None,
    limit: int = bounds.LIST_PAGE,
    before: tuple[int, str] | None = None,
    own: bool = False,
) -> list[RunRow]:
    """Newest first by (admitted, run); ``before`` is the pair of the last row already seen."""
    at_ms, run = before or (2**62, "")
    where = "own = ?" if status is None else "status = ?"
    rows = tx.all(
        f"SELECT {COLUMNS} FROM run WHERE tenant = ? AND {where} AND (admitted_ms, run) < (?, ?) "
        "ORDER BY admitted_ms DESC, run DESC LIMIT ?",
        tx.tenant, int(own) if status is None else status, at_ms, run, page_limit(limit),
    )  # fmt: skip
    return [_run_row(row) for row in rows]


def runs_of_case(
    tx: Tx, case: str, limit: int = bounds.LIST_PAGE, before: tuple[int, str] | None = None
) -> list[RunRow]:
    """Runs of a case, newest first by (admitted, run); ``before`` is the pair of the last row already seen."""
    rows = tx.all(
        f"SELECT {COLUMNS} FROM run WHERE tenant = ? AND case_id = ? AND (admitted_ms, run) < (?, ?) "
        "ORDER BY admitted_ms DESC, run DESC LIMIT ?",
        tx.tenant, case, *(before or (NEVER_MS, "")), page_limit(limit),
    )  # fmt: skip
    return [_run_row(row) for row in rows]


def every_run(read: Read) -> Iterator[RunRow]:
    """All runs of callers, newest first, a page in a transaction each: for audits that want them all."""
    before: tuple[int, str] | None = None
    while True:
        page = read(functools.partial(runs, limit=bounds.LIST_PAGE, before=before))
        yield from page
        if len(page) < bounds.LIST_PAGE:
            return
        before = (page[-1].admitted_ms, page[-1].run)


def count_by_status(tx: Tx) -> dict[str, int]:
    rows = tx.all("SELECT status, count(*) FROM run WHERE tenant = ? AND own = 0 GROUP BY status", tx.tenant)
    return {text(row[0]): number(row[1]) for row in rows}


def history(tx: Tx, run: str, *, after: int = 0, limit: int = bounds.HISTORY_PAGE, upto: int = 2**62) -> list[Stored]:
    """Records of ``run`` with ``after < seq <= upto``, ascending, each checked to have its kind's shape.

    Raises JournalCorrupt naming run and seq for a record that is not what its row says.
    """
    rows = tx.all(
        "SELECT seq, kind, hash, body FROM record WHERE tenant = ? AND run = ? AND seq > ? AND seq <= ? "
        "ORDER BY seq LIMIT ?",
        tx.tenant, run, after, upto, page_limit(limit),
    )  # fmt: skip
    return [stored(run, row) for row in rows]


def stored(run: str, row: Row) -> Stored:
    """The record of a row of (seq, kind, hash, body). Raises JournalCorrupt and UnreadableRecord, naming run and
    seq."""
    seq, body = number(row[0]), raw(row[3])
    try:
        record = decode_body(body)
    except UnreadableRecord as error:
        raise UnreadableRecord(f"Run {run}, record {seq}: {error.message}", run=run, seq=seq) from None
    if record.seq != seq or record.run != run or type(record).__name__ != row[1]:
        raise JournalCorrupt(f"Run {run}, record {seq}: the row and its body disagree.", run=run, seq=seq)
    return Stored(record, body, raw(row[2]))


def verify(run: str, records: list[Stored], prev: bytes = chain.GENESIS) -> bytes:
    """Check the links of consecutive records behind ``prev``; the last hash. Raises JournalCorrupt naming run
    and seq."""
    for item in records:
        if chain.link(prev, item.body) != item.hash:
            seq = item.record.seq
            raise JournalCorrupt(f"Run {run}, record {seq}: the hash chain does not hold.", run=run, seq=seq)
        prev = item.hash
    return prev


def whole_history(tx: Tx, run: str) -> list[Stored]:
    """Every record of ``run`` in one transaction: for units, whose transaction is the writer's own."""
    return read_history(lambda body: body(tx), run)


class Waiting(msgspec.Struct, frozen=True):
    """A suspended run, why it waits, and its first timer's instant, ms UTC; None when no timer will wake it."""

    run: str
    reason: str | None
    until_ms: int | None

    @property
    def cursor(self) -> tuple[int, str]:
        return NEVER_MS if self.until_ms is None else self.until_ms, self.run


NEVER_MS = ids.MAX_MS
"""Where a run without a timer stands in the order of what is due, as ``run.until_ms`` has it: behind every instant, and
still within a cursor."""


def waiting(tx: Tx, limit: int = bounds.LIST_PAGE, after: tuple[int, str] | None = None) -> list[Waiting]:
    """Suspended runs by (first due, run), those that no timer wakes last; ``after`` is the last row's ``cursor``."""
    rows = tx.all(
        "SELECT run, reason, until_ms FROM run WHERE tenant = ? AND status = 'suspended' "
        "AND (until_ms, run) > (?, ?) ORDER BY until_ms, run LIMIT ?",
        tx.tenant, *(after or (-NEVER_MS, "")), page_limit(limit),
    )  # fmt: skip
    return [
        Waiting(
            text(row[0]), None if row[1] is None else text(row[1]), None if row[2] == NEVER_MS else number(row[2])
        )
        for row in rows
    ]  # fmt: skip


class GroupRow(msgspec.Struct, frozen=True):
    """One effect group of a run: where it stands (``phase`` by number), and its name."""

    run: str
    step: int
    phase: int
    index: int
    name: str

    @property
    def cursor(self) -> tuple[str, int, int, int]:
        return self.run, self.step, self.phase, self.index


def unsettled_groups(
    tx: Tx, limit: int = bounds.LIST_PAGE, after: tuple[str, int, int, int] | None = None
) -> list[GroupRow]:
    """Groups that were opened and never settled in a run that is sealed, by place: nobody will settle them any more."""
    rows = tx.all(
        "SELECT grp.run, step, phase, idx, name FROM grp INDEXED BY grp_open CROSS JOIN run USING (tenant, run) "
        "WHERE tenant = ? AND outcome IS NULL AND log_index IS NOT NULL AND (run, step, phase, idx) > (?, ?, ?, ?) "
        "ORDER BY run, step, phase, idx LIMIT ?",
        tx.tenant, *(after or ("", 0, 0, 0)), page_limit(limit),
    )  # fmt: skip
    return [GroupRow(text(row[0]), number(row[1]), number(row[2]), number(row[3]), text(row[4])) for row in rows]


def failed_with_landed(tx: Tx, limit: int = bounds.LIST_PAGE, before: tuple[int, str] | None = None) -> list[RunRow]:
    """Failed runs whose landed work still stands, newest first by (admitted, run): somebody resumes or cancels them."""
    rows = tx.all(
        f"SELECT {COLUMNS} FROM run INDEXED BY run_standing WHERE tenant = ? AND status = 'failed' "
        "AND landed > 0 AND (admitted_ms, run) < (?, ?) ORDER BY admitted_ms DESC, run DESC LIMIT ?",
        tx.tenant, *(before or (NEVER_MS, "")), page_limit(limit),
    )  # fmt: skip
    return [_run_row(row) for row in rows]


class Read(Protocol):
    """A way to run a function over a transaction: one it is already in, or a short one of its own each time."""

    def __call__(self, body: Callable[[Tx], T], /) -> T: ...


def read_history(read: Read, run: str) -> list[Stored]:
    """Every record up to the head that stands at the start, each page in a transaction of ``read``'s (W11),
    its chain verified against that head. Raises NotFound, and JournalCorrupt naming run and seq."""
    row = read(lambda tx: tx.one("SELECT head_seq, head_hash FROM run WHERE tenant = ? AND run = ?", tx.tenant, run))
    if row is None:
        raise NotFound(f"There is no run {run}.", run=run)
    upto = number(row[0])
    found: list[Stored] = []
    prev = chain.GENESIS
    while len(found) < upto:
        after = len(found)
        page = read(functools.partial(history, run=run, after=after, limit=bounds.PAGE_ROWS_MAX, upto=upto))
        if not page or page[0].record.seq != after + 1:
            raise JournalCorrupt(f"Run {run}, record {after + 1}: it is missing.", run=run, seq=after + 1)
        prev = verify(run, page, prev)
        found += page
    if prev != row[1]:
        raise JournalCorrupt(f"Run {run}, record {upto}: the head is not the last record.", run=run, seq=upto)
    return found


def value(tx: Tx, digest: bytes) -> object:
    """The value whose canonical bytes are kept under ``digest``. Raises JournalCorrupt when they are gone or are
    others."""
    kept = blob(tx, digest)
    if hashlib.sha256(kept).digest() != digest:
        raise JournalCorrupt(f"The value {digest.hex()} is not what it was when it was kept.")
    return msgspec.json.decode(kept)


def blob(tx: Tx, digest: bytes) -> bytes:
    """A value kept beside its record. Raises JournalCorrupt when it is gone."""
    row = tx.one("SELECT bytes FROM blob WHERE tenant = ? AND digest = ?", tx.tenant, digest)
    if row is None:
        raise JournalCorrupt(f"The value {digest.hex()} is not in the store.")
    return raw(row[0])


def admission(tx: Tx, key: str) -> tuple[str, bytes] | None:
    """The run that holds an admission key, and the digest of what it asked."""
    row = tx.one("SELECT run, digest FROM admission WHERE tenant = ? AND key = ?", tx.tenant, key)
    return None if row is None else (text(row[0]), raw(row[1]))


class Cancel(msgspec.Struct, frozen=True):
    actor: str
    basis: str
    uid: int | None
    reason: str


def cancellation(tx: Tx, run: str) -> Cancel | None:
    row = tx.one("SELECT actor, basis, uid, reason FROM cancel WHERE tenant = ? AND run = ?", tx.tenant, run)
    if row is None:
        return None
    return Cancel(text(row[0]), text(row[1]), None if row[2] is None else number(row[2]), text(row[3]))


def get_state(tx: Tx, name: str) -> str | None:
    """A row of the plane's own state (pause, held), as JSON text."""
    row = tx.one("SELECT value FROM plane_state WHERE tenant = ? AND name = ?", tx.tenant, name)
    return None if row is None else text(row[0])


def set_state(tx: Tx, name: str, value: str | None) -> None:
    if value is None:
        tx.run("DELETE FROM plane_state WHERE tenant = ? AND name = ?", tx.tenant, name)
    else:
        tx.run(
            "INSERT INTO plane_state (tenant, name, value, at_ms) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (tenant, name) DO UPDATE SET value = excluded.value, at_ms = excluded.at_ms",
            tx.tenant, name, value, tx.now_ms,
        )  # fmt: skip


def plan_of(tx: Tx, run: str) -> Plan | None:
    """The plan in force: the last that was frozen; None when there is none."""
    row = tx.one(
        "SELECT body FROM record WHERE tenant = ? AND run = ? AND kind = 'PlanFrozen' ORDER BY seq DESC LIMIT 1",
        tx.tenant, run,
    )  # fmt: skip
    frozen = None if row is None else decode_body(raw(row[0]))
    return from_data(frozen.plan) if isinstance(frozen, PlanFrozen) else None


def run_output(tx: Tx, run: str) -> object:
    """The output of a run's lowest terminal step, as it was recorded; None when there is none."""
    plan = plan_of(tx, run)
    if plan is None:
        return None
    lowest = terminal(plan)
    rows = tx.all(
        "SELECT body FROM record WHERE tenant = ? AND run = ? AND kind = 'StepFinished' ORDER BY seq DESC",
        tx.tenant,
        run,
    )
    for row in rows:
        record = decode_body(raw(row[0]))
        if isinstance(record, StepFinished) and record.step == lowest and record.outcome == "succeeded":
            if record.blob is None:
                return record.output
            return value(tx, bytes.fromhex(record.blob.digest))
    return None
