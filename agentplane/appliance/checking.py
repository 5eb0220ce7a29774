"""The step before a restart: everything that `serve` would refuse, found at once, with the plane left alone.

Owns the list of what is looked at. Refuses nothing, and touches neither store nor sockets; of the operator's code it
asks its caller, who imports it in a process of its own. Invariant: a plane without a finding here is refused by `serve`
for nothing but what only a store or an address can say.
"""

from __future__ import annotations

import difflib
import grp
import os
import pwd
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from agentplane.appliance import code, credentials, notify, relations, settings, sockets
from agentplane.appliance.settings import Located
from agentplane.core import bounds, errors
from agentplane.surface import access

MEANT: Final = 0.8
"""How alike a variable must be to a key's own to have been meant as one: others have names with our prefix too."""
NO_KEYS: Final = ("plane", "sweep")
"""Variables of ours that are meant: the plane's directory, and how far the tests go."""
PASSED: Final = (relations.OPERATOR_SOCKET, relations.PROBE_SOCKET)


def findings(
    directory: Path, flags: Mapping[str, object], environ: Mapping[str, str], import_code: Callable[[], list[str]]
) -> list[str]:  # fmt: skip
    """A sentence for each thing that `serve` would refuse under the same flags and variables. ``import_code`` answers
    for the skills, and is not asked where others may write them."""
    located, found = settings.examine(directory, flags, environ)
    found += misspelt(environ)
    if located is None:
        return found
    writable = code.writable(located)
    sentences = (
        access.unfit_uid(os.geteuid()), writable, *_paths(located), *_listeners(located), *_notify(located)
    )  # fmt: skip
    found += [one for one in sentences if one]
    found += [*credentials.findings(located), *_access(located)]
    return found + (import_code() if writable is None else [])


def misspelt(environ: Mapping[str, str]) -> list[str]:
    """Variables that are no key's and are nearly one."""
    found = []
    for name in sorted(environ):
        key = name.removeprefix(settings.ENV).lower()
        if name.startswith(settings.ENV) and key not in settings.SCALARS and key not in NO_KEYS:
            near = difflib.get_close_matches(key[:70], settings.SCALARS, 1, MEANT)
            near = near or [one for one in settings.SCALARS if one.startswith(f"{key}_")]
            if near:
                found.append(
                    f"{name} is no key's variable; the nearest that there is: {settings.ENV}{near[0].upper()}."
                )
    return found


def _paths(located: Located) -> list[str | None]:
    store, socket = located.path("store"), located.path("socket")
    length = len(os.fsencode(socket))
    return [
        _store(store),
        f"The socket path {socket} is {length} bytes long; the kernel takes {bounds.SOCKET_PATH_MAX}."
        if length > bounds.SOCKET_PATH_MAX
        else _socket(socket),
        _group(located.plane.socket_group),
    ]


def _store(path: Path) -> str | None:
    """Why no store could be opened at ``path`` or made there, by its permissions alone."""
    uid, wanted = os.geteuid(), os.R_OK | os.W_OK
    try:
        if not path.parent.is_dir():
            return f"The directory of the store, {path.parent}, does not exist."
        there = path.exists()
    except OSError as error:
        return f"The directory of the store, {path.parent}, cannot be looked at: {error.strerror}."
    if not os.access(path.parent, wanted | os.X_OK, effective_ids=True):
        return f"The directory of the store, {path.parent}, cannot be written by uid {uid}: files beside it are made."
    if there and not os.access(path, wanted, effective_ids=True):
        return f"The store {path} cannot be written by uid {uid}."
    return None


def _socket(path: Path) -> str | None:
    """Why no socket could be bound at ``path``, with nothing made or asked."""
    directory = path.parent
    try:
        if not directory.parent.is_dir():
            return sockets.no_directory(directory)
        why = sockets.unsafe_directory(directory, directory.stat()) if directory.exists() else None
        if why is None and path.exists() and not path.is_socket():
            why = sockets.no_socket(path)
    except OSError as error:
        return f"{directory} cannot be looked at: {error.strerror}."
    nearest = directory if directory.exists() else directory.parent
    if why is None and not os.access(nearest, os.W_OK | os.X_OK, effective_ids=True):
        return f"{nearest} cannot be written by uid {os.geteuid()}, and a socket was to be bound in it."
    return why


def _access(located: Located) -> list[str]:
    """Names in ``[access]`` that nobody on this host has: roles that are granted to nobody, most often by a typo."""
    return [one for name in located.plane.access or {} if (one := _stranger(name)) is not None]


def _stranger(name: str) -> str | None:
    kind, _, rest = name.partition(":")
    if kind not in ("os", "group"):
        # The actor of a token, which may be made tomorrow.
        return None
    try:
        if kind == "group":
            grp.getgrnam(rest)
        elif not (rest[:1] == "#" and rest[1:].isascii() and rest[1:].isdigit() and len(rest) < 12):
            pwd.getpwnam(rest)
        elif (known := access.user_name(int(rest[1:]))) is not None:
            return f"[access] {name[:80]!a} is never matched: that user has a name, os:{known}."
    except (KeyError, ValueError):
        return f"[access] {name[:80]!a} names no {'user' if kind == 'os' else 'group'} of this host."
    return None


def _group(named: str | None) -> str | None:
    if named is None or (named.isascii() and named.isdigit()):
        return None
    try:
        grp.getgrnam(named)
    except KeyError:
        return f"socket_group {named[:80]!a} is no group of this host."
    return None


def _listeners(located: Located) -> list[str | None]:
    plane = located.plane
    found: list[str | None] = []
    for key in ("operator_addr", "probe_addr"):
        kind, _, name = (getattr(plane, key) or "").partition(":")
        if kind == "systemd" and name not in PASSED:
            found.append(f"{key} names the inherited socket {name[:80]!a}; those that there are: {', '.join(PASSED)}.")
    if plane.tls_cert is not None and plane.tls_key is not None:
        paths = (str(located.path_of(plane.tls_cert)), str(located.path_of(plane.tls_key)))
        found.append(_refusal(lambda: sockets.tls_context(*paths)))
    found.append(_refusal(lambda: access.read_tokens(located.path("tokens"))))
    return found


def _notify(located: Located) -> list[str | None]:
    said = located.plane.notify
    return [None if said is None else _refusal(lambda: notify.read_secret(located.path_of(said.secret_file)))]


def _refusal(ask: Callable[[], object]) -> str | None:
    try:
        ask()
    except errors.Settings as error:
        return error.message
    return None
