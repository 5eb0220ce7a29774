"""Bad input and bad places: each one sentence, the right status, nothing lost, no traceback."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentplane.appliance import serve as serving
from agentplane.appliance import settings
from agentplane.appliance.logs import Log
from agentplane.cli.main import command
from agentplane.core import errors
from surface.terminals import SKILLS, Plane, Said, environment, spoken


def serve(plane: Plane, *flags: str) -> Said:
    """Serve in the foreground: for starts that must be refused."""
    done = subprocess.run(
        [sys.executable, "-m", "agentplane.cli.main", "serve", str(plane.directory), *flags],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment(),
        stdin=subprocess.DEVNULL,
    )
    return Said(done.returncode, done.stdout, done.stderr)


def one_sentence(said: Said, status: int, *words: str) -> None:
    """The refusal is one line with these words, and this status."""
    lines = [line for line in spoken(said.err.strip()).splitlines() if not line.startswith(("key ", "run "))]
    assert said.status == status, said
    assert len(lines) == 1 and lines[0].startswith("agentplane: ") and "Traceback" not in said.err, said
    for word in words:
        assert word in lines[0], (word, lines[0])


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    made = Plane.made(tmp_path / "plane")
    yield made
    if made.child is not None:
        made.stop()


def test_a_skill_that_does_not_import_names_file_and_line(plane: Plane) -> None:
    """A name that is not there, a syntax error, and a bad declaration: each refuses serve with its place."""
    path = plane.directory / "skills" / "broken.py"
    for text, word in (
        ("import agentplane\n\nnothing_here()\n", "broken.py:3: NameError"),
        ("def f(:\n", "broken.py:1"),
        ("from agentplane import effect\n\n@effect('Bad Kind')\ndef f(call):\n    ...\n", "broken.py"),
        ("from agentplane import efect\n", "efect"),
    ):
        path.write_text(text)
        path.chmod(0o644)
        one_sentence(serve(plane), 2, word)


def test_skills_that_others_may_write_are_not_served(plane: Plane) -> None:
    """Group or world writable code is refused, naming it and the command; --trust-writable is for development."""
    path = plane.directory / "skills" / "desk.py"
    path.chmod(0o666)
    one_sentence(serve(plane), 2, "desk.py", "chmod go-w")
    path.chmod(0o644)
    (plane.directory / "skills").chmod(0o777)
    one_sentence(serve(plane), 2, "skills", "chmod go-w")
    plane.start("--trust-writable")


def test_a_missing_secret_refuses_serve_with_file_and_line(plane: Plane) -> None:
    """The effect that declares it is named, the secret's name too, and nothing of its value."""
    (plane.directory / "skills" / "secret.py").write_text(
        "from agentplane import effect\n\n\n@effect('pay.out', secrets=['PAYMENTS_KEY'])\n"
        "async def pay(call):\n    ...\n"
    )
    (plane.directory / "skills" / "secret.py").chmod(0o644)
    one_sentence(serve(plane), 2, "secret.py:4", "PAYMENTS_KEY")


def test_a_second_appliance_names_the_holder(plane: Plane) -> None:
    """The first one's pid and socket, and status 4."""
    plane.start()
    assert plane.child is not None
    one_sentence(serve(plane), 4, str(plane.child.pid), "control.sock")


def test_a_store_of_a_higher_level_is_left_alone(plane: Plane) -> None:
    """Served, read and written to: each says the level and changes nothing."""
    with closing(sqlite3.connect(plane.directory / "plane.db")) as db:
        db.execute("PRAGMA user_version = 99")
        db.commit()
    before = (plane.directory / "plane.db").read_bytes()
    one_sentence(serve(plane), 6, "level 99")
    one_sentence(plane.verb("runs"), 6, "level 99")
    one_sentence(plane.run("desk.settle", {"order": "1"}), 6, "level 99")
    assert (plane.directory / "plane.db").read_bytes() == before


def test_a_file_that_is_no_store_is_refused(plane: Plane) -> None:
    """Garbage, and another program's database."""
    for beside in ("plane.db-wal", "plane.db-shm"):
        (plane.directory / beside).unlink(missing_ok=True)
    (plane.directory / "plane.db").write_bytes(b"not a database, and long enough to look at " * 100)
    one_sentence(serve(plane), 4, "plane.db")
    (plane.directory / "plane.db").unlink()
    with closing(sqlite3.connect(plane.directory / "plane.db")) as db:
        db.execute("CREATE TABLE theirs (x)")
        db.commit()
    one_sentence(serve(plane), 4, "another program")


def test_a_damaged_record_holds_its_run_out_and_the_others_are_served(plane: Plane) -> None:
    """Which run and which seq is said; new work, and other runs, go on."""
    plane.start()
    waiting = plane.run("desk.waiting", {"seconds": 50}, "--detach").body["run"]
    fine = plane.run("desk.settle", {"order": "1"}).body["run"]
    assert plane.child is not None
    plane.child.kill()
    plane.child.wait()
    with closing(sqlite3.connect(plane.directory / "plane.db")) as db:
        db.execute(
            "UPDATE record SET body = CAST(replace(CAST(body AS TEXT), 'desk.waiting', 'desk.waitinG') AS BLOB) "
            "WHERE run = ? AND seq = 1",
            (waiting,),
        )
        db.commit()
    plane.start()
    for _ in range(50):
        if plane.verb("status").body["held_out"]:
            break
    held_out = plane.verb("status").body["held_out"]
    assert "record 1" in held_out[waiting]
    assert plane.run("desk.settle", {"order": "2"}).status == 0
    assert plane.verb("replay", fine, "--strict").body["verdict"] == "verified"


def test_input_and_arguments_over_the_bound_are_refused(plane: Plane) -> None:
    """More than a record holds: refused before anything is admitted, with the bound."""
    big = plane.directory / "big.json"
    big.write_text(json.dumps({"order": "x" * 1_100_000}))
    one_sentence(plane.verb("run", "desk.settle", "--input-file", str(big)), 2, "over the bound")
    assert plane.verb("runs").body["runs"] == []


def test_an_outcome_over_the_bound_is_kept_beside_its_record(plane: Plane) -> None:
    """Two MiB come back whole, live and on strict replay."""
    said = plane.run("desk.large", {"size": 2_000_000})
    assert said.status == 0 and said.body["output"] == 2_000_000
    assert plane.verb("replay", said.body["run"], "--strict").body["verdict"] == "verified"


def test_socket_paths_that_cannot_be(plane: Plane, tmp_path: Path) -> None:
    """Too long; taken by a live plane (which goes on); a stale one is replaced."""
    one_sentence(serve(plane, "--socket", "/".join(["x" * 50] * 4)), 2, "107")
    other = Plane.made(tmp_path / "other")
    plane.start()
    taken = plane.directory / "run" / "control.sock"
    one_sentence(serve(other, "--socket", str(taken)), 2, "control.sock")
    assert plane.verb("status").status == 0
    assert plane.child is not None
    plane.child.kill()
    plane.child.wait()
    assert taken.exists()
    plane.start()


def test_a_small_disk_is_a_state(plane: Plane, tmp_path: Path, need_tool: Callable[[str], str]) -> None:
    """On a real small file system: nothing is admitted, the reason and the number are said, reads work, and it ends by
    itself."""
    if os.getuid() != 0:
        pytest.skip("missing: mounting a small file system needs root")
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run([need_tool("mount"), "-t", "tmpfs", "-o", "size=100m", "tmpfs", str(small)], check=True)
    try:
        tiny = Plane.made(small / "plane")
        tiny.start()
        one_sentence(tiny.run("desk.settle", {"order": "1"}), 4, "bytes free")
        assert tiny.verb("runs").body["runs"] == [] and tiny.verb("status").body["disk"] == "low"
        subprocess.run(["mount", "-o", "remount,size=600m", str(small)], check=True)
        for _ in range(20):
            if tiny.verb("status").body["disk"] == "enough":
                break
        assert tiny.run("desk.settle", {"order": "1"}).status == 0
        assert tiny.stop() == 0
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


def served_as_another(directory: str) -> tuple[int, str]:
    said = serve(Plane(Path(directory)))
    return said.status, said.err


def test_a_directory_that_may_not_be_written(open_dir: Path, as_other_uid: Callable[..., object]) -> None:
    """Another uid that may read but not write: one sentence that names directory and uid."""
    plane = Plane.made(open_dir / "plane")
    for path in [plane.directory, *plane.directory.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    status, err = as_other_uid(served_as_another, str(plane.directory))  # type: ignore[misc]
    one_sentence(Said(status, "", err), 4, "not writable")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["run", "desk.settle", "--input", "{"], "--input is not JSON"),
        (["run", "desk.settle", "--input", '{"order": "a", "order": "b"}'], "order"),
        (["run", "desk.settle", "--input", "{}", "--input-file", "x"], "not both"),
        (["history", "run_" + "0" * 26, "--limit", "0"], "1 to"),
        (["runs", "--limit", "99999"], "1 to"),
        (["nothing"], "nothing"),
        (["runs", "--nothing"], "unrecognized arguments: --nothing; see `agentplane runs --help`"),
        (["config", "check", "here"], "named twice"),
        (["run"], "capability"),
        (["replay", "run_" + "0" * 26, "--strict", "--retry"], "--retry"),
    ],
)
def test_arguments_that_do_not_fit(plane: Plane, args: list[str], words: str) -> None:
    """Usage is status 2 and one sentence."""
    said = plane.verb(*args, plane=args[0] != "nothing")
    one_sentence(said, 2, words)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["token", "new", "--actor", "me", "--role", "operator", "--days", "-5"], "--days is up to"),
        (["token", "new", "--actor", "me", "--role", "operator", "--days", "nan"], "--days is up to"),
        (["token", "new", "--actor", "me", "--role", "operator", "--days", "1e12"], "--days is up to"),
        (["status", "--url", "http://a b:1", "--token-file", "one"], "--url is http"),
        (["status", "--url", "http://127.0.0.1:1", "--token-file", "two"], "holds no token"),
    ],
)
def test_a_token_that_is_none_is_said(plane: Plane, args: list[str], words: str) -> None:
    """Nor is what stands in the file repeated."""
    for name, text in (("one", "ap_x\n"), ("two", "ap_secret\nap_secret\n")):
        (plane.directory / name).write_text(text)
    said = plane.verb(*[str(plane.directory / one) if one in ("one", "two") else one for one in args])
    one_sentence(said, 2, words)
    assert "ap_secret" not in said.err


def test_a_plane_toml_with_a_fault_names_it(plane: Plane) -> None:
    """An unknown key, a wrong type, not TOML, an unknown role."""
    toml = plane.directory / "plane.toml"
    good = toml.read_text()
    for text, word in (
        ("drain_seks = 3\n" + good, "drain_seks"),
        (good.replace("drain_secs = 25", 'drain_secs = "soon"'), "drain_secs"),
        ("= nothing\n", "TOML"),
        (good + '\n[access]\n"os:anna" = ["king"]\n', "king"),
        (good.replace('"finish"', '"later"'), "drain_mode"),
    ):
        toml.write_text(text)
        one_sentence(plane.here("config", "show"), 2, word)
        checked = plane.here("config", "check")
        assert checked.status == 1 and any(word in one for one in checked.body["findings"]), checked
        one_sentence(serve(plane), 2, word)
    assert SKILLS


SCHEDULE = '[[schedule]]\nname = "books"\ncron = "0 2 * * *"\ncapability = "books.close"\n'
NOTIFY = '[notify]\nurl = "https://hooks.example.org/x"\nsecret_file = "secrets/notify"\n'


@pytest.mark.parametrize(
    ("section", "words"),
    [
        (SCHEDULE.replace("0 2 * * *", "0 25 * * *"), "books: cron"),
        (SCHEDULE.replace("0 2 * * *", "soon"), "books: cron"),
        (SCHEDULE.replace("0 2 * * *", "0 0 30 2 *"), "books: cron"),
        (SCHEDULE + 'tz = "Europe/Berlim"\n', "Europe/Berlin"),
        (SCHEDULE + 'missed = "some"\n', "skip, last, all"),
        (SCHEDULE + SCHEDULE, "twice"),
        (SCHEDULE.replace("books.close", " "), "books: capability"),
        (SCHEDULE.replace('"books"', '"two words"'), "[[schedule]] name"),
        (SCHEDULE + "correlate = {}\n", "books: correlate"),
        (SCHEDULE + 'correlate = { Order = "O-1" }\n', "Order"),
        (SCHEDULE + "input = { at = 2026-12-01T09:00:00Z }\n", "books: input"),
        (SCHEDULE + "input = nan\n", "books: input"),
        (SCHEDULE + "every = 7\n", "every"),
        (SCHEDULE.replace('capability = "books.close"\n', ""), "capability"),
        (SCHEDULE + f'input = "{"x" * 65_536}"\n', "65536"),
        (NOTIFY.replace("https://", "http://"), "[notify] url"),
        (NOTIFY.replace("https://", "ftp://"), "[notify] url"),
        (NOTIFY.replace("https://", "https://anna:s3cr3t@"), "credential"),
        (NOTIFY.replace("https://hooks.example.org/x", "hooks"), "[notify] url"),
        (NOTIFY.replace("example.org", "example.org:port"), "[notify] url"),
        (NOTIFY.replace("secrets/notify", " "), "secret_file"),
        (NOTIFY.replace('secret_file = "secrets/notify"\n', ""), "secret_file"),
        ('[people]\nalice = ["os:alice", "a@b"]\nbob = ["os:bob", "a@b"]\n', "a@b is a name of alice and of bob"),
        ('[people]\nalice = [""]\n', "[people]"),
        ('[people]\nalice = ["group:ops"]\n', "group:ops is a group"),
        ('[people]\nalice = "os:alice"\n', "people"),
    ],
)  # fmt: skip
def test_a_section_that_would_fail_later_is_refused_when_it_is_read(tmp_path: Path, section: str, words: str) -> None:
    """A schedule, a webhook and people: one sentence with the file, the section and the key, and no credential."""
    (tmp_path / "plane.toml").write_text(section)
    with pytest.raises(errors.Settings) as refused:
        settings.load(tmp_path)
    sentence = refused.value.message
    assert words in sentence and sentence.startswith(str(tmp_path)) and "s3cr3t" not in sentence
    assert sentence.count("\n") == 0 and refused.value.row.exit == 2


@pytest.mark.parametrize(
    ("key", "value"),
    [("event_kept_secs", "0"), ("event_kept_secs", "-1"), ("event_kept_secs", "1e20"), ("sweep_every_secs", "0"),
     ("sweep_every_secs", "nan"), ("sweep_every_secs", "3601"), ("sweep_every_secs", "often"),
     ("event_kept_secs", "1.5")],
)  # fmt: skip
def test_a_number_out_of_range_names_where_it_was_said(tmp_path: Path, key: str, value: str) -> None:
    """In the file, in the environment, as a flag: the sentence says which."""
    toml = tmp_path / "plane.toml"
    toml.write_text("")
    for flags, environ, source in (
        ({key: value}, {}, f"--{key.replace('_', '-')}: "),
        ({}, {f"AGENTPLANE_{key.upper()}": value}, f"AGENTPLANE_{key.upper()}: "),
    ):
        with pytest.raises(errors.Settings, match=key) as refused:
            settings.load(tmp_path, flags, environ)
        assert refused.value.message.startswith(source)
    toml.write_text(f"{key} = {value}\n" if value not in ("often", "1e20") else f'{key} = "{value}"\n')
    with pytest.raises(errors.Settings, match=key) as refused:
        settings.load(tmp_path)
    assert refused.value.message.startswith(str(toml))


def test_what_is_right_is_read_and_no_credential_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    """`config show` has the host of a webhook, and neither its path nor its query; `config check` finds a secret that
    could sign nothing."""
    (tmp_path / "plane.toml").write_text(
        'sweep_every_secs = 0.5\n[people]\nalice = ["os:alice", "a@b"]\n'
        + SCHEDULE + 'tz = "Europe/Berlin"\nmissed = "last"\ncorrelate = { books = "day" }\n'
        + NOTIFY.replace("/x", "/services/s3cr3t?key=s3cr3t")
    )  # fmt: skip
    assert command(["config", "show", "--plane", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "s3cr3t" not in shown and "hooks.example.org" in shown and "0 2 * * *" in shown
    assert command(["config", "check", "--plane", str(tmp_path)]) == 1
    assert "secrets/notify" in capsys.readouterr().out
    for url in ("http://127.0.0.1:1/x", "http://localhost/x", "http://[::1]:8080/"):
        (tmp_path / "plane.toml").write_text(NOTIFY.replace("https://hooks.example.org/x", url))
        assert settings.load(tmp_path).plane.notify is not None


async def test_what_plane_toml_says_of_waiting_work_reaches_the_plane(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """How long an event is kept, how often it is looked, who is one person, and what begins by the clock."""
    said = 'event_kept_secs = 60\nsweep_every_secs = 0.5\n[people]\nalice = ["os:alice"]\n' + SCHEDULE
    (tmp_path / "plane.toml").write_text(said)
    seen: dict[str, Any] = {}

    class Opened(Exception):
        pass

    def opened(path: Path, **options: Any) -> None:
        seen.update(options)
        raise Opened

    monkeypatch.setattr(serving.Plane, "open", opened)
    located: Any = settings.load(tmp_path)
    nothing: Any = SimpleNamespace(skills=[SimpleNamespace(name="books.close")])
    with pytest.raises(Opened):
        await serving._serve(serving.Process(located, nothing, nothing, Log(), nothing, nothing, [], nothing, nothing))
    assert (seen["event_kept_s"], seen["sweep_every_s"], seen["people"]) == (60, 0.5, {"alice": ["os:alice"]})
    assert [one.name for one in seen["schedules"]] == ["books"]


def test_a_plane_that_could_sign_no_message_does_not_start(plane: Plane) -> None:
    """The secret of [notify] is looked at before anything is served: 2, and the file's name."""
    with open(plane.directory / "plane.toml", "a", encoding="utf-8") as toml:
        toml.write(NOTIFY)
    one_sentence(serve(plane), 2, "secrets/notify")


def test_no_plane_here_is_said(tmp_path: Path) -> None:
    """A verb in a directory without plane.toml says how to name or make one."""
    done = subprocess.run(
        [sys.executable, "-m", "agentplane.cli.main", "runs"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
        env=environment(),
    )
    one_sentence(Said(done.returncode, done.stdout, done.stderr), 2, "plane.toml", "agentplane init")
