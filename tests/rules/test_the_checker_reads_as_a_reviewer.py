"""``agentplane check``: every rule finds its mistake on its line, and nothing in code that is as it should be."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentplane.authoring.ambient import AMBIENT
from agentplane.authoring.checker import Finding, check_paths

HEAD = """
import asyncio, datetime, os, random, secrets, socket, subprocess, threading, time, uuid
import httpx, requests, trio
import time as clock
from datetime import datetime as dt
from random import choice
from uuid import uuid4 as fresh
from pathlib import Path
from agentplane import Recovery, Landed, effect, skill

@effect("pay.refund", recovery=Recovery.IDEMPOTENT)
async def refund(call, *, order):
    return await call.http.post("x", headers={"k": call.idempotency_key, "t": time.time()})
"""


def lines(source: str) -> list[tuple[int, str]]:
    return [
        (number, line.rpartition("# ! ")[2]) for number, line in enumerate(source.splitlines(), 1) if "# ! " in line
    ]


def found(tmp_path: Path, source: str) -> list[Finding]:
    file = tmp_path / "skills" / "orders.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text(source)
    return check_paths([file.parent])


def step(body: str) -> str:
    return (
        HEAD
        + '\n@skill("orders.run")\nasync def run(cx, request: dict):\n'
        + "".join(f"    {line}\n" for line in body.splitlines())
    )


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        ("at = time.time()", "ambient-clock"),
        ("at = clock.monotonic()", "ambient-clock"),
        ("at = dt.now()", "ambient-clock"),
        ("at = datetime.datetime.utcnow()", "ambient-clock"),
        ("at = datetime.date.today()", "ambient-clock"),
        ("read = time.time", "ambient-clock"),
        ("n = random.random()", "ambient-randomness"),
        ("n = choice([1, 2])", "ambient-randomness"),
        ("n = fresh()", "ambient-randomness"),
        ("n = uuid.uuid4()", "ambient-randomness"),
        ("n = os.urandom(8)", "ambient-randomness"),
        ("n = secrets.token_hex()", "ambient-randomness"),
        ("await trio.sleep(1)", "own-waiting"),
        ("await asyncio.sleep(1)", "own-waiting"),
        ("time.sleep(1)", "own-waiting"),
        ("asyncio.create_task(cx.now())", "own-tasks"),
        ("async with trio.open_nursery() as nursery: pass", "own-tasks"),
        ("request['nursery'].start_soon(print)", "own-tasks"),
        ("threading.Thread(target=print).start()", "own-tasks"),
        ("with trio.move_on_after(1): await cx.now()", "own-deadline"),
        ("open('x')", "outside-world"),
        ("requests.get('x')", "outside-world"),
        ("httpx.get('x')", "outside-world"),
        ("socket.socket()", "outside-world"),
        ("subprocess.run(['x'])", "outside-world"),
        ("Path('x').write_text('y')", "outside-world"),
        ("for name in {1, 2}: await cx.do(refund(order=name))", "set-loop"),
        ("for name in set(request): await cx.do(refund(order=name))", "set-loop"),
        ("for name in {x for x in request}: await cx.do(refund(order=name))", "set-loop"),
        ("for name in list({1, 2} | {3}): await cx.do(refund(order=name))", "set-loop"),
        ("names = set(request); [await cx.do(refund(order=name)) for name in names]", "set-loop"),
        ("await cx.gather(*[refund(order=name) for name in {1, 2}])", "set-loop"),
        ("await cx.gather(*{refund(order=1)})", "set-loop"),
        ("for k in {'a', 'b'}: await cx.event('x.y', correlation={'k': k}, days=1)", "set-loop"),
        ("for k in set(request): await cx.task(Proposal(summary=k))", "set-loop"),
        ("for k in set(request): await cx.case.write(k, expected=1)", "set-loop"),
        ("await cx.case.write([k for k in set(request)], expected=1)", "set-loop"),
        ("await cx.task(Proposal(summary='x', evidence=[k for k in {1, 2}]))", "set-loop"),
        ("await cx.task(Proposal(summary='x', evidence={'of': {1, 2}}))", "set-loop"),
        ("await cx.do(refund(order=list(set(request))))", "set-loop"),
        ("bag = set(request); await cx.do(refund(order=bag.pop()))", "set-loop"),
    ],
)
def test_what_a_step_does_beside_cx_is_found(tmp_path: Path, body: str, rule: str) -> None:
    """P19: On its line, by its rule, once; also behind an alias."""
    source = step(body)
    assert [(one.line, one.rule) for one in found(tmp_path, source)] == [(source.count("\n"), rule)]


@pytest.mark.parametrize(
    "body",
    [
        "at = await cx.now()",
        "for name in sorted({1, 2}): await cx.do(refund(order=name))",
        "for name in [1, 2]: await cx.do(refund(order=name))",
        "total = sum(x for x in {1, 2})",
        "for k in sorted({'a', 'b'}): await cx.event('x.y', correlation={'k': k}, days=1)",
        "await cx.task(Proposal(summary='x', evidence=sorted({1, 2}), audience=['a'] if 1 in {1, 2} else ['b']))",
        "await cx.case.write({'n': len(set(request)), 'a': sum(x for x in {1, 2})}, expected=1)",
        "bag = {1, 2}; await cx.do(refund(order=request['order'])); total = len(bag)",
        "await cx.gather(*[refund(order=name) for name in request['names']])",
        "key = uuid.UUID(request['id']), uuid.uuid5(uuid.NAMESPACE_DNS, 'x') if False else None",
        "later = datetime.datetime.fromisoformat(request['at']) + datetime.timedelta(days=1)",
        "opened = request['open']; socket_name = 'x'",
        "id = request['id']; input = [id]; return [input, id]",
    ],
)
def test_what_is_the_same_on_every_walk_is_let_be(tmp_path: Path, body: str) -> None:
    """Pure code, ordered loops, and names that only look alike."""
    assert [one for one in found(tmp_path, step(body)) if "NAMESPACE" not in one.sentence] == []


def test_functions_that_a_step_calls_are_read_too(tmp_path: Path) -> None:
    """A helper of the same file is skill code where a skill calls it; an effect and its probe are not."""
    source = (
        HEAD
        + """
def pick(names):
    return random.choice(names)  # ! ambient-randomness

def unused():
    return time.time()

@refund.reconcile
async def landed(call, *, order):
    return Landed(time.time())

@skill("orders.run")
async def run(cx, request: dict):
    return await cx.do(refund(order=pick(["a"])))

@run.compensate
async def back(cx, request, output):
    time.sleep(1)  # ! own-waiting
"""
    )
    assert [(one.line, one.rule) for one in found(tmp_path, source)] == lines(source)


def test_what_an_effect_says_of_its_recovery_is_read(tmp_path: Path) -> None:
    """Unpinned, harmless by its author's word, two syncs, and a key that is never sent."""
    source = """
import agentplane
from agentplane import Recovery, effect

@effect("pay.bare")
async def bare(call): ...  # ! unpinned-recovery

@agentplane.effect("pay.again", recovery=Recovery.RETRY)
async def again(call): ...  # ! retry-mutates

@effect("pay.hand", recovery=Recovery.REQUIRES_OPERATOR)
def hand(call): ...  # ! two-syncs

@effect("pay.ask", recovery=Recovery.RECONCILE)
async def ask(call): ...  # ! two-syncs

@effect("pay.asked", recovery=Recovery.RECONCILE)
async def asked(call): ...

@asked.reconcile
async def probe(call): ...

@effect("pay.keyless", recovery=Recovery.IDEMPOTENT)
async def keyless(call, *, order):  # ! key-unused
    return await call.http.post("x", json={"order": order})

@effect("pay.handed", recovery=Recovery.IDEMPOTENT)
async def handed(call, *, order):
    return await request(call, order)

@effect("look.up", mutates=False)
async def look(call): ...

@effect("score.it", local=True)
async def score(call): ...
"""
    assert [(one.line, one.rule) for one in found(tmp_path, source)] == lines(source)
    assert all("pay." in one.sentence for one in found(tmp_path, source))


def test_a_file_that_is_no_python_is_a_finding(tmp_path: Path) -> None:
    """With its line; the others are read all the same."""
    (tmp_path / "skills").mkdir()
    (tmp_path / "skills" / "broken.py").write_text("x = 1\ndef (:\n")
    (tmp_path / "skills" / "nul.py").write_bytes(b"x = '\x00'\n")
    rules = {(Path(one.file).name, one.rule) for one in found(tmp_path, step("open('x')"))}
    assert rules == {("broken.py", "unreadable"), ("nul.py", "unreadable"), ("orders.py", "outside-world")}


def test_every_name_stands_in_one_table() -> None:
    """A name has one reason."""
    names = [name for table in AMBIENT for name in table.names]
    assert len(names) == len(set(names)) and len({table.rule for table in AMBIENT}) == len(AMBIENT)
