"""The store battery: the SQLite store keeps the contract, and a store that breaks it is told by name."""

from __future__ import annotations

import inspect
import shutil
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agentplane.journal import (
    appends,
    derive,
    leases,
    lists,
    obligations,
    rows,
    schema,
    subscriptions,
    timers,
    worklist,
)
from agentplane.journal.tx import Tx
from agentplane.testkit.battery import Report, checks_of_work, every_check, run_battery
from agentplane.testkit.ledger import Probe, StoreHandle
from agentplane.work import events, matters, schedules, tasks
from journal.stores import NOW, PlainStore

ROOMS: dict[str, ModuleType] = {
    "appends": appends,
    "derive": derive,
    "leases": leases,
    "lists": lists,
    "obligations": obligations,
    "rows": rows,
    "schema": schema,
    "subscriptions": subscriptions,
    "timers": timers,
    "worklist": worklist,
    "events": events,
    "matters": matters,
    "schedules": schedules,
    "tasks": tasks,
}
OF_WORK = {"events", "matters", "obligations", "schedules", "subscriptions", "tasks", "worklist"}
"""Rooms that no plain append comes by: what is broken there shows in the checks of what outlives a run."""
BREAKS: list[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("battery_breaks.toml").read_text("utf-8"))[
    "break"
]

OpenStore = Callable[[], PlainStore]


@pytest.fixture(scope="session")
def first_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that was made and closed: making one anew takes four times as long as opening a copy."""
    path = tmp_path_factory.mktemp("first") / "plane.db"
    PlainStore(path).close()
    return path


@pytest.fixture
def open_store(tmp_path: Path, first_store: Path) -> Iterator[OpenStore]:
    """Fresh stores, closed at the end; made anew where the tables are not the usual ones."""
    numbers, made = count(), []

    def fresh() -> PlainStore:
        path = tmp_path / f"{next(numbers)}.db"
        if schema.migrate.__kwdefaults__["steps"] is schema.MIGRATIONS:
            shutil.copy(first_store, path)
        made.append(PlainStore(path))
        return made[-1]

    yield fresh
    for store in made:
        store.close()


def test_the_sqlite_store_keeps_every_guarantee(open_store: OpenStore) -> None:
    """S10, S13, S16, S17: No check finds anything, and every check held something.

    Spec: EffectProtocol.NoOutcomeWithoutAnnouncement, EffectProtocol.OneOutcomeAtMost,
    EffectProtocol.NumbersAreDense, Fencing.EpochsNeverRegress, Fencing.OneWriterAtAnEpoch,
    Fencing.NothingAboveTheEpoch, Fencing.OwnershipIsWon, Fencing.NoLiveLeaseIsTaken,
    Fencing.OnlyALaterOwnerFences,
    Delivery.ConsumedExactlyOnce, Delivery.SatisfiedWaiterTakesNoSecond, Delivery.NoLetterDiesAwaited,
    TaskDelivery.NoDecisionReachesAConcludedRun, TaskDelivery.WithdrawnStaysWithdrawn,
    TaskDelivery.NoTaskOutlivesItsRun.
    """
    report = run_battery(open_store)
    assert report.violations == ()
    assert report.sound and len(report.held) >= 90 and min(report.held.values()) >= 1


def planted(function: str, change: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The function or the statement of that name, changed, wherever the room uses it."""
    room = ROOMS[function.split(".")[0]]
    name = function.split(".")[1]
    old = getattr(room, name)
    if room is schema:
        (first,) = schema.MIGRATIONS
        changed = first._replace(ddl=first.ddl.replace(old, change(old)))
        monkeypatch.setitem(schema.migrate.__kwdefaults__, "steps", (changed,))
        return
    if isinstance(old, str):
        monkeypatch.setattr(room, name, change(old))
        return
    source = textwrap.dedent(inspect.getsource(old))
    made: dict[str, Any] = {}
    code = compile("from __future__ import annotations\n" + change(source), "planted", "exec")
    exec(code, vars(room), made)  # noqa: S102 (our own source)
    monkeypatch.setattr(room, name, made[name])
    for kind, implied in list(derive.DERIVE.items()):
        if implied is old:
            monkeypatch.setitem(derive.DERIVE, kind, made[name])  # type: ignore[arg-type]


def break_it(broken: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def change(source: str) -> str:
        assert source.count(broken["old"]) == 1, "the break is stale"
        changed = source.replace(broken["old"], broken["new"].replace("{now}", str(NOW + 90_000)))
        if "before" in broken:
            changed = changed.replace(broken["before_at"], broken["before"] + broken["before_at"])
        return changed

    planted(broken["function"], change, monkeypatch)


NAMES = [f"{i}-{b['check']}" for i, b in enumerate(BREAKS)]


@pytest.mark.parametrize("broken", BREAKS, ids=NAMES)
def test_a_broken_guarantee_is_reported_by_its_check(
    broken: dict[str, Any], open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each guarantee is taken away once, and the check that names it says so."""
    break_it(broken, monkeypatch)
    report = run_battery(open_store, {broken["check"]: every_check()[broken["check"]]})
    assert broken["check"] in report.broken()


@pytest.mark.heavy
@pytest.mark.parametrize("broken", BREAKS, ids=NAMES)
def test_no_other_check_reports_it(
    broken: dict[str, Any], open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other checks see the same break only where they must."""
    break_it(broken, monkeypatch)
    room, work = broken["function"].split(".")[0], checks_of_work()
    checks = every_check()
    if room in OF_WORK:
        checks = work
    elif room in ("appends", "leases") and broken["check"] not in work:
        checks = {name: body for name, body in checks.items() if name not in work}
    report = run_battery(open_store, checks)
    assert broken["check"] in report.broken()
    assert report.broken() <= {broken["check"], *broken.get("also", [])}, report.violations


def test_every_check_is_broken_by_something() -> None:
    """A check that no planted break trips might as well not be there."""
    never = set(every_check()) - {b["check"] for b in BREAKS}
    assert never <= {"a_rejected_batch_writes_nothing"}, never


def test_a_store_without_rollback_is_found(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused batch whose first half stands, which only a store without savepoints would leave."""

    def commit_anyway(self: PlainStore, body: Callable[[Tx], Any]) -> Any:
        tx = Tx(self._connection, "default", self.now_ms)
        return body(tx)

    monkeypatch.setattr(PlainStore, "unit", commit_anyway)
    broken = run_battery(open_store).broken()
    assert {"a_rejected_batch_writes_nothing", "a_refused_unit_takes_everything_back"} <= broken
    assert "a_refused_admission_leaves_its_key_free" in broken


def test_every_violation_is_reported_and_not_the_first(open_store: OpenStore) -> None:
    """Two sentences of one check and a third that dies are three violations."""

    def two(probe: Probe, store: StoreHandle) -> None:
        probe.hold(False, "first")
        probe.hold(True, "fine")
        probe.hold(False, "second")

    def dies(probe: Probe, store: StoreHandle) -> None:
        raise ZeroDivisionError("boom")

    report = run_battery(open_store, {"two": two, "dies": dies})
    assert [v.sentence for v in report.violations] == [
        "first",
        "second",
        "it ended with ZeroDivisionError: boom",
    ]
    assert report.held == {"two": 3, "dies": 0} and not report.sound


def test_a_battery_that_checked_nothing_fails(open_store: OpenStore) -> None:
    """Neither an empty check nor an empty list of checks is a success."""
    assert run_battery(open_store, {"idle": lambda probe, store: None}).broken() == {"idle"}
    assert run_battery(open_store, {}).broken() == {"run_battery"}
    assert not Report({}, ()).sound
