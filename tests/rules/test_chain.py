"""The chain: any change to a history shows, at the record where it begins."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentplane.core.chain import GENESIS, SIGNATURE_DOMAIN, ChainError, link, signing_digest, verify

VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "chain.json").read_text("ascii"))
Item = tuple[int, bytes, bytes, bytes]
repeatable = settings(derandomize=True, database=None, deadline=None)
bodies = st.lists(st.binary(max_size=20), min_size=1, max_size=6)


def chain(parts: list[bytes]) -> list[Item]:
    items: list[Item] = []
    head = GENESIS
    for seq, body in enumerate(parts, 1):
        items.append((seq, head, body, link(head, body)))
        head = items[-1][3]
    return items


def test_the_published_chain_is_derived_again() -> None:
    """Links and signing digests, from the formula alone and from the module."""
    head = bytes(32)
    items = []
    for row in VECTORS["records"]:
        body = bytes.fromhex(row["body_hex"])
        assert row["prev_hash"] == head.hex()
        expected = hashlib.sha256(head + body).digest()
        assert link(head, body) == expected == bytes.fromhex(row["hash"])
        signed = hashlib.sha256(VECTORS["signature_domain"].encode() + b"\x00" + expected).hexdigest()
        assert signing_digest(expected).hex() == signed == row["signing_digest"]
        items.append((row["seq"], head, body, expected))
        head = expected
    assert VECTORS["signature_domain"].encode() == SIGNATURE_DOMAIN
    assert verify(items) == head


def test_no_records_have_the_genesis_head() -> None:
    """An empty history is a chain."""
    assert verify([]) == GENESIS == bytes(32)


@repeatable
@given(bodies)
def test_what_was_linked_verifies(parts: list[bytes]) -> None:
    """And the head is the last hash."""
    items = chain(parts)
    assert verify(iter(items)) == items[-1][3]


@repeatable
@given(bodies, st.data())
def test_one_changed_bit_is_found_where_it_is(parts: list[bytes], data: st.DataObject) -> None:
    """In the previous hash, the body or the hash of any record."""
    items = chain(parts)
    at = data.draw(st.integers(0, len(items) - 1))
    field = data.draw(st.sampled_from([1, 2, 3]))
    record = list(items[at])
    value = bytearray(record[field])  # type: ignore[call-overload]
    if not value:
        value = bytearray(b"\x01")
    else:
        value[data.draw(st.integers(0, len(value) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    record[field] = bytes(value)
    items[at] = tuple(record)  # type: ignore[assignment]
    with pytest.raises(ChainError) as caught:
        verify(items)
    assert caught.value.seq == at + 1


@pytest.mark.parametrize(
    ("order", "seq"),
    [([1, 2], 1), ([0, 2], 2), ([0, 0, 1], 2), ([1, 0, 2], 1), ([0, 2, 1], 2)],
    ids=["first lost", "middle lost", "repeated", "swapped", "swapped later"],
)
def test_records_lost_repeated_or_reordered_are_found(order: list[int], seq: int) -> None:
    """The first seq at which the history is not the one that was written."""
    items = chain([b"a", b"b", b"c"])
    with pytest.raises(ChainError) as caught:
        verify([items[index] for index in order])
    assert caught.value.seq == seq
    assert str(caught.value) == f"the chain breaks at record {seq}: {caught.value.reason}"


def test_a_record_renumbered_into_a_gap_is_found_by_its_link() -> None:
    """Contiguous numbers are not enough: the link must name the record before."""
    one, _, three = chain([b"a", b"b", b"c"])
    with pytest.raises(ChainError, match="hash of the record before"):
        verify([one, (2, *three[1:])])


def test_a_chain_that_begins_elsewhere_is_refused() -> None:
    """The first record extends 32 zero bytes and nothing else."""
    start = hashlib.sha256(b"elsewhere").digest()
    with pytest.raises(ChainError) as caught:
        verify([(1, start, b"a", link(start, b"a"))])
    assert caught.value.seq == 1


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_hash_is_32_bytes(size: int) -> None:
    """Otherwise part of a body could pass for part of a hash."""
    with pytest.raises(ValueError, match="32 bytes"):
        link(bytes(size), b"body")
    with pytest.raises(ValueError, match="32 bytes"):
        signing_digest(bytes(size))
