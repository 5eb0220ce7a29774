"""The control socket: our own client, and the kernel's word for who holds it."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from house.uids import OTHER_UID
from surface.terminals import Plane

OURS = {"Agentplane-Client": "cli/1"}
FOREIGN = [
    {"Origin": "http://127.0.0.1"},
    {"Origin": "null"},
    {"Cookie": "a=b"},
    {"Sec-Fetch-Site": "same-origin"},
    {"sec-fetch-mode": "cors"},
    {"Forwarded": "for=192.0.2.1"},
    {"X-Forwarded-For": "192.0.2.1"},
    {"X-Forwarded-Host": "x"},
    {"X-Forwarded-Prefix": "/x"},
]


class UnixClient(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("agentplane", timeout=30)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(30)
        self.sock.connect(self._path)


def say(
    path: Path, method: str, target: str, headers: dict[str, str], body: bytes | None = None
) -> tuple[int, dict[str, Any]]:
    """One request as anybody could write it."""
    connection = UnixClient(path)
    connection.request(method, target, body, headers)
    answer = connection.getresponse()
    found = json.loads(answer.read())
    connection.close()
    return answer.status, found


@pytest.fixture
def open_plane(tmp_path: Path) -> Iterator[Plane]:
    """A plane whose directory others may enter; its socket is the operators' group's."""
    place = Path("/tmp") / f"agentplane-{os.getpid()}-{os.urandom(4).hex()}"
    place.mkdir(mode=0o755)
    place.chmod(0o755)
    plane = Plane.made(place / "plane")
    yield plane
    if plane.child is not None:
        plane.stop()
    shutil.rmtree(place, ignore_errors=True)


def with_access(plane: Plane, table: dict[str, list[str]], *, group: int | None = None) -> None:
    toml = plane.directory / "plane.toml"
    text = (
        toml.read_text() + "\n[access]\n" + "".join(f'"{who}" = {json.dumps(roles)}\n' for who, roles in table.items())
    )
    toml.write_text(text)
    plane.begin(*([] if group is None else ["--socket-group", str(group)]))
    plane.until((plane.directory / "run" / "control.sock").exists)


@contextmanager
def as_uid(uid: int, gid: int, groups: list[int]) -> Iterator[None]:
    """The effective identity of this process, for as long as it connects: what the kernel tells the other end."""
    before = os.getgroups()
    os.setgroups(groups)
    os.setegid(gid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(before)


def test_only_our_own_client_is_served(open_plane: Plane) -> None:
    """A page in a browser can reach neither routes nor refusals that tell them apart, whoever runs the browser."""
    open_plane.start()
    path = open_plane.directory / "run" / "control.sock"
    assert say(path, "GET", "/status", OURS)[0] == 200
    refusals = set()
    for headers in ({}, *({**OURS, **one} for one in FOREIGN)):
        for method, target in (
            ("GET", "/status"),
            ("POST", "/drain"),
            ("GET", "/nothing"),
            ("OPTIONS", "/runs"),
            ("GET", "/runs/x"),
        ):
            status, body = say(path, method, target, headers)
            assert status == 403, (headers, method, target)
            refusals.add(body["error"])
    assert len(refusals) == 1 and open_plane.verb("status").body["state"] == "serving"


def test_a_client_that_does_not_stay_is_in_the_log_too(open_plane: Plane) -> None:
    """One access line a request: 499 for one that was left before its answer; its run goes on."""
    open_plane.start()
    run = open_plane.run("desk.waiting", {"seconds": 20}, "--detach").body["run"]
    gone = UnixClient(open_plane.directory / "run" / "control.sock")
    gone.request("GET", f"/runs/{run}?wait=60", headers=OURS)
    time.sleep(0.3)
    gone.close()
    open_plane.until(lambda: '"status":499' in open_plane.log.read_text())
    (line,) = [json.loads(one) for one in open_plane.log.read_text().splitlines() if '"status":499' in one]
    assert line["object"] == run and line["route"] == "/runs/{run}" and line["basis"] == "connected"
    assert open_plane.verb("show", run).body["status"] == "running"
    open_plane.verb("drain", "--now")


def test_socket_and_directory_have_their_modes(open_plane: Plane) -> None:
    """0660 in a directory of 0750, of the operators' group, whatever the umask; the file is gone after the end."""
    shutil.rmtree(open_plane.directory / "run")
    before = os.umask(0)
    try:
        open_plane.start("--socket-group", str(os.getgid()))
    finally:
        os.umask(before)
    path = open_plane.directory / "run" / "control.sock"
    assert path.stat().st_gid == path.parent.stat().st_gid == os.getgid()
    assert stat.S_IMODE(path.stat().st_mode) == 0o660 and stat.S_IMODE(path.parent.stat().st_mode) == 0o750
    assert open_plane.stop() == 0
    assert not path.exists()


def test_another_account_is_who_the_kernel_says(open_plane: Plane, second_uid: int) -> None:
    """By name or number, and by its groups: each has what [access] gives it, and what is recorded is the kernel's."""
    group = OTHER_UID + 7
    with_access(open_plane, {f"os:#{second_uid}": ["reader", "author"], "os:daemon": ["operator"]}, group=group)
    path = open_plane.directory / "run" / "control.sock"
    run = json.dumps({"capability": "desk.settle", "input": {"order": "1"}}).encode()
    ours = OURS | {"Content-Type": "application/json"}
    with as_uid(second_uid, second_uid, [group]):
        assert say(path, "POST", "/runs?wait=30", ours, run)[0] == 201
        assert say(path, "POST", "/pause", ours, b'{"reason": "x"}')[0] == 403
        admitted = say(path, "GET", "/runs", OURS)[1]["runs"][0]["run"]
        record = say(path, "GET", f"/runs/{admitted}/history", OURS)[1]["records"][0]
    assert record["admitted_by"] == {"actor": f"os:#{second_uid}", "basis": "connected", "uid": second_uid}
    with as_uid(1, 1, [group]):
        assert say(path, "POST", "/pause", ours, b'{"reason": "an incident"}')[0] == 200
        assert say(path, "POST", "/release", ours, b'{"paused": true}')[0] == 200
        assert say(path, "POST", "/runs", ours, run)[0] == 403
    with as_uid(second_uid + 1, second_uid, [group]):
        assert say(path, "GET", "/status", OURS)[0] == 403


def test_a_group_lends_its_roles_to_its_members(open_plane: Plane, second_uid: int) -> None:
    """group: by name, from the supplementary groups that the kernel reports at connect."""
    with_access(open_plane, {"group:daemon": ["operator"], "group:bin": ["author"]}, group=1)
    path = open_plane.directory / "run" / "control.sock"
    ours = OURS | {"Content-Type": "application/json"}
    with as_uid(second_uid, second_uid, [1]):
        assert say(path, "POST", "/pause", ours, b'{"reason": "x"}')[0] == 200
        assert say(path, "POST", "/runs", ours, b"{}")[0] == 403
    with as_uid(second_uid, second_uid, [1, 2]):
        assert say(path, "POST", "/runs", ours, b"{}")[0] == 422


def test_nobody_is_refused(open_plane: Plane, second_uid: int) -> None:
    """The overflow uid, whatever [access] says of its name."""
    with_access(open_plane, {"os:nobody": ["supervisor"], "group:nogroup": ["supervisor"]}, group=1)
    path = open_plane.directory / "run" / "control.sock"
    with as_uid(65534, 65534, [1]):
        assert say(path, "GET", "/status", OURS)[0] == 401


def asked_as_another(directory: str) -> tuple[int, str]:
    said = Plane(Path(directory)).verb("status")
    return said.status, said.err


def test_who_may_not_reach_the_socket_is_told_so(
    open_plane: Plane, as_other_uid: Callable[..., Any], second_uid: int
) -> None:
    """Permission is one of the three reasons for a held lock and an unreachable socket, and it is the one that is
    named."""
    open_plane.start()
    for mode in (0o640, 0o644):
        (open_plane.directory / "plane.db.lock").chmod(mode)
        status, err = as_other_uid(asked_as_another, str(open_plane.directory))
        assert status == 4 and "permission" in err and len(err.splitlines()) == 1, (oct(mode), err)


def test_who_may_use_the_socket_needs_no_right_on_the_store(
    open_plane: Plane, as_other_uid: Callable[..., Any], second_uid: int
) -> None:
    """An operator of the socket's group works the plane without being able to read its lock or its journal."""
    with_access(open_plane, {f"os:#{second_uid}": ["reader"]}, group=second_uid)
    status, err = as_other_uid(asked_as_another, str(open_plane.directory))
    assert status == 0, err


def test_machines_do_not_speak_for_a_person(open_plane: Plane) -> None:
    """Once [access] exists the plane's own uid may do what its roles say, and never give a person's word."""
    me = "os:root" if os.geteuid() == 0 else f"os:#{os.getuid()}"
    with_access(open_plane, {me: ["supervisor", "author"]})
    stuck = open_plane.run("desk.unsure", {"order": "1"}).body["run"]
    failed = open_plane.run("desk.failing", {"order": "1"}).body["run"]
    for said in (
        open_plane.verb("reconcile", stuck, "--effect", "0" * 12, "--outcome", "landed", "--note", "n", "--yes"),
        open_plane.verb("quarantine", stuck, "--decision", "reopen", "--reason", "r"),
        open_plane.verb("quarantine", stuck, "--decision", "abandon", "--reason", "r", "--yes"),
        open_plane.verb("replay", failed, "--retry", "--reason", "r"),
    ):
        assert said.status == 1 and "machine" in said.err and "token" in said.err, said
    assert open_plane.verb("pause", "--reason", "an incident").status == 0
    assert open_plane.verb("release", "--paused").status == 0


def test_without_a_role_the_planes_own_uid_has_none(open_plane: Plane) -> None:
    """With [access], only what it says: a refusal names the action and the roles that grant it."""
    with_access(open_plane, {"os:somebody-else": ["supervisor"]})
    said = open_plane.verb("runs")
    assert said.status == 1 and "api:run.list" in said.err and "reader" in said.err, said
    assert open_plane.stop() == 0
