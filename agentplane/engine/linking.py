"""Linking records that are written in one unit, outside a run's own log.

Owns the making of a record with its envelope, bytes and hash. Refuses nothing of its own. Invariant: what it links is
what ``appends.append`` accepts behind the head it was given.
"""

from __future__ import annotations

from agentplane.core import chain
from agentplane.core.instants import to_text
from agentplane.core.records import Record, encode_body
from agentplane.journal.appends import Head, Linked

Spec = tuple[type[Record], dict[str, object]]


def make(kind: type[Record], run: str, epoch: int, seq: int, at_ms: int, members: dict[str, object]) -> Record:
    """A record of ``run`` with its envelope."""
    return kind(seq=seq, run=run, epoch=epoch, v=1, at=to_text(at_ms), **members)  # type: ignore[arg-type]


def link(run: str, epoch: int, head: Head, specs: list[Spec], at_ms: int) -> tuple[Linked, ...]:
    """The records of ``specs``, linked one behind the other behind ``head``."""
    linked: list[Linked] = []
    for kind, members in specs:
        if "chain_head" in kind.__struct_fields__ and "chain_head" not in members:
            members = members | {"chain_head": head.hash.hex()}
        record = make(kind, run, epoch, head.seq + 1, at_ms, members)
        body = encode_body(record)
        item = Linked(record, body, chain.link(head.hash, body))
        linked.append(item)
        head = Head(record.seq, item.hash)
    return tuple(linked)
