"""A parser with a hole that chance does not find: the guided fuzzer is held to finding it."""

from __future__ import annotations


def parse(raw: bytes) -> object:
    """Raises KeyError for a four-byte word, compared one byte at a time."""
    if len(raw) > 3 and raw[0] == 0x61:
        if raw[1] == 0x70:
            if raw[2] == 0x6C:
                if raw[3] == 0x6E:
                    raise KeyError("a planted hole")
    return raw
