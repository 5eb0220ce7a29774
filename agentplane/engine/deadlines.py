"""Deadlines: reckoned through a calendar as an effect, registered as obligations, met or given up.

Owns ``cx.deadline``, ``cx.met`` and ``cx.waive``. Refuses a rule that no calendar can reckon, before anything is
registered. Invariant: the instant and the digest of the calendar are recorded with the obligation, in one unit; an
obligation that was breached stays breached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentplane.core import bounds
from agentplane.core.errors import InvalidRequest
from agentplane.core.instants import from_text, to_text
from agentplane.core.obligations import OPEN_STATES
from agentplane.core.records import DeadlineRegistered, DeadlineTransition
from agentplane.engine.booked import BookMoved, Entry, book_effect, booked, refused, unperformed
from agentplane.journal import obligations
from agentplane.journal.tx import Tx
from agentplane.work import calendars, matters

if TYPE_CHECKING:
    from agentplane.engine.context import StepContext


async def deadline(cx: StepContext, name: str, **rule: Any) -> int:
    """Register the obligation ``name``; when it is due, ms UTC. Raises InvalidRequest, and EffectFailed where one of
    that name is open."""
    cx.enter()
    _check_name(name)
    wanted = calendars.rule_from(**rule)
    live, step = cx.live, cx.step
    subject = live.case or live.run
    world = live.world

    def entry(tx: Tx) -> Entry:
        base_ms = world.now_ms()
        # What no calendar can reckon is refused here, where nothing is recorded yet.
        found = calendars.resolve(wanted, base_ms)
        open_one = obligations.open_one(tx, subject, name)
        if open_one is not None:
            return refused(
                "deadline_open", f"the deadline {name} is {open_one.state} and due {to_text(open_one.due_ms)}"
            )
        if live.case is not None and matters.get(tx, live.case).status == "closed":
            return refused("case_closed", f"the case {live.case} is closed and takes on no obligation")
        due, warn = to_text(found.due_ms), to_text(found.warn_ms)
        members: dict[str, object] = {
            "step": step, "name": name, "resolved_at": due, "warn_at": warn, "calendar_digest": found.digest,
        }  # fmt: skip
        if cx.phase:
            members["phase"] = cx.phase.wire

        def still(tx: Tx) -> None:
            if obligations.open_one(tx, subject, name) is not None:
                raise BookMoved("A deadline of that name was registered meanwhile.")
            if live.case is not None and matters.get(tx, live.case).status == "closed":
                raise BookMoved("The case was closed meanwhile.")

        return Entry(
            output={"due": due, "warn": warn, "calendar": found.digest, "base": to_text(base_ms)},
            specs=((DeadlineRegistered, members),), change=still,
        )  # fmt: skip

    found = await booked(cx, RESOLVE(name=name, rule=wanted.to_data()), entry)
    return from_text(found["due"])


async def move(cx: StepContext, name: str, to: str) -> bool:
    """Move the obligation ``name`` of the case (or of the run) to ``to``; False where it had ended otherwise before."""
    cx.enter()
    _check_name(name)
    live, step = cx.live, cx.step
    subject = live.case or live.run

    def entry(tx: Tx) -> Entry:
        row = obligations.latest(tx, subject, name)
        if row is None:
            return refused("no_deadline", f"no deadline {name} was ever registered")
        if row.state not in OPEN_STATES:
            return Entry(output={"from": row.state, "to": row.state})
        members: dict[str, object] = {"step": step, "name": name, "before": row.state, "to": to}
        if cx.phase:
            members["phase"] = cx.phase.wire

        def still(tx: Tx) -> None:
            now = obligations.latest(tx, subject, name)
            if now is None or (now.nth, now.state) != (row.nth, row.state):
                raise BookMoved("The obligation moved meanwhile.")

        return Entry(output={"from": row.state, "to": to}, specs=((DeadlineTransition, members),), change=still)

    found = await booked(cx, TRANSITION(name=name, to=to), entry)
    return bool(found["to"] == to)


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= bounds.NAMESPACE_CHARS_MAX or not name.isprintable():
        raise InvalidRequest(f"A deadline has a name of 1 to {bounds.NAMESPACE_CHARS_MAX} printable characters.")


async def _resolve(call: object, *, name: str, rule: object) -> Any:
    await unperformed()


async def _transition(call: object, *, name: str, to: str) -> Any:
    await unperformed()


RESOLVE = book_effect("deadline.resolve", _resolve)
TRANSITION = book_effect("case.transition_deadline", _transition)
