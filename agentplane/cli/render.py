"""Answers as text: a table at a terminal, JSON otherwise.

Owns the three outputs and the escaping of what is shown to a person. Refuses control characters from records.
Invariant: the
answer goes to standard output, everything else to standard error.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable
from typing import Any

LISTS = {"runs": "runs", "waiting": "runs", "attention": "conditions", "history": "records",
         "tasks": "tasks", "cases": "cases", "obligations": "obligations", "dead-letters": "dead_letters"}  # fmt: skip
"""Which member of a verb's answer is its rows, for ``jsonl`` and tables."""
COLUMNS = {
    "runs": ("run", "capability", "status", "admitted", "records", "reason"),
    "waiting": ("run", "until", "waiting_for"),
    "attention": ("condition", "found", "subjects", "next"),
    "tasks": ("id", "priority", "state", "due_at", "assignee", "decidable_by_you", "summary"),
    "cases": ("case", "kind", "status", "opened", "correlation"),
    "obligations": ("case", "obligation", "state", "due", "run"),
    "dead-letters": ("event", "kind", "correlation", "source", "received", "why"),
    "history": ("seq", "at", "kind", "step", "effect_key", "what"),
}
WIDTH_MAX = 60
EXACT = ("next", "id", "obligation", "assignee", "correlation", "waiting_for")
"""Columns that are for copying, or for comparing: never cut."""
SECTIONS = {"deadlines": ("obligation", "state", "due", "warn", "acknowledged_by", "note"),
            "history": ("at", "run", "seq", "kind", "what")}  # fmt: skip
"""Lists inside one answer that are tables of their own, and their columns."""
BLOCKS = ("rendering",)
"""Members that are a text of several lines, escaped already where they were made."""
BESIDE = {"rendering": "justification"}
"""Members that are the value of which a block is the text: a person is shown the text."""


def choose(wanted: str | None) -> str:
    """The output to use: what was asked for, else by whether standard output is a terminal."""
    if wanted is not None:
        return wanted
    return "table" if sys.stdout.isatty() else "json"


def safe(value: Any) -> str:
    """One line of text for a terminal: control and direction-changing characters are shown as escapes."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else _words(value)
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _words(value: object) -> str:
    """Texts are listed as a person lists them; anything else is JSON."""
    if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        return ", ".join(value)
    return json.dumps(value, ensure_ascii=False)


def emit(verb: str, body: dict[str, Any], output: str) -> None:
    """Write an answer of ``verb`` to standard output."""
    if output == "json":
        print(_json(body, indent=2))
    elif output == "jsonl":
        rows = body.get(LISTS.get(verb, ""))
        for row in rows if rows is not None else [body]:
            print(_json(row))
    elif verb in LISTS:
        print(table([describe(verb, row) for row in body[LISTS[verb]]], COLUMNS[verb]))
        if body.get("truncated"):
            tell(f"more: --from {body['next_from']}" if verb == "history" else f"more: --after {body['next']}")
    else:
        print(pairs(body))


def _json(value: object, indent: int | None = None) -> str:
    """JSON in which what a terminal would act on, or what turns its text around, is escaped as JSON escapes it."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text)


def describe(verb: str, row: dict[str, Any]) -> dict[str, Any]:
    shown = dict(row)
    if isinstance(row.get("correlation"), dict):
        # As `waiting` has what is waited for.
        shown["correlation"] = [f"{namespace}={value}" for namespace, value in row["correlation"].items()]
    if verb != "history":
        return shown
    shown["effect_key"] = str(row.get("effect_key", ""))[:12]
    if row["kind"] == "EffectStarted":
        shown["what"] = f"{row['descriptor']['kind']} attempt {row['attempt']}"
    else:
        known = (
            "limit",
            "cause",
            "why",
            "outcome",
            "disposition",
            "verdict",
            "capability",
            "skill",
            "decision",
            "action",
        )
        shown["what"] = next((str(row[name]) for name in known if name in row), "")
    return shown


def table(rows: Iterable[dict[str, Any]], columns: tuple[str, ...]) -> str:
    """Columns padded to their widest cell, cells cut at a width that fits a terminal."""
    cells = [
        [safe(row.get(column)) if column in EXACT else cut(safe(row.get(column))) for column in columns] for row in rows
    ]
    widths = [max([len(column), *(len(row[i]) for row in cells)]) for i, column in enumerate(columns)]
    lines = ["  ".join(column.upper().ljust(width) for column, width in zip(columns, widths, strict=True)).rstrip()]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join(lines)


def cut(text: str) -> str:
    return text if len(text) <= WIDTH_MAX else text[: WIDTH_MAX - 1] + "…"


def pairs(body: dict[str, Any]) -> str:
    """One member a line, nested ones indented."""
    hidden = {"schema", *(value for block, value in BESIDE.items() if block in body)}
    shown = {name: value for name, value in body.items() if name not in hidden and value not in (None, [], {})}
    width = max((len(name) for name in shown), default=0)
    lines = []
    for name, value in shown.items():
        below = _below(name, value)
        if below is None:
            lines.append(f"{safe(name).ljust(width)}  {safe(value)}")
        else:
            lines += [f"{safe(name)}:", *(f"  {line}" for line in below)]
    return "\n".join(lines)


def _below(name: str, value: object) -> list[str] | None:
    """The lines of a member that does not fit beside its name; None where it does. No line break of a value is one
    here, but those of a block."""
    if name in BLOCKS:
        return [safe(line) for line in str(value).split("\n")]
    if isinstance(value, list) and value and isinstance(value[0], dict):
        if name in SECTIONS:
            columns = tuple(one for one in SECTIONS[name] if any(row.get(one) is not None for row in value))
            return table(value, columns).split("\n")
        return ["  ".join(f"{safe(one)}={safe(item)}" for one, item in row.items()) for row in value]
    if isinstance(value, dict) and len(safe(value)) > WIDTH_MAX:
        return [safe(line) for line in json.dumps(value, indent=2, ensure_ascii=False).split("\n")]
    return None


def tell(line: str) -> None:
    """A line that is not the answer. Whoever closed standard error is told nothing."""
    with contextlib.suppress(OSError, ValueError):
        print(safe(line), file=sys.stderr, flush=True)
