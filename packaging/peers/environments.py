"""The environment of each side: made once in the cache, of exact versions, and found again by what it was made from.

Owns the cache directory. Refuses half an environment: one that was not finished is made anew. Invariant: the name of an
environment holds a digest of its requirements, its path and its interpreter, so that a changed pin is another one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SET_UP_S = 900.0
"""How long one installer may take, in seconds."""

REQUIREMENTS = {
    "agentplane": ROOT / "packaging" / "locks" / "runtime.txt",
    "dbos": HERE / "dbos.txt",
    "langgraph": HERE / "langgraph.txt",
    "restate": HERE / "restate.txt",
}
SERVER = HERE / "restate-npm.txt"
# What would make a side do other work than this comparison asks for, or send something away.
FOREIGN = ("AGENTPLANE_", "DBOS_", "LANGCHAIN_", "LANGGRAPH_", "LANGSMITH_", "OTEL_", "RESTATE_", "PYTHON")


class Missing(Exception):
    """What cannot be had here, in one sentence."""


class Environment(NamedTuple):
    """A side that is ready to run: its interpreter, its program and what the program needs to be told."""

    python: Path
    program: Path
    extra: list[str]
    variables: dict[str, str]


def made(side: str, cache: Path) -> Environment:
    """The environment of ``side``, made in ``cache`` unless it is there. Raises Missing."""
    npm = None
    if side == "restate":
        npm = shutil.which("npm")
        if npm is None:
            raise Missing("npm is not on PATH")
    home = cache / f"{side}-{digest(side, cache)}"
    if not (home / "whole").exists():
        shutil.rmtree(home, ignore_errors=True)
        print(f"bench_peers: setting up {side}", file=sys.stderr, flush=True)
        install(side, home, npm)
        (home / "whole").touch()
    variables = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    # Bytecode is kept, as a user's would be, but not in the checkout.
    variables |= {"PYTHONPYCACHEPREFIX": str(home / "bytecode"), "LANGSMITH_TRACING": "false"}
    if side == "agentplane":
        variables["PYTHONPATH"] = str(ROOT)
    extra = ["--server", str(server(home))] if side == "restate" else []
    return Environment(home / "bin" / "python", HERE / f"on_{side}.py", extra, variables)


def install(side: str, home: Path, npm: str | None) -> None:
    """Fill an empty ``home``. Raises Missing, with where the installer's words are."""
    run([sys.executable, "-I", "-m", "venv", str(home)], home, "a virtual environment could not be made")
    pins = REQUIREMENTS[side]
    command = [str(home / "bin" / "python"), "-I", "-m", "pip", "install", "--disable-pip-version-check"]
    # Wheels alone: what would have to be compiled is said to be missing, and no program of a package runs in set-up.
    command += ["--only-binary", ":all:", "--requirement", str(pins)]
    run(command, home, f"pip could not install {pins.name} (PIP_INDEX_URL names a package index)")
    if npm is not None:
        wanted = pinned_server()
        command = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock"]
        run([*command, "--prefix", str(home), wanted], home, f"npm could not install {wanted}")
        server(home)


def pinned_server() -> str:
    """The package of the server with its version."""
    lines = SERVER.read_text("utf-8").splitlines()
    return next(line for line in lines if line and not line.startswith("#"))


def server(home: Path) -> Path:
    """The server's program among the packages of its platform. Raises Missing where there is none for this machine."""
    found = sorted(home.glob("node_modules/@restatedev/restate-server-*/bin/restate-server"))
    if not found:
        raise Missing(f"{pinned_server()} has no program for {sysconfig.get_platform()}")
    return found[0]


def digest(side: str, cache: Path) -> str:
    """What an environment was made from, in 12 hexadecimal digits."""
    total = hashlib.sha256(f"{cache}\0{os.path.realpath(sys.executable)}\0{sys.version}".encode())
    for file in (REQUIREMENTS[side], *([SERVER] if side == "restate" else [])):
        total.update(file.read_bytes())
    return total.hexdigest()[:12]


def run(command: list[str], home: Path, otherwise: str) -> None:
    """Run an installer with its words in a log beside ``home``. Raises Missing."""
    log = home.with_suffix(".log")
    with log.open("ab") as out:
        try:
            status = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=SET_UP_S, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            status = -1
    if status:
        words = [line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
        told = [line for line in words if line.lower().startswith(("error", "npm error"))] or words or ["nothing said"]
        raise Missing(f"{otherwise}: {told[-1][:200]}")
