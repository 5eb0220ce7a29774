"""A step that waits for a message.

Owns what ``cx.event`` may ask for, and how its outcome reads. Refuses a wait that nothing bounds and one that is about
nothing. Invariant: an event wait says of what kind, about what, and until when, and all three are recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from agentplane.authoring.waiting import Event, WaitTimedOut
from agentplane.core import bounds
from agentplane.core.correlation import keys_data, keys_from
from agentplane.core.errors import InvalidRequest
from agentplane.core.history import AWAIT as KIND
from agentplane.core.history import WAITS
from agentplane.core.instants import from_text, to_text
from agentplane.engine.sleeping import Members, ended, instant_in, instant_ms, never, waiting_effect
from agentplane.engine.waits import Wait

if TYPE_CHECKING:
    from agentplane.engine.context import StepContext

RESERVED = "agentplane."


async def event(
    cx: StepContext, kind: str, correlation: Mapping[str, str], *, deadline: str | None = None,
    until: int | datetime | None = None, within_s: float | None = None, sender: str | None = None,
) -> Event:  # fmt: skip
    """The first event of ``kind`` about all of ``correlation``. Raises WaitTimedOut, and Suspended, which latches."""
    cx.enter()
    _check_kind(kind)
    _check_sender(sender)
    keys = keys_from(correlation)
    due_ms = await _until(cx, deadline, until, within_s)
    about = ", ".join(f"{key.namespace}={key.value}" for key in keys)
    reason = f"awaits {kind} about {about} until {to_text(due_ms)}"

    def wait(members: Members, announced: bool) -> Wait:
        return Wait(
            members=members, kind=KIND, announced=announced, due_ms=due_ms, event_kind=kind, keys=keys, sender=sender,
            reason=reason,
        )  # fmt: skip

    call = AWAIT(kind=kind, correlation=keys_data(keys), until=to_text(due_ms), sender=sender)
    found = await ended(cx, call, wait)
    if found.get("timed_out"):
        raise WaitTimedOut(kind, str(found["until"]))
    return Event(
        id=found["id"] or "", kind=found["kind"], source=found["source"], payload=found["payload"],
        correlation=found["correlation"] or {}, received_ms=from_text(found["received"]),
    )  # fmt: skip


def _check_sender(sender: object) -> None:
    if sender is not None and not (isinstance(sender, str) and 0 < len(sender) <= bounds.NAME_CHARS_MAX):
        raise InvalidRequest("cx.event takes sender as the name of whoever delivers, such as 'peer:shop'.")


async def _until(
    cx: StepContext, deadline: str | None, until: int | datetime | None, within_s: float | None
) -> int:  # fmt: skip
    """When the wait gives up. Raises InvalidRequest where it is not said exactly once."""
    if sum(one is not None for one in (deadline, until, within_s)) != 1:
        raise InvalidRequest(
            "cx.event needs one end to its wait: deadline=NAME of a registered one, until=INSTANT, or days, hours, "
            "minutes or seconds."
        )
    if deadline is not None:
        return registered(cx, deadline, "until")
    if until is not None:
        return instant_ms(until, "cx.event")
    return await instant_in(cx, within_s or 0.0, "The end of an event wait")


def registered(cx: StepContext, name: str, member: str) -> int:
    """When the deadline that this run registered under ``name`` is due, ms UTC. A wait that is recorded at this place
    says so itself, in ``member`` of its arguments: the name may be another promise's since. Raises InvalidRequest."""
    known = cx.live.history.series.get(cx.next_spot)
    args = None if known is None or known.first.descriptor.kind not in WAITS else known.first.descriptor.args
    if isinstance(args, dict) and isinstance(args.get(member), str):
        return from_text(str(args[member]))
    found = cx.live.history.deadlines.get(name)
    if found is None:
        have = ", ".join(sorted(cx.live.history.deadlines)) or "none"
        raise InvalidRequest(
            f"This run has registered no deadline {name!r:.80} (it has: {have}); `await cx.deadline(...)` does."
        )
    return from_text(found.resolved_at)


def _check_kind(kind: object) -> None:
    if not isinstance(kind, str) or not 0 < len(kind) <= bounds.NAME_CHARS_MAX or not kind.isprintable():
        raise InvalidRequest(f"An event's kind is a name of 1 to {bounds.NAME_CHARS_MAX} printable characters.")
    if kind.startswith(RESERVED):
        raise InvalidRequest(f"Kinds under {RESERVED} are the plane's own; no event of such a kind is taken in.")


async def _await(call: object, *, kind: str, correlation: object, until: str, sender: str | None) -> Any:
    await never()


AWAIT = waiting_effect(KIND, _await)
