"""Who is asking, and whether they may.

Owns identities from the kernel and from tokens, and the one decision for every entry point. Refuses nobody's uid,
expired tokens
and names from a body. Invariant: with ``[access]`` only what it says is granted, and machines never speak for a person.
"""

from __future__ import annotations

import fcntl
import grp
import hashlib
import hmac
import json
import os
import pwd
import re
import secrets
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from agentplane.core import bounds, errors
from agentplane.core.instants import to_text
from agentplane.core.records import Actor, Basis
from agentplane.core.roles import ROLES, SPEAKS_FOR_A_PERSON, may

OVERFLOW: Final = 65534
"""The uid and the gid that a user namespace shows for whom it does not know: nobody, and nobody's group."""
EVERY_ROLE: Final = tuple(ROLES)
SHA256: Final = re.compile("[0-9a-f]{64}")
TOKENS_BYTES_MAX: Final = 16 * bounds.MIB


class Who(msgspec.Struct, frozen=True, kw_only=True):
    """An identity as established by a door. ``machine``: root or the plane's own uid, once ``[access]``
    exists; ``groups``: those of the kernel, as group:NAME."""

    actor: str
    basis: Basis
    roles: tuple[str, ...] = ()
    uid: int | None = None
    machine: bool = False
    groups: tuple[str, ...] = ()

    def as_actor(self) -> Actor:
        return Actor(actor=self.actor, basis=self.basis, uid=self.uid)


def decide(who: Who, action: str) -> None:
    """Raises Forbidden naming the action and what would grant it."""
    if may(who.roles, action, machine=who.machine):
        return
    if who.machine and action in SPEAKS_FOR_A_PERSON:
        raise errors.Forbidden(
            f"{who.actor} is a machine here and {action} speaks for a person; use a person's token.", action=action
        )
    granting = ", ".join(role for role, actions in ROLES.items() if action in actions)
    raise errors.Forbidden(f"{who.actor} may not {action}; the roles that grant it are {granting}.", action=action)


class Access:
    """The ``[access]`` of plane.toml, or its absence."""

    def __init__(self, table: Mapping[str, list[str]] | None, own_uid: int) -> None:
        self._table = table
        self._own_uid = own_uid

    def of_peer(self, uid: int, gids: Iterable[int]) -> Who:
        """The identity of a Unix peer, from the kernel. Raises Unauthenticated for nobody."""
        if uid == OVERFLOW:
            raise errors.Unauthenticated(
                "The peer's uid cannot be seen from here (it is nobody); connect without a user namespace."
            )
        name = user_name(uid)
        actor = f"os:{name}" if name is not None else f"os:#{uid}"
        machine = uid in (0, self._own_uid)
        found = (_group(gid) for gid in gids if gid != OVERFLOW)
        groups = tuple(f"group:{group}" for group in found if group is not None)
        if self._table is None:
            roles = list(EVERY_ROLE) if machine else []
            machine = False
        else:
            roles = [role for one in (actor, *groups) for role in self._table.get(one, [])]
        return Who(
            actor=actor, basis=Basis.CONNECTED, uid=uid, roles=tuple(dict.fromkeys(roles)), machine=machine,
            groups=groups,
        )  # fmt: skip

    def of_token(self, token: Token) -> Who:
        """The identity of a verified token: its own roles, and those that ``[access]`` gives its actor."""
        extra = (self._table or {}).get(token.actor, [])
        return Who(actor=token.actor, basis=Basis.AUTHENTICATED, roles=tuple(dict.fromkeys([*token.roles, *extra])))


def of_terminal(actor: str | None) -> Who:
    """At a terminal that opened the store itself, the name is asserted. Raises InvalidRequest for what is no name."""
    uid = os.getuid()
    name = f"os:{user_name(uid) or f'#{uid}'}" if actor is None else person_name(actor)
    return Who(actor=name, basis=Basis.ASSERTED, roles=EVERY_ROLE, uid=uid)


def person_name(text: str) -> str:
    """A name as a record keeps it: one printable line. Raises InvalidRequest."""
    if not text.strip() or len(text) > bounds.NAME_CHARS_MAX or not text.isprintable():
        raise errors.InvalidRequest(f"An actor is a name of 1 to {bounds.NAME_CHARS_MAX} printable characters.")
    return text


def unfit_uid(uid: int) -> str | None:
    """Why no plane serves as ``uid``: as nobody it would have to refuse its own verbs, and could not tell why."""
    if uid != OVERFLOW:
        return None
    return (
        f"No plane serves as uid {OVERFLOW} (nobody): callers cannot be told from those whom a user namespace hides, "
        "and are refused; give it a user of its own."
    )


def own_name() -> str:
    """The name of this process's own uid, as the kernel's peers are named."""
    uid = os.getuid()
    return f"os:{user_name(uid) or f'#{uid}'}"


class TooManyFailures(errors.AgentplaneError):
    """``retry_after_s``: whole seconds after which the next wrong credential from there is looked at."""

    row = errors.Row(
        "too_many_failures", "caller", errors.EXIT_OPERATIONAL, 429, "Wait, then present a token that is known here."
    )

    def __init__(self, retry_after_s: int) -> None:
        super().__init__("Too many wrong credentials came from this address.")
        self.retry_after_s = retry_after_s


def user_name(uid: int) -> str | None:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


def _group(gid: int) -> str | None:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return None


# --- tokens ---------------------------------------------------------------------------------------------------------


class Token(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of the token file: never the token itself. ``expires_ms`` None: never."""

    id: str
    sha256: str
    actor: str
    roles: list[str]
    created_ms: int
    expires_ms: int | None = None
    revoked: bool = False

    def shown(self) -> dict[str, object]:
        return {
            "id": self.id, "actor": self.actor, "roles": self.roles, "created": to_text(self.created_ms),
            "expires": None if self.expires_ms is None else to_text(self.expires_ms), "revoked": self.revoked,
        }  # fmt: skip


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tokens: list[Token]


Stamp = tuple[int, ...]


class TokenFile:
    """The token file, re-read when it changes; whole or not at all (a broken file leaves the last good one)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fault: str | None = None
        self._stamp: Stamp | None = None
        self._by_hash: dict[str, Token] = {}

    def reload(self) -> None:
        """Raises Settings when the file is there and cannot be read whole; the tokens known so far stay."""
        try:
            # Asked before it is read: what is written meanwhile is another change.
            self._stamp = self._ask()
            tokens = [] if self._stamp is None else read_tokens(self.path)
        except errors.Settings as error:
            self.fault = error.message
            raise
        self._by_hash = {token.sha256: token for token in tokens}
        self.fault = None

    def _ask(self) -> Stamp | None:
        """What tells one content from another; None when there is no file. Raises Settings for a file not to be
        believed."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise errors.Settings(f"The token file {self.path} cannot be read: {error.strerror}.") from None
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or found.st_uid not in (0, os.geteuid()):
            raise errors.Settings(
                f"The token file {self.path} may be written by others than root and uid {os.geteuid()}; "
                f"`chown {os.geteuid()} {self.path}` and `chmod go-w {self.path}`."
            )
        return (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)

    def check(self, presented: str, now_ms: int) -> Token:
        """The token's row. Raises Unauthenticated with one sentence that does not tell which part was wrong."""
        self._refresh()
        digest = hashlib.sha256(presented.encode("utf-8", "surrogatepass")).hexdigest()
        token = self._by_hash.get(digest)
        if token is None or not hmac.compare_digest(token.sha256, digest):
            raise errors.Unauthenticated("The token is not known here.")
        if token.revoked or (token.expires_ms is not None and token.expires_ms <= now_ms):
            raise errors.Unauthenticated("The token has expired or was revoked.")
        return token

    def _refresh(self) -> None:
        try:
            changed = self._ask() != self._stamp
        except errors.Settings as error:
            self.fault = error.message
            return
        if changed:
            try:
                self.reload()
            except errors.Settings:
                return  # the last good file stands; ``fault`` says so in status


def read_tokens(path: Path) -> list[Token]:
    """Every row, or none. Raises Settings."""
    try:
        with open(path, "rb") as file:
            tokens = msgspec.json.decode(file.read(TOKENS_BYTES_MAX), type=_File).tokens
    except FileNotFoundError:
        return []
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise errors.Settings(f"The token file {path} cannot be read: {error}.") from None
    for token in tokens:
        _check_row(path, token)
    if len({token.sha256 for token in tokens}) != len(tokens):
        raise errors.Settings(f"The token file {path} has a token twice.")
    return tokens


def _check_row(path: Path, token: Token) -> None:
    unknown = [role for role in token.roles if role not in ROLES]
    if unknown:
        raise errors.Settings(f"The token file {path}: {token.id} has the unknown role {unknown[0]!r}.")
    if not SHA256.fullmatch(token.sha256) or not _is_token_actor(token.actor):
        raise errors.Settings(f"The token file {path}: {token.id} is not a token's row.")


def _is_token_actor(actor: str) -> bool:
    """A name that the kernel could not have given: what is os: or group: comes from a socket's peer alone."""
    named = bool(actor.strip()) and len(actor) <= bounds.NAME_CHARS_MAX and actor.isprintable()
    return named and not actor.startswith(("os:", "group:"))


def new_token(path: Path, actor: str, roles: list[str], now_ms: int, expires_ms: int | None) -> tuple[str, Token]:
    """Make a token and its row; the token is in no file and is returned once. Raises Settings, InvalidRequest."""
    unknown = [role for role in roles if role not in ROLES]
    if unknown or not roles:
        raise errors.InvalidRequest(
            f"A token needs roles of {', '.join(ROLES)}; {unknown[0] if unknown else 'none'} is not one."
        )
    if not _is_token_actor(actor):
        raise errors.InvalidRequest(
            "A token's actor is a name of a person or machine, without the prefixes os: and group:."
        )
    presented = "ap_" + secrets.token_urlsafe(bounds.TOKEN_BYTES_MIN)
    token = Token(
        id=secrets.token_hex(4), sha256=hashlib.sha256(presented.encode()).hexdigest(), actor=actor, roles=roles,
        created_ms=now_ms, expires_ms=expires_ms,
    )  # fmt: skip
    with _alone(path):
        _write(path, [*read_tokens(path), token])
    return presented, token


def revoke_token(path: Path, token_id: str) -> bool:
    """False when it was revoked already. Raises NotFound."""
    with _alone(path):
        tokens = read_tokens(path)
        found = next((token for token in tokens if token.id == token_id), None)
        if found is None:
            raise errors.NotFound(f"There is no token {token_id!r} in {path}.")
        if found.revoked:
            return False
        _write(path, [msgspec.structs.replace(t, revoked=True) if t.id == token_id else t for t in tokens])
    return True


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One writer at a time: of two that read, change and write, the second would undo the first."""
    lock = path.with_name(path.name + ".lock")
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            _give(descriptor, path)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
    except OSError as error:
        raise errors.Settings(f"The token file {path} cannot be written: {error.strerror}.") from None


def _give(descriptor: int, path: Path) -> None:
    """To whom the file belongs, or will: what root makes here must not lock the plane out."""
    if os.geteuid() == 0:
        owner = path.stat() if path.exists() else path.parent.stat()
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


def _write(path: Path, tokens: list[Token]) -> None:
    """Beside, synced, renamed: a reader sees the old file or the new one."""
    descriptor, beside = tempfile.mkstemp(prefix=path.name, dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(msgspec.to_builtins(_File(tokens)), file, indent=1)
            file.write("\n")
            file.flush()
            _give(file.fileno(), path)
            if path.exists():
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode) & 0o644)
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
