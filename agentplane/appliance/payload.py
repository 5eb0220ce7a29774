"""Which unpacked files this process runs from.

Owns the hash that names them. Refuses to hash anything: the launcher has, and `version --verify` does. Invariant: two
executables of one version that differ in a byte have another.
"""

from __future__ import annotations

import sys
from pathlib import Path


def sha256() -> str | None:
    """The hash of the payload, in hex; None for a program that runs from its source."""
    return Path(sys.executable).parent.name if getattr(sys, "frozen", False) else None
