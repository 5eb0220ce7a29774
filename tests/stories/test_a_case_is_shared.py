"""A matter that many runs share: which one a run belongs to is decided by its keys alone, its state is written over the
version that was read or not at all, and what happened to it is in the journals of its runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from agentplane import EffectFailed, skill
from agentplane.core.errors import CaseConflict, InvalidInput, InvalidRequest
from agentplane.core.records import CaseBound, RunAdmitted
from agentplane.engine.plane import Plane
from agentplane.journal.tx import Tx
from agentplane.work import matters
from stories.scenes import of_kind, opened, records


@skill("story.look")
async def look(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
    view = await cx.case.read()
    return {"case": cx.case.id, "state": view.state, "version": view.version, "status": view.status}


@skill("story.write")
async def write(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
    expected = request.get("expected")
    if expected is None:
        expected = (await cx.case.read()).version
    try:
        return await cx.case.write(request["state"], expected=expected)
    except EffectFailed as error:
        return error.fault.code


@skill("story.status")
async def move(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
    try:
        if request.get("promise"):
            await cx.deadline("reply", days=1)
        before = await cx.case.set_status(request["to"])
        return {"from": before}
    except EffectFailed as error:
        return error.fault.code


SKILLS = (look, write, move)


def row(plane: Plane, case: str) -> matters.Matter:
    return plane.store.readers.read(lambda tx: matters.get(tx, case))


async def case_of(plane: Plane, **keys: str) -> str:
    outcome = await plane.run("story.look", {}, correlate=keys)
    assert outcome.status == "succeeded", outcome
    return str(outcome.output["case"])  # type: ignore[index]


async def test_runs_under_the_same_keys_are_of_one_case(autojump_clock: MockClock, tmp_path: Path) -> None:
    """The first opens it, the second joins it, and every record of both names it. (S112)"""
    async with opened(tmp_path, *SKILLS) as plane:
        first = await plane.run("story.look", {}, correlate={"order": "O-1"})
        second = await plane.run("story.look", {}, correlate={"order": "O-1"})
        case = first.output["case"]  # type: ignore[index]
        assert second.output["case"] == case  # type: ignore[index]
        assert await case_of(plane, order="O-2") != case
        bound = [of_kind(plane, one.run, CaseBound)[0] for one in (first, second)]
        assert [one.opened for one in bound] == [True, False]
        assert {one.case for one in records(plane, first.run) + records(plane, second.run)} == {case}
        found = plane.store.readers.read(lambda tx: matters.history(tx, case, 100))
        assert {one.record.run for one in found} == {first.run, second.run}
        times = [(one.record.at, one.record.run, one.record.seq) for one in found]
        assert times == sorted(times)


async def test_a_key_that_is_free_is_added_and_keys_of_two_cases_are_refused(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """S112."""
    async with opened(tmp_path, *SKILLS) as plane:
        case = await case_of(plane, order="O-1")
        assert await case_of(plane, order="O-1", parcel="P-1") == case
        assert await case_of(plane, parcel="P-1") == case
        other = await case_of(plane, order="O-2")
        with pytest.raises(CaseConflict) as refused:
            await plane.run("story.look", {}, correlate={"order": "O-2", "parcel": "P-1"})
        assert case in refused.value.message and other in refused.value.message


async def test_keys_that_are_none_are_refused_before_anything_is_written(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with opened(tmp_path, *SKILLS) as plane:
        for wrong in ({}, {"Order": "O"}, {"order": ""}, {"order": "a\nb"}, {"order": 5}, {"o": "x" * 300}):
            with pytest.raises(InvalidInput):
                await plane.run("story.look", {}, correlate=wrong)  # type: ignore[arg-type]
        assert plane.store.readers.read(lambda tx: matters.by_status(tx, None, 10)) == []


async def test_a_repeat_under_the_same_key_asks_the_same_case(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Correlation is part of what an admission key stands for."""
    from agentplane.core.errors import DuplicateAdmission

    async with opened(tmp_path, *SKILLS) as plane:
        first = await plane.run("story.look", {}, key="k", correlate={"order": "O-1"})
        again = await plane.run("story.look", {}, key="k", correlate={"order": "O-1"})
        assert again.run == first.run and not again.admitted
        with pytest.raises(DuplicateAdmission):
            await plane.run("story.look", {}, key="k", correlate={"order": "O-2"})


async def test_a_state_is_written_over_the_version_that_was_read(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Who lost is told so, and nothing of theirs stands; a replay writes nothing again. (S113)"""
    async with opened(tmp_path, *SKILLS) as plane:
        keys = {"order": "O-1"}
        first = await plane.run("story.write", {"state": {"n": 1}}, correlate=keys)
        assert first.output == 1
        second = await plane.run("story.write", {"state": {"n": 2}, "expected": 1}, correlate=keys)
        assert second.output == 2
        lost = await plane.run("story.write", {"state": {"n": 9}, "expected": 1}, correlate=keys)
        assert lost.output == "case_conflict"
        case = await case_of(plane, order="O-1")
        assert (row(plane, case).state, row(plane, case).version) == ({"n": 2}, 2)
        for run in (first.run, second.run, lost.run):
            assert (await plane.replay(run, strict=True)).verdict == "verified"
        assert row(plane, case).version == 2


async def test_closing_frees_the_keys_and_is_refused_while_a_promise_is_open(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """S114."""
    async with opened(tmp_path, *SKILLS) as plane:
        keys = {"order": "O-1"}
        refused = await plane.run("story.status", {"to": "closed", "promise": True}, correlate=keys)
        assert refused.output == "obligations_open"
        case = await case_of(plane, order="O-1")
        assert row(plane, case).status == "open"

        def met(tx: Tx) -> None:
            tx.run("UPDATE obligation SET state = 'met' WHERE tenant = ?", tx.tenant)

        await plane.writer.do(met)
        closed = await plane.run("story.status", {"to": "closed"}, correlate=keys)
        assert closed.output == {"from": "open"}
        assert row(plane, case).status == "closed"
        assert await case_of(plane, order="O-1") != case


async def test_a_case_that_is_reopened_takes_back_only_keys_that_are_free(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    @skill("story.again")
    async def again(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        await cx.case.close()
        await cx.sleep(hours=1)
        await cx.case.reopen()
        return cx.case.id

    async with opened(tmp_path, *SKILLS, again) as plane:
        import trio

        run = (await plane.run("story.again", {}, correlate={"order": "O-1", "parcel": "P-1"})).run
        newer = await case_of(plane, order="O-1")
        await trio.sleep(3605)
        await plane.runs.wait_idle()
        outcome = await plane.outcome(run)
        assert outcome.status == "succeeded", outcome
        assert await case_of(plane, parcel="P-1") == outcome.output
        assert await case_of(plane, order="O-1") == newer


async def test_a_run_without_a_case_is_told_so(autojump_clock: MockClock, tmp_path: Path) -> None:
    told: list[str] = []

    @skill("story.none")
    async def none(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        try:
            await cx.case.read()
        except InvalidRequest as error:
            told.append(error.message)

    async with opened(tmp_path, none) as plane:
        run = (await plane.run("story.none", {})).run
        assert "correlate" in told[0]
        assert of_kind(plane, run, RunAdmitted)[0].case is None
