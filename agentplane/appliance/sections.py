"""The sections of plane.toml that outlive a run: schedules, telling, and who is one person.

Owns their keys and what each may say. Refuses, when the file is read, what would fail at two in the morning: an
expression, a zone, a policy, a key of a case, an address in clear. Invariant: whatever is refused is one sentence that
names the section and the key.
"""

from __future__ import annotations

import ipaddress
import re
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from agentplane.core import bounds, canonical, errors

SCHEDULE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z", re.ASCII)
"""A schedule's name is part of an admission key and of an actor: short, and the same text everywhere."""
URL_CHARS_MAX: Final = 2_048
NAMES_MAX: Final = 32
"""Names of one person."""


class ScheduleSettings(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """One ``[[schedule]]``: when (``cron`` in ``tz``), what, and what becomes of instants that nobody looked at."""

    name: str
    cron: str
    capability: str
    tz: str = "UTC"
    input: Any = None
    correlate: dict[str, str] | None = None
    missed: str = "skip"


class NotifySettings(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """``[notify]``: one webhook, and the file that holds its signing secret."""

    url: str
    secret_file: str


def check_schedules(schedules: Sequence[ScheduleSettings]) -> None:
    """Raises Settings naming the schedule and its key."""
    if len(schedules) > bounds.SCHEDULES_MAX:
        raise errors.Settings(f"[[schedule]] occurs {len(schedules)} times; {bounds.SCHEDULES_MAX} are the most.")
    seen: set[str] = set()
    for one in schedules:
        if not SCHEDULE_NAME.match(one.name):
            raise errors.Settings(
                f"[[schedule]] name is 1 to 64 letters, digits, '_', '.' and '-', not {one.name[:70]!a}."
            )
        if one.name in seen:
            raise errors.Settings(f"[[schedule]] {one.name} is there twice; each has a name of its own.")
        seen.add(one.name)
        _check_schedule(one)


def _check_schedule(one: ScheduleSettings) -> None:
    # Loaded where there is a schedule: most verbs read plane.toml, and few planes have one.
    from agentplane.core.correlation import keys_from
    from agentplane.work.cron import POLICIES, Cron

    def wrong(key: str, why: str) -> errors.Settings:
        return errors.Settings(f"[[schedule]] {one.name}: {key}: {why.rstrip('.')}.")

    for key, expression in (("tz", "* * * * *"), ("cron", one.cron)):
        try:
            Cron(expression, one.tz)
        except errors.InvalidRequest as error:
            raise wrong(key, error.message) from None
    if one.missed not in POLICIES:
        raise wrong("missed", f"it is {', '.join(POLICIES)}, not {one.missed[:40]!a}")
    if not one.capability.strip() or len(one.capability) > bounds.NAME_CHARS_MAX or not one.capability.isprintable():
        raise wrong("capability", f"it is a name of 1 to {bounds.NAME_CHARS_MAX} printable characters")
    if one.correlate is not None:
        try:
            keys_from(one.correlate)
        except errors.InvalidInput as error:
            raise wrong("correlate", error.message) from None
    try:
        canonical.encode(one.input)
    except canonical.CanonicalError as error:
        raise wrong("input", f"it is no JSON value ({error}); write an instant as a text") from None


def check_notify(notify: NotifySettings) -> None:
    """Raises Settings. A message names what waits at a plane, and is signed: it goes over TLS, or stays here."""
    url = notify.url
    try:
        if len(url) > URL_CHARS_MAX or not url.isprintable() or any(char.isspace() for char in url):
            raise ValueError
        found = urllib.parse.urlsplit(url)
        _ = found.port
        if found.scheme not in ("http", "https") or not found.hostname or found.fragment:
            raise ValueError
    except ValueError:
        raise errors.Settings("[notify] url is https://HOST[:PORT]/PATH.") from None
    if found.username is not None or found.password is not None:
        raise errors.Settings("[notify] url holds a credential; messages are signed, so take it out of the url.")
    if found.scheme == "http" and not _is_loopback(found.hostname):
        raise errors.Settings(f"[notify] url is https, or http to this very host; {found.hostname[:80]} is neither.")
    if not notify.secret_file.strip() or "\0" in notify.secret_file:
        raise errors.Settings("[notify] secret_file names the file of the signing secret, such as secrets/notify.")


def shown_url(url: str) -> str:
    """A webhook as it may be shown: many a receiver takes the path, or the query, for the credential."""
    found = urllib.parse.urlsplit(url)
    return f"{found.scheme}://{found.netloc}/" + ("..." if found.path.strip("/") or found.query else "")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_people(people: Mapping[str, Sequence[str]]) -> None:
    """Raises Settings: a name that two persons have would let one of them be the other's second pair of eyes, or
    neither."""
    whose: dict[str, str] = {}
    for person, names in people.items():
        if len(names) > NAMES_MAX:
            raise errors.Settings(f"[people] {person[:80]} has {len(names)} names; {NAMES_MAX} are the most.")
        for name in (person, *names):
            if not name.strip() or len(name) > bounds.NAME_CHARS_MAX or not name.isprintable():
                raise errors.Settings(
                    f"[people] {person[:80]!a}: a name is 1 to {bounds.NAME_CHARS_MAX} printable characters."
                )
        for name in names:
            if name.startswith("group:"):
                raise errors.Settings(f"[people] {person}: {name} is a group, and no name of one person.")
            if whose.setdefault(name, person) != person:
                raise errors.Settings(f"[people] {name} is a name of {whose[name]} and of {person}; it is of one.")
