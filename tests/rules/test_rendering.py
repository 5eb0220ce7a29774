"""What a person is shown holds nothing that cannot be seen, and names what only looks like one script."""

from __future__ import annotations

import json
import re
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentplane.core import bounds
from agentplane.core.errors import InvalidInput
from agentplane.core.rendering import MIXED_MAX, render, render_value

repeatable = settings(derandomize=True, database=None, deadline=None)

HIDDEN = {
    "null": "\x00", "bell": "\x07", "carriage return": "\r", "escape": "\x1b", "delete": "\x7f", "next line": "\x85",
    "csi": "\x9b", "soft hyphen": "\u00ad", "no-break space": "\u00a0", "arabic letter mark": "\u061c",
    "zero width space": "\u200b", "zero width joiner": "\u200d", "left to right mark": "\u200e",
    "right to left override": "\u202e", "pop directional": "\u202c", "isolate": "\u2066", "pop isolate": "\u2069",
    "word joiner": "\u2060", "invisible times": "\u2062", "line separator": "\u2028", "paragraph separator": "\u2029",
    "ideographic space": "\u3000", "thin space": "\u2009", "byte order mark": "\ufeff", "variation 1": "\ufe00",
    "variation 16": "\ufe0f", "variation 17": "\U000e0100", "variation 256": "\U000e01ef", "tag a": "\U000e0061",
    "tag cancel": "\U000e007f", "unassigned ignorable": "\U000e0fff", "mongolian selector": "\u180b",
    "mongolian separator": "\u180e", "combining grapheme joiner": "\u034f", "hangul filler": "\u3164",
    "halfwidth filler": "\uffa0", "choseong filler": "\u115f", "jungseong filler": "\u1160", "khmer vowel": "\u17b4",
    "braille blank": "\u2800", "interlinear anchor": "\ufff9", "shorthand control": "\U0001bca0",
    "musical begin": "\U0001d173", "null notehead": "\U0001d159", "khitan filler": "\U00016fe4",
    "private use": "\ue000", "surrogate": "\ud800", "noncharacter": "\ufffe", "unassigned": "\u0378",
}  # fmt: skip


@pytest.mark.parametrize("name", HIDDEN)
def test_a_character_that_cannot_be_seen_is_written_out(name: str) -> None:
    """As its number, in the place where it stands; in a value too, keys and all. (S122)"""
    char = HIDDEN[name]
    shown = render(f"pay{char}7")
    assert shown.text == f"pay\\u{{{ord(char):04X}}}7" and shown.escaped
    for value in ({"iban": f"x{char}"}, {f"x{char}": 1}, [[f"{char}"]]):
        told = render_value(value)
        assert char not in told.text and told.escaped


@pytest.mark.parametrize(
    "text",
    ["", "Refund 420 €", "two\nlines\tand a tab", "naïve Straße", "訂單 注文 주문", "заказ", "שלום", "é e\u0301"],
)
def test_what_can_be_seen_stays(text: str) -> None:
    """Letters, signs and accents of every language, newlines and tabs."""
    shown = render(text)
    assert (shown.text, shown.escaped, shown.mixed) == (text, False, [])


def test_a_text_that_spells_an_escape_is_not_taken_for_one() -> None:
    """What is written out differs from what was written so."""
    assert render("\\u{202E}").text == "\\u{5C}u{202E}" and render("\\u{202E}").escaped
    assert render("\u202e").text == "\\u{202E}"
    assert render("C:\\users \\u202E").text == "C:\\users \\u202E"
    assert render_value("\\u{202E}").text != render_value("\u202e").text


@repeatable
@given(st.text())
def test_a_rendering_hides_nothing_and_loses_nothing(text: str) -> None:
    """Only visible characters and layout, and the text can be had back from it: no two texts have one rendering."""
    shown = render(text).text
    for char in shown:
        assert char in " \n\t" or unicodedata.category(char)[0] not in "CZ"
    back = re.sub(r"\\u\{([0-9A-F]+)\}", lambda found: chr(int(found[1], 16)), shown)
    assert back == text
    assert render(text).escaped == (shown != text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda one: st.lists(one, max_size=4) | st.dictionaries(st.text(), one, max_size=4),
    max_leaves=12,
)


@repeatable
@given(JSON)
def test_a_value_is_shown_whole(value: object) -> None:
    """Laid out as JSON, each hidden character as its number, so that it reads back as the value."""
    text = render_value(value).text
    assert all(char in " \n" or unicodedata.category(char)[0] not in "CZ" for char in text)
    # Ours are the only braces behind a single backslash and a u.
    plain = re.sub(r"((?:\\\\)*)\\u\{([0-9A-F]+)\}", lambda f: f[1] + _json_escape(int(f[2], 16)), text)
    assert json.loads(plain) == value


def _json_escape(number: int) -> str:
    return json.dumps(chr(number))[1:-1]


def test_no_text_of_a_value_passes_for_its_layout() -> None:
    """A newline in a text is written out: nobody adds a line of his own to what is shown."""
    told = render_value({"summary": 'Refund 1 €"\n  "action": {"iban": "mine', "action": {"iban": "DE1"}})
    assert len(told.text.splitlines()) == 6
    assert told.text.count('\n  "action"') == 1 and not told.escaped


MIXED = [
    "p\u0430ypal",
    "\u0440aypal",
    "\u0391lpha",
    "K\u212aevin",
    "a\uff22c",
    "x\U0001d41a",
    "\u0430b\u0430b",
    "1\u09ea0",
    "\u0661\u06f2",
]


@pytest.mark.parametrize("word", MIXED)
def test_a_word_that_mixes_scripts_is_named_with_its_place(word: str) -> None:
    """One letter of another alphabet, or a digit of another system, among those that it looks like."""
    assert render(f"send to {word}, now").mixed == [word]
    assert render_value({"action": {"args": [{"to": word}]}}).mixed == [f"{word} at /action/args/0/to"]
    assert render_value({word: 1}).mixed == [f"{word} at /"]


@pytest.mark.parametrize(
    "word",
    ["paypal", "заказ", "αβγ", "Tシャツ", "カタカナひらがな漢字", "한글漢字",
     "50µm", "naïve", "e\u0301te\u0301", "1ª", "abc123", "заказ7", "١٢٣"],
)  # fmt: skip
def test_a_word_that_is_written_so_is_not_named(word: str) -> None:
    """One script with marks and digits, and the scripts that are written together."""
    assert render(word).mixed == [] and render_value([word]).mixed == []


def test_a_hidden_character_in_a_word_does_not_part_its_scripts() -> None:
    """What is named shows it as its number."""
    assert render("pay\u200b\u0440al").mixed == ["pay\\u{200B}\u0440al"]
    assert render("pay \u0440\u0430\u0443").mixed == []


def test_the_list_of_words_is_bounded_and_says_so() -> None:
    """Each once, and how many more there are."""
    words = [f"p\u0430y{n:04}" for n in range(MIXED_MAX + 7)]
    told = render(" ".join(words + words)).mixed
    assert len(told) == MIXED_MAX + 1 and told[0] == words[0]
    assert render_value(words).mixed[-1] == "and 7 more"
    long = "\u0430" + "b" * 5000
    assert len(render(long).mixed[0]) <= bounds.NAME_CHARS_MAX


def test_what_is_no_json_is_refused_in_one_sentence() -> None:
    """Too deep, not a number, not data: the own error, and no traceback."""
    deep: object = "x"
    for _ in range(5000):
        deep = [deep]
    loop: list[object] = []
    loop.append(loop)
    for bad in (deep, loop, float("nan"), {1, 2}, b"x", {(1, 2): 3}, object()):
        with pytest.raises(InvalidInput) as told:
            render_value(bad)
        assert "\n" not in told.value.message
