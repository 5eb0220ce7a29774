"""Every verb, with the plane up and with it down: the same schema and exit status, and the exceptions are one table."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from surface.terminals import Plane, Said

TRANSCRIPTS = Path(__file__).with_name("transcripts.json")
NEEDS_SERVING = {"status": ["status"], "drain": ["drain"], "wait": ["wait", "@settled"], "reload": ["reload"]}
"""Verbs that answer 4 with one sentence when nothing serves."""
DIFFERS = {"applied", "next", "status", "output", "error", "log_index", "decided_by"}
"""Members that say what being down means: what was recorded and not carried out yet."""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Said, Said]]]:
    """Each case, said to a plane that serves and to the same plane when it does not."""
    plane = Plane.made(tmp_path_factory.mktemp("both") / "plane")
    plane.start()
    up = spoken(plane, "up")
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
    }
    assert {name: both[name][0].status for name in wanted} == wanted


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
