"""Fixtures of the tests of what outlives a run: a real store whose units are committed one by one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from journal.stores import PlainStore


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[PlainStore]:
    """An opened store without the writer's thread."""
    store = PlainStore(tmp_path / "plane.db")
    yield store
    store.close()
