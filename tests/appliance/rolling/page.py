"""The part of docs/deploys.md that a run of the harness writes.

Owns the text between the two marks. Refuses a page without them. Invariant: what stands there was printed by the run
that it names, and nothing else of the page is touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from appliance.rolling.lanes import Judged
from appliance.rolling.report import TITLES, rows, summary
from house.ratchet import ROOT

PAGE = ROOT / "docs" / "deploys.md"
BEGIN, END = "<!-- begin: python -m appliance.rolling --page -->\n", "<!-- end -->\n"


def write(found: Sequence[Judged], page: Path = PAGE) -> None:
    """Put the reports of a run in the place of those that stand there. Raises ValueError for a page without marks."""
    text = page.read_text("utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page.name} has no place for a report: add the two lines {BEGIN!r} and {END!r}")
    page.write_text(f"{before}{begin}\n{section(found)}\n{end}{after}", "utf-8")


def section(found: Sequence[Judged]) -> str:
    """The sums of every mode first, then every restart."""
    sums, tables = [], []
    for one in found:
        title = f"### {one.mode}: {TITLES[one.mode]}"
        body = [] if one.report is None else [*summary(one.report), ""]
        sums += [title, "", "```text", *body, one.word, "```", ""]
        if one.report is not None:
            tables += [f"### Every restart: {one.mode}", "", "```text", *rows(one.report), "```", ""]
    return "\n".join(sums + tables)
