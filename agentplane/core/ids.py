"""Ids: a lower-case prefix, an underscore and a ULID, made from milliseconds and entropy that the caller
brings.

Refuses every second spelling of an id (lower case, Crockford's look-alikes, a time over 48 bit), so that two
different texts are never the same id. Invariant: ids of one prefix sort as text in the order of their
milliseconds.
"""

from __future__ import annotations

import re

ENTROPY_BYTES = 10
MAX_MS = 2**48 - 1
"""The last millisecond a ULID can carry, in the year 10889."""

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_VALUE = {letter: index for index, letter in enumerate(_ALPHABET)}
_PAIRS = tuple(high + low for high in _ALPHABET for low in _ALPHABET)
_prefix = re.compile(r"[a-z]{1,16}", re.ASCII)
_shape = re.compile(rf"([a-z]{{1,16}})_([0-7][{_ALPHABET}]{{25}})", re.ASCII)


class InvalidId(ValueError):
    """A text that is not an id of the wanted kind, or parts that make none."""


def new_id(prefix: str, ms: int, entropy: bytes) -> str:
    """An id from its parts. `ms`: milliseconds since 1970; `entropy`: exactly ten bytes from the caller's
    source."""
    if _prefix.fullmatch(prefix) is None:
        raise InvalidId(f"an id's prefix is 1 to 16 lower-case letters, not {prefix[:40]!a}")
    if type(ms) is not int or not 0 <= ms <= MAX_MS:
        raise InvalidId(f"an id's time is between 0 and {MAX_MS} ms, not {ms!r}")
    if len(entropy) != ENTROPY_BYTES:
        raise InvalidId(f"an id takes {ENTROPY_BYTES} bytes of entropy, not {len(entropy)}")
    number = ms << 80 | int.from_bytes(entropy, "big")
    pairs = [_PAIRS[number >> shift & 1023] for shift in range(120, -1, -10)]
    return f"{prefix}_{''.join(pairs)}"


def parse_id(text: str, prefix: str) -> str:
    """The same text, once it is known to be an id of that prefix. Raises InvalidId with one sentence."""
    if not is_id(text, prefix):
        raise InvalidId(f"{text[:60]!a} is not an id of the form {prefix}_ and 26 upper-case Crockford characters")
    return text


def is_id(text: str, prefix: str) -> bool:
    """Whether `text` is an id of that prefix, in its only spelling."""
    found = _shape.fullmatch(text)
    return found is not None and found[1] == prefix


def id_ms(text: str) -> int:
    """The milliseconds since 1970 that an id of any prefix carries: when it was made, by its maker's
    clock."""
    found = _shape.fullmatch(text)
    if found is None:
        raise InvalidId(f"{text[:60]!a} is not an id")
    ms = 0
    for letter in found[2][:10]:
        ms = ms << 5 | _VALUE[letter]
    return ms
