"""The provider's promises, shown on the real process: keys, replays, fingerprints, and two commits a
request."""

from __future__ import annotations

import ast
import http.client
import json
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import agentplane.lab.provider
from agentplane.lab.provider import audit
from agentplane.lab.provider.faults import RuleError, parse_rule
from agentplane.lab.provider.service import fingerprint
from agentplane.lab.provider_process import Provider, ProviderFailed

BODY = {"order": "A-1", "amount_minor": 4200, "currency": "EUR"}


def ask(provider: Provider, key: str | None = "k-1", body: Any = BODY, path: str = "/refunds") -> tuple[int, bool, Any]:
    """One refund: status, whether the answer was marked as a replay, body."""
    headers = {} if key is None else {"Idempotency-Key": key}
    status, said, answer = provider.request("POST", path, body, headers=headers)
    return status, said.get("idempotent-replayed") == "true", answer


def test_a_first_request_creates_and_a_second_is_the_replay_of_it(provider: Provider) -> None:
    """201 with a reference, then 200 with the same body, marked; one row, one replay counted."""
    status, replayed, first = ask(provider)
    assert (status, replayed) == (201, False)
    assert ask(provider) == (200, True, first)
    with audit.open_book(provider.db) as book:
        [row] = audit.refunds(book)
        assert (row.ref, row.order, row.amount_minor, row.key) == (first["id"], "A-1", 4200, "k-1")
        assert audit.replays_by_key(book) == {"k-1": 1}
        assert [each.verdict for each in audit.answers(book, key="k-1")] == ["created", "replayed"]


def test_the_same_key_with_another_body_or_path_is_refused(provider: Provider) -> None:
    """409 and no row, whatever differs; the order of a body's members is no difference."""
    ask(provider)
    assert ask(provider, body={**BODY, "amount_minor": 4201})[0] == 409
    assert ask(provider, path="/notices")[0] == 409
    assert ask(provider, body=dict(reversed(BODY.items())))[:2] == (200, True)
    with audit.open_book(provider.db) as book:
        assert len(audit.effects(book)) == 1


def test_reships_and_notices_are_effects_too(provider: Provider) -> None:
    """The other mutating calls keep the same promises and are listed under their own paths."""
    assert ask(provider, "r", {"order": "A-2"}, "/reships")[0] == 201
    assert ask(provider, "n", {"order": "A-2", "text": "on its way"}, "/notices")[0] == 201
    assert [row["key"] for row in provider.request("GET", "/reships?order=A-2")[2]] == ["r"]
    assert [row["key"] for row in provider.request("GET", "/notices?key=n")[2]] == ["n"]
    assert provider.request("GET", "/refunds?order=A-2")[2] == []
    _, _, order = provider.request("GET", "/orders/A-2")
    assert (order["reships"], order["notices"], order["refunds"]) == (1, 1, 0)


def test_many_requests_with_one_key_at_once_make_one_effect(provider: Provider) -> None:
    """Twenty at once, half of them held back before the look-up: one is created, nineteen are replays of
    it."""
    provider.rule(path="/refunds", times=10, delay_before_ms=20)
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: ask(provider), range(20)))
    assert sorted(status for status, _, _ in answers) == [200] * 19 + [201]
    assert len({body["id"] for _, _, body in answers}) == 1
    with audit.open_book(provider.db) as book:
        assert len(audit.refunds(book)) == 1
        assert audit.replays_by_key(book) == {"k-1": 19}


def test_a_stored_failure_is_replayed_as_a_failure(provider: Provider) -> None:
    """402 on demand, then the same 402 marked as a replay although the rule is gone; nothing lands."""
    provider.rule(order="A-1", times=1, stored_failure=402)
    status, replayed, first = ask(provider)
    assert (status, replayed) == (402, False)
    assert ask(provider) == (402, True, first)
    with audit.open_book(provider.db) as book:
        assert audit.effects(book) == []


def test_an_arrival_is_in_the_book_before_its_commit(provider: Provider) -> None:
    """While a request is held at arrival the book has the arrival and no effect; times are in order
    afterwards."""
    provider.rule(gate_arrival="g")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, provider)
        [held] = provider.held("g", 10_000)
        assert (held["order"], held["key"]) == ("A-1", "k-1")
        with audit.open_book(provider.db) as book:
            [arrival] = audit.arrivals(book, key="k-1")
            assert arrival.id == held["arrival"]
            assert audit.effects(book) == []
        assert provider.release("g") == 1
        assert answer.result()[0] == 201
    with audit.open_book(provider.db) as book:
        [row] = audit.effects(book)
        assert row.arrival == arrival.id
        assert arrival.at_us == row.arrived_us <= row.at_us


def test_what_does_not_fit_is_refused_and_makes_nothing(provider: Provider) -> None:
    """Missing key, wrong members, no JSON, a body over the bound, no length: a status each, no effect."""
    assert ask(provider, key=None)[0] == 400
    assert ask(provider, key="k" * 256)[0] == 400
    assert ask(provider, body=[1])[0] == 400
    assert ask(provider, body={**BODY, "amount_minor": True})[0] == 422
    assert ask(provider, body={**BODY, "amount_minor": 0})[0] == 422
    assert ask(provider, body={**BODY, "currency": "euro"})[0] == 422
    assert ask(provider, body={**BODY, "order": ""})[0] == 422
    assert ask(provider, path="/nowhere")[0] == 404
    assert ask(provider, body={**BODY, "pad": "x" * 70_000})[0] == 413
    assert provider.request("GET", "/refunds")[0] == 400
    line = http.client.HTTPConnection("127.0.0.1", provider.port, timeout=10)
    line.request("POST", "/refunds", iter([b"{}"]), {"Idempotency-Key": "k"})  # chunked
    answer = line.getresponse()
    answer.read()
    line.close()
    assert answer.status == 411
    with audit.open_book(provider.db) as book:
        assert audit.effects(book) == []


def test_a_request_cut_in_the_middle_of_its_body_has_not_arrived(provider: Provider) -> None:
    """Only a request that was read whole is an arrival: half a body leaves no row."""
    head = b"POST /refunds HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k-1\r\nContent-Length: 500\r\n\r\n{"
    with socket.create_connection(("127.0.0.1", provider.port), timeout=10) as half:
        half.sendall(head)
        half.shutdown(socket.SHUT_WR)
        assert half.recv(100) == b""
    with audit.open_book(provider.db) as book:
        assert audit.arrivals(book) == []


def test_one_connection_serves_many_requests(provider: Provider) -> None:
    """HTTP/1.1 keep-alive: the second answer comes on the connection of the first."""
    line = http.client.HTTPConnection("127.0.0.1", provider.port, timeout=10)
    line.connect()
    port = line.sock.getsockname()[1]
    for number in range(3):
        line.request("POST", "/notices", json.dumps({"order": "A-3"}), {"Idempotency-Key": f"n-{number}"})
        answer = line.getresponse()
        answer.read()
        assert answer.status == 201
        assert line.sock is not None and line.sock.getsockname()[1] == port
    line.close()


def test_the_control_api_needs_its_token_and_refuses_unknown_members(provider: Provider) -> None:
    """403 without the token; a misspelt fault is an error and never a rule that does nothing."""
    assert provider.request("POST", "/control/rules", {"reset": "after"})[0] == 403
    with pytest.raises(ProviderFailed, match="delay_befor_ms is not a member"):
        provider.rule(delay_befor_ms=5)
    for told, said in (
        ({"reset": "later"}, "one of before, after"),
        ({"status_after": 200}, "400 to 599"),
        ({"order": "A"}, "no behaviour"),
        ({"ignore_keys": 1}, "type bool"),
        ({"times": -1, "ignore_keys": True}, "times"),
        ([], "object"),
    ):
        with pytest.raises(RuleError, match=said):
            parse_rule(told)


def test_a_fingerprint_depends_on_path_and_content_alone() -> None:
    """Order of members and white space are no content; the path, a value and a type are."""
    assert fingerprint("/a", b'{"x":1,"y":2}') == fingerprint("/a", b'{ "y": 2, "x": 1 }')
    others = {fingerprint("/a", b'{"x":1}'), fingerprint("/b", b'{"x":1}'), fingerprint("/a", b'{"x":"1"}')}
    assert len(others | {fingerprint("/a", b'{"x":2}')}) == 4


def test_the_provider_imports_nothing_of_ours() -> None:
    """Its book is independent only if its code is: standard library and its own package, nothing else."""
    root = Path(agentplane.lab.provider.__file__).parent
    for module in sorted(root.glob("*.py")):
        for node in ast.walk(ast.parse(module.read_text())):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                ours = name.startswith("agentplane.lab.provider.")
                assert ours or name.split(".")[0] in sys.stdlib_module_names, f"{module.name} imports {name}"
