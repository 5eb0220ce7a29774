"""Canonical bytes: one text for one value, on every path, and nothing that JSON cannot say."""

from __future__ import annotations

import json
import math
import re
import struct
import sys
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
import rfc8785
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentplane.core import canonical
from agentplane.core.canonical import CanonicalError, TooLarge, decode, decode_canonical, encode, encode_slow

VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "canonical.json").read_text("ascii"))
BOUND = 1 << 20
repeatable = settings(derandomize=True, database=None, deadline=None, max_examples=400)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
safe_integers = st.integers(-(2**53) + 1, 2**53 - 1)
floats = st.floats(allow_nan=False, allow_infinity=False)


def data(integers: st.SearchStrategy[int], keys: st.SearchStrategy[str] = texts) -> st.SearchStrategy[object]:
    leaves = st.none() | st.booleans() | integers | floats | texts
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=5) | st.dictionaries(keys, inner, max_size=5),
        max_leaves=25,
    )


def takes_fast_path(value: object) -> bool:
    return canonical._takes_fast_path((value,), 0)


def nested(levels: int) -> object:
    value: object = 0
    for level in range(levels):
        value = [value] if level % 2 else {"k": value}
    return value


class Colour(StrEnum):
    red = "red"


class Number(IntEnum):
    one = 1


class Pair(NamedTuple):
    left: int


class Shape(msgspec.Struct):
    side: int


class Impostor(str):
    """A key that is not the key it reads as."""

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        return self is other


@pytest.mark.parametrize(("bits", "text"), VECTORS["rfc8785_appendix_b"] + VECTORS["numbers"])
def test_a_double_has_the_text_that_ecmascript_gives_it(bits: str, text: str) -> None:
    """The RFC's own table, and shortest round trips that an ECMAScript engine wrote."""
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    assert encode(number) == encode_slow(number) == text.encode()
    assert float(text) == number


@pytest.mark.parametrize("bits", ["7fffffffffffffff", "7ff0000000000000", "fff0000000000000"])
def test_a_double_that_json_cannot_say_is_refused(bits: str) -> None:
    """NaN and the infinities, wherever they stand."""
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    with pytest.raises(CanonicalError, match="which JSON cannot say") as caught:
        encode({"a": [1, number]})
    assert caught.value.path == "/a/1"


@pytest.mark.parametrize("text", VECTORS["integers"])
def test_an_integer_is_exact_at_any_size(text: str) -> None:
    """Where RFC 8785 would round to a double, the digits stay."""
    assert encode(int(text)) == encode_slow(int(text)) == text.encode()
    assert decode_canonical(text.encode(), max_bytes=BOUND) == int(text)


@pytest.mark.parametrize("document", VECTORS["documents"], ids=range(len(VECTORS["documents"])))
def test_a_document_has_its_published_bytes(document: dict[str, str]) -> None:
    """The RFC's examples of escapes and of key order, and some of ours, from JSON text to canonical bytes."""
    value = decode(document["json"].encode(), max_bytes=BOUND)
    assert encode(value) == encode_slow(value) == bytes.fromhex(document["canonical_hex"])


@repeatable
@given(data(st.integers()))
@example({"\ue000": 1, "\U00010000": 2})
@example({"a": -0.0, "é": 1e21, "": [2**64, -(2**63) - 1]})
def test_the_fast_path_writes_what_the_slow_path_writes(value: object) -> None:
    """Whatever the data, `encode` and `encode_slow` agree to the byte."""
    assert encode(value) == encode_slow(value)


@repeatable
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | texts,
        lambda inner: (
            st.lists(inner, max_size=5)
            | st.lists(inner, max_size=5).map(tuple)
            | st.dictionaries(st.text(st.characters(max_codepoint=127), max_size=6), inner, max_size=5)
        ),
        max_leaves=25,
    )
)
def test_the_fast_path_is_taken_and_equal_for_what_records_are_made_of(value: object) -> None:
    """ASCII keys, any text, integers within 64 bit: taken, and the same bytes."""
    assert takes_fast_path(value)
    assert encode(value) == encode_slow(value)


@repeatable
@given(data(safe_integers))
def test_an_independent_implementation_agrees(value: object) -> None:
    """Within 2^53 our rule is RFC 8785, so a foreign implementation of it writes the same bytes."""
    assert encode(value) == rfc8785.dumps(value)  # type: ignore[arg-type]


def test_every_code_point_is_escaped_alike_on_both_paths() -> None:
    """Control characters, DEL, separators, noncharacters, beyond the BMP: each alone, and amid ASCII."""
    for start in range(0, 0x110000, 0x400):
        points = [chr(point) for point in range(start, start + 0x400) if not 0xD800 <= point < 0xE000]
        assert takes_fast_path(points)
        assert encode(points) == encode_slow(points)
    for point in [*map(chr, range(0x80)), "\x80", "\u2028", "\U0001f600"]:
        for position in range(34):
            text = "a" * position + point + "b" * 17
            assert encode(text) == encode_slow(text)


@pytest.mark.parametrize(
    "value",
    [1.0, [1.5], {"é": 1}, {"a": {"\u2028": 1}}, 2**64, -(2**63) - 1, {"a": -0.0}],
    ids=ascii,
)
def test_what_msgspec_is_not_known_to_write_canonically_goes_the_slow_way(value: object) -> None:
    """The fast path must be able to say no; it falls to the slow one and the answer is still right."""
    assert not takes_fast_path(value)
    assert encode(value) == encode_slow(value)


@pytest.mark.parametrize(
    ("value", "path", "reason"),
    [
        ("\ud800", "", "lone surrogate at character 0"),
        ({"a": ["ok", "x\udfff"]}, "/a/1", "lone surrogate at character 1"),
        ({"a": {"\ud83d": 1}}, "/a/\\ud83d", "lone surrogate in its key"),
        ({"a/b~c": {1: 2}}, "/a~1b~0c", "a key of type int"),
        ({None: 1}, "", "a key of type NoneType"),
        ({True: 1}, "", "a key of type bool"),
        ({Impostor("a"): 1, "a": 2}, "", "a key of type Impostor"),
        ([b"raw"], "/0", "type bytes"),
        ([{1, 2}], "/0", "type set"),
        ([Colour.red], "/0", "type Colour"),
        ([Number.one], "/0", "type Number"),
        ([Pair(1)], "/0", "type Pair"),
        ([Shape(1)], "/0", "type Shape"),
        pytest.param([object()], "/0", "type object", id="an object of no kind"),
        ([10**640], "/0", "more than 640 digits"),
        ([-(10**640)], "/0", "more than 640 digits"),
    ],
    ids=ascii,
)
def test_what_is_not_data_is_refused_with_its_place(value: object, path: str, reason: str) -> None:
    """One sentence, a JSON pointer, and no trace of the fast path in the answer."""
    for write in (encode, encode_slow):
        with pytest.raises(CanonicalError, match=re.escape(reason)) as caught:
            write(value)
        assert caught.value.path == path
        assert str(caught.value) == f"the value at {path or 'the root'} {caught.value.reason}"
        str(caught.value).encode("utf-8")


def test_the_largest_integer_is_written_and_read_back() -> None:
    """What `encode` writes `decode` reads: both stop at 640 digits, whatever the interpreter's limit."""
    number = 10**640 - 1
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        assert decode_canonical(encode([number]), max_bytes=BOUND) == [number]
    finally:
        sys.set_int_max_str_digits(before)


def test_depth_is_bounded_on_every_path() -> None:
    """128 containers inside one another are data, 129 are not, and a cycle is refused like any depth."""
    deepest, too_deep = nested(128), nested(129)
    assert encode(deepest) == encode_slow(deepest)
    assert decode(encode(deepest), max_bytes=BOUND) == decode_canonical(encode(deepest), max_bytes=BOUND) == deepest
    cycle: list[object] = []
    cycle.append(cycle)
    ring: dict[str, object] = {}
    ring["again"] = {"x": ring}
    for value in (too_deep, cycle, ring, nested(129) | {"f": 0.5}):  # type: ignore[operator]
        for write in (encode, encode_slow):
            with pytest.raises(CanonicalError, match="deeper than 128 levels"):
                write(value)
    raw = b"[" * 129 + b"]" * 129
    for read in (decode, decode_canonical):
        with pytest.raises(CanonicalError, match="deeper than 128 levels"):
            read(raw, max_bytes=BOUND)
    assert decode(b'["[[[[", {}]', max_bytes=BOUND, max_depth=2) == ["[[[[", {}]


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_hostile_depth_costs_no_crash(opening: bytes) -> None:
    """A megabyte of opening brackets is an error with a sentence, not a RecursionError."""
    raw = opening * (BOUND // len(opening))
    for read in (decode, decode_canonical):
        with pytest.raises(CanonicalError):
            read(raw, max_bytes=BOUND)


def test_a_path_stays_short_and_printable() -> None:
    """Keys come from outside: one of a megabyte does not make a sentence of a megabyte."""
    with pytest.raises(CanonicalError) as caught:
        encode({"k" * BOUND: {"\ud800" * 50: object()}})
    assert len(str(caught.value)) < 500
    with pytest.raises(CanonicalError) as caught:
        decode(b'{"' + b"k" * 9999 + b'":1,"' + b"k" * 9999 + b'":1}', max_bytes=BOUND)
    assert len(str(caught.value)) < 500


@repeatable
@given(data(st.integers()))
def test_reading_back_gives_the_same_bytes(value: object) -> None:
    """Canonical bytes are a fixed point: read and written again they are themselves, by both readers."""
    raw = encode(value)
    read = decode(raw, max_bytes=BOUND)
    assert encode(read) == raw
    again = decode_canonical(raw, max_bytes=BOUND)
    assert encode(again) == raw
    assert repr(again) == repr(read)


REFUSED = [
    (b"", "", "not JSON"),
    (b"{", "", "not JSON"),
    (b"[1,]", "", "not JSON"),
    (b"01", "", "not JSON"),
    (b"+1", "", "not JSON"),
    (b"1.", "", "not JSON"),
    (b".5", "", "not JSON"),
    (b"1 2", "", "not JSON"),
    (b"'a'", "", "not JSON"),
    (b'"\n"', "", "not JSON"),
    (b'"\\x41"', "", "not JSON"),
    (b'"\\u12"', "", "not JSON"),
    (b'"a', "", "not JSON"),
    (b"True", "", "not JSON"),
    (b"\xa01", "", "not valid UTF-8 at byte 0"),
    (b'"\xff"', "", "not valid UTF-8 at byte 1"),
    (b'"\xed\xa0\x80"', "", "not valid UTF-8"),
    (b'"\xc0\xaf"', "", "not valid UTF-8"),
    (b"\xff\xfe1\x00", "", "not valid UTF-8"),
    (b"\xef\xbb\xbf1", "", "byte order mark"),
    (b'[{"a": {"b": 1, "b": 1}}]', "/0/a", "the key 'b' twice"),
    (b'{"a": 1, "\\u0061": 2}', "", "the key 'a' twice"),
    (b'{"a": NaN}', "/a", "NaN"),
    (b"[Infinity]", "/0", "Infinity"),
    (b"[1, -Infinity]", "/1", "-Infinity"),
    (b"[1e400]", "/0", "beyond the range of a double"),
    (b"[-1e309]", "/0", "beyond the range of a double"),
    (b'["\\ud800"]', "/0", "lone surrogate at character 0"),
    (b'["\\uDC00\\uD800"]', "/0", "lone surrogate"),
    (b'{"a": {"\\udfff": 1}}', "/a/\\udfff", "lone surrogate in its key"),
    (b"[" + b"1" * 641 + b"]", "/0", "more than 640 characters"),
    (b"[0." + b"1" * 641 + b"]", "/0", "more than 640 characters"),
]


@pytest.mark.parametrize(("raw", "path", "reason"), REFUSED, ids=[repr(raw[:24]) for raw, _, _ in REFUSED])
def test_bytes_that_are_not_strict_json_are_refused(raw: bytes, path: str, reason: str) -> None:
    """Each leniency of JSON readers is off, and the sentence says where."""
    for given_as in (raw, bytearray(raw), memoryview(raw)):
        for read in (decode, decode_canonical):
            with pytest.raises(CanonicalError, match=re.escape(reason)) as caught:
                read(given_as, max_bytes=BOUND)
            assert caught.value.path == path


def test_a_surrogate_pair_in_escapes_is_one_character() -> None:
    """The walk for lone surrogates does not refuse a pair."""
    assert decode(b'["\\ud83d\\ude00"]', max_bytes=BOUND) == ["\U0001f600"]


@pytest.mark.parametrize(
    ("raw", "byte"),
    [
        (b'{"b":1,"a":2}', 2),
        (b'{"a": 1}', 5),
        (b"[1] ", 3),
        (b"1.0", 1),
        (b"-0", 0),
        (b"1E3", 1),
        (b"0.10", 3),
        (b'"\\u0041"', 1),
        (b'"\\/"', 1),
        ('{"\U00010000":1,"\ue000":2,"x":3}'.encode(), 2),
    ],
)
def test_bytes_that_say_it_another_way_are_not_canonical(raw: bytes, byte: int) -> None:
    """The strict reader takes them, the canonical one names the first byte that differs."""
    decode(raw, max_bytes=BOUND)
    with pytest.raises(CanonicalError, match=f"not in canonical form from byte {byte} on"):
        decode_canonical(raw, max_bytes=BOUND)


@repeatable
@given(
    st.binary(max_size=60) | st.text('{}[]",:0123456789.-+eE\\uadDfntrls \ud800', max_size=40).map(repr).map(str.encode)
)
def test_only_canonical_errors_leave_the_readers(raw: bytes) -> None:
    """Whatever the bytes: a value that can be encoded, or CanonicalError."""
    for read in (decode, decode_canonical):
        try:
            value = read(raw, max_bytes=BOUND)
        except CanonicalError:
            continue
        decode_canonical(encode(value), max_bytes=BOUND)


@pytest.mark.parametrize("number", [b"1" * 10_000_000, b"0." + b"1" * 10_000_000, b"1e" + b"1" * 10_000_000])
def test_a_number_of_ten_megabytes_is_refused_unread(number: bytes) -> None:
    """No conversion of quadratic time is begun, even where the interpreter's own limit was taken away."""
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        for read in (decode, decode_canonical):
            with pytest.raises(CanonicalError, match="more than 640 characters"):
                read(number, max_bytes=len(number))
    finally:
        sys.set_int_max_str_digits(before)


def test_sizes_are_bounded_with_both_numbers_named() -> None:
    """At the bound is fine, one byte over is TooLarge with size and bound, on the way in and out."""
    assert canonical.encode_into_bound("abc", 5) == b'"abc"'
    with pytest.raises(TooLarge) as caught:
        canonical.encode_into_bound("abcd", 5)
    assert (caught.value.size, caught.value.bound) == (6, 5)
    for raw in (b'"abcd"', memoryview(b'"abcd"')):
        with pytest.raises(TooLarge) as caught:
            decode(raw, max_bytes=5)
        assert (caught.value.size, caught.value.bound) == (6, 5)
    assert isinstance(caught.value, CanonicalError)


def test_minus_zero_is_zero() -> None:
    """Two zeros would be two texts for one value."""
    assert encode([-0.0, 0.0, 0]) == b"[0,0,0]"
    assert math.copysign(1, float(b"-0.0")) < 0
