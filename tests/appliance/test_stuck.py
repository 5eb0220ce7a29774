"""A provider that takes a request and never answers, and one that answers when nobody listens any more.

The plane is served, the provider is a real listener beside it: it keeps what arrived and what took effect, and holds
back the first answer of an order until the test lets it go.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from agentplane.core.records import EffectDone, EffectFailed, EffectReconciled, EffectStarted
from appliance.drained import ended, kinds, leaves, log, records
from surface.terminals import Plane

TIMEOUT_S = 0.5
"""Of the acts below that may time out."""
SKILLS = '''
"""One act a kind of recovery, on the loop and in a thread, against a provider that takes its time."""
from agentplane import DidNotHappen, Landed, Recovery, RetryPolicy, effect, skill

SOON = RetryPolicy(max_attempts=4, base_ms=10)


def request(call, order):
    return {
        "url": call.setting("provider_url") + "/deeds", "json": {"order": order, "attempt": call.attempt},
        "headers": {"Idempotency-Key": call.idempotency_key},
    }


async def act(call, *, order: str):
    return (await call.http.post(**request(call, order))).json()


def act_in_thread(call, *, order: str):
    return call.http.post(**request(call, order)).json()


keyed = effect("desk.keyed", recovery=Recovery.IDEMPOTENT, timeout_s=0.5, retry=SOON)(act)
threaded = effect("desk.threaded", recovery=Recovery.IDEMPOTENT, timeout_s=0.5, retry=SOON)(act_in_thread)
asked = effect("desk.asked", recovery=Recovery.RECONCILE, timeout_s=0.5, settle_s=0.5, retry=SOON)(act)
manual = effect("desk.manual", timeout_s=0.5)(act)
patient = effect("desk.patient", timeout_s=60)(act)
patient_thread = effect("desk.waiting", timeout_s=60)(act_in_thread)


@asked.reconcile
async def landed(call, *, order: str):
    url = call.setting("provider_url") + "/deeds"
    rows = (await call.http.get(url, params={"key": call.idempotency_key})).json()
    return Landed(rows[0]) if rows else DidNotHappen()


EFFECTS = {one.kind: one for one in (keyed, threaded, asked, manual, patient, patient_thread)}


@skill("desk.act")
async def acting(cx, request: dict):
    return await cx.do(EFFECTS[request["kind"]](order="A"))
'''


class Book:
    """What arrived, by attempt; what took effect; and the two things that are waited for."""

    def __init__(self) -> None:
        self.arrived: list[int] = []
        self.deeds: list[dict[str, Any]] = []
        self.answered: Counter[int] = Counter()
        self.let_go = threading.Event()
        self.changed = threading.Condition()

    def until(self, what: str, number: int) -> None:
        """Until attempt ``number`` is in ``arrived`` or ``answered``."""
        with self.changed:
            assert self.changed.wait_for(lambda: number in getattr(self, what), timeout=30), (what, number)

    def tell(self, note: Any) -> None:
        with self.changed:
            note()
            self.changed.notify_all()

    def land(self, key: str, attempt: int) -> dict[str, Any]:
        with self.changed:
            found = next((deed for deed in self.deeds if deed["key"] == key), None)
            if found is None:
                found = {"key": key, "id": f"deed-{len(self.deeds)}"}
                self.deeds.append(found)
        return found | {"answers": attempt}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    book: ClassVar[Book]

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        attempt, book = int(asked["attempt"]), self.book
        book.tell(lambda: book.arrived.append(attempt))
        if attempt == 1:
            book.let_go.wait()
        deed = book.land(self.headers["Idempotency-Key"], attempt)
        try:
            self._answer(deed)
        except OSError:
            pass  # whoever asked has gone
        book.tell(lambda: book.answered.update([attempt]))

    def do_GET(self) -> None:
        key = self.path.partition("key=")[2]
        with self.book.changed:
            rows = [deed | {"answers": "probe"} for deed in self.book.deeds if deed["key"] == key]
        self._answer(rows)

    def _answer(self, body: Any) -> None:
        raw = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def book() -> Iterator[Book]:
    made = Book()
    yield made
    made.let_go.set()


@pytest.fixture
def plane(tmp_path: Path, book: Book) -> Iterator[Plane]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"book": book}))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    made = Plane.made(tmp_path / "plane", skills=SKILLS)
    toml = made.directory / "plane.toml"
    kept = [line for line in toml.read_text().splitlines() if not line.startswith("drain_secs")]
    kept.insert(kept.index("[settings]"), "drain_secs = 1")
    kept.insert(kept.index("[settings]") + 1, f'provider_url = "http://127.0.0.1:{server.server_port}"')
    toml.write_text("\n".join(kept) + "\n")
    yield made
    if made.child is not None:
        made.child.kill()
        made.child.wait()
    book.let_go.set()
    server.shutdown()
    server.server_close()


def begun(plane: Plane, kind: str) -> str:
    return str(plane.run("desk.act", {"kind": kind}, "--detach").body["run"])


def outcomes(plane: Plane, run: str) -> list[tuple[str, str | None]]:
    """The run's outcomes and verdicts in order, each with its disposition or verdict."""
    found: list[tuple[str, str | None]] = []
    for record in records(plane, run):
        if isinstance(record, EffectDone):
            found.append(("done", None))
        elif isinstance(record, EffectFailed):
            found.append(("failed", record.disposition.value))
        elif isinstance(record, EffectReconciled):
            found.append(("asked", f"{record.verdict}{' early' if record.early else ''}"))
    return found


def announced(plane: Plane, run: str) -> list[tuple[int, str]]:
    return [(one.attempt, one.idempotency_key) for one in records(plane, run) if isinstance(one, EffectStarted)]


@pytest.mark.parametrize("kind", ["desk.patient", pytest.param("desk.waiting", marks=pytest.mark.heavy)])
def test_a_drain_does_not_wait_for_a_provider_that_never_answers(plane: Plane, book: Book, kind: str) -> None:
    """On the loop or in a thread, the process leaves with its grace and names what it cut; the next process sends
    nothing again and names the same effect, since only a person can look."""
    plane.start()
    run = begun(plane, kind)
    book.until("arrived", 1)
    assert plane.child is not None
    began = time.monotonic()
    plane.child.terminate()
    assert leaves(plane, within_s=15) == 5
    assert time.monotonic() - began < 12
    assert f"cut: {run} in step 0, effect {kind}" in log(plane)
    plane.start()
    found = ended(plane, run)
    assert found["status"] == "quarantined" and [one["kind"] for one in found["undecided"]] == [kind]
    assert book.arrived == [1] and outcomes(plane, run) == []
    assert plane.stop() == 0


@pytest.mark.heavy
def test_a_provider_that_never_answers_is_doubt_and_is_sent_the_same_key(plane: Plane, book: Book) -> None:
    """Past its timeout the attempt is in doubt; the next one carries the same key and is answered."""
    plane.start()
    run = begun(plane, "desk.keyed")
    found = ended(plane, run)
    assert found["status"] == "succeeded" and found["output"]["answers"] == 2
    assert outcomes(plane, run) == [("failed", "in_doubt"), ("done", None)]
    (first, key), (second, again) = announced(plane, run)
    assert (first, second) == (1, 2) and key == again and len(book.deeds) == 1
    # It answers now, to a connection that nobody reads: nothing of the run changes.
    before = kinds(plane, run)
    book.let_go.set()
    book.until("answered", 1)
    assert plane.run("desk.act", {"kind": "desk.keyed"}).status == 0
    assert kinds(plane, run) == before and len({deed["key"] for deed in book.deeds}) == len(book.deeds)
    assert plane.stop() == 0


def test_an_act_that_lands_after_its_timeout_is_found_by_asking(plane: Plane, book: Book) -> None:
    """The provider performs it when nobody waits any more: the answer is the probe's, and nothing is sent again."""
    plane.start()
    run = begun(plane, "desk.asked")
    plane.until(lambda: ("failed", "in_doubt") in outcomes(plane, run))
    book.let_go.set()
    found = ended(plane, run)
    assert found["status"] == "succeeded" and found["output"]["answers"] == "probe"
    said = outcomes(plane, run)
    assert said[0] == ("failed", "in_doubt") and said[-1] == ("asked", "landed")
    assert all(one == ("asked", "did_not_happen early") for one in said[1:-1])
    assert book.arrived == [1] and len(book.deeds) == 1
    assert plane.stop() == 0


@pytest.mark.heavy
def test_an_act_that_never_lands_is_sent_again_once_it_cannot_arrive(plane: Plane, book: Book) -> None:
    """Asked too early, "I know nothing of it" is not believed; asked behind timeout and settle it is, once."""
    plane.start()
    run = begun(plane, "desk.asked")
    found = ended(plane, run)
    assert found["status"] == "succeeded" and found["output"]["answers"] == 2
    said = outcomes(plane, run)
    assert said[0] == ("failed", "in_doubt") and said[-2:] == [("asked", "did_not_happen"), ("done", None)]
    assert book.arrived == [1, 2] and len(book.deeds) == 1
    assert plane.stop() == 0


@pytest.mark.heavy
def test_a_late_answer_never_settles_what_only_a_person_may(plane: Plane, book: Book) -> None:
    """It lands after the timeout: the run stands quarantined and named, with nothing more recorded and nothing sent."""
    plane.start()
    run = begun(plane, "desk.manual")
    found = ended(plane, run)
    assert found["status"] == "quarantined" and [one["kind"] for one in found["undecided"]] == ["desk.manual"]
    before = kinds(plane, run)
    book.let_go.set()
    book.until("answered", 1)
    assert plane.verb("status").status == 0
    assert kinds(plane, run) == before and book.arrived == [1] and len(book.deeds) == 1
    assert plane.stop() == 0


def test_what_a_thread_returns_too_late_is_nobodys_outcome(plane: Plane, book: Book) -> None:
    """A blocking act that timed out: it has no outcome and no attempt follows before its thread has ended, and what
    that thread returns is not recorded; the next attempt is answered as the first was, and the deed is done once."""
    plane.start()
    run = begun(plane, "desk.threaded")
    until = time.monotonic() + 2 * TIMEOUT_S
    while time.monotonic() < until:
        assert plane.verb("status").status == 0, "the time of the act is over, and its thread is not"
    assert [attempt for attempt, _ in announced(plane, run)] == [1] and outcomes(plane, run) == []
    book.let_go.set()
    found = ended(plane, run)
    assert found["status"] == "succeeded" and found["output"]["answers"] == 2
    assert outcomes(plane, run) == [("failed", "in_doubt"), ("done", None)]
    assert book.arrived == [1, 2] and len(book.deeds) == 1
    assert plane.stop() == 0
