"""`config show` and `config check`: what holds and who said it, and everything that `serve` would refuse, at once."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentplane.appliance import checking, code, credentials, settings
from agentplane.cli import config as config_verb
from agentplane.cli.main import command
from agentplane.core.errors import Settings

SKILLS = """
import os, sys
from agentplane import effect, skill

print("an import may print", flush=True)

@effect("desk.pay", secrets=("PAYMENTS_KEY", "SIGNING_KEY"))
async def pay(call, *, order: str):
    return order

@skill("desk.settle")
async def settle(cx, request: dict):
    return await cx.do(pay(order="1"))
"""


@pytest.fixture
def plane(tmp_path: Path) -> Path:
    """A directory that `serve` would take, with modes that no umask changes."""
    for name, mode in (("skills", 0o755), ("secrets", 0o700)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
    (tmp_path / "skills" / "desk.py").write_text(SKILLS.replace(', secrets=("PAYMENTS_KEY", "SIGNING_KEY")', ""))
    (tmp_path / "plane.toml").write_text("")
    for path in (tmp_path, tmp_path / "skills" / "desk.py", tmp_path / "plane.toml"):
        path.chmod(0o755)
    return tmp_path


def asked(directory: Path, *args: str) -> tuple[int, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = command(["config", args[0], "--plane", str(directory), *args[1:]])
        except SystemExit as refused:
            status = int(refused.code or 0)
    return status, out.getvalue()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('tokens = "a\\u0000b"', "tokens holds a character that no text has"),
        ('store = "a\\u0000b"', "store holds a character"),
        ('socket_group = "a\\u0000"', "socket_group holds a character"),
        ("socket_group = \"99999999999999999999\"", "socket_group is a group's name"),
        ("socket_group = \"4294967295\"", "socket_group is a group's name"),
        ("skills = \"" + "s" * 300 + "\"", "skills is longer than a path may be"),
        ("max_running = 0x" + "f" * 6000, "max_running holds a number of more than 64 bits"),
        ("[settings]\n" + ".".join("x" * 900) + " = 1", "settings is nested deeper than 32 levels"),
        ("[settings]\nx = 0x" + "f" * 6000, "settings holds a number of more than 64 bits"),
        ('probe_addr = "a..b:80"', "no name of a host"),
        ('[access]\n"a\\nb" = ["operater"]', "'a\\nb' has the unknown role"),
    ],
)  # fmt: skip
def test_a_value_that_nothing_could_hold_is_one_sentence(plane: Path, line: str, words: str) -> None:
    (plane / "plane.toml").write_text(line + "\n")
    (found,) = checked(plane)
    assert words in found and "\n" not in found
    status, _ = asked(plane, "show")
    assert status == 2


def test_a_pipe_in_the_place_of_plane_toml_is_not_waited_for(plane: Path) -> None:
    """A reload reads it on the loop."""
    (plane / "plane.toml").unlink()
    os.mkfifo(plane / "plane.toml")
    with pytest.raises(Settings, match="is no file"):
        settings.load(plane, environ={})


def test_a_key_of_thousands_of_parts_is_not_read(plane: Path) -> None:
    """It would keep the loop of a reload for seconds; a long list of networks in a line is none."""
    (plane / "plane.toml").write_text("[settings]\n" + "a." * 30_000 + "b = 1\n")
    (found,) = checked(plane)
    assert "has a line with more than 2000 dots" in found
    (plane / "plane.toml").write_text(f"behind_proxy = {json.dumps(['10.20.30.0/24'] * 600)}\n")
    assert settings.load(plane, environ={}).plane.behind_proxy[599:] == ["10.20.30.0/24"]


def test_what_cannot_be_looked_at_is_said(plane: Path) -> None:
    (plane / "plane.toml").unlink()
    (plane / "plane.toml").symlink_to("plane.toml")
    found = settings.writable_by_others([plane / "plane.toml"], os.getuid())
    assert found is not None and "cannot be looked at" in found


def test_skills_that_cannot_be_listed_are_not_none(open_dir: Path, as_other_uid: Callable[..., Any]) -> None:
    """S133: an empty plane would serve, and answer every request with: no such skill."""
    (open_dir / "skills").mkdir(mode=0o700)
    os.chown(open_dir / "skills", 0, 0)
    (open_dir / "plane.toml").write_text("")
    if os.geteuid() == 0:
        assert "cannot be read by uid" in as_other_uid(_imported_by, open_dir)


def _imported_by(directory: Path) -> str:
    try:
        code.imported(settings.load(directory, environ={}))
    except Settings as error:
        return error.message
    return "imported"


def test_the_plane_is_named_as_serve_names_it(plane: Path) -> None:
    """`serve DIR` and `config check DIR`: one way to say it, and that of the other verbs."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert command(["config", "check", str(plane)]) == 0
    assert json.loads(out.getvalue())["directory"] == str(plane)
    assert asked(plane, "check") == (0, out.getvalue())


def checked(directory: Path, *flags: str) -> list[str]:
    status, out = asked(directory, "check", *flags)
    found: list[str] = json.loads(out)["findings"]
    assert status == (1 if found else 0)
    return found


def without_import(directory: Path, **flags: Any) -> list[str]:
    return checking.findings(directory, flags, {}, list)


def test_each_value_has_its_source(plane: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S132: default, plane.toml, the variable or the flag by its name; at a terminal one line a key."""
    (plane / "plane.toml").write_text('name = "shop"\n[settings]\nurl = "http://x"\napi_key = "s3cr3t"\n')
    monkeypatch.setenv("AGENTPLANE_DRAIN_SECS", "7")
    status, out = asked(plane, "show", "--max-running", "3")
    body = json.loads(out)
    assert status == 0 and "s3cr3t" not in out and body["values"]["settings"]["url"] == "http://x"
    assert body["values"]["drain_secs"] == 7 and body["values"]["max_running"] == 3
    sources = body["sources"]
    assert set(sources) == set(body["values"]) == set(settings.KEYS)
    assert sources["name"] == "plane.toml" and sources["drain_secs"] == "AGENTPLANE_DRAIN_SECS"
    assert sources["max_running"] == "--max-running" and sources["tenant"] == "default"
    _, table = asked(plane, "show", "--output", "table")
    rows = table.splitlines()
    assert len(rows) == len(settings.KEYS) and "s3cr3t" not in table
    (row,) = [row for row in rows if row.startswith("drain_secs ")]
    assert row.split() == ["drain_secs", "7.0", "AGENTPLANE_DRAIN_SECS"]


@pytest.mark.heavy
def test_a_plane_without_a_fault_has_no_finding(plane: Path) -> None:
    """Also where its skills print while they are imported; neither store nor socket was made."""
    assert checked(plane) == []
    assert {one.name for one in plane.iterdir()} == {"skills", "secrets", "plane.toml"}


@pytest.mark.heavy
def test_everything_that_serve_would_refuse_is_found_at_once(plane: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S133: secrets, schedules, tokens, certificates, the webhook's secret, names, a variable: a sentence each."""
    (plane / "skills" / "desk.py").write_text(SKILLS)
    (plane / "tokens.json").write_text("{")
    (plane / "tokens.json").chmod(0o644)
    (plane / "plane.toml").write_text(
        'socket_group = "no-such-group"\noperator_addr = "systemd:operater"\n'
        'tls_cert = "cert.pem"\ntls_key = "key.pem"\nstore = "nowhere/plane.db"\n'
        '[notify]\nurl = "https://hooks.example.org/x"\nsecret_file = "secrets/notify"\n'
        '[[schedule]]\nname = "nightly"\ncron = "0 2 * * *"\ncapability = "desk.setle"\n'
    )
    monkeypatch.setenv("AGENTPLANE_DRAIN_SEC", "3")
    monkeypatch.setenv("AGENTPLANE_SERVICE_HOST", "10.0.0.1")
    found = checked(plane)
    for words in (
        "PAYMENTS_KEY", "SIGNING_KEY", "desk.setle", "tokens.json has mode 0644", "cert.pem", "TLS key",
        "secrets/notify", "no-such-group", "'operater'", "nowhere", "AGENTPLANE_DRAIN_SEC is no key's variable",
    ):  # fmt: skip
        assert [one for one in found if words in one], words
    assert all("\n" not in one and one.endswith(".") for one in found) and "SERVICE_HOST" not in str(found)


@pytest.mark.parametrize(
    ("variable", "key"),
    [("WAIT_LOCK", "WAIT_LOCK_SECS"), ("LOG", "LOG_LEVEL"), ("DRAIN", "DRAIN_SECS"), ("SOCKETS", "SOCKET"),
     ("SERVICE_HOST", None), ("PORT", None), ("PLANE", None), ("SWEEP", None), ("WAIT_LOCK_SECS", None)],
)  # fmt: skip
def test_a_variable_that_is_nearly_a_keys_is_found(variable: str, key: str | None) -> None:
    """S132: cut short or misspelt it would be passed over without a word; other programs' have names like ours too."""
    found = checking.misspelt({f"AGENTPLANE_{variable}": "1"})
    assert [one.rpartition(" ")[2] for one in found] == ([] if key is None else [f"AGENTPLANE_{key}."])


UNFIT = (
    ("store", "closed/plane.db", "closed, cannot be written by uid"),
    ("store", "there.db", "there.db cannot be written by uid"),
    ("socket", "closed/run/control.sock", "closed cannot be written by uid"),
    ("socket", "wide/control.sock", "wide is writable by group or others"),
    ("socket", "no/where/control.sock", "no does not exist"),
    ("socket", "file/control.sock", "file is not a directory"),
    ("socket", "file", "file exists and is not a socket"),
)


def test_where_nothing_could_be_made_is_found(open_dir: Path, as_other_uid: Callable[..., Any]) -> None:
    """S133: `serve` would end at its store or its socket, after everything else was found well."""
    for name, mode in (("closed", 0o755), ("wide", 0o777)):
        (open_dir / name).mkdir()
        (open_dir / name).chmod(mode)
    for name in ("there.db", "file", "plane.toml"):
        (open_dir / name).touch(mode=0o444)
    for (key, _, words), sentences in zip(UNFIT, as_other_uid(_paths_found, open_dir), strict=True):
        assert any(words in one for one in sentences), (key, words, sentences)


def _paths_found(directory: Path) -> list[list[str]]:
    """Asked as a uid whose files they are not."""
    found = []
    for key, value, _ in UNFIT:
        located = settings.load(directory, {key: value}, {})
        found.append([one for one in checking._paths(located) if one])
    return found


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("os:no-such-user", "names no user of this host"), ("group:no-such-group", "names no group of this host"),
        ("os:#0", "is never matched: that user has a name, os:root"), ("os:root", None), ("os:#4711", None),
        ("group:root", None), ("anna", None),
    ],
)  # fmt: skip
def test_a_name_that_nobody_here_has_is_found(plane: Path, name: str, words: str | None) -> None:
    """S133: its roles are granted to nobody, and no verb would ever say why."""
    (plane / "plane.toml").write_text(f'[access]\n"{name}" = ["reader"]\n')
    found = without_import(plane)
    assert found == [] if words is None else len(found) == 1 and words in found[0]


def test_nobody_serves_no_plane(plane: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would refuse every verb of its own, since its peers cannot be told from those whom a namespace hides."""
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    monkeypatch.setattr(settings, "own_uid", lambda: os.getuid())
    assert any("No plane serves as uid 65534 (nobody)" in one for one in without_import(plane))
    served = "import os; os.geteuid = lambda: 65534; from agentplane.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", served, "serve", str(plane), "--trust-writable"],
                          capture_output=True, text=True, timeout=60, check=False)  # fmt: skip
    assert done.returncode == 2 and "No plane serves as uid 65534" in done.stderr
    assert not (plane / "plane.db").exists()


@pytest.mark.heavy
def test_a_typo_hides_nothing_of_the_skills(plane: Path) -> None:
    """S133: a key that nobody knows is one finding, and what is wrong with the skills is another."""
    (plane / "plane.toml").write_text("drian_secs = 3\n")
    (typo,) = checked(plane)
    assert "'drian_secs'; the nearest that there is: drain_secs." in typo
    (plane / "skills" / "worse.py").write_text("import no_such_module_at_all\n")
    (plane / "skills" / "worse.py").chmod(0o644)
    typo, fault = checked(plane)
    assert "drian_secs" in typo and "no_such_module_at_all" in fault


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nothing_here()\n", "NameError"),
        ("import sys\nsys.exit(0)\n", "SystemExit"),
        ("import os\nos._exit(0)\n", "status 0"),
        ("import os\nos.kill(os.getpid(), 9)\n", "signal 9"),
    ],
)
def test_an_import_that_goes_wrong_is_a_finding(plane: Path, text: str, words: str) -> None:
    """S133: whatever a skill does to the process that imports it, the verb answers."""
    (plane / "skills" / "broken.py").write_text(text)
    (plane / "skills" / "broken.py").chmod(0o644)
    (sentence,) = checked(plane)
    assert words in sentence


@pytest.mark.heavy
def test_an_import_that_does_not_end_is_a_finding(plane: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given up; here at once."""
    monkeypatch.setattr(config_verb, "IMPORT_S", 0.01)
    (sentence,) = checked(plane)
    assert "not imported within" in sentence


def test_code_that_others_may_write_is_not_imported(plane: Path) -> None:
    """S133: it is named, and nothing of it runs; where the operator trusts it, it is asked."""
    (plane / "skills" / "desk.py").chmod(0o666)
    asked_for: list[str] = []

    def import_code() -> list[str]:
        asked_for.append("desk.py")
        return []

    (sentence,) = checking.findings(plane, {}, {}, import_code)
    assert "desk.py is writable" in sentence and asked_for == []
    assert checking.findings(plane, {"trust_writable": True}, {}, lambda: ["asked"]) == ["asked"]


@pytest.mark.parametrize(
    ("mode", "is_kept"), [(0o600, True), (0o400, True), (0o640, True), (0o644, False), (0o660, False), (0o604, False)]
)
def test_a_token_file_is_for_the_plane_and_its_group(plane: Path, mode: int, is_kept: bool) -> None:
    """S133: anybody else's bit refuses it, with the command that mends it."""
    (plane / "tokens.json").write_text('{"tokens": []}')
    (plane / "tokens.json").chmod(mode)
    found = without_import(plane)
    assert bool(found) is not is_kept
    if found:
        assert f"`chmod o-rwx,g-wx {plane / 'tokens.json'}`" in found[0]


def test_the_group_that_may_read_is_the_planes(plane: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S133: a group that the plane is not in is others; root's is root."""
    (plane / "tokens.json").write_text('{"tokens": []}')
    (plane / "tokens.json").chmod(0o640)
    gid = (plane / "tokens.json").stat().st_gid
    monkeypatch.setattr(credentials, "own_groups", lambda: frozenset({gid + 1}))
    (sentence,) = without_import(plane)
    assert f"group {gid}" in sentence and "chgrp" in sentence
    monkeypatch.setattr(credentials, "own_groups", lambda: frozenset({gid}))
    assert without_import(plane) == []


def test_a_secret_is_kept_by_its_mode_or_by_its_directory(plane: Path) -> None:
    """S133: a file that others may read, in a directory that they may enter, is no secret."""
    (plane / "secrets" / "KEY").write_text("k" * 20)
    (plane / "secrets" / "KEY").chmod(0o644)
    assert credentials.open_secret(plane / "secrets", "KEY") is None
    (plane / "secrets").chmod(0o755)
    assert "chmod o-rwx" in (credentials.open_secret(plane / "secrets", "KEY") or "")
    (plane / "secrets" / "KEY").chmod(0o600)
    assert credentials.open_secret(plane / "secrets", "KEY") is None


def test_what_is_no_file_is_no_credential(plane: Path) -> None:
    """S133: a pipe in its place is not waited for, and what is missing is said to be."""
    os.mkfifo(plane / "tokens.json")
    assert any("is no file" in one for one in credentials.findings(settings.load(plane)))
    assert "is missing" in (credentials.open_to_others(plane / "key.pem", "The TLS key") or "")
