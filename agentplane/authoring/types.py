"""The types that a skill and an effect are handed.

Owns ``Call`` and ``Step`` as protocols, and the call description between them. Refuses state: the engine has it.
Invariant: what is named here is the public surface; a blocking skill gets the same names without ``await``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from agentplane.authoring.effect import Effect
    from agentplane.authoring.group import Invariant
    from agentplane.authoring.sql import SqlDescription


class CallDescription:
    """An effect with its arguments bound: data, until ``cx.do`` is given it."""

    __slots__ = ("args", "effect")

    def __init__(self, effect: Effect, args: dict[str, object]) -> None:
        self.effect = effect
        self.args = args

    def __repr__(self) -> str:
        return f"<call of {self.effect.kind}; `await cx.do(...)` performs it>"


class Answer(Protocol):
    """A complete 2xx answer. ``json()`` raises LandedError when the body is not JSON."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    def json(self) -> Any: ...

    def text(self) -> str: ...


class Http(Protocol):
    """The guarded client: what goes wrong is raised as the disposition it has. No redirects, no ambient proxy."""

    async def get(self, url: str, **options: Any) -> Answer: ...

    async def post(self, url: str, **options: Any) -> Answer: ...

    async def put(self, url: str, **options: Any) -> Answer: ...

    async def patch(self, url: str, **options: Any) -> Answer: ...

    async def delete(self, url: str, **options: Any) -> Answer: ...

    async def request(self, method: str, url: str, **options: Any) -> Answer: ...


@runtime_checkable
class Call(Protocol):
    """One attempt of one effect, as its body sees it."""

    @property
    def idempotency_key(self) -> str:
        """36 characters, the same through every attempt, takeover, restart, restore and build."""
        ...

    @property
    def attempt(self) -> int: ...

    @property
    def run(self) -> str: ...

    @property
    def http(self) -> Http: ...

    def secret(self, name: str) -> str:
        """A declared credential; never journaled, never printed."""
        ...

    def setting(self, name: str) -> Any:
        """A value of ``[settings]`` in plane.toml."""
        ...

    def spend(self, *, tokens: int = 0, minor_units: int = 0) -> None:
        """Add to this attempt's bill, recorded with its outcome whatever it is."""
        ...


class Group(Protocol):
    """Several calls of one step that take together, or are taken back together."""

    async def reversible(
        self, resource: str, call: CallDescription, *, undo: CallDescription | Callable[[Any], CallDescription]
    ) -> Any:
        """Perform ``call`` now; ``undo`` takes it back, or makes the call that does from its output."""
        ...

    async def read(self, resource: str, call: CallDescription) -> Any:
        """Perform a call that changes nothing, now."""
        ...

    def deferred(self, resource: str, call: CallDescription) -> None:
        """Hold ``call`` back until the group commits."""
        ...

    def atomic(self, resource: str, statement: SqlDescription) -> None:
        """Run a statement over ``app_`` tables in the journal's own transaction, when the group commits."""
        ...

    async def commit(self, *invariants: Invariant) -> None:
        """Check what must hold, then let everything become permanent. Raises GroupAborted."""
        ...

    async def abort(self, reason: str = "abandoned") -> None:
        """Take back what landed."""
        ...


class GroupOpening(Protocol):
    """What ``cx.group`` gives: to be awaited, or entered with ``async with``."""

    def __await__(self) -> Generator[Any, Any, Group]: ...

    async def __aenter__(self) -> Group: ...

    async def __aexit__(self, *ending: Any) -> bool | None: ...


@runtime_checkable
class Step(Protocol):
    """The context of a step: every outward thing a skill does goes through it."""

    @property
    def run(self) -> str: ...

    async def do(self, call: CallDescription) -> Any:
        """Perform one effect, or read its recorded outcome back. Raises EffectFailed."""
        ...

    async def gather(self, *calls: CallDescription) -> list[Any]:
        """Perform calls side by side; all are recorded before the worst is raised."""
        ...

    async def now(self) -> int:
        """Milliseconds UTC, recorded."""
        ...

    async def uuid(self) -> str: ...

    async def random(self) -> float: ...

    async def sleep(self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> int:
        """Wait that long without running: the run suspends, and goes on when it is time. The instant, ms UTC."""
        ...

    async def sleep_until(self, instant: int | datetime) -> int:
        """Wait until ``instant`` (ms UTC, or an aware datetime)."""
        ...

    def group(self, name: str, resources: Sequence[str]) -> GroupOpening:
        """Open an effect group: ``async with cx.group("checkout", ["inventory", "notify"]) as g``."""
        ...

    async def changed(self, name: str) -> bool:
        """True for a run that reaches this place fresh, False for one whose history passed it without it (P18)."""
        ...
