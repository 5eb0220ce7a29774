"""Makes `.venv` at the root of the checkout and becomes the program that was asked for.

For the level 'freeze' the environment is `build/env`, which holds what goes into the executable and what freezes it.
Standard library only, since it runs before anything is installed. It owns these two, their lock files and nothing
else: an environment that it did not make is refused, not replaced. Its invariant: `.agentplane.json` in one is
present only while the environment is whole and is what the locks, pyproject.toml, interpreter and path named
in it say; it is removed before anything is changed and written last, so that a set-up killed anywhere is
begun again by the next.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
FREEZES = sys.argv[1:2] == ["freeze"]
VENV = ROOT / "build" / "env" if FREEZES else ROOT / ".venv"
STAMP = VENV / ".agentplane.json"
MARK = VENV / ".made-by-agentplane"
LOG = VENV / "setup.log"
LOCK = VENV.with_name(".env.lock" if FREEZES else ".venv.lock")
LOCKS = ROOT / "packaging" / "locks"

# What .venv takes, with room to spare: a full disk is said before the download and not after it.
NEEDED_BYTES = {"runtime": 200 << 20, "dev": 450 << 20, "freeze": 600 << 20}
FILES = {"runtime": ["runtime.txt", "build.txt"], "dev": ["dev.txt"], "freeze": ["runtime.txt", "freeze.txt"]}
# What pip unpacks in the directory for temporary files before it moves it.
SCRATCH_BYTES = 100 << 20
# How long an installer that was told to stop may take before it is killed.
STOP_GRACE_S = 5.0

UNREACHABLE = re.compile(
    r"Failed to establish a new connection|NewConnectionError|NameResolutionError"
    r"|ConnectTimeoutError|ReadTimeoutError"
    r"|Max retries exceeded|ProxyError|Cannot connect to proxy|Temporary failure in name resolution"
    r"|after connection broken by|Network is unreachable|No route to host|Connection refused|SSLError"
)
NOTHING_FOUND = re.compile(r"satisfies the requirement (\S+) .*from versions: none")
FULL = re.compile(r"No space left on device|Disk quota exceeded")


class Missing(Exception):
    """What the machine lacks, in one sentence with the command for it."""


def say(line: str) -> None:
    """One line of progress on stderr; unbuffered, since a signal's handler may interrupt another line."""
    with contextlib.suppress(OSError):
        os.write(2, f"agentplane: {line}\n".encode(errors="replace"))


def digest(*paths: Path) -> str:
    """SHA-256 over the bytes of files, in order."""
    total = hashlib.sha256()
    for path in paths:
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def base_interpreter() -> str:
    """The real path of the interpreter under any environment that this one may be running from."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def wanted() -> dict[str, str]:
    """What a whole environment was made from; members are compared one by one with the stamp."""
    return {
        "path": str(VENV),
        "interpreter": base_interpreter(),
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "runtime": digest(LOCKS / "runtime.txt", LOCKS / "build.txt"),
        "dev": digest(LOCKS / "dev.txt"),
        "freeze": digest(*(LOCKS / name for name in FILES["freeze"])),
        "project": digest(ROOT / "pyproject.toml"),
    }


def recorded() -> dict[str, str]:
    """The stamp, or nothing where there is none that can be read."""
    try:
        stamp = json.loads(STAMP.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def outdated(level: str) -> list[str]:
    """What must be done, in order: a list of 'venv', 'packages' and 'project', empty when all is there."""
    have, want = recorded(), wanted()
    if any(have.get(key) != want[key] for key in ("path", "interpreter", "python")):
        return ["venv", "packages", "project"]
    if level == "freeze":
        return [] if have.get("freeze") == want["freeze"] else ["venv", "packages"]
    if level == "dev" or have.get("level") == "dev":
        same = have.get("level") == "dev" and have.get("dev") == want["dev"]
    else:
        same = have.get("runtime") == want["runtime"]
    if not same:
        # From runtime to dev packages are only added; under another lock some would stay behind.
        grows = have.get("level") == "runtime" and have.get("runtime") == want["runtime"]
        return ["packages", "project"] if grows else ["venv", "packages", "project"]
    if have.get("project") != want["project"] or not (VENV / "bin" / "agentplane").exists():
        return ["project"]
    return []


class Installer:
    """Runs the installing programs one after another; each stops when this process is told to stop.

    A program inherits the lock: while it lives, whatever became of us, no other set-up begins.
    """

    def __init__(self, lock: int) -> None:
        self.lock = lock
        self.child: subprocess.Popen[bytes] | None = None
        self.starting = False
        self.asked = 0
        # A signal that was ignored when we were started (nohup, a job in the background) stays so.
        self.before = {
            number: signal.signal(number, self.stop)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            if signal.getsignal(number) is not signal.SIG_IGN
        }

    def release(self) -> None:
        """Gives signals and the lock back."""
        for number, handler in self.before.items():
            signal.signal(number, handler)
        os.close(self.lock)

    def stop(self, number: int, _frame: object) -> None:
        """Ends the child with all that it started, then dies of the same signal."""
        self.asked = number
        if self.starting:
            return  # the child exists but has no name yet; run() comes back here as soon as it has
        if self.child is not None and self.child.poll() is None:
            for last in (signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(self.child.pid, last)
                    self.child.wait(STOP_GRACE_S)
                    break
                except ProcessLookupError:
                    break
                except subprocess.TimeoutExpired:
                    continue
            # What the installer itself had started, and did not wait for.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.child.pid, signal.SIGKILL)
        say("set-up interrupted; the next one begins it again")
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def run(self, command: list[str], count: int = 0) -> None:
        """Runs a command in a group of its own, its output in the log, and raises Missing when it fails."""
        environment = installer_environment()
        tail: list[str] = []
        seen, warned = 0, False
        with LOG.open("ab") as log:
            log.write(f"$ {shlex.join(command)}\n".encode())
            self.starting = True
            self.child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=ROOT,
                process_group=0,
                pass_fds=(self.lock,),
            )
            self.starting = False
            if self.asked:
                self.stop(self.asked, None)
            for raw in self.child.stdout or ():
                log.write(raw)
                line = raw.decode("utf-8", "replace").strip()
                tail = [*tail[-60:], line]
                if count and line.startswith(("Collecting ", "Processing ")):
                    seen += 1
                    say(f"  {seen}/{count} {os.path.basename(line.split()[1])}")
                elif "Retrying (" in line and not warned:
                    warned = True
                    say("  no answer from the package index; pip tries again")
                elif count and line.startswith("Installing collected packages"):
                    say("  unpacking")
            status = self.child.wait()
            self.child = None
        if status:
            raise explain(command, tail)


def installer_environment() -> dict[str, str]:
    """The environment as it is, index, proxies and pip's settings included, less what would install
    elsewhere.
    """
    environment = dict(os.environ)
    for name in (
        "PIP_TARGET",
        "PIP_PREFIX",
        "PIP_ROOT",
        "PIP_REQUIRE_VIRTUALENV",
        "PYTHONHOME",
        "PYTHONPATH",
    ):
        environment.pop(name, None)
    environment["PIP_USER"] = "0"
    environment.setdefault("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    if os.geteuid() == 0:
        environment.setdefault("PIP_ROOT_USER_ACTION", "ignore")
    if not environment.get("HOME"):
        # Without a home the cache would be a directory called "~" under the working directory.
        environment.pop("HOME", None)
        if os.path.expanduser("~").startswith("~"):
            environment.setdefault("PIP_NO_CACHE_DIR", "1")
    return environment


def explain(command: list[str], tail: list[str]) -> Missing:
    """One sentence for a failed command, from what it printed last."""
    text = "\n".join(tail)
    again = f"sh packaging/{sys.argv[2]}.sh"
    if FULL.search(text):
        return no_space()
    nothing = NOTHING_FOUND.search(text)
    if UNREACHABLE.search(text) or nothing:
        what = "no package index could be reached"
        if not UNREACHABLE.search(text) and nothing:
            # Told not to try again, pip does not say why it found nothing.
            what = f"no package index could be reached, or none has {nothing[1]} for this machine"
        where = "PIP_INDEX_URL" if os.environ.get("PIP_INDEX_URL") else "pip's settings"
        return Missing(
            f"{what} (asked through {where}; what pip said: less {shlex.quote(str(LOG))}); "
            f"run with network, or name an index or a proxy: PIP_INDEX_URL=URL HTTPS_PROXY=URL {again}"
        )
    errors = [line for line in tail if line.startswith("ERROR:")] or [line for line in tail if line] or ["nothing"]
    what = "pip" if "pip" in command else "python -m venv"
    return Missing(
        f"{what} failed ({errors[0].removeprefix('ERROR:').strip()[:300]}); see: less {shlex.quote(str(LOG))}"
    )


def no_space(needed: int = 0) -> Missing:
    """The sentence for a full disk: names the fuller of the two places that a set-up writes to."""
    free = {place: shutil.disk_usage(place).free for place in (str(ROOT), tempfile.gettempdir())}
    place = min(free, key=lambda name: free[name])
    about = f" and about {needed >> 20} MB are needed" if needed else ""
    return Missing(
        f"there is no space to set up: {free[place] >> 20} MB are free at {place}{about}; "
        f"make room there, see: df -h {shlex.quote(place)}"
    )


def check_space(level: str) -> None:
    """Refuses before anything is changed; a disk that fills up later is still recognised by what pip says."""
    if shutil.disk_usage(ROOT).free < NEEDED_BYTES[level]:
        raise no_space(NEEDED_BYTES[level])
    if shutil.disk_usage(tempfile.gettempdir()).free < SCRATCH_BYTES:
        raise no_space(SCRATCH_BYTES)


def not_writable(error: OSError) -> Missing:
    """The sentence for a checkout that this user may not write."""
    target, program = "~/agentplane", sys.argv[2]
    return Missing(
        f"{ROOT} is not writable by uid {os.geteuid()} ({os.strerror(error.errno or 0)}); run: "
        f"cp -r {shlex.quote(str(ROOT))} {target} && sh {target}/packaging/{program}.sh"
    )


def take_lock() -> int:
    """The descriptor of the lock file, locked; waits for another set-up and says so. The kernel frees it on
    death.
    """
    LOCK.parent.mkdir(exist_ok=True)
    descriptor = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip() or "unknown"
        say(f"another set-up is running (pid {holder}); waiting for it")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return descriptor


def make_venv(installer: Installer) -> None:
    """An empty environment with pip, in place of whatever this program left there before."""
    quoted = shlex.quote(str(VENV))
    if VENV.is_symlink() or (VENV.exists() and not VENV.is_dir()):
        raise Missing(f"{VENV} is not a directory; move it away: mv {quoted} {quoted}.old")
    if VENV.is_dir() and any(VENV.iterdir()) and not MARK.exists():
        raise Missing(f"{VENV} was not made by this script and is not replaced; move it away: mv {quoted} {quoted}.old")
    VENV.mkdir(parents=True, exist_ok=True)
    MARK.touch()
    for entry in VENV.iterdir():
        if entry == MARK:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    say(f"making {VENV.relative_to(ROOT)} with Python {sys.version.split()[0]}")
    installer.run([base_interpreter(), "-I", "-m", "venv", str(VENV)])


def set_up(level: str) -> None:
    """Brings the environment to a level ('runtime', 'dev' or 'freeze'); a level already reached is never left."""
    # Only the kernel's lock tells whether somebody is at work; the stamp is read again once it is ours.
    installer = Installer(take_lock())
    try:
        todo = outdated(level)
        if recorded().get("level") == "dev":
            level = "dev"
        python = str(VENV / "bin" / "python")
        pip = [python, "-I", "-m", "pip", "--no-input", "install", "--progress-bar", "off"]
        if "packages" in todo:
            check_space(level)
        if todo:
            STAMP.unlink(missing_ok=True)
        if "venv" in todo:
            make_venv(installer)
        if "packages" in todo:
            files = FILES[level]
            locks = [LOCKS / name for name in files]
            count = sum(line[0] not in " #\n" and "win32" not in line for lock in locks for line in lock.open())
            say(f"installing {count} packages from packaging/locks: {' and '.join(files)}")
            requirements = [word for lock in locks for word in ("--requirement", str(lock))]
            installer.run([*pip, "--require-hashes", "--only-binary", ":all:", *requirements], count)
        if "project" in todo and not FREEZES:
            say("installing the agentplane command")
            offline = ["--no-index", "--no-build-isolation", "--no-deps", "--force-reinstall"]
            installer.run([*pip, *offline, "--editable", str(ROOT)])
        if todo:
            beside = STAMP.with_suffix(".new")
            beside.write_text(json.dumps({**wanted(), "level": level}, indent=1), "utf-8")
            beside.replace(STAMP)
            say("set up")
    finally:
        installer.release()


def side_by_side(arguments: list[str]) -> list[str]:
    """pytest's own arguments for two tests at a time: many of them wait for a disk, a process or a clock. Not where
    they say it themselves, nor where somebody wants to look on or to step in, which has one at a time."""
    alone = ("-n", "--numprocesses", "-s", "--capture=no", "--pdb", "--trace", "--co", "--collect-only", "--help", "-h")
    if any(one.startswith(("-n", "--numprocesses=")) or one in alone for one in arguments):
        return []
    return ["-n", "2", "--dist", "worksteal"]


def become(program: str, arguments: list[str]) -> NoReturn:
    """Replaces this process by pytest (in the checkout), or by the demo or the build (where the caller stands)."""
    environment = dict(os.environ)
    for name in ("PYTHONHOME", "PYTHONPATH"):
        environment.pop(name, None)
    environment["VIRTUAL_ENV"] = str(VENV)
    environment["PATH"] = f"{VENV / 'bin'}{os.pathsep}{environment.get('PATH', os.defpath)}"
    if program == "test":
        os.chdir(ROOT)
        command = [str(VENV / "bin" / "python"), "-m", "pytest", *side_by_side(arguments), *arguments]
    elif program == "build":
        script = ROOT / "packaging" / "freeze" / "build.py"
        command = [str(VENV / "bin" / "python"), "-I", "-B", str(script), *arguments]
    else:
        command = [str(VENV / "bin" / "agentplane"), "demo", *arguments]
    os.execve(command[0], command, environment)


def main(level: str, program: str, *arguments: str) -> int:
    """Returns 4 after one sentence about what is missing; otherwise does not return."""
    try:
        if outdated(level):
            set_up(level)
    except Missing as missing:
        say(str(missing))
        return 4
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            say(str(not_writable(error)))
        elif error.errno in (errno.ENOSPC, errno.EDQUOT):
            say(str(no_space()))
        else:
            say(f"set-up failed: {error}; check the checkout with: ls -la {shlex.quote(str(ROOT))}")
        return 4
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    if program == "setup":
        return 0
    become(program, list(arguments))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
