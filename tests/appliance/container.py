"""A laid out image, started as an engine starts one: namespaces, a read-only root, one uid, no rights, mounts.

Owns the process and the namespaces of one container, and the points in its root where something is mounted. Refuses
nothing. Invariant: the image's own files are seen through a read-only mount by the program and by every hook; what
starts is PID 1, without a capability, and cannot gain one.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

from appliance.image import Stage

DEVICES = ("null", "zero", "full", "random", "urandom")
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38
CAPABILITIES = 64
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1
PATIENCE_S = 30.0
NUMBERS = count(1)
ASK = """
import http.client, ssl, sys
port, path, token, authority = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
if authority:
    call = http.client.HTTPSConnection("localhost", port, timeout=10,
    context=ssl.create_default_context(cafile=authority))
else:
    call = http.client.HTTPConnection("localhost", port, timeout=10)
call.request("GET", path, headers={"Authorization": "Bearer " + token} if token else {})
answer = call.getresponse()
print(answer.status, answer.read().decode())
"""


@dataclass
class Mount:
    """Something at ``target``: a directory or file of this machine, or a tmpfs (without ``source``) with options."""

    target: str
    source: Path | None = None
    options: str = ""
    read_only: bool = False


@dataclass
class Asked:
    """What an orchestrator asks of the engine."""

    uid: int
    gid: int
    groups: list[int] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    mounts: list[Mount] = field(default_factory=list)
    args: list[str] | None = None


class Said:
    """How a command in the container ended."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.status, self.out, self.err = done.returncode, done.stdout, done.stderr


class Container:
    """One container. ``place``: a directory for its log; ``root``: its own view of the image's files, which are shared;
    ``before``: what is in it when it starts."""

    def __init__(self, image: Stage, asked: Asked, place: Path) -> None:
        self.image, self.asked = image, asked
        self.log = place / "container.log"
        self.root = image.root.with_name(f"{image.root.name}-container-{next(NUMBERS)}")
        subprocess.run(["cp", "--archive", "--link", image.root, self.root], check=True)
        self.pid = 0
        self._child: subprocess.Popen[bytes] | None = None
        points = [("proc", True), ("dev", True), *((one.target, _is_directory(one)) for one in asked.mounts)]
        for target, directory in points:
            point = self.root / target.lstrip("/")
            if directory:
                point.mkdir(parents=True, exist_ok=True)
            elif not point.exists():
                point.parent.mkdir(parents=True, exist_ok=True)
                point.touch()
        self.before = listing(self.root)

    def start(self) -> None:
        """Start it, and return once PID 1 is the program of the image, or has ended."""
        config = self.image.config
        args = config.cmd if self.asked.args is None else self.asked.args
        spec = {
            "root": str(self.root), "uid": self.asked.uid, "gid": self.asked.gid, "groups": self.asked.groups,
            "workdir": config.workdir, "argv": [*config.entrypoint, *args], "env": self.environment(),
            "mounts": [[one.target, str(one.source or ""), one.options, one.read_only] for one in self.asked.mounts],
        }  # fmt: skip
        tests = str(Path(__file__).parent.parent)
        code = f"import sys; sys.path.insert(0, {tests!r}); from appliance import container; container.inside()"
        spaces = ("--mount", "--pid", "--net", "--ipc", "--uts")
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                ["unshare", "--fork", "--kill-child", *spaces, "--", sys.executable, "-c", code, json.dumps(spec)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.until(self._has_begun)

    def environment(self) -> dict[str, str]:
        return self.image.config.env | {"HOSTNAME": "plane-0", "HOME": "/"} | self.asked.env

    def _has_begun(self) -> bool:
        assert self._child is not None
        if self._child.poll() is not None:
            return True
        found = Path(f"/proc/{self._child.pid}/task/{self._child.pid}/children").read_text().split()
        try:
            command = Path(f"/proc/{found[0]}/cmdline").read_bytes() if found else b""
        except OSError:
            return False
        self.pid = int(found[0]) if command.startswith(self.image.config.entrypoint[0].encode() + b"\0") else 0
        return self.pid > 0

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def exec(self, argv: list[str], stdin: str = "") -> Said:
        """A command in the container, to its end."""
        return Said(subprocess.run(self.entered(argv), input=stdin, capture_output=True, text=True, timeout=60,
        check=False,                            env=self.environment()))  # fmt: skip

    def begin(self, argv: list[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self.entered(argv), stdin=subprocess.DEVNULL, env=self.environment())

    def entered(self, argv: list[str]) -> list[str]:
        """What runs ``argv`` as the container's own uid, in its namespaces and root."""
        who = [f"--setgid={self.asked.gid}", f"--setuid={self.asked.uid}"]
        spaces = ["--mount", "--pid", "--net", "--ipc", "--uts", "--root", f"--wd=/proc/{self.pid}/cwd"]
        return ["nsenter", f"--target={self.pid}", *spaces, *who, "--", *argv]

    def get(self, port: int, path: str, *, token: str = "", authority: Path | None = None) -> tuple[int, str]:
        """Status and body of a GET in the container's network, over TLS where an ``authority`` is named; 0 for none."""
        done = subprocess.run(
            ["nsenter", f"--target={self.pid}", "--net", "--", sys.executable, "-c", ASK, str(port), path, token,
             str(authority or "")],
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        status, _, body = done.stdout.strip().partition(" ")
        return (int(status), body) if done.returncode == 0 else (0, done.stderr[-300:])

    def tell(self, name: str) -> None:
        os.kill(self.pid, signal.Signals[name])

    def ended(self, within_s: float) -> int:
        """The status of PID 1."""
        assert self._child is not None
        return self._child.wait(within_s)

    def end(self) -> None:
        """Nothing of it is left when this returns; of its root nothing was changed."""
        if self._child is not None and self._child.poll() is None:
            self._child.kill()
            self._child.wait()
        after = listing(self.root)
        shutil.rmtree(self.root)
        assert after == self.before

    def until(self, holds: Callable[[], bool]) -> None:
        until = time.monotonic() + PATIENCE_S
        while not holds():
            assert self.running and time.monotonic() < until, self.log.read_text()
            time.sleep(0.02)


def _is_directory(one: Mount) -> bool:
    return one.source is None or one.source.is_dir()


def listing(root: Path) -> dict[str, tuple[int, ...]]:
    """Of every file under ``root``: mode, owner, group, size, and when it changed last."""
    found = {}
    for path in [root, *root.rglob("*")]:
        seen = path.lstat()
        times = (seen.st_mtime_ns,) if stat.S_ISREG(seen.st_mode) else ()
        found[str(path.relative_to(root))] = (seen.st_mode, seen.st_uid, seen.st_gid, seen.st_size, *times)
    return found


def run_once(image: Stage, argv: list[str]) -> None:
    """A RUN of an image without a distribution: as its user, in its root, which is read-only here."""
    uid, gid = (int(one) for one in image.config.user.split(":"))
    made = Stage(image.root, image.base, replace(image.config, entrypoint=argv[:1]))
    place = image.root.parent / f"{image.root.name}-run"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    container = Container(made, Asked(uid, gid, args=argv[1:]), place)
    container.start()
    status = container.ended(60)
    container.end()
    assert status == 0, (argv, status, container.log.read_text())


# --- in the container, before the program --------------------------------------------------------------------------


def inside() -> None:
    """PID 1, as an engine makes it: mounts, then the root, then the uid, then the program."""
    spec = json.loads(sys.argv[1])
    root = Path(spec["root"])
    _mount("--make-rprivate", "/")
    _mount("--bind", str(root), str(root))
    _mount("-t", "proc", "proc", str(root / "proc"))
    _mount("-t", "tmpfs", "-o", "mode=755,nosuid", "tmpfs", str(root / "dev"))
    for name in DEVICES:
        (root / "dev" / name).touch()
        _mount("--bind", f"/dev/{name}", str(root / "dev" / name))
    for target, source, options, read_only in spec["mounts"]:
        at = str(root / target.lstrip("/"))
        if source:
            _mount("--bind", source, at)
            if read_only:
                _mount("-o", "remount,bind,ro", at)
        else:
            _mount("-t", "tmpfs", "-o", options or "mode=1777", "tmpfs", at)
    _mount("-o", "remount,bind,ro", str(root))
    _loopback()
    os.chroot(root)
    os.chdir(spec["workdir"])
    _drop(spec["uid"], spec["gid"], spec["groups"])
    os.umask(0o022)
    os.execve(spec["argv"][0], spec["argv"], spec["env"])


def _mount(*args: str) -> None:
    subprocess.run(["mount", *args], check=True, stdin=subprocess.DEVNULL)


def _loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        flags = struct.unpack("16sh", fcntl.ioctl(asked, SIOCGIFFLAGS, struct.pack("16sh", b"lo", 0)))[1]
        fcntl.ioctl(asked, SIOCSIFFLAGS, struct.pack("16sh", b"lo", flags | IFF_UP))


def _drop(uid: int, gid: int, groups: list[int]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    for number in range(CAPABILITIES):
        libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no-new-privileges")
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
