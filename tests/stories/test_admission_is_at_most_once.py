"""Admission: one unit, at most once a key, and refused with what the caller needs to know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

from agentplane import skill
from agentplane.core.errors import (
    DuplicateAdmission,
    InvalidInput,
    InvalidRequest,
    PayloadTooLarge,
    UnknownCapability,
)
from agentplane.testkit import FakeProvider
from stories.scenes import all_runs, kinds, one_call, opened, paying


async def test_the_same_key_is_the_same_run(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Sent twice, also at once, also over a restart, the work is admitted once."""
    provider = FakeProvider()
    once = one_call(paying(provider))
    async with opened(tmp_path, once) as plane:
        answers = []

        async def ask() -> None:
            answers.append(await plane.run("story.run", {"order": "7"}, key="k"))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ask)
    async with opened(tmp_path, once) as plane:
        answers.append(await plane.run("story.run", {"order": "7"}, key="k"))
        assert len({answer.run for answer in answers}) == 1
        assert sum(answer.admitted for answer in answers) == 1
        assert len(provider.book) == 1 and len(all_runs(plane)) == 1
        assert kinds(plane, answers[0].run)[:2] == ["RunAdmitted", "PlanFrozen"]


async def test_the_same_key_for_other_work_is_refused(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Other input, or another capability: the holder is named, and nothing is admitted."""
    provider = FakeProvider()
    other = one_call(paying(provider), "story.other")
    async with opened(tmp_path, one_call(paying(provider)), other) as plane:
        first = await plane.run("story.run", {"order": "7"}, key="k")
        for capability, data in (("story.run", {"order": "8"}), ("story.other", {"order": "7"})):
            with pytest.raises(DuplicateAdmission) as refused:
                await plane.run(capability, data, key="k")
            assert refused.value.details["run"] == first.run and refused.value.row.http == 409
        assert len(all_runs(plane)) == 1


async def test_equal_input_is_equal_whatever_its_spelling(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Members in another order, a whole float: the same work."""
    async with opened(tmp_path, one_call(paying(FakeProvider()))) as plane:
        first = await plane.run("story.run", {"order": "7", "n": 1}, key="k")
        again = await plane.run("story.run", {"n": 1.0, "order": "7"}, key="k")
        assert again.run == first.run and not again.admitted


async def test_without_a_key_every_request_is_work(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Nobody but the caller can say that two requests are one."""
    provider = FakeProvider()
    async with opened(tmp_path, one_call(paying(provider))) as plane:
        runs = {(await plane.run("story.run", {})).run for _ in range(2)}
        assert len(runs) == 2 and len(provider.book) == 2


class Wanted(msgspec.Struct, forbid_unknown_fields=True):
    order: str
    lines: list[int] = []


@pytest.mark.parametrize(
    ("data", "path"),
    [({"order": 3}, "$.order"), ({"order": "x", "lines": [1, "2"]}, "$.lines[1]"), ({"order": "x", "more": 1}, "$")],
)
async def test_input_that_does_not_fit_is_refused_with_its_path(
    autojump_clock: MockClock, tmp_path: Path, data: Any, path: str
) -> None:
    """Path and expected type, and no run."""

    @skill("story.run")
    async def typed(cx: Any, request: Wanted) -> None:
        return None

    async with opened(tmp_path, typed) as plane:
        with pytest.raises(InvalidInput) as refused:
            await plane.run("story.run", data)
        assert refused.value.details["path"] == path and not all_runs(plane)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("capability", "data", "key", "error"),
    [
        ("story.none", {}, None, UnknownCapability),
        ("story.run", {"x": float("nan")}, None, InvalidInput),
        ("story.run", {"x": "\ud800"}, None, InvalidInput),
        ("story.run", {"x": {1, 2}}, None, InvalidInput),
        ("story.run", nested(127), None, InvalidInput),
        ("story.run", nested(128), None, InvalidInput),
        ("story.run", {"x": "y" * 1_100_000}, None, PayloadTooLarge),
        ("story.run", {}, "", InvalidRequest),
        ("story.run", {}, "k" * 513, InvalidRequest),
        ("story.run", {}, "\ud800", InvalidRequest),
    ],
)
async def test_what_cannot_be_recorded_is_refused_before_it_exists(
    autojump_clock: MockClock, tmp_path: Path, capability: str, data: Any, key: str | None, error: type[Exception]
) -> None:
    """One sentence of the error table, and nothing in the store."""
    async with opened(tmp_path, one_call(paying(FakeProvider()))) as plane:
        try:
            outcome = await plane.run(capability, data, key=key)
        except error:
            assert not all_runs(plane)
        else:
            assert data == nested(127) and outcome.status == "failed", "as deep as a record may hold it"


async def test_the_unknown_capability_names_those_that_exist(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A mistake is answered with what there is."""
    async with opened(tmp_path, one_call(paying(FakeProvider()))) as plane:
        with pytest.raises(UnknownCapability, match=r"story\.run"):
            await plane.run("story.rum", {})
