"""The command line as a person meets it: tables at a terminal, questions, interrupts, restarts, pipes that end."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentplane.cli.render import _json, safe, table
from surface.terminals import SKILLS, Plane, Said, environment

STEPWISE = (
    SKILLS
    + '''

@effect("desk.beat", mutates=False)
async def beat(call, *, number: int, seconds: float):
    """A record every moment."""
    await trio.sleep(seconds)
    return number


@skill("desk.beating")
async def beating(cx, request: dict):
    for number in range(request["count"]):
        await cx.do(beat(number=number, seconds=request["seconds"]))
    return request["count"]


@skill("desk.hostile")
async def hostile(cx, request: dict):
    raise ValueError("red \\x1b[31m back \\u202e gnp.exe \\u009b31m \\x07 line\\nline")
'''
)
ESCAPES = re.compile(r"\x1b|\x9b|\x07|\u202e")


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    made = Plane.made(tmp_path / "plane", skills=STEPWISE)
    yield made
    if made.child is not None:
        made.child.kill()
        made.child.wait()


def command(plane: Plane, verb: str, *args: str) -> list[str]:
    return [sys.executable, "-m", "agentplane.cli.main", verb, "--plane", str(plane.directory), *args]


class Terminal:
    """A command with a terminal of its own."""

    def __init__(self, plane: Plane, *args: str, env: dict[str, str] | None = None) -> None:
        ours, theirs = pty.openpty()
        self.child = subprocess.Popen(
            command(plane, *args),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment() | (env or {}),
            start_new_session=True,
        )
        os.close(theirs)
        self.fd = ours
        self.shown = ""

    def until(self, word: str) -> None:
        while word not in self.shown:
            assert self._read(), self.shown

    def say(self, line: str) -> None:
        os.write(self.fd, (line + "\n").encode())

    def end(self) -> tuple[int, str]:
        while self._read():
            pass
        status = self.child.wait(30)
        os.close(self.fd)
        return status, self.shown

    def _read(self) -> bool:
        ready, _, _ = select.select([self.fd], [], [], 60)
        assert ready, self.shown
        try:
            part = os.read(self.fd, 65536)
        except OSError:
            return False
        self.shown += part.decode("utf-8", "replace")
        return bool(part)


def at_terminal(
    plane: Plane, *args: str, answers: tuple[str, ...] = (), env: dict[str, str] | None = None
) -> tuple[int, str]:
    terminal = Terminal(plane, *args, env=env)
    for answer in answers:
        terminal.until("[y/N]")
        terminal.say(answer)
    return terminal.end()


@contextmanager
def running(plane: Plane, *args: str) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        command(plane, *args), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


# --- what is shown --------------------------------------------------------------------------------------------------


def test_a_terminal_is_shown_tables_and_a_pipe_json(plane: Plane) -> None:
    """By what standard output is, unless told; NO_COLOR and a dumb terminal change nothing, since nothing is
    coloured."""
    plane.run("desk.settle", {"order": "1"})
    status, shown = at_terminal(plane, "runs")
    assert (
        status == 0 and shown.splitlines()[0].split()[:3] == ["RUN", "CAPABILITY", "STATUS"] and "desk.settle" in shown
    )
    assert at_terminal(plane, "runs", env={"NO_COLOR": "1", "TERM": "dumb"})[1] == shown and "\x1b" not in shown
    assert json.loads(at_terminal(plane, "runs", "--json")[1])["schema"] == "agentplane.runs/1"
    assert json.loads(plane.verb("runs").out)["schema"] == "agentplane.runs/1"
    rows = plane.verb("runs", "--output", "jsonl").out.splitlines()
    assert [json.loads(row)["capability"] for row in rows] == ["desk.settle"]
    status, shown = at_terminal(plane, "show", json.loads(rows[0])["run"])
    assert status == 0 and "succeeded" in shown


def test_what_a_terminal_would_act_on_is_shown_escaped(plane: Plane) -> None:
    """Control characters and those that turn text around, in reasons, outputs and keys: in tables, in JSON, on
    standard error."""
    run = plane.run("desk.hostile", {"order": "1"}, "--key", "a-key").body["run"]
    for args in (
        ["runs"],
        ["show", run],
        ["history", run],
        ["history", run, "-f"],
        ["runs", "--json"],
        ["show", run, "--json"],
        ["show", run, "--output", "jsonl"],
        ["history", run, "--json"],
    ):
        status, shown = at_terminal(plane, *args)
        assert status == 0 and not ESCAPES.search(shown), (args, shown)
    said = plane.verb("show", run)
    assert "\x1b" in json.loads(said.out)["error"]["message"] and "\u202e" in json.loads(said.out)["error"]["message"]
    refused = plane.verb("run", "desk.\x1b[31m\u202e")
    assert refused.status == 2 and not ESCAPES.search(refused.err)
    assert ESCAPES.search(plane.log.read_text() if plane.log.exists() else "") is None


def test_escaping_loses_nothing() -> None:
    """JSON that was escaped reads back as what it was, whatever characters there are."""
    for text in ("plain", "é ж 漢", "\x1b[0m", "\u202e", "\x9b", "\x7f", "\u2028", "\U000e0041", "a\nb\tc"):
        shown = _json({text: [text]}, indent=2)
        assert json.loads(shown) == {text: [text]} and all(char.isprintable() or char == "\n" for char in shown)
        assert safe(text).isprintable()
    assert "\x1b" not in table([{"a": "\x1b"}], ("a",))


def test_a_terminal_without_unicode_is_shown_escapes(plane: Plane) -> None:
    """Text that its encoding does not have does not end the command."""
    run = plane.run("desk.settle", {"order": "ж"}).body["run"]
    for args in (["show", run], ["history", run], ["runs"]):
        done = subprocess.run(
            command(plane, *args), capture_output=True, env=environment() | {"PYTHONIOENCODING": "ascii"}, check=False
        )
        assert done.returncode == 0 and done.stdout.isascii(), done


# --- what is asked --------------------------------------------------------------------------------------------------


def test_what_cannot_be_taken_back_is_asked_at_a_terminal(plane: Plane) -> None:
    """What will happen is said first; anything but yes does nothing, and elsewhere it takes --yes."""
    run = plane.run("desk.unsure", {"order": "1"}).body["run"]
    abandon = ("quarantine", run, "--decision", "abandon", "--reason", "nobody knows")
    for answer in ("n", "", "perhaps"):
        status, shown = at_terminal(plane, *abandon, answers=(answer,))
        assert (
            status == 1
            and "closed where it stands" in shown
            and "cannot be taken back" in shown
            and "Nothing was done" in shown
        )
    assert plane.verb(*abandon).status == 2 and plane.verb("show", run).body["status"] == "quarantined"
    status, shown = at_terminal(plane, *abandon, answers=("y",))
    assert status == 0 and plane.verb("show", run).body["status"] == "abandoned"


# --- interrupts -----------------------------------------------------------------------------------------------------


def test_an_interrupt_of_run_detaches_and_never_cancels(plane: Plane) -> None:
    """Ctrl-C: it says that the run goes on, under which key to come back to it, and the run ends by itself."""
    plane.start()
    terminal = Terminal(plane, "run", "desk.waiting", "--input", '{"seconds": 2}', "--key", "mine")
    terminal.until("run run_")
    time.sleep(0.3)
    terminal.child.send_signal(signal.SIGINT)
    status, shown = terminal.end()
    run = re.findall(r"run_\w{26}", shown)[0]
    assert (
        status == 5
        and "detached" in shown
        and "not cancelled" in shown
        and "--key mine" in shown
        and "Traceback" not in shown
    )
    assert plane.verb("show", run).body["status"] == "running"
    again = plane.run("desk.waiting", {"seconds": 2}, "--key", "mine")
    assert again.status == 0 and again.body["run"] == run and again.body["output"] == 2


def test_an_interrupt_of_a_run_in_the_terminals_own_process_parks_it(plane: Plane) -> None:
    """With the plane down: it stops at the next effect boundary without doubt, is not cancelled, and `serve` goes on
    with it."""
    terminal = Terminal(plane, "run", "desk.beating", "--input", '{"count": 20, "seconds": 0.2}')
    terminal.until("key ")
    plane_down_until_beats(plane, 3)
    terminal.child.send_signal(signal.SIGINT)
    status, shown = terminal.end()
    assert status == 5 and "not cancelled" in shown and "Traceback" not in shown, shown
    run = plane.verb("runs").body["runs"][0]["run"]
    kinds = [record["kind"] for record in plane.verb("history", run).body["records"]]
    assert kinds[-1] == "EffectDone" and "EffectFailed" not in kinds
    plane.start()
    assert plane.verb("wait", run, "--timeout", "30").body["output"] == 20
    assert plane.stop() == 0


def plane_down_until_beats(plane: Plane, number: int) -> None:
    until = time.monotonic() + 30
    while True:
        runs = plane.verb("runs", "--store", str(plane.directory / "plane.db")).body["runs"]
        if runs and runs[0]["records"] > 3 + 2 * number:
            return
        assert time.monotonic() < until


# --- keys and ids ---------------------------------------------------------------------------------------------------


def test_the_key_is_said_before_the_request(plane: Plane) -> None:
    """On standard error, also when the request is refused; the run's id as soon as there is one."""
    refused = plane.run("desk.nothing", {})
    assert refused.err.startswith("key ") and refused.out == ""
    said = plane.run("desk.settle", {"order": "1"}, "--key", "mine")
    assert said.err.splitlines() == ["key mine", f"run {said.body['run']}"]


def test_a_key_is_the_same_key_up_and_down(plane: Plane) -> None:
    """Whatever text it is; and what could not be the same is refused both ways."""
    down = plane.run("desk.settle", {"order": "1"}, "--key", "ключ é")
    plane.start()
    up = plane.run("desk.settle", {"order": "1"}, "--key", "ключ é")
    assert up.status == down.status == 0 and up.body["run"] == down.body["run"] and up.body["admitted"] is False
    for bad in ("a\nb", " a", "a ", "x" * 513, "\x1b", os.fsdecode(b"\xff")):
        refused = plane.run("desk.settle", {"order": "1"}, "--key", bad)
        assert refused.status == 2 and len(refused.err.splitlines()) == 1 and "Traceback" not in refused.err, refused
    assert plane.stop() == 0


def test_arguments_that_are_no_text_are_refused_both_ways(plane: Plane) -> None:
    """Bytes that are no UTF-8 in a reason, an actor, an id: one sentence, up and down."""
    odd = os.fsdecode(b"\xff")
    run = plane.run("desk.failing", {"order": "1"}).body["run"]

    def refused() -> None:
        for args in (
            ["pause", "--reason", odd],
            ["cancel", run, "--reason", odd, "--yes"],
            ["show", odd],
            ["runs", "--after", odd],
        ):
            said = plane.verb(*args)
            assert said.status == 2 and len(said.err.splitlines()) == 1 and "Traceback" not in said.err, said

    refused()
    assert plane.verb("pause", "--reason", "x", "--actor", odd).status == 2
    plane.start()
    refused()
    assert plane.stop() == 0


# --- following ------------------------------------------------------------------------------------------------------


def test_a_follow_gives_every_record_once_over_a_restart(plane: Plane) -> None:
    """While it serves, while nothing does, and of the next process; it ends with the run."""
    plane.start("--drain-mode", "park")
    run = plane.run("desk.beating", {"count": 40, "seconds": 0.1}, "--detach").body["run"]
    said: list[Said] = []
    follower = threading.Thread(
        target=lambda: said.append(plane.verb("history", run, "-f", "--output", "jsonl", timeout=120))
    )
    follower.start()
    for _ in range(2):
        time.sleep(0.8)
        assert plane.stop() == 0
        time.sleep(0.5)
        plane.start("--drain-mode", "park")
    follower.join(120)
    records = [json.loads(line) for line in said[0].out.splitlines()]
    assert said[0].status == 0 and [record["seq"] for record in records] == list(range(1, len(records) + 1))
    assert records[-1]["kind"] == "RunConcluded" and {record["epoch"] for record in records} == {1, 2, 3}
    assert plane.stop() == 0


def test_a_follow_is_given_each_record_as_it_is_written(plane: Plane) -> None:
    """Through a pipe too: nothing waits in a buffer of ours."""
    plane.start()
    run = plane.run("desk.waiting", {"seconds": 30}, "--detach").body["run"]
    with running(plane, "history", run, "-f", "--output", "jsonl") as child:
        assert child.stdout is not None
        assert [json.loads(child.stdout.readline())["seq"] for _ in range(4)] == [1, 2, 3, 4]


def test_a_follow_of_a_plane_that_is_down_ends_at_its_last_record(plane: Plane) -> None:
    """At once, also for a run that is open: nobody will write the next."""
    plane.start("--drain-mode", "park")
    run = plane.run("desk.beating", {"count": 40, "seconds": 0.1}, "--detach").body["run"]
    assert plane.stop() == 0
    began = time.monotonic()
    said = plane.verb("history", run, "-f")
    assert said.status == 0 and time.monotonic() - began < 5 and len(said.out.splitlines()) >= 3


def test_wait_has_an_end(plane: Plane) -> None:
    """--timeout answers 5 with the status so far; `decided` waits on while a person has to look; a number is a
    number."""
    plane.start()
    run = plane.run("desk.waiting", {"seconds": 60}, "--detach").body["run"]
    began = time.monotonic()
    said = plane.verb("wait", run, "--timeout", "0.5")
    assert said.status == 5 and said.body["status"] == "running" and time.monotonic() - began < 5
    stuck = plane.run("desk.unsure", {"order": "1"}).body["run"]
    assert plane.verb("wait", stuck).body["status"] == "quarantined"
    assert plane.verb("wait", stuck, "--for", "decided", "--timeout", "0.5").status == 1
    waiting = threading.Thread(
        target=lambda: said_later.append(plane.verb("wait", stuck, "--for", "decided", "--timeout", "30"))
    )
    said_later: list[Said] = []
    waiting.start()
    assert plane.verb("quarantine", stuck, "--decision", "abandon", "--reason", "x", "--yes").status == 0
    waiting.join(30)
    assert said_later[0].body["status"] == "abandoned" and said_later[0].status == 1
    for bad in ("-1", "nan", "soon"):
        assert plane.verb("wait", run, "--timeout", bad).status == 2
    plane.verb("drain", "--now")
    assert plane.child is not None and plane.child.wait(20) in (0, 5)


def test_waiting_for_what_nobody_executes_does_not_spin(plane: Plane) -> None:
    """A paused plane: a few requests a second at most, whoever waits."""
    plane.start("--drain-mode", "park")
    run = plane.run("desk.beating", {"count": 400, "seconds": 0.1}, "--detach").body["run"]
    plane.verb("pause", "--reason", "an incident")
    assert plane.stop() == 0
    plane.start()
    before = plane.log.read_text().count('"/runs/{run}"')
    assert plane.verb("wait", run, "--timeout", "3").status == 5
    assert plane.log.read_text().count('"/runs/{run}"') - before < 10
    assert plane.stop() == 0


# --- pipes ----------------------------------------------------------------------------------------------------------


def test_a_reader_that_goes_away_ends_nothing_badly(plane: Plane) -> None:
    """`runs | head -1`: no traceback, and no complaint of the interpreter's at its end."""
    for number in range(3):
        plane.run("desk.settle", {"order": str(number)})
    run = plane.run("desk.settle", {"order": "x" * 100_000}).body["run"]
    for args in (["runs"], ["show", run], ["history", run], ["history", run, "-f", "--output", "jsonl"], ["version"]):
        quoted = " ".join(
            command(plane, *args) if args != ["version"] else [sys.executable, "-m", "agentplane.cli.main", "version"]
        )
        done = subprocess.run(
            ["sh", "-c", f"{quoted} | true"], capture_output=True, text=True, env=environment(), check=False
        )
        assert done.stderr == "", (args, done.stderr)


def test_input_comes_from_a_file_or_a_pipe(plane: Plane) -> None:
    """--input-file, and - for standard input; one that is not there is said."""
    said = plane.verb("run", "desk.settle", "--input-file", "-", stdin='{"order": "1"}')
    assert said.status == 0 and said.body["output"] == {"noted": "1"}
    for path in ("/nonexistent/x", str(plane.directory)):
        refused = plane.verb("run", "desk.settle", "--input-file", path)
        assert refused.status == 2 and len(refused.err.splitlines()) == 1, refused
