"""Canonical bytes: the one function between plain data and the bytes that are hashed, stored and compared.

Owns RFC 8785 with one difference, integers stay exact beyond 2^53. Refuses what has no single meaning in JSON
(NaN, infinities, lone surrogates, keys that are not text, duplicate keys, types that are not data), and what
has no bound (depth, digits, bytes). Invariant: equal data gives equal bytes on every build, and the fast path
through msgspec is taken only for data on which it is known to write exactly what the slow path writes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import NoReturn

import msgspec

from agentplane.core import bounds

MAX_DEPTH = bounds.JSON_DEPTH_MAX
"""Containers inside one another."""

MAX_DIGITS = 640
"""Characters of one number. CPython converts integers up to 640 digits however it is configured, and in
linear time."""

_PATH_SHOWN = 240
_INTEGER_BOUND = 10**MAX_DIGITS
_INT64_MIN = -(2**63)
_UINT64_MAX = 2**64 - 1

_LEAVES = frozenset((str, bool, type(None)))
_sorted_json = msgspec.json.Encoder(order="sorted").encode
_quote = json.JSONEncoder(ensure_ascii=False).encode
_surrogate_escape = re.compile(rb"\\u[dD][89a-fA-F]")


class CanonicalError(ValueError):
    """Data that has no canonical form, or bytes that are not one. `path` is a JSON pointer, empty at the
    root."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"the value at {path or 'the root'} {reason}")


class TooLarge(CanonicalError):
    """Canonical or received bytes over their bound. `size` and `bound` are bytes."""

    def __init__(self, size: int, bound: int) -> None:
        self.size = size
        self.bound = bound
        super().__init__("", f"takes {size} bytes where at most {bound} are allowed")


def encode(value: object) -> bytes:
    """The canonical bytes of plain data: None, bool, int, float, str, list, tuple and dict with str keys,
    exactly.

    Subclasses (enums, named tuples, structs) are not plain data: whoever owns them converts them first.
    Raises CanonicalError naming the place.
    """
    try:
        if _takes_fast_path((value,), 0):
            return _sorted_json(value)
    except (RecursionError, UnicodeEncodeError):
        pass  # the slow path finds the same fault and names its place
    return encode_slow(value)


def encode_struct(record: object, opaque: Iterable[tuple[object, int]]) -> bytes | None:
    """The canonical bytes of a msgspec struct, or None where only its plain data can be encoded.

    ``opaque`` are the caller's values inside it, each with its depth. Everything else in it has to be text, booleans,
    integers and structs of those under ASCII names, which msgspec writes as the slow path does.
    """
    for value, depth in opaque:
        if not _takes_fast_path((value,), depth):
            return None
    try:
        return _sorted_json(record)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None


def encode_into_bound(value: object, max_bytes: int) -> bytes:
    """As `encode`; raises TooLarge with the exact size when the result is over `max_bytes`."""
    raw = encode(value)
    if len(raw) > max_bytes:
        raise TooLarge(len(raw), max_bytes)
    return raw


def encode_slow(value: object) -> bytes:
    """The definition that `encode` is held to, without msgspec. For tests, and for what the fast path
    refuses."""
    parts: list[str] = []
    try:
        _write(value, parts, [])
    except RecursionError:
        raise CanonicalError("", "is nested deeper than the stack has room for") from None
    return "".join(parts).encode("utf-8")


def decode(raw: bytes | bytearray | memoryview, *, max_bytes: int, max_depth: int = MAX_DEPTH) -> object:
    """Plain data from JSON bytes that came from outside. Raises CanonicalError, and nothing else, on bad
    bytes.

    Refuses duplicate keys, NaN and infinities (also by overflow), lone surrogates, invalid UTF-8, a byte
    order mark, numbers over MAX_DIGITS characters. A number without fraction and exponent is an exact int,
    any other a double.
    """
    whole = _bounded(raw, max_bytes)
    reader = _Reader()
    try:
        value = reader.read(str(whole, "utf-8"))
        if (
            reader.flawed
            or whole.count(b"[") + whole.count(b"{") > max_depth
            or _surrogate_escape.search(whole) is not None
        ):
            _inspect(value, [], max_depth)
    except RecursionError:
        raise CanonicalError("", f"is nested deeper than {max_depth} levels") from None
    except UnicodeDecodeError as error:
        raise CanonicalError("", f"is not valid UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise CanonicalError("", f"is not JSON at character {error.pos}: {error.msg}") from None
    return value


def decode_canonical(raw: bytes | bytearray | memoryview, *, max_bytes: int, max_depth: int = MAX_DEPTH) -> object:
    """As `decode`, and refuses bytes that are not the canonical form of what they say."""
    whole = _bounded(raw, max_bytes)
    if max_depth >= MAX_DEPTH:
        # If the data read encodes back to these very bytes, every rule of `decode` holds for them: a
        # duplicate key, a misread number or a foreign spelling could not come back. msgspec gives up on long
        # numbers by itself; the test with ten megabytes of digits would notice if it ceased to.
        try:
            value: object = msgspec.json.decode(whole)
            if encode(value) == whole:
                return value
        except (ValueError, RecursionError, msgspec.MsgspecError):
            pass  # the strict reader below finds the same fault and names it
    value = decode(whole, max_bytes=max_bytes, max_depth=max_depth)
    again = encode(value)
    if again != whole:
        pairs = enumerate(zip(again, whole, strict=False))
        at = next((i for i, (ours, theirs) in pairs if ours != theirs), min(len(again), len(whole)))
        raise CanonicalError("", f"is not in canonical form from byte {at} on")
    return value


def _takes_fast_path(items: Iterable[object], depth: int) -> bool:
    """Whether msgspec is known to write these as the slow path does: ASCII keys, no float, integers within 64
    bit.

    Strings need no look: msgspec escapes as RFC 8785 does (a test compares every code point) and refuses
    surrogates.
    """
    for item in items:
        kind = type(item)
        if kind in _LEAVES:
            continue
        if kind is int:
            if not _INT64_MIN <= item <= _UINT64_MAX:  # type: ignore[operator]
                return False
        elif kind is dict:
            for key in item:  # type: ignore[attr-defined]
                # A subclass may hash as it likes and so hide a second key of the same text.
                if type(key) is not str or not key.isascii():
                    return False
            if depth >= MAX_DEPTH or not _takes_fast_path(item.values(), depth + 1):  # type: ignore[attr-defined]
                return False
        elif kind is list or kind is tuple:
            if depth >= MAX_DEPTH or not _takes_fast_path(item, depth + 1):  # type: ignore[arg-type]
                return False
        else:
            return False
    return True


def _write(value: object, out: list[str], path: list[str | int]) -> None:
    kind = type(value)
    if value is None:
        out.append("null")
    elif kind is bool:
        out.append("true" if value else "false")
    elif kind is str:
        out.append(_text(value, path))  # type: ignore[arg-type]
    elif kind is int:
        if not -_INTEGER_BOUND < value < _INTEGER_BOUND:
            _refuse(path, f"is an integer of more than {MAX_DIGITS} digits")
        out.append(str(value))
    elif kind is float:
        out.append(_double(value, path))  # type: ignore[arg-type]
    elif kind is dict:
        _write_object(value, out, path)  # type: ignore[arg-type]
    elif kind is list or kind is tuple:
        _write_array(value, out, path)  # type: ignore[arg-type]
    else:
        _refuse(path, f"is of type {kind.__name__}, which is not plain data")


def _write_array(items: list[object] | tuple[object, ...], out: list[str], path: list[str | int]) -> None:
    if len(path) >= MAX_DEPTH:
        _refuse(path, f"is nested deeper than {MAX_DEPTH} levels")
    out.append("[")
    for index, item in enumerate(items):
        if index:
            out.append(",")
        path.append(index)
        _write(item, out, path)
        path.pop()
    out.append("]")


def _write_object(members: dict[object, object], out: list[str], path: list[str | int]) -> None:
    if len(path) >= MAX_DEPTH:
        _refuse(path, f"is nested deeper than {MAX_DEPTH} levels")
    keys: list[tuple[bytes, str]] = []
    for key in members:
        if type(key) is not str:
            _refuse(path, f"has a key of type {type(key).__name__} where only text can be a key")
        try:
            keys.append((key.encode("utf-16-be"), key))
        except UnicodeEncodeError:
            _refuse([*path, key], "has a lone surrogate in its key")
    out.append("{")
    for position, (_, key) in enumerate(sorted(keys)):
        if position:
            out.append(",")
        out.append(_quote(key))
        out.append(":")
        path.append(key)
        _write(members[key], out, path)
        path.pop()
    out.append("}")


def _text(value: str, path: list[str | int]) -> str:
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            _refuse(path, f"has a lone surrogate at character {error.start}")
    return _quote(value)


def _double(value: float, path: list[str | int]) -> str:
    """ECMAScript's Number::toString: `repr` gives the same shortest digits, only the layout differs."""
    if not math.isfinite(value):
        _refuse(path, f"is {value!r}, which JSON cannot say")
    if value == 0.0:
        return "0"
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    padded = whole + fraction
    digits = padded.lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(padded) - len(digits))
    digits = digits.rstrip("0")
    sign = "-" if value < 0.0 else ""
    if 0 < point <= 21:
        if len(digits) <= point:
            return sign + digits.ljust(point, "0")
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    rest = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{rest}e{point - 1:+d}"


class _Flaw:
    """Stands in the tree where a hook of the reader found a fault, so that a walk can say where it was."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


class _Reader:
    """The standard library's scanner with every leniency hooked. One reader a document."""

    def __init__(self) -> None:
        self.flawed = False
        self._decoder = json.JSONDecoder(
            object_pairs_hook=self._members,
            parse_int=self._integer,
            parse_float=self._float,
            parse_constant=self._constant,
        )

    def read(self, text: str) -> object:
        if text.startswith("\ufeff"):
            raise CanonicalError("", "begins with a byte order mark")
        value: object = self._decoder.decode(text)
        return value

    def _flaw(self, reason: str) -> _Flaw:
        self.flawed = True
        return _Flaw(reason)

    def _members(self, pairs: list[tuple[str, object]]) -> object:
        members = dict(pairs)
        if len(members) == len(pairs):
            return members
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                return self._flaw(f"has the key {_shorten(key)!a} twice")
            seen.add(key)
        return members

    def _integer(self, digits: str) -> object:
        if len(digits) > MAX_DIGITS:
            return self._flaw(f"is a number of more than {MAX_DIGITS} characters")
        return int(digits)

    def _float(self, digits: str) -> object:
        if len(digits) > MAX_DIGITS:
            return self._flaw(f"is a number of more than {MAX_DIGITS} characters")
        number = float(digits)
        return number if math.isfinite(number) else self._flaw("is a number beyond the range of a double")

    def _constant(self, name: str) -> object:
        return self._flaw(f"is {name}, which JSON cannot say")


def _inspect(value: object, path: list[str | int], max_depth: int) -> None:
    """Find what the scanner let through: flaws its hooks left, lone surrogates, depth."""
    if isinstance(value, _Flaw):
        _refuse(path, value.reason)
    if isinstance(value, str):
        _text(value, path)
    elif isinstance(value, (dict, list)):
        if len(path) >= max_depth:
            _refuse(path, f"is nested deeper than {max_depth} levels")
        children: Iterable[tuple[str | int, object]]
        children = value.items() if isinstance(value, dict) else enumerate(value)
        for key, child in children:
            path.append(key)
            if isinstance(key, str) and not _is_unicode(key):
                _refuse(path, "has a lone surrogate in its key")
            _inspect(child, path, max_depth)
            path.pop()


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _bounded(raw: bytes | bytearray | memoryview, max_bytes: int) -> bytes:
    size = raw.nbytes if isinstance(raw, memoryview) else len(raw)
    if size > max_bytes:
        raise TooLarge(size, max_bytes)
    return bytes(raw)


def _shorten(text: str) -> str:
    """Cut a text to what one line may carry: it may be hostile and a megabyte long."""
    return text if len(text) <= _PATH_SHOWN else text[: _PATH_SHOWN - 1] + "…"


def _refuse(path: list[str | int], reason: str) -> NoReturn:
    """Raise with the path as a JSON pointer that is short and can be printed anywhere."""
    pointer = ""
    for token in path:
        pointer += "/" + str(token).replace("~", "~0").replace("/", "~1")
        if len(pointer) > _PATH_SHOWN:
            break
    printable = pointer.encode("utf-8", "backslashreplace").decode("utf-8")
    raise CanonicalError(_shorten(printable), reason)
