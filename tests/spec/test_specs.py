"""The specifications explored, every mutant of them found, and real runs held to the effect protocol. Needs Java.

Plain tests need neither: the map is held by test_map.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from trio.testing import MockClock

from agentplane import Recovery
from agentplane.core.records import EffectStarted
from agentplane.engine.runlog import RunLog
from agentplane.testkit.fakes import FakeProvider
from spec import check, tlc
from spec.real_runs import gather_of_two, grouped, killed_and_recovered, one_life, refund
from spec.traces import Event, Judged, Trace, judged

pytestmark = pytest.mark.heavy


@pytest.fixture(autouse=True)
def checker(need_tool: Callable[[str], str]) -> None:
    need_tool("java")
    try:
        tlc.jar()
    except tlc.Missing as error:
        pytest.skip(f"missing: {error}")


@pytest.mark.parametrize("spec", tlc.specs())
def test_a_specification_holds(spec: str) -> None:
    """Every invariant in every state, every action taken, every ending reached, no state that rests but an ending, and
    enough states to mean something."""
    assert check.explored(spec).faults == []


@pytest.mark.parametrize("spec", tlc.specs())
def test_every_mutant_trips_exactly_its_invariant(spec: str) -> None:
    """The invariant is violated when it is looked for alone, and all the others hold in all of the mutant's states."""
    found = check.all_tripped(check.mutants(spec))
    assert [
        f"{row.invariant}: alone {row.trips}, others {row.other} ({row.says})" for row in found if not row.exact
    ] == []


def provider(*told: str) -> FakeProvider:
    made = FakeProvider()
    made.tell("refund", *told)
    return made


async def plain(where: Path) -> Trace:
    return await one_life(where, one := provider(), refund(one))


async def retried(where: Path) -> Trace:
    return await one_life(where, one := provider("did_not_happen"), refund(one))


async def doubted(where: Path) -> Trace:
    return await one_life(where, one := provider("in_doubt_after_landing"), refund(one))


async def escalated(where: Path) -> Trace:
    one = provider("in_doubt_after_landing")
    return await one_life(where, one, refund(one, recovery=Recovery.REQUIRES_OPERATOR))


async def gathered(where: Path) -> Trace:
    return await one_life(where, one := provider(), gather_of_two(one))


async def killed(where: Path) -> Trace:
    return await killed_and_recovered(where, one := provider(), refund(one), "effect.acting")


async def killed_and_asked(where: Path) -> Trace:
    one = provider()
    return await killed_and_recovered(where, one, refund(one, recovery=Recovery.RECONCILE, probed=True), "effect.acted")


RUNS = [plain, retried, doubted, escalated, gathered, killed, killed_and_asked]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
async def test_a_real_run_is_a_behaviour_of_the_protocol(autojump_clock: MockClock, tmp_path: Path, run: Any) -> None:
    """Its events in their order, with what was durable at each commit, its records and the provider's book."""
    trace = await run(tmp_path)
    assert len(trace.events) >= 10 and trace.found
    assert judged(trace).accepted


async def test_a_real_run_under_the_writers_thread_is_one_too(tmp_path: Path) -> None:
    """Where commits hold groups and the loop goes on while one is made."""
    assert judged(await grouped(tmp_path, one := provider(), gather_of_two(one))).accepted


# --- what the protocol does not allow ---------------------------------------------------------------------------------


def moved(events: list[Event], name: str, before: str) -> list[Event]:
    """The first ``name`` in front of the first ``before``."""
    at = next(index for index, event in enumerate(events) if event["ev"] == name)
    rest = events[:at] + events[at + 1 :]
    to = next(index for index, event in enumerate(rest) if event["ev"] == before)
    return [*rest[:to], events[at], *rest[to:]]


def without(trace: Trace, at: int) -> Trace:
    """One record missing, the rest numbered as if it had never been."""
    gone = trace.found[at]["s"]
    found = [row | {"s": row["s"] - (row["s"] > gone)} for row in trace.found if row["s"] != gone]
    events = [
        event | {"n": event["n"] - (event["n"] >= gone)} if event["ev"] == "committed" else event
        for event in trace.events
    ]
    return msgspec.structs.replace(trace, found=found, events=events)


def act_before_announcement(trace: Trace) -> Trace:
    return msgspec.structs.replace(trace, events=moved(trace.events, "acting", "announcing"))


def act_before_its_commit(trace: Trace) -> Trace:
    """Everything in its place, but the act began while the announcement was on no disk."""
    announced = next(row["s"] for row in trace.found if row["k"] == "A")
    events = [event for event in trace.events if not (event["ev"] == "committed" and event["n"] == announced)]
    return msgspec.structs.replace(trace, events=events)


def outcome_before_act(trace: Trace) -> Trace:
    return msgspec.structs.replace(trace, events=moved(trace.events, "recorded", "acting"))


def outcome_before_announcement(trace: Trace) -> Trace:
    found = list(trace.found)
    at = next(index for index, row in enumerate(found) if row["k"] == "A")
    found[at], found[at + 1] = found[at + 1] | {"s": at + 1}, found[at] | {"s": at + 2}
    return msgspec.structs.replace(trace, found=found)


def second_act_without_outcome(trace: Trace) -> Trace:
    return without(trace, next(index for index, row in enumerate(trace.found) if row.get("d") == "lost"))


def epoch_backwards(trace: Trace) -> Trace:
    found = [*trace.found[:-1], trace.found[-1] | {"e": 1}]
    return msgspec.structs.replace(trace, found=found)


def takeover_without_a_death(trace: Trace) -> Trace:
    return msgspec.structs.replace(trace, events=[event for event in trace.events if event["ev"] != "crash"])


def paid_twice(trace: Trace) -> Trace:
    *events, book = trace.events
    return msgspec.structs.replace(trace, events=[*events, book | {"n": book["n"] + 1}])


def lost_after_the_commit(trace: Trace) -> Trace:
    """A commit that spoke of one record more than a reader found."""
    at = max(index for index, event in enumerate(trace.events) if event["ev"] == "committed")
    events = [*trace.events]
    events[at] = events[at] | {"n": events[at]["n"] - 1}
    return msgspec.structs.replace(trace, events=events)


DOCTORED = [
    (plain, act_before_announcement), (plain, act_before_its_commit), (plain, outcome_before_act),
    (plain, outcome_before_announcement), (plain, paid_twice), (plain, lost_after_the_commit),
    (killed, second_act_without_outcome), (killed, epoch_backwards), (killed, takeover_without_a_death),
]  # fmt: skip


@pytest.mark.parametrize(("run", "doctor"), DOCTORED, ids=lambda one: one.__name__)
async def test_a_doctored_run_is_refused(
    autojump_clock: MockClock, tmp_path: Path, run: Any, doctor: Callable[[Trace], Trace]
) -> None:
    """One thing of a real trace changed, and no behaviour of the protocol has it any more."""
    trace = await run(tmp_path)
    changed = doctor(trace)
    assert changed != trace
    verdict: Judged = judged(changed)
    assert not verdict.accepted and verdict.distinct > 1


async def test_a_broken_engine_makes_runs_that_are_refused(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Announcements that ride and are not waited for: the run ends as well as ever, and its trace is no behaviour."""
    waited_for = RunLog.barrier

    async def hasty(self: RunLog, *specs: Any, **members: Any) -> Any:
        if specs[0][0] is EffectStarted:
            return self.ride(*specs)
        return await waited_for(self, *specs, **members)

    monkeypatch.setattr(RunLog, "barrier", hasty)
    trace = await plain(tmp_path)
    assert [row["d"] for row in trace.found if row["k"] == "C"] == ["succeeded"]
    verdict = judged(trace)
    assert verdict.stopped is not None and trace.events[verdict.stopped]["ev"] == "announced"


def test_the_command_tells_and_counts(capfd: pytest.CaptureFixture[str]) -> None:
    """`python tests/spec/check.py --spec RestoreHeld` ends with 0 and names the specification with its states."""
    assert os.path.isfile(tlc.ROOT / "tests" / "spec" / "check.py")
    assert check.main(["--spec", "RestoreHeld"]) == 0
    assert "RestoreHeld" in capfd.readouterr().out
