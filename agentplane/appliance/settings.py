"""What a plane is told: plane.toml, environment and flags.

Owns the keys, their types and their order of belief (flag, environment, file, default). Refuses unknown keys and
files that
others may write. Invariant: every key of the file has a flag and an environment variable of the same name.
"""

from __future__ import annotations

import ipaddress
import os
import stat
import tomllib
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

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
EVENT_KEPT_MAX_S: Final = 10 * 366 * 86_400
SWEEP_EVERY_MIN_S: Final = 0.05
SWEEP_EVERY_MAX_S: Final = 3_600
"""What falls due is looked at when it is; an hour is for what nobody announced."""


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
    settings: dict[str, Any] = {}
    access: dict[str, list[str]] | None = None
    event_kept_secs: int = bounds.EVENT_KEPT_S
    sweep_every_secs: float = 30.0
    people: dict[str, list[str]] = {}
    schedule: list[ScheduleSettings] = []
    notify: NotifySettings | None = None


class Located(msgspec.Struct, frozen=True, kw_only=True):
    """Settings with the directory they are relative to, and where each was said."""

    directory: Path
    plane: PlaneSettings
    said: dict[str, str]

    def path(self, key: str) -> Path:
        """The absolute path of a path-valued key."""
        return self.path_of(str(getattr(self.plane, key)))

    def path_of(self, said: str) -> Path:
        """The absolute path of what a section says."""
        return (self.directory / said).absolute()


SCALARS: Final = tuple(
    field.name
    for field in msgspec.structs.fields(PlaneSettings)
    if field.name not in ("settings", "access", "operator_names", "behind_proxy", "people", "schedule", "notify")
)


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


def load(directory: Path, flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None) -> Located:
    """Read plane.toml and lay environment and flags over it. Raises Settings naming key and source."""
    path = directory / FILE
    try:
        with open(path, "rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise errors.Settings(f"{path} cannot be read: {error.strerror}.") from None
    if len(raw) > FILE_BYTES_MAX:
        raise errors.Settings(f"{path} is over {FILE_BYTES_MAX} bytes.")
    try:
        data: dict[str, Any] = tomllib.loads(raw.decode())
    except (ValueError, RecursionError) as error:
        # Also what is no TOMLDecodeError: a number of thousands of digits.
        raise errors.Settings(f"{path} is not TOML: {str(error)[:200]}.") from None
    said = dict.fromkeys(data, "file")
    for key in SCALARS:
        if ENV + key.upper() in (environ or {}):
            data[key], said[key] = (environ or {})[ENV + key.upper()], "environment"
        if flags is not None and flags.get(key) is not None:
            data[key], said[key] = flags[key], "flag"
    try:
        plane = msgspec.convert(data, PlaneSettings, strict=False)
    except msgspec.ValidationError as error:
        raise errors.Settings(f"{_source(path, said, str(error))}: {error}.") from None
    _check(path, plane)
    _check_outliving(path, plane, said)
    return Located(directory=directory, plane=plane, said=said)


def _source(path: Path, said: Mapping[str, str], sentence: str) -> str:
    """Where the key was said at which ``sentence`` points, as a person finds it again."""
    key = sentence.partition("`$.")[2].rstrip("`").partition(".")[0].partition("[")[0]
    return {"environment": ENV + key.upper(), "flag": f"--{key.replace('_', '-')}"}.get(said.get(key, ""), str(path))


def _check_outliving(path: Path, plane: PlaneSettings, said: Mapping[str, str]) -> None:
    """What outlives a run: how long an event is kept, how often it is looked, and the sections beside."""
    ranges = (("event_kept_secs", 1, EVENT_KEPT_MAX_S), ("sweep_every_secs", SWEEP_EVERY_MIN_S, SWEEP_EVERY_MAX_S))
    for key, least, most in ranges:
        value = getattr(plane, key)
        if not least <= value <= most:
            source = _source(path, said, f"`$.{key}`")
            raise errors.Settings(f"{source}: {key} is between {least} and {most} seconds, not {value}.")
    try:
        check_schedules(plane.schedule)
        check_people(plane.people)
        if plane.notify is not None:
            check_notify(plane.notify)
    except errors.Settings as error:
        raise errors.Settings(f"{path}: {error.message}") from None


def _check(path: Path, plane: PlaneSettings) -> None:
    if plane.drain_mode not in ("finish", "park"):
        raise errors.Settings(f"{path}: drain_mode is finish or park, not {plane.drain_mode!r}.")
    if not bounds.LEASE_TTL_MIN_S <= plane.lease_ttl_secs <= 86_400:
        raise errors.Settings(f"{path}: lease_ttl_secs is between {bounds.LEASE_TTL_MIN_S} and 86400.")
    if not 0 <= plane.drain_linger_ms <= 60_000:
        raise errors.Settings(f"{path}: drain_linger_ms is between 0 and 60000.")
    if not 1 <= plane.max_admitted <= 10_000_000:
        raise errors.Settings(f"{path}: max_admitted is between 1 and 10000000.")
    if not 1 <= plane.max_running <= 100_000:
        raise errors.Settings(f"{path}: max_running is between 1 and 100000.")
    if not 0 <= plane.drain_secs <= 3600:
        raise errors.Settings(f"{path}: drain_secs is between 0 and 3600.")
    if (plane.tls_cert is None) != (plane.tls_key is None):
        raise errors.Settings(f"{path}: tls_cert and tls_key go together.")
    _check_names(path, plane)
    for who, roles in (plane.access or {}).items():
        unknown = [role for role in roles if role not in ROLES]
        if unknown:
            raise errors.Settings(
                f"{path}: [access] {who} has the unknown role {unknown[0]!r}; roles are {', '.join(ROLES)}."
            )


def _check_names(path: Path, plane: PlaneSettings) -> None:
    if not plane.name.strip() or len(plane.name) > bounds.NAME_CHARS_MAX or not plane.name.isprintable():
        raise errors.Settings(f"{path}: name is 1 to {bounds.NAME_CHARS_MAX} printable characters.")
    for network in plane.behind_proxy:
        try:
            ipaddress.ip_network(network)
        except ValueError:
            raise errors.Settings(
                f"{path}: behind_proxy lists networks such as 10.0.0.0/8; {network!r} is none."
            ) from None
    if plane.public_url is not None:
        if public_host(plane.public_url) is None:
            raise errors.Settings(f"{path}: public_url is https://NAME[:PORT], not {plane.public_url!r}.")


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
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return f"{path} is writable by group or others; `chmod go-w {path}`, or serve with --trust-writable."
        if found.st_uid not in (0, uid):
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
