"""Acts of two people at the same moment, and acts against what the plane is doing: one holds, the other is told why
not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from agentplane.journal import lists
from surface.doors import Answer, Door, Gate, door

REASON = {"reason": "two at once"}


async def at_once(desk: Door, *asked: tuple[str, str, Any]) -> list[Answer]:
    """The answers of several requests that were all made before any was answered."""
    answers: list[Answer | None] = [None] * len(asked)

    async def one(index: int) -> None:
        answers[index] = await desk.ask(*asked[index])

    async with trio.open_nursery() as nursery:
        for index in range(len(asked)):
            nursery.start_soon(one, index)
    return [answer for answer in answers if answer is not None]


def kinds(desk: Door, run: str) -> list[str]:
    found = desk.plane.store.readers.read(lambda tx: lists.whole_history(tx, run))
    return [type(item.record).__name__ for item in found]


async def stuck(desk: Door) -> str:
    answer = await desk.post({"capability": "desk.unsure", "input": {}}, query="?wait=30")
    assert answer.body["status"] == "quarantined"
    return str(answer.body["run"])


async def settled(desk: Door, run: str) -> None:
    effect = (await desk.ask("GET", f"/runs/{run}")).body["undecided"][0]["effect"]
    body = {"effect": effect, "outcome": "landed", "note": "seen", "output": 1}
    assert (await desk.ask("POST", f"/runs/{run}/reconcile", body)).status == 200


async def test_of_two_that_reopen_one_does(tmp_path: Path) -> None:
    """One decision is recorded, the run is walked once, and the other is told what it is now."""
    async with door(tmp_path) as desk:
        run = await stuck(desk)
        await settled(desk, run)
        answers = await at_once(desk, *(("POST", f"/runs/{run}/reopen", REASON) for _ in range(5)))
        assert sorted(answer.status for answer in answers) == [200, 409, 409, 409, 409]
        assert kinds(desk, run).count("QuarantineDecided") == 1 and kinds(desk, run).count("StepFinished") == 1


async def test_of_two_that_answer_an_effect_one_does(tmp_path: Path) -> None:
    """A fact is supplied once; who says the opposite at the same moment is refused."""
    async with door(tmp_path) as desk:
        run = await stuck(desk)
        effect = (await desk.ask("GET", f"/runs/{run}")).body["undecided"][0]["effect"]
        bodies = [{"effect": effect, "outcome": outcome, "note": "n"} for outcome in ("landed", "did-not-happen")]
        answers = await at_once(desk, *(("POST", f"/runs/{run}/reconcile", body) for body in bodies))
        assert sorted(answer.status for answer in answers) == [200, 409]
        assert kinds(desk, run).count("EffectReconciled") == 1


async def test_of_reopen_and_abandon_one_holds(tmp_path: Path) -> None:
    """Whichever was first; a run that was written off is not walked, one that is walked is not written off."""
    async with door(tmp_path) as desk:
        run = await stuck(desk)
        await settled(desk, run)
        answers = await at_once(desk, ("POST", f"/runs/{run}/reopen", REASON), ("POST", f"/runs/{run}/abandon", REASON))
        assert sorted(answer.status for answer in answers) == [200, 409]


async def test_what_is_live_is_neither_reopened_nor_replayed(tmp_path: Path) -> None:
    """L1: the lease of a run that executes here is refused to every asker, and the run goes on."""
    async with door(tmp_path) as desk:
        run = (await desk.post({"capability": "desk.waiting", "input": {}})).body["run"]
        for path, body in (
            ("reopen", REASON),
            ("abandon", REASON),
            ("replay", {}),
            ("replay", {"retry": True} | REASON),
        ):
            answer = await desk.ask("POST", f"/runs/{run}/{path}", body)
            assert answer.status == 409, (path, answer.raw)
        Gate.opened.set()
        assert (await desk.ask("GET", f"/runs/{run}?wait=30")).body["output"] == "opened"


async def test_nothing_is_walked_again_while_it_drains_or_is_paused(tmp_path: Path) -> None:
    """Reopen, replay and retry are refused and record nothing; what only records is still taken."""
    async with door(tmp_path) as desk:
        run = await stuck(desk)
        failed = (await desk.post({"capability": "desk.failing", "input": {}}, query="?wait=30")).body["run"]
        await settled(desk, run)
        before = kinds(desk, run), kinds(desk, failed)
        await desk.ask("POST", "/pause", {"reason": "an incident"})
        for _ in range(2):
            for path, body in ((f"/runs/{run}/reopen", REASON), (f"/runs/{failed}/replay", {})):
                answer = await desk.ask("POST", path, body)
                assert answer.status == 503, (path, answer.raw)
            await desk.ask("POST", "/release", {"paused": True})
            desk.plane.close_admission()
        assert (kinds(desk, run), kinds(desk, failed)) == before
        assert (await desk.ask("POST", f"/runs/{run}/abandon", REASON)).status == 200


async def test_two_that_pause_and_release_agree_in_the_end(tmp_path: Path) -> None:
    """What memory says is what the journal says, whoever was last."""
    async with door(tmp_path) as desk:
        await at_once(desk, *(("POST", "/pause", {"reason": str(number)}) for number in range(4)))
        assert desk.plane.state.paused is not None
        assert (await desk.post({"capability": "desk.settle", "input": {"order": "1"}})).status == 503
        await at_once(desk, *(("POST", "/release", {"paused": True}) for _ in range(4)))
        assert desk.plane.state.paused is None
        assert (await desk.post({"capability": "desk.settle", "input": {"order": "1"}})).status == 201


async def test_of_many_under_one_key_one_is_admitted(tmp_path: Path) -> None:
    """Sixteen at once with the same key: one 201, and the rest 200 with its run."""
    async with door(tmp_path) as desk:
        body = {"capability": "desk.settle", "input": {"order": "1"}}
        answers: list[Answer] = []

        async def one() -> None:
            answers.append(await desk.post(body, key="the-same", query="?wait=30"))

        async with trio.open_nursery() as nursery:
            for _ in range(16):
                nursery.start_soon(one)
        assert sorted(answer.status for answer in answers) == [200] * 15 + [201]
        assert len({answer.body["run"] for answer in answers}) == 1


@pytest.mark.parametrize("size", [1_100_000, 2_000_000])
async def test_an_answer_of_a_person_over_the_bound_is_refused(tmp_path: Path, size: int) -> None:
    """`reconcile` with more than a record holds: refused by name, nothing is recorded, and the plane goes on."""
    async with door(tmp_path) as desk:
        run = await stuck(desk)
        effect = (await desk.ask("GET", f"/runs/{run}")).body["undecided"][0]["effect"]
        before = kinds(desk, run)
        body = {"effect": effect, "outcome": "landed", "note": "n", "output": "x" * size}
        answer = await desk.ask("POST", f"/runs/{run}/reconcile", body)
        assert answer.status == 413, answer.raw[:200]
        assert kinds(desk, run) == before and len(answer.raw) < 2000
        assert (await desk.post({"capability": "desk.settle", "input": {"order": "1"}})).status == 201
