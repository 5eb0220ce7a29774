"""The types that a skill and an effect are handed.

Owns ``Call``, ``Step``, ``Waits`` and ``Case`` as protocols, and the call description between them. Refuses state: the
engine has it. Invariant: what is named here is the public surface; a blocking skill gets the same names without
``await``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from agentplane.authoring.effect import Effect
    from agentplane.authoring.group import Invariant
    from agentplane.authoring.proposal import Decision, Proposal
    from agentplane.authoring.sql import SqlDescription
    from agentplane.authoring.waiting import CaseView, Event


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


class Case(Protocol):
    """The matter of the run: what many runs share. Read and written only as effects."""

    @property
    def id(self) -> str: ...

    async def read(self) -> CaseView:
        """The state with its version, and the status."""
        ...

    async def write(self, state: Any, *, expected: int) -> int:
        """Write the state over the version that was read; the new version. Raises EffectFailed (case_conflict) where
        somebody wrote meanwhile."""
        ...

    async def set_status(self, status: str) -> str:
        """Move to open, awaiting_external, awaiting_human, escalated or closed; the status before."""
        ...

    async def close(self) -> None:
        """The matter is over. Raises EffectFailed (obligations_open) while something is owed."""
        ...

    async def reopen(self) -> None:
        """Take the matter up again, with those of its keys that are free still."""
        ...


class Waits(Protocol):
    """What outlives a run, as a step reaches it: waits, the case, and what is owed."""

    async def sleep(self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> int:
        """Wait that long without running: the run suspends, and goes on when it is time. The instant, ms UTC."""
        ...

    async def sleep_until(self, instant: int | datetime) -> int:
        """Wait until ``instant`` (ms UTC, or an aware datetime)."""
        ...

    async def event(
        self, kind: str, *, correlation: Mapping[str, str], deadline: str | None = None,
        until: int | datetime | None = None, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0,
        sender: str | None = None,
    ) -> Event:  # fmt: skip
        """Wait, without running, for an event of ``kind`` about all of ``correlation`` (keys by namespace).

        One end of the wait is said: ``deadline`` names one that this run registered, ``until`` is an instant, the rest
        count from now. ``sender``: only from this deliverer, such as ``peer:shop``. Raises WaitTimedOut.
        """
        ...

    async def task(self, proposal: Proposal) -> Decision:
        """Wait, without running, until a person has decided or the window of the proposal is over."""
        ...

    @property
    def case(self) -> Case:
        """The case of this run; without one each call of it raises InvalidRequest."""
        ...

    async def deadline(
        self, name: str, *, days: int = 0, hours: int = 0, minutes: int = 0, working_days: int | None = None,
        on: date | str | None = None, at: str | None = None, tz: str | None = None, cut_off: str | None = None,
        holidays: str | None = None, dst: str | None = None, warn_hours: float | None = None,
    ) -> int:  # fmt: skip
        """Register the obligation ``name`` of the case, or of the run that has none; when it is due, ms UTC.

        Reckoned through a calendar: an offset, ``working_days`` of the ``holidays`` of a place (``DE-BE``), or the day
        ``on``; ``at`` a time of day in ``tz``; behind ``cut_off`` a day counts as the next; ``dst`` says what becomes
        of a time that a change of the clock makes twice or never: shift, skip, first, last. Raises EffectFailed
        (deadline_open) while one of that name is open.
        """
        ...

    async def met(self, name: str) -> bool:
        """What was owed was done; False where it had been breached, or given up, before."""
        ...

    async def waive(self, name: str) -> bool:
        """Nobody waits for it any more; False where it had ended before."""
        ...


@runtime_checkable
class Step(Waits, Protocol):
    """The context of a step: every outward thing a skill does goes through it."""

    @property
    def run(self) -> str: ...

    async def do(self, call: CallDescription, *, approval: Decision | None = None) -> Any:
        """Perform one effect, or read its recorded outcome back. Raises EffectFailed.

        ``approval``: the decision that this very call acts on, once; what a reviewer amended is what is performed.
        Raises ApprovalRefused where it was not approved, is not the call that was, or was acted on elsewhere.
        """
        ...

    async def gather(self, *calls: CallDescription) -> list[Any]:
        """Perform calls side by side; all are recorded before the worst is raised."""
        ...

    async def now(self) -> int:
        """Milliseconds UTC, recorded."""
        ...

    async def uuid(self) -> str: ...

    async def random(self) -> float: ...

    def group(self, name: str, resources: Sequence[str]) -> GroupOpening:
        """Open an effect group: ``async with cx.group("checkout", ["inventory", "notify"]) as g``."""
        ...

    async def changed(self, name: str) -> bool:
        """True for a run that reaches this place fresh, False for one whose history passed it without it (P18)."""
        ...
