"""W11: a long read goes page by page, each a transaction of its own, up to the head that stood at its start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentplane.core import bounds
from agentplane.core.errors import JournalCorrupt
from agentplane.journal import lists
from agentplane.journal.tx import Tx
from agentplane.testkit.ledger import Ledger
from journal.stores import PlainStore

PAGE = 3


@pytest.fixture
def store(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PlainStore]:
    monkeypatch.setattr(bounds, "PAGE_ROWS_MAX", PAGE)
    made = PlainStore(store_path)
    yield made
    made.close()


def of_ten(store: PlainStore) -> Ledger:
    ledger = Ledger(store).admit()
    for key in range(9):
        ledger.append(ledger.started(key) if key % 2 == 0 else ledger.done(key - 1))
    return ledger


def test_records_appended_meanwhile_are_not_read(store: PlainStore) -> None:
    """W11: what the owner appends between two pages is no part of the read, and no damage either."""
    ledger = of_ten(store)
    pages = [0]

    def read(body: Callable[[Tx], Any]) -> Any:
        pages[0] += 1
        if pages[0] == 4:
            ledger.append(ledger.done(8))
        return store.store.readers.read(body)

    try:
        found = lists.read_history(read, ledger.run)
    except JournalCorrupt as error:
        pytest.fail(f"a sound run is called damaged: {error.message}")
    assert [item.record.seq for item in found] == list(range(1, 11))
    assert [item.record.seq for item in lists.read_history(store.store.readers.read, ledger.run)] == list(range(1, 12))


def test_every_page_is_a_transaction_of_its_own(store: PlainStore) -> None:
    """W11: no transaction reads more than a page, so that none pins the log for as long as a long history takes."""
    ledger = of_ten(store)
    rows: list[int] = []

    def read(body: Callable[[Tx], Any]) -> Any:
        found = store.store.readers.read(body)
        rows.append(len(found) if isinstance(found, list) else 0)
        return found

    assert len(lists.read_history(read, ledger.run)) == 10
    assert max(rows) == PAGE and sum(rows) == 10


def test_a_read_that_failed_leaves_no_old_state_behind(store: PlainStore) -> None:
    """W11: whoever keeps the error of a read, the connection's next reader sees what was committed since."""
    ledger = of_ten(store)

    def failing(tx: Tx) -> None:
        tx.one("SELECT seq FROM record ORDER BY seq")
        raise JournalCorrupt("as found by a reader")

    kept = []
    try:
        store.store.readers.read(failing)
    except JournalCorrupt as error:
        kept.append(error)  # with its frames, and all that they know
    ledger.append(ledger.started(20))
    head = store.store.readers.read(lambda tx: tx.one("SELECT max(seq) FROM record WHERE run = ?", ledger.run))
    assert kept and head == (ledger.head.seq,)
