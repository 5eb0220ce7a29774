"""What a plane is told: plane.toml, environment and flags.

Owns the keys, their types and their order of belief (flag, environment, file, default). Refuses unknown keys and files that
others may write. Invariant: every key of the file has a flag and an environment variable of the same name.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from agentplane.core import bounds
from agentplane.core import errors
from agentplane.core.roles import ROLES

FILE: Final = "plane.toml"
ENV: Final = "AGENTPLANE_"
FILE_BYTES_MAX: Final = 1024 * 1024


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
    log_level: str = "info"
    trust_writable: bool = False
    settings: dict[str, Any] = {}
    access: dict[str, list[str]] | None = None
    people: dict[str, list[str]] = {}


class Located(msgspec.Struct, frozen=True, kw_only=True):
    """Settings with the directory they are relative to, and where each was said."""

    directory: Path
    plane: PlaneSettings
    said: dict[str, str]

    def path(self, key: str) -> Path:
        """The absolute path of a path-valued key."""
        return (self.directory / str(getattr(self.plane, key))).absolute()


SCALARS: Final = tuple(
    field.name for field in msgspec.structs.fields(PlaneSettings)
    if field.name not in ("settings", "access", "people", "operator_names", "behind_proxy")
)  # fmt: skip


def find(start: Path | None, environ: Mapping[str, str]) -> Path:
    """The plane's directory: told, from the environment, or the one here that holds plane.toml. Raises Settings."""
    chosen = start or (Path(environ[ENV + "PLANE"]) if environ.get(ENV + "PLANE") else None)
    if chosen is None:
        chosen = Path.cwd()
        if not (chosen / FILE).is_file():
            raise errors.Settings(
                f"There is no {FILE} in {chosen}; name a plane with --plane DIR, or make one with `agentplane init DIR`."
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
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise errors.Settings(f"{path} is not TOML: {error}.") from None
    said = dict.fromkeys(data, "file")
    for key in SCALARS:
        if ENV + key.upper() in (environ or {}):
            data[key], said[key] = (environ or {})[ENV + key.upper()], "environment"
        if flags is not None and flags.get(key) is not None:
            data[key], said[key] = flags[key], "flag"
    try:
        plane = msgspec.convert(data, PlaneSettings, strict=False)
    except msgspec.ValidationError as error:
        raise errors.Settings(f"{path}: {error}.") from None
    _check(path, plane)
    return Located(directory=directory, plane=plane, said=said)


def _check(path: Path, plane: PlaneSettings) -> None:
    if plane.drain_mode not in ("finish", "park"):
        raise errors.Settings(f"{path}: drain_mode is finish or park, not {plane.drain_mode!r}.")
    if plane.lease_ttl_secs < bounds.LEASE_TTL_MIN_S:
        raise errors.Settings(f"{path}: lease_ttl_secs is at least {bounds.LEASE_TTL_MIN_S}.")
    if not 1 <= plane.max_running <= 100_000:
        raise errors.Settings(f"{path}: max_running is between 1 and 100000.")
    if not 0 <= plane.drain_secs <= 3600:
        raise errors.Settings(f"{path}: drain_secs is between 0 and 3600.")
    if (plane.tls_cert is None) != (plane.tls_key is None):
        raise errors.Settings(f"{path}: tls_cert and tls_key go together.")
    for who, roles in (plane.access or {}).items():
        unknown = [role for role in roles if role not in ROLES]
        if unknown:
            raise errors.Settings(f"{path}: [access] {who} has the unknown role {unknown[0]!r}; roles are {', '.join(ROLES)}.")


def writable_by_others(paths: list[Path], uid: int) -> str | None:
    """The first of ``paths`` that somebody beside root and ``uid`` may change, in a sentence; None when there is none."""
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
    found = [located.directory / FILE]
    for key in ("skills", "vendor"):
        directory = located.path(key)
        if directory.is_dir():
            found.append(directory)
            found += sorted(path for path in directory.rglob("*") if "__pycache__" not in path.parts)
    return found


def own_uid() -> int:
    return os.getuid()
