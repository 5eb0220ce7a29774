"""What an author names about an effect group.

Owns the invariant that a commit checks. Refuses nothing by itself: what it may hold is judged at the frontier.
Invariant: a condition has a name, so that what stopped a group stands on the record.
"""

from __future__ import annotations


class Invariant:
    """A condition that must hold before anything of a group becomes permanent; ``holds`` is a bool."""

    __slots__ = ("holds", "name")

    def __init__(self, name: str, holds: bool) -> None:
        self.name = name
        self.holds = holds

    def __repr__(self) -> str:
        return f"<invariant {self.name!r}: {self.holds!r}>"
