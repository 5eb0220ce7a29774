"""A night shift on the command line, by two accounts of the operating system: what waited is found, answered, decided
by the second person, accounted for and explained. docs/night-shift.md is its transcript."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agentplane.core.instants import to_text
from agentplane.lab import moved_clock
from house.ratchet import ROOT
from house.uids import run_as
from surface.terminals import Plane, Said, environment

DOCUMENT = ROOT / "docs" / "night-shift.md"
AMELIE, MARLEN, GROUP = 61_234, 61_235, 61_300
"""Uids inside the 65,536 that a container usually has, and a group that both are in."""
NAMES = {f"os:#{AMELIE}": "os:amelie", f"os:#{MARLEN}": "os:marlen"}
HOUR_MS = 3_600_000
SKILLS = '''
from agentplane import Proposal, Recovery, effect, skill


@effect("payments.refund")
async def refund(call, *, order: str, amount_minor: int):
    """A provider that took the money and whose answer was lost, for one order."""
    if order == "A-1":
        raise RuntimeError("the line went dead")
    return {"refund": "re_" + order, "amount_minor": amount_minor}


@skill("refunds.pay")
async def pay(cx, request: dict):
    return await cx.do(refund(order=request["order"], amount_minor=request["amount_minor"]))


@skill("refunds.ask")
async def ask(cx, request: dict):
    call = refund(order=request["order"], amount_minor=request["amount_minor"])
    decision = await cx.task(Proposal(
        summary="Refund " + request["order"] + " in full?", action=call, confidence=0.6, cost=request["amount_minor"],
        evidence={"photo": "the box is torn"}, due=24 * 3600,
    ))
    return await cx.do(call, approval=decision) if decision.approved else decision.outcome


@skill("claims.answer")
async def answer(cx, request: dict):
    await cx.deadline("first answer", hours=8)
    letter = await cx.event("letter.received", correlation={"claim": request["claim"]}, days=3)
    return {"letter": letter.payload["page"], "in time": await cx.met("first answer")}
'''
TOML = f'''name = "night"
socket_group = "{GROUP}"
event_kept_secs = {6 * 3600}

[access]
"os:#{AMELIE}" = ["author", "operator", "reviewer"]
"os:#{MARLEN}" = ["reviewer", "supervisor"]
'''
HEAD = """# A night shift

What two accounts of one machine did at the terminal, from evening to morning; a test does it again and compares. Ids,
digests and instants are written over (a run is `run_00000000000000000000000001`, an instant has its hour alone);
nothing else is. `amelie` is an author, an operator and a reviewer, and `marlen` a reviewer and a supervisor: `[access]`
says so, and that is all either of them may.
"""


class Shift:
    """The plane, its clock, who is at the terminal, and what was said."""

    def __init__(self, plane: Plane, clock: Path) -> None:
        self.plane = plane
        self.clock = clock
        self.began_ms = time.time_ns() // 1_000_000
        self.lines: list[str] = [HEAD.rstrip("\n")]
        self.fenced = False
        self.offset_ms = 0

    def tell(self, text: str) -> None:
        """Words between two commands."""
        if self.fenced:
            self.lines.append("```")
        self.lines += ["", text]
        self.fenced = False

    def say(self, uid: int, *args: str, status: int = 0) -> str:
        """A command of one of the two, as the transcript has it; what it answered."""
        said = run_as(uid, _command, str(self.plane.directory), args, trees=_trees(), gid=GROUP)
        assert said.status == status, said
        assert "Traceback" not in said.err, said.err
        if not self.fenced:
            self.lines += ["", "```"]
            self.fenced = True
        name = {AMELIE: "amelie", MARLEN: "marlen"}[uid]
        shown = " ".join(one if re.fullmatch(r"[\w./:=|-]+", one) else f"'{one}'" for one in args if one != "--yes")
        self.lines.append(f"{name}$ agentplane {shown}{' --yes' if '--yes' in args else ''}")
        self.lines += [line for line in (said.err + said.out).rstrip("\n").split("\n") if line]
        if status:
            self.lines.append(f"[status {status}]")
        return said.out + said.err

    def forward(self, hours: int) -> None:
        self.offset_ms += hours * HOUR_MS
        moved_clock.write(self.clock, self.offset_ms)

    def text(self) -> str:
        if self.fenced:
            self.lines.append("```")
            self.fenced = False
        return stable("\n".join(self.lines) + "\n", self.began_ms, self.plane.directory)


def _command(directory: str, args: tuple[str, ...]) -> Said:
    done = subprocess.run(
        [sys.executable, "-m", "agentplane.cli.main", args[0], *args[1:], "--output", "table"], capture_output=True,
        text=True, timeout=60, check=False, env=environment() | {"AGENTPLANE_PLANE": directory},
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return Said(done.returncode, done.stdout, done.stderr)


def _trees() -> list[Path]:
    interpreter = [Path(sys.prefix), Path(sys.base_prefix), Path(os.path.realpath(sys.executable)).parent]
    return [ROOT, *interpreter, Path(tempfile.gettempdir())]


def stable(text: str, began_ms: int, directory: Path) -> str:
    """The transcript with what differs from one night to the next written over, each by what is as long."""
    for uid, name in NAMES.items():
        text = text.replace(uid, name)
    text = text.replace(str(directory), "/srv/night")
    known: dict[str, str] = {}
    counts = {kind: itertools.count(1) for kind in ("run", "case", "evt")}

    def an_id(found: re.Match[str]) -> str:
        if found[0] not in known:
            known[found[0]] = f"{found[1]}_{next(counts[found[1]]):026d}"
        return known[found[0]]

    def a_digest(found: re.Match[str]) -> str:
        digit = known.setdefault(found[0][:8], "123456789abcdef"[sum(len(one) == 8 for one in known)])
        return digit * len(found[0])

    def an_instant(found: re.Match[str]) -> str:
        at = datetime.fromisoformat(found[0])
        hours = (at - datetime.fromtimestamp(began_ms / 1000, UTC)) // timedelta(hours=1)
        shown = to_text(round((datetime(2026, 1, 1, 22, tzinfo=UTC) + timedelta(hours=hours)).timestamp() * 1000))
        return shown if len(shown) == len(found[0]) else shown[: len(found[0]) - 1] + "Z"

    text = re.sub(r"\b(run|case|evt)_[0-9A-Z]{26}\b", an_id, text)
    text = re.sub(r"\b[0-9a-f]{16,64}\b", a_digest, text)
    return re.sub(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", an_instant, text)


@pytest.fixture
def shift() -> Iterator[Shift]:
    if os.geteuid() != 0:
        pytest.skip("missing: two uids (only root may become them)")
    place = Path(tempfile.mkdtemp(prefix="agentplane-night-"))
    place.chmod(0o755)
    clock = place / "clock"
    moved_clock.write(clock, 0)
    plane = Plane.made(place / "plane", skills=SKILLS)
    (plane.directory / "plane.toml").write_text(TOML)
    made = Shift(plane, clock)
    entry = Path(__file__).with_name("moved.py")
    with open(plane.log, "ab") as log:
        plane.child = subprocess.Popen(
            [sys.executable, str(entry), str(clock), str(plane.directory)], stdin=subprocess.DEVNULL, stdout=log,
            stderr=log, env=environment() | {"PYTHONHASHSEED": "0"},
        )  # fmt: skip
    plane.until((plane.directory / "run" / "control.sock").exists)
    yield made
    plane.stop(signal.SIGTERM)
    shutil.rmtree(place, ignore_errors=True)


def an_evening(at: Shift) -> None:
    """Amelie starts three pieces of work and passes a letter on."""
    at.tell(
        "In the evening `amelie` starts three pieces of work: one refund's provider does not answer, one refund is\n"
        "large and waits for a second person, and a claim waits for a letter. A letter comes, whose claim was typed\n"
        "by hand."
    )
    pay = ("run", "refunds.pay", "--input", '{"order": "A-1", "amount_minor": 4200}', "--key", "refund-A-1")
    assert "quarantined" in at.say(AMELIE, *pay, status=1)
    ask = ("run", "refunds.ask", "--input", '{"order": "A-2", "amount_minor": 90000}', "--key", "refund-A-2")
    assert "suspended" in at.say(AMELIE, *ask, status=3)
    claim = ("run", "claims.answer", "--input", '{"claim": "C-7"}', "--key", "claim-C-7", "--correlate", "claim=C-7")
    assert "suspended" in at.say(AMELIE, *claim, status=3)
    letter = ("events", "deliver", "--kind", "letter.received", "--id", "scan-1", "--correlate", "claim=C-07",
              "--input", '{"page": 1}')  # fmt: skip
    assert "buffered" in at.say(AMELIE, *letter)


def what_is_found(at: Shift) -> str:
    at.forward(9)
    listed = lambda: at.plane.verb("attention", "--store", str(at.plane.directory / "plane.db")).out  # noqa: E731
    at.plane.until(lambda: "obligation.breached" in listed() and "event.dead_lettered" in listed())
    at.tell("Nine hours later, at seven in the morning, `marlen` asks what only a person can end.")
    return at.say(MARLEN, "attention", status=1)


def a_refund_in_doubt(at: Shift, found: str) -> None:
    at.tell(
        "The refund in doubt: the provider's console has it, so the effect landed. The run is handed back, and ends."
    )
    run, effect = _match(r"agentplane reconcile (run_\w+) --effect (\w+)", found)
    assert "undecided" in at.say(MARLEN, "show", run)
    at.say(MARLEN, "reconcile", run, "--effect", effect, "--outcome", "landed", "--result", '{"refund": "re_1"}',
           "--note", "seen in the console of the provider", "--yes")  # fmt: skip
    done = at.say(MARLEN, "quarantine", run, "--decision", "reopen", "--reason", "answered", "--yes")
    assert "succeeded" in done and "re_1" in done


def an_approval(at: Shift) -> None:
    at.tell(
        "The large refund: `amelie` started it, so she is not the one who approves it. `marlen` reads what is\n"
        "proposed, and decides the version that she read."
    )
    tasks = at.say(AMELIE, "tasks")
    (task,) = _match(r"([0-9a-f]{64})", tasks)
    assert "among those who may not" in at.say(
        AMELIE, "decide", task, "approve", "--reason", "I know the customer", "--yes", status=1
    )
    shown = at.say(MARLEN, "tasks", "show", task)
    (digest,) = _match(r"--digest ([0-9a-f]{64})", shown)
    (run,) = _match(r"run +(run_\w+)", shown)
    assert "A-2" in shown and "\\n" not in shown
    decided = at.say(
        MARLEN, "decide", task, "approve", "--digest", digest, "--reason", "the photo shows it", "--yes"
    )  # fmt: skip
    assert "resumed" in decided
    assert "re_A-2" in at.say(MARLEN, "wait", run)


def a_breach(at: Shift) -> str:
    at.tell("The promise that was not kept stays broken; who looked, and why, is said once.")
    (case,) = _match(r"(case_\w+)", at.say(MARLEN, "obligations", status=1))
    at.say(MARLEN, "acknowledge", case, "--obligation", "first answer", "--note", "the letter was filed wrongly")
    assert "case_" not in at.say(MARLEN, "obligations")
    return case


def a_dead_letter(at: Shift, case: str) -> None:
    at.tell(
        "The dead letter: it was about `claim=C-07`, and what is waited for is about `claim=C-7`. `amelie` sends it\n"
        "again, about the claim that there is."
    )
    assert "C-07" in at.say(MARLEN, "events", "dead-letters")
    (run,) = _match(r"(run_\w+)", waiting := at.say(MARLEN, "waiting"))
    assert "claim=C-7" in waiting
    letter = ("events", "deliver", "--kind", "letter.received", "--id", "scan-1-again", "--correlate", "claim=C-7",
              "--input", '{"page": 1}')  # fmt: skip
    assert "resumed" in at.say(AMELIE, *letter)
    assert '"in time": false' in at.say(MARLEN, "wait", run)
    assert "breached" in at.say(MARLEN, "cases", "show", case)
    at.tell("What is left is the letter itself, which stays listed: it is what somebody sent, and reached nobody.")
    left = at.say(MARLEN, "attention", status=1)
    assert "event.dead_lettered" in left and not re.search("run\\.|obligation\\.|task\\.", left)


def _match(pattern: str, text: str) -> tuple[str, ...]:
    found = re.search(pattern, text)
    assert found is not None, (pattern, text)
    return found.groups()


@pytest.mark.heavy
def test_what_waited_overnight_is_ended_by_the_two_who_may(shift: Shift) -> None:
    """Every step as docs/night-shift.md has it (AGENTPLANE_TRANSCRIPTS=write writes it anew)."""
    an_evening(shift)
    found = what_is_found(shift)
    a_refund_in_doubt(shift, found)
    an_approval(shift)
    a_dead_letter(shift, a_breach(shift))
    log = shift.plane.log.read_text()
    assert f'"actor":"os:#{MARLEN}"' in log and "defect" not in log and "seen in the console" not in log
    if os.environ.get("AGENTPLANE_TRANSCRIPTS") == "write":
        DOCUMENT.write_text(shift.text())
    assert shift.text() == DOCUMENT.read_text()
