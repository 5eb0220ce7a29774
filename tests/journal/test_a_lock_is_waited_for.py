"""A store that a process which drains still holds: waited for; any other holder is a refusal."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentplane.core.errors import StoreLocked
from agentplane.journal import lock
from agentplane.journal.lock import Note, Patience, WaitEnded
from journal.stores import NOW, one_sentence, opened


class Clock:
    """The lock's own clock: it moves when the lock sleeps, and then something may happen."""

    def __init__(self) -> None:
        self.now = 100.0
        self.naps = 0
        self.at: dict[int, Any] = {}

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if seconds == lock.POLL_S:
            self.naps += 1
            self.at.pop(self.naps, lambda: None)()

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(lock, "time", SimpleNamespace(sleep=made.sleep, monotonic=made.monotonic))
    return made


def test_a_store_whose_holder_drains_is_waited_for(store_path: Path, clock: Clock) -> None:
    """S154: said once, of whom; taken as soon as it is free; and the clock is read again behind the wait."""
    holder = opened(store_path, state="serving")
    holder.lock.state("draining")
    clock.at[7] = holder.close
    said: list[Note] = []
    patience = Patience(seconds=60, said=said.append, now_ms=lambda: NOW + 5_000)
    store = opened(store_path, patience=patience)
    assert clock.naps == 7 and [note.state for note in said] == ["draining"]
    assert store.identity.now_ms == NOW + 5_000
    store.close()


@pytest.mark.parametrize("state", ["serving", "cli"])
def test_a_holder_that_does_not_drain_is_a_refusal_at_once(store_path: Path, clock: Clock, state: str) -> None:
    """S154: however much patience there is."""
    holder = opened(store_path, state=state)
    with pytest.raises(StoreLocked, match=state):
        opened(store_path, patience=Patience(seconds=30))
    assert clock.naps == 0
    holder.close()


def test_without_patience_nobody_is_waited_for(store_path: Path, clock: Clock) -> None:
    """S154: the default, also of a holder that drains."""
    holder = opened(store_path)
    holder.lock.state("draining")
    with pytest.raises(StoreLocked):
        opened(store_path)
    assert clock.naps == 0
    holder.close()


def test_patience_ends(store_path: Path, clock: Clock) -> None:
    """S154: behind it the refusal says for how long it was waited."""
    holder = opened(store_path)
    holder.lock.state("draining")
    with pytest.raises(StoreLocked) as caught:
        opened(store_path, patience=Patience(seconds=2.0))
    assert "still after 2 s" in one_sentence(caught.value) and 90 <= clock.naps <= 101
    holder.close()


def test_a_signal_ends_the_wait(store_path: Path, clock: Clock) -> None:
    """S154: whoever is told to stop while it waits has opened nothing, and the holder keeps the store."""
    holder = opened(store_path)
    holder.lock.state("draining")
    told: list[int] = []
    clock.at[3] = lambda: told.append(1)
    with pytest.raises(WaitEnded):
        opened(store_path, patience=Patience(seconds=60, ended=lambda: bool(told)))
    assert clock.naps == 3 and not lock.is_free(store_path)
    holder.close()


def test_of_two_that_wait_the_one_that_came_too_late_is_refused(store_path: Path, clock: Clock) -> None:
    """S154: the next holder serves, so there is nothing to wait for."""
    holder = opened(store_path)
    holder.lock.state("draining")
    others: list[Any] = []

    def another_is_quicker() -> None:
        holder.close()
        others.append(opened(store_path, state="serving"))

    clock.at[2] = another_is_quicker
    with pytest.raises(StoreLocked, match="serving"):
        opened(store_path, patience=Patience(seconds=60))
    others[0].close()


def test_a_note_that_is_being_written_is_read_again(store_path: Path, clock: Clock) -> None:
    """S154: torn, it says nothing; one that stays so is a refusal."""
    holder = opened(store_path)
    holder.lock.state("draining")
    path = lock.lock_path(store_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:40])
    clock.at[2] = lambda: path.write_bytes(whole)
    clock.at[4] = holder.close
    opened(store_path, patience=Patience(seconds=60)).close()
    assert clock.naps == 4
    holder = opened(store_path)
    path.write_bytes(b"{")
    with pytest.raises(StoreLocked, match="does not name"):
        opened(store_path, patience=Patience(seconds=60))
    assert clock.naps == 4 + lock.TORN_TRIES
    holder.close()


def test_a_note_with_two_ends_is_a_note(store_path: Path) -> None:
    """S147: an end names the runs that fit, and says of how many; the next holder keeps it, and whoever is between."""
    cut = {f"run_{number:026}": "in step \N{FACE WITH TEARS OF JOY}" * 30 for number in range(1000)}
    for _ in range(2):
        holder = opened(store_path)
        holder.lock.ended(cut)
        holder.close()
    opened(store_path, state="cli").close()
    last = opened(store_path)
    found = lock.read_note(lock.lock_path(store_path))
    assert found is not None and found.ended is None and found.before is not None
    assert found.before.cut_count == 1000 and 0 < len(found.before.cut) < 20
    assert found.before.pid == last.lock._note.pid  # type: ignore[union-attr]
    last.lock.ended(cut)
    assert lock.read_note(lock.lock_path(store_path)) is not None
    last.close()
