"""What an effect may raise to say what happened, and what a skill may catch.

Owns the four effect errors, ``EffectFailed``, what is raised about a group, and ``Replan``. Refuses to let anything
else of a mutating effect mean more than doubt. Invariant: each effect error carries the disposition it stands for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from agentplane.authoring.plan import PlanNode
from agentplane.core import bounds
from agentplane.core.dispositions import Disposition
from agentplane.core.errors import EXIT_NO, EXIT_USAGE, AgentplaneError, Row, SkillFault
from agentplane.core.records import Fault


class EffectError(Exception):
    """Base of what an effect raises about its own outcome.

    ``permanent``: asking again cannot help. ``retry_after_s``: when it might.
    """

    disposition: ClassVar[Disposition] = Disposition.IN_DOUBT
    code: ClassVar[str] = "in_doubt"

    def __init__(self, message: str = "", *, permanent: bool = False, retry_after_s: float | None = None) -> None:
        super().__init__(message or type(self).__name__)
        self.permanent = permanent
        self.retry_after_s = retry_after_s


class DidNotHappenError(EffectError):
    """The call provably never took effect: repeating it is safe."""

    disposition = Disposition.DID_NOT_HAPPEN
    code = "did_not_happen"


class InDoubtError(EffectError):
    """Nobody can say whether the call took effect."""


class LandedError(EffectError):
    """The call took effect, and its answer cannot be used: a mutation is never repeated."""

    disposition = Disposition.LANDED
    code = "landed"


class ReplayedFailureError(EffectError):
    """The provider answered with the stored failure of an earlier attempt: only a person goes on from here (P8)."""

    code = "replayed_failure"


class EffectFailed(AgentplaneError):
    """What ``cx.do`` raises when a series failed for certain. A skill may catch it and go on."""

    row = Row(
        "effect_failed", "outside", EXIT_NO, 502, "Read the disposition; `agentplane replay RUN --retry` asks again."
    )

    def __init__(self, kind: str, fault: Fault, disposition: Disposition, *, permanent: bool, ordinal: int) -> None:
        super().__init__(f"The effect {kind} failed ({disposition.value}): {fault.message}")
        self.kind = kind
        self.fault = fault
        self.disposition = disposition
        self.permanent = permanent
        self.ordinal = ordinal


class GroupAborted(AgentplaneError):
    """The group did not commit, and its members are taken back: an invariant was false, or what was first to become
    permanent failed. A skill may catch it and go on."""

    row = Row("group_aborted", "outside", EXIT_NO, 409, "Read what stopped the group; nothing of it stands.")

    def __init__(self, group: str, stopped_by: str) -> None:
        super().__init__(f"The group {group} was taken back; what stopped it: {stopped_by}.")
        self.group = group
        self.stopped_by = stopped_by


class GroupForgotten(AgentplaneError):
    """A step returned with a group of it open: its members are taken back, and the step fails."""

    row = Row("group_forgotten", "operator", EXIT_USAGE, 500, "Commit or abort the group before the step returns.")

    def __init__(self, group: str) -> None:
        super().__init__(f"The step returned and left its group {group} open, so its members were taken back.")
        self.group = group


class OutsideGroup(AgentplaneError):
    """A mutation beside an open group: no abort would take it back."""

    row = Row("outside_group", "operator", EXIT_USAGE, 500, "Make it a member, or settle the group before it.")

    def __init__(self, group: str, kind: str) -> None:
        super().__init__(f"The effect {kind} mutates beside the open group {group}, which could not take it back.")
        self.group = group
        self.kind = kind


class OutsideFootprint(AgentplaneError):
    """A member that touches what its group did not name when it was opened."""

    row = Row("outside_footprint", "operator", EXIT_USAGE, 500, "Name the resource when the group is opened.")

    def __init__(self, group: str, resource: str, footprint: Sequence[str]) -> None:
        named = ", ".join(footprint)[: bounds.NAME_CHARS_MAX] or "none"
        super().__init__(f"A member of the group {group} touches {resource}, and the group named {named}.")
        self.group = group
        self.resource = resource


class Replan(Exception):
    """Raised by a skill: the plan no longer fits. ``reason`` is recorded with its successor.

    ``nodes``: the nodes wanted now, finished ones that shall stand among them; without it the plan's own replan
    function is asked. A step that raises it has ended, and its work stands.
    """

    def __init__(self, reason: str, nodes: Sequence[PlanNode] | None = None) -> None:
        _check_replan(reason, nodes)
        super().__init__(reason)
        self.reason = reason[: bounds.TEXT_CHARS_MAX]
        self.nodes = None if nodes is None else tuple(nodes)


def _check_replan(reason: object, nodes: object) -> None:
    if not isinstance(reason, str) or not reason:
        raise SkillFault("Replan needs the reason as a text that is recorded.")
    if nodes is not None and not (
        isinstance(nodes, list | tuple) and all(isinstance(each, PlanNode) for each in nodes)
    ):
        raise SkillFault("Replan needs nodes as a list of node(...).")
