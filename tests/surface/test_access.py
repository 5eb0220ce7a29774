"""Who is asking, and whether they may: identities, tokens, and how often a wrong one may be tried."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest

from agentplane.core import errors
from agentplane.core.roles import ROLES, SPEAKS_FOR_A_PERSON
from agentplane.surface.access import (
    EVERY_ROLE,
    Access,
    TokenFile,
    TooManyFailures,
    decide,
    new_token,
    of_terminal,
    read_tokens,
    revoke_token,
)
from agentplane.surface.attempts import ADDRESSES_MAX, BURST, EVERY_S, Attempts
from agentplane.surface.operations import ACTIONS_OF

OWN, STRANGER = 1_234, 4_711
ROOT_GROUP = 0


# --- identities -----------------------------------------------------------------------------------------------------


def test_without_access_the_planes_uid_and_root_may_everything_and_nobody_else_anything() -> None:
    """A person trying it out needs no table; a second account on the node gets nothing."""
    access = Access(None, OWN)
    for uid in (0, OWN):
        for action in ACTIONS_OF:
            decide(access.of_peer(uid, [uid]), action)
    for action in ACTIONS_OF:
        with pytest.raises(errors.Forbidden):
            decide(access.of_peer(STRANGER, [STRANGER]), action)


def test_a_uid_without_a_name_is_its_number() -> None:
    """`os:#4711`, with the uid beside it; a uid with a name has both."""
    assert Access(None, OWN).of_peer(STRANGER, []).as_actor().actor == "os:#4711"
    root = Access(None, OWN).of_peer(0, []).as_actor()
    assert (root.actor, root.uid) == ("os:root", 0)


def test_nobody_is_refused_and_lends_no_group() -> None:
    """The overflow uid is nobody's, and the overflow gid of a peer in another user namespace grants no role."""
    with pytest.raises(errors.Unauthenticated):
        Access({"os:nobody": ["operator"]}, OWN).of_peer(65534, [65534])
    access = Access({"group:nogroup": ["operator"], "group:root": ["reader"]}, OWN)
    assert access.of_peer(STRANGER, [65534]).roles == ()
    assert access.of_peer(STRANGER, [65534, ROOT_GROUP]).roles == ("reader",)


def test_with_access_only_what_it_says_is_granted() -> None:
    """By name, by number and by group, together; who is not in the table has nothing, the plane's own uid too."""
    access = Access({"os:#4711": ["reader"], "group:root": ["author"]}, OWN)
    assert access.of_peer(STRANGER, [STRANGER]).roles == ("reader",)
    assert access.of_peer(STRANGER, [STRANGER, ROOT_GROUP]).roles == ("reader", "author")
    assert access.of_peer(OWN, [OWN]).roles == () and access.of_peer(STRANGER + 1, []).roles == ()


def test_machines_never_speak_for_a_person_once_access_exists() -> None:
    """Root and the plane's own uid may be given roles, and still not an act that is a person's word."""
    access = Access({"os:root": list(EVERY_ROLE), f"os:#{OWN}": list(EVERY_ROLE)}, OWN)
    for uid in (0, OWN):
        who = access.of_peer(uid, [uid])
        decide(who, "api:run.cancel")
        for action in SPEAKS_FOR_A_PERSON:
            with pytest.raises(errors.Forbidden, match="machine"):
                decide(who, action)


def test_a_terminal_that_opened_the_store_is_asserted() -> None:
    """`--actor` is a name that nobody checked; one that is empty, long or of several lines is refused."""
    assert of_terminal("mara").as_actor().basis.value == "asserted"
    assert of_terminal(None).actor.startswith("os:")
    for bad in ("", " ", "x" * 201, "a\nb", "\udcff"):
        with pytest.raises(errors.InvalidRequest):
            of_terminal(bad)


def test_a_role_grants_exactly_its_actions() -> None:
    """One decision: every role, every action of every operation."""
    for role, actions in ROLES.items():
        who = Access({"os:#4711": [role]}, OWN).of_peer(STRANGER, [])
        for action in ACTIONS_OF:
            if action in actions:
                decide(who, action)
            else:
                with pytest.raises(errors.Forbidden, match="roles that grant"):
                    decide(who, action)


# --- tokens ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens.json"


def made(path: Path, actor: str = "anna", expires_ms: int | None = None) -> tuple[str, str]:
    presented, row = new_token(path, actor, ["reader"], 1_000, expires_ms)
    return presented, row.id


def test_a_token_is_in_no_file(path: Path) -> None:
    """The file holds its SHA-256 and what it may, and nobody else may read it."""
    presented, _ = made(path)
    assert presented.removeprefix("ap_") not in path.read_text() and len(presented) > 40
    assert path.stat().st_mode & 0o077 == 0


def test_a_token_expires_and_is_revoked(path: Path) -> None:
    """The millisecond of its expiry is too late; a revoked one is refused at its next use."""
    tokens = TokenFile(path)
    presented, token_id = made(path, expires_ms=5_000)
    assert tokens.check(presented, 4_999).actor == "anna"
    with pytest.raises(errors.Unauthenticated):
        tokens.check(presented, 5_000)
    assert revoke_token(path, token_id) and not revoke_token(path, token_id)
    with pytest.raises(errors.Unauthenticated):
        tokens.check(presented, 4_999)
    with pytest.raises(errors.NotFound):
        revoke_token(path, "none")


def test_the_file_is_read_again_when_it_changes(path: Path) -> None:
    """A token made later is known at its first use, and a file that is gone knows nobody."""
    tokens = TokenFile(path)
    tokens.reload()
    presented, _ = made(path)
    assert tokens.check(presented, 1).actor == "anna"
    path.unlink()
    with pytest.raises(errors.Unauthenticated):
        tokens.check(presented, 1)


def good_row(**changed: object) -> dict[str, object]:
    return {"id": "1", "sha256": "0" * 64, "actor": "anna", "roles": ["reader"], "created_ms": 1} | changed


@pytest.mark.parametrize(
    "broken",
    [
        b"{",
        b"",
        b"\xff",
        b'{"tokens": [{}]}',
        b"[" * 100_000,
        *(
            json.dumps({"tokens": rows}).encode()
            for rows in (
                [good_row(roles=["king"])],
                [good_row(actor="os:root")],
                [good_row(actor="group:wheel")],
                [good_row(actor="")],
                [good_row(sha256="abc")],
                [good_row(), good_row(id="2", revoked=True)],
            )
        ),
    ],
)
def test_a_broken_file_leaves_the_last_good_one(path: Path, broken: bytes) -> None:
    """Whole or not at all: who was known stays known, nobody is added, and the fault can be told."""
    tokens = TokenFile(path)
    presented, _ = made(path)
    tokens.check(presented, 1)
    path.write_bytes(broken)
    assert tokens.check(presented, 1).actor == "anna"
    assert tokens.fault is not None and "tokens.json" in tokens.fault
    with pytest.raises(errors.Settings):
        tokens.reload()
    path.unlink()
    made(path, "bert")
    with pytest.raises(errors.Unauthenticated):
        tokens.check(presented, 1)
    assert tokens.fault is None


def test_a_broken_file_is_read_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at every request: a request is cheap whatever lies in the directory."""
    tokens = TokenFile(path)
    presented, _ = made(path)
    tokens.check(presented, 1)
    path.write_bytes(b"{")
    tokens.check(presented, 1)
    monkeypatch.setattr("agentplane.surface.access.read_tokens", lambda _: pytest.fail("read again"))
    for _ in range(3):
        tokens.check(presented, 1)


def test_a_file_that_others_may_write_is_not_believed(path: Path) -> None:
    """Who may write it could give themselves any role."""
    presented, _ = made(path)
    tokens = TokenFile(path)
    path.chmod(0o666)
    with pytest.raises(errors.Settings, match="chmod"):
        tokens.reload()
    with pytest.raises(errors.Unauthenticated):
        tokens.check(presented, 1)
    path.chmod(0o600)
    assert tokens.check(presented, 1).actor == "anna"


def test_what_cannot_be_read_is_a_fault_and_not_a_defect(path: Path) -> None:
    """A directory in its place, a loop of links: the last good file stands."""
    tokens = TokenFile(path)
    presented, _ = made(path)
    tokens.check(presented, 1)
    path.unlink()
    path.symlink_to(path)
    assert tokens.check(presented, 1).actor == "anna" and tokens.fault is not None
    path.unlink()
    path.mkdir()
    assert tokens.check(presented, 1).actor == "anna" and tokens.fault is not None


def test_two_that_write_at_once_lose_nothing(path: Path) -> None:
    """Eight terminals make a token each, and one is revoked meanwhile: all of it stands at the end."""
    _, token_id = made(path, "first")
    threads = [threading.Thread(target=made, args=(path, f"person {number}")) for number in range(8)]
    threads.append(threading.Thread(target=revoke_token, args=(path, token_id)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = {token.actor: token.revoked for token in read_tokens(path)}
    assert found == {"first": True} | {f"person {number}": False for number in range(8)}
    assert {one.name for one in path.parent.iterdir()} <= {"tokens.json", "tokens.json.lock"}


def test_who_may_read_the_file_stays_who_may(path: Path) -> None:
    """Written again it keeps its mode and owner: root's `token new` does not lock the plane out."""
    made(path)
    path.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(path, STRANGER, STRANGER)
    before = path.stat()
    made(path, "bert")
    after = path.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)


@pytest.mark.parametrize(
    ("actor", "roles"),
    [("os:root", ["reader"]), ("", ["reader"]), ("a\nb", ["reader"]), ("x" * 201, ["reader"]), ("a", []), ("a", ["x"])],
)
def test_a_token_for_nobody_is_not_made(path: Path, actor: str, roles: list[str]) -> None:
    """The name of a person or machine, without the prefixes of the kernel's names, and roles that exist."""
    with pytest.raises(errors.InvalidRequest):
        new_token(path, actor, roles, 1, None)
    assert not path.exists()


# --- failed credentials ---------------------------------------------------------------------------------------------


def test_failed_credentials_are_limited_per_address(path: Path) -> None:
    """After a burst from one address each further one is told to wait; another address is not, and time forgives."""
    now = 100.0
    attempts = Attempts(lambda: now)
    for _ in range(BURST):
        assert attempts.failed("10.0.0.1") is None
    wait = attempts.failed("10.0.0.1")
    assert wait is not None and 0 < wait <= EVERY_S
    assert attempts.failed("10.0.0.2") is None
    now += EVERY_S
    assert attempts.failed("10.0.0.1") is None and attempts.failed("10.0.0.1") is not None
    assert TooManyFailures.row.http == 429


def test_an_ipv6_host_is_one_address() -> None:
    """Who has a /64 has as many addresses as they like: they count as one."""
    attempts = Attempts(lambda: 0.0)
    for number in range(BURST):
        attempts.failed(f"2001:db8::{number:x}")
    assert attempts.failed("2001:db8::ffff") is not None
    assert attempts.failed("2001:db8:0:1::1") is None


def test_what_is_remembered_of_failures_is_bounded() -> None:
    """As many addresses as there are cost no more memory than the bound; the oldest is forgotten."""
    attempts = Attempts(lambda: 0.0)
    began = time.monotonic()
    for number in range(ADDRESSES_MAX * 3):
        attempts.failed(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(attempts) <= ADDRESSES_MAX and time.monotonic() - began < 10
