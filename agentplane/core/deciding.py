"""What a decision comes to: the outcome that the run reads back.

Owns the outcome of a verdict and of a window that closed, and whether an amendment fits what the effect takes. Refuses
an amendment to nothing, an answer without one, and arguments that the recorded schema does not allow. Invariant: what
is approved is the digest of one exact call, the amended one where it was amended; an expiry approves only where the
proposal says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from agentplane.core import bounds, canonical
from agentplane.core.errors import AmendmentRefused, InvalidRequest, InvariantViolation, PayloadTooLarge
from agentplane.core.tasks import action_digest

DEPTH_MAX: Final = bounds.JSON_DEPTH_MAX - 16
"""Nesting of what a decision holds: the record around it nests too."""
VERDICTS: Final = ("approve", "reject", "answer")
OUTCOMES: Final = {"approve": "approved", "reject": "rejected", "answer": "answered"}
EXPIRED: Final = "expired"
NOBODY_DECIDED: Final = "nobody decided before its window was over"

Output = dict[str, object]


def decide(
    proposal: Mapping[str, object], verdict: object, *, reason: object, amendment: object = None, answer: object = None
) -> Output:
    """The output of the wait that ``proposal`` (the arguments of ``task.open``) is: ``outcome``, ``reason``,
    ``amendment``, ``answer``, the ``digest`` of the action in force, and whether it is ``approved``.

    Raises InvalidRequest, AmendmentRefused and PayloadTooLarge, before anything is claimed or recorded.
    """
    if not isinstance(verdict, str) or verdict not in OUTCOMES:
        raise InvalidRequest(f"A decision is {', '.join(VERDICTS)}; not {verdict!r:.40}.")
    if not isinstance(reason, str) or not 0 < len(reason.strip()) <= len(reason) <= bounds.TEXT_CHARS_MAX:
        raise InvalidRequest(f"A decision has a reason of 1 to {bounds.TEXT_CHARS_MAX} characters.")
    _data(reason, "reason")
    if amendment is not None and verdict != "approve":
        raise InvalidRequest(f"An amendment is approved as it stands; it does not go with {verdict!r}.")
    if (answer is not None) != (verdict == "answer"):
        raise InvalidRequest("An answer, as data, goes with the decision 'answer' and with no other.")
    action = proposal.get("action")
    if amendment is not None:
        _fits(action, amendment)
    if answer is not None:
        _data(answer, "answer")
    return {
        "outcome": OUTCOMES[verdict], "reason": reason, "amendment": amendment, "answer": answer,
        "digest": _in_force(action, amendment) if verdict == "approve" else None, "approved": verdict == "approve",
    }  # fmt: skip


def expired(on_expiry: str, proposal: Mapping[str, object]) -> Output:
    """The output of a wait whose window closed without a decision: denied, or, where the proposal opted in, approved.
    An escalation is no end of it."""
    if on_expiry not in ("deny", "proceed"):
        raise InvariantViolation(f"TSK-01 an expiry under {on_expiry!r:.40} is no decision.")
    approved = on_expiry == "proceed"
    return {
        "outcome": EXPIRED, "reason": NOBODY_DECIDED, "amendment": None, "answer": None,
        "digest": _in_force(proposal.get("action"), None) if approved else None, "approved": approved,
    }  # fmt: skip


def _in_force(action: object, amendment: object) -> str | None:
    if not isinstance(action, dict):
        return None
    return action_digest(str(action["kind"]), action["args"] if amendment is None else amendment)


def _fits(action: object, amendment: object) -> None:
    """Raises AmendmentRefused with what does not fit, and where."""
    if not isinstance(action, dict):
        raise AmendmentRefused("The task proposes no action, so there is nothing to amend.")
    if not isinstance(amendment, dict):
        raise AmendmentRefused("An amendment is the arguments of the action, whole, as an object.")
    _data(amendment, "amendment")
    fault = misfit(action.get("schema"), amendment)
    if fault is not None:
        raise AmendmentRefused(f"The amendment does not fit {action['kind']}: {fault}.")


def misfit(schema: object, value: object) -> str | None:
    """What of ``value`` does not fit the JSON schema, in a few words with its place; None where it fits. A schema that
    is none fits nothing."""
    import jsonschema_rs  # only a decision that amends needs it

    if not isinstance(schema, dict):
        return "no schema of its arguments was recorded"
    try:
        validator = jsonschema_rs.validator_for(schema, offline=True)
        error = next(iter(validator.iter_errors(value)), None)
    except (ValueError, TypeError, RecursionError) as error:
        return f"its schema cannot be applied ({_line(str(error))})"
    if error is None:
        return None
    place = "/".join(str(part) for part in error.instance_path)
    return f"{_line(error.message)} at /{place[: bounds.NAME_CHARS_MAX]}"


def _data(value: object, what: str) -> None:
    """Raises PayloadTooLarge or InvalidRequest for what cannot be recorded."""
    try:
        canonical.decode(canonical.encode(value), max_bytes=bounds.PROPOSAL_BYTES_MAX, max_depth=DEPTH_MAX)
    except canonical.TooLarge as error:
        raise PayloadTooLarge(f"The {what} of a decision has at most {error.bound} bytes, not {error.size}.") from None
    except canonical.CanonicalError as error:
        raise InvalidRequest(f"The {what} cannot be recorded: {error}.") from None


def _line(text: str) -> str:
    first = text.strip().splitlines()[0] if text.strip() else "no reason given"
    return first[: bounds.NAME_CHARS_MAX].rstrip(".")
