"""Setting up: what is missing is one sentence, what is not ours is left alone, an interrupted one heals.

Offline: the way to a whole environment is what packaging/test.sh itself went before this ran.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from house.ratchet import ROOT

BASE = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
# An index where nothing listens, asked once.
NOWHERE = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0", "PIP_NO_CACHE_DIR": "1"}


@pytest.fixture
def checkout(open_dir: Path) -> Path:
    """What a set-up reads, in a directory whose name has a space."""
    root = open_dir / "a checkout"
    shutil.copytree(ROOT / "packaging", root / "packaging", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, root / name)
    return root


def environment(**changes: str) -> dict[str, str]:
    """The environment without pip's settings, and with this interpreter unless told otherwise."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "AGENTPLANE_"))}
    return {**kept, "PIP_CONFIG_FILE": os.devnull, "AGENTPLANE_PYTHON": BASE, **changes}


def demo(root: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    """packaging/demo.sh in a checkout."""
    command = ["/bin/sh", str(root / "packaging" / "demo.sh")]
    given = environment(**changes)
    return subprocess.run(command, env=given, capture_output=True, text=True, check=False, timeout=120)


def path_with(directory: Path, **tools: str) -> str:
    """A PATH that has what a shell needs and the named tools, each a script of one line, and no Python."""
    directory.mkdir()
    for name in ("dirname", "id"):
        (directory / name).symlink_to(str(shutil.which(name)))
    for name, line in tools.items():
        (directory / name).write_text(f"#!/bin/sh\n{line}\n")
        (directory / name).chmod(0o755)
    return str(directory)


def one_sentence(done: subprocess.CompletedProcess[str], *says: str) -> None:
    """Status 4, nothing on stdout, and a last line on stderr that says it; no traceback."""
    assert done.returncode == 4, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert all(word in last for word in says), last


def test_no_python_at_all(checkout: Path) -> None:
    """Without any python3 the sentence names the packages to install."""
    done = demo(checkout, AGENTPLANE_PYTHON="", PATH=path_with(checkout / "bin"))
    one_sentence(done, "no python3 on PATH", "python3-venv")


def test_a_python_too_old(checkout: Path) -> None:
    """An older Python alone is named with its version, and what to install instead."""
    fake = 'case "$3" in *platform*) echo CPython 3.9.2 ;; *) exit 1 ;; esac'
    done = demo(checkout, AGENTPLANE_PYTHON="", PATH=path_with(checkout / "bin", python3=fake))
    one_sentence(done, "CPython 3.9.2", "run:", "python3.11")


def test_a_python_without_ensurepip(checkout: Path) -> None:
    """Debian's python3 without python3-venv is told apart from one that is too old."""
    fake = 'case "$3" in *%d-venv*) echo python3.12-venv ;; *) exit 3 ;; esac'
    tools = path_with(checkout / "bin", python3=fake, **{"apt-get": ":"})
    done = demo(checkout, AGENTPLANE_PYTHON="", PATH=tools)
    one_sentence(done, "ensurepip", "apt-get install python3.12-venv")


def test_a_named_python_that_will_not_do(checkout: Path) -> None:
    """A wrong AGENTPLANE_PYTHON is refused and never replaced by another in silence."""
    one_sentence(demo(checkout, AGENTPLANE_PYTHON="/nowhere/python3"), "AGENTPLANE_PYTHON=/nowhere/python3")


def test_no_index_can_be_reached(checkout: Path) -> None:
    """The sentence names the variables that lead to an index; nothing half made is taken for whole."""
    one_sentence(demo(checkout, **NOWHERE), "no package index could be reached", "PIP_INDEX_URL=URL")
    assert not (checkout / ".venv" / ".agentplane.json").exists()


@pytest.mark.parametrize("kind", ["directory", "link"])
def test_a_foreign_environment_is_left_alone(checkout: Path, kind: str) -> None:
    """A `.venv` that this did not make is refused, with the command that moves it away."""
    if kind == "directory":
        (checkout / ".venv").mkdir()
        (checkout / ".venv" / "mine").write_text("x")
    else:
        (checkout / ".venv").symlink_to(checkout.parent)
    one_sentence(demo(checkout), "move it away: mv")
    assert (checkout / ".venv").is_symlink() or (checkout / ".venv" / "mine").read_text() == "x"


def test_a_checkout_that_may_not_be_written(checkout: Path, as_other_uid: Callable[..., Any]) -> None:
    """Somebody else's checkout is not an accident: the sentence names the uid and the copy to make."""
    checkout.chmod(0o555)
    if os.geteuid() == 0:
        os.chown(checkout, 0, 0)
    one_sentence(as_other_uid(demo, checkout), "not writable by uid", "cp -r")


def test_a_second_set_up_waits_for_the_first(checkout: Path) -> None:
    """While the lock is held the second says whose it is and does nothing; Ctrl-C ends its waiting."""
    with (checkout / ".venv.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("4711")
        lock.flush()
        command = ["/bin/sh", str(checkout / "packaging" / "demo.sh")]
        given = environment(**NOWHERE)
        with subprocess.Popen(command, env=given, stderr=subprocess.PIPE, text=True) as second:
            assert second.stderr is not None
            assert "another set-up is running (pid 4711)" in second.stderr.readline()
            assert not (checkout / ".venv").exists()
            second.send_signal(signal.SIGINT)
            assert second.wait(20) == -signal.SIGINT
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_set_up_leaves_no_process(checkout: Path, number: signal.Signals) -> None:
    """A signal to the one process ends what the installer started, is what it dies of, and frees the lock."""
    command = ["/bin/sh", str(checkout / "packaging" / "demo.sh")]
    with subprocess.Popen(command, env=environment(**NOWHERE), stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        assert "making .venv" in running.stderr.readline()
        while not any(b"ensurepip" in _read(path) for path in processes(checkout)):
            assert running.poll() is None
            os.sched_yield()
        running.send_signal(number)
        assert "interrupted" in running.stderr.read().splitlines()[-1]
        assert running.wait(20) == -number
    until = time.monotonic() + 5
    while processes(checkout) and time.monotonic() < until:
        time.sleep(0.01)  # killed, it takes its time to be gone
    assert processes(checkout) == []
    with (checkout / ".venv.lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert not (checkout / ".venv" / ".agentplane.json").exists()


def processes(checkout: Path) -> list[Path]:
    """The command lines in /proc that name the checkout."""
    return [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(checkout).encode() in _read(path)]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
