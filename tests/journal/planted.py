"""A build that knows more levels than this one: two further migrations, planted in this process.

The same two are in ``planted_migrations.py`` beside, as a module that is put into a build's source or payload.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from agentplane.journal import schema
from agentplane.journal.schema import Migration
from journal.planted_migrations import MIGRATIONS

PLANTED = tuple(Migration(*one) for one in MIGRATIONS)


@contextmanager
def levels(further: Sequence[Migration] = PLANTED) -> Iterator[None]:
    """Within it this build knows ``further`` levels more."""
    kept = schema.MIGRATIONS, schema.LEVEL
    more = (*kept[0], *further)
    schema.MIGRATIONS, schema.LEVEL = more, len(more)  # type: ignore[misc]
    schema.migrate.__kwdefaults__["steps"] = more
    try:
        yield
    finally:
        schema.MIGRATIONS, schema.LEVEL = kept  # type: ignore[misc]
        schema.migrate.__kwdefaults__["steps"] = kept[0]
