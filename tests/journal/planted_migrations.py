"""Two levels that no released build has: an expanding migration, and a contracting one behind it.

Put into a build as its module ``agentplane._planted`` (``packaging/build.sh --plant`` for an executable, a copy beside
``agentplane/__init__.py`` for a source tree), it makes a build of a higher level, for tests of upgrades.
"""

from __future__ import annotations

MIGRATIONS = (
    (
        "planted: where a run is from",
        "ALTER TABLE run ADD COLUMN planted_from TEXT;"
        "CREATE TABLE planted_origin (tenant TEXT NOT NULL, run TEXT NOT NULL, made_from TEXT NOT NULL,"
        " PRIMARY KEY (tenant, run)) STRICT, WITHOUT ROWID;"
        "UPDATE run SET planted_from = capability;"
        "INSERT INTO planted_origin SELECT tenant, run, planted_from FROM run;",
        "expanding",
    ),
    (
        "planted: it is kept at one place",
        "ALTER TABLE run DROP COLUMN planted_from;",
        "contracting",
    ),
)
