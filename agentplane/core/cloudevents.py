"""One message from outside, in each of the shapes that it may have: CloudEvents 1.0, structured or binary, and our own.

Owns what an envelope must say and what it may not. Refuses to guess: what is not understood is an error, and nothing of
it is stored. Invariant: an event that was parsed has an id, a kind that is not the plane's, one key at least, and a
payload that fits a record.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Final, NoReturn

import msgspec

from agentplane.core import bounds, canonical
from agentplane.core.correlation import keys_from
from agentplane.core.errors import InvalidEvent, InvalidInput, PayloadTooLarge, ReservedKind
from agentplane.core.records import Key

RESERVED: Final = "agentplane."
BODY_BYTES_MAX: Final = bounds.EVENT_BYTES_MAX + 64 * bounds.KIB
"""A payload, with room for its envelope and for JSON's whitespace and escapes."""
DEPTH_MAX: Final = bounds.JSON_DEPTH_MAX - 16
"""Nesting of a body: the record around a payload nests too."""
STRUCTURED: Final = "application/cloudevents+json"
REQUIRED: Final = ("specversion", "id", "source", "type")
OPTIONAL: Final = ("datacontenttype", "dataschema", "subject", "time")
EXTENSION: Final = re.compile(r"[a-z0-9]+\Z", re.ASCII)
JSON_TYPE: Final = re.compile(r"(application|text)/([a-z0-9.!#$&^_-]+\+)?json\Z", re.ASCII)
TIME: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt]([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)\Z",
    re.ASCII,
)
ESCAPE: Final = re.compile(r"%([0-9A-Fa-f]{2})?")

Attributes = Mapping[str, object]


class Incoming(msgspec.Struct, frozen=True, kw_only=True):
    """One event as it came. ``producer``: the source that the message names, which is never who delivered it."""

    producer: str
    id: str
    kind: str
    keys: tuple[Key, ...]
    payload: object = None


def parse(content_type: str, headers: Sequence[tuple[str, str]], body: bytes) -> Incoming:
    """The event in a request. Raises InvalidEvent, ReservedKind and PayloadTooLarge, and nothing else."""
    if len(body) > BODY_BYTES_MAX:
        raise PayloadTooLarge(f"An event has at most {BODY_BYTES_MAX} bytes, not {len(body)}.")
    media = _media(content_type)
    if media.startswith("application/cloudevents"):
        if media != STRUCTURED:
            _refuse(f"Events are taken one at a time, as {STRUCTURED}; not as {media[:80]}")
        return _structured(_object(body))
    named = [(name.lower().removeprefix("ce-"), value) for name, value in headers if name.lower().startswith("ce-")]
    if named:
        return _binary(media, named, body)
    return _native(_object(body))


# --- the three shapes -------------------------------------------------------------------------------------------------


def _structured(told: Attributes) -> Incoming:
    if "data_base64" in told:
        _refuse("data_base64 is not read here; send the data as JSON")
    attributes = {name: value for name, value in told.items() if name != "data" and value is not None}
    for name, value in attributes.items():
        if name not in REQUIRED + OPTIONAL:
            _check_extension(name)
            if not isinstance(value, str | bool | int):
                _refuse(f"The extension {name[:40]} is a text, a whole number or a truth value")
    return _event(attributes, told.get("data"))


def _binary(media: str, named: Sequence[tuple[str, str]], body: bytes) -> Incoming:
    attributes: dict[str, object] = {}
    for name, raw in named:
        if name in attributes:
            _refuse(f"The header ce-{name[:40]!a} is repeated")
        if name not in (*REQUIRED, *OPTIONAL[1:]):
            _check_extension(name)
        attributes[name] = _header(name, raw)
    if not body:
        return _event(attributes, None)
    if not JSON_TYPE.match(media):
        _refuse(f"The data of a binary event is JSON, as application/json; not {media[:80] or 'of no type'!a}")
    return _event(attributes, _json(body))


def _native(told: Attributes) -> Incoming:
    strange = sorted(told.keys() - {"id", "kind", "correlation", "payload", "source"})
    if strange:
        _refuse(f"An event has id, kind, correlation, payload and source, and no {strange[0][:40]!a}")
    missing = [name for name in ("id", "kind", "correlation") if told.get(name) is None]
    if missing:
        _refuse(f"An event needs its {missing[0]}")
    producer = "" if told.get("source") is None else _text("source", told["source"], bounds.EVENT_ID_CHARS_MAX)
    try:
        keys = keys_from(told["correlation"])
    except InvalidInput as error:
        _refuse(error.message.rstrip("."))
    producer_id = _text("id", told["id"], bounds.EVENT_ID_CHARS_MAX)
    return _made(producer, producer_id, _text("kind", told["kind"], bounds.NAME_CHARS_MAX), keys, told.get("payload"))


def _event(attributes: Attributes, data: object) -> Incoming:
    """From the attributes of a CloudEvent, extensions among them."""
    for name in REQUIRED:
        if name not in attributes:
            _refuse(f"A CloudEvent needs its {name}")
    if attributes["specversion"] != "1.0":
        _refuse(f"The specversion is 1.0 here, not {str(attributes['specversion'])[:20]!a}")
    found = {name: _text(name, attributes[name], bounds.EVENT_ID_CHARS_MAX) for name in ("id", "source")}
    kind = _text("type", attributes["type"], bounds.NAME_CHARS_MAX)
    for name in ("datacontenttype", "dataschema"):
        if name in attributes:
            _text(name, attributes[name], bounds.EVENT_ID_CHARS_MAX)
    if "time" in attributes:
        _check_time(_text("time", attributes["time"], bounds.NAMESPACE_CHARS_MAX))
    if "subject" not in attributes:
        _refuse("The event has no subject, the one attribute that correlates, so nothing could ever wait for it")
    subject = _text("subject", attributes["subject"], bounds.KEY_CHARS_MAX)
    return _made(found["source"], found["id"], kind, keys_from({"subject": subject}), data)


def _made(producer: str, producer_id: str, kind: str, keys: tuple[Key, ...], payload: object) -> Incoming:
    if kind.startswith(RESERVED):
        raise ReservedKind(f"Kinds under {RESERVED} are the plane's own; no event of such a kind is taken in.")
    size = len(canonical.encode(payload))
    if size > bounds.EVENT_BYTES_MAX:
        raise PayloadTooLarge(f"An event's payload has at most {bounds.EVENT_BYTES_MAX} bytes, not {size}.")
    return Incoming(producer=producer, id=producer_id, kind=kind, keys=keys, payload=payload)


# --- their parts ------------------------------------------------------------------------------------------------------


def _media(content_type: str) -> str:
    """The media type without its parameters. Raises InvalidEvent for a charset that JSON does not have."""
    media, *parameters = content_type.split(";")
    for one in parameters:
        name, _, value = one.partition("=")
        if name.strip().lower() == "charset" and value.strip().strip('"').lower() not in ("utf-8", "us-ascii"):
            _refuse(f"JSON is UTF-8; the charset {value.strip()[:40]!a} is not read")
    return media.strip().lower()


def _object(body: bytes) -> Attributes:
    found = _json(body)
    if not isinstance(found, dict):
        _refuse("An event is a JSON object")
    return found


def _json(body: bytes) -> object:
    try:
        return canonical.decode(body, max_bytes=BODY_BYTES_MAX, max_depth=DEPTH_MAX)
    except canonical.CanonicalError as error:
        _refuse(f"The event's body is not read: {error}")


def _header(name: str, raw: str) -> str:
    """The value of an attribute in a header: quoted or not, and percent-encoded UTF-8."""
    if not raw.isascii():
        _refuse(f"The header ce-{name} holds what is not ASCII; percent-encode it")
    text = raw.strip(" \t")
    if len(text) > 1 and text[0] == text[-1] == '"':
        text = re.sub(r"\\(.)", r"\1", text[1:-1])
    if any(found[1] is None for found in ESCAPE.finditer(text)):
        _refuse(f"The header ce-{name} has a '%' that begins no encoded byte")
    # Every escape has its two digits, so what is replaced is a byte of UTF-8.
    plain = ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)
    try:
        return plain.encode("latin-1").decode("utf-8")
    except UnicodeDecodeError:
        _refuse(f"The header ce-{name} is not UTF-8 behind its percent signs")


def _check_extension(name: str) -> None:
    if name in (*REQUIRED, *OPTIONAL, "data"):
        _refuse(f"An extension may not take the name of the attribute {name}")
    if len(name) > bounds.NAMESPACE_CHARS_MAX or not EXTENSION.match(name):
        _refuse(f"The extension {name[:40]!a} must be lower-case letters and digits")


def _text(name: str, value: object, chars_max: int) -> str:
    if not isinstance(value, str):
        _refuse(f"The {name} of an event is a text")
    if not 0 < len(value) <= chars_max or not value.isprintable() or value.isspace():
        _refuse(f"The {name} of an event is one line of 1 to {chars_max} printable characters")
    return value


def _check_time(text: str) -> None:
    found = TIME.match(text)
    try:
        if found is not None:
            date(int(found[1]), int(found[2]), int(found[3]))
            return
    except ValueError:
        pass
    _refuse("The time of an event is an RFC 3339 instant, such as 2026-12-01T09:00:00Z")


def _refuse(sentence: str) -> NoReturn:
    raise InvalidEvent(f"{sentence}.")
