"""The driver: thirty tickets through an appliance that is SIGKILLed at every dangerous instant, and then the
audit.

Owns the incarnations, the kills and the evidence. Refuses to claim a window that it aimed at: windows are
read from both books afterwards. Invariant: whatever ends it, no process of it is left.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec

from agentplane.core.errors import AgentplaneError, Unreachable
from agentplane.core.records import Record
from agentplane.journal import leases, lists
from agentplane.journal.store import read_only
from agentplane.journal.tx import Tx
from agentplane.lab import approvals
from agentplane.lab.appliance_process import Appliance, now_us, program
from agentplane.lab.books import Evidence, audit, judge, series_of
from agentplane.lab.counterexample import Control, run_control
from agentplane.lab.desk import Desk
from agentplane.lab.incarnation import Incarnation
from agentplane.lab.people import Reviewer, access_table, token_of
from agentplane.lab.provider import audit as provider_audit
from agentplane.lab.provider_process import Provider
from agentplane.lab.report import Result, progress
from agentplane.lab.schedule import Aim, Aiming, Memory, Target, targets
from agentplane.lab.tickets import REVIEWS, TICKETS, expected, provider_rules
from agentplane.lab.windows import AtKill, Kill, at_kill, attribute
from agentplane.work import tasks
from agentplane.work.tasks import TaskRow

KILLS = 12
SECONDS = 55.0
SECONDS_A_KILL = 3.4
SETTLED_S = 60.0
OPEN_TICKETS = 2
"""Tickets in hand at a time: the last kill has to find one."""
TASKS_MAX = 1_000
APP = Path(__file__).with_name("app")


class KillNote(msgspec.Struct):
    """One kill and what the store showed of its run between the death and the next start."""

    aim: str
    run: str
    kill: Kill
    state: AtKill


class Chaos:
    """One run of the lab in ``directory``."""

    def __init__(
        self, directory: Path, *, seed: int, kills: int, seconds: float, source: Path | None, say: bool
    ) -> None:
        self.directory = directory
        self.seed = seed
        self.kills_wanted = kills
        self.deadline = time.monotonic() + seconds
        self.source = source
        self.say = say
        self.plane = directory / "plane"
        self.store = self.plane / "plane.db"
        self.memory = Memory()
        self.notes: list[KillNote] = []
        self.kills = 0
        self.began = time.monotonic()
        self.missed: list[str] = []
        self.let_in = 0

    # --- the whole ---

    def run(self) -> Result:
        """Prepare, kill, settle, audit. Raises AgentplaneError when the lab itself cannot go on."""
        with contextlib.ExitStack() as stack:
            provider = stack.enter_context(Provider(self.directory / "provider.db"))
            self._prepare(provider)
            socket_path = self.plane / "run" / "control.sock"
            desk = Desk(socket_path, provider.db, token_of(self.plane, "ines", "operator", "supervisor"))
            self.reviewer = Reviewer(socket_path, token_of(self.plane, "mara", "reviewer"), REVIEWS)
            stack.callback(desk.stop)
            stack.callback(self.reviewer.stop)
            desk.start()
            self.reviewer.start()
            self._kill_all(list(targets(self.seed, self.kills_wanted)), provider, desk)
            self._finish(desk, provider)
            provider.clear()
            displaced = self._displaced(provider)
            control_book = self.directory / "control.db"
            with Provider(control_book) as other:
                control = run_control(other)
            return self._result(desk, provider, displaced, control)

    def _prepare(self, provider: Provider) -> None:
        shutil.copytree(APP, self.plane, ignore=shutil.ignore_patterns("__pycache__"))
        for path in [self.plane, *self.plane.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        (self.plane / "plane.toml").write_text(
            f'name = "lab"\ndrain_secs = 20\nlease_ttl_secs = 10\n\n[settings]\nprovider_url = "{provider.url}"\n'
            + access_table(),
            encoding="utf-8",
        )
        for ticket in TICKETS:
            for rule in provider_rules(ticket):
                provider.rule(**rule)
        provider.rule(method="POST", path="/refunds", order="W5-b", ignore_keys=True)
        chance = random.Random(self.seed)
        keyed = [ticket for ticket in TICKETS if ticket.recovery == "idempotent" and ticket.kind == "refund"]
        unlucky = chance.sample(keyed, 4)
        provider.rule(method="POST", path="/refunds", order=unlucky[0].order, times=1, status_after=503)
        provider.rule(method="POST", path="/refunds", order=unlucky[1].order, times=1, reset="after")
        provider.rule(method="POST", path="/refunds", order=unlucky[2].order, times=1, reset="before")
        provider.rule(method="POST", path="/refunds", order=unlucky[3].order, times=1, retry_after_s=1)

    # --- one incarnation ---

    def _kill_all(self, wanted: list[Target], provider: Provider, desk: Desk) -> None:
        """Carry the targets out, a life of the appliance each; a missed one is tried again later, without skipping."""
        waiting = deque(wanted)
        while self._goes_on(waiting, desk):
            self._let_in(desk, OPEN_TICKETS + (len(TICKETS) - OPEN_TICKETS) * self.kills // self.kills_wanted)
            life = Incarnation(
                self.plane,
                self.directory / "appliance.log",
                provider,
                run_of=lambda order: self._run_of(order, desk),
                more=lambda: self._let_in(desk, self.let_in + 1),
                source=self.source,
            )
            hit: Aiming | None = None
            try:
                while self._goes_on(waiting, desk):
                    target = waiting.popleft()
                    hit = life.aim(target, self.memory)
                    if hit is not None:
                        break
                    if not life.appliance.alive:
                        raise self._fallen()
                    self.missed.append(f"{target.aim.value}, skip {target.skip}")
                    if len(self.missed) <= self.kills_wanted:
                        waiting.append(Target(target.aim, 0))
            finally:
                life.appliance.kill()
                life.appliance.wait_dead()
            self.kills += 1
            if hit is not None:
                self._note(life.appliance, hit)
            self._tell(desk)

    def _goes_on(self, waiting: deque[Target], desk: Desk) -> bool:
        return bool(waiting) and not desk.done and time.monotonic() < self.deadline

    def _note(self, appliance: Appliance, hit: Aiming) -> None:
        """What the store shows of the run that was hit, between its death and the next start."""
        state = self._state(hit.hit)
        if state is not None and hit.hit is not None:
            kill = appliance.killed(now_us(), queued=hit.queued)
            self.notes.append(KillNote(hit.target.aim.value, hit.hit, kill, state))

    def _let_in(self, desk: Desk, tickets: int) -> None:
        self.let_in = max(self.let_in, tickets)
        desk.allow(self.let_in)

    def _fallen(self) -> AgentplaneError:
        """The appliance ended by itself: that is nobody's kill, and the lab cannot go on."""
        try:
            last = (self.directory / "appliance.log").read_text(encoding="utf-8").strip().splitlines()[-1]
        except (OSError, IndexError):
            last = "it said nothing"
        return Unreachable(f"The appliance under test ended by itself: {last}.")

    def _run_of(self, order: str, desk: Desk) -> str | None:
        """The run of an order: as acknowledged, else as the store has it under the ticket's admission key."""
        if order in desk.by_order:
            return desk.by_order[order]
        ticket = next((one for one in TICKETS if one.order == order), None)
        if ticket is None or not self.store.exists():
            return None
        with self._reading() as read:
            found = read(lambda tx: lists.admission(tx, ticket.admission_key))
        return None if found is None else found[0]

    def _state(self, run: str | None) -> AtKill | None:
        """What the store shows of the run that was hit, while nobody serves it."""
        if run is None or not self.store.exists():
            return None

        def body(tx: Tx) -> AtKill:
            records = [item.record for item in lists.whole_history(tx, run)]
            return at_kill(records, lease_held=leases.holder(tx, run) is not None)

        try:
            with self._reading() as read:
                return read(body)
        except AgentplaneError:
            return None  # the run was not admitted yet when the process died

    @contextlib.contextmanager
    def _reading(self):  # type: ignore[no-untyped-def]
        readers = read_only(self.store)
        try:
            yield readers.read
        finally:
            readers.close()

    # --- the end ---

    def _finish(self, desk: Desk, provider: Provider) -> None:
        """Let everything settle under an appliance that nobody kills, then drain it."""
        desk.allow(len(TICKETS))
        appliance = Appliance(
            self.plane, self.directory / "appliance.log", lambda point: (point.number,), source=self.source
        )
        until = time.monotonic() + SETTLED_S
        while not desk.done and time.monotonic() < until and appliance.alive:
            time.sleep(0.1)
            self._tell(desk, end="\r")
        appliance.stop()
        provider.quiet()
        self._tell(desk)

    def _displaced(self, provider: Provider) -> dict[str, bool]:
        """W5 to W7, in a process that loads the same source as the appliance did."""
        start, environ = program("agentplane.lab.displaced", self.source)
        scenes = self.directory / "scenes"
        scenes.mkdir()
        done = subprocess.run(
            [*start, str(scenes), provider.url, str(provider.db)],
            capture_output=True, text=True, env=environ, timeout=90, cwd=self.directory, check=False,
        )  # fmt: skip
        try:
            return {name: bool(held) for name, held in json.loads(done.stdout).items()}
        except ValueError:
            (self.directory / "scenes.log").write_text(done.stderr, encoding="utf-8")
            return {}

    def _result(self, desk: Desk, provider: Provider, displaced: dict[str, bool], control: Control) -> Result:
        records = list(self._records())
        with provider_audit.open_book(provider.db) as book:
            effects = provider_audit.effects(book)
            arrivals = provider_audit.arrivals(book)
        settled = [ticket for ticket in TICKETS if desk.ended.get(ticket.ticket) == "succeeded"]
        found = audit(effects, series_of(records), [each for ticket in settled for each in expected(ticket)])
        needed = [each.order for each in settled if each.needs_a_person]
        allowed = approvals.reconcile(self._tasks(), records, effects, needed)
        tickets = {each.order for each in TICKETS}
        refunds = [row for row in effects if row.path == "/refunds" and row.order in tickets]
        found = replace(found, refunds=len(refunds))
        windows, halves = self._attributed(arrivals, effects)
        evidence = Evidence(
            found, len(TICKETS), len(settled), windows, halves, displaced, control.refunds_twice,
            unanswered=sorted(desk.quarantined - {desk.runs[each.ticket] for each in settled}),
            approvals=allowed, review=dict(self.reviewer.met),
        )  # fmt: skip
        return Result(
            evidence, judge(evidence), control, kills=self.kills, handovers=self._handovers(records),
            seconds=time.monotonic() - self.began, seed=self.seed,
            refunded_minor=sum(row.amount_minor or 0 for row in refunds),
            aimed=Counter(note.aim for note in self.notes),
        )  # fmt: skip

    def _attributed(
        self, arrivals: list[provider_audit.Arrival], effects: list[provider_audit.Effect]
    ) -> tuple[Counter[str], Counter[str]]:
        """How many kills fell into each window, and each half of W4; the reason of each stands in ``kills.txt``."""
        windows: Counter[str] = Counter()
        halves: Counter[str] = Counter()
        said = []
        for note in self.notes:
            key = note.state.key
            given = attribute(
                note.kill,
                note.state,
                [one.at_us for one in arrivals if one.key == key],
                [one.at_us for one in effects if one.key == key],
            )
            windows.update([given.window] if given.window is not None else [])
            halves.update([given.half] if given.half is not None else [])
            said.append(f"{note.run} aimed {note.aim}, hit {given.window or 'none'}: {given.reason}")
        said += [f"missed {aim}" for aim in self.missed]
        (self.directory / "kills.txt").write_text("\n".join(said) + "\n", encoding="utf-8")
        return windows, halves

    def _tasks(self) -> list[TaskRow]:
        with self._reading() as read:
            return read(lambda tx: [tasks.get(tx, one) for _, one in tasks.opened_since(tx, -1, TASKS_MAX)])

    def _records(self) -> Iterator[Record]:
        for store in [self.store, *sorted((self.directory / "scenes").glob("*.db"))]:
            if not store.exists():
                continue
            readers = read_only(store)
            try:
                for row in lists.every_run(readers.read):
                    yield from (item.record for item in lists.read_history(readers.read, row.run))
            finally:
                readers.close()

    def _handovers(self, records: list[Record]) -> int:
        """How often a run went on under another epoch than the one before."""
        highest: dict[str, int] = {}
        for record in records:
            highest[record.run] = max(highest.get(record.run, 1), record.epoch)
        return sum(epoch - 1 for epoch in highest.values())

    def _tell(self, desk: Desk, end: str = "\n") -> None:
        if not self.say:
            return
        aims = Counter(note.aim[:2] for note in self.notes)
        line = progress(
            seconds=time.monotonic() - self.began, concluded=len(desk.ended), total=len(TICKETS), kills=self.kills,
            of=self.kills_wanted, windows=aims,
        )  # fmt: skip
        tty = sys.stderr.isatty()
        if end == "\r" and not tty:
            return
        print("\r" + line.ljust(79) if tty else line, end="" if tty else "\n", file=sys.stderr, flush=True)


def run(directory: Path, *, seed: int, kills: int, seconds: float | None, source: Path | None, say: bool) -> Result:
    """The refunds in ``directory``. ``seconds``: how long kills are tried for, by their number where it is not said."""
    limit_s = seconds if seconds is not None else max(SECONDS, kills * SECONDS_A_KILL)
    return Chaos(directory, seed=seed, kills=kills, seconds=limit_s, source=source, say=say).run()


__all__ = ["Aim", "Chaos", "run"]
