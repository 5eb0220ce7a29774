"""The list of walls and the recorded numbers of tests/tidy.toml.

Owns the part of that file below its marker, and rewrites it only when AGENTPLANE_RATCHET=write asks; the part
that people write is never touched. Its invariant: what is recorded is what the source holds, so that a number
cannot rise unseen and one that fell is lowered in the same change.
"""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
FILE = ROOT / "tests" / "tidy.toml"
MARKER = "# --- recorded --- (written by the command above)\n"
COMMAND = "AGENTPLANE_RATCHET=write sh packaging/test.sh tests/test_tidy.py"


def house(file: Path = FILE) -> dict[str, Any]:
    """The walls and the recorded numbers."""
    return tomllib.loads(file.read_text("utf-8"))


def compare(section: str, actual: dict[str, int], file: Path = FILE) -> list[str]:
    """What differs between the source and the record, one line each; with AGENTPLANE_RATCHET=write the record
    follows.
    """
    actual = {name: count for name, count in sorted(actual.items()) if count}
    if os.environ.get("AGENTPLANE_RATCHET") == "write":
        _write(section, actual, file)
        return []
    recorded: dict[str, int] = house(file).get("recorded", {}).get(section, {})
    found = []
    for name in sorted({*actual, *recorded}):
        now, then = actual.get(name, 0), recorded.get(name, 0)
        if now > then:
            found.append(f"{section}: {name} has {now}, recorded are {then}; bring it down")
        if now < then:
            found.append(f"{section}: {name} has {now}, recorded are {then}; lower the ratchet: {COMMAND}")
    return found


def _write(section: str, actual: dict[str, int], file: Path) -> None:
    text = file.read_text("utf-8")
    recorded: dict[str, dict[str, int]] = tomllib.loads(text).get("recorded", {})
    recorded[section] = actual
    lines = [text.split(MARKER)[0] + MARKER]
    for name in sorted(recorded):
        lines.append(f"\n[recorded.{name}]\n")
        lines += [f"{json.dumps(key)} = {count}\n" for key, count in sorted(recorded[name].items())]
    beside = file.with_suffix(".new")
    beside.write_text("".join(lines), "utf-8")
    beside.replace(file)
