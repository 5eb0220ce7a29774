"""`status` in one screen, and what a supervisor asks: live, ready, and a sleep without a shell."""

from __future__ import annotations

import contextlib
import io
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentplane.cli import glance as screen
from agentplane.cli.glance import glance, size, span
from agentplane.cli.main import command
from surface.doors import door

WELL: dict[str, Any] = {
    "name": "shop", "environment": "production", "state": "serving", "build": "0.1.0", "pid": 7, "live": True,
    "ready": True, "store": "/srv/plane.db", "runs": {"suspended": 3, "quarantined": 0, "succeeded": 900}, "running": 2,
    "parked": 1, "uptime_s": 11_520, "next_due": "2026-12-01T04:00:00.000Z", "disk": "enough",
    "disk_free": 44_239_074_099,
    "writer_age_s": 0.004, "commits": 12, "capabilities": ["a"], "held": None, "paused": None, "clock": None,
    "tokens_fault": None, "settings_fault": None, "held_out": {}, "held_out_count": 0, "waiting_for_capability": [],
    "waiting_for_capability_count": 0, "log_dropped": 0,
    "listeners": {"control": "unix:/run/control.sock", "probe": "http://127.0.0.1:9091"},
}  # fmt: skip


def rows(**changed: Any) -> dict[str, str]:
    found = {}
    for line in glance(WELL | changed).split("\n"):
        name, _, value = line.partition("  ")
        found[name] = value.strip()
    return found


def test_a_plane_that_is_well_fits_and_says_what_an_operator_asks() -> None:
    """S137: state, build and age, counts, disk, listeners, the oldest unit, what is due next."""
    found = rows()
    assert found["state"] == "serving, ready" and "up 3 h 12 min" in found["build"]
    assert rows(payload="0123456789abcdef" * 4)["build"].startswith("agentplane 0.1.0 (0123456789ab), pid 7")
    assert found["runs"] == "2 running, 1 parked, 3 suspended, 0 quarantined, 900 succeeded"
    assert found["disk"] == "41.2 GiB free, enough" and "oldest unit 0.004 s" in found["writer"]
    assert found["probe"] == "http://127.0.0.1:9091" and found["next due"] == "2026-12-01T04:00:00.000Z"
    assert len(found) <= 15 and not {"held", "paused", "log", "settings fault"} & set(found)


def test_what_is_wrong_has_a_line_of_its_own() -> None:
    """S137: whatever of it there is, and none of it turns a terminal around."""
    found = rows(
        held="restored\x1b[2J", paused="an incident", settings_fault="plane.toml is not TOML.", log_dropped=4,
        live=False,
        ready=False, held_out={"run_1": "why"}, held_out_count=1, waiting_for_capability=["b"] * 100,
        waiting_for_capability_count=4000,
    )  # fmt: skip
    assert found["held"] == "restored\\x1b[2J" and found["paused"] == "an incident" and "NOT LIVE" in found["state"]
    assert "not TOML" in found["settings fault"] and found["log"].startswith("4 lines")
    assert (
        found["held out"] == "1: run_1"
        and found["without code"].startswith("4000: b, b")
        and "75 more" in found["without code"]
    )


def test_it_stays_a_screen_however_much_there_is() -> None:
    """S137: a thousand skills with long names are a line."""
    text = glance(WELL | {"capabilities": ["c" * 200] * 1000, "name": "n" * 200})
    assert len(text.split("\n")) < 24 and max(len(line) for line in text.split("\n")) < 240


async def test_what_a_plane_answers_is_what_is_shown(tmp_path: Path) -> None:
    """S137: every member that the screen reads is one that the plane answers."""
    async with door(tmp_path) as at:
        body = (await at.ask("GET", "/status")).body
        assert set(WELL) <= set(body)
        assert "serving, ready" in glance(body) and body["next_due"] is None and body["log_level"] == "info"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59, "59 s"), (61, "1 min 1 s"), (90_000, "1 d 1 h"), (86_400, "1 d 0 h")]
)
def test_a_span_is_its_two_largest_units(seconds: int, text: str) -> None:
    """As a person says it."""
    assert span(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (2**70, "1048576 PiB")]
)
def test_a_size_has_the_unit_that_fits(count: int, text: str) -> None:
    """Never more than the largest."""
    assert size(count) == text


@pytest.fixture
def mute(tmp_path: Path) -> Iterator[Path]:
    """A control socket that takes connections and says nothing, as a loop that is stuck does."""
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        sock.listen(8)
        yield path


def run(*args: str) -> tuple[int, str]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        return command(list(args)), out.getvalue()


@pytest.mark.parametrize("flag", ["--live", "--ready"])
def test_a_plane_that_does_not_answer_does_not_live(mute: Path, monkeypatch: pytest.MonkeyPatch, flag: str) -> None:
    """S137: 1 within the time that a health check has, and not the half minute of a command."""
    monkeypatch.setattr(screen, "PROBE_S", 0.1)
    began = time.monotonic()
    status, said = run("status", flag, "--socket", str(mute))
    assert status == 1 and "did not answer within" in said and time.monotonic() - began < 10


def test_where_nothing_serves_it_is_4(tmp_path: Path) -> None:
    """S137: which is no finding, and not to be taken for one."""
    for flag in ("--live", "--ready"):
        assert run("status", flag, "--socket", str(tmp_path / "nowhere.sock"))[0] == 4


@pytest.mark.parametrize(
    ("live", "ready", "flags", "status"),
    [
        (True, False, [], 0), (True, False, ["--live"], 0), (True, False, ["--ready"], 1), (False, True, ["--live"], 1),
        (False, True, ["--ready"], 0), (True, True, ["--live", "--ready"], 0),
    ],
)  # fmt: skip
def test_the_exit_status_answers_what_was_asked(
    monkeypatch: pytest.MonkeyPatch, live: bool, ready: bool, flags: list[str], status: int
) -> None:
    """S137: without a question 0, whatever the plane says of itself."""

    class Answering:
        up = True

        def call(self, name: str, **asked: Any) -> tuple[int, dict[str, Any]]:
            return 200, WELL | {"live": live, "ready": ready}

    monkeypatch.setattr(screen, "client_of", lambda args: Answering())
    assert run("status", *flags)[0] == status


def test_some_seconds_pass_without_a_plane(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """S138: `wait --seconds` is a sleep for an image without a shell: no plane, no socket, status 0."""
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.chdir(tmp_path)
    assert run("wait", "--seconds", "15") == (0, "") and slept == [15.0]
    for wrong in (["--seconds", "-1"], ["--seconds", "nan"], ["--seconds", "86401"], ["run_1", "--seconds", "1"], []):
        status, said = run("wait", *wrong)
        assert status == 2 and said.count("\n") == 1, wrong
    assert slept == [15.0]
