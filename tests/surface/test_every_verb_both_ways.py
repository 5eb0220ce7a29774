"""Every verb, with the plane up and with it down: the same schema and exit status, and the exceptions are one table."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from agentplane.appliance import settings
from agentplane.appliance.code import prepare
from agentplane.cli.render import emit
from agentplane.engine.plane import Plane as Engine
from agentplane.surface.access import own_name
from surface.terminals import SKILLS, Plane, Said

TRANSCRIPTS = Path(__file__).with_name("transcripts.json")
NEEDS_SERVING = {"status": ["status"], "drain": ["drain"], "wait": ["wait", "@settled"], "reload": ["reload"]}
"""Verbs that answer 4 with one sentence when nothing serves."""
OUTLIVING = """

from agentplane import Proposal


@skill("desk.asking")
async def asking(cx, request: Wanted):
    call = note(order=request.order)
    question = Proposal(
        summary="Note " + request.order + "?", action=call, evidence={"seen": "line one\\nline two"}, due=3600,
        four_eyes=False, least_basis="asserted",
    )
    decision = await cx.task(question)
    return await cx.do(call, approval=decision) if decision.approved else decision.outcome


@skill("desk.following")
async def following(cx, request: Wanted):
    found = await cx.event("parcel.delivered", correlation={"order": request.order}, hours=1)
    return found.payload


@skill("desk.promising")
async def promising(cx, request: Wanted):
    await cx.case.write({"letters": 1}, expected=0)
    await cx.deadline("answer within a day", minutes=30)
"""
"""What a person decides, what a message ends, and a promise."""
TOML = "event_kept_secs = 1\nsweep_every_secs = 0.2"
NOBODY = "0" * 64
DIFFERS = {"applied", "next", "status", "output", "error", "log_index", "decided_by"}
"""Members that say what being down means: what was recorded and not carried out yet."""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Said, Said]]]:
    """Each case, said to a plane that serves and to the same plane when it does not."""
    plane = Plane.made(tmp_path_factory.mktemp("both") / "plane", skills=SKILLS + OUTLIVING, toml=TOML)
    broken_before(plane)
    plane.start()
    try:
        broken(plane)
        up = spoken(plane, "up")
    finally:
        assert plane.stop() == 0
    down = spoken(plane, "down")
    yield {name: (up[name], down[name]) for name in up}


def spoken(plane: Plane, side: str) -> dict[str, Said]:
    """One run of every case, in an order in which each finds what it needs."""
    said: dict[str, Said] = {}
    said["run"] = plane.run("desk.settle", {"order": f"{side}-1"}, "--key", f"{side}-1")
    settled = said["run"].body["run"]
    said["run again"] = plane.run("desk.settle", {"order": f"{side}-1"}, "--key", f"{side}-1")
    said["run, key taken"] = plane.run("desk.settle", {"order": "other"}, "--key", f"{side}-1")
    said["run, unknown"] = plane.run("desk.nothing", {})
    said["run, misfit"] = plane.run("desk.settle", {"order": 7})
    said["run, failing"] = plane.run("desk.failing", {"order": "f"})
    failed = said["run, failing"].body["run"]
    said["run, in doubt"] = plane.run("desk.unsure", {"order": "d"})
    doubtful = said["run, in doubt"].body["run"]
    second = plane.run("desk.unsure", {"order": "e"}).body["run"]
    said["runs"] = plane.verb("runs", "--limit", "2")
    said["runs, after"] = plane.verb("runs", "--after", said["runs"].body["next"])
    said["runs, bad cursor"] = plane.verb("runs", "--after", "nonsense")
    said["show"] = plane.verb("show", settled)
    said["show, in doubt"] = plane.verb("show", doubtful)
    said["show, unknown"] = plane.verb("show", "run_" + "0" * 26)
    said["show, no id"] = plane.verb("show", "7")
    said["history"] = plane.verb("history", settled)
    said["history, follow"] = plane.verb("history", settled, "-f", "--output", "jsonl")
    said["replay, strict"] = plane.verb("replay", settled, "--strict")
    said["replay, retry"] = plane.verb("replay", failed, "--retry", "--reason", "look again")
    said["cancel, closed"] = plane.verb("cancel", settled, "--reason", "too late", "--yes")
    said["cancel, in doubt"] = plane.verb("cancel", doubtful, "--reason", "stop", "--yes")
    said["cancel"] = plane.verb("cancel", failed, "--reason", "enough", "--yes")
    effect = said["show, in doubt"].body["undecided"][0]["effect"]
    said["reconcile, unsure of itself"] = plane.verb(
        "reconcile", doubtful, "--effect", "ffffffffff", "--outcome", "landed", "--note", "n", "--yes"
    )
    said["reconcile"] = plane.verb(
        "reconcile",
        doubtful,
        "--effect",
        effect[:12],
        "--outcome",
        "landed",
        "--result",
        '{"id": 1}',
        "--note",
        "seen",
        "--yes",
    )
    said["reconcile, unasked"] = plane.verb(
        "reconcile", doubtful, "--effect", effect, "--outcome", "landed", "--note", "seen"
    )
    said["quarantine"] = plane.verb("quarantine", doubtful, "--decision", "reopen", "--reason", "answered")
    said["quarantine, abandon"] = plane.verb(
        "quarantine", second, "--decision", "abandon", "--reason", "nobody knows", "--yes"
    )
    said["pause"] = plane.verb("pause", "--reason", "an incident")
    said["run, paused"] = plane.run("desk.settle", {"order": "p"})
    said["release"] = plane.verb("release", "--paused")
    said["release, not held"] = plane.verb("release", "--all", "--yes")
    script = plane.directory / f"{side}.sql"
    script.write_text(f"CREATE TABLE app_{side} (a INTEGER) STRICT;\nINSERT INTO app_{side} VALUES (1), (2);\n")
    said["app-sql"] = plane.verb("app-sql", str(script))
    said["app-sql, again"] = plane.verb("app-sql", str(script))
    script.write_text(f"DROP TABLE app_{side};\n\nDROP TABLE record;\n")
    said["app-sql, journal"] = plane.verb("app-sql", str(script))
    said["app-sql, no file"] = plane.verb("app-sql", str(script) + ".gone")
    for name, (verb, *rest) in NEEDS_SERVING.items():
        if side == "down" or name not in ("drain",):
            said[name] = plane.verb(verb, *(settled if one == "@settled" else one for one in rest))
    said.setdefault("drain", Said(0, "{}", ""))
    said |= spoken_of_what_outlives(plane, side)
    return said


def broken_before(plane: Plane) -> None:
    """Two promises, made an hour ago, for half an hour: the sweep finds them broken. For either side one."""
    located = settings.load(plane.directory)
    skills = prepare(located).skills

    async def an_hour_ago() -> None:
        async with Engine.open(
            located.path("store"), skills=skills, now_ms=lambda: time.time_ns() // 1_000_000 - 3_600_000
        ) as engine:
            for side in ("up", "down"):
                made = await engine.run("desk.promising", {"order": "p"}, correlate={"order": f"{side}-1"})
                assert made.status == "succeeded", made

    trio.run(an_hour_ago)


def broken(plane: Plane) -> None:
    """Wait for the sweep's account of them, and for a message to have reached nobody."""
    assert plane.here("events", "deliver", "--kind", "parcel.lost", "--correlate", "order=L-1").status == 0
    plane.until(lambda: len(plane.here("obligations").body["obligations"]) == 2)
    plane.until(lambda: bool(plane.here("events", "dead-letters").body["dead_letters"]))


def spoken_of_what_outlives(plane: Plane, side: str) -> dict[str, Said]:
    """Cases, events, tasks and obligations: every verb, and what each is refused for."""
    said: dict[str, Said] = {}
    key = f"order={side}-1"
    said["run, correlated"] = plane.run(
        "desk.settle", {"order": "c"}, "--correlate", key, "--correlate", f"claim={side}"
    )
    said["run, misfit key"] = plane.run("desk.settle", {"order": "c"}, "--correlate", "Order=1")
    said["run, suspended"] = plane.run("desk.asking", {"order": side})
    waits = plane.run("desk.following", {"order": side}).body["run"]
    said["waiting"] = plane.here("waiting")
    said["attention"] = plane.here("attention")
    said |= spoken_of_tasks(plane, said["run, suspended"].body["run"])
    said["cases"] = plane.here("cases")
    said["cases, all"] = plane.here("cases", "--status", "all", "--limit", "1")
    said["cases, bad cursor"] = plane.here("cases", "--after", said["waiting"].body["next"] or "bm90aGluZw")
    said["cases, of no status"] = plane.here("cases", "--status", "lost")
    case = next(one["case"] for one in said["cases"].body["cases"] if f"{side}-1" in json.dumps(one["correlation"]))
    said["cases show"] = plane.here("cases", "show", case)
    said["cases show, unknown"] = plane.here("cases", "show", "case_" + "0" * 26)
    said["cases show, no id"] = plane.here("cases", "show", "7")
    said["cases show, of nothing"] = plane.here("cases", "show")
    said["obligations"] = plane.here("obligations")
    account = ("acknowledge", case, "--obligation", "answer within a day", "--note", "the carrier was called")
    said["acknowledge"] = plane.here(*account)
    said["acknowledge, again"] = plane.here(*account)
    said["acknowledge, nothing"] = plane.here("acknowledge", case, "--obligation", "another", "--note", "n")
    said["acknowledge, no id"] = plane.here("acknowledge", "7", "--obligation", "another", "--note", "n")
    deliver = ("events", "deliver", "--kind", "parcel.delivered", "--correlate", f"order={side}", "--input", "7")
    said["events deliver"] = plane.here(*deliver, "--id", f"e-{side}")
    said["events deliver, again"] = plane.here(*deliver, "--id", f"e-{side}")
    said["events deliver, reserved"] = plane.here("events", "deliver", "--kind", "agentplane.x", "--correlate", key)
    said["events deliver, of no kind"] = plane.here("events", "deliver", "--correlate", key)
    said["events deliver, about nothing"] = plane.here("events", "deliver", "--kind", "parcel.lost")
    said["events deliver, twice a key"] = plane.here(*deliver, "--correlate", "order=another")
    said["events dead-letters"] = plane.here("events", "dead-letters")
    if side == "up":
        plane.until(lambda: plane.here("show", waits).body["status"] == "succeeded")
    return said


def spoken_of_tasks(plane: Plane, run: str) -> dict[str, Said]:
    said: dict[str, Said] = {}
    said["tasks"] = plane.here("tasks")
    said["tasks, of a role"] = plane.here("tasks", "--role", "reviewer", "--limit", "1")
    said["tasks, bad cursor"] = plane.here("tasks", "--after", "bm90aGluZw")
    (task,) = (one["id"] for one in said["tasks"].body["tasks"] if one["run"] == run)
    said["tasks show"] = plane.here("tasks", "show", task)
    said["tasks show, begun"] = plane.here("tasks", "show", task[:12])
    said["tasks show, unknown"] = plane.here("tasks", "show", NOBODY)
    said["tasks show, no id"] = plane.here("tasks", "show", "../7")
    said["tasks show, of nothing"] = plane.here("tasks", "show")
    said["tasks release, not held"] = plane.here("tasks", "release", task)
    said["tasks claim"] = plane.here("tasks", "claim", task)
    said["tasks claim, own"] = plane.here("tasks", "claim", task)
    away = ("tasks", "takeover", task, "--reason", "ill")
    said["tasks takeover"] = plane.here(*away, "--from", said["tasks claim"].body["assignee"], "--yes")
    said["tasks takeover, of another"] = plane.here(*away, "--from", "mara", "--yes")
    said["tasks takeover, unasked"] = plane.here(*away, "--from", "mara")
    said["tasks takeover, of nobody"] = plane.here(*away, "--yes")
    said["tasks release"] = plane.here("tasks", "release", task)
    said["tasks claim, unknown"] = plane.here("tasks", "claim", NOBODY)
    decide = ("decide", task, "approve", "--reason")
    said["decide, without a reason"] = plane.here(*decide[:3], "--yes")
    said["decide, blank"] = plane.here(*decide, " ", "--yes")
    said["decide, unasked"] = plane.here(*decide, "seen")
    said["decide, stale"] = plane.here(*decide, "seen", "--digest", NOBODY, "--yes")
    said["decide, misfit"] = plane.here(*decide, "seen", "--amendment", '{"order": 7}', "--yes")
    said["decide, no answer"] = plane.here("decide", task, "answer", "--reason", "seen", "--yes")
    digest = said["tasks show"].body["digest"]
    said["decide"] = plane.here(*decide, "seen", "--digest", digest, "--amendment", '{"order": "other"}', "--yes")
    said["decide, again"] = plane.here(*decide, "seen", "--yes")
    said["decide, unknown"] = plane.here("decide", NOBODY, "reject", "--reason", "seen", "--yes")
    return said


def shape(body: Any) -> Any:
    """Names and types, values forgotten."""
    if isinstance(body, dict):
        return {name: shape(value) for name, value in sorted(body.items())}
    if isinstance(body, list):
        return [shape(body[0])] if body else []
    return type(body).__name__


def test_the_exceptions_answer_4_with_one_sentence(both: dict[str, tuple[Said, Said]]) -> None:
    """status, drain, wait and reload need something that serves."""
    for name in NEEDS_SERVING:
        down = both[name][1]
        assert down.status == 4 and down.out == "" and len(down.err.strip().splitlines()) == 1, (name, down)


def test_every_other_verb_has_the_same_status_both_ways(both: dict[str, tuple[Said, Said]]) -> None:
    """Up or down, the answer's status is the same."""
    differing = {
        name: (up, down) for name, (up, down) in both.items() if name not in NEEDS_SERVING and up.status != down.status
    }
    assert differing == {}


def test_every_other_verb_has_the_same_members_both_ways(both: dict[str, tuple[Said, Said]]) -> None:
    """The JSON differs in what was not carried out yet, and in nothing else."""
    for name, (up, down) in both.items():
        if name in NEEDS_SERVING or not up.out or name == "history, follow":
            continue
        assert up.body["schema"] == down.body["schema"], name
        assert set(up.body) ^ set(down.body) <= DIFFERS, (name, up.body, down.body)


def test_a_refusal_is_one_sentence_and_never_a_traceback(both: dict[str, tuple[Said, Said]]) -> None:
    """Whatever is asked, nobody is shown a stack."""
    for name, pair in both.items():
        for said in pair:
            assert "Traceback" not in said.err + said.out, (name, said)
            if said.status not in (0, 3) and not said.out:
                sentences = [line for line in said.err.strip().splitlines() if not line.startswith(("key ", "run "))]
                assert len(sentences) == 1 and sentences[0].startswith("agentplane: "), (name, said)


def test_a_follow_of_an_ended_run_ends_at_its_last_record(both: dict[str, tuple[Said, Said]]) -> None:
    """-f gives every record once, up and down."""
    for said in both["history, follow"]:
        seqs = [json.loads(line)["seq"] for line in said.out.splitlines()]
        assert seqs == list(range(1, len(seqs) + 1)) and json.loads(said.out.splitlines()[-1])["kind"] == "RunConcluded"


def test_acts_with_the_plane_down_are_recorded_and_not_applied(both: dict[str, tuple[Said, Said]]) -> None:
    """`applied` says whether the plane carried it out; down, the command that continues is named."""
    for name in ("reconcile", "quarantine"):
        up, down = both[name]
        assert (
            up.body["applied"] is True and down.body["applied"] is False and down.body["next"].startswith("agentplane ")
        )


def test_a_migration_is_applied_both_ways_and_says_which_statement_was_refused(
    both: dict[str, tuple[Said, Said]],
) -> None:
    """Up and down the tables are made, whole; what names the journal is refused by number and line."""
    for said in both["app-sql"]:
        assert said.body["applied"] is True and said.body["statements"] == 2 and len(said.body["digest"]) == 64
    for again, journal in zip(both["app-sql, again"], both["app-sql, journal"], strict=True):
        assert "Statement 1 (line 1)" in again.err and "already exists" in again.err
        # The first statement of a script that was refused does not stand: it is refused at the same place again.
        assert "Statement 2 (line 3)" in journal.err and "record" in journal.err


def test_what_cannot_be_taken_back_needs_a_word(both: dict[str, tuple[Said, Said]]) -> None:
    """Without --yes, away from a terminal, nothing is done."""
    for said in both["reconcile, unasked"]:
        assert said.status == 2 and "--yes" in said.err


def test_the_statuses_are_what_is_promised(both: dict[str, tuple[Said, Said]]) -> None:
    """One table of statuses, read from both sides."""
    wanted = {
        "run": 0,
        "run again": 0,
        "run, key taken": 1,
        "run, unknown": 2,
        "run, misfit": 2,
        "run, failing": 1,
        "run, in doubt": 1,
        "runs": 0,
        "runs, bad cursor": 2,
        "show": 0,
        "show, unknown": 1,
        "show, no id": 2,
        "history": 0,
        "replay, strict": 0,
        "replay, retry": 1,
        "cancel, closed": 1,
        "cancel, in doubt": 1,
        "cancel": 0,
        "reconcile": 0,
        "reconcile, unsure of itself": 1,
        "quarantine": 0,
        "quarantine, abandon": 0,
        "pause": 0,
        "run, paused": 4,
        "release": 0,
        "release, not held": 1,
        "app-sql": 0,
        "app-sql, again": 1,
        "app-sql, journal": 1,
        "app-sql, no file": 2,
    } | OUTLIVING_STATUSES
    assert {name: both[name][0].status for name in wanted} == wanted


OUTLIVING_STATUSES = {
    "run, correlated": 0,
    "run, misfit key": 2,
    "run, suspended": 3,
    "waiting": 0,
    "attention": 1,
    "tasks": 0,
    "tasks, of a role": 0,
    "tasks, bad cursor": 2,
    "tasks show": 0,
    "tasks show, begun": 0,
    "tasks show, unknown": 1,
    "tasks show, no id": 2,
    "tasks show, of nothing": 2,
    "tasks release, not held": 1,
    "tasks claim": 0,
    "tasks claim, own": 0,
    "tasks takeover": 0,
    "tasks takeover, of another": 1,
    "tasks takeover, unasked": 2,
    "tasks takeover, of nobody": 2,
    "tasks release": 0,
    "tasks claim, unknown": 1,
    "decide, without a reason": 2,
    "decide, blank": 2,
    "decide, unasked": 2,
    "decide, stale": 1,
    "decide, misfit": 1,
    "decide, no answer": 2,
    "decide": 0,
    "decide, again": 1,
    "decide, unknown": 1,
    "cases": 0,
    "cases, all": 0,
    "cases, bad cursor": 2,
    "cases, of no status": 2,
    "cases show": 0,
    "cases show, unknown": 1,
    "cases show, no id": 2,
    "cases show, of nothing": 2,
    "obligations": 1,
    "acknowledge": 0,
    "acknowledge, again": 0,
    "acknowledge, nothing": 1,
    "acknowledge, no id": 2,
    "events deliver": 0,
    "events deliver, again": 0,
    "events deliver, reserved": 1,
    "events deliver, of no kind": 2,
    "events deliver, about nothing": 2,
    "events deliver, twice a key": 2,
    "events dead-letters": 0,
}


def test_what_outlives_a_run_is_recorded_both_ways(both: dict[str, tuple[Said, Said]]) -> None:
    """A decision and an event are taken with the plane down as with it up; what goes on from them waits for `serve`."""
    for name in ("decide", "events deliver"):
        up, down = (said.body for said in both[name])
        assert (up["applied"], up["delivery"], "next" in up) == (True, "resumed", False), (name, up)
        assert down["applied"] is False and down["next"] == "agentplane serve", (name, down)
    for said in both["decide"]:
        assert said.body["outcome"] == "approved" and said.body["decided_by"] == own_name()
    up, down = (said.body for said in both["events deliver, again"])
    assert up["delivery"] == down["delivery"] == "duplicate" and up["run"] is not None
    for one in both["acknowledge"]:
        assert one.body["recorded"] is True and one.body["applied"] is True
    assert all(one.body["recorded"] is False for one in both["acknowledge, again"])


def shown(verb: str, said: Said, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """An answer as a terminal shows it."""
    capsys.readouterr()
    emit(verb, said.body, "table")
    lines = capsys.readouterr().out.split("\n")
    assert all(line.isprintable() for line in lines)
    return lines


def test_a_person_reads_a_proposal_as_lines_and_copies_what_comes_next(
    both: dict[str, tuple[Said, Said]], capsys: pytest.CaptureFixture[str]
) -> None:
    """The rendering is laid out, its value is not repeated beside it, a line break inside a text stays written out; the
    id, the version and the command that decides stand there whole."""
    said = both["tasks show"][0]
    lines = shown("task", said, capsys)
    at = lines.index("rendering:")
    assert '    "summary": "Note up?",' in lines[at:] and '    "action": {' in lines[at:]
    assert r'      "seen": "line one\nline two"' in lines[at:]
    assert not any(line.startswith("justification") for line in lines)
    task, digest = said.body["id"], said.body["digest"]
    assert f"agentplane decide {task} approve|reject --digest {digest} --reason ..." in "\n".join(lines)
    (row,) = [line for line in shown("tasks", both["tasks"][0], capsys) if line.startswith(task)]
    assert "Note up?" in row and "high" not in row


def test_a_person_reads_a_case_and_the_command_that_ends_a_condition(
    both: dict[str, tuple[Said, Said]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Promises and what happened are tables under the case; `attention` has its next command to the last letter."""
    lines = shown("case", both["cases show"][0], capsys)
    at = lines.index("deadlines:")
    assert lines[at + 1].split() == ["OBLIGATION", "STATE", "DUE", "WARN"]
    assert lines[at + 2].split()[:5] == ["answer", "within", "a", "day", "breached"]
    at = lines.index("history:")
    assert lines[at + 1].split() == ["AT", "RUN", "SEQ", "KIND", "WHAT"] and "CaseBound" in "".join(lines[at:])
    assert any(line.endswith("DeadlineRegistered  answer within a day") for line in lines[at:])
    conditions = both["attention"][0].body["conditions"]
    breached = next(one for one in conditions if one["condition"] == "obligation.breached")
    subject = breached["subjects"][0].partition(" ")[0]
    assert breached["next"] == f"agentplane acknowledge {subject} --obligation 'answer within a day' --note ..."
    table = shown("attention", both["attention"][0], capsys)
    assert any(line.endswith(breached["next"]) for line in table)
    assert any("answer within a day" in line for line in shown("obligations", both["obligations"][0], capsys))


def test_json_members_are_only_added_within_a_schema(both: dict[str, tuple[Said, Said]]) -> None:
    """The checked-in transcript of each verb: every member it has is still there, with its type."""
    now = {
        name: shape(up.body) for name, (up, _) in both.items() if up.out and name not in ("history, follow", "drain")
    }
    if os.environ.get("AGENTPLANE_TRANSCRIPTS") == "write":
        TRANSCRIPTS.write_text(json.dumps(now, indent=1, sort_keys=True) + "\n")
    before = json.loads(TRANSCRIPTS.read_text())
    assert set(before) <= set(now)
    for name, wanted in before.items():
        missing = set(wanted) - set(now[name])
        assert not missing, f"{name}: {missing} gone from {wanted['schema']}"
