"""The driver: orders through an appliance that is SIGKILLed and told to stop runs, and then the audit.

Owns the incarnations, the kills, the stops and the rows that the verdict is reached from. Refuses to audit under a
running appliance: the books are read when it has ended. Invariant: whatever ends it, no process of it is left.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from agentplane.core.errors import AgentplaneError, Unreachable
from agentplane.lab.appliance_process import Appliance
from agentplane.lab.books import Audit, audit, series_of
from agentplane.lab.orders.aims import ANY_TIME, IN_DOUBT, Aim, Hunt, Seen, aims
from agentplane.lab.orders.desk import Desk
from agentplane.lab.orders.evidence import cases_of, told
from agentplane.lab.orders.fixture import BLOCK, NOTICE_MENDS, Order, orders, provider_rules
from agentplane.lab.orders.report import Result
from agentplane.lab.orders.verdict import Tally, found, judge
from agentplane.lab.pipe import Point
from agentplane.lab.provider import audit as provider_audit
from agentplane.lab.provider_process import Provider
from agentplane.surface.client import HttpClient

APP: Final = Path(__file__).with_name("app")
KILLS: Final = 20
ORDERS_A_KILL: Final = 0.8
OPEN_ORDERS: Final = 3
"""Orders in hand at a time, so that a kill always finds some."""
START_S: Final = 20.0
IDLE_S: Final = 3.0
"""How long an appliance may find nothing to do: every order is quarantined or over, and it is killed idle."""
AIM_S: Final = 0.6
"""How long an appliance that works is left alive for its aim, before it is killed where it is."""
STOP_S: Final = 2.0
"""How long the cancel of a run in doubt may take before the kill comes anyway."""
DOUBT_S: Final = 20.0
"""How long the last life waits for the first parcel whose answer is lost."""
SETTLED_S: Final = 60.0
SWEPT_S: Final = 1.3
"""Longer than the sweep's tick: what was asked to stop has been taken up."""


def count_of(kills: int) -> int:
    """How many orders a run of so many kills gets: whole blocks, so that every fate is among them."""
    return BLOCK * max(1, math.ceil(kills * ORDERS_A_KILL / BLOCK))


class Life:
    """One incarnation under a hunt."""

    def __init__(self, plane: Path, log: Path, aim: Aim, seen: Seen, source: Path | None,
                 told: Callable[[Point], None]) -> None:  # fmt: skip
        self.hunt = Hunt(aim, seen)
        self.first: float | None = None
        self._told = told
        self.appliance = Appliance(plane, log, self._on_point, source=source)

    def _on_point(self, point: Point) -> tuple[int, ...]:
        """On the listener's thread: the kill itself happens here, within microseconds of the report."""
        if self.first is None:
            self.first = time.monotonic()
        if self.hunt.on_point(point):
            self.appliance.kill()
            return ()
        self._told(point)
        return (point.number,)


class Shop:
    """One run of the workload in ``directory``."""

    def __init__(self, directory: Path, *, seed: int, kills: int, source: Path | None, say: bool) -> None:
        self.directory = directory
        self.seed = seed
        self.wanted = kills
        self.source = source
        self.say = say
        self.plane = directory / "plane"
        self.store = self.plane / "plane.db"
        self.socket = self.plane / "run" / "control.sock"
        self.orders: tuple[Order, ...] = orders(seed, count_of(kills))
        self.seen = Seen()
        self.kills: Counter[str] = Counter()
        self.began = time.monotonic()
        self._mends: dict[str, int] = {}

    def run(self) -> Result:
        """Prepare, kill, settle, audit. Raises AgentplaneError when the lab itself cannot go on."""
        with contextlib.ExitStack() as stack:
            provider = stack.enter_context(Provider(self.directory / "provider.db"))
            self._prepare(provider)
            desk = Desk(self.socket, provider, self.orders, self._mends)
            stack.callback(desk.stop)
            self._kill_all(desk)
            self._settle(desk, provider)
            desk.stop()
            return self._result(desk, provider)

    def _prepare(self, provider: Provider) -> None:
        shutil.copytree(APP, self.plane, ignore=shutil.ignore_patterns("__pycache__"))
        for path in [self.plane, *self.plane.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        (self.plane / "plane.toml").write_text(
            f'name = "lab"\ndrain_secs = 20\nlease_ttl_secs = 10\n\n[settings]\nprovider_url = "{provider.url}"\n',
            encoding="utf-8",
        )
        for order in self.orders:
            numbers = [provider.rule(**rule) for rule in provider_rules(order)]
            if order.fate == NOTICE_MENDS:
                self._mends[order.order] = numbers[0]

    # --- the kills ---

    def _kill_all(self, desk: Desk) -> None:
        """A life of the appliance for each aim; the first also makes the application's table, and opens the shop."""
        for number, aim in enumerate(aims(self.seed, self.wanted), start=1):
            if desk.done:
                return
            if number == self.wanted and not self.kills[IN_DOUBT]:
                aim = Aim(IN_DOUBT)
            # Until the shop is open nothing is killed: its table is not there yet.
            life = self._live(aim if self.kills else Aim(ANY_TIME), desk)
            try:
                if not self.kills:
                    self._make_tables(life.appliance)
                    desk.start()
                self._hunt(life, desk)
            finally:
                life.appliance.kill()
                life.appliance.wait_dead()
            self.kills[IN_DOUBT if life.hunt.doubtful is not None else life.hunt.hit or ANY_TIME] += 1
            self._tell(desk)

    def _live(self, aim: Aim, desk: Desk) -> Life:
        return Life(self.plane, self.directory / "appliance.log", aim, self.seen, self.source,
                    lambda point: self._told(point, desk))  # fmt: skip

    def _told(self, point: Point, desk: Desk) -> None:
        """A run that came as far as its order's stop is asked to stop."""
        order = desk.order_of.get(point.run or "")
        after = None if order is None else order.cancel_after
        if point.run is not None and after is not None and self.seen.points[point.run] >= after:
            desk.ask_to_stop(point.run)

    def _make_tables(self, appliance: Appliance) -> None:
        script = (self.plane / "tables.sql").read_text(encoding="utf-8")
        until = time.monotonic() + START_S
        while time.monotonic() < until and appliance.alive:
            try:
                HttpClient(path=self.socket).call("app_sql", body={"sql": script})
                return
            except Unreachable:
                time.sleep(0.02)
        raise self._fallen()

    def _hunt(self, life: Life, desk: Desk) -> None:
        """Wait for the aim; or until its time is over, or a run in doubt has its stop on record."""
        idle_s, aim_s = (DOUBT_S, DOUBT_S) if life.hunt.aim.at == IN_DOUBT else (IDLE_S, AIM_S)
        starts = time.monotonic() + idle_s
        while life.appliance.alive and life.hunt.hit is None:
            now = time.monotonic()
            self._let_in(desk)
            self.seen.stopping.update(run for run, said in list(desk.stops.items()) if said == "recorded")
            if life.hunt.doubtful is not None:
                self._stop_in_doubt(life, life.hunt.doubtful, desk)
                return
            if now > starts or (life.first is not None and now - life.first > aim_s):
                return
            time.sleep(0.005)
        if life.hunt.hit is None and life.appliance.status != -9:
            raise self._fallen()

    def _stop_in_doubt(self, life: Life, run: str, desk: Desk) -> None:
        """The provider has a parcel that it will show only later: a stop now must wait for it."""
        desk.ask_to_stop(run)
        until = time.monotonic() + STOP_S
        while time.monotonic() < until and desk.stops[run] == "asked" and life.appliance.alive:
            time.sleep(0.005)

    def _let_in(self, desk: Desk) -> None:
        done = sum(self.kills.values())
        wanted = OPEN_ORDERS + (len(self.orders) - OPEN_ORDERS) * done // max(1, self.wanted)
        short = len(desk.runs) + OPEN_ORDERS - desk.open
        desk.allow(max(wanted, min(short, wanted + OPEN_ORDERS)))

    def _fallen(self) -> AgentplaneError:
        """The appliance ended by itself: that is nobody's kill, and the lab cannot go on."""
        try:
            last = (self.directory / "appliance.log").read_text(encoding="utf-8").strip().splitlines()[-1]
        except (OSError, IndexError):
            last = "it said nothing"
        return Unreachable(f"The appliance under test ended by itself: {last}.")

    # --- the end ---

    def _settle(self, desk: Desk, provider: Provider) -> None:
        """Under an appliance that nobody kills: the rest of the orders, and what a person can answer."""
        desk.allow(len(self.orders))
        # A life with an aim that no point fits: what is to be stopped still is.
        appliance = self._live(Aim(ANY_TIME), desk).appliance
        desk.answering = True
        until, quiet = time.monotonic() + SETTLED_S, 0.0
        while time.monotonic() < until and appliance.alive:
            time.sleep(0.05)
            quiet = (quiet or time.monotonic()) if desk.done else 0.0
            if quiet and time.monotonic() - quiet > SWEPT_S:
                break
        appliance.stop()
        provider.quiet()
        self._tell(desk)

    def _result(self, desk: Desk, provider: Provider) -> Result:
        with provider_audit.open_book(provider.db) as book:
            effects = provider_audit.effects(book)
        cases = cases_of(self.orders, effects, self.store)
        records = [record for case in cases for record in case.records]
        books: Audit = audit(effects, series_of(records))
        tally = Tally(
            self.wanted, self.kills, Counter(desk.stops.values()), Counter(code for _, code in desk.quarantines),
            Counter(desk.answered.values()),
        )  # fmt: skip
        endings = found(cases, desk.quarantines)
        handovers = sum(max((one.epoch for one in case.records), default=1) - 1 for case in cases)
        kept = [f"kills {dict(self.kills)}", f"points {dict(self.seen.by_name)}", f"stops {desk.stops}",
                f"quarantines {desk.quarantines}", *desk.faults]  # fmt: skip
        (self.directory / "orders.txt").write_text("\n".join([*told(self.orders, cases), *kept]) + "\n", "utf-8")
        return Result(judge(endings, books, tally), endings, books, tally, len(effects), handovers,
                      time.monotonic() - self.began, self.seed)  # fmt: skip

    def _tell(self, desk: Desk) -> None:
        if not self.say:
            return
        line = (
            f"{time.monotonic() - self.began:5.1f} s  orders {len(desk.final)}/{len(self.orders)}  "
            f"kills {sum(self.kills.values())}/{self.wanted}  open {desk.open}"
        )
        tty = sys.stderr.isatty()
        print("\r" + line.ljust(79) if tty else line, end="" if tty else "\n", file=sys.stderr, flush=True)
