"""Business keys have one form, and no two origins of an event are one."""

from __future__ import annotations

from hashlib import sha256
from itertools import permutations, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentplane.core import bounds
from agentplane.core.correlation import covers, event_dedup, keys_data, keys_from
from agentplane.core.errors import InvalidInput
from agentplane.core.records import Key

repeatable = settings(derandomize=True, database=None, deadline=None)
ORDER, CUSTOMER = Key(namespace="order", value="A-1"), Key(namespace="customer", value="Ä 9")


def test_keys_are_sorted_whatever_order_they_came_in() -> None:
    """The same matter is the same tuple, so that it is looked up once."""
    for pairs in permutations([("order", "A-1"), ("customer", "Ä 9")]):
        assert keys_from(dict(pairs)) == (CUSTOMER, ORDER)
    assert keys_data((CUSTOMER, ORDER)) == {"customer": "Ä 9", "order": "A-1"}
    assert keys_from(keys_data(keys_from({"order": "A-1"}))) == (ORDER,)


@pytest.mark.parametrize("namespace", ["a", "order.line-2_x", "x" * bounds.NAMESPACE_CHARS_MAX])
def test_a_namespace_up_to_its_bound_is_taken(namespace: str) -> None:
    """Lower-case letters, digits, and the three signs, a letter first."""
    assert keys_from({namespace: "v" * bounds.KEY_CHARS_MAX})[0].namespace == namespace


REFUSED: list[tuple[Any, str]] = [
    (None, "not nothing"), ({}, "1 to 16 keys, not 0"), ([], "not a list"), ("order=1", "not a str"), (5, "not a int"),
    ({f"k{n}": "v" for n in range(bounds.CASE_KEYS_MAX + 1)}, "1 to 16 keys, not 17"),
    ({"": "v"}, "namespace"), ({"Order": "v"}, "namespace"), ({"1st": "v"}, "namespace"), ({"a b": "v"}, "namespace"),
    ({"örder": "v"}, "namespace"), ({"a\n": "v"}, "namespace"), ({"x" * 65: "v"}, "namespace"), ({5: "v"}, "not a int"),
    ({"a/b": "v"}, "namespace"), ({"order": ""}, "order"), ({"order": " "}, "order"), ({"order": "v" * 257}, "order"),
    ({"order": "a\nb"}, "order"), ({"order": "a\u202eb"}, "order"), ({"order": "\ud800"}, "order"),
    ({"order": 5}, "order is a text, not a int"), ({"order": None}, "order is a text, not nothing"),
    ({"order": True}, "not a bool"), ({"order": ["A"]}, "not a list"), ({"order": "\u00a0x"}, "order"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "says"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_no_correlation_is_refused_in_one_sentence_with_its_place(data: Any, says: str) -> None:
    """Nothing is trimmed, folded or guessed."""
    with pytest.raises(InvalidInput) as told:
        keys_from(data)
    assert says in told.value.message and "\n" not in told.value.message
    assert str(told.value.details["path"]).startswith("/")


@repeatable
@given(data=st.recursive(st.none() | st.text() | st.integers(), lambda one: st.dictionaries(st.text(), one)))
def test_any_data_is_keys_or_refused(data: object) -> None:
    """Hostile data raises the one error, and what is taken is read back as itself."""
    try:
        keys = keys_from(data)
    except InvalidInput:
        return
    assert keys == keys_from(keys_data(keys)) and 0 < len(keys) <= bounds.CASE_KEYS_MAX


def test_an_event_covers_a_wait_that_names_no_more_than_it_is_about() -> None:
    """All of the wait's keys, and never a wait that names nothing."""
    keys = [Key(namespace=name, value=value) for name, value in product("ab", "12")]
    subsets = [{key for bit, key in enumerate(keys) if bits >> bit & 1} for bits in range(16)]
    for event, wait in product(subsets, subsets):
        assert covers(event, wait) == (bool(wait) and wait <= event)


# --- dedup -----------------------------------------------------------------------------------------------------------


def test_no_delimiter_makes_two_origins_one() -> None:
    """Every way of moving a boundary, with any sign at it, is another digest."""
    seen: dict[bytes, tuple[str, str, str]] = {}
    parts = [
        "",
        "a",
        "b",
        "ab",
        "a:b",
        "a\x1fb",
        "a/b",
        "a\x00b",
        "\x00",
        ":",
        "1",
        "1:a",
        "\x00\x00\x00\x01a",
        "ä",
        "a\u0308",
    ]
    for origin in product(parts, repeat=3):
        assert seen.setdefault(event_dedup(*origin), origin) == origin
    assert len(seen) == len(parts) ** 3


@repeatable
@given(st.lists(st.tuples(st.text("ab:/"), st.text("ab:/"), st.text("ab:/")), min_size=2, max_size=2))
def test_two_origins_share_a_digest_exactly_when_they_are_one(origins: list[tuple[str, str, str]]) -> None:
    """A repeat is known, and nothing else is."""
    first, second = origins
    assert (event_dedup(*first) == event_dedup(*second)) == (first == second)


def test_the_digest_of_an_origin_is_fixed() -> None:
    """Stores hold it: a domain, then each part behind its length, 8 bytes big-endian."""
    raw = b"agentplane.event.v1\x00" + b"".join(
        len(part).to_bytes(8, "big") + part for part in (b"peer:shop", b"/orders", b"evt-1")
    )
    assert event_dedup("peer:shop", "/orders", "evt-1") == sha256(raw).digest()
