"""What waits for time or for a person, as an operator sees it: the two lists, budgets, raises, cancels, and the words
of a run that stopped."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from agentplane import Budget, Recovery, RetryPolicy, effect, skill
from agentplane.core.records import Basis
from agentplane.surface.access import EVERY_ROLE, Who
from agentplane.surface.attention import conditions
from stories.scenes import opened
from stories.waiting_scenes import DAY_MS, asking, deliver, refunding
from surface import doors
from surface.doors import Answer, Door, door
from surface.terminals import Plane as Terminal

NEVER = "run_" + "0" * 26


@skill("wait.days")
async def waits(cx: Any, request: dict) -> None:  # type: ignore[type-arg]
    await cx.sleep(days=request["days"])


@skill("wait.dear", budget=Budget(max_effects=2))
async def dear(cx: Any, request: dict) -> int:  # type: ignore[type-arg]
    return len([await cx.do(doors.note(order=str(at))) for at in range(4)])


@skill("wait.landed")
async def landed(cx: Any, request: dict) -> None:  # type: ignore[type-arg]
    await cx.do(doors.note(order="A-1"))
    raise ValueError("no truck")


@effect("desk.grab", recovery=Recovery.REQUIRES_OPERATOR, retry=RetryPolicy(max_attempts=1))
async def grab(call: Any) -> None:
    raise RuntimeError("the line went dead")


@skill("wait.group")
async def group(cx: Any, request: dict) -> None:  # type: ignore[type-arg]
    async with cx.group("checkout", ["stock"]) as g:
        await g.reversible("stock", grab(), undo=doors.note(order="back"))


@asynccontextmanager
async def desk(where: Path, monkeypatch: pytest.MonkeyPatch, **more: Any) -> AsyncIterator[Door]:
    monkeypatch.setattr(doors, "SKILLS", (*doors.SKILLS, waits, dear, landed, group))
    with trio.fail_after(60):
        async with door(where, **more) as found:
            yield found


async def begun(at: Door, capability: str, given: Any = None, status: str = "") -> str:
    """A run that has come to rest, as ``status``."""
    answer = await at.post({"capability": capability, "input": {} if given is None else given}, query="?wait=30")
    assert answer.status == 201 and answer.body["status"] == status, answer.body
    return str(answer.body["run"])


async def act(at: Door, run: str, verb: str, body: Any) -> Answer:
    return await at.ask("POST", f"/runs/{run}/{verb}", body)


def one_sentence(answer: Answer, status: int, word: str) -> None:
    said = answer.body["error"]
    assert answer.status == status and word in said, answer.body
    assert said.endswith(".") and "\n" not in said and "Traceback" not in said and answer.body["next"]


async def test_what_waits_for_time_is_listed_by_its_instant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that wakes first first; pages of any size are the same list, and a run that no timer wakes is last."""
    async with desk(tmp_path, monkeypatch) as at:
        runs = {days: await begun(at, "wait.days", {"days": days}, "suspended") for days in (3, 1, 2, 5, 4)}
        await at.plane.writer.do(lambda tx: tx.run("DELETE FROM timer WHERE run IN (?, ?)", runs[2], runs[4]))
        whole = (await at.ask("GET", "/runs/waiting")).body
        wanted = [runs[1], runs[3], runs[5], *sorted([runs[2], runs[4]])]
        assert [one["run"] for one in whole["runs"]] == wanted and whole["truncated"] is False
        assert [one["until"] is None for one in whole["runs"]] == [False, False, False, True, True]
        assert whole["runs"][0]["waiting_for"] == f"waits until {whole['runs'][0]['until']}"
        for limit in (1, 2, 3, 4):
            found, query = [], f"?limit={limit}"
            for _ in range(9):
                page = (await at.ask("GET", "/runs/waiting" + query)).body
                found += [one["run"] for one in page["runs"]]
                if not page["truncated"]:
                    break
                query = f"?limit={limit}&after={page['next']}"
            assert found == wanted, limit
        one_sentence(await at.ask("GET", "/runs/waiting?after=nonsense"), 400, "not a cursor")
        one_sentence(await at.ask("GET", "/runs/waiting?status=failed"), 400, "query")


@pytest.mark.parametrize("condition, capability, status, verb", [
    ("run.quarantined", "desk.unsure", "quarantined", "reconcile"),
    ("run.exhausted", "wait.dear", "exhausted", "--raise"),
    ("run.failed_with_landed_work", "wait.landed", "failed", "replay"),
    ("group.unsettled_under_seal", "wait.group", "quarantined", "history"),
])  # fmt: skip
async def test_what_waits_for_a_person_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, condition: str, capability: str, status: str, verb: str
) -> None:
    """Each condition by its name, with who is concerned and the verb that ends it; ten are named and the rest is
    counted; what a build does not look for is said."""
    async with desk(tmp_path, monkeypatch) as at:
        given = {"order": "A-1"} if capability == "desk.unsure" else {}
        calm = (await at.ask("GET", "/attention")).body
        assert (calm["needs_attention"], calm["conditions"]) == (False, [])
        assert "drill" in calm["not_checked"]
        runs = {await begun(at, capability, given, status) for _ in range(12)}
        if condition.startswith("group"):
            for run in runs:
                assert (await act(at, run, "abandon", {"reason": "nobody knows"})).status == 200
        loud = (await at.ask("GET", "/attention")).body
        assert loud["needs_attention"] is True
        (found,) = loud["conditions"]
        assert found["condition"] == condition and verb in found["remedy"] and found["subjects"][0] in found["next"]
        assert (found["found"], found["unlisted"], found["at_least"]) == (12, 2, False)
        assert len(set(found["subjects"])) == 10 and set(found["subjects"]) <= runs
        (fewer,) = (await at.ask("GET", "/attention?limit=5")).body["conditions"]
        assert (fewer["found"], fewer["at_least"], fewer["unlisted"]) == (5, True, 0)


async def test_work_that_failed_without_landing_needs_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed run of which nothing stands, and one that waits for time, are no condition."""
    async with desk(tmp_path, monkeypatch) as at:
        await begun(at, "desk.failing", {}, "failed")
        await begun(at, "wait.days", {"days": 1}, "suspended")
        assert (await at.ask("GET", "/attention")).body["needs_attention"] is False


@pytest.mark.parametrize("budget, word", [
    ({"max_effects": -1}, "from 0 to"),
    ({"max_parallel_steps": 0}, "from 1 to"),
    ({"max_cups": 3}, "no ceiling 'max_cups'"),
    ({"max_effects": 3}, "may only narrow"),
    ({"max_effects": 2**70}, "from 0 to"),
    ({"max_effects": "2"}, "budget"),
    ({"max_effects": 1.5}, "budget"),
    ([], "object"),
])  # fmt: skip
async def test_a_budget_that_is_none_admits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: Any, word: str
) -> None:
    """Negative, unknown, wider than declared, or not a number: one sentence, and no run."""
    async with desk(tmp_path, monkeypatch) as at:
        refused = await at.post({"capability": "wait.dear", "input": {}, "budget": budget})
        one_sentence(refused, 422, word)
        assert (await at.ask("GET", "/runs")).body["runs"] == []


async def test_a_narrower_budget_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request's ceilings are those of its run, and the show says which was reached and what ends it."""
    async with desk(tmp_path, monkeypatch) as at:
        answer = await at.post({"capability": "wait.dear", "input": {}, "budget": {"max_effects": 1}}, query="?wait=30")
        assert answer.body["status"] == "exhausted" and "1 of 1" in answer.body["error"]
        shown = (await at.ask("GET", f"/runs/{answer.body['run']}")).body
        assert shown["exhaustion"] == {"limit": "max_effects", "allowed": 1, "used": 1}
        assert shown["next"] == f"agentplane replay {answer.body['run']} --raise max_effects=... --reason ..."
        assert shown["landed_work"] == ["desk.note"] and shown["sealed"] is False


async def test_a_run_is_given_more_room_by_a_supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only who speaks for a person may raise; of a run that is not exhausted, of a ceiling that it does not have, and
    to no more than it has, it is refused in one sentence; and then it goes on."""
    who = [Who(actor="anna", basis=Basis.AUTHENTICATED, roles=EVERY_ROLE)]
    async with desk(tmp_path, monkeypatch, identify=lambda: who[0]) as at:
        run = await begun(at, "wait.dear", {}, "exhausted")
        failed = await begun(at, "desk.failing", {}, "failed")
        raising = {"raise": {"max_effects": 9}, "reason": "it is worth it"}
        for roles in (("reader",), ("operator",), ("reader", "operator")):
            who[0] = Who(actor="otto", basis=Basis.AUTHENTICATED, roles=roles)
            one_sentence(await act(at, run, "replay", raising), 403, "supervisor")
        who[0] = Who(actor="anna", basis=Basis.AUTHENTICATED, roles=("supervisor",))
        one_sentence(await act(at, failed, "replay", raising), 409, "an exhausted run")
        one_sentence(await act(at, NEVER, "replay", raising), 404, "no run")
        one_sentence(await act(at, run, "replay", raising | {"raise": {"max_tokens": 5}}), 422, "no ceiling max_tokens")
        one_sentence(await act(at, run, "replay", raising | {"raise": {"max_effects": 2}}), 422, "more than that")
        one_sentence(await act(at, run, "replay", raising | {"raise": {"max_effects": "9"}}), 422, "raise")
        one_sentence(await act(at, run, "replay", {"raise": {"max_effects": 9}}), 400, "reason")
        one_sentence(await act(at, run, "replay", raising | {"retry": True}), 400, "ask for one of them")
        raised = await act(at, run, "replay", raising)
        assert (raised.status, raised.body["status"], raised.body["output"]) == (200, "succeeded", 4)
        records = (await at.ask("GET", f"/runs/{run}/history")).body["records"]
        (by,) = [one for one in records if one["kind"] == "BudgetRaised"]
        assert by["raised_by"]["actor"] == "anna" and by["ceilings"] == {"max_effects": 9}


async def test_a_cancel_says_who_asked_first_and_what_forbids_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unknown run is none; a quarantined one names the two verbs; the second who asks is told of the first."""
    who = [Who(actor="anna", basis=Basis.AUTHENTICATED, roles=EVERY_ROLE)]
    async with desk(tmp_path, monkeypatch, identify=lambda: who[0]) as at:
        one_sentence(await act(at, NEVER, "cancel", {"reason": "stop"}), 404, "no run")
        one_sentence(await act(at, "7", "cancel", {"reason": "stop"}), 400, "run id")
        doubtful = await begun(at, "desk.unsure", {"order": "A-1"}, "quarantined")
        refused = await act(at, doubtful, "cancel", {"reason": "stop"})
        one_sentence(refused, 409, "`agentplane reconcile`")
        assert "`agentplane quarantine`" in refused.body["error"]
        failed = await begun(at, "wait.landed", {}, "failed")
        at.plane.sweep.halted = lambda: True
        answers = []
        for name in ("anna", "otto"):
            who[0] = Who(actor=name, basis=Basis.AUTHENTICATED, roles=EVERY_ROLE)
            answers.append(await act(at, failed, "cancel", {"reason": f"{name} says so"}))
        assert [one.status for one in answers] == [202, 202]
        assert [(one.body["recorded"], one.body["requested_by"]) for one in answers] == [
            (True, "anna"), (False, "anna"),
        ]  # fmt: skip
        assert (await at.ask("GET", f"/runs/{failed}")).body["cancellation_requested_by"] == "anna"


async def test_a_run_that_stopped_says_what_it_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Suspended: for what and until when. Failed with landed work: what stands, and the verb that goes on."""
    async with desk(tmp_path, monkeypatch) as at:
        run = await begun(at, "wait.days", {"days": 1}, "suspended")
        shown = (await at.ask("GET", f"/runs/{run}")).body
        assert shown["status"] == "suspended" and shown["waiting_for"] == f"waits until {shown['until']}"
        assert "error" not in shown
        assert shown["until"] == (await at.ask("GET", "/runs/waiting")).body["runs"][0]["until"]
        assert shown["sealed"] is False and shown["concluded"] is None
        run = await begun(at, "wait.landed", {}, "failed")
        shown = (await at.ask("GET", f"/runs/{run}")).body
        assert shown["landed_work"] == ["desk.note"] and shown["error"]["message"] == "no truck"
        assert shown["next"] == f"agentplane replay {run}"
        assert (await act(at, run, "replay", {})).status == 200
        run = await begun(at, "desk.failing", {}, "failed")
        assert "landed_work" not in (await at.ask("GET", f"/runs/{run}")).body


TERMINAL = '''
"""Skills of what waits."""
from agentplane import Budget, Recovery, effect, skill


@effect("desk.note", recovery=Recovery.RETRY)
async def note(call, *, order: str):
    """Harmless to repeat."""
    return {"noted": order}


@skill("wait.days")
async def days(cx, request: dict):
    await cx.sleep(days=request["days"])


@skill("wait.dear", budget=Budget(max_effects=2))
async def dear(cx, request: dict):
    return [await cx.do(note(order=str(at))) for at in range(4)]
'''


def test_the_terminal_says_what_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit statuses with the plane down: 3 of a run that waits, 1 while something needs a person, 0 when nothing does,
    2 in one sentence for ceilings that are none."""
    monkeypatch.setenv("PYTHONHASHSEED", "0")  # else each of them begins twice
    plane = Terminal.made(tmp_path / "plane", skills=TERMINAL)
    suspended = plane.run("wait.days", {"days": 1})
    assert suspended.status == 3 and suspended.body["status"] == "suspended", suspended.err
    listed = plane.verb("waiting")
    assert listed.status == 0 and [one["run"] for one in listed.body["runs"]] == [suspended.body["run"]]
    calm = plane.verb("attention")
    assert calm.status == 0 and calm.body["needs_attention"] is False
    exhausted = plane.run("wait.dear", {})
    assert exhausted.status == 1 and exhausted.body["status"] == "exhausted"
    loud = plane.verb("attention")
    assert loud.status == 1 and loud.body["conditions"][0]["condition"] == "run.exhausted"
    run = exhausted.body["run"]
    for said in (
        plane.run("wait.dear", {}, "--budget", "max_effects=-1"),
        plane.verb("replay", run, "--raise", "nonsense", "--reason", "r"),
    ):
        lines = [line for line in said.err.splitlines() if not line.startswith("key ")]
        assert said.status == 2 and len(lines) <= 2 and "Traceback" not in said.err, (said.status, said.err)
    raised = plane.verb("replay", run, "--raise", "max_effects=9", "--reason", "it is worth it")
    assert raised.status == 0 and len(json.loads(raised.out)["output"]) == 4, raised.err


async def test_a_window_that_is_over_and_a_dead_letter_are_told_by_the_planes_own_clock(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """An open task past its window is overdue before any sweep has looked; a dead letter is told of for a week, and
    stays in its list."""

    class Host:
        """A terminal's: what the process itself knows is not asked."""

        serving = False

        def __init__(self, plane: Any) -> None:
            self.plane = plane

        async def read(self, body: Any) -> Any:
            return await self.plane.read(body)

        def faults(self) -> dict[str, list[str]]:
            return {}

    async with opened(tmp_path, asking(refunding([]), due=60), recover=False) as plane:
        await plane.run("story.ask", {"order": "O-1", "amount": 5})
        await deliver(plane, "O-9")
        now_ms = plane.world.now_ms()

        async def told(at_ms: int) -> set[str]:
            plane.world.now_ms = lambda: at_ms
            return {one["condition"] for one in await conditions(Host(plane), 10)}  # type: ignore[arg-type]

        assert await told(now_ms) == set() and await told(now_ms + 61_000) == {"task.overdue"}
        plane.world.now_ms = lambda: now_ms + 8 * DAY_MS
        await plane.sweep.tick(now_ms + 8 * DAY_MS)
        assert "event.dead_lettered" in await told(now_ms + 6 * DAY_MS)
        assert "event.dead_lettered" not in await told(now_ms + 8 * DAY_MS)
