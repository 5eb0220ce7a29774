"""The one way between a record and its bytes.

Owns the dispatch on ``kind`` and ``v``, the seam where an older version is read as the present one, and the canonical
bytes. Refuses unknown members, unknown kinds and versions newer than this build. Invariant:
``decode_body(encode_body(r)) == r``, and the bytes hashed are the bytes stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

import msgspec

from agentplane.core import bounds, canonical
from agentplane.core.errors import PayloadTooLarge, UnreadableRecord
from agentplane.core.records import KINDS, RECORD_VERSION, Json, Record

Upcast = Callable[[dict[str, object]], dict[str, object]]


class _Head(msgspec.Struct):
    kind: str
    v: int


class Registry:
    """Maps ``kind`` to its type and ``(kind, v)`` to the function that reads version ``v`` as ``v + 1``."""

    def __init__(
        self,
        kinds: tuple[type[Record], ...],
        upcasts: Mapping[tuple[str, int], Upcast] | None = None,
        versions: Mapping[str, int] | None = None,
    ) -> None:
        self.kinds = {kind.__name__: kind for kind in kinds}
        self.upcasts = dict(upcasts or {})
        self.versions = {name: (versions or {}).get(name, RECORD_VERSION) for name in self.kinds}
        self._decoders = {name: msgspec.json.Decoder(kind) for name, kind in self.kinds.items()}
        self._head = msgspec.json.Decoder(_Head)

    def decode(self, raw: bytes) -> Record:
        """The record in ``raw``, upcast to the present version; raises UnreadableRecord naming kind and
        version."""
        try:
            head = self._head.decode(raw)
            decoder = self._decoders.get(head.kind)
            if decoder is None:
                raise UnreadableRecord(
                    f"This build does not know the record kind {head.kind[:60]!r}.", kind=head.kind[:60]
                )
            present = self.versions[head.kind]
            if head.v == present:
                return decoder.decode(raw)
            if head.v > present or head.v < 1:
                raise UnreadableRecord(
                    f"Record kind {head.kind} has version {head.v}; this build reads up to {present}.",
                    kind=head.kind, v=head.v,
                )  # fmt: skip
            return self._upcast(head, present, raw)
        except msgspec.MsgspecError as error:
            raise UnreadableRecord(f"A record does not have the shape of its kind: {error}.") from None
        except UnicodeDecodeError:
            raise UnreadableRecord("A record is not UTF-8.") from None
        except RecursionError:
            raise UnreadableRecord("A record is nested deeper than any that this build writes.") from None

    def _upcast(self, head: _Head, present: int, raw: bytes) -> Record:
        body = msgspec.json.decode(raw, type=dict[str, object])
        for version in range(head.v, present):
            step = self.upcasts.get((head.kind, version))
            if step is None:
                raise UnreadableRecord(
                    f"This build cannot read version {version} of the record kind {head.kind}.",
                    kind=head.kind, v=version,
                )  # fmt: skip
            try:
                body = step(body) | {"v": version + 1}
            except (KeyError, TypeError, ValueError, AttributeError):
                raise UnreadableRecord(
                    f"A record of kind {head.kind} does not have the shape of its version {version}.",
                    kind=head.kind, v=version,
                ) from None  # fmt: skip
        return msgspec.convert(body, self.kinds[head.kind])


REGISTRY: Final = Registry(KINDS)


def decode_body(raw: bytes) -> Record:
    """The typed record in ``raw`` (canonical JSON of one record body). Raises UnreadableRecord."""
    return REGISTRY.decode(raw)


def encode_body(record: Record) -> bytes:
    """The canonical bytes of ``record``, at most RECORD_BYTES_MAX. Raises PayloadTooLarge or
    CanonicalError."""
    raw = canonical.encode_struct(record, [(_at(record, path), len(path)) for path in _callers(type(record))])
    if raw is None:
        raw = canonical.encode(_to_data(record))
    if len(raw) > bounds.RECORD_BYTES_MAX:
        name, most = type(record).__name__, bounds.RECORD_BYTES_MAX
        raise PayloadTooLarge(f"A {name} record of {len(raw)} bytes is over the bound of {most}.")
    return raw


def _to_data(record: Record) -> object:
    """Plain data of ``record``, its opaque values untouched: msgspec would turn bytes, instants, sets and
    enums inside them into something else without a word, and ``canonical`` refuses them."""
    paths = _opaque(type(record))
    try:
        body = msgspec.to_builtins(record)
    except (TypeError, ValueError, RecursionError) as error:
        for path in paths:
            canonical.encode(_at(record, path, wrapped=True))
        raise canonical.CanonicalError("", f"is not plain data: {error}") from None
    for path in paths:
        holder = body
        for name in path[:-1]:
            holder = holder[name]
        if path[-1] in holder:
            holder[path[-1]] = _at(record, path)
    return body


def _at(record: Record, path: tuple[str, ...], *, wrapped: bool = False) -> object:
    """The value at ``path``; ``wrapped`` in objects of the same path, so that an error names all of it."""
    value: object = record
    for name in path:
        value = getattr(value, name)
    for name in reversed(path) if wrapped else ():
        value = {name: value}
    return value


@cache
def _callers(kind: type[Record]) -> tuple[tuple[str, ...], ...]:
    """Where records of ``kind`` hold what a caller named or gave: opaque data, and objects with keys of his."""
    maps = tuple((field.name,) for field in msgspec.structs.fields(kind) if "dict" in str(field.type))
    return _opaque(kind) + maps


@cache
def _opaque(kind: type[msgspec.Struct]) -> tuple[tuple[str, ...], ...]:
    """Where records of ``kind`` hold a caller's data, also inside their structured members."""
    found: list[tuple[str, ...]] = []
    for field in msgspec.structs.fields(kind):
        if field.type is Json:
            found.append((field.name,))
        elif isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            found += [(field.name, *path) for path in _opaque(field.type)]
    return tuple(found)
