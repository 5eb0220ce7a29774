"""A blocking skill in its thread, with the step's API without ``await``.

Owns the bridge: calls made in the thread are performed by the step's own task. Refuses calls from other threads and,
once the step was cut, every call. Invariant: the thread never touches the loop's state itself.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import outcome
import trio

from agentplane.authoring.proposal import Decision, Proposal
from agentplane.authoring.types import CallDescription
from agentplane.authoring.waiting import CaseView, Event
from agentplane.core.errors import InvalidRequest
from agentplane.engine.blocking_group import BlockingOpening
from agentplane.engine.cases import CaseHandle
from agentplane.engine.context import StepContext


class BlockingStep:
    """What a ``def`` skill is handed as ``cx``."""

    def __init__(self, cx: StepContext, token: trio.lowlevel.TrioToken, asks: trio.MemorySendChannel[Any]) -> None:
        self._cx = cx
        self._token = token
        self._asks = asks
        self._thread: int | None = None
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.abandoned = False

    @property
    def run(self) -> str:
        return self._cx.run

    def do(self, call: CallDescription, *, approval: Decision | None = None) -> Any:
        return self._ask(partial(self._cx.do, approval=approval), call)

    def event(self, kind: str, **bounds: Any) -> Event:
        found: Event = self._ask(partial(self._cx.event, **bounds), kind)
        return found

    def task(self, proposal: Proposal) -> Decision:
        decided: Decision = self._ask(self._cx.task, proposal)
        return decided

    def deadline(self, name: str, **rule: Any) -> int:
        return int(self._ask(partial(self._cx.deadline, **rule), name))

    def met(self, name: str) -> bool:
        return bool(self._ask(self._cx.met, name))

    def waive(self, name: str) -> bool:
        return bool(self._ask(self._cx.waive, name))

    @property
    def case(self) -> BlockingCase:
        return BlockingCase(self._cx.case, self._ask)

    def gather(self, *calls: CallDescription) -> list[Any]:
        return list(self._ask(self._cx.gather, *calls))

    def now(self) -> int:
        return int(self._ask(self._cx.now))

    def uuid(self) -> str:
        return str(self._ask(self._cx.uuid))

    def random(self) -> float:
        return float(self._ask(self._cx.random))

    def sleep(self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> int:
        total_s = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
        return int(self._ask(lambda: self._cx.sleep(seconds=total_s)))

    def sleep_until(self, instant: int | datetime) -> int:
        return int(self._ask(self._cx.sleep_until, instant))

    def group(self, name: str, resources: Sequence[str]) -> BlockingOpening:
        return BlockingOpening(self._cx.groups, self._ask, name, resources)

    def changed(self, name: str) -> bool:
        return bool(self._ask(self._cx.changed, name))

    def begin(self) -> None:
        self._thread = threading.get_ident()

    def abandon(self) -> None:
        """The step was cut: wake a waiting thread with a refusal, and refuse every later call."""
        self.abandoned = True
        self._answers.put(outcome.Error(InvalidRequest("The step was cut; its context cannot be used any more.")))

    def answer(self, value: Any) -> None:
        self._answers.put(value)

    def _ask(self, method: Callable[..., Any], *args: Any) -> Any:
        if threading.get_ident() != self._thread:
            raise InvalidRequest("cx may be used only by the thread that the step was given to.")
        if self.abandoned:
            raise InvalidRequest("The step was cut; its context cannot be used any more.")
        self._token.run_sync_soon(self._send, method, args)
        return self._answers.get().unwrap()

    def _send(self, method: Callable[..., Any], args: tuple[Any, ...]) -> None:
        try:
            self._asks.send_nowait((method, args))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.abandon()


class BlockingCase:
    """``cx.case`` of a ``def`` skill."""

    def __init__(self, case: CaseHandle, ask: Callable[..., Any]) -> None:
        self._case = case
        self._ask = ask

    @property
    def id(self) -> str:
        return self._case.id

    def read(self) -> CaseView:
        view: CaseView = self._ask(self._case.read)
        return view

    def write(self, state: Any, *, expected: int) -> int:
        return int(self._ask(partial(self._case.write, expected=expected), state))

    def set_status(self, status: str) -> str:
        return str(self._ask(self._case.set_status, status))

    def close(self) -> None:
        self._ask(self._case.close)

    def reopen(self) -> None:
        self._ask(self._case.reopen)


async def run_blocking(cx: StepContext, body: Callable[..., Any], request: Any, limiter: trio.CapacityLimiter) -> Any:
    """Run ``body(cx, request)`` in a thread, serving its calls from this task, until it ends or this task is
    cancelled."""
    send, receive = trio.open_memory_channel[Any](1)
    step = BlockingStep(cx, trio.lowlevel.current_trio_token(), send)
    result: outcome.Outcome[Any] | None = None

    def in_thread() -> Any:
        step.begin()
        return body(step, request)

    async def thread() -> None:
        nonlocal result
        result = await _captured(in_thread, limiter)
        await send.aclose()

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(thread)
            async for method, args in receive:
                step.answer(await outcome.acapture(method, *args))
    finally:
        step.abandon()
    if result is None:
        raise InvalidRequest("The step's thread ended without a result.")
    return result.unwrap()


async def _captured(body: Callable[[], Any], limiter: trio.CapacityLimiter) -> outcome.Outcome[Any]:
    def captured() -> outcome.Outcome[Any]:
        return outcome.capture(body)

    return await trio.to_thread.run_sync(captured, abandon_on_cancel=True, limiter=limiter)
