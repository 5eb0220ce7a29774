"""The hash chain of one run: each record's hash covers its body and the hash before it.

Owns the link, its verification and the digest that a signature covers. Refuses gaps, reordering, a foreign
first link and hashes of the wrong size. Invariant: verification reads the stored bytes and never serialises
anything again, so a record written by any build verifies in every other.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

HASH_BYTES = 32
GENESIS = bytes(HASH_BYTES)
"""What the first record of a run extends."""

SIGNATURE_DOMAIN = b"io.github.hupe1980.agentplane/record/v1"


class ChainError(ValueError):
    """A history that is not one chain. `seq` is the first record at which that shows."""

    def __init__(self, seq: int, reason: str) -> None:
        self.seq = seq
        self.reason = reason
        super().__init__(f"the chain breaks at record {seq}: {reason}")


def link(prev: bytes, body: bytes) -> bytes:
    """SHA-256(prev || body), 32 bytes. `prev` is the hash before, or GENESIS; `body` the record's stored
    bytes."""
    if len(prev) != HASH_BYTES:
        raise ValueError(f"a record extends a hash of {HASH_BYTES} bytes, not {len(prev)}")
    return sha256(prev + body).digest()


def verify(items: Iterable[tuple[int, bytes, bytes, bytes]]) -> bytes:
    """The head of a run's records given as (seq, prev_hash, body, hash) from seq 1 on; GENESIS when there are
    none.

    Raises ChainError at the first record that does not follow from the one before.
    """
    head, expected = GENESIS, 1
    for seq, prev, body, stored in items:
        if seq != expected:
            raise ChainError(expected, f"record {seq} stands where record {expected} belongs")
        if prev != head:
            raise ChainError(seq, "it does not name the hash of the record before it")
        if sha256(prev + body).digest() != stored:
            raise ChainError(seq, "its bytes do not have the hash it is stored under")
        head, expected = stored, expected + 1
    return head


def signing_digest(hash: bytes) -> bytes:
    """SHA-256(domain || 00 || hash): what a signature over a record is made over, 32 bytes."""
    if len(hash) != HASH_BYTES:
        raise ValueError(f"a signature covers a hash of {HASH_BYTES} bytes, not {len(hash)}")
    return sha256(SIGNATURE_DOMAIN + b"\x00" + hash).digest()
