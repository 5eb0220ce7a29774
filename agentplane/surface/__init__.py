"""Who asks: one table of operations, behind every door.

Owns operations, access and the apps that carry them. Refuses identity from a body. Invariant: a refusal comes before
ids are
parsed, and every route is one row of the table.
"""

from __future__ import annotations
