"""Credentials on the node: one file a secret, in one directory.

Owns reading a declared secret at each call, and the register of what was handed out. Refuses undeclared names and names
that are not file names. Invariant: a secret's bytes are known to the register before an effect sees them, so that no
record can hold them unnoticed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from agentplane.core import bounds, canonical
from agentplane.core.errors import Settings

NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,127}\Z")
SECRET_BYTES_MAX: Final = 65_536
LEAST_REGISTERED: Final = 6
"""A shorter secret would be found in innocent records by chance."""


class Secrets:
    """The secrets directory of a plane, or none."""

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        self._handed_out: dict[bytes, None] = {}

    def missing(self, names: tuple[str, ...]) -> list[str]:
        """Those of ``names`` that cannot be read now."""
        return [name for name in names if self._path(name) is None]

    def read(self, name: str) -> str:
        """The secret's text without its final newline. Raises Settings naming it, never its value."""
        path = self._path(name)
        if path is None:
            raise Settings(f"The secret {name} is not in the secrets directory.")
        try:
            with open(path, "rb") as file:
                raw = file.read(SECRET_BYTES_MAX + 1)
            value = raw.decode().rstrip("\r\n")
        except (OSError, UnicodeDecodeError):
            raise Settings(f"The secret {name} cannot be read as text.") from None
        if len(raw) > SECRET_BYTES_MAX or not value:
            raise Settings(f"The secret {name} is empty or over {SECRET_BYTES_MAX} bytes.")
        self.register(value)
        return value

    def register(self, value: str) -> None:
        """Know the value as it is, and as it stands inside a JSON text, a representation, and either inside the
        other."""
        if len(value) >= LEAST_REGISTERED:
            for spelling in (
                value,
                _json(value),
                repr(value)[1:-1],
                repr(_json(value))[1:-1],
                _json(repr(value)[1:-1]),
            ):
                self._handed_out[spelling.encode()] = None

    def handed_out(self) -> tuple[bytes, ...]:
        return tuple(self._handed_out)

    def redact(self, text: str) -> str:
        """``text`` without any secret that was handed out."""
        for secret in sorted(self._handed_out, key=len, reverse=True):
            text = text.replace(secret.decode(), "[secret]")
        return text

    def sentence(self, said: object) -> str:
        """What an exception, a provider or an author said, as a text that any record can hold: redacted and bounded."""
        try:
            text = str(said) or type(said).__name__
        except Exception:
            text = f"a {type(said).__name__} that cannot be put into words"
        whole = text.encode("utf-8", "replace").decode()
        return self.redact(whole)[: bounds.TEXT_CHARS_MAX]

    def _path(self, name: str) -> Path | None:
        if self.directory is None or not NAME.match(name):
            return None
        path = self.directory / name
        try:
            return path if path.is_file() else None
        except OSError:
            # A directory that is closed to us: for us there is nothing in it.
            return None


def _json(value: str) -> str:
    return canonical.encode(value)[1:-1].decode()
