"""How others check it: batteries and runners for stores, skills and plans.

Owns no behaviour of the product. Refuses to be imported by it, but for the lab. Invariant: what is checked here is
reported in full, and a check that checked nothing is a failure. Names are resolved when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentplane.testkit.fakes import FakeProvider as FakeProvider
    from agentplane.testkit.prefixes import Report as Report
    from agentplane.testkit.prefixes import crash_at_every_commit as crash_at_every_commit

__all__ = ["FakeProvider", "Report", "crash_at_every_commit"]


def __getattr__(name: str) -> object:
    if name == "FakeProvider":
        from agentplane.testkit.fakes import FakeProvider

        return FakeProvider
    if name in ("Report", "crash_at_every_commit"):
        from agentplane.testkit import prefixes

        return getattr(prefixes, name)
    raise AttributeError(f"agentplane.testkit has no name {name!r}; it has {', '.join(__all__)}")
