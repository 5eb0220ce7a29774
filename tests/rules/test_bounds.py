"""Bounds: named, positive, and refused at import when they contradict one another."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from agentplane.core import bounds

NUMBERS = {name: value for name, value in vars(bounds).items() if name.isupper() and isinstance(value, int)}


def test_every_bound_is_a_positive_number() -> None:
    """Zero and below would be a switch in disguise."""
    assert len(NUMBERS) > 40
    assert [name for name, value in NUMBERS.items() if value <= 0] == []


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            "VALUE_BYTES_MAX: Final = MIB - 64 * KIB",
            "VALUE_BYTES_MAX: Final = MIB",
            "a value fits its record",
        ),
        ("RIDER_BYTES_MAX: Final = 4 * MIB", "RIDER_BYTES_MAX: Final = 9 * MIB", "a record fits a batch"),
        ("RIDERS_MAX: Final = 256", "RIDERS_MAX: Final = 513", "a run's riders fit a batch"),
        ("BATCH_MS_MAX: Final = 50", "BATCH_MS_MAX: Final = 700", "two renewals may be lost"),
        ("BALLAST_BYTES: Final = 8 * MIB", "BALLAST_BYTES: Final = 65 * MIB", "the floor lies under low"),
        ("KEY_WINDOW_S: Final = 72_000", "KEY_WINDOW_S: Final = 86_400", "our key window"),
        ("BODY_BYTES_MAX: Final = 2 * MIB", "BODY_BYTES_MAX: Final = 512 * KIB", "a body holds a record"),
    ],
)
def test_bounds_that_contradict_each_other_are_not_imported(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    """Whoever moves a number past what another leans on hears it before anything runs."""
    source = Path(bounds.__file__).read_text("utf-8")
    assert source.count(old) == 1
    file = tmp_path / "moved.py"
    file.write_text(source.replace(old, new), "utf-8")
    spec = importlib.util.spec_from_file_location("moved", file)
    assert spec is not None and spec.loader is not None
    with pytest.raises(ImportError, match=sentence):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
