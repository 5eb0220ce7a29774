"""Fixtures of the journal's tests: a store of its own, opened and closed by real code."""

from __future__ import annotations

from pathlib import Path

import pytest

from journal.stores import PlainStore


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    """Where a store may be made."""
    return tmp_path / "plane.db"


@pytest.fixture
def plain(store_path: Path) -> PlainStore:
    """An opened store whose units run one by one, without the writer's thread."""
    return PlainStore(store_path)
