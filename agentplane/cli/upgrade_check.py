"""Trying a new build on a copy of the store, before it is deployed.

Owns `upgrade-check`: the private copy, the new build as a child that is bounded in time and words, and what both found.
Refuses to begin without room, and to call silence or rubbish an answer. Invariant: the store is only read, and the copy
is gone when the verb ends, whatever ended it; what a killed one left is removed by the next.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import glob
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

import msgspec

from agentplane.cli.child import Asked, CannotTell, ask, check_program
from agentplane.cli.render import choose, emit, safe, tell
from agentplane.core import errors
from agentplane.core.errors import EXIT_NO, EXIT_OPERATIONAL, EXIT_YES

Args = argparse.Namespace
Said = dict[str, Any]
"""One JSON object that the new build said, or that is told of it."""
VERSION_S: Final = 60.0
"""How long a new build may take to say its version: the first start of one unpacks it."""
FOUND_MAX: Final = 1_000
"""Findings, and notes, that are listed; the number of them is beside it."""
ALIKE: Final = ("verdict", "capability", "step", "phase", "ordinal", "where", "code")
"""Members in which findings of one kind agree; of what is of no run, the reason too."""
PREFIX: Final = ".upgrade-check."


def upgrade_check(args: Args) -> int:
    """0 when nothing was found, 1 with findings, 4 when it could not be told."""
    if args.inner is not None:
        from agentplane.cli.rehearsal import rehearse

        return rehearse(args)
    if args.binary is None:
        raise errors.InvalidRequest("Name the new build: `agentplane upgrade-check NEW_BINARY`.")
    if not 0 < args.timeout <= 86_400 or not 0 < args.limit <= 10_000_000:
        raise errors.InvalidRequest("--timeout is up to 86400 seconds, --limit up to 10000000 runs.")
    try:
        with _told_to_stop():
            return _check(args)
    except CannotTell as why:
        tell(f"agentplane: {why}")
        return EXIT_OPERATIONAL
    except errors.NotFound as error:
        # 1 is an answer about the new build, and this is none.
        tell(f"agentplane: {error.message}")
        return EXIT_OPERATIONAL
    except KeyboardInterrupt:
        tell("agentplane: stopped; nothing was found out, and the copy is deleted.")
        return EXIT_OPERATIONAL


def _check(args: Args) -> int:
    from agentplane.appliance import settings
    from agentplane.journal import copy, levels

    directory = settings.find(args.plane, os.environ)
    for flag in ("skills", "vendor"):
        named = getattr(args, flag)
        if named is not None and not named.is_dir():
            raise errors.InvalidRequest(f"--{flag} {named} is no directory.")
    store = (
        args.store.absolute() if args.store is not None else settings.load(directory, environ=os.environ).path("store")
    )
    binary = check_program(args.binary)
    level = levels.level_in(store)
    version = _version(binary, min(VERSION_S, args.timeout))
    with _private(store, args.directory or store.parent) as private:
        copy.check_room(store, private)
        target = private / "copy.db"
        tell(f"copying {store} (level {level})")
        copy.take(store, target)
        command = [
            str(binary), "upgrade-check", "--inner", str(target), "--plane", str(directory), "--limit", str(args.limit)
        ]  # fmt: skip
        for flag in ("skills", "vendor"):
            if getattr(args, flag) is not None:
                command += [f"--{flag}", str(getattr(args, flag).absolute())]
        tell(f"agentplane {version} tries it")
        found = Found()
        ended = ask(command, args.timeout, found.line)
        found.whole(binary, version, ended)
    body = found.body(binary, version, store, level)
    if choose(args.output) == "table":
        _print(body)
    else:
        emit("upgrade-check", body, choose(args.output))
    return EXIT_NO if body["found"] else EXIT_YES


class Line(msgspec.Struct, frozen=True):
    """The members of a new build's line that are read here, and of which type each is when it is there."""

    schema: str | None = None
    refused: str | None = None
    verdict: str | None = None
    run: str | None = None
    reason: str | None = None
    known: bool = False
    notes: list[str] = []
    level: int = 0
    floor: int = 0
    open: int = 0
    examined: int = 0
    left_out: int = 0
    end: bool = False


class Found:
    """What the new build said, line by line."""

    def __init__(self) -> None:
        self.head: Said = {}
        self.findings: list[Said] = []
        self.kinds: dict[tuple[str, ...], Said] = {}
        self.notes: list[Said] = []
        self.found = self.noted = 0
        self.ended = False

    def line(self, raw: bytes) -> None:
        """Take in one line. Raises CannotTell for what is none."""
        said: Said = {}
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            if msgspec.json.decode(raw, type=Line).schema == "agentplane.rehearsal/1" or self.head:
                said = msgspec.json.decode(raw)
        if not said:
            raise CannotTell(f"The new build answered what is no answer: {safe(raw[:80].decode(errors='replace'))!r}.")
        if "refused" in said:
            self._find({"verdict": "refused", "reason": str(said["refused"]), "code": said.get("code")})
        elif "verdict" in said:
            self._run(said)
        else:
            self.ended = self.ended or bool(said.get("end"))
            self.head.update(said)

    def _run(self, said: Said) -> None:
        tell(f"{said.get('examined')} of {self.head.get('open')} runs")
        known = bool(said.pop("known", False))
        for note in said.pop("notes", ()):
            self._note({"run": said.get("run"), "note": note})
        if known:
            self._note({"run": said.get("run"), "note": f"quarantined for it already: {said.get('reason')}"})
        elif said.get("verdict") != "verified":
            said.pop("examined", None)
            self._find(said)

    def _find(self, finding: Said) -> None:
        self.found += 1
        if len(self.findings) < FOUND_MAX:
            self.findings.append(finding)
        # A thousand runs that diverge at one line are one thing to do.
        alike = tuple(str(finding.get(name)) for name in ALIKE) + (
            () if "run" in finding else (str(finding.get("reason")),)
        )
        if alike in self.kinds or len(self.kinds) < FOUND_MAX:
            kind = self.kinds.setdefault(alike, finding | {"times": 0})
            kind["times"] += 1

    def _note(self, note: Said) -> None:
        self.noted += 1
        if len(self.notes) < FOUND_MAX:
            self.notes.append(note)

    def whole(self, binary: Path, version: str, ended: Asked) -> None:
        """Raises CannotTell unless the new build said its last line, and of how many runs it was."""
        if self.ended and ended.status == 0:
            head = self.head
            counted = {"open", "examined", "left_out"} <= head.keys()
            if self.found or (counted and head["open"] == head["examined"] + head["left_out"]):
                return
            raise CannotTell(f"{binary} (agentplane {version}) did not say what it has looked at.")
        if not self.head and ended.status == 2:
            raise CannotTell(f"{binary} (agentplane {version}) does not know this check: it is older than that.")
        said = f"; it said: {safe(ended.last_words).removesuffix('.')}" if ended.last_words else ""
        raise CannotTell(f"{binary} (agentplane {version}) ended with status {ended.status} in the middle{said}.")

    def body(self, binary: Path, version: str, store: Path, level: int) -> Said:
        head = self.head
        return {
            "schema": "agentplane.upgrade-check/1", "binary": str(binary), "version": version, "store": str(store),
            "level": level, "new_level": head.get("level"), "new_floor": head.get("floor"), "open": head.get("open", 0),
            "examined": head.get("examined", 0), "left_out": head.get("left_out", 0), "found": self.found,
            "findings": self.findings, "kinds": list(self.kinds.values()), "noted": self.noted, "notes": self.notes,
        }  # fmt: skip


def _print(body: Said) -> None:
    for one in body["kinds"]:
        more = f" and {one['times'] - 1} more" if one["times"] > 1 else ""
        run = f"{one['run']}{more} ({one.get('capability')}, {one.get('status')}): " if "run" in one else ""
        print(safe(f"{run}{one['verdict']}: {one.get('reason')}"))
        for member in ("remedy", "where"):
            if one.get(member):
                print(safe(f"    {one[member]}"))
                break
    for one in body["notes"]:
        print(safe(f"note: {one['run']}: {one['note']}"))
    raised = body["new_level"] or body["level"]
    later = f"; it runs the store at level {body['level']} until `upgrade --commit`" if raised > body["level"] else ""
    left = f", {body['left_out']} left out" if body["left_out"] else ""
    print(safe(f"agentplane {body['version']}: {body['examined']} open runs{left}, {body['found']} findings{later}"))


def _version(binary: Path, timeout_s: float) -> str:
    """What the new build says that it is. Raises CannotTell."""
    said: list[bytes] = []
    ended = ask([str(binary), "version", "--output", "json"], timeout_s, said.append, whole_s=timeout_s)
    try:
        found = msgspec.json.decode(b"\n".join(said))
        if ended.status == 0 and found["schema"] == "agentplane.version/1" and isinstance(found["version"], str):
            return str(found["version"])[:80]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError):
        pass
    words = safe(ended.last_words or b"\n".join(said)[:200].decode(errors="replace"))
    raise CannotTell(f"{binary} does not answer as an agentplane does (status {ended.status}): {words!r}.")


# --- the copy's own directory --------------------------------------------------------------------------------------


@contextlib.contextmanager
def _private(store: Path, parent: Path) -> Iterator[Path]:
    """A directory for the copy that nobody else may enter; gone behind the block. Raises StoreUnfit."""
    _sweep(store, parent)
    path = parent / f".{store.name}{PREFIX}{os.getpid()}"
    try:
        path.mkdir(mode=0o700)
        lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError as error:
        raise errors.StoreUnfit(
            f"No directory for the copy can be made in {parent} ({error.strerror}); name another with --directory."
        ) from None
    try:
        yield path
    finally:
        # A second signal does not leave the copy behind.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        os.close(lock)
        _delete(path)


def _delete(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        tell(f"agentplane: {path} could not be deleted; delete it.")


def _sweep(store: Path, parent: Path) -> None:
    """Remove what killed checks left: directories whose lock nobody holds."""
    for path in parent.glob(f".{glob.escape(store.name)}{PREFIX}*"):
        with contextlib.suppress(OSError):
            lock = os.open(path / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _delete(path)
            finally:
                os.close(lock)


@contextlib.contextmanager
def _told_to_stop() -> Iterator[None]:
    """TERM and HUP end the check as Ctrl-C does, so that nothing of it is left."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        sys.stderr.flush()
        for number, handler in before.items():
            signal.signal(number, handler)
