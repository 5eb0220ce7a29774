"""Makes the parts of the docs that come from the code, between their markers. `python docs/make.py` writes,
`--check` compares.

Made parts: the rooms, the lifecycles, the record kinds and their members, the error table, the roles,
the HTTP table.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import msgspec

from agentplane.core import errors, lifecycle, records, roles
from agentplane.core.dispositions import HTTP_TABLE

DOCS = Path(__file__).parent
MARK = re.compile(r"(<!-- made: (?P<name>[a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def rooms() -> str:
    """The order of rooms, from the file that the layer test reads."""
    listed = tomllib.loads((DOCS.parent / "tests" / "tidy.toml").read_text(encoding="utf-8"))["rooms"]
    return "```\n" + " < ".join(listed) + "\n```\n"


def diagram(name: str) -> Callable[[], str]:
    return lambda: "```mermaid\n" + lifecycle.mermaid(lifecycle.TABLES[name]) + "\n```\n"


def kinds() -> str:
    lines = ["| kind | members | optional |", "|---|---|---|"]
    envelope = set(records.Record.__struct_fields__)
    for kind in records.KINDS:
        fields = [field for field in msgspec.structs.fields(kind) if field.name not in envelope]
        must = ", ".join(f"`{field.encode_name}`" for field in fields if field.required)
        may = ", ".join(f"`{field.encode_name}`" for field in fields if not field.required)
        lines.append(f"| `{kind.__name__}` | {must} | {may} |")
    return "\n".join(lines) + "\n"


def error_table() -> str:
    lines = ["| code | who must act | exit | HTTP | next |", "|---|---|---|---|---|"]
    lines += [
        f"| `{e.row.code}` | {e.row.who} | {e.row.exit} | {e.row.http} | {e.row.next} |" for e in errors.every_error()
    ]
    return "\n".join(lines) + "\n"


def role_table() -> str:
    lines = ["| role | actions |", "|---|---|"]
    lines += [
        f"| {role} | {', '.join(f'`{action}`' for action in sorted(actions))} |"
        for role, actions in roles.ROLES.items()
    ]
    return "\n".join(lines) + "\n"


def http_table() -> str:
    lines = ["| stage | status | when | disposition |", "|---|---|---|---|"]
    for row in HTTP_TABLE:
        status = "any" if row.low is None else str(row.low) if row.low == row.high else f"{row.low}–{row.high}"
        said = "done" if row.disposition is None else row.disposition.value + (", permanent" if row.permanent else "")
        lines.append(f"| {row.stage.value} | {status} | {row.when.value} | {said} |")
    return "\n".join(lines) + "\n"


PARTS: dict[str, Callable[[], str]] = {
    "rooms": rooms,
    "life-of-a-run": diagram("run"),
    "life-of-a-step": diagram("step"),
    "life-of-an-effect": diagram("effect"),
    "life-of-a-group": diagram("group"),
    "life-of-a-case": diagram("case"),
    "life-of-a-task": diagram("task"),
    "life-of-an-obligation": diagram("obligation"),
    "life-of-an-event": diagram("event"),
    "kinds": kinds,
    "errors": error_table,
    "roles": role_table,
    "http": http_table,
}


def made(text: str) -> str:
    """``text`` with every made part as the code has it now."""
    return MARK.sub(lambda found: found[1] + PARTS[found["name"]]() + found[3], text)


def main() -> int:
    stale = [
        path
        for path in sorted(DOCS.glob("*.md"))
        if made(path.read_text(encoding="utf-8")) != path.read_text(encoding="utf-8")
    ]
    for path in stale:
        if "--check" not in sys.argv:
            path.write_text(made(path.read_text(encoding="utf-8")), encoding="utf-8")
        print(("stale: " if "--check" in sys.argv else "made: ") + path.name)
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
