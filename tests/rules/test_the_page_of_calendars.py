"""docs/calendars.md says what is so: each row of its tables is reckoned."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from agentplane.work.calendars import resolve, rule_from
from agentplane.work.cron import Cron

PAGE = (Path(__file__).parent.parent.parent / "docs" / "calendars.md").read_text(encoding="utf-8")
BERLIN = ZoneInfo("Europe/Berlin")
SHOWN = "%a %Y-%m-%d %H:%M"


def rows(name: str) -> list[list[str]]:
    """The cells of a checked table, without its head."""
    found = re.search(rf"<!-- checked: {name} -->\n(.*?)<!-- end -->", PAGE, re.DOTALL)
    assert found is not None
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in found[1].splitlines()[2:]]


def rule(text: str) -> dict[str, Any]:
    pairs = re.findall(r'(\w+)=("[^"]*"|\d+)', text)
    assert ", ".join(f"{key}={value}" for key, value in pairs) == text.strip("`")
    return {key: value.strip('"') if value.startswith('"') else int(value) for key, value in pairs}


def local(ms: int, zone: ZoneInfo) -> datetime:
    return datetime.fromtimestamp(ms / 1000, zone)


@pytest.mark.parametrize(("asked", "said", "due"), rows("weeks"))
def test_the_weeks_of_the_page(asked: str, said: str, due: str) -> None:
    wanted = rule(said)
    zone = ZoneInfo(wanted["tz"])
    base = datetime.strptime(asked, SHOWN).replace(tzinfo=zone)
    assert base.strftime(SHOWN) == asked
    found = resolve(rule_from(**wanted), round(base.timestamp() * 1000))
    assert local(found.due_ms, zone).strftime(SHOWN) == due


@pytest.mark.parametrize(("dst", "spring", "autumn"), rows("dst"))
def test_the_two_nights_of_the_page(dst: str, spring: str, autumn: str) -> None:
    for day, wanted in (("2026-03-29", spring), ("2026-10-25", autumn)):
        asked = rule_from(on=day, at="02:30", tz="Europe/Berlin", dst=dst.strip("`"))
        assert local(resolve(asked, 0).due_ms, BERLIN).isoformat(timespec="minutes") == wanted


@pytest.mark.parametrize(("expr", "spring", "autumn"), rows("cron"))
def test_the_schedules_of_the_page(expr: str, spring: str, autumn: str) -> None:
    for day, wanted in (("2026-03-29", spring), ("2026-10-25", autumn)):
        start = datetime.fromisoformat(day).replace(tzinfo=BERLIN)
        first, last = (round(one.timestamp() * 1000) for one in (start, start + timedelta(days=1)))
        found = Cron(expr.strip("`"), "Europe/Berlin").due_between(first - 1, last - 1, 100)
        shown = [local(one, BERLIN).isoformat(timespec="minutes").partition("T")[2] for one in found]
        assert shown == [one for one in wanted.split(", ") if one]
