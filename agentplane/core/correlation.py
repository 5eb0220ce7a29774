"""Business keys: what a matter is known by, what a message is about, and when two messages are one.

Owns the form of correlation keys, which keys cover which, and the digest by which a repeated event is known. Refuses
keys that are empty, repeated, unbounded or of more than one line. Invariant: equal keys are one tuple, in one order,
whoever wrote them down; no two different origins of an event share a digest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Final

from agentplane.core import bounds
from agentplane.core.errors import InvalidInput
from agentplane.core.records import Key

EVENT_DOMAIN: Final = b"agentplane.event.v1\x00"
NAMESPACE: Final = re.compile(r"[a-z][a-z0-9_.-]*\Z", re.ASCII)


def keys_from(data: object) -> tuple[Key, ...]:
    """The keys of ``{namespace: value, ...}``, sorted. Raises InvalidInput naming the key.

    1 to CASE_KEYS_MAX of them; a namespace is lower case, at most NAMESPACE_CHARS_MAX characters; a value is one
    printable line of at most KEY_CHARS_MAX.
    """
    if not isinstance(data, Mapping):
        raise InvalidInput(f"A correlation is an object of namespaces and values, not {_kind(data)}.", path="/")
    if not 0 < len(data) <= bounds.CASE_KEYS_MAX:
        raise InvalidInput(f"A correlation has 1 to {bounds.CASE_KEYS_MAX} keys, not {len(data)}.", path="/")
    found = [Key(namespace=_namespace(name), value=_value(str(name), value)) for name, value in data.items()]
    return tuple(sorted(found, key=lambda key: (key.namespace, key.value)))


def keys_data(keys: Iterable[Key]) -> dict[str, str]:
    """The keys as the data that ``keys_from`` reads."""
    return {key.namespace: key.value for key in keys}


def covers(event_keys: Iterable[Key], wait_keys: Iterable[Key]) -> bool:
    """Whether an event about ``event_keys`` is about everything that a wait names; a wait names something."""
    wanted = set(wait_keys)
    return bool(wanted) and wanted <= set(event_keys)


def event_dedup(source: str, producer: str, producer_id: str) -> bytes:
    """The digest (32 bytes) by which an event is known again: the authenticated ``source``, the ``producer`` that the
    event names, and the id it has there. Each is led by its length, so that no text can pass for two."""
    digest = sha256(EVENT_DOMAIN)
    for part in (source, producer, producer_id):
        raw = part.encode()
        digest.update(len(raw).to_bytes(8, "big"))
        digest.update(raw)
    return digest.digest()


def _namespace(name: object) -> str:
    if not isinstance(name, str):
        raise InvalidInput(f"A correlation's namespace is a text, not {_kind(name)}.", path="/")
    if len(name) > bounds.NAMESPACE_CHARS_MAX or not NAMESPACE.match(name):
        raise InvalidInput(
            f"The namespace {name[:40]!a} of a correlation must be lower-case letters, digits, '_', '.' and '-', at "
            f"most {bounds.NAMESPACE_CHARS_MAX} of them, a letter first.",
            path=f"/{name[:40]}",
        )
    return name


def _value(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"The correlation key {name} is a text, not {_kind(value)}.", path=f"/{name}")
    if not 0 < len(value) <= bounds.KEY_CHARS_MAX or not value.isprintable() or value.isspace():
        raise InvalidInput(
            f"The correlation key {name} must be one line of 1 to {bounds.KEY_CHARS_MAX} printable characters.",
            path=f"/{name}",
        )
    return value


def _kind(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
