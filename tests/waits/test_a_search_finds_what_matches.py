"""The two searches against their definition: which waits an event may end, and which event a wait would take."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentplane.core.records import Key
from agentplane.journal import subscriptions
from agentplane.journal.tx import Tx
from agentplane.testkit.events_hold import event_id, wait_key
from agentplane.testkit.ledger import run_id
from agentplane.work import events
from journal.stores import PlainStore

tenants = count(1)
BUSINESS = st.dictionaries(st.sampled_from("abc"), st.sampled_from("12"), min_size=1, max_size=3)
SENDERS = ("x", "y")


@pytest.fixture(scope="module")
def shared() -> Iterator[PlainStore]:
    """One store for all examples: each has a tenant of its own."""
    with tempfile.TemporaryDirectory() as place:
        store = PlainStore(Path(place) / "plane.db")
        yield store
        store.close()


def keys(pairs: dict[str, str]) -> tuple[Key, ...]:
    return tuple(Key(namespace=name, value=value) for name, value in sorted(pairs.items()))


def within(part: dict[str, str], whole: dict[str, str]) -> bool:
    return part.items() <= whole.items()


@settings(max_examples=120, deadline=None)
@given(
    waits=st.lists(st.tuples(BUSINESS, st.sampled_from((None, *SENDERS)), st.integers(0, 3)), max_size=14),
    about=BUSINESS, source=st.sampled_from(SENDERS), limit=st.integers(1, 20),
)  # fmt: skip
def test_an_event_finds_the_waits_that_its_keys_cover(
    shared: PlainStore, waits: list[Any], about: dict[str, str], source: str, limit: int
) -> None:
    """All of a wait's keys among the event's, from its sender or from anybody, the oldest first: whatever key each wait
    is found under, and over every boundary of a page.

    Spec: Delivery.SenderFilterHolds.
    """

    def body(tx: Tx) -> list[tuple[int, str]]:
        tx.tenant = f"t{next(tenants)}"
        for number, (wanted, sender, armed_ms) in enumerate(waits):
            tx.now_ms = armed_ms
            subscriptions.arm(tx, run_id(number), wait_key(1), "k", keys(wanted), sender)
        found = events.waiters(tx, "k", keys(about), source, limit)
        assert events.waiters(tx, "other", keys(about), source, limit) == []
        return [(one.armed_ms, one.run) for one in found]

    expected = sorted(
        (armed_ms, run_id(number)) for number, (wanted, sender, armed_ms) in enumerate(waits)
        if within(wanted, about) and sender in (None, source)
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subscriptions, "LOOKED_AT", 2)
        assert shared.unit(body) == expected[:limit]


@settings(max_examples=120, deadline=None)
@given(
    came=st.lists(st.tuples(BUSINESS, st.sampled_from(SENDERS), st.integers(0, 3), st.booleans()), max_size=14),
    wanted=BUSINESS, sender=st.sampled_from((None, *SENDERS)),
)  # fmt: skip
def test_a_wait_takes_the_oldest_event_about_all_that_it_asks(
    shared: PlainStore, came: list[Any], wanted: dict[str, str], sender: str | None
) -> None:
    """Of those in the buffer: what was consumed is not offered.

    Spec: Delivery.EveryKeyIsCovered.
    """

    def body(tx: Tx) -> str | None:
        tx.tenant = f"t{next(tenants)}"
        for number, (about, source, received_ms, gone) in enumerate(came):
            dedup = sha256(b"%d" % number).digest()
            events.store(tx, event_id(number), dedup, source, "", "", "k", keys(about), b"{}", received_ms)
            if gone:
                assert events.consume(tx, event_id(number), run_id(1), wait_key(1))
        found = events.oldest(tx, "k", keys(wanted), sender)
        return None if found is None else found.event

    expected = min(
        (
            (received_ms, event_id(number)) for number, (about, source, received_ms, gone) in enumerate(came)
            if within(wanted, about) and sender in (None, source) and not gone
        ),
        default=(0, None),
    )  # fmt: skip
    assert shared.unit(body) == expected[1]


def test_waits_of_one_customer_are_found_by_what_tells_them_apart(plain: PlainStore) -> None:
    """A key that every wait has is not what they are looked for by: an event of one of two hundred reads a handful."""
    for number in range(200):
        about = keys({"customer": "1", "order": str(number)})
        plain.unit(lambda tx, n=number, about=about: subscriptions.arm(  # type: ignore[misc]
            tx, run_id(n), wait_key(1), "k", about, None
        ))  # fmt: skip
    crowd = plain.unit(lambda tx: tx.one("SELECT count(*) FROM subscription WHERE namespace = 'customer'"))
    assert crowd is not None and int(str(crowd[0])) <= 2
    found = plain.unit(lambda tx: events.waiters(tx, "k", keys({"customer": "1", "order": "77"}), "s", 9))
    assert [one.run for one in found] == [run_id(77)]
