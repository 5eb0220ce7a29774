"""The lab's words: the JSON has the members that others read, and the table names what went wrong."""

from __future__ import annotations

from agentplane.lab.approvals import Approvals
from agentplane.lab.books import DISPLACED, HALVES, WINDOWS, Audit, Evidence, judge
from agentplane.lab.counterexample import Control
from agentplane.lab.report import Result, as_json, as_table, progress
from agentplane.lab.tickets import REVIEWED, Expected


def result(**found: object) -> Result:
    """A result with kills in every window."""
    evidence = Evidence(
        Audit(refunds=18, replays=7, **found),  # type: ignore[arg-type]
        total=30, concluded=30, windows=dict.fromkeys(WINDOWS, 3), halves=dict.fromkeys(HALVES, 1),
        displaced=dict.fromkeys(DISPLACED, True), control_refunds_twice=True,
        approvals=Approvals(3, 3, 1), review=dict.fromkeys(REVIEWED, 1),
    )  # fmt: skip
    control = Control(True, ("rf_000001", "rf_000002"))
    return Result(evidence, judge(evidence), control, 13, 20, 42.5, 7, 204_204)


def test_the_json_has_exactly_the_promised_members() -> None:
    """The members of the issue, and the schema that every JSON object of the plane carries."""
    assert as_json(result()) == {
        "schema": "agentplane.demo/1",
        "verdict": "PASS",
        "kills": {"total": 13, "W1": 3, "W2": 3, "W3": 3, "W4": 3},
        "windows": {"W5": "held", "W6": "held", "W7": "held"},
        "handovers": 20,
        "replays": 7,
        "refunds": 18,
        "duplicates": 0,
        "books_agree": True,
        "work": {"total": 30, "concluded": 30},
        "approvals": {
            "asked": 3, "consumed": 3, "agree": True,
            "review": {
                "decided_twice": 1, "decided_late": 1, "amended": 1, "a_machine_refused": 1, "stale_version": 1,
                "already_answered": 1,
            },
        },
        "control": {"refunds_twice": True, "references": ["rf_000001", "rf_000002"]},
    }  # fmt: skip


def test_the_table_shows_the_references_and_the_reasons() -> None:
    """A PASS prints the control's references; a FAIL names the order that was lost."""
    good = as_table(result())
    assert good.startswith("PASS")
    assert "rf_000001, rf_000002" in good
    assert "2,042.04 EUR" in good
    bad = as_table(result(lost=(Expected("/refunds", "B-7300", 4210),)))
    assert bad.startswith("FAIL")
    assert "order B-7300 was lost" in bad


def test_the_progress_line_fits_a_terminal() -> None:
    """At most 79 columns, whatever the numbers."""
    line = progress(seconds=12.34, concluded=30, total=30, kills=40, of=40, windows=dict.fromkeys(WINDOWS, 100))
    assert len(line) <= 79
    assert "kills 40/40" in line
