"""`upgrade-check`: a new build and new skills, tried on a copy of the store beside the plane that serves it."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentplane.cli import child, upgrade_check
from agentplane.cli.child import CannotTell, ask, check_program, environment
from agentplane.cli.upgrade_check import Found
from agentplane.journal import copy, levels
from agentplane.journal.store import connect
from appliance.builds import PATIENCE_S, Served, asked, build, end_all, json_of, left_behind, say, script
from surface.terminals import Plane, Said

SKILLS = '''
"""Skills of the tests of upgrades."""
from agentplane import Recovery, effect, node, plan, skill


@effect("shop.note", recovery=Recovery.RETRY)
async def note(call, *, what: str):
    return {"noted": what}


@skill("shop.order")
async def order(cx, request: dict):
    await cx.do(note(what="first"))
    await cx.sleep(days=1)
    return await cx.do(note(what="second"))


@skill("shop.other")
async def other(cx, request: dict):
    await cx.sleep(days=1)
'''
CHANGED = SKILLS.replace('cx.do(note(what="first"))', 'cx.do(note(what="other"))')
GUARDED = SKILLS.replace(
    'await cx.do(note(what="first"))',
    'await cx.do(note(what="other" if await cx.changed("another-note") else "first"))',
)
STUCK = """
import os, time
with open({pid!r} + ".new", "w") as file:
    file.write(str(os.getpid()))
os.rename({pid!r} + ".new", {pid!r})
time.sleep(600)
"""
"""A file of skills whose import never ends."""
LINE = 13
"""Where the changed call stands."""

# --- what may be started, and what is an answer ----------------------------------------------------------------------


def test_what_is_no_program_of_this_machine_is_refused_in_a_sentence(tmp_path: Path) -> None:
    """S156: it is not there, may not be executed, is built for another machine; a directory is no program."""
    ours = Path(sys.executable).resolve().read_bytes()[:64]
    other = tmp_path / "other"
    machine = 40 if child._machine(ours) != 40 else 183
    other.write_bytes(ours[:18] + machine.to_bytes(2, "little") + ours[20:])
    plain = tmp_path / "plain"
    plain.write_text("hello", encoding="utf-8")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, mode, says in (
        (pipe, 0o755, "not executable"),
        (tmp_path / "none", None, "No such file"), (plain, 0o644, "not executable"),
        (other, 0o755, f"is built for {child.MACHINES[machine]}; this machine is"), (tmp_path, None, "Is a directory"),
    ):  # fmt: skip
        if mode is not None:
            path.chmod(mode)
        with pytest.raises(CannotTell, match=says) as caught:
            check_program(path)
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert check_program(Path(sys.executable)) == Path(sys.executable).absolute()


def test_the_new_build_is_told_nothing_that_is_meant_for_this_process() -> None:
    """Neither the supervisor's sockets, nor what a frozen program tells its own children; and sets have one order."""
    given = {
        "NOTIFY_SOCKET": "/x",
        "LISTEN_FDS": "1",
        "_PYI_ARCHIVE_FILE": "/x",
        "AGENTPLANE_PLANE": "x",
        "PATH": "/bin",
    }
    made = environment(given)
    assert made == {"PATH": "/bin", "PYTHONHASHSEED": "0", "PYINSTALLER_RESET_ENVIRONMENT": "1"}


def test_rubbish_is_no_answer() -> None:
    """S156: what does not begin as an answer, or is none in the middle, says nothing about the new build."""
    for lines in (
        [b"hello"],
        [b"[]"],
        [b'{"schema":"other/1"}'],
        [b'{"schema":"agentplane.rehearsal/1"}', b"Segfault"],
    ):
        found = Found()
        with pytest.raises(CannotTell, match="no answer"):
            for line in lines:
                found.line(line)


def test_an_answer_that_stops_in_the_middle_is_none() -> None:
    """S156: without its last line, with another status, or from a build that does not know the verb."""
    ended: list[tuple[list[bytes], int, str]] = [
        ([b'{"schema":"agentplane.rehearsal/1"}'], 0, "in the middle"),
        ([b'{"schema":"agentplane.rehearsal/1"}', b'{"end":true}'], 3, "status 3 in the middle"),
        ([], 2, "does not know this check: it is older"),
        ([], -9, "status -9"),
    ]
    for lines, status, says in ended:
        found = Found()
        for line in lines:
            found.line(line)
        with pytest.raises(CannotTell, match=says):
            found.whole(Path("/new"), "0.2.0", child.Asked(status, "last words"))
    found = Found()
    found.line(b'{"schema":"agentplane.rehearsal/1"}')
    found.line(b'{"end":true}')
    with pytest.raises(CannotTell, match="did not say what it has looked at"):
        found.whole(Path("/new"), "0.2.0", child.Asked(0, ""))
    found.line(b'{"open":3,"examined":2,"left_out":1}')
    found.whole(Path("/new"), "0.2.0", child.Asked(0, ""))


@pytest.mark.parametrize(
    "line",
    [b'{"verdict":1}', b'{"verdict":"verified","notes":5}', b'{"level":"abc"}', b"[" * 20_000, b'"\xff"'],
)
def test_an_answer_of_another_shape_is_none(line: bytes) -> None:
    """S156: whatever it is, it is one sentence."""
    found = Found()
    found.line(b'{"schema":"agentplane.rehearsal/1"}')
    with pytest.raises(CannotTell, match="is no answer"):
        found.line(line)


def test_findings_are_counted_and_listed_up_to_a_bound() -> None:
    """A thousand are named, and those alike told as one kind; what was quarantined for the same before is a note."""
    found = Found()
    found.line(b'{"schema":"agentplane.rehearsal/1","level":1}')
    for at in range(upgrade_check.FOUND_MAX + 5):
        found.line(
            b'{"verdict":"diverges","run":"run_%d","reason":"r","known":%s}' % (at, b"true" if at < 2 else b"false")
        )
    body = found.body(Path("/new"), "1", Path("/store"), 1)
    assert (body["found"], len(body["findings"]), body["noted"]) == (1003, 1000, 2)
    assert [(one["run"], one["times"]) for one in body["kinds"]] == [("run_2", 1003)]


def test_the_copys_directory_is_gone_whatever_ended_it(tmp_path: Path) -> None:
    """S157: for nobody else to enter while it is there; what a killed check left is removed, what another one uses is
    not."""
    store = tmp_path / "plane.db"
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    left, used = tmp_path / ".plane.db.upgrade-check.1", tmp_path / ".plane.db.upgrade-check.2"
    for path in (left, used):
        path.mkdir()
        (path / "lock").touch()
        (path / "copy.db").touch()
    try:
        with open(used / "lock", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with pytest.raises(KeyboardInterrupt), upgrade_check._private(store, tmp_path) as private:
                assert os.stat(private).st_mode & 0o777 == 0o700 and private.parent == tmp_path
                (private / "copy.db").touch()
                raise KeyboardInterrupt
        assert left_behind(tmp_path) == [used.name] and (used / "copy.db").exists()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- processes -------------------------------------------------------------------------------------------------------


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    yield Plane.made(tmp_path / "plane", SKILLS)
    end_all()


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This build, as a program."""
    return build(tmp_path_factory.mktemp("builds") / "new")


@pytest.fixture(scope="module")
def higher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build that knows two levels more."""
    return build(tmp_path_factory.mktemp("builds") / "higher", planted=True)


def skills(where: Path, text: str) -> Path:
    where.mkdir()
    (where / "desk.py").write_text(text, encoding="utf-8")
    (where / "desk.py").chmod(0o644)
    return where


def checked(by: Path, plane: Plane, new: Path, *more: str) -> Said:
    return say(by, "upgrade-check", str(new), "--plane", str(plane.directory), "--json", *more)


def damaged(store: Path) -> None:
    """Turn one bit of the first record of every run; a second time, back."""
    connection = connect(store)
    for run, body in connection.execute("SELECT run, body FROM record WHERE seq = 1").fetchall():
        turned = bytes(body[:-2]) + bytes([body[-2] ^ 1]) + bytes(body[-1:])
        connection.execute("UPDATE record SET body = ? WHERE run = ? AND seq = 1", (turned, run))
    connection.close()


def waiting(plane: Plane, binary: Path, *capabilities: str) -> Served:
    """A plane that serves, with a run of each that waits."""
    serving = Served(binary, plane.directory).serves()
    for capability in capabilities:
        run = asked(plane.directory, "start", body={"capability": capability, "input": {}})["run"]
        serving.until(lambda run=run: asked(plane.directory, "show", run=run)["status"] == "suspended")  # type: ignore[misc]
    return serving


@pytest.mark.heavy
def test_a_divergence_is_found_before_it_is_deployed(plane: Plane, new: Path, tmp_path: Path) -> None:
    """S155: beside the plane that serves: the run, the place, file and line, and what to write there; what is written
    so is verified. The store is only read, and nothing is left."""
    waiting(plane, new, "shop.order", "shop.other")
    before = asked(plane.directory, "status")["commits"]
    clean = checked(new, plane, new)
    body = json_of(clean)
    assert (clean.status, body["open"], body["examined"], body["findings"]) == (0, 2, 2, [])
    changed = skills(tmp_path / "changed", CHANGED)
    said = checked(new, plane, new, "--skills", str(changed))
    (finding,) = json_of(said)["findings"]
    assert said.status == 1 and finding["verdict"] == "diverges" and finding["capability"] == "shop.order"
    assert (finding["step"], finding["phase"], finding["ordinal"]) == (0, "forward", 0)
    assert finding["where"] == f"{changed / 'desk.py'}:{LINE}" and "cx.changed" in finding["remedy"]
    table = say(
        new, "upgrade-check", str(new), "--plane", str(plane.directory), "--skills", str(changed), "--output", "table"
    )
    assert table.status == 1 and f"desk.py:{LINE}: put what is new under" in table.out and "1 findings" in table.out
    guarded = checked(new, plane, new, "--skills", str(skills(tmp_path / "guarded", GUARDED)))
    assert (guarded.status, json_of(guarded)["findings"]) == (0, [])
    assert asked(plane.directory, "status")["commits"] == before
    assert left_behind(plane.directory) == [] and "copying" in said.err


@pytest.mark.heavy
def test_whatever_the_new_build_would_refuse_is_a_finding(
    plane: Plane, new: Path, higher: Path, tmp_path: Path
) -> None:
    """S155: a skill that is gone, skills that do not load, a plane.toml that it does not read, a store of a level that
    it does not know; the level that it would bring is said."""
    waiting(plane, new, "shop.order", "shop.other")
    gone = checked(
        new, plane, new, "--skills", str(skills(tmp_path / "gone", SKILLS.partition('@skill("shop.other")')[0]))
    )
    (finding,) = json_of(gone)["findings"]
    assert gone.status == 1 and "does not provide shop.other, which step 0 needs" in finding["reason"]
    broken = checked(new, plane, new, "--skills", str(skills(tmp_path / "broken", SKILLS + "\n1 / 0\n")))
    (finding,) = json_of(broken)["findings"]
    assert broken.status == 1 and "ZeroDivisionError" in finding["reason"]
    loud = checked(
        new, plane, new, "--skills", str(skills(tmp_path / "loud", SKILLS + '\nprint("{}")\nprint("x" * 9999)\n'))
    )
    assert (loud.status, json_of(loud)["findings"]) == (0, [])
    more = json_of(checked(higher, plane, higher))
    assert (more["level"], more["new_level"], more["found"]) == (1, 3, 0)
    assert levels.level_in(plane.directory / "plane.db") == 1
    end_all()
    damaged(plane.directory / "plane.db")
    found = checked(new, plane, new)
    assert found.status == 1 and {one["verdict"] for one in json_of(found)["findings"]} == {"unreadable"}
    damaged(plane.directory / "plane.db")
    assert say(higher, "upgrade", "--plane", str(plane.directory), "--commit", "--yes").status == 0
    older = checked(higher, plane, new)
    (finding,) = json_of(older)["findings"]
    assert older.status == 1 and "at level 3; this build knows levels up to 1" in finding["reason"]
    toml = plane.directory / "plane.toml"
    toml.write_text('a_key_of_the_future = "x"\n' + toml.read_text(encoding="utf-8"), encoding="utf-8")
    store = ("--store", str(plane.directory / "plane.db"))
    typo = checked(higher, plane, higher, *store)
    assert typo.status == 1 and "a_key_of_the_future" in json_of(typo)["findings"][0]["reason"]
    assert left_behind(plane.directory) == []


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["echo hello"], "does not answer as an agentplane does"),
        (["exit 127"], "status 127"),
        (["exec sleep 600"], "said nothing for 2 seconds"),
        (['[ "$1" = version ] && exec {new} "$@"', "exec sleep 600"], "said nothing for 2 seconds"),
        (["while :; do printf x; sleep 0.2; done"], "said nothing for 2 seconds"),
        (["while :; do echo x; sleep 0.2; done"], "was not done within 2 seconds"),
        (['[ "$1" = version ] && exec {new} "$@"', "yes '{{}}'"], "no answer"),
        (['[ "$1" = version ] && exec {new} "$@"', "head -c 3000000 /dev/zero"], "says too much"),
        (['[ "$1" = version ] && exec {new} "$@"', "{new} \"$@\" | head -n 1", "kill -9 $$"], "in the middle"),
        (['[ "$1" = version ] && exec {new} "$@"', "exec {new} no-such-verb"], "does not know this check: it is older"),
        (['[ "$1" = version ] && exec {new} "$@"', "echo dying words >&2", "exit 3"], "dying words"),
    ],
)  # fmt: skip
def test_a_build_that_does_not_answer_is_no_answer(
    plane: Plane, new: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str], says: str
) -> None:
    """S156: rubbish, silence, a flood, an end in the middle, a build without the verb: 4 and one sentence, in bounded
    time, and nothing is left of the copy or of the process."""
    end_of = Served(new, plane.directory).serves()
    end_of.term()
    assert end_of.end() == 0
    binary = script(tmp_path / "fake", *(line.format(new=new) for line in lines))
    monkeypatch.chdir(plane.directory)
    said = plane.here("upgrade-check", str(binary), "--timeout", "2")
    assert said.status == 4 and says in said.err, said.err
    assert said.out == "" and "Traceback" not in said.err and left_behind(plane.directory) == []
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(tmp_path / "fake") not in running


@pytest.mark.heavy
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_check_that_is_stopped_leaves_nothing(plane: Plane, new: Path, tmp_path: Path, number: int) -> None:
    """S157: on a signal the copy and the new build are gone; what a killed one left is removed by the next."""
    serving = Served(new, plane.directory).serves()
    pid = tmp_path / "pid"
    stuck = skills(tmp_path / "stuck", STUCK.format(pid=str(pid)))

    def begin() -> tuple[subprocess.Popen[str], int]:
        pid.unlink(missing_ok=True)
        checking = subprocess.Popen(
            [str(new), "upgrade-check", str(new), "--plane", str(plane.directory), "--skills", str(stuck)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        serving.until(pid.exists)
        return checking, int(pid.read_text(encoding="utf-8"))

    checking, trying = begin()
    (path,) = plane.directory.glob(".plane.db.upgrade-check.*")
    assert os.stat(path).st_mode & 0o777 == 0o700 and (path / "copy.db").stat().st_mode & 0o777 == 0o600
    checking.send_signal(number)
    _, err = checking.communicate(timeout=PATIENCE_S)
    assert checking.returncode == 4 and "the copy is deleted" in err and left_behind(plane.directory) == []
    assert gone(trying)
    checking, trying = begin()
    checking.kill()
    checking.communicate(timeout=PATIENCE_S)
    assert len(left_behind(plane.directory)) == 1 and gone(trying)
    assert checked(new, plane, new).status == 0 and left_behind(plane.directory) == []


@pytest.mark.heavy
def test_what_cannot_be_begun_is_said_before_anything_is_written(
    plane: Plane, new: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S156: no room, no store, no such directory, no name of a build: a sentence, and the status of who must act."""
    served = Served(new, plane.directory).serves()
    served.term()
    assert served.end() == 0
    names = sorted(os.listdir(plane.directory))
    for arguments, status, says in (
        ((), 2, "Name the new build"), ((str(new), "--store", "none.db"), 4, "There is no store"),
        ((str(tmp_path / "none"),), 4, "cannot be read: No such file"),
        ((str(new), "--skills", str(tmp_path / "none")), 2, "is no directory"),
        ((str(new), "--directory", str(tmp_path / "none")), 4, "name another with --directory"),
        ((str(new), "--timeout", "0"), 2, "--timeout"),
    ):  # fmt: skip
        said = plane.here("upgrade-check", *arguments)
        assert said.status == status and says in said.err, said.err
    monkeypatch.setattr(
        copy, "os", SimpleNamespace(statvfs=lambda path: SimpleNamespace(f_bavail=10, f_frsize=4096), stat=os.stat)
    )
    said = plane.here("upgrade-check", str(new))
    assert said.status == 4 and "40960 are free" in said.err
    assert sorted(os.listdir(plane.directory)) == names


@pytest.mark.heavy
def test_a_child_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    """S156: the whole of its session, however it ended."""
    path = tmp_path / "pid"
    parent = script(tmp_path / "parent", f"sleep 600 & echo $! > {path}", "echo said", "wait")
    lines: list[bytes] = []
    with pytest.raises(CannotTell, match="said nothing for 1 seconds"):
        ask([str(parent)], 1.0, lines.append)
    assert lines == [b"said"] and gone(int(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("ends", ["ends first", "is ended"])
def test_what_left_its_session_is_ended_too(tmp_path: Path, ends: str) -> None:
    """S156: also what went into a session of its own, whose parent may be gone before it is looked for."""
    path = tmp_path / "pid"
    away = f"setsid sh -c 'echo $$ > {path}; exec sleep 600' >/dev/null 2>&1 </dev/null &"
    parent = script(tmp_path / "parent", away, f"until [ -s {path} ]; do sleep 0.01; done",
                    "echo said", *(["sleep 600"] if ends == "is ended" else []))  # fmt: skip
    if ends == "is ended":
        with pytest.raises(CannotTell, match="said nothing for 1 seconds"):
            ask([str(parent)], 1.0, lambda line: None)
    else:
        assert ask([str(parent)], 10.0, lambda line: None).status == 0
    assert not Path(f"/proc/{path.read_text(encoding='utf-8').strip()}").exists()


def gone(pid: int) -> bool:
    """Whether the process ends; a zombie has ended."""
    return _until(lambda: not _alive(pid))


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _until(holds: Callable[[], Any]) -> bool:
    until = time.monotonic() + PATIENCE_S
    while not holds() and time.monotonic() < until:
        time.sleep(0.01)
    return bool(holds())
