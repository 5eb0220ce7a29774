"""A proposal: its terms hold together before anything is registered, and what is recorded of it is the exact action."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentplane.authoring.effect import effect
from agentplane.authoring.proposal import DEPTH_MAX, Decision, Proposal
from agentplane.authoring.waiting import WaitTimedOut
from agentplane.core import bounds, canonical
from agentplane.core.codec import encode_body
from agentplane.core.deciding import misfit
from agentplane.core.errors import InvalidRequest
from agentplane.core.records import Descriptor
from agentplane.core.tasks import action_digest
from rules.record_samples import started

if TYPE_CHECKING:
    from agentplane.authoring.types import Call

repeatable = settings(derandomize=True, database=None, deadline=None)


class Line(msgspec.Struct):
    """One line of an order: ``n`` of an article."""

    article: str
    n: Annotated[int, msgspec.Meta(ge=1, description="how many", title="n")]
    title: str = "x"


@effect("pay.refund", mutates=True)
async def refund(
    call: Call, *, order: str, minor: int, lines: list[Line], speed: Literal["fast", "slow"] = "slow",
    note: str = None, free=7, odd: Call | None = None,  # type: ignore[no-untyped-def, assignment] # noqa: RUF013
    local: Callable[[], None] | None = None,
) -> None: ...  # fmt: skip


@effect("pay.void")
def void(call: Any) -> None: ...


CALL = refund(order="A-1", minor=4200, lines=[Line(article="a", n=2)])
ARGS: dict[str, Any] = CALL.args


def terms(**members: Any) -> dict[str, Any]:
    return Proposal(**({"summary": "Refund", "action": CALL} | members)).to_args(None)


# --- what is recorded of it ------------------------------------------------------------------------------------------


def test_what_is_recorded_is_the_exact_action_and_every_term() -> None:
    """The call's kind, arguments and digest; whom it is for; what becomes of it unanswered."""
    told = Proposal(
        summary="Refund 42 EUR", action=CALL, confidence=0.5, cost=4200, evidence={"mail": 7}, due=3600,
        audience=["reviewer", "group:refunds", "reviewer"], excluded=["os:eva"], least_basis="authenticated",
        four_eyes=False, priority="urgent", on_expiry="escalate", escalate_to=["supervisor"],
    ).to_args("2026-12-01T09:00:00.000Z")  # fmt: skip
    action = told.pop("action")
    assert told == {
        "summary": "Refund 42 EUR", "confidence": 0.5, "cost": 4200, "evidence": {"mail": 7},
        "due": "2026-12-01T09:00:00.000Z", "audience": ["reviewer", "group:refunds"], "excluded": ["os:eva"],
        "least_basis": "authenticated", "four_eyes": False, "priority": "urgent", "on_expiry": "escalate",
        "escalate_to": ["supervisor"],
    }  # fmt: skip
    assert (action["kind"], action["args"], action["digest"]) == ("pay.refund", ARGS, action_digest("pay.refund", ARGS))
    assert "schema" not in action and misfit(Proposal(summary="x", action=CALL).schema, ARGS) is None


def test_what_nobody_says_is_the_careful_thing() -> None:
    """Reviewers, connected, four eyes, denied when nobody answers."""
    told = Proposal(summary="Which one?").to_args(None)
    assert told == {
        "summary": "Which one?", "action": None, "confidence": None, "cost": None, "evidence": None, "due": None,
        "audience": ["reviewer"], "excluded": [], "least_basis": "connected", "four_eyes": True, "priority": "normal",
        "on_expiry": "deny", "escalate_to": [],
    }  # fmt: skip


def test_what_a_skill_does_with_its_values_later_changes_nothing() -> None:
    """The proposal has a copy of its own, and every walk makes the same one."""
    evidence = {"lines": [1]}
    call = refund(order="A-1", minor=4200, lines=[])
    proposal = Proposal(summary="x", action=call, evidence=evidence)
    before = canonical.encode(proposal.to_args(None))
    evidence["lines"].append(2)
    call.args["minor"] = 1
    assert canonical.encode(proposal.to_args(None)) == before
    assert canonical.encode(terms()) == canonical.encode(terms())


@pytest.mark.parametrize(
    ("due", "relative", "seconds"),
    [
        (60, True, 60.0), (0.5, True, 0.5), (timedelta(hours=2), True, 7200.0), (bounds.SLEEP_MAX_S, True, None),
        (bounds.SLEEP_MAX_S + 1, False, None), (1_796_000_000_000, False, None), ("reply", False, None),
        (datetime(2026, 12, 1, tzinfo=UTC), False, None), (None, False, None),
    ],
)  # fmt: skip
def test_a_window_counts_from_now_or_ends_at_an_instant(due: Any, relative: bool, seconds: float | None) -> None:
    """Seconds and spans from now; milliseconds, dates and the names of deadlines do not move."""
    proposal = Proposal(summary="x", due=due)
    assert (proposal.due, proposal.due_is_relative) == (due, relative)
    if seconds is not None:
        assert proposal.due_in_s == seconds


# --- what is refused -------------------------------------------------------------------------------------------------

NAIVE = datetime(2026, 12, 1, tzinfo=UTC).replace(tzinfo=None)
DEEP: Any = "x"
for _ in range(DEPTH_MAX):
    DEEP = [DEEP]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"summary": ""}, "summary"), ({"summary": "  "}, "summary"), ({"summary": 5}, "summary"),
    ({"summary": None}, "summary"),
    ({"summary": "x" * 2001}, "summary"), ({"summary": "\ud800"}, "is data"), ({"action": refund}, "action is a call"),
    ({"action": {"kind": "a.b"}}, "action is a call"), ({"confidence": 1.01}, "confidence"),
    ({"confidence": -0.1}, "confidence"),
    ({"confidence": float("nan")}, "confidence"), ({"confidence": True}, "confidence"),
    ({"confidence": "high"}, "confidence"),
    ({"cost": -1}, "cost"), ({"cost": 1.5}, "cost"), ({"cost": True}, "cost"), ({"cost": 2**53}, "cost"),
    ({"evidence": float("nan")}, "is data"), ({"evidence": DEEP}, "is data"),
    ({"evidence": {"x": "\ud800"}}, "is data"),
    ({"evidence": "x" * bounds.PROPOSAL_BYTES_MAX}, "at most"), ({"due": 0}, "due"), ({"due": -5}, "due"),
    ({"due": True}, "due"),
    ({"due": float("inf")}, "due"), ({"due": bounds.SLEEP_MAX_S + 0.5}, "due"), ({"due": timedelta(days=5000)}, "due"),
    ({"due": timedelta(0)}, "due"), ({"due": 10**18}, "due"), ({"due": ""}, "name of a deadline"),
    ({"due": "a\nb"}, "name of a deadline"),
    ({"due": "x" * 65}, "name of a deadline"), ({"due": NAIVE}, "time zone"), ({"due": [1]}, "due"),
    ({"audience": ()}, "1 to 32 names as audience"), ({"audience": "reviewer"}, "a list"),
    ({"audience": None}, "a list"),
    ({"audience": {"reviewer"}}, "a list"), ({"audience": [""]}, "audience holds"),
    ({"audience": [5]}, "audience holds"),
    ({"audience": ["a\u202eb"]}, "audience holds"), ({"audience": ["x" * 201]}, "audience holds"),
    ({"audience": [f"r{n}" for n in range(33)]}, "1 to 32"), ({"excluded": "os:eva"}, "a list"),
    ({"excluded": ["a\n"]}, "excluded"),
    ({"excluded": [f"r{n}" for n in range(33)]}, "0 to 32"), ({"least_basis": "notarized"}, "least_basis"),
    ({"least_basis": None}, "least_basis"),
    ({"four_eyes": 1}, "four_eyes"), ({"four_eyes": None}, "four_eyes"), ({"priority": "asap"}, "priority"),
    ({"priority": 2}, "priority"),
    ({"on_expiry": "approve", "due": 5}, "on_expiry"), ({"on_expiry": "proceed"}, "when it expires"),
    ({"on_expiry": "escalate", "escalate_to": ["supervisor"]}, "when it expires"),
    ({"on_expiry": "escalate", "due": 5}, "1 to 32 names as escalate_to"),
    ({"on_expiry": "escalate", "due": 5, "escalate_to": ()}, "1 to 32 names as escalate_to"),
    ({"escalate_to": ["supervisor"], "due": 5}, "with no other"),
    ({"on_expiry": "proceed", "escalate_to": ["supervisor"], "due": 5}, "with no other"),
]  # fmt: skip


@pytest.mark.parametrize(("members", "says"), REFUSED, ids=range(len(REFUSED)))
def test_terms_that_do_not_hold_together_are_refused_in_one_sentence(members: dict[str, Any], says: str) -> None:
    """When the proposal is made: nothing is registered, and nobody is asked."""
    with pytest.raises(InvalidRequest) as told:
        terms(**members)
    assert says in told.value.message and "\n" not in told.value.message and told.value.message.endswith(".")


def test_the_deepest_evidence_fits_the_record_around_it() -> None:
    """What can be proposed can be announced."""
    fits: Any = "x"
    while True:
        try:
            told = terms(evidence=[fits])
        except InvalidRequest:
            break
        fits = [fits]
        assert encode_body(started(3, descriptor=Descriptor(kind="task.open", args=told)))


HOSTILE = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.text(max_size=3))


@repeatable
@given(st.dictionaries(
    st.sampled_from(["summary", "action", "confidence", "cost", "evidence", "due", "audience", "excluded",
                     "least_basis", "four_eyes", "priority", "on_expiry", "escalate_to"]), HOSTILE, max_size=4,
))  # fmt: skip
def test_any_terms_are_a_proposal_or_refused(members: dict[str, Any]) -> None:
    """Nothing else comes out, and what is made can be recorded."""
    try:
        told = terms(**members)
    except InvalidRequest:
        return
    assert canonical.encode(told) and told["audience"]


# --- the schema of an effect's arguments -----------------------------------------------------------------------------


def test_the_schema_of_an_effect_is_of_every_parameter_whole() -> None:
    """From its annotations; what has none, or one that cannot be had here, takes anything and spoils no other."""
    schema = refund.schema()
    assert schema["required"] == ["order", "minor", "lines", "speed", "note", "free", "odd", "local"]
    assert (schema["type"], schema["additionalProperties"]) == ("object", False)
    properties = schema["properties"]
    assert (properties["order"], properties["minor"]) == ({"type": "string"}, {"type": "integer"})
    assert properties["speed"] == {"enum": ["fast", "slow"]}
    assert properties["note"] == {"anyOf": [{"type": "string"}, {"type": "null"}]}
    assert properties["free"] is properties["odd"] is True
    assert schema is refund.schema()
    assert void.schema() == {"type": "object", "properties": {}, "required": [], "additionalProperties": False}


def test_the_schema_takes_what_the_effect_was_called_with() -> None:
    """Defaults among it, and nothing that is not of the type."""
    schema = refund.schema()
    assert misfit(schema, ARGS) is None
    assert misfit(schema, ARGS | {"free": [1], "odd": None, "local": None, "speed": "fast"}) is None
    for wrong in (
        {"minor": "1"},
        {"speed": "soon"},
        {"lines": [{"article": "a", "n": 0}]},
        {"lines": [{"n": 1}]},
        {"x": 1},
    ):
        assert misfit(schema, ARGS | wrong) is not None
    for name in ARGS:
        assert misfit(schema, {key: value for key, value in ARGS.items() if key != name}) is not None


def test_a_schema_holds_nothing_that_is_for_readers_only() -> None:
    """A docstring that changes must not change what is recorded; a member that is called title stays."""
    schema = refund.schema()
    told = canonical.encode(schema).decode()
    assert "how many" not in told and "One line" not in told and '"default"' not in told and "description" not in told
    assert schema["$defs"]["Line"]["properties"] == {
        "article": {"type": "string"}, "n": {"type": "integer", "minimum": 1}, "title": {"type": "string"},
    }  # fmt: skip


# --- what a wait gives -----------------------------------------------------------------------------------------------


def test_a_decision_is_frozen_and_carries_its_call() -> None:
    """What was decided is read, not written."""
    decision = Decision(task="7e" * 32, approved=True, outcome="approved", call=CALL)
    assert decision.call is CALL
    with pytest.raises(AttributeError):
        decision.approved = False  # type: ignore[misc]


def test_a_wait_that_timed_out_says_for_what_and_until_when() -> None:
    """One sentence, a row of its own, and both as members."""
    error = WaitTimedOut("shipment.delivered", "2026-12-01T09:00:00.000Z")
    assert (error.kind, error.until) == ("shipment.delivered", "2026-12-01T09:00:00.000Z")
    assert error.message == "No event of the kind shipment.delivered came until 2026-12-01T09:00:00.000Z."
    assert (error.row.code, error.row.exit) == ("wait_timed_out", 1)
