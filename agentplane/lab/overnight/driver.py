"""The driver: a month of orders through an appliance that is SIGKILLed while its clock is moved, and then the audit.

Owns the incarnations, the kills, the order in which things come from outside, and the clock. Refuses to move time while
an effect is in flight or in doubt, and to audit under a running appliance. Invariant: whatever ends it, no process of
it is left; what was sent and not answered is sent again, under the same key.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Final

from agentplane.core import ids
from agentplane.core.errors import AgentplaneError, Unreachable
from agentplane.lab.appliance_process import Appliance
from agentplane.lab.overnight.agenda import Agenda
from agentplane.lab.overnight.aims import ANY_TIME, Hunt
from agentplane.lab.overnight.desk import Desk, Gone
from agentplane.lab.overnight.evidence import read_books
from agentplane.lab.overnight.fixture import (
    BLOCK,
    CRON,
    DAY_MS,
    HOUR_MS,
    KEPT_S,
    NIGHTLY,
    TZ,
    Month,
    month,
    provider_rules,
)
from agentplane.lab.overnight.report import Result
from agentplane.lab.overnight.timekeeper import DUE, Timekeeper
from agentplane.lab.overnight.verdict import Tally, found, judge
from agentplane.lab.people import access_table, token_of
from agentplane.lab.pipe import Point
from agentplane.lab.provider_process import Provider

APP: Final = Path(__file__).with_name("app")
KILLS: Final = 18
SHORT_KILLS: Final = 6
"""Under so many kills the month is a fortnight, and has one block of orders."""
STEP_MS: Final = 8 * HOUR_MS
NUDGE_MS: Final = 31_000
"""Longer than the sweep's period: what is due and was not done is looked for again."""
QUIET_DAYS: Final = 6
"""The end of the month, in which nothing is killed: what is left over has to become a dead letter."""
PATIENCE_S: Final = 0.4
"""How long something due may stand before the clock is nudged."""
WAIT_S: Final = 0.005
SECONDS_A_DAY: Final = 3.0
START_S: Final = 20.0
"""With the kills, how long a month may take before it is given up: a wait that nothing ends would never end it."""


def size_of(kills: int) -> tuple[int, int]:
    """Orders and days of a run of so many kills."""
    return (3 * BLOCK, 30) if kills > SHORT_KILLS else (BLOCK, 14)


class Life:
    """One incarnation. ``hold`` keeps its points from going on."""

    def __init__(self, plane: Path, log: Path, clock: Path, hunt: Hunt, source: Path | None) -> None:
        self._hunt = hunt
        self._lock = threading.Lock()
        self._held: list[int] | None = None
        self.appliance = Appliance(plane, log, self._on_point, source=source, clock=clock)

    def _on_point(self, point: Point) -> tuple[int, ...]:
        """On the listener's thread: the kill itself happens here, within microseconds of the report."""
        with self._lock:
            if self._hunt.on_point(point):
                self.appliance.kill()
                return ()
            if self._held is not None:
                self._held.append(point.number)
                return ()
        return (point.number,)

    def hold(self, on: bool) -> None:
        with self._lock:
            left, self._held = self._held or [], [] if on else None
        self.appliance.go(left)

    @property
    def going(self) -> bool:
        return self.appliance.alive and self._hunt.hit is None


class Nights:
    """One run of the workload in ``directory``."""

    def __init__(self, directory: Path, *, seed: int, kills: int, source: Path | None, say: bool) -> None:
        self.directory = directory
        self.seed = seed
        self.wanted = kills
        self.source = source
        self.say = say
        self.plane = directory / "plane"
        self.socket = self.plane / "run" / "control.sock"
        self.month: Month = month(seed, *size_of(kills))
        self.hunt = Hunt(seed)
        self.kills: Counter[str] = Counter()
        self.began = time.monotonic()
        self._life: Life | None = None
        self._stuck_since: float | None = None
        self._arms_ms = 0

    def run(self) -> Result:
        """Prepare, work the month under kills, let it end, audit. Raises AgentplaneError when the lab cannot go on."""
        with contextlib.ExitStack() as stack:
            provider = stack.enter_context(Provider(self.directory / "provider.db"))
            self._prepare(provider)
            self.time = Timekeeper(self.directory / "clock", self.plane / "plane.db", provider, self._hold)
            self.desk = Desk(
                self.socket, self.month, token_of(self.plane, "mara", "reviewer"),
                token_of(self.plane, "ines", "supervisor"),
            )  # fmt: skip
            self.starts_ms = self.time.now_ms
            self.agenda = Agenda(self.month, self.desk, self.starts_ms)
            stack.callback(self._end_life)
            for nth in range(self.wanted):
                # The kills are spread over the month; an aim that does not come in its share of it is given up.
                share_ms = (self.month.days - QUIET_DAYS) * DAY_MS // self.wanted
                self._arms_ms = self.starts_ms + share_ms * nth
                self._work(self._live(), self._arms_ms + share_ms)
                self._end_life()
                self.kills[self.hunt.hit or ANY_TIME] += 1
                self._tell()
            ended = self._to_the_end()
            provider.quiet()
            return self._result(provider, ended)

    def _prepare(self, provider: Provider) -> None:
        shutil.copytree(APP, self.plane, ignore=shutil.ignore_patterns("__pycache__"))
        for path in [self.plane, *self.plane.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        (self.plane / "plane.toml").write_text(
            f'name = "lab"\ndrain_secs = 20\nlease_ttl_secs = 10\nevent_kept_secs = {KEPT_S}\n\n'
            f'[settings]\nprovider_url = "{provider.url}"\n'
            f'\n[[schedule]]\nname = "{NIGHTLY}"\ncron = "{CRON}"\ntz = "{TZ}"\ncapability = "night.tally"\n'
            'input = {}\nmissed = "all"\n' + access_table(),
            encoding="utf-8",
        )
        for order in self.month.orders:
            for rule in provider_rules(order):
                provider.rule(**rule)

    # --- one incarnation ---

    def _live(self) -> Life:
        self.hunt.begin()
        life = Life(self.plane, self.directory / "appliance.log", self.time.clock, self.hunt, self.source)
        self._life = life
        return life

    def _hold(self, on: bool) -> None:
        if self._life is not None:
            self._life.hold(on)

    def _end_life(self) -> None:
        if self._life is not None:
            self._life.appliance.kill()
            self._life.appliance.wait_dead()
            self._life = None

    def _work(self, life: Life, until_ms: int, *, wholly: bool = False) -> bool:
        """Let the month go on to ``until_ms``, and where it is to end there until everything is done; False when the
        appliance was killed on the way, or nothing moves."""
        give_up = time.monotonic() + START_S + SECONDS_A_DAY * (until_ms - min(self.time.now_ms, until_ms)) / DAY_MS
        while life.going and time.monotonic() < give_up:
            self.hunt.armed = self.time.now_ms >= self._arms_ms
            try:
                self.agenda.do(self.time.now_ms)
                why = self.time.standing()
                if why:
                    self._wait(why)
                    continue
                # Whatever is under way has ended; what people do now may begin something.
                if self.desk.people():
                    continue
                if self.time.now_ms >= until_ms and (not wholly or self._is_done()):
                    return True
                self._step(until_ms)
            except Gone:
                time.sleep(0.02)
        if life.going:
            return False
        if self.hunt.hit is None:
            raise self._fallen()
        return False

    def _wait(self, why: str) -> None:
        """For what is under way. Something due that nobody looks at is looked at again when the clock is nudged."""
        if why != DUE:
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = time.monotonic()
        elif time.monotonic() - self._stuck_since > PATIENCE_S:
            self.time.step_to(self.time.now_ms + NUDGE_MS, over_what_is_due=True)
            self._stuck_since = None
        time.sleep(WAIT_S)

    def _step(self, until_ms: int) -> None:
        now_ms = self.time.now_ms
        named = (self._arms_ms, until_ms, self.agenda.next_ms)
        ahead = [now_ms + STEP_MS, *(one for one in named if one is not None and one > now_ms)]
        self._stuck_since = None
        if self.time.step_to(min(ahead)) is not None:
            time.sleep(WAIT_S)

    def _is_done(self) -> bool:
        return self.agenda.next_ms is None and self.desk.all_settled()

    def _to_the_end(self) -> bool:
        """Under an appliance that nobody kills: the rest of the month, and a drain."""
        self._arms_ms = ids.MAX_MS
        life = self._live()
        ends_ms = self.starts_ms + self.month.days * DAY_MS
        ended = self._work(life, ends_ms, wholly=True)
        life.appliance.stop()
        self._life = None
        self._tell()
        return ended

    def _fallen(self) -> AgentplaneError:
        """The appliance ended by itself: that is nobody's kill, and the lab cannot go on."""
        try:
            last = (self.directory / "appliance.log").read_text(encoding="utf-8").strip().splitlines()[-1]
        except (OSError, IndexError):
            last = "it said nothing"
        return Unreachable(f"The appliance under test ended by itself: {last}.")

    # --- the end ---

    def _result(self, provider: Provider, ended: bool) -> Result:
        books = read_books(self.month, provider.db, self.plane / "plane.db", self.desk.events)
        said = found(self.month, books, since_ms=self.starts_ms)
        tally = Tally(
            self.wanted, dict(self.kills), dict(self.desk.answers), dict(self.desk.refused), self.time.steps,
            round((self.time.now_ms - self.starts_ms) / DAY_MS, 1), ended,
        )  # fmt: skip
        kept = [f"kills {dict(self.kills)}", f"points {dict(self.hunt.by_name)}", *map(str, self.month.orders),
                *self.desk.faults]  # fmt: skip
        (self.directory / "overnight.txt").write_text("\n".join(kept) + "\n", "utf-8")
        return Result(judge(said, tally), said, tally, time.monotonic() - self.began, self.seed)

    def _tell(self) -> None:
        if not self.say:
            return
        day = (self.time.now_ms - self.starts_ms) / DAY_MS
        line = (
            f"{time.monotonic() - self.began:5.1f} s  day {day:4.1f}/{self.month.days}  "
            f"{len(self.desk.runs)} orders taken  kills {sum(self.kills.values())}/{self.wanted}"
        )
        tty = sys.stderr.isatty()
        print("\r" + line.ljust(79) if tty else line, end="" if tty else "\n", file=sys.stderr, flush=True)
