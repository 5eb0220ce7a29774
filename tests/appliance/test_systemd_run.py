"""A plane under a real system manager: the packaged units, booted, restarted, starved, reloaded and drained.
docs/systemd-run.md is the transcript. And what `systemd-analyze` says of the units."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentplane.core.canonical import encode
from appliance.node import OPERATOR, PLANE, STRANGER, SYSTEMD, UNITS, Missing, Node
from house.ratchet import ROOT

pytestmark = pytest.mark.heavy

DOCUMENT = ROOT / "docs" / "systemd-run.md"
SERVICE, SOCKET = "agentplane.service", "agentplane-operator.socket"
SHOWN = "ActiveState,SubState,Result,ExecMainStatus,NRestarts,StatusText"
STATE = Path("/var/lib/agentplane")
EXPOSURE_MAX = 1.3
"""What `systemd-analyze security` may say of the service; docs/systemd.md names each point that is left."""
SKILLS = f'''
import os
import time
import trio
from agentplane import effect, skill


def write(line):
    descriptor = os.open("{STATE}/book", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, (line + "\\n").encode())
    os.close(descriptor)


WAS_STUCK = os.path.exists("{STATE}/book") and "slow stuck\\n" in open("{STATE}/book")


@effect("desk.slow", timeout_s=20)
async def slow(call, *, order: str, ms: int):
    write("slow " + order)
    await trio.sleep(ms / 1000)
    return order


@effect("desk.endless", timeout_s=3600)
async def endless(call, *, order: str):
    write("endless " + order)
    await trio.sleep(3600)


@effect("desk.sign", secrets=["desk_key"])
async def sign(call, *, order: str):
    return {{"order": order, "letters": len(call.secret("desk_key"))}}


@skill("desk.chain")
async def chain(cx, request: dict):
    for number in range(request["count"]):
        await cx.do(slow(order=str(number), ms=request["ms"]))
    return "all of it"


@skill("desk.endlessly")
async def endlessly(cx, request: dict):
    await cx.do(endless(order=request["order"]))


@skill("desk.signed")
async def signed(cx, request: dict):
    return await cx.do(sign(order=request["order"]))


@skill("desk.stuck")
async def stuck(cx, request: dict):
    await cx.do(slow(order="stuck", ms=1))
    if not WAS_STUCK:
        time.sleep(600)


found = [name for name in os.environ if name.startswith(("LISTEN_", "NOTIFY_", "WATCHDOG_"))]
write("inherited " + repr(found))
'''
ACCESS = f'"os:{OPERATOR}" = ["author"]\n'
CALLER = """
import http.client, json, os, sys, time
token, stop = sys.argv[1], sys.argv[2]
wrong, answers, longest, kept, used = {}, 0, 0.0, None, 0
while not os.path.exists(stop):
    began = time.monotonic()
    try:
        if kept is None or used == 7:
            kept, used = http.client.HTTPConnection("127.0.0.1", 9090, timeout=30), 0
        kept.request("GET", "/status", headers={"Authorization": "Bearer " + token})
        answer = kept.getresponse()
        answer.read()
        if answer.status != 200:
            wrong[str(answer.status)] = wrong.get(str(answer.status), 0) + 1
        answers += 1
        used = used + 1 if answer.getheader("Connection") != "close" else 7
    except Exception as error:
        # An idle connection may end at any moment: what was not sent on it is sent again on another.
        name = type(error).__name__
        if used == 0:
            wrong[name] = wrong.get(name, 0) + 1
        kept = None
    longest = max(longest, time.monotonic() - began)
    time.sleep(0.01)
print(json.dumps({"answers": answers, "wrong": wrong, "longest_s": round(longest, 3)}))
"""
HEAD = """# A plane under systemd

What a system manager and a plane did, from boot to drain, with the units of `systemd/` installed as docs/systemd.md
says; a test does it again and compares. The manager is systemd itself, as PID 1 of namespaces of its own. Pids,
instants, tokens and ids are written over; nothing else is. `node#` is root's prompt, `amelie` is in the group
`agentplane-operators`, `bo` is not; lines that begin with `#` say where the next ones are from.
"""


class Day:
    """The node, and what was said."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.lines: list[str] = [HEAD.rstrip("\n")]
        self.fenced = False
        self.token = ""

    def tell(self, text: str) -> None:
        if self.fenced:
            self.lines.append("```")
        self.lines += ["", text]
        self.fenced = False

    def say(self, line: str, *, user: str | None = None, status: int = 0) -> str:
        """A command, as the transcript has it; what it answered."""
        done = self.node.done("sh", "-c", line, user=user)
        assert done.returncode == status, (line, done.returncode, done.stdout, self.node.log())
        assert "Traceback" not in done.stdout
        self.show(f"{user or 'node'}{'$' if user else '#'} {line}", done.stdout)
        if status:
            self.lines.append(f"[status {status}]")
        return done.stdout

    def show(self, head: str, text: str) -> None:
        if not self.fenced:
            self.lines += ["", "```"]
            self.fenced = True
        self.lines += [head, *(line for line in text.rstrip("\n").split("\n") if line)]

    def stands(self, unit: str = SERVICE) -> dict[str, str]:
        """How the manager sees the service."""
        text = self.say(f"systemctl show {unit} --property={SHOWN}")
        return dict(line.split("=", 1) for line in text.splitlines())

    def is_active(self) -> bool:
        return self.node.shown(SERVICE, "ActiveState") == "active"

    def told(self, word: str) -> None:
        """Show the last line of the log that holds ``word``."""
        found = [line for line in self.node.log().splitlines() if word in line]
        assert found, (word, self.node.log())
        shown = json.loads(found[-1])["text"] if found[-1].startswith("{") else found[-1]
        self.show(f"# the log: {word}", shown)

    def run(self, capability: str, given: dict[str, Any], *flags: str) -> dict[str, Any]:
        """Work that is not part of the transcript."""
        done = self.node.done(
            "agentplane", "run", capability, "--plane", str(PLANE), "--input", encode(given).decode(), *flags,
            user=OPERATOR,
        )  # fmt: skip
        assert "{" in done.stdout, (done, self.node.log())
        return dict(json.loads(done.stdout[done.stdout.index("{") :]))

    def book(self) -> list[str]:
        path = self.node.path(STATE / "book")
        return path.read_text().splitlines() if path.exists() else []

    def text(self) -> str:
        if self.fenced:
            self.lines.append("```")
            self.fenced = False
        return stable("\n".join(self.lines) + "\n", self.token)


def stable(text: str, token: str) -> str:
    """The transcript with what differs from one day to the next written over."""
    text = text.replace(token, "TOKEN") if token else text
    text = re.sub(r"\bpid \d+", "pid 36", text)
    text = re.sub(r"\brun_[0-9A-Z]{26}\b", f"run_{'0' * 25}1", text)
    text = re.sub(r"\beffect (\S+) [0-9a-f]{12}\b", r"effect \1 0123456789ab", text)
    text = re.sub(r"(?<=\d)\.\d+ s\b", ".0 s", text)
    return re.sub(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "2026-01-01T00:00:00Z", text)


@pytest.fixture
def day(need_tool: Callable[[str], str]) -> Iterator[Day]:
    if os.geteuid() != 0:
        pytest.skip("missing: root (a manager needs namespaces)")
    for tool in ("unshare", "nsenter", "setpriv", "systemctl", "systemd-sysusers"):
        need_tool(tool)
    if not SYSTEMD.exists():
        pytest.skip(f"missing: {SYSTEMD}")
    try:
        node = Node(SKILLS, ACCESS)
    except Missing as missing:
        pytest.skip(f"missing: {missing}")
    try:
        node.boot()
        yield Day(node)
    except Missing as missing:
        pytest.skip(f"missing: {missing}")
    finally:
        node.end()


# --- the scenes -----------------------------------------------------------------------------------------------------


def a_boot(at: Day) -> None:
    at.tell(
        "The boot. Nobody has called yet: the service is wanted by the boot target itself, so that recovery runs and\n"
        "timers fire. The listening socket came from the manager, by its name."
    )
    at.node.until(at.is_active)
    assert at.stands()["StatusText"].startswith("serving, pid")
    at.say(f"systemctl show {SOCKET} --property=ActiveState,SubState,FileDescriptorName,Backlog,FlushPending")
    assert at.say("ss --listening --tcp --numeric --no-header | awk '{print $1, $3, $4}'").split() == [
        "LISTEN", "4096", "127.0.0.1:9090",
    ]  # fmt: skip
    assert at.book() == ["inherited []"]
    at.tell("Who may reach the control socket is the group's; the kernel says who calls.")
    at.say("stat --format='%A %G %n' /run/agentplane /run/agentplane/control.sock")
    at.say(f"agentplane status --ready --plane {PLANE} > /dev/null", user=OPERATOR)
    at.say(f"agentplane status --plane {PLANE} > /dev/null", user=STRANGER, status=4)


def a_credential(at: Day) -> None:
    at.tell("A key that the manager read as root and shows to this service alone. The skill says how long it is.")
    assert at.run("desk.signed", {"order": "A"})["output"] == {"order": "A", "letters": 23}
    at.say("stat --format='%A %U' /etc/agentplane/keys /etc/agentplane/keys/desk_key")
    at.say(
        f"""agentplane run desk.signed --plane {PLANE} --key sign-A --input '{{"order": "A"}}' | grep letters""",
        user=OPERATOR,
    )
    at.tell("Without its line in the drop-in there is no key: one sentence, status 2, and no second try.")
    at.node.drop_in(SERVICE, "keys.conf", "[Service]\n")
    at.say("systemctl restart agentplane", status=1)
    found = at.stands()
    assert found["ExecMainStatus"] == "2" and found["ActiveState"] == "failed" and found["NRestarts"] == "0"
    at.told("needs the secret")
    at.tell("The same for one that others may read.")
    lax = "Environment=AGENTPLANE_SECRETS=/etc/agentplane/lax\n"
    at.say("mkdir /etc/agentplane/lax && cp /etc/agentplane/keys/desk_key /etc/agentplane/lax/ && "
           "chmod 644 /etc/agentplane/lax/desk_key")  # fmt: skip
    at.node.drop_in(SERVICE, "keys.conf", f"[Service]\n{lax}")
    at.say("systemctl restart agentplane", status=1)
    assert at.stands()["ExecMainStatus"] == "2"
    at.told("open to others")
    at.node.drop_in(SERVICE, "keys.conf", "[Service]\nLoadCredential=desk_key:/etc/agentplane/keys/desk_key\n")
    at.say("systemctl restart agentplane && systemctl is-active agentplane")


def a_token(at: Day) -> None:
    at.tell("A token, and a reload that the plane itself answers: `systemctl reload` fails when the file is no good.")
    said = at.node.run("agentplane", "token", "new", "--plane", str(PLANE), "--actor", "sweep", "--role", "reader")
    at.token = json.loads(said[said.index("{") :])["token"]
    at.say(f"chgrp agentplane {PLANE}/tokens.json && chmod 640 {PLANE}/tokens.json && systemctl reload agentplane")
    at.say(f"chmod o+r {PLANE}/tokens.json; systemctl reload agentplane", status=1)
    at.say(f"chmod o-r {PLANE}/tokens.json; systemctl reload agentplane; systemctl is-active agentplane")


def a_deploy(at: Day) -> None:
    at.tell(
        "Three restarts, with work in flight and a client that calls all the time, on new connections and on kept\n"
        "ones. The manager holds the listening socket: what connects meanwhile waits, and is answered."
    )
    caller = subprocess.Popen(
        at.node.argv(sys.executable, "-c", CALLER, at.token, "/run/stop"), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    run = at.run("desk.chain", {"count": 30, "ms": 100}, "--detach")["run"]
    for number in range(3):
        before = len(at.book())
        at.node.until(lambda before=before: len(at.book()) > before)
        at.say("systemctl restart agentplane && systemctl is-active agentplane")
        assert at.node.shown(SERVICE, "NRestarts") == "0", number
    at.node.path("/run/stop").touch()
    said = json.loads(caller.communicate(timeout=60)[0])
    assert said["wrong"] == {} and said["answers"] > 30 and said["longest_s"] < 5, said
    at.show("# the client", "every request answered; refused, reset or unanswered: 0")
    at.told("parked:")
    ended = at.say(f"agentplane wait {run} --plane {PLANE} | grep -E 'status|output'", user=OPERATOR)
    assert "succeeded" in ended
    assert sorted(int(line.split()[1]) for line in at.book() if line.startswith("slow ")) == list(range(30))


def a_stuck_loop(at: Day) -> None:
    at.tell(
        "The watchdog. A skill blocks the loop; no sign of life leaves it, and the manager ends it (here after two\n"
        "seconds instead of thirty) and starts it again. What it says last is where every thread stood."
    )
    at.node.drop_in(SERVICE, "watchdog.conf", "[Service]\nWatchdogSec=2\n")
    at.node.run("systemctl", "restart", "agentplane")
    pid = at.node.shown(SERVICE, "MainPID")
    at.node.done("timeout", "3", "agentplane", "run", "desk.stuck", "--plane", str(PLANE), "--input", "{}",
                 "--detach", user=OPERATOR)  # fmt: skip
    at.node.until(lambda: at.node.shown(SERVICE, "SubState") == "auto-restart")
    found = at.stands()
    assert found["Result"] == "watchdog" and found["ExecMainStatus"] == "6"
    log = at.node.log()
    assert "Aborted" in log and re.search(r'desk\.py", line \d+ in stuck', log)
    at.show("# the log: stuck", "\n".join(line for line in log.splitlines() if "Fatal" in line or "in stuck" in line))
    at.node.until(at.is_active)
    found = at.stands()
    assert found["NRestarts"] == "1" and at.node.shown(SERVICE, "MainPID") != pid
    at.node.drop_in(SERVICE, "watchdog.conf", None)
    at.node.run("systemctl", "restart", "agentplane")


def a_long_drain(at: Day) -> None:
    at.tell(
        "A drain that outlasts TimeoutStopSec (here six seconds) while runs go on and commit: the plane asks for more\n"
        "time, and gets it, because something moved."
    )
    at.node.drop_in(SERVICE, "long.conf", "[Service]\nTimeoutStopSec=6\nEnvironment=AGENTPLANE_DRAIN_MODE=finish\n")
    at.node.run("systemctl", "restart", "agentplane")
    run = at.run("desk.chain", {"count": 18, "ms": 500}, "--detach")["run"]
    before = len(at.book())
    at.node.until(lambda: len(at.book()) > before)
    at.say("systemctl stop agentplane-operator.socket agentplane.service")
    found = at.stands()
    assert found["Result"] == "success" and found["ExecMainStatus"] == "0"
    at.node.drop_in(SERVICE, "long.conf", None)
    at.node.run("systemctl", "start", SOCKET, SERVICE)
    at.say(f"agentplane show {run} --plane {PLANE} | grep '\"status\"'", user=OPERATOR)


def a_cut(at: Day) -> None:
    at.tell(
        "A stop that cuts an effect (its grace, here one second, ended): status 5, which is no failure of the service."
    )
    at.node.drop_in(SERVICE, "grace.conf", "[Service]\nEnvironment=AGENTPLANE_DRAIN_SECS=1\n")
    at.node.run("systemctl", "restart", "agentplane")
    at.run("desk.endlessly", {"order": "A"}, "--detach")
    at.node.until(lambda: "endless A" in at.book())
    at.say("systemctl stop agentplane-operator.socket agentplane.service; "
           "systemctl is-failed agentplane", status=1)  # fmt: skip
    found = at.stands()
    assert found["ExecMainStatus"] == "5" and found["Result"] == "success" and found["ActiveState"] == "inactive"
    at.told("cut:")
    at.node.drop_in(SERVICE, "grace.conf", None)


def a_drain_and_a_caller(at: Day) -> None:
    at.tell(
        "Our own `drain`: the manager is told (STOPPING), and sees a stop and no crash. The socket stays with the\n"
        "manager, so the next caller starts the next plane, and is answered by it."
    )
    at.say("systemctl start agentplane-operator.socket agentplane && systemctl is-active agentplane")
    at.run("desk.chain", {"count": 1, "ms": 3000}, "--detach")
    before = len(at.book())
    at.node.until(lambda: len(at.book()) >= before and at.book()[-1] == "slow 0")
    at.say(f"agentplane drain --plane {PLANE} | grep draining", user=OPERATOR)
    at.node.until(lambda: at.node.shown(SERVICE, "SubState") == "stop-sigterm")
    found = at.stands()
    assert found["StatusText"] == "draining" and found["ActiveState"] == "deactivating"
    at.node.until(lambda: at.node.shown(SERVICE, "ActiveState") == "inactive")
    found = at.stands()
    assert found["Result"] == "success" and found["NRestarts"] == "0" and found["ExecMainStatus"] == "0"
    at.say("systemctl is-active agentplane-operator.socket")
    asked = (
        "import http.client, sys; c = http.client.HTTPConnection('127.0.0.1', 9090, timeout=30); "
        "c.request('GET', '/status', headers={'Authorization': 'Bearer ' + sys.argv[1]}); "
        "print(c.getresponse().status)"
    )
    assert at.node.run(sys.executable, "-c", asked, at.token).strip() == "200"
    at.show("# a client connects to 127.0.0.1:9090", "200")
    assert at.stands()["ActiveState"] == "active"


def what_is_refused(at: Day) -> None:
    at.tell("A second plane of the same directory is refused by the lock.")
    at.say(f"mkdir {PLANE}/none")
    at.say(f"agentplane serve {PLANE} --skills none --log-format text", user="agentplane", status=4)
    assert at.is_active()
    at.tell("A socket under a name that no listener has is refused: nobody would ever accept what waits there.")
    at.node.drop_in(SOCKET, "name.conf", "[Socket]\nFileDescriptorName=peers\n")
    at.node.run("systemctl", "stop", SERVICE, SOCKET)
    at.say("systemctl start agentplane-operator.socket agentplane", status=1)
    found = at.stands()
    assert found["ExecMainStatus"] == "2" and found["NRestarts"] == "0"
    at.told("peers")
    at.node.drop_in(SOCKET, "name.conf", None)
    at.tell("A status line that says what is done, when all of it is well again.")
    at.say("systemctl reset-failed; systemctl restart agentplane-operator.socket agentplane; "
           "systemctl is-active agentplane")  # fmt: skip


SCENES = (
    a_boot, a_token, a_credential, a_deploy, a_stuck_loop, a_long_drain, a_cut, a_drain_and_a_caller, what_is_refused,
)  # fmt: skip


def test_a_plane_lives_under_a_system_manager(day: Day) -> None:
    """S143, S144, S145: every step as docs/systemd-run.md has it (AGENTPLANE_TRANSCRIPTS=write writes it anew)."""
    for scene in SCENES:
        scene(day)
    log = day.node.log()
    assert "defect" not in log and "a key of twenty letters" not in log and day.token not in log
    if os.environ.get("AGENTPLANE_TRANSCRIPTS") == "write":
        DOCUMENT.write_text(day.text())
    assert day.text() == DOCUMENT.read_text()


# --- what the manager's own tools say -------------------------------------------------------------------------------


@pytest.fixture
def units(tmp_path: Path, need_tool: Callable[[str], str]) -> Path:
    """The packaged units, with a program that exists on this machine."""
    need_tool("systemd-analyze")
    for name in UNITS:
        text = (ROOT / "systemd" / name).read_text().replace("/usr/local/bin/agentplane", shutil.which("true") or "")
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_units_are_what_systemd_reads(units: Path) -> None:
    """`systemd-analyze verify`: no unknown key, no line that is dropped; a misspelt one is found."""
    verify = ["systemd-analyze", "verify", "--recursive-errors=no"]
    done = subprocess.run([*verify, *(units / name for name in UNITS)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    text = (units / SERVICE).read_text()
    (units / SERVICE).write_text(text.replace("ProtectHome=yes", "ProtectHomes=yes"))
    done = subprocess.run([*verify, units / SERVICE], capture_output=True, text=True, check=False)
    assert "ProtectHomes" in done.stderr


def test_the_sandbox_is_as_tight_as_the_docs_say(units: Path) -> None:
    """S149: `systemd-analyze security --offline=true`: the score of docs/systemd.md, which names what is left."""
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", "--json=short", units / SERVICE],
        capture_output=True, text=True, check=True, env={**os.environ, "SYSTEMD_COLORS": "0"},
    )  # fmt: skip
    page = (ROOT / "docs" / "systemd.md").read_text()
    left = [row["name"] for row in json.loads(done.stdout) if not row["set"] and row["exposure"]]
    assert [name for name in left if f"`{name}`" not in page] == []
    whole = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", f"--threshold={round(EXPOSURE_MAX * 10)}",
         units / SERVICE], capture_output=True, text=True, check=False, env={**os.environ, "SYSTEMD_COLORS": "0"},
    )  # fmt: skip
    assert whole.returncode == 0, whole.stdout[-200:]
    (score,) = re.findall(r"Overall exposure level for agentplane\.service: ([\d.]+)", whole.stdout)
    assert float(score) <= EXPOSURE_MAX and f"**{score}**" in page
