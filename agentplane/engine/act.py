"""Performing one attempt: the call handed to an effect's body, and what its ending means.

Owns the scope an act runs in, its threads, and the translation of an ending into a record's members. Refuses to guess:
an exception of a mutating effect that says nothing is doubt. Invariant (P11): only the run's own scope cuts an act;
``timeout_s`` ends it as doubt; between its return and the queueing of its outcome there is no checkpoint.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from agentplane.authoring.effect import Effect, to_data
from agentplane.authoring.raising import DidNotHappenError, EffectError, InDoubtError, ReplayedFailureError
from agentplane.core import bounds, canonical
from agentplane.core.dispositions import Disposition
from agentplane.core.errors import Settings, SkillFault
from agentplane.core.records import Blob, EffectDone, EffectFailed, Fault, Record, Spend
from agentplane.core.recovery import DidNotHappen, Inconclusive, Landed
from agentplane.engine.http import BlockingHttp, GuardedHttp
from agentplane.engine.stops import Stop

if TYPE_CHECKING:
    from agentplane.engine.world import World

SPEND_MAX = 2**53
"""One attempt's bill: exact in every JSON reader."""

Ending = tuple[type[Record], dict[str, object], dict[bytes, bytes]]


class CallContext:
    """What an effect's body is handed; ``http`` is async or blocking as the body is."""

    def __init__(self, world: World, effect: Effect, run: str, key: str, attempt: int, *, blocking: bool) -> None:
        self._world = world
        self._effect = effect
        self._blocking = blocking
        self._http: GuardedHttp | BlockingHttp | None = None
        self.run = run
        self.idempotency_key = key
        self.attempt = attempt
        self.spent = Spend()
        self.abandoned = False
        self.never_began = False

    @property
    def http(self) -> Any:
        self._alive()
        if self._http is None:
            world, mutates, earlier = self._world, self._effect.mutates, self.attempt > 1
            now_ms = world.now_ms()
            if self._blocking:
                self._http = BlockingHttp(world.blocking_client(), mutates=mutates, earlier=earlier, now_ms=now_ms)
            else:
                self._http = GuardedHttp(world.client(), mutates=mutates, earlier=earlier, now_ms=now_ms)
        return self._http

    def secret(self, name: str) -> str:
        self._alive()
        if name not in self._effect.secrets:
            raise SkillFault(
                f"The effect {self._effect.kind} does not declare the secret {name}; add it to secrets=[...]."
            )
        return self._world.secrets.read(name)

    def setting(self, name: str) -> Any:
        self._alive()
        if name not in self._world.settings:
            raise Settings(
                f"plane.toml has no setting {name!r}; [settings] has "
                f"{', '.join(sorted(self._world.settings)) or 'none'}."
            )
        return self._world.settings[name]

    def spend(self, *, tokens: int = 0, minor_units: int = 0) -> None:
        self._alive()
        for amount in (tokens, minor_units):
            if type(amount) is not int or not 0 <= amount <= SPEND_MAX:
                raise SkillFault(f"call.spend takes whole amounts from 0 to {SPEND_MAX}, not {amount!r}.")
        self.spent = self.spent.plus(Spend(tokens=tokens, minor_units=minor_units))

    def _alive(self) -> None:
        if self.abandoned:
            raise InDoubtError("this attempt was abandoned; nothing it does is recorded any more")


async def act(world: World, effect: Effect, args: dict[str, object], call: CallContext) -> Ending:
    """Run the body once; the outcome record to queue. Raises only trio.Cancelled (the run's scope) and Stop."""
    began = time.monotonic()
    try:
        with trio.move_on_after(effect.timeout_s) as limit:
            output = await _invoke(world, effect.body, call, args, blocking=effect.blocking)
        if limit.cancelled_caught:
            call.abandoned = True
            failure: EffectError = InDoubtError(f"no answer within {effect.timeout_s:g} s")
            if call.never_began:
                failure = DidNotHappenError(f"no thread was free for it within {effect.timeout_s:g} s")
            return _failed(world, effect, call, failure, began)
    except EffectError as error:
        return _failed(world, effect, call, error, began)
    except (Stop, trio.Cancelled, KeyboardInterrupt):
        raise
    except BaseException as error:
        # Doubt is kept: the record says in_doubt for a mutation, and the type of what was raised. What is no Exception
        # (SystemExit, a group) would else end the plane and leave the announcement without an outcome.
        if holds_cancellation(error):
            raise
        return _failed(world, effect, call, error, began)
    return _done(world, call, output, began)


def holds_cancellation(error: BaseException) -> bool:
    """Whether trio's own cancellation, or an interrupt, is in ``error``."""
    if isinstance(error, BaseExceptionGroup):
        return any(holds_cancellation(one) for one in error.exceptions)
    return isinstance(error, trio.Cancelled | KeyboardInterrupt)


def fresh(value: object) -> object:
    """A value of its own: what skill code does to it reaches neither history nor another walk."""
    if type(value) is dict:
        return {name: fresh(member) for name, member in value.items()}
    return [fresh(member) for member in value] if type(value) is list else value


def verdict_members(
    world: World, verdict: Landed | DidNotHappen | Inconclusive, *, early: bool
) -> tuple[dict[str, object], dict[bytes, bytes]]:
    """What a probe said as a record's members, and what of it is kept beside the record. A landed verdict whose output
    holds a secret or is too large for any store keeps its word and loses the output."""
    if isinstance(verdict, DidNotHappen):
        return {"verdict": "did_not_happen", "early": early}, {}
    if isinstance(verdict, Inconclusive):
        return {
            "verdict": "inconclusive",
            "early": early,
            "detail": world.secrets.sentence(verdict.reason or "it could not tell"),
        }, {}
    try:
        raw = canonical.encode(to_data(verdict.output))
    except (TypeError, canonical.CanonicalError, RecursionError) as error:
        detail = world.secrets.sentence(f"the probe's output is not data: {error}")
        return {"verdict": "inconclusive", "early": early, "detail": detail}, {}
    if any(secret in raw for secret in world.secrets.handed_out()):
        return {"verdict": "landed", "detail": "the output held a secret and was withheld"}, {}
    if len(raw) > bounds.BLOB_BYTES_MAX:
        return {"verdict": "landed", "detail": f"the output has {len(raw)} bytes and was not kept"}, {}
    if len(raw) > bounds.VALUE_BYTES_MAX:
        digest = hashlib.sha256(raw).digest()
        return {"verdict": "landed", "blob": Blob(digest=digest.hex(), size=len(raw))}, {digest: raw}
    return {"verdict": "landed", "output": msgspec.json.decode(raw)}, {}


async def ask(
    world: World, effect: Effect, args: dict[str, object], call: CallContext
) -> Landed | DidNotHappen | Inconclusive:
    """Run the probe once. Whatever it raises is inconclusive with that error (P5)."""
    probe = effect.probe
    if probe is None:
        return Inconclusive("the effect has no probe in this build")
    try:
        with trio.move_on_after(effect.timeout_s):
            answer = await _invoke(world, probe, call, args, blocking=effect.probe_blocking)
            if isinstance(answer, Landed | DidNotHappen | Inconclusive):
                return answer
            return Inconclusive(f"the probe answered {type(answer).__name__}, not Landed, DidNotHappen or Inconclusive")
    except (Stop, trio.Cancelled, KeyboardInterrupt):
        raise
    except BaseException as error:
        if holds_cancellation(error):
            raise
        return Inconclusive(world.secrets.sentence(f"{type(error).__name__}: {world.secrets.sentence(error)}"))
    return Inconclusive(f"no answer of the probe within {effect.timeout_s:g} s")


async def _invoke(
    world: World, body: Callable[..., Any], call: CallContext, args: dict[str, object], *, blocking: bool
) -> Any:
    if not blocking:
        return await body(call, **args)
    ended = trio.Event()
    token = trio.lowlevel.current_trio_token()
    # Whoever comes first decides whether the body runs at all: a thread that was given up while it waited to begin
    # never
    # acts, and that nothing happened is then known.
    claim = threading.Lock()

    def in_thread() -> Any:
        if not claim.acquire(blocking=False):
            return None
        try:
            return body(call, **args)
        finally:
            try:
                token.run_sync_soon(ended.set)
            except trio.RunFinishedError:
                pass  # the loop is gone, and nobody waits for this thread any more

    world.threads[call] = ended
    try:
        return await trio.to_thread.run_sync(in_thread, abandon_on_cancel=True, limiter=world.effect_threads)
    finally:
        if claim.acquire(blocking=False):
            call.never_began = True
        if ended.is_set() or call.never_began:
            world.threads.pop(call, None)
        else:
            call.abandoned = True


def _done(world: World, call: CallContext, output: Any, began: float) -> Ending:
    """An outcome is never refused: too large goes beside the record, what is not data is landed and permanent."""
    members: dict[str, object] = {"spend": call.spent, "elapsed_ms": _since(began)}
    try:
        raw = canonical.encode(to_data(output))
    except (TypeError, canonical.CanonicalError, RecursionError) as error:
        path = world.secrets.sentence(getattr(error, "path", None) or "$")
        fault = Fault(code="not_data", message=world.secrets.sentence(f"the output is not data: {error}"), path=path)
        return EffectFailed, members | {"fault": fault, "disposition": Disposition.LANDED, "permanent": True}, {}
    for secret in world.secrets.handed_out():
        if secret in raw:
            return EffectDone, members | {"output": None, "withheld": ["output"]}, {}
    if len(raw) <= bounds.VALUE_BYTES_MAX:
        # As it will be read back: a tuple is a list from the first walk on.
        return EffectDone, members | {"output": msgspec.json.decode(raw)}, {}
    if len(raw) > bounds.BLOB_BYTES_MAX:
        fault = Fault(code="too_large", message=f"the output has {len(raw)} bytes, over {bounds.BLOB_BYTES_MAX}")
        return EffectFailed, members | {"fault": fault, "disposition": Disposition.LANDED, "permanent": True}, {}
    digest = hashlib.sha256(raw).digest()
    return EffectDone, members | {"blob": Blob(digest=digest.hex(), size=len(raw))}, {digest: raw}


def _failed(world: World, effect: Effect, call: CallContext, error: BaseException, began: float) -> Ending:
    members: dict[str, object] = {"spend": call.spent, "elapsed_ms": _since(began)}
    disposition, permanent, code = Disposition.IN_DOUBT, False, "raised"
    if isinstance(error, EffectError):
        disposition, permanent, code = error.disposition, bool(error.permanent), error.code
        if isinstance(error.retry_after_s, int | float) and 0 <= error.retry_after_s < bounds.EFFECT_TIMEOUT_MAX_S:
            members["retry_after_ms"] = round(error.retry_after_s * 1000)
        if isinstance(error, ReplayedFailureError):
            members["replayed_failure"] = True
    elif isinstance(error, Settings | SkillFault) and call.attempt == 1 and not effect.mutates:
        permanent = True
    kind = None if isinstance(error, EffectError) else type(error).__name__
    members["fault"] = Fault(code=code, message=world.secrets.sentence(error), type=kind)
    return EffectFailed, members | {"disposition": disposition, "permanent": permanent}, {}


def _since(began: float) -> int:
    return round((time.monotonic() - began) * 1000)
