"""What an HTTP exchange says about the deed behind it, as one table.

Owns the three dispositions and the rows of the protocol's section "HTTP, as dispositions"; the rows are data,
read by `judge_http`, by the docs and by the test that enumerates them. Refuses nothing: every combination of
inputs has a verdict, and one that makes no sense is in doubt. Invariant: no verdict claims more than the
exchange proves.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Disposition(StrEnum):
    """What became of an attempt that did not succeed. The value is the wire name."""

    DID_NOT_HAPPEN = "did_not_happen"
    IN_DOUBT = "in_doubt"
    LANDED = "landed"


class HttpStage(StrEnum):
    """How far an exchange came: no byte of the request written; some written; a complete answer read."""

    BEFORE_FIRST_BYTE = "before_first_byte"
    SENT = "sent"
    ANSWERED = "answered"


class When(StrEnum):
    """The condition under which a row speaks, beside stage and status."""

    ALWAYS = "always"
    READABLE = "readable"
    FIRST_ATTEMPT = "first_attempt"
    REPLAYED = "replayed"


class HttpRow(NamedTuple):
    """One line of the table: stage, statuses from `low` to `high` (None, None: whatever the status),
    condition, and what it says. `disposition` None means done."""

    stage: HttpStage
    low: int | None
    high: int | None
    when: When
    disposition: Disposition | None
    permanent: bool = False
    retry_after: bool = False


class HttpVerdict(NamedTuple):
    """What the effect may take from an exchange.

    `done`: success, and nothing else is set. `disposition`: what became of the deed. `permanent`: the same
    request would be answered the same, so asking again is pointless. `repeatable`: asking again can do no
    harm, whatever the effect's recovery is (reads always; mutations only when nothing happened). Another
    attempt needs `repeatable`, or the recovery's leave, and never `permanent`. `retry_after_honoured`: the
    answer's `Retry-After` counts. `replayed_failure`: the provider gave back a stored failure; attempts end
    and a person decides (P8).
    """

    done: bool
    disposition: Disposition | None
    permanent: bool
    repeatable: bool
    retry_after_honoured: bool
    replayed_failure: bool


_ANSWERED = HttpStage.ANSWERED
_NOTHING, _DOUBT, _LANDED = Disposition.DID_NOT_HAPPEN, Disposition.IN_DOUBT, Disposition.LANDED

HTTP_TABLE: tuple[HttpRow, ...] = (
    HttpRow(HttpStage.BEFORE_FIRST_BYTE, None, None, When.ALWAYS, _NOTHING),
    HttpRow(HttpStage.SENT, None, None, When.ALWAYS, _DOUBT),
    HttpRow(_ANSWERED, 200, 299, When.READABLE, None),
    HttpRow(_ANSWERED, 200, 299, When.ALWAYS, _LANDED),
    HttpRow(_ANSWERED, None, None, When.REPLAYED, _DOUBT, permanent=True),
    HttpRow(_ANSWERED, 300, 399, When.ALWAYS, _DOUBT),
    HttpRow(_ANSWERED, 408, 408, When.ALWAYS, _DOUBT),
    HttpRow(_ANSWERED, 409, 409, When.FIRST_ATTEMPT, _NOTHING, permanent=True),
    HttpRow(_ANSWERED, 409, 409, When.ALWAYS, _DOUBT),
    HttpRow(_ANSWERED, 425, 425, When.ALWAYS, _DOUBT),
    HttpRow(_ANSWERED, 429, 429, When.ALWAYS, _NOTHING, retry_after=True),
    HttpRow(_ANSWERED, 400, 499, When.ALWAYS, _NOTHING, permanent=True),
    HttpRow(_ANSWERED, None, None, When.ALWAYS, _DOUBT),
)
"""Read from the top; the first row that fits speaks. The last takes 5xx, 1xx and whatever no standard
knows."""


def judge_http(
    stage: HttpStage,
    status: int | None,
    *,
    decodable: bool,
    within_bound: bool,
    earlier_attempt: bool,
    replayed_header: bool,
    mutates: bool,
) -> HttpVerdict:
    """The verdict over one exchange; total over all inputs.

    `decodable`, `within_bound`: of the answer's body. `earlier_attempt`: the series has an attempt before
    this one. `replayed_header`: the answer says `Idempotent-Replayed: true`. A read has no deed that a stored
    failure could hide, so the header means nothing there.
    """
    if stage is HttpStage.BEFORE_FIRST_BYTE and status is not None:
        # An answer to a request that was never written: the caller's account cannot be right.
        stage = HttpStage.SENT
    holds = {
        When.ALWAYS: True,
        When.READABLE: decodable and within_bound,
        When.FIRST_ATTEMPT: not earlier_attempt,
        When.REPLAYED: replayed_header and mutates and status is not None,
    }
    row = next(row for row in HTTP_TABLE if row.stage is stage and _covers(row, status) and holds[row.when])
    failed = row.disposition is not None
    return HttpVerdict(
        done=not failed,
        disposition=row.disposition,
        permanent=row.permanent,
        repeatable=failed and (not mutates or row.disposition is _NOTHING),
        retry_after_honoured=row.retry_after,
        replayed_failure=row.when is When.REPLAYED,
    )


def _covers(row: HttpRow, status: int | None) -> bool:
    if row.low is None or row.high is None:
        return True
    return status is not None and row.low <= status <= row.high
