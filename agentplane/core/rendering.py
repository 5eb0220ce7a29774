"""Text as a person is shown it: what cannot be seen is written out, and what only looks like one script is named.

Owns which characters are shown as an escape, and which words mix scripts. Refuses to change the value: the text is
beside it. Invariant: every character of the text is a visible one, a space, or layout of ours; two different values
never give one text.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import msgspec

from agentplane.core import bounds
from agentplane.core.errors import InvalidInput

MIXED_MAX: Final = 100
"""Words that one rendering lists; the last entry says how many more there are."""
HIDDEN_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"})
BLANK: Final = frozenset(map(chr, (
    0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180B, 0x180C, 0x180D, 0x180F, 0x2800, 0x3164, 0xFFA0, 0x16FE4, 0x1D159,
)))  # fmt: skip
"""Fillers and blanks whose category says letter, mark or symbol."""
TRANSPARENT: Final = frozenset({"Cf", "Cs", "Co", "Cn", "Mn", "Me", "Mc"})
"""Categories that part no word: a hidden character inside one must not hide a mixture."""
TOGETHER: Final = frozenset({"LATIN", "CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "HANGUL", "BOPOMOFO"})
"""Scripts that are written in one word and that nobody takes for one another."""
ANY_SCRIPT: Final = frozenset({"MICRO", "FEMININE", "MASCULINE"})
"""Letters of no script: the signs of units and ordinals."""


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """``escaped``: whether anything was written out; ``mixed``: the words that mix scripts, each with its place where
    the value has places."""

    text: str
    escaped: bool
    mixed: list[str]


def render(text: str) -> Rendered:
    """``text`` with each invisible or direction-changing character as ``\\u{202E}``; newlines and tabs stay."""
    # A text that spells an escape out must not look like one.
    shown = "".join(_shown(char) for char in re.sub(r"\\(?=u\{)", "\\\\u{5C}", text))
    return Rendered(text=shown, escaped=shown != text, mixed=_listed([("", text)]))


def render_value(value: object) -> Rendered:
    """A JSON value as indented text, its texts escaped as ``render`` does. Raises InvalidInput for what is no JSON."""
    texts = list(_texts(value))
    try:
        # One value has one text, and no text of the value can pass for its layout: a newline in it is written out.
        laid_out = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"What is to be shown is no JSON value: {error}.") from None
    escaped = any(_is_hidden(char) for _, text in texts for char in text)
    return Rendered(text="".join(map(_shown, laid_out)), escaped=escaped, mixed=_listed(texts))


def _texts(value: object) -> Iterator[tuple[str, str]]:
    """Every text of ``value``, keys too, with its place."""
    left: list[tuple[str, object, int]] = [("/", value, 0)]
    while left:
        place, one, depth = left.pop()
        if isinstance(one, str):
            yield place, one
            continue
        if not isinstance(one, dict | list | tuple):
            continue
        if depth >= bounds.JSON_DEPTH_MAX:
            raise InvalidInput(f"What is to be shown is nested deeper than {bounds.JSON_DEPTH_MAX} levels.")
        inner = one.items() if isinstance(one, dict) else enumerate(one)
        below = [(f"{place.rstrip('/')}/{name}", each) for name, each in inner]
        if isinstance(one, dict):
            yield from ((place, name) for name in one if isinstance(name, str))
        left += [(where, each, depth + 1) for where, each in reversed(below)]


@lru_cache(maxsize=4096)
def _is_hidden(char: str) -> bool:
    """Whether a reader would not see ``char`` as what it is."""
    if char in " \n\t":
        return False
    if char in BLANK or 0xFE00 <= ord(char) <= 0xFE0F or 0xE0000 <= ord(char) <= 0xE0FFF:
        return True
    return unicodedata.category(char) in HIDDEN_CATEGORIES


def _shown(char: str) -> str:
    return f"\\u{{{ord(char):04X}}}" if _is_hidden(char) else char


# --- scripts ----------------------------------------------------------------------------------------------------------


def _listed(texts: list[tuple[str, str]]) -> list[str]:
    found: list[str] = []
    more = 0
    for place, text in texts:
        for word in _words(text):
            if not _mixes(word):
                continue
            shown = "".join(map(_shown, word[: bounds.NAME_CHARS_MAX]))
            where = "".join(map(_shown, place[: bounds.NAME_CHARS_MAX]))
            told = f"{shown} at {where}" if place else shown
            if told in found:
                continue
            if len(found) < MIXED_MAX:
                found.append(told)
            else:
                more += 1
    return [*found, f"and {more} more"] if more else found


def _words(text: str) -> Iterator[str]:
    """Runs of letters, digits and marks; hidden characters part nothing."""
    if text.isascii():
        return
    start = None
    for at, char in enumerate(text):
        category = unicodedata.category(char)
        if category[0] == "L" or category == "Nd" or (start is not None and category in TRANSPARENT):
            start = at if start is None else start
        elif start is not None:
            yield text[start:at]
            start = None
    if start is not None:
        yield text[start:]


def _mixes(word: str) -> bool:
    if word.isascii():
        return False
    letters = {script for char in word if (script := _script(char)) is not None}
    digits = {ord(char) - unicodedata.decimal(char, 0) for char in word if unicodedata.category(char) == "Nd"}
    return (len(letters) > 1 and not letters <= TOGETHER) or len(digits) > 1


@lru_cache(maxsize=4096)
def _script(char: str) -> str | None:
    """The script of a letter: the first word of its name. None for what is no letter, or a letter of any script."""
    if unicodedata.category(char) not in ("Lu", "Ll", "Lt", "Lo") or char in BLANK:
        return None
    name = unicodedata.name(char, "").partition(" ")[0]
    return None if not name or name in ANY_SCRIPT else name
