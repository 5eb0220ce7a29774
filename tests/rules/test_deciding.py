"""What a decision comes to: its outcome, the action in force, and whether an amendment fits what the effect takes."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentplane.authoring.effect import Effect, effect
from agentplane.authoring.proposal import Proposal
from agentplane.core import bounds, canonical
from agentplane.core.deciding import DEPTH_MAX, VERDICTS, decide, expired, misfit
from agentplane.core.errors import (
    AgentplaneError,
    AmendmentRefused,
    InvalidRequest,
    InvariantViolation,
    PayloadTooLarge,
)
from agentplane.core.tasks import action_digest

repeatable = settings(derandomize=True, database=None, deadline=None)


@effect("pay.refund", mutates=True)
async def refund(call: object, *, order: str, minor: int, note: str | None = None) -> None: ...


assert isinstance(refund, Effect)
ARGS = {"order": "A-1", "minor": 4200, "note": None}
ASKED = Proposal(summary="Refund", action=refund(order="A-1", minor=4200))
ACT = ASKED.to_args(None)
# As the worklist has it: what an amendment must fit is beside what was recorded.
ACT["action"]["schema"] = ASKED.schema
ASK = Proposal(summary="Which carrier?").to_args(None)
KEYS = {"outcome", "reason", "amendment", "answer", "digest", "approved"}


def test_an_approval_is_of_the_exact_action() -> None:
    """Its digest is that of the call as proposed."""
    told = decide(ACT, "approve", reason="in order")
    digest = action_digest("pay.refund", ARGS)
    assert told == {
        "outcome": "approved", "reason": "in order", "amendment": None, "answer": None, "digest": digest,
        "approved": True,
    }  # fmt: skip
    assert digest == ACT["action"]["digest"]


def test_an_amendment_is_the_call_that_is_approved() -> None:
    """The digest in force is of the amended arguments, whole."""
    amended = ARGS | {"minor": 100}
    told = decide(ACT, "approve", reason="less", amendment=amended)
    assert (told["amendment"], told["digest"]) == (amended, action_digest("pay.refund", amended))
    assert told["digest"] != ACT["action"]["digest"] and told["approved"]


def test_neither_a_rejection_nor_an_answer_puts_an_action_in_force() -> None:
    """There is no digest that a call could be bound to."""
    assert decide(ACT, "reject", reason="no") == {
        "outcome": "rejected", "reason": "no", "amendment": None, "answer": None, "digest": None, "approved": False,
    }  # fmt: skip
    told = decide(ASK, "answer", reason="fastest", answer={"carrier": "x"})
    assert (told["outcome"], told["answer"], told["digest"], told["approved"]) == (
        "answered",
        {"carrier": "x"},
        None,
        False,
    )
    assert not decide(ACT, "answer", reason="ask again", answer=[])["approved"]
    assert decide(ASK, "approve", reason="yes") | {"reason": ""} == {
        "outcome": "approved", "reason": "", "amendment": None, "answer": None, "digest": None, "approved": True,
    }  # fmt: skip


MISFITS: list[tuple[Any, str]] = [
    ({}, "order"), ({"order": "A-1", "minor": 1}, "note"), (ARGS | {"minor": "1"}, "/minor"),
    (ARGS | {"minor": 1.5}, "/minor"),
    (ARGS | {"order": 5}, "/order"), (ARGS | {"iban": "DE1"}, "iban"), (ARGS | {"note": 1}, "/note"), ([], "object"),
    ("x", "object"), (5, "object"), (True, "object"),
]  # fmt: skip


@pytest.mark.parametrize(("amendment", "says"), MISFITS)
def test_an_amendment_that_does_not_fit_is_refused_in_one_sentence(amendment: Any, says: str) -> None:
    """Whatever is missing, of another type, or of no parameter: with its place."""
    with pytest.raises(AmendmentRefused) as told:
        decide(ACT, "approve", reason="less", amendment=amendment)
    assert says in told.value.message and "\n" not in told.value.message


def test_what_proposes_no_action_is_not_amended() -> None:
    """There is nothing that it could take the place of."""
    with pytest.raises(AmendmentRefused, match="nothing to amend"):
        decide(ASK, "approve", reason="x", amendment={"a": 1})


@pytest.mark.parametrize(
    "schema", [None, 5, True, [], {"type": "frob"}, {"$ref": "http://127.0.0.1/x"}, {"$ref": "#/no"}]
)
def test_a_schema_that_cannot_be_applied_fits_nothing(schema: object) -> None:
    """And nothing is fetched for it."""
    action = {"kind": "a.b", "args": {}, "schema": schema}
    with pytest.raises(AmendmentRefused) as told:
        decide({"action": action}, "approve", reason="x", amendment={})
    assert "\n" not in told.value.message


DEEP: Any = "x"
for _ in range(DEPTH_MAX + 1):
    DEEP = [DEEP]

INVALID: list[tuple[Any, dict[str, Any]]] = [
    ("approved", {}), ("", {}), (None, {}), (["approve"], {}), ("approve", {"reason": ""}),
    ("approve", {"reason": "  "}),
    ("approve", {"reason": None}), ("approve", {"reason": "x" * (bounds.TEXT_CHARS_MAX + 1)}),
    ("approve", {"reason": "\ud800"}), ("approve", {"answer": 1}), ("reject", {"answer": 1}), ("answer", {}),
    ("reject", {"amendment": ARGS}), ("answer", {"amendment": ARGS, "answer": 1}), ("answer", {"answer": {1, 2}}),
    ("answer", {"answer": float("nan")}), ("answer", {"answer": b"x"}), ("answer", {"answer": DEEP}),
    ("approve", {"amendment": ARGS | {"note": "\ud800"}}), ("approve", {"amendment": {"x": DEEP}}),
]  # fmt: skip


@pytest.mark.parametrize(("verdict", "members"), INVALID, ids=range(len(INVALID)))
def test_a_decision_that_says_no_decision_is_refused(verdict: Any, members: dict[str, Any]) -> None:
    """Before anything is claimed or recorded, in one sentence."""
    with pytest.raises(InvalidRequest) as told:
        decide(ACT, verdict, **({"reason": "x"} | members))
    assert "\n" not in told.value.message


def test_a_decision_is_bounded() -> None:
    """In bytes: it is a row, and a record."""
    large = "x" * bounds.PROPOSAL_BYTES_MAX
    with pytest.raises(PayloadTooLarge):
        decide(ASK, "answer", reason="x", answer=large)
    with pytest.raises(PayloadTooLarge):
        decide(ACT, "approve", reason="x", amendment=ARGS | {"note": large})


def test_an_expiry_denies_unless_the_proposal_opted_in() -> None:
    """Proceeding approves the action as proposed; an escalation is no end."""
    for proposal, on_expiry in product((ACT, ASK), ("deny", "proceed")):
        told = expired(on_expiry, proposal)
        assert told.keys() == KEYS and told["outcome"] == "expired" and told["reason"]
        assert told["approved"] == (on_expiry == "proceed")
        in_force = proposal is ACT and on_expiry == "proceed"
        assert told["digest"] == (ACT["action"]["digest"] if in_force else None)
    for other in ("escalate", "approve", ""):
        with pytest.raises(InvariantViolation, match="TSK-01"):
            expired(other, ACT)


HOSTILE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda one: st.lists(one, max_size=4) | st.dictionaries(st.text(), one, max_size=4),
    max_leaves=10,
)


@repeatable
@given(
    verdict=st.sampled_from(VERDICTS) | HOSTILE, reason=st.just("x") | HOSTILE,
    amendment=st.none() | st.fixed_dictionaries({"order": HOSTILE, "minor": HOSTILE, "note": HOSTILE}) | HOSTILE,
    answer=st.none() | HOSTILE, proposal=st.sampled_from([ACT, ASK]),
)  # fmt: skip
def test_any_decision_is_recorded_or_refused(
    verdict: Any, reason: Any, amendment: Any, answer: Any, proposal: dict[str, Any]
) -> None:
    """Nothing but the own errors comes out, and what is taken can be recorded and is approved by 'approve' alone."""
    try:
        told = decide(proposal, verdict, reason=reason, amendment=amendment, answer=answer)
    except AgentplaneError as error:
        assert isinstance(error, InvalidRequest | AmendmentRefused | PayloadTooLarge)
        return
    assert told.keys() == KEYS and canonical.encode(told)
    assert told["approved"] == (verdict == "approve") == (told["outcome"] == "approved")


@repeatable
@given(HOSTILE, HOSTILE)
def test_any_schema_and_any_value_have_an_answer(schema: object, value: object) -> None:
    """One line that says what does not fit, or none."""
    said = misfit(schema, value)
    assert said is None or (said and "\n" not in said)
