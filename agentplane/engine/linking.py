"""Linking records that are written in one unit, outside a run's own log.

Owns the making of a record with its envelope, bytes and hash. Refuses nothing of its own. Invariant: what it links is
what ``appends.append`` accepts behind the head it was given.
"""

from __future__ import annotations

from agentplane.core import chain
from agentplane.core.instants import to_text
from agentplane.core.records import Record, RunConcluded, encode_body
from agentplane.journal.appends import Head, Linked

Spec = tuple[type[Record], dict[str, object]]


def link(run: str, epoch: int, head: Head, specs: list[Spec], at_ms: int) -> tuple[Linked, ...]:
    """The records of ``specs``, linked one behind the other behind ``head``."""
    linked: list[Linked] = []
    at = to_text(at_ms)
    for kind, members in specs:
        if kind is RunConcluded and "chain_head" not in members:
            members = members | {"chain_head": head.hash.hex()}
        record = kind(seq=head.seq + 1, run=run, epoch=epoch, v=1, at=at, **members)  # type: ignore[arg-type]
        body = encode_body(record)
        item = Linked(record, body, chain.link(head.hash, body), at_ms)
        linked.append(item)
        head = Head(record.seq, item.hash)
    return tuple(linked)
