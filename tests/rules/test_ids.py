"""Ids: one spelling, a time inside, text order is time order."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentplane.core.ids import MAX_MS, InvalidId, id_ms, is_id, new_id, parse_id

repeatable = settings(derandomize=True, database=None, deadline=None)
times = st.integers(0, MAX_MS)
entropies = st.binary(min_size=10, max_size=10)
GOOD = "run_01ARYZ6S41TSV4RRFFQ69G5FAV"


def test_a_known_ulid_has_its_known_parts() -> None:
    """The ULID that the format's own description uses: its time, and the same text from its parts."""
    assert id_ms(GOOD) == 1469918176385
    entropy = 0
    for letter in GOOD[-16:]:
        entropy = entropy * 32 + "0123456789ABCDEFGHJKMNPQRSTVWXYZ".index(letter)
    assert new_id("run", 1469918176385, entropy.to_bytes(10, "big")) == GOOD


@repeatable
@given(st.from_regex(r"[a-z]{1,16}", fullmatch=True), times, entropies)
def test_an_id_is_read_back(prefix: str, ms: int, entropy: bytes) -> None:
    """Made, recognised under its own prefix and no other, and its time read from it."""
    text = new_id(prefix, ms, entropy)
    assert parse_id(text, prefix) == text
    assert id_ms(text) == ms
    assert len(text) == len(prefix) + 27
    assert not is_id(text, prefix + "x")


@repeatable
@given(st.tuples(times, entropies), st.tuples(times, entropies))
def test_text_order_is_time_order(one: tuple[int, bytes], other: tuple[int, bytes]) -> None:
    """Lists that order by id order by (milliseconds, entropy)."""
    assert (one < other) == (new_id("run", *one) < new_id("run", *other))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "run_",
        GOOD[4:],
        GOOD.lower(),
        GOOD[:-1],
        GOOD + "0",
        GOOD + "\n",
        " " + GOOD,
        "Run" + GOOD[3:],
        GOOD.replace("_", "-"),
        "case" + GOOD[3:],
        GOOD[:-1] + "I",
        GOOD[:-1] + "L",
        GOOD[:-1] + "O",
        GOOD[:-1] + "U",
        GOOD[:-1] + "٣",
        "run_8" + "0" * 25,
        "run_Z" + "Z" * 25,
    ],
    ids=ascii,
)
def test_every_other_spelling_is_refused(text: str) -> None:
    """Lower case, look-alikes, a time past 48 bit, a wrong length, another prefix."""
    assert not is_id(text, "run")
    with pytest.raises(InvalidId, match="is not an id of the form run_"):
        parse_id(text, "run")


def test_the_last_time_fits_and_the_next_does_not() -> None:
    """48 bit of milliseconds; the first character is at most 7."""
    assert new_id("run", MAX_MS, b"\xff" * 10) == "run_7" + "Z" * 25
    for ms in (-1, MAX_MS + 1, True, 1.0):
        with pytest.raises(InvalidId, match="time"):
            new_id("run", ms, bytes(10))  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, 9, 11])
def test_entropy_is_ten_bytes(size: int) -> None:
    """Less would collide and more would be dropped in silence."""
    with pytest.raises(InvalidId, match="10 bytes of entropy"):
        new_id("run", 0, bytes(size))


@pytest.mark.parametrize("prefix", ["", "Run", "run_", "rün", "run1", "r" * 17, "run\n"])
def test_a_prefix_is_lower_case_letters(prefix: str) -> None:
    """So that the underscore always ends it."""
    with pytest.raises(InvalidId, match="prefix"):
        new_id(prefix, 0, bytes(10))


def test_no_time_is_read_from_what_is_no_id() -> None:
    """`id_ms` refuses as the others do, with the text cut."""
    with pytest.raises(InvalidId) as caught:
        id_ms("x" * 100_000)
    assert len(str(caught.value)) < 200
