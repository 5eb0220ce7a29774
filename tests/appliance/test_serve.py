"""How serving begins and ends: signals at every moment, streams that nobody reads or that are closed, faults in one
sentence."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentplane.core.errors import AgentplaneError
from agentplane.surface.client import HttpClient
from surface.terminals import Plane, environment

TALKING = """
import logging
import sys
from agentplane import Recovery, effect, skill


@effect("desk.say", recovery=Recovery.RETRY)
async def say(call, *, order: str):
    print("x" * 4096, file=sys.stderr)
    print("z" * 4096, flush=True)
    logging.getLogger("skill").warning("y" * 4096)
    return order


@skill("desk.talking")
async def talking(cx, request: dict):
    for number in range(request["count"]):
        await cx.do(say(order=str(number)))
    return "said"
"""


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    made = Plane.made(tmp_path / "plane")
    yield made
    if made.child is not None:
        made.child.kill()
        made.child.wait()


def served(plane: Plane) -> Path:
    return plane.directory / "run" / "control.sock"


def test_four_lines_say_what_is_served_and_how_to_stop(plane: Plane) -> None:
    """Name and store, the listener or that there is none, the control socket, how to stop."""
    plane.start()
    assert plane.child is not None
    lines = plane.log.read_text().splitlines()[:4]
    assert "plane (development)" in lines[0] and "plane.db" in lines[0] and "desk.settle" in lines[0]
    assert "no listener" in lines[1] and str(served(plane)) in lines[2] and str(plane.child.pid) in lines[3]
    assert plane.stop() == 0 and "stopped: none parked, 0 cut" in plane.log.read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_at_any_moment_of_the_start_ends_it(plane: Plane, number: int) -> None:
    """Before the interpreter listens it is the kernel's; from then on it is a drain. It never hangs, and the store
    opens after."""
    began = time.monotonic()
    plane.start()
    start_s = time.monotonic() - began
    assert plane.stop() == 0
    statuses = set()
    for twelfth in (*range(13), None):  # of a start of this machine's, as it is now; None: once it serves
        if twelfth is None:
            plane.start()
        else:
            plane.begin()
            time.sleep(start_s * twelfth / 12)
        assert plane.child is not None
        plane.child.send_signal(number)
        statuses.add(plane.child.wait(20))
        assert "defect" not in plane.log.read_text()
    # An interrupt in the interpreter's own start is its own (1); what follows says so in a sentence (4).
    assert statuses <= {0, -number, *((1, 4) if number == signal.SIGINT else ())} and 0 in statuses
    assert "Traceback" not in plane.log.read_text() or number == signal.SIGINT
    plane.start()
    assert plane.run("desk.settle", {"order": "1"}).status == 0 and plane.stop() == 0


def test_a_signal_while_skills_are_imported_is_a_drain_that_follows(plane: Plane) -> None:
    """An import may take long; what arrives meanwhile is neither lost nor an end in the middle of it."""
    _imports_for(plane, 1)
    assert plane.child is not None
    plane.child.send_signal(signal.SIGTERM)
    assert plane.child.wait(20) == 0
    assert "draining:" in plane.log.read_text()


def _imports_for(plane: Plane, seconds: int) -> None:
    """A process that is in the middle of an import of so long."""
    here = str(plane.directory / "importing")
    (plane.directory / "skills" / "slow.py").write_text(
        f"import time\nfrom pathlib import Path\nPath({here!r}).touch()\ntime.sleep({seconds})\n"
    )
    (plane.directory / "skills" / "slow.py").chmod(0o644)
    plane.begin()
    plane.until((plane.directory / "importing").exists)


def test_an_end_in_the_middle_of_an_import_is_said(plane: Plane) -> None:
    """A second signal, or a patience that ends, before anything was served: the log says why it is over."""
    _imports_for(plane, 600)
    assert plane.child is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        plane.child.send_signal(number)
    assert plane.child.wait(20) == 0
    assert "stopped: told to before it served; nothing was begun" in plane.log.read_text()


POOL = """
import multiprocessing
from agentplane import effect, skill

@effect("pool.apply", mutates=False, timeout_s=30)
def apply(call, *, number: int):
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(abs, (number,))

@skill("pool.count")
async def count(cx, request: dict):
    return await cx.do(apply(number=-3))
"""


LEFT = """
import multiprocessing
import time
from agentplane import effect, skill

@effect("left.alive", mutates=False, timeout_s=30)
def alive(call):
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    child.start()
    return child.pid

@skill("left.alive")
async def leave(cx, request: dict):
    return await cx.do(alive())
"""


def serves(plane: Plane) -> int:
    """How often it has said that it serves."""
    return plane.log.read_text().count("stop: SIGTERM")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_a_skill_forked_does_not_keep_the_store(plane: Plane, number: int) -> None:
    """S164: a child that outlives its plane holds neither the lock nor a listener: the next process serves."""
    (plane.directory / "skills" / "left.py").write_text(LEFT)
    (plane.directory / "skills" / "left.py").chmod(0o644)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        at = f"127.0.0.1:{free.getsockname()[1]}"
    plane.start("--operator-addr", at)
    child = plane.run("left.alive", {}).body["output"]
    try:
        plane.stop(number)
        os.kill(child, 0)
        plane.begin("--operator-addr", at)
        # Asked by its log: a socket that the child kept would take a connection and answer nothing.
        second = plane.child
        assert second is not None
        plane.until(lambda: serves(plane) == 2 or second.poll() is not None)
        assert serves(plane) == 2
        assert plane.verb("status").body["ready"] is True and plane.stop() == 0
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_skill_may_have_a_pool_of_processes(plane: Plane) -> None:
    """S164: it ends its workers with TERM; that is nobody's drain, and they hear it."""
    (plane.directory / "skills" / "pool.py").write_text(POOL)
    (plane.directory / "skills" / "pool.py").chmod(0o644)
    plane.start()
    said = plane.run("pool.count", {})
    assert said.status == 0 and said.body["output"] == 3
    assert "draining" not in plane.log.read_text() and plane.stop() == 0


def test_standard_error_that_nobody_reads_stops_neither_runs_nor_drain(plane: Plane) -> None:
    """A pipe that is full: runs end, requests are answered, a drain ends, whatever skills and libraries print."""
    (plane.directory / "skills" / "talking.py").write_text(TALKING)
    (plane.directory / "skills" / "talking.py").chmod(0o644)
    reader, writer = os.pipe()
    out_reader, out_writer = os.pipe()
    plane.begin(stderr=writer, stdout=out_writer)
    plane.until(plane.answers)
    said = plane.run("desk.talking", {"count": 60})
    assert said.status == 0 and said.body["output"] == "said"
    for _ in range(30):
        assert plane.verb("runs").status == 0
    assert plane.child is not None
    plane.child.send_signal(signal.SIGTERM)
    assert plane.child.wait(15) == 0
    for one in (reader, writer, out_reader, out_writer):
        os.close(one)


def test_standard_error_that_is_gone_stops_nothing(plane: Plane) -> None:
    """A pipe whose reader has ended: no signal, no defect."""
    reader, writer = os.pipe()
    plane.begin(stderr=writer)
    os.close(writer)
    plane.until(plane.answers)
    os.close(reader)
    assert plane.run("desk.settle", {"order": "1"}).status == 0
    assert plane.stop() == 0


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_closed_standard_files_are_no_place_for_a_journal(plane: Plane, closed: str) -> None:
    """What is opened first would get their numbers, and the log would be written into it: they are opened as nothing
    before."""
    command = f"exec {sys.executable} -m agentplane.cli.main serve {plane.directory} {closed}"
    plane.child = subprocess.Popen(
        ["sh", "-c", command],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until = time.monotonic() + 30
    while plane.verb("status").status != 0:
        assert plane.child.poll() is None and time.monotonic() < until
    for number in (0, 1, 2):
        target = os.readlink(f"/proc/{plane.child.pid}/fd/{number}")
        assert str(plane.directory) not in target and "socket" not in target, (number, target)
    run = plane.run("desk.settle", {"order": "1"})
    assert run.status == 0 and plane.stop() == 0
    assert plane.verb("replay", run.body["run"], "--strict").body["verdict"] == "verified"


def test_a_verb_with_closed_standard_files_answers(plane: Plane) -> None:
    """Also one that would ask at a terminal."""
    for closed in ("0<&-", "1>&-", "2>&-"):
        for verb in ("runs", "release --all", f"cancel run_{'0' * 26} --reason x", "version"):
            where = "" if verb == "version" else f"--plane {plane.directory}"
            done = subprocess.run(
                ["sh", "-c", f"exec {sys.executable} -m agentplane.cli.main {verb} {where} {closed}"],
                env=environment(),
                capture_output=True,
                text=True,
                check=False,
            )
            assert "Traceback" not in done.stderr and done.returncode in (0, 1, 2), (verb, closed, done)


def test_a_defect_of_the_loop_is_one_sentence_and_status_4(plane: Plane) -> None:
    """Something of ours that was not thought of: its type and place are named, nothing is shown of its values."""
    (plane.directory / "skills" / "breaking.py").write_text(
        "import agentplane.appliance.drain as drain\n\n\ndef wait(self):\n    raise KeyError('a-value')\n\n\n"
        "drain.Drain.wait = wait\n"
    )
    (plane.directory / "skills" / "breaking.py").chmod(0o644)
    plane.begin()
    plane.until(served(plane).exists)
    assert plane.child is not None
    plane.child.send_signal(signal.SIGTERM)
    assert plane.child.wait(20) == 4
    log = plane.log.read_text()
    assert "Traceback" not in log and "KeyError" in log and "a-value" not in log and "breaking.py:5" in log


def test_a_failing_store_ends_it_with_status_4(plane: Plane) -> None:
    """Fail stop: the files were changed under the writer, and it says so rather than go on."""
    plane.start()
    os.rename(plane.directory / "plane.db", plane.directory / "moved.db")
    (plane.directory / "plane.db").write_bytes(b"")
    assert plane.child is not None
    # The files are compared at a checkpoint: some megabytes of log bring one about.
    for _ in range(30):
        with contextlib.suppress(AgentplaneError):
            HttpClient(path=served(plane)).call("start", body={"capability": "desk.large", "input": {"size": 900_000}})
        if plane.child.poll() is not None:
            break
        time.sleep(0.05)
    assert plane.child.wait(30) == 4
    assert "Traceback" not in plane.log.read_text() and "agentplane: " in plane.log.read_text()


def test_a_plane_whose_directory_others_may_write_is_not_served(plane: Plane) -> None:
    """Who may rename in it may put other skills, settings and tokens in place of the plane's."""
    plane.directory.chmod(0o777)
    said = plane.verb("serve", str(plane.directory), plane=False)
    assert said.status == 2 and "chmod go-w" in said.err and len(said.err.splitlines()) == 1
    plane.directory.chmod(0o755)
    plane.start()


def test_tokens_that_others_may_write_are_not_served(plane: Plane) -> None:
    """At the start a refusal; later a fault that `status` tells."""
    toml = plane.directory / "plane.toml"
    toml.write_text(toml.read_text().replace("[settings]", 'operator_addr = "127.0.0.1:0"\n\n[settings]'))
    plane.verb("token", "new", "--actor", "anna", "--role", "reader")
    (plane.directory / "tokens.json").chmod(0o666)
    said = plane.verb("serve", str(plane.directory), plane=False)
    assert said.status == 2 and "tokens.json" in said.err and len(said.err.splitlines()) == 1
    (plane.directory / "tokens.json").chmod(0o600)
    plane.start()


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ("lease_ttl_secs = nan", "lease_ttl_secs"),
        ("lease_ttl_secs = inf", "lease_ttl_secs"),
        ("drain_secs = nan", "drain_secs"),
        ("drain_linger_ms = -1", "drain_linger_ms"),
        ("max_admitted = 0", "max_admitted"),
        ('name = "a\\nb"', "name"),
        ('name = ""', "name"),
        ("max_running = 99999999999", "max_running"),
    ],
)
def test_numbers_that_are_none_are_refused(plane: Plane, said: str, word: str) -> None:
    """TOML can say NaN and infinity; a setting that is one is named."""
    toml = plane.directory / "plane.toml"
    lines = [line for line in toml.read_text().splitlines() if not line.startswith(word)]
    toml.write_text(said + "\n" + "\n".join(lines))
    answer = plane.verb("serve", str(plane.directory), plane=False)
    assert answer.status == 2 and word in answer.err and len(answer.err.splitlines()) == 1, answer


def test_what_the_supervisor_passed_is_not_passed_on(plane: Plane) -> None:
    """NOTIFY_SOCKET and LISTEN_* are heard by the plane, and gone before code of the operator runs."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    path = str(plane.directory.parent / "notify")
    listener.bind(path)
    listener.settimeout(20)
    (plane.directory / "skills" / "looking.py").write_text(
        "import os\nfrom pathlib import Path\n"
        "found = [name for name in os.environ if 'NOTIFY' in name or 'LISTEN' in name]\n"
        f"Path({str(plane.directory / 'seen')!r}).write_text(repr(found))\n"
    )
    (plane.directory / "skills" / "looking.py").chmod(0o644)
    plane.begin(env=environment() | {"NOTIFY_SOCKET": path})
    assert b"READY=1" in listener.recv(4096)
    assert (plane.directory / "seen").read_text() == "[]"
    assert plane.verb("status").body["ready"] is True
    assert plane.stop() == 0
    assert b"STOPPING=1" in listener.recv(4096)
    listener.close()


def test_status_says_live_and_ready_by_its_exit(plane: Plane) -> None:
    """0 when it answers, whatever waits for people; --ready is 1 when admission is closed; 4 when nothing serves."""
    plane.start()
    assert plane.run("desk.unsure", {"order": "1"}).status == 1
    assert [plane.verb("status", *flags).status for flags in ((), ("--live",), ("--ready",))] == [0, 0, 0]
    plane.verb("pause", "--reason", "an incident")
    assert [plane.verb("status", *flags).status for flags in ((), ("--live",), ("--ready",))] == [0, 0, 1]
    assert plane.verb("status").body["state"] == "paused"
    assert plane.stop() == 0
    plane.start()
    status: dict[str, Any] = json.loads(plane.verb("status").out)
    assert status["paused"] == "an incident" and plane.run("desk.settle", {"order": "1"}).status == 4
    assert plane.verb("release", "--paused").status == 0 and plane.run("desk.settle", {"order": "1"}).status == 0
    assert plane.stop() == 0 and plane.verb("status").status == 4


def test_who_may_not_ask_is_not_told_that_it_is_dead(plane: Plane) -> None:
    """S137: with [access] a uid has the roles that it is given: 4 and the role, where 1 would have the plane ended."""
    with open(plane.directory / "plane.toml", "a", encoding="utf-8") as toml:
        toml.write('[access]\n"anna" = ["operator"]\n')
    plane.begin()
    plane.until(lambda: "stop: SIGTERM" in plane.log.read_text())
    for flag, status in (("--live", 4), ("--ready", 4)):
        said = plane.verb("status", flag)
        assert said.status == status and "may not api:status.read" in said.err and "[access]" in said.err, said
    assert plane.verb("status").status == 1
    assert plane.stop() == 0


def test_an_interrupt_that_python_would_forget_is_a_drain(plane: Plane) -> None:
    """S162: what a callback raises is printed and forgotten, and an interrupt was raised until `serve` heard it."""
    script = (
        "import os, signal, sys\n"
        "from agentplane.cli import main\n"
        "real = main.build\n"
        "class Gone:\n"
        "    def __del__(self):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "def build():\n"
        "    Gone()\n"
        "    return real()\n"
        "main.build = build\n"
        "main.main(['serve', sys.argv[1]])\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(plane.directory)],
        env=environment() | {"PYTHONHASHSEED": "0"}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as child:  # fmt: skip
        try:
            status = child.wait(15)
        except subprocess.TimeoutExpired:
            status = None
            child.kill()
    assert status == 0
