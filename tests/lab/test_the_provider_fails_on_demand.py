"""Every fault that the lab needs, shown on the real process and its book."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agentplane.lab.provider import audit
from agentplane.lab.provider_process import Provider

BODY = {"order": "A-1", "amount_minor": 4200, "currency": "EUR"}


def ask(provider: Provider, key: str = "k-1", order: str = "A-1") -> tuple[int, dict[str, str], Any]:
    """One refund: status, headers, body."""
    return provider.request("POST", "/refunds", {**BODY, "order": order}, headers={"Idempotency-Key": key})


def landed(provider: Provider) -> list[str]:
    """The keys of the refunds in the book, in the order of their commits."""
    with audit.open_book(provider.db) as book:
        return [each.key for each in audit.refunds(book)]


def test_a_5xx_after_the_refund_landed_is_answered_by_the_original_on_repetition(provider: Provider) -> None:
    """503 once, the refund is in the book; the same key then gets 200 and the refund that landed."""
    provider.rule(order="A-1", times=1, status_after=503)
    assert ask(provider)[0] == 503
    assert landed(provider) == ["k-1"]
    status, headers, _ = ask(provider)
    assert (status, headers["idempotent-replayed"]) == (200, "true")
    assert landed(provider) == ["k-1"]


@pytest.mark.parametrize(("when", "expected"), [("before", []), ("after", ["k-1"])])
def test_a_reset_is_a_reset_and_says_nothing_of_what_landed(provider: Provider, when: str, expected: list[str]) -> None:
    """The caller sees ECONNRESET, never an empty answer; the book says which it was."""
    provider.rule(times=1, reset=when)
    with pytest.raises(ConnectionResetError) as seen:
        ask(provider)
    assert seen.type is ConnectionResetError  # and not the client's own word for an end of stream
    assert landed(provider) == expected
    assert ask(provider)[0] == (200 if expected else 201)


def test_a_rate_limit_names_its_wait_and_lands_nothing(provider: Provider) -> None:
    """429 with Retry-After for the next two, then business as usual."""
    provider.rule(path="/refunds", times=2, retry_after_s=3)
    for _ in range(2):
        status, headers, _ = ask(provider)
        assert (status, headers["retry-after"]) == (429, "3")
    assert landed(provider) == []
    assert ask(provider)[0] == 201


def test_a_5xx_before_the_refund_lands_nothing(provider: Provider) -> None:
    """The other 500: the caller cannot tell it from the one that landed, the book can."""
    provider.rule(times=1, status_before=500)
    assert ask(provider)[0] == 500
    assert landed(provider) == []


@pytest.mark.parametrize(("answer", "status"), [("accept", 202), ("drop", None)])
def test_a_late_commit_happens_when_its_caller_is_gone(provider: Provider, answer: str, status: int | None) -> None:
    """Asked too soon the provider has nothing; asked later it has the refund: why P5 makes a probe wait."""
    provider.rule(order="A-1", times=1, late_ms=400, late_answer=answer)
    if status is None:
        with pytest.raises(ConnectionResetError):
            ask(provider)
    else:
        assert ask(provider)[0] == status
    assert provider.request("GET", "/refunds?key=k-1")[2] == []
    assert not provider.quiet(0)
    assert provider.quiet(10_000)
    assert [row["key"] for row in provider.request("GET", "/refunds?key=k-1")[2]] == ["k-1"]
    with audit.open_book(provider.db) as book:
        [row] = audit.refunds(book)
        assert row.at_us - row.arrived_us >= 400_000


def test_a_late_commit_with_an_answer_holds_its_caller(provider: Provider) -> None:
    """`wait` answers 201 after the commit; a caller killed meanwhile changes nothing for the commit."""
    provider.rule(order="A-1", times=1, late_ms=300, gate_arrival="g")
    line = http.client.HTTPConnection("127.0.0.1", provider.port, timeout=10)
    line.request("POST", "/notices", '{"order": "A-1"}', {"Idempotency-Key": "n"})
    assert len(provider.held("g", 10_000)) == 1
    assert provider.request("GET", "/notices?key=n")[2] == []
    line.close()
    provider.release("g")
    assert provider.quiet(10_000)
    assert len(provider.request("GET", "/notices?key=n")[2]) == 1


def test_ignored_keys_make_two_refunds_that_the_key_still_finds(provider: Provider) -> None:
    """A provider without idempotency: repeating pays twice, and asking by key shows both."""
    provider.rule(order="A-1", ignore_keys=True)
    assert [ask(provider)[0], ask(provider)[0]] == [201, 201]
    assert landed(provider) == ["k-1", "k-1"]
    assert len(provider.request("GET", "/refunds?key=k-1")[2]) == 2
    with audit.open_book(provider.db) as book:
        assert list(audit.repeated_orders(book)) == ["A-1"]


def test_a_forgotten_key_pays_again(provider: Provider) -> None:
    """Keys expire at real providers: forgotten by control or by rule, the same key creates anew (P7)."""
    assert ask(provider)[0] == 201
    assert provider.forget(order="A-1") == 1
    assert ask(provider)[0] == 201
    provider.rule(order="A-1", times=1, forget_key=True)
    assert [ask(provider)[0], ask(provider)[0]] == [201, 200]
    assert landed(provider) == ["k-1"] * 3


def test_a_gate_after_the_commit_holds_the_answer_of_what_is_already_paid(provider: Provider) -> None:
    """The instant of W4: the refund is in the book and its caller does not know; a released gate stays
    open."""
    provider.rule(order="A-1", gate_commit="paid")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, provider)
        assert [held["key"] for held in provider.held("paid", 10_000)] == ["k-1"]
        assert landed(provider) == ["k-1"]
        assert not answer.done()
        provider.release("paid")
        assert answer.result()[0] == 201
    assert ask(provider)[0] == 200


def test_rules_count_what_they_take_and_leave_other_orders_alone(provider: Provider) -> None:
    """`skip` lets requests pass first, `times` ends the rule, a match that does not fit counts nothing."""
    provider.rule(order="A-1", method="POST", path="/refunds", skip=1, times=1, status_before=500)
    assert ask(provider, "o", "A-2")[0] == 201
    assert [ask(provider, f"k-{number}")[0] for number in range(3)] == [201, 500, 201]
    number = provider.rule(status_before=500)
    provider.clear(number)
    assert ask(provider, "k-9")[0] == 201


def test_two_rules_on_one_request_both_apply(provider: Provider) -> None:
    """What a third of the tickets meets: a provider that always ignores keys, and once also resets."""
    provider.rule(order="A-1", ignore_keys=True)
    provider.rule(order="A-1", times=1, reset="after")
    with pytest.raises(ConnectionResetError):
        ask(provider)
    assert ask(provider)[0] == 201
    assert len(landed(provider)) == 2


def test_reads_can_fail_and_are_slow_on_demand(provider: Provider) -> None:
    """A probe's own call gets 5xx, 429 or a reset when a rule says so."""
    provider.rule(method="GET", path="/refunds", times=1, status_before=503)
    provider.rule(method="GET", path="/orders", times=1, retry_after_s=1)
    assert [provider.request("GET", "/refunds?key=k")[0] for _ in range(2)] == [503, 200]
    assert [provider.request("GET", "/orders/A-1")[0] for _ in range(2)] == [429, 200]


def test_a_book_is_continued_after_a_restart(tmp_path: Path) -> None:
    """A provider that was stopped remembers its keys."""
    with Provider(tmp_path / "p.db") as first:
        assert ask(first)[0] == 201
    with Provider(tmp_path / "p.db") as second:
        assert ask(second)[0] == 200


def wait_until_gone(pid: int) -> None:
    """Waits for a process that is not our child to disappear; a real wait on a real process, bounded."""
    fd = os.pidfd_open(pid)
    try:
        import select

        assert select.select([fd], [], [], 10)[0], "the provider is still there"
    finally:
        os.close(fd)


def test_the_provider_ends_when_the_driver_is_killed(tmp_path: Path) -> None:
    """SIGKILL of whoever started it leaves no provider behind: the lifeline's end is the message."""
    driver = (
        "import sys, time; from pathlib import Path; from agentplane.lab.provider_process import Provider\n"
        "p = Provider(Path(sys.argv[1])).start(); print(p.pid, flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", driver, str(tmp_path / "p.db")], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        pid = int(child.stdout.readline())
        child.kill()
        wait_until_gone(pid)


def test_the_provider_ends_on_sigterm_even_with_a_request_held(provider: Provider) -> None:
    """SIGTERM with a request at a gate: the process ends promptly, without being killed."""
    provider.rule(gate_arrival="g")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, provider)
        provider.held("g", 10_000)
        began = time.monotonic()
        os.kill(provider.pid, signal.SIGTERM)
        wait_until_gone(provider.pid)
        assert time.monotonic() - began < 5
        try:
            answer.result(10)
        except (OSError, http.client.HTTPException):
            pass  # an answer, or none: what matters is that nobody waits
