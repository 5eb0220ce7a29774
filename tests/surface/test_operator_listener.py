"""The operator listener: who is let in, in which order requests are refused, and what its log says and never says."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentplane.core.roles import ROLES
from agentplane.surface.access import Access, TokenFile, new_token
from agentplane.surface.app import token_identity
from agentplane.surface.attempts import BURST, Attempts
from agentplane.surface.operations import BY_NAME, OPERATIONS
from agentplane.surface.routes import PATH_ID
from surface.doors import Door, door
from surface.terminals import Plane

NAMES = frozenset({"plane.example", "127.0.0.1:9090"})
HOST = {"Host": "plane.example"}
NONSENSE = "no-id"
MISFIT = {"no such member": 1}
"""A body that no operation takes: whoever may do it is told so, and nothing is done."""


class Keys:
    """Tokens of every role, and of none that stand any more."""

    def __init__(self, directory: Path) -> None:
        self.now_ms = 1_000
        self.path = directory / "tokens.json"
        self.of = {role: new_token(self.path, f"{role}-1", [role], 1, None)[0] for role in ROLES}
        self.old = new_token(self.path, "old", ["supervisor"], 1, 1_000)[0]
        self.file = TokenFile(self.path)

    def identify(self, attempts: Attempts | None = None, **options: Any) -> Any:
        return token_identity(
            Access(None, os.getuid()), self.file, lambda: self.now_ms, NAMES, attempts=attempts, **options
        )


def bearer(token: str, **more: str) -> dict[str, str]:
    return HOST | {"Authorization": f"Bearer {token}"} | more


def requests(desk: Door) -> list[tuple[str, str, str]]:
    """Every rule with every method, and an id that is none."""
    methods = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
    return [
        (rule.endpoint, method, rule.rule.replace("<run>", NONSENSE))
        for rule in desk.app.url_map.iter_rules()
        for method in methods
    ]


async def test_without_a_credential_every_route_is_401(tmp_path: Path) -> None:
    """Every rule, every method, an id that is none, a route that is none: 401 and nothing else is told."""
    async with door(tmp_path, Keys(tmp_path).identify()) as desk:
        assert {rule.endpoint for rule in desk.app.url_map.iter_rules()} == set(BY_NAME)
        for name, method, path in [
            *requests(desk),
            ("", "GET", "/nothing"),
            ("", "GET", "/"),
            ("", "GET", "//runs"),
            ("", "GET", "/runs/"),
        ]:
            answer = await desk.ask(method, path, headers=HOST)
            assert answer.status == 401, (name, method, path)
            assert answer.headers["WWW-Authenticate"].startswith("Bearer")


async def test_a_wrong_credential_is_401_whatever_is_wrong(tmp_path: Path) -> None:
    """Unknown, expired, of another scheme, empty: one sentence that does not tell a guesser which."""
    keys = Keys(tmp_path)
    async with door(tmp_path, keys.identify()) as desk:
        for said in (
            "Bearer",
            "Bearer ",
            "Bearer ap_x",
            f"Bearer {keys.old}",
            f"Basic {keys.of['reader']}",
            keys.of["reader"],
            "\xff",
        ):
            answer = await desk.ask("GET", "/status", headers=HOST | {"Authorization": said})
            assert answer.status == 401, said
            assert keys.old not in answer.raw.decode() and "ap_x" not in answer.raw.decode()


async def test_each_role_may_exactly_what_the_table_says(tmp_path: Path) -> None:
    """A refusal comes before ids and bodies are parsed: 403 for nonsense, and another answer for whom it is allowed."""
    keys = Keys(tmp_path)
    async with door(tmp_path, keys.identify()) as desk:
        for role, token in keys.of.items():
            for operation in OPERATIONS:
                path = PATH_ID.sub(NONSENSE, operation.path)
                body = MISFIT if operation.method == "POST" and operation.name != "reload" else None
                answer = await desk.ask(operation.method, path, body, headers=bearer(token))
                if operation.action in ROLES[role]:
                    assert answer.status not in (401, 403), (role, operation.name, answer.raw)
                else:
                    assert answer.status == 403 and operation.action in answer.body["error"], (role, operation.name)
        assert not desk.drain.begun.is_set()


async def test_a_retry_takes_more_than_a_replay(tmp_path: Path) -> None:
    """It speaks for a person: an operator may replay, a supervisor may retry, and it is said before the id is
    parsed."""
    keys = Keys(tmp_path)
    async with door(tmp_path, keys.identify()) as desk:
        for role, status in (("reader", 403), ("operator", 403), ("supervisor", 400)):
            answer = await desk.ask("POST", f"/runs/{NONSENSE}/replay", {"retry": True}, headers=bearer(keys.of[role]))
            assert answer.status == status, role


async def test_no_method_answers_beside_the_table(tmp_path: Path) -> None:
    """OPTIONS and the rest are 405 for whom everything is allowed; HEAD is a GET and authorised as one."""
    keys = Keys(tmp_path)
    async with door(tmp_path, keys.identify()) as desk:
        for name, method, path in requests(desk):
            if method not in (BY_NAME[name].method, "HEAD", "GET", "POST"):
                assert (await desk.ask(method, path, headers=bearer(keys.of["supervisor"]))).status == 405, (
                    method,
                    path,
                )
        assert (await desk.ask("HEAD", "/runs", headers=bearer(keys.of["author"]))).status == 403


async def test_the_host_is_one_of_the_listeners_names(tmp_path: Path) -> None:
    """A name that points here without being ours (a page that rebinds its own) is refused before the token is looked
    at."""
    keys = Keys(tmp_path)
    async with door(tmp_path, keys.identify()) as desk:
        for host in ("evil.example", "", "plane.example:81", "127.0.0.1"):
            assert (await desk.ask("GET", "/status", headers=bearer(keys.of["reader"], Host=host))).status == 403, host
        for host in ("plane.example", "PLANE.example", "127.0.0.1:9090"):
            assert (await desk.ask("GET", "/status", headers=bearer(keys.of["reader"], Host=host))).status == 200, host


async def test_failed_credentials_are_limited_and_lock_no_token_out(tmp_path: Path) -> None:
    """429 with Retry-After for the next wrong one from there; a right one from there, and anything from elsewhere,
    is answered."""
    keys = Keys(tmp_path)
    async with door(tmp_path, keys.identify(Attempts(lambda: 0.0))) as desk:
        here, there = {"client": ("192.0.2.1", 1)}, {"client": ("192.0.2.2", 1)}

        async def ask(token: str, where: dict[str, Any]) -> Any:
            return await desk.ask("GET", "/status", headers=bearer(token), scope=where)

        for _ in range(BURST):
            assert (await ask("ap_wrong", here)).status == 401
        limited = await ask("ap_wrong", here)
        assert limited.status == 429 and int(limited.headers["Retry-After"]) >= 1
        assert (await ask("ap_wrong", there)).status == 401
        for where in (here, there):
            assert (await ask(keys.of["reader"], where)).status == 200


async def test_behind_a_proxy_only_the_proxy_is_heard(tmp_path: Path) -> None:
    """Whoever comes past it, where the tokens would be in clear, is refused; through it, who it names is who failed."""
    keys = Keys(tmp_path)
    identify = keys.identify(Attempts(lambda: 0.0), proxies=("10.0.0.0/8", "fd00::/8"))
    async with door(tmp_path, identify) as desk:
        proxy, past = {"client": ("10.1.2.3", 1)}, {"client": ("192.0.2.1", 1)}
        right = bearer(keys.of["reader"])
        assert (await desk.ask("GET", "/status", headers=right, scope=past)).status == 403
        assert (await desk.ask("GET", "/status", headers=right, scope=proxy)).status == 200
        for _ in range(BURST):
            wrong = bearer("ap_wrong", **{"X-Forwarded-For": "198.51.100.9, 203.0.113.5"})
            assert (await desk.ask("GET", "/status", headers=wrong, scope=proxy)).status == 401
        assert (await desk.ask("GET", "/status", headers=wrong, scope=proxy)).status == 429
        forged = bearer("ap_wrong", **{"X-Forwarded-For": "203.0.113.5, 203.0.113.6"})
        assert (await desk.ask("GET", "/status", headers=forged, scope=proxy)).status == 401


async def test_one_access_line_a_request(tmp_path: Path) -> None:
    """Actor, basis, method, route template, object id, status, ms, and no more; a path that is no id is not
    repeated."""
    keys = Keys(tmp_path)
    async with door(tmp_path, keys.identify()) as desk:
        run = "run_" + "0" * 26
        await desk.ask("GET", f"/runs/{run}?wait=0", headers=bearer(keys.of["reader"]))
        await desk.ask("GET", "/runs/ap_secret_in_a_path?token=ap_x", headers=bearer("ap_wrong"))
        await desk.ask("GET", "/ap_secret_in_a_path", headers=bearer(keys.of["reader"]))
        assert len(desk.lines) == 3
        first, second, third = desk.lines
        assert set(first) == {"actor", "basis", "method", "route", "object", "status", "ms"}
        assert (first["actor"], first["basis"], first["method"]) == ("reader-1", "authenticated", "GET")
        assert (first["route"], first["object"], first["status"]) == ("/runs/{run}", run, 404)
        assert second["actor"] is None and second["object"] is None and third["route"] is None
        assert "secret" not in json.dumps(desk.lines) and "ap_" not in json.dumps(desk.lines)


# --- a real process -------------------------------------------------------------------------------------------------


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Plane]:
    plane = Plane.made(tmp_path / "plane", toml='operator_addr = "127.0.0.1:0"')
    yield plane
    if plane.child is not None:
        plane.stop()


def at(plane: Plane) -> tuple[str, int]:
    host, port = plane.verb("status").body["operator"].removeprefix("http://").split(":")
    return host, int(port)


def get(
    plane: Plane, path: str, token: str, method: str = "GET", body: bytes | None = None
) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection(*at(plane), timeout=30)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    found = json.loads(answer.read())
    connection.close()
    return answer.status, found


def new(plane: Plane, *flags: str) -> dict[str, Any]:
    return plane.verb("token", "new", "--actor", "anna", *flags).body


def test_tokens_are_made_revoked_and_broken_while_it_serves(served: Plane) -> None:
    """Without a restart: a new one is known, a revoked one is not, a broken file keeps the last good and says so."""
    served.start()
    token = new(served, "--role", "operator")
    assert get(served, "/status", token["token"])[0] == 200
    other = new(served, "--role", "reader")
    assert served.verb("token", "revoke", other["id"]).body["revoked"] is True
    assert get(served, "/status", other["token"])[0] == 401
    assert [row["revoked"] for row in served.verb("token", "list").body["tokens"]] == [False, True]
    path = served.directory / "tokens.json"
    good = path.read_text()
    path.write_text("{")
    assert get(served, "/status", token["token"])[0] == 200
    assert "tokens.json" in served.verb("status").body["tokens_fault"]
    said = served.verb("reload")
    assert said.status == 2 and "tokens.json" in said.err and "Traceback" not in said.err
    assert served.child is not None
    served.child.send_signal(signal.SIGHUP)
    path.write_text(good)
    assert served.verb("reload").body["reloaded"] == ["tokens", "log_level"]
    assert get(served, "/status", token["token"])[0] == 200 and served.verb("status").body["tokens_fault"] is None
    assert served.child.poll() is None


def test_every_verb_reaches_a_plane_by_its_url(served: Plane) -> None:
    """The same verbs over --url and --token-file, with the same bodies and statuses as over the socket."""
    served.start()
    host, port = at(served)
    file = served.directory.parent / "token"
    file.write_text(new(served, "--role", "supervisor", "--role", "author")["token"] + "\n")
    reach = ["--url", f"http://{host}:{port}", "--token-file", str(file)]

    def remote(verb: str, *args: str) -> Any:
        return served.verb(verb, *reach, *args, plane=False)

    run = remote("run", "desk.settle", "--input", '{"order": "1"}')
    assert run.status == 0 and run.body["output"] == {"noted": "1"}
    doubtful = remote("run", "desk.unsure", "--input", '{"order": "2"}')
    assert doubtful.status == 1 and doubtful.body["status"] == "quarantined"
    stuck = doubtful.body["run"]
    failed = remote("run", "desk.failing", "--input", '{"order": "3"}').body["run"]
    for verb, *args in (
        ["status"],
        ["runs"],
        ["show", stuck],
        ["history", stuck],
        ["history", stuck, "-f"],
        ["reload"],
    ):
        assert remote(verb, *args).status == 0, verb
    assert remote("wait", stuck, "--timeout", "5").status == 1
    assert remote("runs").body["schema"] == served.verb("runs").body["schema"] == "agentplane.runs/1"
    assert remote("replay", failed, "--retry", "--reason", "again").status == 1
    assert remote("replay", failed, "--strict").status == 0
    effect = remote("show", stuck).body["undecided"][0]["effect"]
    assert (
        remote("reconcile", stuck, "--effect", effect, "--outcome", "landed", "--note", "seen", "--yes").body["applied"]
        is True
    )
    assert remote("quarantine", stuck, "--decision", "reopen", "--reason", "answered").status == 0
    assert remote("cancel", failed, "--reason", "enough", "--yes").status == 0
    assert remote("pause", "--reason", "x").status == 0 and remote("release", "--paused").status == 0
    acts = json.dumps(served.verb("history", stuck).body)
    assert '"actor": "anna"' in acts and '"basis": "authenticated"' in acts
    assert remote("drain", "--wait").status == 0
    assert served.child is not None and served.child.wait(30) == 0


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:9",
        "ftp://127.0.0.1",
        "http://127.0.0.1:99999",
        "http://",
        "http://a:b@127.0.0.1",
        "http://127.0.0.1:1/prefix?q=1",
    ],
)
def test_a_url_that_is_none_is_one_sentence(served: Plane, url: str) -> None:
    """Another scheme, no host, a port that is none, a credential in it: status 2, and nothing was asked."""
    file = served.directory.parent / "token"
    file.write_text("ap_x")
    said = served.verb("status", "--url", url, "--token-file", str(file), plane=False)
    assert said.status == 2 and len(said.err.splitlines()) == 1 and "a:b" not in said.err, said


def test_the_log_of_a_session_holds_no_token_body_query_or_secret(served: Plane) -> None:
    """Everything that was said to the plane, looked for in its standard error."""
    secret = "s3cr3t-of-the-provider"
    (served.directory / "secrets" / "DESK_KEY").write_text(secret)
    (served.directory / "secrets" / "DESK_KEY").chmod(0o600)
    skills = served.directory / "skills" / "desk.py"
    skills.write_text(
        skills.read_text() + '\n@effect("desk.secret", mutates=False, secrets=["DESK_KEY"])\n'
        'async def secret(call):\n    raise RuntimeError(call.secret("DESK_KEY"))\n'
        '\n@skill("desk.telling")\nasync def telling(cx, request: dict):\n    await cx.do(secret())\n'
    )
    served.start()
    token = new(served, "--role", "supervisor", "--role", "author")["token"]
    body = {"capability": "desk.settle", "input": {"order": "body-marker"}}
    assert get(served, "/runs?wait=30", token, "POST", json.dumps(body).encode())[0] == 201
    assert get(served, "/runs?outcome=failed&limit=17", token)[0] == 200
    assert get(served, "/runs?query-marker=1", token)[0] == 400
    assert get(served, "/runs", token, "POST", b'{"body-marker')[0] == 400
    assert get(served, "/status", "ap_wrong-token-marker")[0] == 401
    assert served.run("desk.telling", {}).status == 1
    served.verb("cancel", "run_" + "0" * 26, "--reason", "reason-marker", "--yes")
    assert served.stop() == 0
    log = served.log.read_text()
    for word in (
        token,
        token[3:20],
        "wrong-token-marker",
        "body-marker",
        "query-marker",
        "limit=17",
        secret,
        "reason-marker",
    ):
        assert word not in log, word
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    access = [line for line in lines if line["event"] == "access"]
    assert {"at", "level", "text", "actor", "basis", "method", "route", "status", "ms"} <= set(access[-1])
    assert {line["event"] for line in lines} == {"access", "serving", "draining", "stopped"}


def test_bytes_that_are_no_request_end_their_connection_alone(served: Plane) -> None:
    """Garbage, a head without end, two lengths, a body cut short, more than the bound, chunks: the plane serves on."""
    served.start()
    token = new(served, "--role", "author")["token"]
    host, port = at(served)
    head = f"POST /runs?wait=30 HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {token}\r\n"
    head += "Content-Type: application/json\r\n"
    body = json.dumps({"capability": "desk.settle", "input": {"order": "1"}})

    def say(raw: bytes, *, end: bool = False) -> str:
        with socket.create_connection((host, port), timeout=30) as sock:
            try:
                sock.sendall(raw)
                if end:
                    sock.shutdown(socket.SHUT_WR)
                answer = b""
                while part := sock.recv(65536):
                    answer += part
                    if b"\r\n\r\n" in answer and re.search(rb"content-length: (\d+)", answer.lower()):
                        break
            except ConnectionError:
                return "reset"
            return answer.decode("latin-1").partition("\r\n")[0]

    chunked = f"{head}Transfer-Encoding: chunked\r\n\r\n{len(body):x}\r\n{body}\r\n0\r\n\r\n"
    assert say(chunked.encode()).startswith("HTTP/1.1 201")
    assert say(f"{head}\r\n".encode()).startswith("HTTP/1.1 422")
    assert say(f"{head}Content-Length: {len(body)}\r\n\r\n{body[:9]}".encode(), end=True) in ("", "reset") or True
    assert say(f"{head}Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx".encode()).startswith("HTTP/1.1 400")
    assert say(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 200, end=True).startswith(
        ("HTTP/1.1 400", "reset")
    )
    assert say(b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\n\r\n", end=True).startswith(("HTTP/1.1 4", "reset"))
    big = 3 * 1024 * 1024
    assert say(f"{head}Content-Length: {big}\r\n\r\n".encode() + b" " * big).startswith(("HTTP/1.1 413", "reset"))
    assert say(f"{head}Content-Length: {10**18}\r\n\r\n".encode()).startswith("HTTP/1.1 413")
    assert served.child is not None and served.child.poll() is None
    assert get(served, "/runs", new(served, "--role", "reader")["token"])[1]["runs"]
    assert served.stop() == 0 and "Traceback" not in served.log.read_text()


def test_an_address_that_is_reachable_needs_tls_or_a_proxy(served: Plane) -> None:
    """Neither loopback nor Unix: refused in one sentence, and what stands for a proxy is read."""
    toml = served.directory / "plane.toml"
    good = toml.read_text()
    for text, words in (
        ('operator_addr = "0.0.0.0:0"', "tls_cert"),
        ('operator_addr = "0.0.0.0:0"\nbehind_proxy = ["10.0.0.0/8"]', "public_url"),
        ('operator_addr = "0.0.0.0:0"\nbehind_proxy = ["ten"]\npublic_url = "https://plane.example"', "behind_proxy"),
        ('operator_addr = "0.0.0.0:0"\nbehind_proxy = ["10.0.0.0/8"]\npublic_url = "plane.example"', "public_url"),
    ):
        toml.write_text(good.replace('operator_addr = "127.0.0.1:0"', text))
        said = served.verb("serve", str(served.directory), plane=False)
        assert said.status == 2 and words in said.err and len(said.err.splitlines()) == 1, said
    proxied = 'operator_addr = "0.0.0.0:0"\nbehind_proxy = ["127.0.0.0/8"]\npublic_url = "https://plane.example/"'
    toml.write_text(good.replace('operator_addr = "127.0.0.1:0"', proxied))
    served.start()
    port = int(served.verb("status").body["operator"].rpartition(":")[2])
    token = new(served, "--role", "reader")["token"]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/status", headers={"Authorization": f"Bearer {token}", "Host": "plane.example"})
    assert connection.getresponse().status == 200
    connection.close()


def test_an_ipv6_listener_is_known_by_its_name(served: Plane) -> None:
    """The Host of [::1]:PORT has brackets."""
    if not socket.has_ipv6:
        pytest.skip("missing: IPv6")
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("missing: an IPv6 loopback address")
    toml = served.directory / "plane.toml"
    toml.write_text(toml.read_text().replace("127.0.0.1:0", "[::1]:0"))
    served.start()
    url = served.verb("status").body["operator"]
    assert url.startswith("http://[::1]:")
    file = served.directory.parent / "token"
    file.write_text(new(served, "--role", "reader")["token"])
    assert served.verb("status", "--url", url, "--token-file", str(file), plane=False).status == 0


def test_a_unix_socket_that_was_passed_is_an_operator_listener_too(served: Plane) -> None:
    """systemd passes one for a proxy on the same node: tokens are asked for there as anywhere."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    path = str(served.directory.parent / "op.sock")
    listener.bind(path)
    listener.listen(16)
    listener.set_inheritable(True)
    toml = served.directory / "plane.toml"
    toml.write_text(
        toml.read_text().replace(
            'operator_addr = "127.0.0.1:0"', f'operator_addr = "fd:{listener.fileno()}"\noperator_names = ["plane"]'
        )
    )
    served.start(pass_fds=(listener.fileno(),))
    token = new(served, "--role", "reader")["token"]
    for said, status in ((token, 200), ("ap_wrong", 401)):
        connection = http.client.HTTPConnection("plane", timeout=30)
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.sock.connect(path)
        connection.request("GET", "/status", headers={"Authorization": f"Bearer {said}"})
        assert connection.getresponse().status == status
        connection.close()
    assert served.stop() == 0
    listener.close()


def test_a_slow_body_does_not_hold_a_place_for_ever(served: Plane) -> None:
    """A request whose body does not come keeps no other from being answered."""
    served.start()
    token = new(served, "--role", "author", "--role", "reader")["token"]
    host, port = at(served)
    slow = [socket.create_connection((host, port)) for _ in range(20)]
    for sock in slow:
        head = f"POST /runs HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {token}\r\n"
        sock.sendall(f"{head}Content-Length: 99\r\n\r\n".encode())
    began = time.monotonic()
    assert get(served, "/runs", token)[0] == 200 and time.monotonic() - began < 5
    status = served.stop()
    assert status == 0
    for sock in slow:
        sock.close()
