"""Events, tasks, cases and obligations behind a door: every shape of a message, what is refused and by which status,
who may do what, and what the access log keeps."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from agentplane import Proposal, skill
from agentplane.core import bounds
from agentplane.core.records import Basis
from agentplane.core.roles import ROLES, SPEAKS_FOR_A_PERSON
from agentplane.surface.access import EVERY_ROLE, Access, TokenFile, Who, new_token
from agentplane.surface.app import control_identity
from agentplane.surface.operations import OPERATIONS
from agentplane.surface.routes import PATH_ID
from surface import doors
from surface.doors import Answer, Door, Identity, door

NO_TASK = "0" * 64
NO_CASE = "case_" + "0" * 26
STRUCTURED = {"Content-Type": "application/cloudevents+json"}
CLOUD = {"specversion": "1.0", "id": "e-1", "source": "/carrier", "type": "parcel.delivered", "subject": "O-1"}
BINARY = {f"ce-{name}": value for name, value in CLOUD.items()}
NATIVE = {"id": "e-1", "kind": "parcel.delivered", "correlation": {"order": "O-1"}}
PLANES_UID, PERSONS_UID = os.getuid(), 4_711
OURS = {"Agentplane-Client": "cli/1"}


@skill("out.asking")
async def asking(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
    call = doors.note(order=request["order"])
    decision = await cx.task(Proposal(summary="Note it?", action=call, evidence={"secret": "s3cr3t"}, due=3600))
    return await cx.do(call, approval=decision) if decision.approved else decision.reason


@skill("out.following")
async def following(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
    found = await cx.event("parcel.delivered", correlation=request["about"], hours=1)
    return found.payload


@skill("out.promising")
async def promising(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
    return await cx.deadline("answer", days=1)


@asynccontextmanager
async def desk(where: Path, monkeypatch: pytest.MonkeyPatch, identify: Identity | None = None) -> AsyncIterator[Door]:
    monkeypatch.setattr(doors, "SKILLS", (*doors.SKILLS, asking, following, promising))
    with trio.fail_after(60):
        async with door(where, identify) as found:
            yield found


async def begun(at: Door, capability: str, given: Any, **more: Any) -> str:
    """A run, once it waits or has ended."""
    admitted = await at.plane.run(capability, given, **more)
    return admitted.run


async def waiting_task(at: Door) -> dict[str, Any]:
    await begun(at, "out.asking", {"order": "A-1"})
    found: list[dict[str, Any]] = (await at.ask("GET", "/tasks")).body["tasks"]
    return found[0]


# --- messages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "body", "about", "payload"),
    [
        (STRUCTURED, CLOUD | {"data": {"door": 7}}, {"subject": "O-1"}, {"door": 7}),
        ({"Content-Type": "Application/CloudEvents+JSON; charset=UTF-8"}, CLOUD, {"subject": "O-1"}, None),
        (BINARY | {"ce-subject": "Stra%C3%9Fe%207"}, {"door": 7}, {"subject": "Straße 7"}, {"door": 7}),
        (BINARY | {"ce-subject": '"100%25"', "ce-traceparent": "00-af"}, None, {"subject": "100%"}, None),
        ({}, NATIVE | {"payload": [1]}, {"order": "O-1"}, [1]),
    ],
)  # fmt: skip
async def test_each_shape_of_a_message_ends_a_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str], body: Any, about: dict[str, str],
    payload: Any,
) -> None:  # fmt: skip
    """Structured, binary with percent-encoded headers, and native: taken once, and known again."""
    async with desk(tmp_path, monkeypatch) as at:
        run = await begun(at, "out.following", {"about": about})
        first = await at.ask("POST", "/events", body, headers=headers)
        assert (first.status, first.body["delivery"], first.body["run"]) == (200, "resumed", run), first.raw
        await at.plane.runs.wait_for(run)
        outcome = await at.plane.outcome(run)
        assert (outcome.status, outcome.output) == ("succeeded", payload)
        again = await at.ask("POST", "/events", body, headers=headers)
        assert (again.status, again.body["delivery"], again.body["run"]) == (200, "duplicate", run)


REFUSED: list[tuple[dict[str, str], Any, int]] = [
    (STRUCTURED, b"", 400),
    (STRUCTURED, b"{", 400),
    (STRUCTURED, b'{"id": 1, "id": 2}', 400),
    (STRUCTURED, b'["e-1"]', 400),
    (STRUCTURED, b"\xff\xfe", 400),
    (STRUCTURED, b"[" * 100_000, 400),
    (STRUCTURED, CLOUD | {"specversion": "0.3"}, 400),
    (STRUCTURED, CLOUD | {"data_base64": "AA=="}, 400),
    (STRUCTURED, CLOUD | {"Big": "x"}, 400),
    (STRUCTURED, CLOUD | {"id": ""}, 400),
    (STRUCTURED, CLOUD | {"id": "a\nb"}, 400),
    (STRUCTURED, CLOUD | {"time": "yesterday"}, 400),
    (STRUCTURED, {name: value for name, value in CLOUD.items() if name != "subject"}, 400),
    (STRUCTURED, CLOUD | {"type": "agentplane.run.concluded"}, 403),
    (STRUCTURED, CLOUD | {"data": "x" * (bounds.EVENT_BYTES_MAX + 1)}, 413),
    (STRUCTURED, b" " * (bounds.BODY_BYTES_MAX + 1), 413),
    ({"Content-Type": "application/cloudevents-batch+json"}, [CLOUD], 400),
    ({"Content-Type": "application/cloudevents+xml"}, b"<event/>", 400),
    ({"Content-Type": "application/cloudevents+json; charset=utf-16"}, CLOUD, 400),
    (BINARY | {"ce-subject": "100%"}, {"door": 7}, 400),
    (BINARY | {"ce-subject": "%FF"}, {"door": 7}, 400),
    (BINARY | {"ce-subject": "%00"}, {"door": 7}, 400),
    (BINARY | {"ce-datacontenttype": "application/json"}, {"door": 7}, 400),
    (BINARY | {"Content-Type": "text/plain"}, b"hello", 400),
    ({"Content-Type": "text/plain"}, NATIVE, 415),
    ({"Content-Type": ""}, NATIVE, 415),
    ({"Content-Type": "multipart/form-data; boundary=x"}, NATIVE, 415),
    ({"Content-Type": "application/x-www-form-urlencoded"}, b"id=e-1", 415),
    ({}, NATIVE | {"run": "run_1"}, 400),
    ({}, NATIVE | {"correlation": {}}, 400),
    ({}, NATIVE | {"correlation": {"Order": "O-1"}}, 400),
    ({}, NATIVE | {"correlation": {f"k{n}": "v" for n in range(17)}}, 400),
    ({}, NATIVE | {"correlation": {"order": 7}}, 400),
    ({}, NATIVE | {"kind": "agentplane."}, 403),
    ({}, NATIVE | {"kind": 7}, 400),
    ({}, NATIVE | {"id": "x" * 513}, 400),
]


async def test_what_is_no_message_is_refused_and_nothing_of_it_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Malformed, oversized, deep, of another type, of a reserved kind: a sentence and a status each, no defect; the
    message of the same id that is one is the first."""
    async with desk(tmp_path, monkeypatch) as at:
        for headers, body, status in REFUSED:
            raw = body if isinstance(body, bytes) else json.dumps(body).encode()
            answer = await at.ask("POST", "/events", raw=raw, headers=headers)
            assert answer.status == status, (headers, raw[:80], answer.raw)
            assert answer.body["error"] and "Traceback" not in answer.raw.decode()
        assert not [line for line in at.lines if "defect" in line]
        for headers, body in ((STRUCTURED, CLOUD), ({}, NATIVE)):
            answer = await at.ask("POST", "/events", body, headers=headers)
            assert (answer.status, answer.body["delivery"]) == (200, "buffered"), answer.raw


async def test_who_delivered_is_who_was_identified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source in a body is the producer's, and never who brought it: another caller's message of one id is another."""
    callers = iter(("carrier", "carrier", "mara", "carrier"))
    identify = lambda: Who(actor=next(callers), basis=Basis.AUTHENTICATED, roles=EVERY_ROLE)  # noqa: E731
    async with desk(tmp_path, monkeypatch, identify) as at:
        told = [await at.ask("POST", "/events", NATIVE | {"source": "peer:mara"}) for _ in range(3)]
        assert [one.body["delivery"] for one in told] == ["buffered", "duplicate", "buffered"]
        assert told[0].body["event"] == told[1].body["event"] != told[2].body["event"]


# --- bodies, ids and cursors ------------------------------------------------------------------------------------------


async def test_a_decision_that_does_not_fit_is_refused_before_anything_is_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a reason, of another word, with an amendment that does not fit, on another version, with strange members:
    each by its own status, and the task stands as it did."""
    async with desk(tmp_path, monkeypatch) as at:
        before = await waiting_task(at)
        path = f"/tasks/{before['id']}/decide"
        good = {"decision": "approve", "reason": "seen"}
        for body, status in (
            ({"decision": "approve"}, 400),
            ({"decision": "approve", "reason": " "}, 400),
            ({"decision": "approve", "reason": "x" * (bounds.TEXT_CHARS_MAX + 1)}, 400),
            ({"decision": "approve", "reason": 7}, 422),
            ({"decision": "expire", "reason": "seen"}, 400),
            ({"reason": "seen"}, 422),
            (good | {"by": "mara"}, 422),
            (good | {"amendment": {"order": 7}}, 422),
            (good | {"amendment": {"order": "A-1", "amount": 1}}, 422),
            (good | {"amendment": [1]}, 422),
            (good | {"answer": 7}, 400),
            ({"decision": "answer", "reason": "seen"}, 400),
            ({"decision": "reject", "reason": "seen", "amendment": {"order": "A-2"}}, 400),
            (good | {"digest": NO_TASK}, 412),
            (good | {"digest": 7}, 422),
            ([good], 422),
            (None, 422),
        ):
            answer = await at.ask("POST", path, body)
            assert answer.status == status, (body, answer.raw)
        deep = b'{"decision": "approve", "reason": "s", "amendment": ' + b"[" * 500 + b"]" * 500 + b"}"
        assert (await at.ask("POST", path, raw=deep)).status == 400
        huge = json.dumps(good | {"amendment": {"order": "x" * bounds.VALUE_BYTES_MAX}}).encode()
        assert (await at.ask("POST", path, raw=huge)).status in (413, 422)
        after = (await at.ask("GET", f"/tasks/{before['id']}")).body
        assert (after["state"], after["assignee"], after["digest"]) == ("open", None, before["digest"])
        assert not [line for line in at.lines if "defect" in line]


async def test_ids_that_name_nothing_are_not_found_and_what_is_no_id_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """404 for an id of the right form, 400 for another, wherever an id stands."""
    decide = {"decision": "reject", "reason": "seen"}
    acknowledge = {"case": NO_CASE, "obligation": "answer", "note": "seen"}
    async with desk(tmp_path, monkeypatch) as at:
        for method, path, body in (
            ("GET", "/tasks/{}", None),
            ("POST", "/tasks/{}/claim", {}),
            ("POST", "/tasks/{}/release", {}),
            ("POST", "/tasks/{}/takeover", {"from": "mara", "reason": "ill"}),
            ("POST", "/tasks/{}/decide", decide),
        ):
            assert (await at.ask(method, path.format(NO_TASK), body)).status == 404, path
            assert (await at.ask(method, path.format("0" * 8), body)).status == 404, path
            for none in ("7", "x" * 64, "A" * 64, "0" * 65, "run_" + "0" * 26, "%00"):
                assert (await at.ask(method, path.format(none), body)).status == 400, (path, none)
        assert (await at.ask("GET", f"/cases/{NO_CASE}")).status == 404
        assert (await at.ask("GET", "/cases/7")).status == 400
        assert (await at.ask("POST", "/obligations/acknowledge", acknowledge)).status == 404
        for wrong in ({"case": "7"}, {"obligation": ""}, {"note": " "}):
            assert (await at.ask("POST", "/obligations/acknowledge", acknowledge | wrong)).status in (400, 404), wrong


async def test_a_cursor_is_of_its_own_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every list gives its pages without gap or repeat, and takes no cursor of another."""
    async with desk(tmp_path, monkeypatch) as at:
        for number in range(3):
            await begun(at, "out.promising", {}, correlate={"order": str(number)})
            await begun(at, "out.asking", {"order": str(number)})
        cursors: dict[str, str] = {}
        for path, member in (("/tasks?", "tasks"), ("/cases?status=all&", "cases"), ("/runs?", "runs"),
                             ("/runs/waiting?", "runs")):  # fmt: skip
            seen: list[str] = []
            page = (await at.ask("GET", f"{path}limit=1")).body
            cursors[path] = page["next"]
            while True:
                seen += [json.dumps(one) for one in page[member]]
                if page["next"] is None:
                    break
                page = (await at.ask("GET", f"{path}limit=1&after={page['next']}")).body
            assert len(seen) == len(set(seen)) and len(seen) >= 3, path
        kinds = {"/tasks?": 3, "/cases?status=all&": 2}
        for path in (*kinds, "/obligations?", "/dead-letters?"):
            for other, cursor in cursors.items():
                if other == path or (path == "/dead-letters?" and other == "/cases?status=all&"):
                    continue  # two lists by an instant and an id take each other's; they page, and name nothing else
                assert (await at.ask("GET", f"{path}after={cursor}")).status == 400, (path, other)
            for none in ("x", "%FF", "W10", "x" * 700):
                assert (await at.ask("GET", f"{path}after={none}")).status == 400, (path, none)
        for path in ("/tasks?role=x&role=y", "/cases?status=lost", "/tasks?limit=0", "/obligations?limit=1001"):
            assert (await at.ask("GET", path)).status == 400, path


# --- who may ----------------------------------------------------------------------------------------------------------

NEW = ("cases", "case", "obligations", "acknowledge", "tasks", "task", "claim", "unclaim", "takeover", "decide",
       "deliver", "dead_letters")  # fmt: skip
GRANTED = {
    "case.list": "reader reviewer operator supervisor auditor",
    "case.read": "reader reviewer operator supervisor auditor",
    "obligation.list": "reader reviewer operator supervisor auditor",
    "deadletter.list": "reader reviewer operator supervisor auditor",
    "obligation.acknowledge": "operator supervisor",
    "task.list": "reviewer",
    "task.read": "reviewer",
    "task.claim": "reviewer",
    "task.release": "reviewer",
    "task.decide": "reviewer",
    "task.takeover": "supervisor",
    "event.deliver": "author",
}


async def test_each_action_is_granted_by_the_roles_that_are_listed_and_refused_before_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another role, or none: 403 that names the action, for an id of something, of nothing, and for no id."""
    roles: list[tuple[str, ...]] = [()]
    identify = lambda: Who(actor="anna", basis=Basis.AUTHENTICATED, roles=roles[0])  # noqa: E731
    rows = {one.name: one for one in OPERATIONS if one.name in NEW}
    assert {rows[name].action.removeprefix("api:") for name in NEW} == set(GRANTED)
    async with desk(tmp_path, monkeypatch, identify) as at:
        task = next(iter(await tasks_of(at)))
        for name in NEW:
            row = rows[name]
            for role in ("", *ROLES):
                roles[0] = (role,) if role else ()
                for one in (task, NO_TASK, "nonsense"):
                    raw = b"{" if row.method == "POST" else None
                    answer = await at.ask(row.method, PATH_ID.sub(one, row.path), raw=raw)
                    if role in GRANTED[row.action.removeprefix("api:")].split():
                        assert answer.status not in (401, 403), (name, role, answer.raw)
                    else:
                        assert answer.status == 403 and row.action in answer.body["error"], (name, role, answer.raw)


async def tasks_of(at: Door) -> list[str]:
    await begun(at, "out.asking", {"order": "A-1"})
    return [one.task for one in await at.plane.tasks()]


def peer(uid: int) -> dict[str, Any]:
    return {"state": {"peer": {"uid": uid, "gids": [], "pid": 1}}}


async def test_a_machine_speaks_for_nobody_and_a_token_beside_the_socket_is_its_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under [access], root and the plane's own uid may not claim, release, take over, decide or acknowledge, whatever
    roles they are given; the token of a person who is presented there may, as that person; one that is not known is
    refused and never passed over."""
    table = {"os:root": list(EVERY_ROLE), f"os:#{PERSONS_UID}": ["reviewer"]}
    tokens = TokenFile(tmp_path / "tokens.json")
    token, _ = new_token(tokens.path, "mara", ["reviewer", "supervisor"], 0, None)
    async with desk(tmp_path, monkeypatch, control_identity(Access(table, PLANES_UID), tokens)) as at:
        await begun(at, "out.asking", {"order": "A-1"})
        task = (await at.plane.tasks())[0].task

        async def ask(name: str, body: Any, uid: int = 0, credential: str | None = None) -> Answer:
            row = next(one for one in OPERATIONS if one.name == name)
            headers = OURS | ({} if credential is None else {"Authorization": credential})
            return await at.ask(row.method, PATH_ID.sub(task, row.path), body, headers=headers, scope=peer(uid))

        acts: list[tuple[str, Any]] = [
            ("claim", {}), ("unclaim", {}), ("takeover", {"from": "mara", "reason": "ill"}),
            ("decide", {"decision": "approve", "reason": "seen"}),
            ("acknowledge", {"case": NO_CASE, "obligation": "answer", "note": "seen"}),
        ]  # fmt: skip
        for name, body in acts:
            refused = await ask(name, body)
            assert refused.status == 403 and "machine" in refused.body["error"], (name, refused.raw)
        assert {f"api:{action}" for action in ("task.claim", "task.release", "task.takeover", "task.decide",
                                               "obligation.acknowledge")} <= SPEAKS_FOR_A_PERSON  # fmt: skip
        for wrong in ("Bearer ap_nobodys", "Bearer ", "Basic bWFyYQ==", token):
            for uid in (0, PERSONS_UID):
                refused = await ask("claim", {}, uid, wrong)
                assert refused.status == 401 and token not in refused.raw.decode(), (wrong, uid)
        assert (await ask("claim", {}, 0, f"Bearer {token}")).body["assignee"] == "mara"
        assert (await ask("claim", {}, PERSONS_UID)).status == 409
        # What a person's token does not have, the account beside it does not lend.
        assert (await ask("acknowledge", acts[4][1], 0, f"Bearer {token}")).status == 404
        assert (await ask("deliver", NATIVE, 0, f"Bearer {token}")).status == 403
        done = await ask("decide", acts[3][1], 0, f"bearer {token}")
        assert (done.status, done.body["decided_by"]) == (200, "mara")


async def test_the_access_log_holds_ids_and_never_a_body(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`object` is the task or the case that was named; nothing of a body, a decision, a payload or a query is there."""
    async with desk(tmp_path, monkeypatch) as at:
        await begun(at, "out.promising", {}, correlate={"order": "s3cr3t"})
        task = await waiting_task(at)
        case = (await at.ask("GET", "/cases?status=all")).body["cases"][0]["case"]
        await at.ask("GET", f"/cases/{case}")
        await at.ask("GET", f"/tasks/{task['id']}")
        await at.ask("POST", f"/tasks/{task['id']}/decide", {"decision": "approve", "reason": "s3cr3t"})
        await at.ask("POST", "/events", NATIVE | {"payload": "s3cr3t"})
        await at.ask("GET", "/tasks/s3cr3t?role=s3cr3t")
        await at.ask("GET", "/cases/ap_s3cr3t")
        said = [(line["route"], line["object"]) for line in at.lines]
        assert ("/cases/{case}", case) in said and ("/tasks/{task}", task["id"]) in said
        assert ("/tasks/{task}/decide", task["id"]) in said and ("/tasks/{task}", None) in said
        assert ("/cases/{case}", None) in said and "s3cr3t" not in json.dumps(at.lines)
