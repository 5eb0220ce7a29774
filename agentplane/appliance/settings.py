"""What a plane is told: plane.toml, environment and flags.

Owns the keys, their types and their order of belief (flag, environment, file, default). Refuses unknown keys, naming
the nearest, and files that others may write. Invariant: every key of the file has a flag and an environment variable of
the same name; what is refused is found all at once, each in one sentence with its source.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import stat
import tomllib
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from agentplane.appliance import relations
from agentplane.appliance.sections import (
    NotifySettings,
    ScheduleSettings,
    check_notify,
    check_people,
    check_schedules,
)
from agentplane.core import bounds, errors
from agentplane.core.roles import ROLES

FILE: Final = "plane.toml"
ENV: Final = "AGENTPLANE_"
FILE_BYTES_MAX: Final = 64 * 1024
"""Ten times any plane.toml; a dotted key of a megabyte costs the TOML reader minutes."""
DOTS_MAX: Final = 2_000
"""In one line: the TOML reader takes a time that grows with the square of a dotted key's parts."""
NEAR: Final = 0.6
"""How alike two names must be for one to have been meant by the other."""
DEPTH_MAX: Final = 32
"""Tables in tables: `[settings]` is shown and handed to skills, and nobody means more."""
NAME_MAX: Final = 255
PATH_MAX: Final = 4096
GID_MAX: Final = 2**32 - 2
"""Linux: bytes of a name and of a path, and the last number of a group (the one behind it means no change)."""
UNKNOWN_MAX: Final = 20
"""Unknown keys that are told one by one: to look for what each was meant to be takes a while."""
STRENGTH: Final = ("default", "file", "environment", "flag")


class PlaneSettings(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """plane.toml, read. Paths are relative to the directory that holds it; durations carry their unit."""

    name: str = "plane"
    environment: str = "development"
    tenant: str = "default"
    currency: str = "EUR"
    store: str = "plane.db"
    socket: str = "run/control.sock"
    socket_group: str | None = None
    skills: str = "skills"
    vendor: str = "vendor"
    secrets: str = "secrets"
    tokens: str = "tokens.json"
    operator_addr: str | None = None
    operator_names: list[str] = []
    tls_cert: str | None = None
    tls_key: str | None = None
    behind_proxy: list[str] = []
    public_url: str | None = None
    drain_secs: float = bounds.DRAIN_S
    drain_mode: str = "finish"
    drain_linger_ms: int = bounds.DRAIN_LINGER_MS
    lease_ttl_secs: float = bounds.LEASE_TTL_S
    max_running: int = bounds.MAX_RUNNING
    max_admitted: int = bounds.MAX_ADMITTED
    trust_writable: bool = False
    log_level: str = "info"
    log_format: str = "auto"
    probe_addr: str | None = None
    wait_lock_secs: float = 0.0
    settings: dict[str, Any] = {}
    access: dict[str, list[str]] | None = None
    event_kept_secs: int = bounds.EVENT_KEPT_S
    sweep_every_secs: float = 30.0
    people: dict[str, list[str]] = {}
    schedule: list[ScheduleSettings] = []
    notify: NotifySettings | None = None


class Located(msgspec.Struct, frozen=True, kw_only=True):
    """Settings with the directory they are relative to, where each was said, and what flags and environment said: a
    reload reads the file again under them."""

    directory: Path
    plane: PlaneSettings
    said: dict[str, str]
    flags: dict[str, object] = {}
    environ: dict[str, str] = {}

    def path(self, key: str) -> Path:
        """The absolute path of a path-valued key."""
        return self.path_of(str(getattr(self.plane, key)))

    def path_of(self, said: str) -> Path:
        """The absolute path of what a section says."""
        return (self.directory / said).absolute()


KEYS: Final = PlaneSettings.__struct_fields__
SCALARS: Final = tuple(
    field.name
    for field in msgspec.structs.fields(PlaneSettings)
    if field.name not in ("settings", "access", "people", "schedule", "notify")
)
"""Keys that a variable or a flag can say."""
PATHS: Final = ("store", "socket", "skills", "vendor", "secrets", "tokens", "tls_cert", "tls_key")
"""Of these, the ones that name files."""
LISTS: Final = ("operator_names", "behind_proxy")
"""Of these, the ones that are lists: parted by commas there."""


def flags_of(args: object) -> dict[str, object]:
    """What a parsed command line says of keys."""
    return {key: getattr(args, key) for key in SCALARS if getattr(args, key, None) is not None}


def find(start: Path | None, environ: Mapping[str, str]) -> Path:
    """The plane's directory: told, from the environment, or the one here that holds plane.toml. Raises Settings."""
    chosen = start or (Path(environ[ENV + "PLANE"]) if environ.get(ENV + "PLANE") else None)
    if chosen is None:
        chosen = Path.cwd()
        if not (chosen / FILE).is_file():
            raise errors.Settings(
                f"There is no {FILE} in {chosen}; name a plane with --plane DIR, "
                "or make one with `agentplane init DIR`."
            )
    if not (chosen / FILE).is_file():
        raise errors.Settings(f"There is no {FILE} in {chosen}; make one with `agentplane init {chosen}`.")
    return chosen.absolute()


def load(
    directory: Path, flags: Mapping[str, object] | None = None, environ: Mapping[str, str] | None = None
) -> Located:
    """Read plane.toml and lay environment and flags over it. Raises Settings naming key and source."""
    located, findings = examine(directory, flags, environ)
    if findings or located is None:
        first = findings[0] if findings else "Nothing could be read."
        more = f" (`agentplane config check` has {len(findings) - 1} more.)" if len(findings) > 1 else ""
        raise errors.Settings(first + more)
    return located


def examine(
    directory: Path, flags: Mapping[str, object] | None = None, environ: Mapping[str, str] | None = None
) -> tuple[Located | None, list[str]]:  # fmt: skip
    """What ``load`` reads, and every sentence that it would refuse it with; None where a value is of no use."""
    path = directory / FILE
    try:
        data = _read(path)
    except errors.Settings as error:
        return None, [error.message]
    findings = unknown_keys(path, data)
    said = dict.fromkeys(data, "file")
    told_flags = {key: (flags or {})[key] for key in SCALARS if (flags or {}).get(key) is not None}
    # An empty variable says nothing: a template that leaves one empty means the default.
    told_environ = {
        key: (environ or {})[ENV + key.upper()] for key in SCALARS if (environ or {}).get(ENV + key.upper())
    }
    for told, source in ((told_environ, "environment"), (told_flags, "flag")):
        for key, value in told.items():
            data[key], said[key] = _parted(value) if key in LISTS else value, source
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(PlaneSettings):
        why = unfit(field.name, data.get(field.name))
        if why is not None:
            findings.append(f"{source_of(path, said, field.name)}: {field.name} {why}.")
        elif field.name in data:
            try:
                values[field.name] = msgspec.convert(data[field.name], field.type, strict=False)
            except msgspec.ValidationError as error:
                sentence = str(error).replace("`$", f"`{field.name}")
                named = sentence if field.name in sentence else f"{sentence} - at `{field.name}`"
                if "unknown field" not in sentence or not any(f" in [{field.name}]" in one for one in findings):
                    findings.append(f"{source_of(path, said, field.name)}: {named}.")
    plane = PlaneSettings(**values)
    plane = msgspec.structs.replace(plane, **relations.derived(values, plane))
    misfit = {key for key in data if key in KEYS and key not in values}
    findings += _wrong(path, plane, said, misfit)
    located = Located(directory=directory, plane=plane, said=said, flags=told_flags, environ=told_environ)
    return None if misfit else located, findings


def salvaged(directory: Path, environ: Mapping[str, str]) -> Located:
    """Where store and socket are by a plane.toml that ``load`` refuses, as far as it says so: for whoever asks a plane
    that serves since before it was broken."""
    try:
        data = _read(directory / FILE)
    except errors.Settings:
        data = {}
    found = {key: environ.get(ENV + key.upper()) or data.get(key) for key in ("store", "socket")}
    told = {key: value for key, value in found.items() if isinstance(value, str) and value and not unfit(key, value)}
    return Located(directory=directory, plane=msgspec.structs.replace(PlaneSettings(), **told), said={})


def _read(path: Path) -> dict[str, Any]:
    """The file's tables. Raises Settings."""
    try:
        # Nobody waits for whoever would write a pipe: a reload reads it on the loop.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise errors.Settings(f"{path} is no file.")
            raw = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise errors.Settings(f"{path} cannot be read: {error.strerror}.") from None
    if len(raw) > FILE_BYTES_MAX:
        raise errors.Settings(f"{path} is over {FILE_BYTES_MAX} bytes.")
    if max(line.count(b".") for line in raw.split(b"\n")) > DOTS_MAX:
        raise errors.Settings(f"{path} has a line with more than {DOTS_MAX} dots; break it into several.")
    try:
        return tomllib.loads(raw.decode())
    except (ValueError, RecursionError) as error:
        # Also what is no TOMLDecodeError: a number of thousands of digits.
        raise errors.Settings(f"{path} is not TOML: {str(error)[:200]}.") from None


def unknown_keys(path: Path, data: Mapping[str, object]) -> list[str]:
    """A sentence for each key that is none, of the file and of its sections, with the nearest that is one; of many the
    first ones, and how many more there are."""
    found = [(key, "", KEYS) for key in data if key not in KEYS]
    for section, kind in (("schedule", ScheduleSettings), ("notify", NotifySettings)):
        said, known = data.get(section), kind.__struct_fields__
        for table in said if isinstance(said, list) else [said]:
            found += [
                (key, f" in [{section}]", known)
                for key in (table if isinstance(table, dict) else ())
                if key not in known
            ]
    sentences = [
        f"{path}: there is no key {key[:70]!a}{where}; {nearest(key, known)}."
        for key, where, known in found[:UNKNOWN_MAX]
    ]
    if len(found) > UNKNOWN_MAX:
        sentences.append(f"{path}: there are {len(found) - UNKNOWN_MAX} more keys that are none.")
    return sentences


def unfit(key: str, value: object) -> str | None:
    """Why a value cannot be one of any type, as the rest of a sentence: what no file's name, no record and no message
    could hold."""
    waiting: list[tuple[object, int]] = [(value, 0)]
    while waiting:
        one, depth = waiting.pop()
        if depth > DEPTH_MAX:
            return f"is nested deeper than {DEPTH_MAX} levels"
        if isinstance(one, dict):
            waiting += [(part, depth + 1) for pair in one.items() for part in pair]
        elif isinstance(one, list):
            waiting += [(part, depth + 1) for part in one]
        elif isinstance(one, int) and not -(2**63) <= one < 2**63:
            return "holds a number of more than 64 bits"
        elif isinstance(one, str):
            if "\0" in one or any("\ud800" <= char <= "\udfff" for char in one):
                return "holds a character that no text has (NUL, or a byte that is not UTF-8)"
            names = one.encode().split(b"/") if key in PATHS else []
            if sum(map(len, names)) + len(names) > PATH_MAX or any(len(name) > NAME_MAX for name in names):
                return f"is longer than a path may be ({NAME_MAX} bytes a name, {PATH_MAX} in all)"
    return None


def _parted(value: object) -> list[str]:
    return [one.strip() for one in str(value).split(",") if one.strip()]


def nearest(key: str, known: Sequence[str]) -> str:
    """The known key that was probably meant, as half a sentence; all of them, or where they are listed, without one."""
    near = difflib.get_close_matches(key[:70].lower().replace("-", "_"), known, 1, NEAR)
    if near:
        return f"the nearest that there is: {near[0]}"
    return f"there are {', '.join(known)}" if len(known) < 10 else "`agentplane config show` lists those that there are"


def source_of(path: Path, said: Mapping[str, str], key: str) -> str:
    """Where ``key`` was said, as a person finds it again; the file where nobody said it."""
    return {"environment": ENV + key.upper(), "flag": f"--{key.replace('_', '-')}"}.get(said.get(key, ""), str(path))


def _wrong(path: Path, plane: PlaneSettings, said: Mapping[str, str], misfit: Iterable[str]) -> list[str]:
    """Everything about read values that would be refused, a sentence each with its source. Of relations only those
    whose keys are well by themselves: ``misfit`` are keys whose values are of another type, and were not read."""
    bad = relations.out_of_bounds(plane)
    found = [f"{source_of(path, said, key)}: {why}." for key, why in bad]
    unsure = {*misfit, *(key for key, _ in bad)}
    for keys, why in relations.disagreements(plane):
        if not unsure & set(keys):
            # Of several keys the one that was said most strongly is where a person looks.
            loudest = max(keys, key=lambda key: STRENGTH.index(said.get(key, "default")))
            found.append(f"{source_of(path, said, loudest)}: {why}.")
    checks: tuple[Callable[[], None], ...] = (
        partial(_check_names, plane), partial(check_schedules, plane.schedule), partial(check_people, plane.people),
        *(() if plane.notify is None else (partial(check_notify, plane.notify),)),
    )  # fmt: skip
    for check in checks:
        try:
            check()
        except errors.Settings as error:
            found.append(f"{path}: {error.message}")
    for who, roles in (plane.access or {}).items():
        unknown = [role for role in roles if role not in ROLES]
        if unknown:
            near = nearest(unknown[0], list(ROLES))
            found.append(f"{path}: [access] {who[:80]!a} has the unknown role {unknown[0][:80]!a}; {near}.")
    return found


def _check_names(plane: PlaneSettings) -> None:
    if not plane.name.strip() or len(plane.name) > bounds.NAME_CHARS_MAX or not plane.name.isprintable():
        raise errors.Settings(f"name is 1 to {bounds.NAME_CHARS_MAX} printable characters.")
    group = plane.socket_group
    if group is not None and group.isascii() and group.isdigit() and (len(group) > 10 or int(group) > GID_MAX):
        raise errors.Settings(f"socket_group is a group's name, or a number up to {GID_MAX}.")
    for network in plane.behind_proxy:
        try:
            ipaddress.ip_network(network)
        except ValueError:
            raise errors.Settings(f"behind_proxy lists networks such as 10.0.0.0/8; {network!r} is none.") from None
    if plane.public_url is not None and public_host(plane.public_url) is None:
        raise errors.Settings(f"public_url is https://NAME[:PORT], not {plane.public_url!r}.")


def public_host(url: str) -> str | None:
    """The Host that requests for ``url`` carry; None for what is no URL of ours."""
    try:
        found = urllib.parse.urlsplit(url)
        port = found.port
    except ValueError:
        return None
    if found.scheme not in ("http", "https") or not found.hostname or found.username or found.query or found.fragment:
        return None
    name = f"[{found.hostname}]" if ":" in found.hostname else found.hostname
    return name if port is None else f"{name}:{port}"


def writable_by_others(paths: list[Path], uid: int) -> str | None:
    """The first of ``paths`` that somebody beside root and ``uid`` may change, in a sentence; None when there is
    none."""
    for path in paths:
        try:
            found = path.stat()
        except FileNotFoundError:
            continue
        except OSError as error:
            return f"{path} cannot be looked at: {error.strerror}."
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return f"{path} is writable by group or others; `chmod go-w {path}`, or serve with --trust-writable."
        if found.st_uid not in (0, uid):
            if uid == 0:
                return f"{path} is owned by uid {found.st_uid}: run this as that user, or `chown 0 {path}`."
            return f"{path} is owned by uid {found.st_uid}, neither root nor the plane's; `chown {uid} {path}`."
    return None


def code_paths(located: Located) -> list[Path]:
    """Everything that is code or decides about code: what nobody else may write."""
    # The directory itself: who may rename in it puts what they like in the place of everything below.
    found = [located.directory, located.directory / FILE]
    for key in ("skills", "vendor"):
        directory = located.path(key)
        if directory.is_dir():
            found.append(directory)
            found += sorted(path for path in directory.rglob("*") if "__pycache__" not in path.parts)
    return found


def own_uid() -> int:
    return os.getuid()
