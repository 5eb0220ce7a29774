"""What runs inside what: the nurseries of one opened plane.

Owns the order in which writer, checkpoints, runs and recovery begin and end. Refuses to go on after an error from the
disk (W9). Invariant: the journal outlives every run, and an end that cut nothing is told to the next opener.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec
import trio

from agentplane.core import bounds
from agentplane.core.errors import AgentplaneError, StoreFailed
from agentplane.engine.clockwatch import ClockWatch
from agentplane.engine.delivery import Delivery
from agentplane.engine.duties import Duties
from agentplane.engine.executor import Capabilities
from agentplane.engine.observer import Observe
from agentplane.engine.plane_state import PlaneState
from agentplane.engine.recovery import Recovery
from agentplane.engine.redelivery import Redelivery
from agentplane.engine.runs import Runs
from agentplane.engine.scheduling import Schedule, Scheduler
from agentplane.engine.sweep import EVERY_S, Sweep
from agentplane.engine.waking import Waker
from agentplane.engine.world import World
from agentplane.journal import lists
from agentplane.journal.checkpoints import Checkpointer
from agentplane.journal.room import Room
from agentplane.journal.store import Store
from agentplane.journal.writer import Writer

TICK_S = 1.0


class Parts(msgspec.Struct, frozen=True):
    """What a plane is made of while it is open."""

    writer: Writer
    runs: Runs
    recovery: Recovery
    sweep: Sweep
    delivery: Delivery
    state: PlaneState
    clock: ClockWatch


class FailStop:
    """The first error from the disk, and who waits for it."""

    def __init__(self) -> None:
        self.error: AgentplaneError | None = None
        self._broken = trio.Event()

    def tell(self, error: AgentplaneError) -> None:
        if self.error is None:
            self.error = error
            self._broken.set()

    async def watch(self) -> None:
        """Raises that error in its nursery, which ends everything inside."""
        await self._broken.wait()
        raise self.error or StoreFailed("The store failed.")


@asynccontextmanager
async def running(
    store: Store, skills: Capabilities, world: World, *, recover: bool, lease_ttl_s: float, max_running: int,
    schedules: Sequence[Schedule] = (), kept_s: int = bounds.EVENT_KEPT_S, every_s: float = EVERY_S,
) -> AsyncIterator[Parts]:  # fmt: skip
    """Run what ``store`` holds for as long as the body lasts. Raises StoreFailed when the disk fails under it, and what
    the body raises, as it is."""
    world.incarnation = store.found.incarnation
    stop = FailStop()
    token = trio.lowlevel.current_trio_token()
    checkpointer = Checkpointer(store, lambda error: token.run_sync_soon(stop.tell, error))
    writer = Writer(
        checkpointer.watched_connection,
        store.tenant,
        world.now_ms,
        observe=world.observe,
        on_poison=stop.tell,
        before_commit=store.count_commit,
        after_commit=checkpointer.between,
    )
    writer.start()
    checkpointer.start()
    begun: list[Parts] = []
    fault: Exception | None = None
    try:
        async with trio.open_nursery() as outer:
            outer.start_soon(stop.watch)
            async with trio.open_nursery() as nursery:
                parts = await _begin(store, writer, skills, world, nursery, stop, recover, lease_ttl_s, max_running,
                                     schedules, kept_s, every_s)  # fmt: skip
                begun.append(parts)
                try:
                    yield parts
                except Exception as error:
                    # Raised again below, outside of the nurseries, so that the caller sees what it raised and not a
                    # group.
                    fault = error
                nursery.cancel_scope.cancel()
            outer.cancel_scope.cancel()
    except BaseExceptionGroup:
        if stop.error is not None:
            raise stop.error from None
        raise
    finally:
        with trio.CancelScope(shield=True):
            if stop.error is None:
                with trio.move_on_after(bounds.FLUSH_MAX_S):
                    await _say_clean(writer, store.identity.opening, begun)
            await writer.close()
            checkpointer.stop(copy=stop.error is None)
            await world.close()
    if fault is not None:
        raise fault


async def _begin(
    store: Store,
    writer: Writer,
    skills: Capabilities,
    world: World,
    nursery: trio.Nursery,
    stop: FailStop,
    recover: bool,
    lease_ttl_s: float,
    max_running: int,
    schedules: Sequence[Schedule],
    kept_s: int,
    every_s: float,
) -> Parts:
    identity = store.identity
    runs = Runs(
        store,
        writer,
        world,
        skills,
        nursery,
        owner=identity.owner,
        opening=identity.opening,
        ttl_s=lease_ttl_s,
        max_running=max_running,
    )
    state = await PlaneState.load(store, writer, world)
    recovery = Recovery(
        runs,
        cautious=not store.found.clean,
        may_run=state.may_run,
        halted=lambda: state.paused is not None or runs.gate.draining,
    )
    waker = Waker(
        runs,
        may_run=state.may_run,
        halted=lambda: state.paused is not None or runs.gate.draining,
    )
    delivery = Delivery(waker)
    sweep = Sweep(
        waker, Duties(waker), Redelivery(delivery, kept_s), Scheduler(runs, schedules, halted=waker.halted), every_s,
        held=lambda: store.held is not None,
    )  # fmt: skip
    clock = ClockWatch(world, store.found.last_ms)
    nursery.start_soon(clock.forever)
    nursery.start_soon(runs.renew_forever)
    nursery.start_soon(_watch, store, stop, world.observe)
    if recover:
        nursery.start_soon(recovery.forever)
        nursery.start_soon(sweep.forever)
    runs.on_suspend = sweep.kick
    return Parts(writer, runs, recovery, sweep, delivery, state, clock)


async def _say_clean(writer: Writer, opening: str, begun: list[Parts]) -> None:
    """A drained end is told to the next opener, so that what was parked is not counted as a death (P4)."""
    if not begun or begun[0].runs.dropped:
        return
    try:
        await writer.do(lambda tx: lists.set_state(tx, "closed_clean", opening))
    except AgentplaneError:
        return  # an end that cannot be told is an unclean one, which the next opener assumes by itself


async def _watch(store: Store, stop: FailStop, observe: Observe) -> None:
    """Once a tick: how much room there is, and whether the files are those that were opened (W10)."""
    before = Room.ENOUGH
    while True:
        try:
            state = await trio.to_thread.run_sync(store.room.look)
            if state is not before:
                before = state
                observe("store.room", state=state.name.lower(), free=store.room.free)
            store.same_files()
        except OSError as error:
            stop.tell(StoreFailed(f"The directory of the store cannot be asked for room: {error.strerror}."))
        except StoreFailed as error:
            stop.tell(error)
        await trio.sleep(TICK_S)
