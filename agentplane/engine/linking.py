"""Linking records that are written in one unit, outside a run's own log.

Owns the making of a record with its envelope, bytes and hash. Refuses nothing of its own. Invariant: what it links is
what ``appends.append`` accepts behind the head it was given.
"""

from __future__ import annotations

from agentplane.core import chain
from agentplane.core.codec import encode_body
from agentplane.core.instants import to_text
from agentplane.core.records import Record, RunConcluded
from agentplane.journal.appends import Head, Linked

Spec = tuple[type[Record], dict[str, object]]


def link(run: str, epoch: int, head: Head, specs: list[Spec], at_ms: int | list[int]) -> tuple[Linked, ...]:
    """The records of ``specs``, linked one behind the other behind ``head``. ``at_ms``: one instant, or one each."""
    linked: list[Linked] = []
    bound = {} if head.case is None else {"case": head.case}
    instants = at_ms if isinstance(at_ms, list) else [at_ms] * len(specs)
    for (kind, members), made_ms in zip(specs, instants, strict=True):
        if kind is RunConcluded and "chain_head" not in members:
            members = members | {"chain_head": head.hash.hex()}
        record = kind(seq=head.seq + 1, run=run, epoch=epoch, v=1, at=to_text(made_ms), **bound, **members)  # type: ignore[arg-type]
        body = encode_body(record)
        item = Linked(record, body, chain.link(head.hash, body), made_ms)
        linked.append(item)
        head = Head(record.seq, item.hash, head.case)
    return tuple(linked)


def place_of(announced: dict[str, object]) -> dict[str, object]:
    """The members by which an outcome names its announcement."""
    return {name: announced[name] for name in ("step", "phase", "effect_key") if name in announced}
