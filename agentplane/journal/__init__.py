"""What happened: one SQLite file, one writer, many readers.

Owns every table's DDL, the writer, leases, seals, blobs and the lists derived from records. Refuses
decisions: a unit says whether its constraints held. Invariant: nothing is acknowledged before the commit that
holds it.
"""

from __future__ import annotations
