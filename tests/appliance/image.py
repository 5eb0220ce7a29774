"""A Dockerfile's instructions, carried out by hand into a directory.

Owns the reading of the file and what each instruction does to files and settings of a stage. Refuses an instruction, a
flag or a base that it does not know: what is not carried out is not passed over. Invariant: every RUN of a stage over a
distribution is run in the machine's own root, shown read-only behind the stage's files and without a network, unless
its beginning is among ``replaced``, and that it was.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

SHOWN = ("bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "opt", "proc", "sbin", "sys", "usr", "var")
"""What a stage over a distribution sees of this machine: what a distribution has."""
KNOWN = {
    "ARG", "FROM", "RUN", "WORKDIR", "COPY", "ENV", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK",
    "ENTRYPOINT", "CMD",
}  # fmt: skip
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

Replaced = Mapping[str, Callable[[Path], object]]
"""By the beginning of a RUN: what is done to the stage's files in its place."""


class Step(NamedTuple):
    word: str
    text: str
    line: int


@dataclass
class Config:
    """What an image says to who runs it."""

    user: str = "0:0"
    env: dict[str, str] = field(default_factory=lambda: {"PATH": PATH})
    workdir: str = "/"
    entrypoint: list[str] = field(default_factory=list)
    cmd: list[str] = field(default_factory=list)
    stop_signal: str = "SIGTERM"
    volumes: list[str] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)
    health: list[str] = field(default_factory=list)
    health_flags: dict[str, str] = field(default_factory=dict)


@dataclass
class Stage:
    root: Path
    base: str
    config: Config = field(default_factory=Config)


def steps(text: str) -> list[Step]:
    """The instructions in order, each in one line."""
    found: list[Step] = []
    open_line, begun = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") or (not open_line and not line.strip()):
            continue
        begun = begun if open_line else number
        open_line += line.rstrip().removesuffix("\\").strip() + " "
        if not line.rstrip().endswith("\\"):
            word, _, rest = open_line.strip().partition(" ")
            assert word in KNOWN, f"line {begun}: {word} is no instruction that is carried out here"
            found.append(Step(word, rest.strip(), begun))
            open_line = ""
    assert not open_line, "the last line does not end"
    return found


class Building:
    """One Dockerfile over one context. ``bases``: images that are there already; ``as_user``: runs a RUN of a stage
    that has no distribution, as an engine does."""

    def __init__(
        self,
        place: Path,
        context: Path,
        *,
        bases: Mapping[str, Stage] | None = None,
        replaced: Replaced | None = None,
        as_user: Callable[[Stage, list[str]], None] | None = None,
    ) -> None:
        self.place, self.context = place, context
        self.bases, self.replaced, self.as_user = bases or {}, replaced or {}, as_user
        self.used: set[str] = set()
        self.args: dict[str, str] = {}
        self.stages: dict[str, Stage] = {}
        self._stage: Stage | None = None
        self._ignored = _ignore_rules(context / ".dockerignore")

    @property
    def stage(self) -> Stage:
        assert self._stage is not None, "the first instruction but ARG is FROM"
        return self._stage

    def build(self, text: str) -> Stage:
        """The last stage, made. Every replacement was asked for."""
        for step in steps(text):
            getattr(self, f"_{step.word.lower()}")(step.text)
        assert self.used == set(self.replaced), f"never asked for: {set(self.replaced) - self.used}"
        return self.stage

    def _arg(self, text: str) -> None:
        name, _, default = text.partition("=")
        self.args[name] = default

    def _from(self, text: str) -> None:
        said = re.sub(r"\$\{(\w+)\}", lambda found: self.args[found[1]], text)
        base, _, name = said.partition(" AS ")
        root = self.place / (name or f"stage-{len(self.stages)}")
        if base in self.bases:
            root.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["cp", "--archive", self.bases[base].root, root], check=True)
            config = replace(self.bases[base].config, env=dict(self.bases[base].config.env))
        else:
            assert base == "scratch" or base.startswith("debian:"), f"{base} is no base that is known here"
            root.mkdir(parents=True)
            root.chmod(0o755)
            config = Config()
        self._stage = self.stages[name or base] = Stage(root, base, config)

    def _run(self, text: str) -> None:
        if self.stage.base != "scratch" and not text.startswith("["):
            for beginning, done in self.replaced.items():
                if text.startswith(beginning):
                    self.used.add(beginning)
                    done(self.stage.root)
                    return
            _run_over_this_machine(self.stage, text)
            return
        assert self.as_user is not None
        self.as_user(self.stage, _exec_form(text))

    def _workdir(self, text: str) -> None:
        self.stage.config.workdir = text
        self._at(text).mkdir(parents=True, exist_ok=True)

    def _copy(self, text: str) -> None:
        words = shlex.split(text)
        flags = dict(word[2:].split("=", 1) for word in words if word.startswith("--"))
        assert set(flags) <= {"from", "chown", "chmod"}, f"COPY {text}"
        *sources, target = [word for word in words if not word.startswith("--")]
        owner = tuple(int(one) for one in flags.get("chown", "0:0").split(":"))
        mode = int(flags["chmod"], 8) if "chmod" in flags else None
        for source in sources:
            origin = self.stages[flags["from"]].root / source.lstrip("/") if "from" in flags else self.context / source
            assert origin.exists(), f"COPY {source}: there is none"
            at = self._at(target)
            if origin.is_file() and (target.endswith("/") or at.is_dir()):
                at /= origin.name
            self._put(origin, at, (owner[0], owner[1]), mode, ignoring="from" not in flags)

    def _put(self, origin: Path, at: Path, owner: tuple[int, int], mode: int | None, *, ignoring: bool) -> None:
        if ignoring and origin != self.context and self._is_ignored(origin):
            return
        if origin.is_symlink():
            at.symlink_to(os.readlink(origin))
        elif origin.is_dir():
            new = not at.exists()
            at.mkdir(parents=True, exist_ok=True)
            for child in sorted(origin.iterdir()):
                self._put(child, at / child.name, owner, mode, ignoring=ignoring)
            if new:
                at.chmod(origin.stat().st_mode & 0o7777 if mode is None else mode)
                os.chown(at, *owner)
            return
        else:
            at.parent.mkdir(parents=True, exist_ok=True)
            at.unlink(missing_ok=True)
            shutil.copyfile(origin, at)
            at.chmod(origin.stat().st_mode & 0o7777 if mode is None else mode)
        os.chown(at, *owner, follow_symlinks=False)

    def _is_ignored(self, path: Path) -> bool:
        parts = path.relative_to(self.context).parts
        ignored = False
        for rule, kept in self._ignored:
            prefixes = ["/".join(parts[: count + 1]) for count in range(len(parts))]
            tails = list(parts) if rule.startswith("**/") else prefixes
            if any(fnmatch.fnmatch(one, rule.removeprefix("**/")) and ("/" not in one or rule != "*") for one in tails):
                ignored = not kept
        return ignored

    def _env(self, text: str) -> None:
        self.stage.config.env |= dict(word.split("=", 1) for word in shlex.split(text))

    def _user(self, text: str) -> None:
        self.stage.config.user = text

    def _volume(self, text: str) -> None:
        self.stage.config.volumes = list(json.loads(text))

    def _expose(self, text: str) -> None:
        self.stage.config.ports = [int(one) for one in text.split()]

    def _stopsignal(self, text: str) -> None:
        self.stage.config.stop_signal = text

    def _healthcheck(self, text: str) -> None:
        said, _, command = text.partition("CMD ")
        self.stage.config.health = _exec_form(command)
        self.stage.config.health_flags = dict(word.removeprefix("--").split("=", 1) for word in said.split())

    def _entrypoint(self, text: str) -> None:
        self.stage.config.entrypoint = _exec_form(text)

    def _cmd(self, text: str) -> None:
        self.stage.config.cmd = _exec_form(text)

    def _at(self, target: str) -> Path:
        return self.stage.root / os.path.join(self.stage.config.workdir, target).lstrip("/")


def _exec_form(text: str) -> list[str]:
    """The words of a command that needs no shell; one that does is refused."""
    said = json.loads(text)
    assert isinstance(said, list) and said and all(isinstance(one, str) for one in said), text
    return said


def _ignore_rules(file: Path) -> list[tuple[str, bool]]:
    lines = file.read_text().splitlines() if file.is_file() else []
    said = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    return [(line.removeprefix("!"), line.startswith("!")) for line in said]


def _run_over_this_machine(stage: Stage, text: str) -> None:
    tests = str(Path(__file__).parent.parent)
    code = f"import sys; sys.path.insert(0, {tests!r}); from appliance import image; image.inside()"
    done = subprocess.run(
        ["unshare", "--mount", "--net", "--", sys.executable, "-c", code, stage.root, stage.config.workdir, text],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False,
        env=stage.config.env | {"DEBIAN_FRONTEND": "noninteractive"},
    )  # fmt: skip
    assert done.returncode == 0, (text, done.stdout[-1000:], done.stderr[-2000:])


def inside() -> None:
    """In a mount namespace of its own: become the shell of one RUN, in the stage's root before the machine's."""
    root, workdir, text = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    own = {entry.name for entry in root.iterdir()}
    for name in SHOWN:
        there, here = Path("/", name), root / name
        if there.is_symlink() and name not in own:
            here.symlink_to(os.readlink(there))
        elif there.is_dir() and not there.is_symlink():
            here.mkdir(exist_ok=True)
            subprocess.run(["mount", "--rbind", there, here], check=True)
            if name not in ("dev", "proc", "sys"):
                subprocess.run(["mount", "--options", "remount,bind,ro", here], check=True)
    (root / "tmp").mkdir(exist_ok=True)
    os.chroot(root)
    os.chdir(workdir)
    os.umask(0o022)
    os.execve("/bin/sh", ["/bin/sh", "-c", text], dict(os.environ))
