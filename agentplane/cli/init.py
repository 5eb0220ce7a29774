"""Writing an application that runs.

Owns the starter files. Refuses a directory that holds anything. Invariant: what it writes serves, runs and tests as
it stands.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any

from agentplane.core import errors
from agentplane.core.build import __version__
from agentplane.engine.plane import wall_ms
from agentplane.journal.store import Identity, Store

STARTER = Path(__file__).with_name("starter")
FILES = {
    "plane.toml": "plane.toml",
    "skills/refunds.py": "skills/refunds.py",
    "provider.py": "provider.py",
    "tests/test_refunds.py": "tests/test_refunds.py",
    "README.md": "README.md",
}
DIRECTORIES = (("secrets", 0o700), ("run", 0o750), ("vendor", 0o755))


def _make_store(path: Path) -> None:
    """An empty store, so that the first `run` needs no `serve` before it."""
    identity = Identity(
        opening=uuid.uuid4().hex, owner="init", build=__version__, now_ms=wall_ms(), new_incarnation=uuid.uuid4().hex
    )
    Store.open(path.absolute(), "default", identity).close()


def write(directory: Path) -> dict[str, Any]:
    """Write the starter into ``directory``, which is made or empty. Raises Settings; a failure leaves nothing half
    made."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise errors.Settings(f"{directory} is not empty; name a directory that does not exist yet.")
    try:
        str(directory.absolute()).encode()
    except UnicodeEncodeError:
        raise errors.Settings(f"{str(directory)!a} is no name in UTF-8; name another directory.") from None
    written: list[Path] = []
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        for name, mode in DIRECTORIES:
            (directory / name).mkdir(mode=mode)
            (directory / name).chmod(mode)
            written.append(directory / name)
        for name, source in FILES.items():
            path = directory / name
            if not path.parent.exists():
                path.parent.mkdir(mode=0o755)
                path.parent.chmod(0o755)
                written.append(path.parent)
            text = (STARTER / source).read_text(encoding="utf-8").replace("@NAME@", directory.absolute().name)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            path.chmod(0o644)
            written.append(path)
    except OSError as error:
        for path in reversed(written):
            if path.is_dir():
                path.rmdir()
            else:
                path.unlink()
        raise errors.Settings(f"{directory} cannot be written: {error.strerror}.") from None
    _make_store(directory / "plane.db")
    return {"schema": "agentplane.init/1", "directory": str(directory), "files": sorted(FILES)}
