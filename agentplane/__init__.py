"""agentplane: a durable, governed runtime for work that touches the real world.

Owns the public names, each resolved when it is first used, so that importing one room loads that room and what it
imports. Refuses eager imports. Invariant: every name in ``__all__`` resolves.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

_PUBLIC = {
    "__version__": "agentplane.core.build",
    "ApprovalRefused": "agentplane.core.errors",
    "Budget": "agentplane.core.budget",
    "Call": "agentplane.authoring.types",
    "CallDescription": "agentplane.authoring.types",
    "CaseView": "agentplane.authoring.waiting",
    "Compensation": "agentplane.authoring.skill",
    "Decision": "agentplane.authoring.proposal",
    "DidNotHappen": "agentplane.core.recovery",
    "DidNotHappenError": "agentplane.authoring.raising",
    "EffectFailed": "agentplane.authoring.raising",
    "Event": "agentplane.authoring.waiting",
    "GroupAborted": "agentplane.authoring.raising",
    "InDoubtError": "agentplane.authoring.raising",
    "Inconclusive": "agentplane.core.recovery",
    "Invariant": "agentplane.authoring.group",
    "Landed": "agentplane.core.recovery",
    "LandedError": "agentplane.authoring.raising",
    "Plane": "agentplane.engine.plane",
    "Proposal": "agentplane.authoring.proposal",
    "Recovery": "agentplane.authoring.effect",
    "Replan": "agentplane.authoring.raising",
    "ReplayedFailureError": "agentplane.authoring.raising",
    "RetryPolicy": "agentplane.core.retry",
    "Step": "agentplane.authoring.types",
    "WaitTimedOut": "agentplane.authoring.waiting",
    "effect": "agentplane.authoring.effect",
    "given": "agentplane.authoring.plan",
    "node": "agentplane.authoring.plan",
    "output_of": "agentplane.authoring.plan",
    "plan": "agentplane.authoring.plan",
    "skill": "agentplane.authoring.skill",
    "sql": "agentplane.authoring.sql",
}

__all__ = [*sorted(_PUBLIC)]  # noqa: PLE0604 - the names are those of the table above

if TYPE_CHECKING:
    from agentplane.authoring.effect import Recovery as Recovery
    from agentplane.authoring.effect import effect as effect
    from agentplane.authoring.group import Invariant as Invariant
    from agentplane.authoring.plan import given as given
    from agentplane.authoring.plan import node as node
    from agentplane.authoring.plan import output_of as output_of
    from agentplane.authoring.plan import plan as plan
    from agentplane.authoring.proposal import Decision as Decision
    from agentplane.authoring.proposal import Proposal as Proposal
    from agentplane.authoring.raising import DidNotHappenError as DidNotHappenError
    from agentplane.authoring.raising import EffectFailed as EffectFailed
    from agentplane.authoring.raising import GroupAborted as GroupAborted
    from agentplane.authoring.raising import InDoubtError as InDoubtError
    from agentplane.authoring.raising import LandedError as LandedError
    from agentplane.authoring.raising import Replan as Replan
    from agentplane.authoring.raising import ReplayedFailureError as ReplayedFailureError
    from agentplane.authoring.skill import Compensation as Compensation
    from agentplane.authoring.skill import skill as skill
    from agentplane.authoring.sql import sql as sql
    from agentplane.authoring.types import Call as Call
    from agentplane.authoring.types import CallDescription as CallDescription
    from agentplane.authoring.types import Step as Step
    from agentplane.authoring.waiting import CaseView as CaseView
    from agentplane.authoring.waiting import Event as Event
    from agentplane.authoring.waiting import WaitTimedOut as WaitTimedOut
    from agentplane.core.budget import Budget as Budget
    from agentplane.core.build import __version__ as __version__
    from agentplane.core.errors import ApprovalRefused as ApprovalRefused
    from agentplane.core.recovery import DidNotHappen as DidNotHappen
    from agentplane.core.recovery import Inconclusive as Inconclusive
    from agentplane.core.recovery import Landed as Landed
    from agentplane.core.retry import RetryPolicy as RetryPolicy
    from agentplane.engine.plane import Plane as Plane


def __getattr__(name: str) -> object:
    room = _PUBLIC.get(name)
    if room is None:
        raise AttributeError(f"agentplane has no name {name!r}; it has {', '.join(sorted(_PUBLIC))}")
    value = getattr(importlib.import_module(room), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
