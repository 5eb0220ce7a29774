"""A node with a real system manager: systemd as PID 1 of namespaces of its own, with the packaged units installed.

Owns the node: its `/etc`, `/run`, `/var/lib` and network, its cgroup, its boot and its end. Refuses to touch the
machine around it: what it mounts, who it adds and what it listens on is gone with the namespaces. The units are
installed by the steps of docs/systemd.md and run as they are: nothing stands in for a line of them but where the log
goes.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from appliance.executable import NAMED, command
from house.ratchet import ROOT
from house.uids import open_the_way

SYSTEMD = Path("/lib/systemd/systemd")
BASE = (
    "basic.target", "sysinit.target", "sockets.target", "timers.target", "paths.target", "slices.target",
    "local-fs.target", "network.target", "multi-user.target", "shutdown.target", "umount.target", "final.target",
)  # fmt: skip
"""All that is booted besides: targets without anything in them."""
COVERED = ("/run", "/var/lib", "/var/cache", "/var/log", "/usr/local/bin", "/sys/fs/cgroup")
PLANE = Path("/etc/agentplane")
LOG = "/var/log/agentplane.log"
OPERATOR, STRANGER = "amelie", "bo"
PATIENCE_S = 30.0
UNITS = ("agentplane.service", "agentplane-operator.socket", "agentplane-probe.socket")


class Missing(Exception):
    """What this machine lacks for a manager of its own, in words."""


class Node:
    """One booted node. Everything in it is done as its root unless said otherwise. ``access``: lines for the section
    of that name in plane.toml, beside those that are packaged."""

    def __init__(self, skills: str, access: str = "") -> None:
        self.place = Path(tempfile.mkdtemp(prefix="agentplane-node-"))
        self.place.chmod(0o755)
        (self.place / "skills.py").write_text(skills)
        (self.place / "access").write_text(access)
        self.cgroup = _own_cgroup()
        self._console = (self.place / "console").open("wb")
        self._child: subprocess.Popen[bytes] | None = None
        self.pid = 0

    def boot(self) -> None:
        """Boot, and wait until the boot target is reached. Raises Missing where the kernel does not allow it."""
        code = f"import sys; sys.path.insert(0, {str(ROOT / 'tests')!r}); from appliance import node; node.inside()"
        into_group = f'echo $$ > {self.cgroup}/cgroup.procs && exec "$@"'
        spaces = ("--pid", "--mount", "--mount-proc", "--uts", "--ipc", "--net", "--cgroup")
        self._child = subprocess.Popen(
            ["sh", "-c", into_group, "sh", "unshare", "--fork", "--kill-child", *spaces,
             sys.executable, "-c", code, str(self.place)],
            stdin=subprocess.DEVNULL, stdout=self._console, stderr=self._console, cwd="/",
            env=os.environ | ({NAMED: command()[0]} if len(command()) == 1 else {}),
        )  # fmt: skip
        self.until(self._found)
        self.until(lambda: self.run("systemctl", "is-system-running", check=False).strip() in ("running", "degraded"))

    def _found(self) -> bool:
        assert self._child is not None
        if self._child.poll() is not None:
            said = (self.place / "console").read_text()
            if said.startswith("unshare:"):
                raise Missing(said.strip())
            raise AssertionError(said)
        children = Path(f"/proc/{self._child.pid}/task/{self._child.pid}/children").read_text().split()
        self.pid = int(children[0]) if children else 0
        return bool(children) and Path(f"/proc/{self.pid}/comm").read_text().strip() == "systemd"

    def argv(self, *args: str, user: str | None = None) -> list[str]:
        """What runs ``args`` in the node."""
        person = [] if user is None else ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"]
        return ["nsenter", f"--target={self.pid}", "--all", "--wd=/", *person, *args]

    def run(self, *args: str, user: str | None = None, check: bool = True) -> str:
        """What a command in the node says on both outputs."""
        done = self.done(*args, user=user)
        assert not check or done.returncode == 0, (args, done.returncode, done.stdout, self.log())
        return done.stdout

    def done(self, *args: str, user: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(*args, user=user), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=60, check=False, env={"PATH": os.environ["PATH"], "TERM": "dumb"},
        )  # fmt: skip

    def path(self, inside: str | Path) -> Path:
        """Where a file of the node is seen from here."""
        return Path(f"/proc/{self.pid}", "root", *Path(inside).parts[1:])

    def log(self) -> str:
        """What the plane has said since the node booted."""
        return self.path(LOG).read_text() if self.pid and self.path(LOG).exists() else ""

    def shown(self, unit: str, name: str) -> str:
        return self.run("systemctl", "show", unit, "--value", "--property", name).strip()

    def drop_in(self, unit: str, name: str, text: str | None) -> None:
        """Write a drop-in of a unit, or remove it, and have the manager read its units again."""
        directory = self.path(f"/etc/systemd/system/{unit}.d")
        directory.mkdir(exist_ok=True)
        if text is None:
            (directory / name).unlink()
        else:
            (directory / name).write_text(text)
        self.run("systemctl", "daemon-reload")

    def until(self, holds: Callable[[], bool]) -> None:
        until = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < until, (self.log(), (self.place / "console").read_text()[-2000:])
            time.sleep(0.01)

    def end(self) -> None:
        """All of it is gone when this returns."""
        if self._child is not None:
            if self.pid and self._child.poll() is None:
                os.kill(self.pid, signal.SIGKILL)
            elif not self.pid:
                self._child.kill()
            self._child.wait()
        self._console.close()
        until = time.monotonic() + PATIENCE_S
        while self.cgroup.exists() and time.monotonic() < until:
            # The kernel lets a group go a moment after its last process.
            for directory, _, _ in os.walk(self.cgroup, topdown=False):
                try:
                    os.rmdir(directory)
                except OSError:
                    time.sleep(0.01)
        shutil.rmtree(self.place, ignore_errors=True)


def _own_cgroup() -> Path:
    """A group of our own, which becomes the root of the node's: a manager at the machine's would move its processes."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind == "cgroup2":
            here = next(one for one in Path("/proc/self/cgroup").read_text().splitlines() if one.startswith("0::"))
            made = Path(place) / here[3:].strip("/") / f"agentplane-node-{os.getpid()}-{time.monotonic_ns()}"
            try:
                made.mkdir()
            except OSError as error:
                raise Missing(f"a cgroup of its own ({error.strerror})") from None
            return made
    raise Missing("the unified hierarchy of cgroups")


# --- in the node, before there is a manager ------------------------------------------------------------------------


def inside() -> None:
    """PID 1 of the node: lay out its files, install the units, and become the manager."""
    place = Path(sys.argv[1])
    _sh("mount", "--make-rprivate", "/")
    trees = _trees()
    open_the_way([*trees, place])
    _cover(place)
    _install(place)
    _program(trees)
    # As on a machine: a manager in a container leaves this to whoever made the namespace, and what it mounts for a
    # service's credentials in a child would reach nobody.
    _sh("mount", "--make-rshared", "/")
    environ = {
        "container": "agentplane-test", "PATH": os.environ["PATH"],
        "SYSTEMD_UNIT_PATH": "/etc/systemd/system:/run/base",
    }  # fmt: skip
    arguments = ("--system", "--unit=multi-user.target", "--log-target=console", "--show-status=no")
    os.execve(SYSTEMD, [str(SYSTEMD), *arguments], environ)


def _trees() -> list[Path]:
    """Where the program under test, and what it is made of, lies."""
    program = [Path(command()[0]).parent] if len(command()) == 1 else []
    interpreter = [Path(sys.prefix), Path(sys.base_prefix), Path(os.path.realpath(sys.executable)).parent]
    return [ROOT, *interpreter, *program]


def _cover(place: Path) -> None:
    """Every place that is written to is the node's own. Of the machine's `/etc` it has what programs look up."""
    etc = place / "etc"
    shutil.copytree("/etc", etc, symlinks=True, ignore=shutil.ignore_patterns("systemd", "agentplane"))
    (etc / "systemd" / "system").mkdir(parents=True)
    (etc / "hostname").write_text("node\n")
    (etc / "machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    _sh("mount", "--bind", str(etc), "/etc")
    for one in COVERED:
        _sh("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", one)
    _sh("mount", "-t", "cgroup2", "cgroup2", "/sys/fs/cgroup")
    Path("/run/lock").mkdir()
    Path("/run/base").mkdir()
    for name in BASE:
        Path("/run/base", name).symlink_to(f"/lib/systemd/system/{name}")


def _install(place: Path) -> None:
    """The steps of docs/systemd.md, up to the start; and one person in the group of the operators."""
    units = Path("/etc/systemd/system")
    for name in UNITS:
        shutil.copy(ROOT / "systemd" / name, units)
    Path("/etc/sysusers.d").mkdir(exist_ok=True)
    shutil.copy(ROOT / "systemd" / "agentplane.sysusers.conf", "/etc/sysusers.d/agentplane.conf")
    Path("/etc/sysusers.d/test.conf").write_text(f"u {OPERATOR} -\nu {STRANGER} -\nm {OPERATOR} agentplane-operators\n")
    _sh("systemd-sysusers", "/etc/sysusers.d/agentplane.conf", "/etc/sysusers.d/test.conf")
    for directory, mode in ((PLANE, 0o755), (PLANE / "skills", 0o755), (PLANE / "keys", 0o700)):
        directory.mkdir()
        directory.chmod(mode)
    toml = (ROOT / "systemd" / "plane.toml").read_text()
    _put(PLANE / "plane.toml", toml.replace("[settings]", (place / "access").read_text() + "\n[settings]"))
    _put(PLANE / "skills" / "desk.py", (place / "skills.py").read_text())
    _put(PLANE / "keys" / "desk_key", "a key of twenty letters\n", 0o600)
    keys = units / "agentplane.service.d"
    keys.mkdir()
    _put(keys / "keys.conf", "[Service]\nLoadCredential=desk_key:/etc/agentplane/keys/desk_key\n")
    _sh("systemctl", "enable", "agentplane.service", "agentplane-operator.socket")


def _program(trees: list[Path]) -> None:
    """`/usr/local/bin/agentplane`, in one file as the units name it; and sight of what it is made of, where the unit
    closes the directories that a checkout may lie in."""
    program = Path("/usr/local/bin/agentplane")
    if len(command()) == 1:
        shutil.copy(command()[0], program)
        _sh(str(program), "unpack")
    else:
        _put(program, f'#!/bin/sh\nPYTHONPATH={ROOT} exec {" ".join(command())} "$@"\n')
    program.chmod(0o755)
    closed = ("/tmp", "/home", os.path.expanduser("~root"))
    hidden = [tree for tree in trees if any(tree.is_relative_to(one) for one in closed)]
    seen = "".join(f"BindReadOnlyPaths={tree}\n" for tree in hidden)
    where = Path("/etc/systemd/system/agentplane.service.d/log.conf")
    _put(where, f"[Service]\nStandardOutput=append:{LOG}\nStandardError=append:{LOG}\n{seen}")


def _put(path: Path, text: str, mode: int = 0o644) -> None:
    path.write_text(text)
    path.chmod(mode)


def _sh(*args: str) -> None:
    subprocess.run(args, check=True, stdin=subprocess.DEVNULL, env={**os.environ, "SYSTEMD_OFFLINE": "1"})
