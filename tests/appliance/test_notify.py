"""Telling: a signed message of what is new, at least once, to a receiver that may fail in every way."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

from agentplane.appliance import notify
from agentplane.appliance.notify import Notifier, Webhook, client, read_secret
from agentplane.appliance.sections import NotifySettings
from agentplane.core.errors import Settings, StoreFailed
from agentplane.core.instants import from_text
from agentplane.core.notices import FAILING, HALF_GONE, OPENED, UNANSWERED, Found, Notice, Told, pause_s
from agentplane.engine.plane import Plane
from agentplane.journal import lists
from agentplane.journal.store import read_only
from agentplane.journal.tx import Tx
from agentplane.testkit.ledger import run_id
from agentplane.testkit.tasks_hold import PROPOSAL
from agentplane.work import tasks
from appliance.receivers import KEY, Receiver, secret_in
from surface.doors import door
from surface.terminals import Plane as Served

BEGAN_MS = 1_800_000_000_000
MINUTE_MS = 60_000


class Scene:
    """A plane that tells ``receiver`` of ``found``, and of its tasks, at the hour that is set."""

    def __init__(self, receiver: Receiver, secret: Path) -> None:
        self.now_ms = BEGAN_MS
        self.found: list[Found] = []
        self.receiver = receiver
        self.secret = secret
        self.plane: Any = None
        self.notifier: Any = None

    async def gather(self) -> list[Found]:
        failing = [] if self.notifier.fault is None else [Found(condition=FAILING, count=1)]
        return [*self.found, *failing]

    def holds(self, **counts: int) -> None:
        self.found = [Found(condition=name.replace("_", "."), count=count) for name, count in counts.items()]

    def begin(self, receiver: Receiver | None = None) -> None:
        """A notifier that remembers nothing, as a process that has just begun has."""
        url = (receiver or self.receiver).url
        hook = Webhook(url, self.secret, "desk", "https://desk.example/")
        self.notifier = Notifier(self.plane, hook, self.gather)

    async def look(self, minutes: int = 1) -> list[dict[str, int]]:
        """What the receiver hears of in a look so many minutes later: one dict a message."""
        self.now_ms += minutes * MINUTE_MS
        before = len(self.receiver.messages)
        async with client() as sender:
            await self.notifier.once(sender)
        return [one.conditions() for one in self.receiver.messages[before:]]

    async def open_task(self, number: int, due_ms: int | None = None) -> str:
        row = tasks.Opening(
            task=f"{number:064x}", run=run_id(number), key=number.to_bytes(32, "big"), case=None, kind="desk.refund",
            due_ms=due_ms, excluded=(), proposal=PROPOSAL,
        )  # fmt: skip
        await self.plane.writer.do(lambda tx: tasks.open(tx, row))
        return row.task


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@asynccontextmanager
async def telling(directory: Path, receiver: Receiver) -> AsyncIterator[Scene]:
    scene = Scene(receiver, secret_in(directory))
    async with Plane.open(directory / "plane.db", now_ms=lambda: scene.now_ms) as plane:
        scene.plane = plane
        scene.begin()
        yield scene


# --- the message ----------------------------------------------------------------------------------------------------


async def test_a_message_is_signed_and_says_what_and_where_and_nothing_of_whom(
    tmp_path: Path, receiver: Receiver
) -> None:
    """Standard Webhooks, over the bytes that arrived; a subject is in none of them."""
    async with telling(tmp_path, receiver) as scene:
        scene.found = [Found(condition="run.quarantined", count=2, subjects=("run_secret", "run_other"))]
        await scene.open_task(7)
        await scene.look()
    (message,) = receiver.messages
    assert message.path == "/hook?for=desk" and message.is_signed() and not message.is_signed(bytes(32))
    body = message.body
    assert set(body) == {"id", "plane", "at", "conditions"}
    assert body["id"] == message.id and body["plane"] == "desk" and from_text(body["at"]) == scene.now_ms
    assert message.headers["webhook-timestamp"] == str(scene.now_ms // 1000)
    at = "2027-01-15T08:01:00.000Z"
    assert body["conditions"] == [
        {"condition": "run.quarantined", "count": 2, "oldest": at, "link": "https://desk.example/attention"},
        {"condition": OPENED, "count": 1, "oldest": "2027-01-15T08:00:00.000Z", "link": "https://desk.example/tasks"},
    ]
    for kept in ("secret", "other", "refund", f"{7:064x}", run_id(7)):
        assert kept.encode() not in message.raw


async def test_much_that_is_new_is_one_message_and_nothing_new_is_none(tmp_path: Path, receiver: Receiver) -> None:
    async with telling(tmp_path, receiver) as scene:
        assert await scene.look() == []
        scene.holds(run_quarantined=1, obligation_breached=3)
        for number in range(5):
            await scene.open_task(number)
        assert await scene.look() == [{"run.quarantined": 1, "obligation.breached": 3, OPENED: 5}]
        assert await scene.look() == [] and await scene.look(600) == []
        scene.holds(run_quarantined=2, obligation_breached=2)
        assert await scene.look() == [{"run.quarantined": 2}]
        scene.holds()
        assert await scene.look() == []
        scene.holds(run_quarantined=1)
        assert await scene.look() == [{"run.quarantined": 1}]


async def test_a_task_is_told_when_it_is_opened_half_over_and_over(tmp_path: Path, receiver: Receiver) -> None:
    """Each once, and never again."""
    async with telling(tmp_path, receiver) as scene:
        assert await scene.look() == []
        task = await scene.open_task(1, due_ms=scene.now_ms + 60 * MINUTE_MS)
        heard = [await scene.look(minutes) for minutes in (1, 29, 1, 1, 27)]
        await scene.plane.writer.do(lambda tx: tasks.expire(tx, task))
        heard += [await scene.look(minutes) for minutes in (1, 1)]
    assert heard == [[{OPENED: 1}], [], [{HALF_GONE: 1}], [], [], [{UNANSWERED: 1}], []]


async def test_what_waited_before_there_was_anybody_to_tell_is_told(tmp_path: Path, receiver: Receiver) -> None:
    async with telling(tmp_path, receiver) as scene:
        for number in range(3):
            await scene.open_task(number)
        assert await scene.look(10_000) == [{OPENED: 3}]
        assert await scene.look() == []


async def test_a_task_whose_unit_is_not_committed_yet_is_not_passed_by(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look in the midst of a slow commit does not see it; the next one does."""
    async with telling(tmp_path, receiver) as scene:
        assert await scene.look() == []
        began_ms = scene.now_ms
        monkeypatch.setattr(scene.plane.writer, "oldest_unit_age_s", lambda: (scene.now_ms - began_ms) / 1000)
        scene.holds(run_quarantined=1)
        assert await scene.look() == [{"run.quarantined": 1}]
        monkeypatch.undo()
        scene.now_ms = began_ms  # what the unit's clock showed when it was begun
        await scene.open_task(1)
        assert await scene.look(5) == [{OPENED: 1}] and await scene.look() == []


async def test_a_clock_that_was_set_back_hides_no_task(tmp_path: Path, receiver: Receiver) -> None:
    async with telling(tmp_path, receiver) as scene:
        scene.holds(run_quarantined=1)
        assert await scene.look(600) == [{"run.quarantined": 1}]
        scene.now_ms = BEGAN_MS
        await scene.open_task(1)
        assert await scene.look() == [{OPENED: 1}] and await scene.look() == []


# --- a receiver that fails --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [302, 308, 410, 500])
async def test_what_is_not_taken_is_a_fault_and_is_told_again_under_the_same_name(
    status: int, tmp_path: Path, receiver: Receiver
) -> None:
    """A redirect is followed nowhere. Nothing is noted; the pause grows; the fault goes with the first yes, and had
    been told of with it."""
    elsewhere = Receiver()
    with contextlib.closing(elsewhere):
        async with telling(tmp_path, receiver) as scene:
            receiver.status, receiver.headers = status, {"Location": elsewhere.url}
            scene.holds(run_quarantined=1)
            assert await scene.look() == [{"run.quarantined": 1}]
            assert str(status) in scene.notifier.fault and scene.notifier.failures == 1
            assert await scene.look() == [{"run.quarantined": 1, FAILING: 1}]
            assert pause_s(scene.notifier.failures) == 120
            receiver.status = 204
            assert await scene.look() == [{"run.quarantined": 1, FAILING: 1}]
            assert scene.notifier.fault is None and scene.notifier.failures == 0
            assert len({one.id for one in receiver.messages}) == 1 and all(one.is_signed() for one in receiver.messages)
            assert await scene.look() == []
            # That it failed is over, and is news when it fails again.
            receiver.status = status
            scene.holds(run_quarantined=2)
            await scene.look()
            receiver.status = 204
            assert await scene.look() == [{"run.quarantined": 2, FAILING: 1}]
        assert elsewhere.messages == []


async def test_a_receiver_that_is_not_there_or_never_answers_is_a_fault(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = Receiver()
    gone.close()
    async with telling(tmp_path, receiver) as scene:
        scene.holds(run_quarantined=1)
        scene.begin(gone)
        assert await scene.look() == [] and "cannot be reached" in scene.notifier.fault
        monkeypatch.setattr(notify, "TIMEOUT_S", 0.2)
        receiver.silent.clear()
        scene.begin()
        assert await scene.look() == [{"run.quarantined": 1}] and "did not answer" in scene.notifier.fault
        receiver.silent.set()
        assert await scene.look() == [{"run.quarantined": 1, FAILING: 1}]


async def test_an_answer_without_an_end_is_not_waited_for(tmp_path: Path, receiver: Receiver) -> None:
    """Its status is the answer."""
    receiver.status, receiver.endless = 200, True
    async with telling(tmp_path, receiver) as scene:
        scene.holds(run_quarantined=1)
        with trio.fail_after(20):
            assert await scene.look() == [{"run.quarantined": 1}]
        assert scene.notifier.fault is None


async def test_no_proxy_of_the_environment_is_asked(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = Receiver()
    with contextlib.closing(proxy):
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        async with telling(tmp_path, receiver) as scene:
            scene.holds(run_quarantined=1)
            assert await scene.look() == [{"run.quarantined": 1}]
        assert proxy.messages == []


async def test_what_cannot_be_looked_at_is_a_fault_and_what_ends_the_plane_ends_it(
    tmp_path: Path, receiver: Receiver
) -> None:
    async with telling(tmp_path, receiver) as scene:
        raised: list[Exception] = [Settings("The tokens cannot be read."), StoreFailed("The disk is gone.")]

        async def gather() -> list[Found]:
            raise raised[0]

        scene.notifier.gather = gather
        assert await scene.look() == [] and scene.notifier.fault == "The tokens cannot be read."
        del raised[0]
        with pytest.raises(StoreFailed):
            await scene.look()


async def test_looks_come_once_a_minute_and_seldom_behind_failures(autojump_clock: MockClock) -> None:
    class Counted(Notifier):
        def __init__(self) -> None:
            self.failures = 0
            self.at: list[float] = []

        async def once(self, sender: object) -> list[Notice]:
            self.at.append(trio.current_time() - began)
            self.failures = self.failures + 1 if 3 <= len(self.at) < 6 else 0
            return []

    began = trio.current_time()
    counted = Counted()
    with trio.move_on_after(700):
        await counted.forever()
    assert [round(one) for one in counted.at] == [0, 60, 120, 180, 300, 540, 600, 660]


# --- the secret -----------------------------------------------------------------------------------------------------


async def test_the_secret_is_read_for_each_message(tmp_path: Path, receiver: Receiver) -> None:
    """One that was rotated is used at once; one that others may read is not used, and said without its text."""
    async with telling(tmp_path, receiver) as scene:
        scene.holds(run_quarantined=1)
        await scene.look()
        other = bytes(range(1, 33))
        secret_in(tmp_path, other)
        scene.holds(run_quarantined=2)
        await scene.look()
        scene.secret.chmod(0o644)
        scene.holds(run_quarantined=3)
        assert await scene.look() == []
        assert "chmod" in scene.notifier.fault and "whsec" not in scene.notifier.fault
        scene.secret.chmod(0o640)
        assert await scene.look() == [{"run.quarantined": 3, FAILING: 1}]
    first, second, third = receiver.messages
    assert first.is_signed(KEY) and second.is_signed(other) and third.is_signed(other) and not second.is_signed(KEY)


def test_a_secret_that_is_none_is_refused_in_a_sentence_without_it(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    for text in ("", "whsec_", "whsec_c2hvcnQ=", "whsec_***", "naïve", "whsec_" + "QUJD" * 2000, "QUJD\nQUJD" * 9):
        path.write_text(text)
        path.chmod(0o600)
        with pytest.raises(Settings) as refused:
            read_secret(path)
        assert str(path) in refused.value.message and "QUJD" not in refused.value.message
        assert "\n" not in refused.value.message
    with pytest.raises(Settings, match="cannot be read"):
        read_secret(tmp_path / "none")
    with pytest.raises(Settings, match="cannot be read"):
        read_secret(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Settings, match="cannot be read"):
        read_secret(tmp_path / "pipe")


# --- a process that is killed ---------------------------------------------------------------------------------------


def toml(receiver: Receiver) -> str:
    return f'public_url = "https://desk.example"\n\n[notify]\nurl = "{receiver.url}"\nsecret_file = "secrets/notify"'


@pytest.fixture
def served(tmp_path: Path, receiver: Receiver) -> Iterator[Served]:
    plane = Served.made(tmp_path / "plane", toml=toml(receiver))
    secret_in(plane.directory / "secrets")
    yield plane
    if plane.child is not None:
        plane.child.kill()
        plane.child.wait()


def test_a_kill_between_the_message_and_its_note_sends_it_again(served: Served, receiver: Receiver) -> None:
    """Under the same id, so that a receiver knows it again; and once it was noted, not a third time. (S126)"""
    assert served.run("desk.unsure", {"order": "A-1"}).status != 0

    def kill() -> None:
        assert served.child is not None
        served.child.send_signal(signal.SIGKILL)

    receiver.before = kill
    served.begin()
    assert served.child is not None and served.child.wait(60) == -signal.SIGKILL
    receiver.before = lambda: None
    assert [one.conditions() for one in receiver.messages] == [{"run.quarantined": 1}]
    served.start()
    served.until(lambda: len(receiver.messages) == 2)
    served.until(lambda: noted(served) == 1)
    assert served.stop() == 0
    first, second = receiver.messages
    assert first.id == second.id and second.is_signed() and second.conditions() == first.conditions()
    # What comes next is the next message: the noted one did not come once more before it.
    assert served.run("desk.unsure", {"order": "A-2"}).status != 0
    served.start()
    served.until(lambda: len(receiver.messages) == 3)
    assert receiver.messages[2].conditions() == {"run.quarantined": 2} and receiver.messages[2].id != first.id
    assert served.stop() == 0


def noted(served: Served) -> int:
    """How many quarantined runs the store says were told of."""
    readers = read_only(served.directory / "plane.db")
    try:
        return readers.read(_noted)
    finally:
        readers.close()


def _noted(tx: Tx) -> int:
    raw = lists.get_state(tx, notify.TOLD)
    known = {} if raw is None else msgspec.json.decode(raw, type=Told).known
    return known["run.quarantined"].count if known else 0


async def test_a_receiver_that_fails_is_among_what_needs_attention(tmp_path: Path, receiver: Receiver) -> None:
    """And stands in nobody's way: the plane does its work."""
    receiver.status = 500
    secret_in(tmp_path)
    said = NotifySettings(url=receiver.url, secret_file="notify")
    async with door(tmp_path, notify=said) as desk, client() as sender:
        done = await desk.post({"capability": "desk.unsure", "input": {}}, query="?wait=20")
        assert done.body["status"] == "quarantined"
        assert desk.host.notifier is not None
        await desk.host.notifier.once(sender)
        assert [one.conditions() for one in receiver.messages] == [{"run.quarantined": 1}]
        answer = (await desk.ask("GET", "/attention")).body
        assert [one["condition"] for one in answer["conditions"]] == ["run.quarantined", FAILING]
        assert "500" in answer["conditions"][1]["subjects"][0]
        done = await desk.post({"capability": "desk.settle", "input": {"order": "A-2"}}, query="?wait=20")
        assert done.body["status"] == "succeeded"


@pytest.mark.heavy
def test_the_webhook_is_tried_without_a_plane_that_serves(served: Served, receiver: Receiver) -> None:
    said = served.verb("notify", "--test", "--output", "json")
    assert said.status == 0 and said.body["delivered"] is True
    (message,) = receiver.messages
    assert message.is_signed() and message.conditions() == {"notify.test": 1} and message.body["plane"] == "plane"
    receiver.status = 403
    said = served.verb("notify", "--test", "--output", "json")
    assert said.status == 1 and "403" in said.body["error"]
    (served.directory / "secrets" / "notify").chmod(0o644)
    said = served.verb("notify", "--test")
    assert said.status == 2 and "chmod" in said.err and "Traceback" not in said.err and len(receiver.messages) == 2
