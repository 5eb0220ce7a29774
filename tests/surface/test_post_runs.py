"""POST /runs, and how its runs are read: what the caller is told of each request, and that no request is ever a
defect."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import trio

from agentplane.core import bounds
from agentplane.core.errors import DiskLow, InvalidRequest
from agentplane.journal.room import Room
from agentplane.surface.requests import key_from_headers
from surface.doors import Door, Gate, door

SETTLE = {"capability": "desk.settle", "input": {"order": "A-1"}}


async def test_an_admission_is_answered_201_once_and_then_200_with_the_same_run(tmp_path: Path) -> None:
    """201 with `admitted: true`; the same key, capability and input again are the same run, `admitted: false`, 200."""
    async with door(tmp_path) as desk:
        first = await desk.post(SETTLE, key="k-1", query="?wait=30")
        again = await desk.post(SETTLE, key="k-1", query="?wait=30")
        assert (first.status, again.status) == (201, 200)
        assert first.body["admitted"] is True and again.body["admitted"] is False
        assert first.body["run"] == again.body["run"] and first.body["status"] == "succeeded"
        assert first.body["output"] == again.body["output"] == {"noted": "A-1"}


async def test_without_wait_the_answer_comes_before_the_end(tmp_path: Path) -> None:
    """The run is durable and may still run; GET with `wait` holds until it has ended, and gives its output."""
    async with door(tmp_path) as desk:
        answer = await desk.post({"capability": "desk.waiting", "input": {}})
        assert answer.status == 201 and answer.body["status"] == "running" and "output" not in answer.body
        seen: list[Any] = []

        async def follow() -> None:
            seen.append((await desk.ask("GET", f"/runs/{answer.body['run']}?wait=60")).body)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert not seen
            Gate.opened.set()
        assert seen[0]["status"] == "succeeded" and seen[0]["output"] == "opened"


async def test_a_key_that_another_request_holds_is_409_and_names_the_run(tmp_path: Path) -> None:
    """Another input, or another capability, under the same key."""
    async with door(tmp_path) as desk:
        run = (await desk.post(SETTLE, key="k-1", query="?wait=30")).body["run"]
        for other in (
            {"capability": "desk.settle", "input": {"order": "B"}},
            {"capability": "desk.failing", "input": {}},
        ):
            answer = await desk.post(other, key="k-1")
            assert answer.status == 409 and answer.body["run"] == run and answer.body["code"] == "duplicate_admission"


async def test_an_unknown_capability_is_404_with_those_that_exist(tmp_path: Path) -> None:
    """The list is in the body, and nothing is admitted."""
    async with door(tmp_path) as desk:
        answer = await desk.post({"capability": "desk.nothing"})
        assert answer.status == 404
        assert answer.body["capabilities"] == [
            "desk.failing",
            "desk.glancing",
            "desk.many",
            "desk.settle",
            "desk.unsure",
            "desk.waiting",
        ]
        assert (await desk.ask("GET", "/runs")).body["runs"] == []


@pytest.mark.parametrize(
    ("body", "path", "expected"),
    [
        ({"capability": "desk.settle", "input": {"order": 7}}, "$.order", "str"),
        ({"capability": "desk.settle", "input": {}}, "$", "order"),
        ({"capability": "desk.settle", "input": {"order": "A", "more": 1}}, "$", "more"),
        ({"capability": 7}, "$.capability", "str"),
        ({}, "$", "capability"),
        ({"capability": "desk.settle", "input": {"order": "A"}, "unknown": 1}, "$", "unknown"),
        ([], "$", "object"),
        (
            {"capability": "desk.settle", "input": {"order": "A"}, "correlate": {"Case": "1"}},
            "/Case",
            "lower-case",
        ),
        ({"capability": "desk.settle", "input": {"order": "A"}, "budget": "all"}, "$.budget", "object"),
    ],
)
async def test_what_does_not_fit_is_422_with_path_and_type(tmp_path: Path, body: Any, path: str, expected: str) -> None:
    """The sentence names what was expected; `path` says where."""
    async with door(tmp_path) as desk:
        answer = await desk.post(body)
        assert answer.status == 422, answer.raw
        assert answer.body["path"] == path and expected in answer.body["error"]
        assert (await desk.ask("GET", "/runs")).body["runs"] == []


async def test_over_the_bound_on_open_runs_is_429(tmp_path: Path) -> None:
    """`max_admitted` open runs; the same key still finds its run, and an end makes room."""
    async with door(tmp_path) as desk:
        desk.plane.max_admitted = 2
        for number in range(2):
            assert (await desk.post({"capability": "desk.waiting", "input": {}}, key=f"k-{number}")).status == 201
        refused = await desk.post(SETTLE)
        assert refused.status == 429 and refused.body["code"] == "too_many_runs"
        assert (await desk.post({"capability": "desk.waiting", "input": {}}, key="k-1")).status == 200
        Gate.opened.set()
        await desk.plane.runs.wait_idle()
        assert (await desk.post(SETTLE)).status == 201


async def test_a_draining_plane_answers_503_and_when_to_come_back(tmp_path: Path) -> None:
    """DRAINING with Retry-After: 1 and Connection: close; what is read is still answered.

    Spec: Drain.NothingIsAdmittedWhileDraining.
    """
    async with door(tmp_path) as desk:
        run = (await desk.post(SETTLE, query="?wait=30")).body["run"]
        desk.plane.close_admission()
        answer = await desk.post(SETTLE, key="k-2")
        assert answer.status == 503 and answer.body["code"] == "draining"
        assert answer.headers["Retry-After"] == "1" and answer.headers["Connection"] == "close"
        assert (await desk.ask("GET", f"/runs/{run}")).body["status"] == "succeeded"


async def test_a_full_disk_is_507(tmp_path: Path) -> None:
    """DISK_LOW, with the bytes that are free, until there is room again."""
    async with door(tmp_path) as desk:
        room = desk.plane.store.room
        room.low = 2**62
        assert room.look() is Room.LOW
        answer = await desk.post(SETTLE)
        assert answer.status == 507 and answer.body["code"] == DiskLow.row.code == "disk_low"
        room.low = room.floor = 0
        assert room.look() is Room.ENOUGH and (await desk.post(SETTLE)).status == 201


async def test_a_paused_plane_admits_nothing(tmp_path: Path) -> None:
    """503, and a repeat of what was admitted before still finds its run."""
    async with door(tmp_path) as desk:
        assert (await desk.post(SETTLE, key="k-1", query="?wait=30")).status == 201
        assert (await desk.ask("POST", "/pause", {"reason": "an incident"})).status == 200
        assert (await desk.post(SETTLE)).status == 503
        assert (await desk.post(SETTLE, key="k-1")).status == 200


async def test_an_admission_key_is_512_bytes_of_utf8_at_most(tmp_path: Path) -> None:
    """Bytes are counted, not characters; what is not text, not one line, or not the only one, is refused."""
    async with door(tmp_path) as desk:
        cyrillic = "ключ" * 64
        assert len(cyrillic.encode()) == 512
        run = (await desk.post(SETTLE, key=cyrillic, query="?wait=30")).body["run"]
        history = (await desk.ask("GET", f"/runs/{run}/history")).body
        assert history["records"][0]["idempotency_key"] == cyrillic
        assert (await desk.post(SETTLE, key="x" * 512)).status == 201
        for bad in ("x" * 513, "", "a\tb", "a\x7fb", cyrillic + "ж"):
            assert (await desk.post(SETTLE, key=bad)).status == 400, bad
        with pytest.raises(InvalidRequest):
            key_from_headers(["\xff\xfe"])
        answer = await desk.client.open(
            "/runs",
            method="POST",
            data=json.dumps(SETTLE),
            headers=[("Idempotency-Key", "a"), ("Idempotency-Key", "b"), ("Content-Type", "application/json")],
        )
        assert answer.status_code == 400


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b'{"capability": "desk.settle", "capability": "desk.failing"}', 400),
        (b'{"capability": "desk.settle", "input": {"order": NaN}}', 400),
        (b'{"capability": "desk.settle", "input": {"order": "A", "amount_minor": 1e999}}', 400),
        (b'{"capability": "desk.settle", "input": {"order": "\\ud800"}}', 400),
        (b"\xff\xfe", 400),
        (b"{", 400),
        (b"[" * 100_000, 400),
        (b'{"a":' * 100_000, 400),
        (b"[" * 129 + b"]" * 129, 400),
        (b'{"capability": "desk.settle", "input": {"order": ' + b"9" * 5000 + b"}}", 400),
        (b'{"capability": "desk.settle", "input": ' + b"[" * 127 + b"]" * 127 + b"}", 422),
        (b"null", 422),
        (b"7", 422),
        (b"", 422),
    ],
)
async def test_bytes_that_are_no_request_are_refused_by_name(tmp_path: Path, raw: bytes, status: int) -> None:
    """Not JSON, or JSON of two meanings, is 400; JSON that is no request is 422; neither is ever a defect."""
    async with door(tmp_path) as desk:
        answer = await desk.ask("POST", "/runs", raw=raw)
        assert answer.status == status, answer.raw[:300]
        assert len(answer.body["error"]) < 2000 and not any("defect" in line for line in desk.lines)


async def test_a_body_over_its_bound_and_one_that_is_not_json_are_refused(tmp_path: Path) -> None:
    """413 for more than two MiB, 413 for an input over its own bound, 415 for another content type."""
    async with door(tmp_path) as desk:
        assert (await desk.ask("POST", "/runs", raw=b" " * (bounds.BODY_BYTES_MAX + 1))).status == 413
        big = {"capability": "desk.failing", "input": {"x": "y" * bounds.VALUE_BYTES_MAX}}
        assert (await desk.ask("POST", "/runs", big)).status == 413
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
            answer = await desk.ask("POST", "/runs", raw=json.dumps(SETTLE).encode(), headers={"Content-Type": kind})
            assert answer.status == 415, kind
        answer = await desk.ask(
            "POST",
            "/runs",
            raw=json.dumps(SETTLE).encode(),
            headers={"Content-Type": "application/json; charset=utf-8"},
        )
        assert answer.status == 201


@pytest.mark.parametrize(
    "path",
    [
        "/runs?limit=0",
        "/runs?limit=1001",
        "/runs?limit=x",
        "/runs?limit=99999999999999999999999",
        "/runs?unknown=1",
        "/runs?after=x",
        "/runs?after=%FF",
        "/runs?outcome=sucess",
        "/runs?limit=1&limit=2",
        "/runs?after=OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTk5OS5ydW5fMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDA",
        "/runs/7",
        "/runs/run_" + "0" * 25,
        "/runs/run_" + "0" * 26 + "?wait=soon",
        "/runs/%00",
        "/runs/run_" + "0" * 26 + "/history?from=0",
        "/runs/run_" + "0" * 26 + "/history?from=-1",
        "/runs/run_" + "0" * 26 + "/history?from=99999999999999999999999",
        "/runs/run_" + "0" * 26 + "/history?limit=-5",
    ],
)
async def test_queries_and_ids_that_do_not_fit_are_400(tmp_path: Path, path: str) -> None:
    """Numbers out of range, unknown and repeated members, cursors of nobody's, ids that are none."""
    async with door(tmp_path) as desk:
        answer = await desk.ask("GET", path)
        assert answer.status == 400, answer.raw
        assert not any("defect" in line for line in desk.lines)


async def test_a_wait_is_at_most_a_minute_whatever_is_asked(tmp_path: Path) -> None:
    """NaN, infinity and negative numbers neither hold a request nor break it."""
    async with door(tmp_path) as desk:
        for wait in ("nan", "-1", "0"):
            with trio.fail_after(10):
                assert (
                    await desk.post({"capability": "desk.waiting", "input": {}}, query=f"?wait={wait}")
                ).status == 201
        Gate.opened.set()
        with trio.fail_after(10):
            assert (await desk.post({"capability": "desk.waiting", "input": {}}, query="?wait=inf")).body[
                "status"
            ] == "succeeded"


async def test_a_run_that_waits_for_no_one_here_is_still_waited_for(tmp_path: Path) -> None:
    """A run that is open and not executing here is long-polled too, so that its reader does not spin."""
    async with door(tmp_path) as desk:
        run = (await desk.post({"capability": "desk.waiting", "input": {}})).body["run"]
        desk.plane.runs.live[run].stop()
        await desk.plane.runs.wait_idle()
        with trio.move_on_after(1.0) as patience:
            await desk.ask("GET", f"/runs/{run}?wait=30")
        assert patience.cancelled_caught


async def test_pages_are_newest_first_without_gap_or_repeat(tmp_path: Path) -> None:
    """While new runs are admitted between the pages, each run that stood at the start is seen once, in order."""
    async with door(tmp_path) as desk:
        had = [(await desk.post(SETTLE)).body["run"] for _ in range(23)]
        seen: list[dict[str, Any]] = []
        path = "/runs?limit=5"
        while True:
            page = (await desk.ask("GET", path)).body
            seen += page["runs"]
            await desk.post(SETTLE)
            if not page["truncated"]:
                break
            path = f"/runs?limit=5&after={page['next']}"
        runs = [row["run"] for row in seen]
        assert len(runs) == len(set(runs)) and set(runs) == set(had)
        assert [row["admitted"] for row in seen] == sorted((row["admitted"] for row in seen), reverse=True)
        assert {
            row["run"] for row in (await desk.ask("GET", "/runs?outcome=succeeded&limit=1000")).body["runs"]
        } >= set(had)
        assert (await desk.ask("GET", "/runs?outcome=failed")).body["runs"] == []


async def test_a_page_of_history_is_bounded_in_bytes(tmp_path: Path) -> None:
    """Large records come a few at a time, every one once, whatever limit was asked for."""
    async with door(tmp_path) as desk:
        big = {"capability": "desk.many", "input": {"order": "x" * 900_000}}
        run = (await desk.post(big, query="?wait=30")).body["run"]
        seqs: list[int] = []
        start, pages = 1, 0
        while True:
            answer = await desk.ask("GET", f"/runs/{run}/history?from={start}&limit=1000")
            assert len(answer.raw) < 4 * 1024 * 1024
            seqs += [record["seq"] for record in answer.body["records"]]
            pages, start = pages + 1, answer.body["next_from"]
            if not answer.body["truncated"]:
                break
        assert seqs == list(range(1, len(seqs) + 1)) and len(seqs) >= 14


async def test_an_error_and_an_output_are_told_by_the_run_itself(tmp_path: Path) -> None:
    """GET /runs/{run} has `output` of a success and `error` of a failure, and the next command of what is stuck."""
    async with door(tmp_path) as desk:
        failed = (await desk.post({"capability": "desk.failing", "input": {}}, query="?wait=30")).body
        assert failed["status"] == "failed" and "no such order" in failed["error"]
        view = (await desk.ask("GET", f"/runs/{failed['run']}")).body
        assert "no such order" in view["error"]["message"] and view["next"].startswith("agentplane replay")
        unsure = (await desk.post({"capability": "desk.unsure", "input": {}}, query="?wait=30")).body["run"]
        view = (await desk.ask("GET", f"/runs/{unsure}")).body
        assert view["status"] == "quarantined" and view["undecided"][0]["kind"] == "desk.doubt"


def any_value(chance: random.Random, depth: int = 0) -> Any:
    """JSON of every kind, with what breaks parsers among it."""
    leaves: list[Any] = [
        None,
        True,
        0,
        -1,
        2**53,
        2**63,
        -(2**63) - 1,
        10**30,
        1.5,
        "",
        "A-1",
        "x" * 300,
        "\x00",
        "\u202e",
        "desk.settle",
        "run_",
    ]
    kind = chance.random()
    if depth > 3 or kind < 0.6:
        return chance.choice(leaves)
    if kind < 0.8:
        return [any_value(chance, depth + 1) for _ in range(chance.randint(0, 3))]
    names = (
        "capability",
        "input",
        "order",
        "budget",
        "correlate",
        "reason",
        "effect",
        "outcome",
        "note",
        "strict",
        "retry",
        "now",
        "grace",
        "batch",
        "runs",
        "all",
        "paused",
        "clock",
        "confirmed",
        "output",
        "new_key",
    )
    return {chance.choice(names): any_value(chance, depth + 1) for _ in range(chance.randint(0, 4))}


def any_bytes(chance: random.Random) -> bytes:
    """A body: JSON, or JSON that was bitten into."""
    raw = json.dumps(any_value(chance)).encode()
    if chance.random() < 0.3 and raw:
        at = chance.randrange(len(raw))
        raw = raw[:at] + bytes([chance.randrange(256)]) + raw[at + 1 :]
    return raw


async def any_request(chance: random.Random, desk: Door, runs: list[str]) -> tuple[str, int]:
    """One request to one route, with a body, query and id that may be anything."""
    rule = chance.choice([rule for rule in desk.app.url_map.iter_rules() if rule.endpoint not in ("drain",)])
    run = chance.choice([*runs, "run_" + "0" * 26, "x", "%2e%2e", "%00", "run_%C3%A9"])
    names = ("wait", "limit", "after", "from", "outcome", "x")
    values = ("0", "1", "-1", "nan", "1e9", "9" * 40, "succeeded", "%00", "%ff", "", "MTIz")
    chosen = [(chance.choice(names), chance.choice(values)) for _ in range(chance.randint(0, 2))]
    # A wait that is really waited for is another test's.
    query = "&".join(
        f"{name}={value}" for name, value in chosen if name != "wait" or value not in ("1", "1e9", "9" * 40)
    )
    method = chance.choice([*sorted(rule.methods), "PUT"])
    path = rule.rule.replace("<run>", run) + ("?" + query if query else "")
    headers = {"Content-Type": "application/json"}
    if chance.random() < 0.3:
        headers["Idempotency-Key"] = chance.choice(["", "k", "\xe9", "x" * 600])
    answer = await desk.ask(method, path, raw=any_bytes(chance) if method != "GET" else None, headers=headers)
    return f"{method} {path}", answer.status


async def test_no_request_is_ever_a_defect(tmp_path: Path) -> None:
    """Some thousands of random requests over every route: each answered by the table of errors, none by 500."""
    chance = random.Random(20_251_130)
    async with door(tmp_path) as desk:
        Gate.opened.set()
        runs = [
            (
                await desk.post(
                    {"capability": name, "input": {"order": "A"} if name == "desk.settle" else {}}, query="?wait=30"
                )
            ).body["run"]
            for name in ("desk.settle", "desk.failing", "desk.unsure")
        ]
        seen: dict[int, int] = {}
        for _ in range(3000):
            said, status = await any_request(chance, desk, runs)
            seen[status] = seen.get(status, 0) + 1
            assert status < 500 or status in (503, 507), said
        assert not any("defect" in line for line in desk.lines)
        assert {200, 400, 404, 405, 422} <= set(seen)
