"""An application's ledger in the journal's own file, for whoever measures or tests atomic members.

Owns one table and the skill that posts to it. Refuses nothing. Invariant: a posting is one row, written by the commit
that records it.
"""

from __future__ import annotations

from typing import Any, Final

from agentplane.authoring.skill import skill
from agentplane.authoring.sql import sql
from agentplane.authoring.types import Step

TABLE: Final = "CREATE TABLE app_postings (id INTEGER, amount INTEGER) STRICT"


@skill("testkit.post")
async def post(cx: Step, request: dict[str, Any]) -> None:
    """``times`` postings, each a group of its own with one atomic member."""
    for number in range(request["times"]):
        async with cx.group("posting", ["ledger"]) as g:
            g.atomic("ledger", sql("INSERT INTO app_postings VALUES (?, 1)", number, rows=1))
            await g.commit()
