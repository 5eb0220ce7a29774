"""Opaque cursors.

Owns the text that names the last row of a page. Refuses text it did not make, by its own error. Invariant: a cursor
holds the
ordering pair of a row and nothing else.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import msgspec

from agentplane.core import ids
from agentplane.core.errors import InvalidRequest

CURSOR_CHARS_MAX = 600


def cursor(*parts: int | str) -> str:
    """The ordering tuple of a page's last row, as text."""
    return base64.urlsafe_b64encode(msgspec.json.encode(list(parts))).decode().rstrip("=")


def after(text: str, *kinds: type) -> tuple[Any, ...]:
    """The tuple in a cursor, whose members have these types. Raises InvalidRequest."""
    try:
        if len(text) > CURSOR_CHARS_MAX:
            raise ValueError
        found = msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=list[int | str])
        if [type(part) for part in found] != list(kinds):
            raise ValueError
        if any(isinstance(part, int) and not -ids.MAX_MS <= part <= ids.MAX_MS for part in found):
            raise ValueError
        return tuple(found)
    except (ValueError, binascii.Error, msgspec.MsgspecError):
        raise InvalidRequest("`after` is not a cursor of this list; use the `next` of a page.") from None


def run_cursor(at_ms: int, run: str) -> str:
    return base64.urlsafe_b64encode(f"{at_ms}.{run}".encode()).decode().rstrip("=")


def after_run(cursor: str) -> tuple[int, str]:
    """The (time, run) of a cursor. Raises InvalidRequest."""
    try:
        if len(cursor) > CURSOR_CHARS_MAX:
            raise ValueError
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
        at_ms, _, run = text.partition(".")
        if not at_ms.isdigit() or int(at_ms) > ids.MAX_MS or not ids.is_id(run, "run"):
            raise ValueError
        return int(at_ms), run
    except (ValueError, binascii.Error):
        raise InvalidRequest("`after` is not a cursor of this list; use the `next` of a page.") from None
