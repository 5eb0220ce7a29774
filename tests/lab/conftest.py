"""Fixtures of the lab's tests: a real provider process a test, ended with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agentplane.lab.provider_process import Provider


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[Provider]:
    """A running provider with an empty book."""
    with Provider(tmp_path / "provider.db") as running:
        yield running
