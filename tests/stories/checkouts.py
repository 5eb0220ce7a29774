"""What the stories of groups share: a desk that holds, charges and mails at one provider, and a step that works in a
group.

Nothing here asserts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from agentplane import effect, skill
from agentplane.authoring.skill import Skill
from agentplane.core.records import EffectStarted, GroupOpened, GroupSettled
from agentplane.engine.plane import Plane
from agentplane.journal import application
from agentplane.testkit import FakeProvider
from stories.scenes import AT_ONCE, of_kind, paying

RESOURCES = ("stock", "money", "ledger", "notify")
TABLE = "CREATE TABLE app_entries (id TEXT PRIMARY KEY, amount INTEGER NOT NULL CHECK (amount > 0)) STRICT;"

Within = Callable[[Any, Any, Any], Awaitable[Any]]
"""What a step does in its open group: called with the group, the step and its request."""


class Desk:
    """A provider, and the calls of a checkout at it. ``terms`` are those of the hold."""

    def __init__(self, **terms: Any) -> None:
        self.provider = FakeProvider()
        self.hold = paying(self.provider, "desk.hold", **terms)
        self.charge = paying(self.provider, "desk.charge")
        self.release = paying(self.provider, "desk.release")
        self.mail = paying(self.provider, "desk.mail")
        self.note = paying(self.provider, "desk.note")

        @effect("desk.look", mutates=False, retry=AT_ONCE)
        async def look(call: Any) -> int:
            return 7

        self.look = look

    async def held(self, g: Any, order: str = "1") -> Any:
        """A hold whose release is made from what it answered."""
        return await g.reversible("stock", self.hold(order=order),
                                  undo=lambda out: self.release(order=out["reference"]))  # fmt: skip

    def deeds(self) -> list[str]:
        """What the provider's book holds, in order."""
        return [row.name for row in self.provider.book]

    def told(self) -> list[tuple[str, str]]:
        """The same, each with what it was about."""
        return [(row.name, row.body["order"]) for row in self.provider.book]


def grouped(within: Within, name: str = "story.run", **terms: Any) -> Skill:
    """A skill that does ``within`` in an open group, and answers what that gave."""

    @skill(name, **terms)
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        async with cx.group("checkout", RESOURCES) as g:
            return await within(g, cx, request)

    return body


def ending(plane: Plane, run: str) -> tuple[str, str | None] | None:
    """How the run's last group ended, and what stopped it; None for one that is open."""
    opened, settled = of_kind(plane, run, GroupOpened), of_kind(plane, run, GroupSettled)
    if not settled or (opened and opened[-1].index != settled[-1].index):
        return None
    return settled[-1].outcome, settled[-1].detail


def asked(plane: Plane, run: str) -> list[tuple[str, str | None]]:
    """The announcements of the run in order: kind and role in a group."""
    return [(one.descriptor.kind, one.role) for one in of_kind(plane, run, EffectStarted)]


async def with_table(plane: Plane, script: str = TABLE) -> None:
    """The application's own tables."""
    await plane.writer.do(lambda tx: application.migrate_app(tx, script), solo=True)


def entries(plane: Plane) -> list[tuple[Any, ...]]:
    """What the application's table holds, as it is committed."""
    found: list[tuple[Any, ...]] = plane.store.readers.read(
        lambda tx: tx.all("SELECT id, amount FROM app_entries ORDER BY id")
    )
    return found
