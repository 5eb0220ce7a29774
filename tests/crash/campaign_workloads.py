"""What the fault campaign runs: six small pieces of a plane's life, each over a disk of its own.

It owns what a workload does, what it begins from, and how a session keeps count of what was acknowledged. It judges
nothing. A unit's answer is an acknowledgement of its commit and of every commit before it (W1), and of all records
that stood then.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from random import Random
from typing import Any

import apsw
import msgspec
import trio
import trio.testing

from agentplane import Recovery, RetryPolicy, effect, skill
from agentplane.authoring.skill import Skill
from agentplane.core.errors import AgentplaneError, StoreFailed
from agentplane.engine import nurseries
from agentplane.engine.plane import Plane, wall_ms
from agentplane.journal import levels, schema
from agentplane.journal import store as stores
from agentplane.journal.checkpoints import Checkpointer
from agentplane.journal.mark import Mark, read_mark, write_mark
from agentplane.journal.room import DiskRoom
from agentplane.journal.store import Identity, Store, from_sqlite
from agentplane.journal.tx import Tx, number, raw, text
from agentplane.journal.units import Unit
from agentplane.testkit.fakes import HANG, HANG_AFTER, FakeProvider, Snapshot
from agentplane.testkit.faults import FaultVFS, Image
from agentplane.testkit.inline import open_inline, trio_now_ms

AGE_MS = 60_000
"""How much later than its predecessor every opening finds the clock: a mock clock begins anew in each loop."""
HANG_S = 30.0
SECOND = schema.Migration(
    "a second level, planted by the campaign",
    "CREATE TABLE kept (tenant TEXT NOT NULL, run TEXT NOT NULL, note TEXT NOT NULL, PRIMARY KEY (tenant, run)) STRICT;"
    "INSERT INTO kept SELECT tenant, run, capability FROM run; ALTER TABLE run ADD COLUMN kept INTEGER;"
    "UPDATE run SET kept = 1;",
)
"""This build has one level; the step to a second one is carried out by its own ``schema.migrate``."""
STORE = "plane.db"


class Acked(msgspec.Struct, frozen=True):
    """What somebody was told: so many commits of the store, and these records (run, seq) with their hashes."""

    commits: int = 0
    records: frozenset[tuple[str, int, bytes]] = frozenset()


class World(msgspec.Struct, frozen=True):
    """A disk as a boot finds it, how the provider stands, and what was acknowledged."""

    files: dict[str, bytes]
    mark: Mark | None
    provider: Snapshot
    acked: Acked


def lay_out(world: World, directory: Path) -> Path:
    """The world's files in a new directory, with its mark: the inode alone is the new file's."""
    store = directory / STORE
    for name, content in world.files.items():
        (directory / name).write_bytes(content)
    if world.mark is not None and store.exists():
        write_mark(store, msgspec.structs.replace(world.mark, inode=store.stat().st_ino))
    return store


class Session:
    """One directory and provider, and what planes over them acknowledged. ``vfs`` None: the platform's own disk."""

    def __init__(
        self, store: Path, workload: Workload, provider: FakeProvider, *, vfs: FaultVFS | None = None,
        acked: Acked | None = None, opening: int = 0,
    ) -> None:  # fmt: skip
        self.store = store
        self.workload = workload
        self.provider = provider
        self.vfs = vfs
        self.acked = acked or Acked()
        self.acted: list[str] = []
        self.opening = opening

    @asynccontextmanager
    async def opened(self, **options: Any) -> AsyncIterator[Plane]:
        """An ordinary plane, listened to. Runs are taken over only by ``to_rest``, so that points keep their order."""
        self.opening += 1
        later_ms = self.opening * AGE_MS
        threads = self.workload.threads
        now_ms = wall_ms if threads else trio_now_ms
        options = {
            "skills": skills(self.provider), "vfs": self.vfs.name if self.vfs else None, "observe": self._observe,
            "now_ms": lambda: now_ms() + later_ms, "recover": False, **options,
        }  # fmt: skip
        with arranged(self.workload.pages):
            if len(schema.MIGRATIONS) < schema.LEVEL:
                self._raise(options["now_ms"]())
            async with (Plane.open if threads else open_inline)(self.store, **options) as plane:
                self._listen(plane)
                yield plane

    def _raise(self, now_ms: int) -> None:
        """What ``upgrade --commit`` does behind its copy."""
        name = f"raising-{self.opening}"
        identity = Identity(opening=name, owner=name, build="campaign", now_ms=now_ms, new_incarnation=name)
        store = Store.open(self.store, "default", identity, vfs=self.vfs.name if self.vfs else None)
        try:
            levels.raise_level(store)
        except apsw.Error as error:
            raise from_sqlite(self.store, error) from None
        finally:
            store.close()

    def world(self, image: Image | None = None, how: str = "kept", random: Random | None = None) -> World:
        """The disk as the next boot would find it, were power lost now (or as ``image`` stood); the rest as it is."""
        assert self.vfs is not None
        files = (image or self.vfs.disk.image()).after_power_loss(how, random or Random(0))
        return World(files, read_mark(self.store), self.provider.snapshot(), self.acked)

    def _observe(self, point: str, **fields: object) -> None:
        if point == "effect.acting":
            self.acted.append(str(fields["effect"]))

    def _listen(self, plane: Plane) -> None:
        """Count the answers of units, before their askers are answered."""
        row = plane.store.readers.read(lambda tx: tx.one("SELECT commits FROM store"))
        base, answered = int(str(row[0])) if row else 0, 0
        submit = plane.writer.submit

        def listening(unit: Unit[Any]) -> None:
            deliver = unit.deliver

            def heard(value: Any, error: BaseException | None) -> None:
                nonlocal answered
                if not isinstance(error, StoreFailed):
                    answered += 1
                    self.acked = Acked(
                        base + (plane.writer.commits if self.workload.threads else answered),
                        plane.store.readers.read(all_records),
                    )
                deliver(value, error)

            unit.deliver = heard
            submit(unit)

        plane.writer.submit = listening  # type: ignore[method-assign]


def all_records(tx: Tx) -> frozenset[tuple[str, int, bytes]]:
    rows = tx.all("SELECT run, seq, hash FROM record")
    return frozenset((text(run), number(seq), raw(hashed)) for run, seq, hashed in rows)


class Workload(msgspec.Struct, frozen=True):
    """``begin`` makes the world that it begins from (None: an empty directory), over a sound disk; ``act`` is run
    through every point. ``pages`` of the log, after which a checkpoint runs. ``threads``: the writer's own thread and
    its batches, under the real clock. ``level``: what the store is at when it is at rest."""

    name: str
    act: Callable[[Session], Awaitable[None]]
    begin: Callable[[Session], Awaitable[World]] | None = None
    pages: int = 2_000
    threads: bool = False
    level: int = schema.LEVEL

    def build(self) -> Any:
        """The build that finds what is left: for a migration the one that has the second level."""
        return second_level() if self.level > len(schema.MIGRATIONS) else nullcontext()


# --- the product, arranged -------------------------------------------------------------------------------------------


@contextmanager
def second_level() -> Iterator[None]:
    """Within it, this build knows one level more."""
    kept = schema.LEVEL, schema.migrate
    schema.LEVEL = len(schema.MIGRATIONS) + 1  # type: ignore[misc]
    schema.migrate = functools.partial(kept[1], steps=(*schema.MIGRATIONS, SECOND))
    try:
        yield
    finally:
        schema.LEVEL, schema.migrate = kept  # type: ignore[misc]


class _Idle(threading.Event):
    """An event that says when somebody waits for it: the checkpointer's thread has nothing to do."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = threading.Event()

    def set(self) -> None:
        self.idle.clear()
        super().set()

    def wait(self, timeout: float | None = None) -> bool:
        if not self.is_set():
            self.idle.set()
        return super().wait(timeout)


class _Stepped(Checkpointer):
    """The product's checkpointer on its own thread and connection, whose checkpoint the writer waits for: so that the
    points of a run are the same each time."""

    at = 2_000

    def __init__(self, store: Store, failed: Callable[[AgentplaneError], None]) -> None:
        super().__init__(store, failed, pages=self.at)
        self._wanted = _Idle()

    def between(self, connection: apsw.Connection) -> None:
        super().between(connection)
        assert isinstance(self._wanted, _Idle)
        while self._thread.is_alive() and not self._wanted.idle.wait(0.01):
            pass


@contextmanager
def arranged(pages: int) -> Iterator[None]:
    """Checkpoints in step, and a ballast that costs no time."""
    kept = nurseries.Checkpointer, stores.DiskRoom
    nurseries.Checkpointer = type("Stepped", (_Stepped,), {"at": pages})  # type: ignore[misc]
    stores.DiskRoom = functools.partial(DiskRoom, ballast=4096)  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        nurseries.Checkpointer, stores.DiskRoom = kept  # type: ignore[misc]


def skills(provider: FakeProvider) -> list[Skill]:
    @effect("pay.refund", recovery=Recovery.IDEMPOTENT, retry=RetryPolicy(base_ms=1))
    async def refund(call: Any, *, order: str) -> Any:
        return await provider.call(call, "refund", {"order": order})

    @skill("orders.refund")
    async def one(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return await cx.do(refund(order=request["order"]))

    @skill("orders.gather")
    async def together(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return len(await cx.gather(*[refund(order=f"{request['order']}-{index}") for index in range(3)]))

    @skill("orders.three")
    async def three(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return [await cx.do(refund(order=f"{request['order']}-{index}")) for index in range(3)]

    return [one, together, three]


async def to_rest(plane: Plane) -> None:
    """Recovery passes until nothing is left to take over and nothing runs."""
    for _ in range(20):
        found = await plane.recovery.once()
        await plane.runs.wait_idle()
        if not (found.took_over or found.suspects or found.finished or found.empty):
            return
    raise AssertionError("recovery never came to an end")


# --- what is done ----------------------------------------------------------------------------------------------------


async def _made(session: Session) -> World:
    async with session.opened():
        pass
    return session.world()


async def _killed(session: Session) -> World:
    """Two runs when their process is killed: one whose deed has landed, and one that has only asked."""
    async with _under_way(session):
        return session.world()


async def _left(session: Session) -> World:
    """The same two; another process has opened the store since, copied its log, and gone without looking further."""
    async with _under_way(session):
        killed = session.world()
    async with session.opened():
        return msgspec.structs.replace(session.world(), acked=killed.acked)


@asynccontextmanager
async def _under_way(session: Session) -> AsyncIterator[None]:
    session.provider.tell("refund", HANG_AFTER, HANG)
    async with session.opened() as plane, trio.open_nursery() as nursery:
        for order in ("landed", "asked"):
            nursery.start_soon(plane.run, "orders.refund", {"order": order})
            await trio.testing.wait_all_tasks_blocked()
        yield
        nursery.cancel_scope.cancel()


async def _refund(session: Session) -> None:
    async with session.opened() as plane:
        await plane.run("orders.refund", {"order": "A"}, key="order-A")


async def _gather(session: Session) -> None:
    async with session.opened() as plane:
        await plane.run("orders.gather", {"order": "G"})


async def _at_once(session: Session) -> None:
    async with session.opened() as plane, trio.open_nursery() as nursery:
        for order in "XYZ":
            nursery.start_soon(plane.run, "orders.gather", {"order": order})


async def _three(session: Session) -> None:
    async with session.opened() as plane:
        await plane.run("orders.three", {"order": "T"})


async def _resumed(session: Session) -> None:
    async with session.opened() as plane:
        await to_rest(plane)


async def _raised(session: Session) -> None:
    """A store is made and used at the first level, then raised and used at the second."""
    async with session.opened() as plane:
        await plane.run("orders.refund", {"order": "first"})
    with second_level():
        async with session.opened() as plane:
            await plane.run("orders.refund", {"order": "second"})


WORKLOADS = {
    one.name: one
    for one in (
        Workload("refund", _refund, _made),
        Workload("gather", _gather, _made),
        Workload("gathers at once", _at_once, _made, threads=True),
        Workload("takeover", _resumed, _left),
        Workload("checkpoint", _three, _made, pages=8),
        Workload("migration", _raised, level=len(schema.MIGRATIONS) + 1),
        Workload("open-after-crash", _resumed, _killed),
    )
}
