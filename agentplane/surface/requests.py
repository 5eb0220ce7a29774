"""What a caller may say: the shapes of bodies and queries, and the words in which a misfit is answered.

Owns the request types of the operations table and the admission key as it travels. Refuses unknown members, repeated
queries and
numbers out of range. Invariant: every parser here raises InvalidRequest or InvalidInput and nothing else, whatever
it is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec

from agentplane.core import bounds, errors, ids
from agentplane.core.lifecycle import RUN, states

SEQ_MAX: Final = 2**53
"""Records of one run: far beyond any, and exact in every JSON reader and in the database."""
OUTCOMES: Final = tuple(
    one for one in states(RUN) if one not in ("none", "parked", "abandoned lease") and not one.startswith("unwinding")
)
"""What a run's status may be; a parked run, one whose owner died and one that unwinds are `running` to whoever lists
them."""
Seq = Annotated[int, msgspec.Meta(ge=1, le=SEQ_MAX)]


class UnsupportedType(errors.InvalidRequest):
    row = errors.Row("unsupported_media_type", "caller", errors.EXIT_USAGE, 415, "Send application/json.")


class StartBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    capability: str
    input: Any = None
    correlate: Any = None
    budget: dict[str, int] | None = None


class WaitQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    wait: float = 0.0


class ListQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    outcome: str | None = None
    limit: int = bounds.LIST_PAGE
    after: str | None = None


class PageQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    limit: int = bounds.LIST_PAGE
    after: str | None = None


class AttentionQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    limit: int = bounds.LIST_PAGE


class HistoryQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    start: Seq = msgspec.field(name="from", default=1)
    limit: int = bounds.HISTORY_PAGE
    wait: float = 0.0


class ReasonBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    reason: str = ""


class ReconcileBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    effect: str
    outcome: str
    note: str = ""
    output: Any = None
    new_key: bool = False


class ReplayBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    strict: bool = False
    retry: bool = False
    raised: dict[str, int] | None = msgspec.field(name="raise", default=None)
    reason: str = ""


class DrainBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    now: bool = False
    grace: float | None = None


class CaseListQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    status: str = "escalated"
    limit: int = bounds.LIST_PAGE
    after: str | None = None


class CaseQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    limit: int = bounds.HISTORY_PAGE


class TaskListQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    role: str | None = None
    limit: int = bounds.LIST_PAGE
    after: str | None = None


class ClaimBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    pass


class TakeoverBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    holder: str = msgspec.field(name="from")
    reason: str = ""


class DecideBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    decision: str
    reason: str = ""
    amendment: Any = None
    answer: Any = None
    digest: str | None = None


class AcknowledgeBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    case: str
    obligation: str
    note: str = ""


class AppSqlBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    sql: str


class ReleaseBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    all: bool = False
    batch: int | None = None
    runs: list[str] = []
    paused: bool = False
    clock: bool = False
    reason: str | None = None
    confirmed: bool = False


def convert(data: object, wanted: type, what: str) -> Any:
    """``data`` as ``wanted``. Raises InvalidInput with path and expected type."""
    try:
        return msgspec.convert({} if data is None else data, wanted, strict=True)
    except msgspec.ValidationError as error:
        expected, _, place = str(error).partition(" - at `")
        path = place.rstrip("`") or "$"
        raise errors.InvalidInput(f"The body of {what} does not fit at {path}: {expected}.", path=path) from None


def convert_query(query: dict[str, str], wanted: type, what: str) -> Any:
    try:
        return msgspec.convert(query, wanted, strict=False)
    except msgspec.ValidationError as error:
        raise errors.InvalidRequest(f"The query of {what} does not fit: {error}.") from None


def query_of(said: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """A query whose every member was said once. Raises InvalidRequest."""
    for name, values in said.items():
        if len(values) != 1:
            raise errors.InvalidRequest(f"The query says {name[:60]!a} {len(values)} times.")
    return {name: values[0] for name, values in said.items()}


def run_id(text: str) -> str:
    try:
        return ids.parse_id(text, "run")
    except ids.InvalidId:
        raise errors.InvalidRequest(f"A run id looks like run_ and 26 characters; {text[:60]!r} does not.") from None


def outcome_of_list(text: str | None) -> str | None:
    if text is not None and text not in OUTCOMES:
        raise errors.InvalidRequest(f"A run is {', '.join(OUTCOMES)}; not {text[:60]!r}.")
    return text


def admission_key(text: str) -> str:
    """A key that means the same in a header, in a record and in the terminal's own process. Raises InvalidRequest."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise errors.InvalidRequest("An admission key is text without lone surrogates.") from None
    if not 0 < size <= bounds.ADMISSION_KEY_BYTES_MAX:
        raise errors.InvalidRequest(f"An admission key has 1 to {bounds.ADMISSION_KEY_BYTES_MAX} bytes, not {size}.")
    # A header loses spaces at its ends and cannot hold a line break: such a key would be another one down than up.
    if not text.isprintable() or text != text.strip():
        raise errors.InvalidRequest("An admission key is one line of printable characters without spaces at its ends.")
    return text


def key_from_headers(values: Sequence[str]) -> str | None:
    """The admission key of a request, from its headers as Latin-1: one, and UTF-8. Raises InvalidRequest."""
    if not values:
        return None
    if len(values) > 1:
        raise errors.InvalidRequest("A request has one Idempotency-Key.")
    try:
        return admission_key(values[0].encode("latin-1").decode())
    except UnicodeError:
        raise errors.InvalidRequest("An admission key travels as UTF-8.") from None


def key_as_header(key: str) -> bytes:
    """How ``admission_key`` travels. Raises InvalidRequest."""
    return admission_key(key).encode()
