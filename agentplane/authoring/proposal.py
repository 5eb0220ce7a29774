"""What a person is asked to decide, and what they decided.

Owns ``Proposal``, its terms, and ``Decision``. Refuses terms that contradict each other before anything is registered.
Invariant: a proposal names the exact action with its digest and the schema of its arguments, and a decision carries the
call that it is about.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, TypeGuard

import msgspec

from agentplane.authoring.effect import to_data
from agentplane.authoring.types import CallDescription
from agentplane.core import bounds, canonical
from agentplane.core.errors import InvalidRequest
from agentplane.core.instants import MAX_MS
from agentplane.core.tasks import BASES, ON_EXPIRY, PRIORITIES, action_digest

DEPTH_MAX = bounds.JSON_DEPTH_MAX - 16
"""Nesting of what a proposal holds: the record around it nests too."""

Due = int | float | timedelta | datetime | str


class Proposal:
    """Something for a person to decide: ``await cx.task(Proposal(summary="Refund 420 EUR", action=refund(...)))``.

    ``action``: the call that an approval would allow, or None for a question; ``confidence`` 0 to 1; ``cost`` in minor
    units; ``evidence``: data. ``due``: seconds from now, a timedelta, milliseconds UTC, an aware datetime, or the name
    of a deadline that the run registered. ``audience`` and ``excluded``: roles, groups (``group:NAME``) and names;
    ``four_eyes`` keeps whoever started the run out. ``on_expiry``: ``deny``, ``proceed`` (it counts as approved) or
    ``escalate`` to ``escalate_to``, who are let in beside the audience. Raises InvalidRequest with one sentence.
    """

    def __init__(
        self, *, summary: str, action: CallDescription | None = None, confidence: float | None = None,
        cost: int | None = None, evidence: object = None, due: Due | None = None,
        audience: Sequence[str] = ("reviewer",), excluded: Sequence[str] = (), least_basis: str = "connected",
        four_eyes: bool = True, priority: str = "normal", on_expiry: str = "deny", escalate_to: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.summary = _summary(summary)
        self.action = _action(action)
        self.confidence = _confidence(confidence)
        self.cost = _cost(cost)
        self.evidence = to_data(evidence)
        self.due = _due(due)
        self.audience = _names(audience, "audience", least=1)
        self.excluded = _names(excluded, "excluded", least=0)
        self.least_basis = _one_of(least_basis, BASES, "least_basis")
        self.four_eyes = _flag(four_eyes)
        self.priority = _one_of(priority, PRIORITIES, "priority")
        self.on_expiry = _one_of(on_expiry, ON_EXPIRY, "on_expiry")
        self.escalate_to = _names(escalate_to, "escalate_to", least=int(on_expiry == "escalate"))
        if self.escalate_to and on_expiry != "escalate":
            raise InvalidRequest("A proposal names escalate_to with on_expiry='escalate', and with no other.")
        if on_expiry != "deny" and due is None:
            raise InvalidRequest(f"A proposal that says on_expiry={on_expiry!r} says with due= when it expires.")
        self._args = self._as_args()

    @property
    def due_is_relative(self) -> bool:
        """Whether ``due`` counts from now."""
        return isinstance(self.due, timedelta) or (_is_number(self.due) and self.due <= bounds.SLEEP_MAX_S)

    @property
    def due_in_s(self) -> float:
        """Seconds from now, where ``due_is_relative``."""
        if isinstance(self.due, timedelta):
            return self.due.total_seconds()
        return float(self.due) if _is_number(self.due) else 0.0

    @property
    def schema(self) -> dict[str, Any] | None:
        """JSON schema of the action's arguments, which an amendment must fit. Not of what is recorded: a parameter's
        type may change while a task is open."""
        return None if self.action is None else self.action.effect.schema()

    def to_args(self, due: str | None) -> dict[str, Any]:
        """The arguments of the wait, as data: what is recorded of it. ``due``: the resolved instant."""
        return self._args | {"due": due}

    def _as_args(self) -> dict[str, Any]:
        action: dict[str, object] | None = None
        if self.action is not None:
            effect, args = self.action.effect, self.action.args
            action = {"kind": effect.kind, "args": args, "digest": ""}
        told: dict[str, object] = {
            "summary": self.summary, "action": action, "confidence": self.confidence, "cost": self.cost,
            "evidence": self.evidence, "audience": list(self.audience), "excluded": list(self.excluded),
            "least_basis": self.least_basis, "four_eyes": self.four_eyes, "priority": self.priority,
            "on_expiry": self.on_expiry, "escalate_to": list(self.escalate_to),
        }  # fmt: skip
        try:
            raw = canonical.encode(told)
            # A copy of its own, as every walk reads it: what the skill does with its values later changes nothing.
            copy: Any = canonical.decode(raw, max_bytes=bounds.PROPOSAL_BYTES_MAX, max_depth=DEPTH_MAX)
        except canonical.TooLarge as error:
            raise InvalidRequest(
                f"A proposal has at most {error.bound} bytes, not {error.size}; keep evidence elsewhere and name it."
            ) from None
        except canonical.CanonicalError as error:
            raise InvalidRequest(f"A proposal is data; {error}.") from None
        if copy["action"] is not None:
            copy["action"]["digest"] = action_digest(copy["action"]["kind"], copy["action"]["args"])
        checked: dict[str, Any] = copy
        return checked


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a proposal. ``outcome``: approved, rejected, answered or expired; ``by``: who decided, None for an
    expiry; ``amendment``: the arguments in the place of those that were proposed; ``digest``: of the action in force,
    ``proposed``: of the one that was asked for. ``call``: the call in force, for ``cx.do(call, approval=decision)``."""

    task: str
    approved: bool
    outcome: str
    reason: str = ""
    by: str | None = None
    amendment: dict[str, Any] | None = None
    answer: Any = None
    digest: str | None = None
    proposed: str | None = None
    call: CallDescription | None = None


def _summary(text: object) -> str:
    if not isinstance(text, str) or not 0 < len(text.strip()) <= len(text) <= bounds.TEXT_CHARS_MAX:
        raise InvalidRequest(f"A proposal has a summary of 1 to {bounds.TEXT_CHARS_MAX} characters.")
    return text


def _action(call: object) -> CallDescription | None:
    if call is not None and not isinstance(call, CallDescription):
        raise InvalidRequest(f"A proposal's action is a call such as `refund(order=...)`, not {type(call).__name__}.")
    return call


def _confidence(value: object) -> float | None:
    if value is None:
        return None
    if not _is_number(value) or not 0 <= value <= 1:
        raise InvalidRequest(f"A proposal's confidence is a number from 0 to 1, not {value!r:.40}.")
    return float(value)


def _cost(value: object) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not 0 <= value <= bounds.CEILING_MAX:
        raise InvalidRequest(f"A proposal's cost is whole minor units, 0 or more, not {value!r:.40}.")
    return value


def _due(value: Any) -> Due | None:
    """Raises InvalidRequest for what is no end of a window; whether a name is registered is the run's to say."""
    if value is None:
        return None
    if isinstance(value, str):
        if not 0 < len(value) <= bounds.NAMESPACE_CHARS_MAX or not value.isprintable():
            raise InvalidRequest("A proposal's due, as a text, is the name of a deadline that this run registered.")
        return value
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidRequest("A proposal's due takes an aware datetime: give it a time zone, such as UTC.")
        return value
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    # A window is ten years at most, and every instant worth waiting for is more milliseconds than that many seconds.
    most = bounds.SLEEP_MAX_S if type(value) is not int else MAX_MS
    if not _is_number(seconds) or not 0 < seconds <= most:
        raise InvalidRequest(
            "A proposal's due is seconds from now (at most ten years), a timedelta, milliseconds UTC, an aware "
            f"datetime, or the name of a deadline; not {value!r:.40}."
        )
    return value


def _names(names: object, what: str, *, least: int) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise InvalidRequest(f"A proposal takes {what} as a list of roles, groups and names.")
    if not least <= len(names) <= bounds.AUDIENCE_MAX:
        raise InvalidRequest(f"A proposal takes {least} to {bounds.AUDIENCE_MAX} names as {what}, not {len(names)}.")
    for name in names:
        if not isinstance(name, str) or not 0 < len(name) <= bounds.NAME_CHARS_MAX or not name.isprintable():
            raise InvalidRequest(
                f"A proposal's {what} holds printable names of 1 to {bounds.NAME_CHARS_MAX} characters."
            )
    return tuple(dict.fromkeys(names))


def _one_of(value: object, allowed: Sequence[str], what: str) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise InvalidRequest(f"A proposal's {what} is {', '.join(allowed)}; not {value!r:.40}.")
    return str(value)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest(f"A proposal's four_eyes is True or False, not {value!r:.40}.")
    return value


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
