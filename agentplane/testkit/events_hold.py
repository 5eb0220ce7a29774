"""The battery's checks of messages and of the waits that they end.

Owns what a store must guarantee about the buffer, the claim of a message, and the rows that an open wait has. Refuses
to wake a run: the engine does. Invariant: each check holds one guarantee, so that a store which breaks one is told by
one name.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from agentplane.core.history import AWAIT, SLEEP, TASK
from agentplane.core.records import Descriptor, EffectDone, Key, Record, RunSuspended
from agentplane.journal import lists, rows, subscriptions, timers
from agentplane.journal.tx import Tx
from agentplane.testkit.battery import check
from agentplane.testkit.cases_hold import keys
from agentplane.testkit.ledger import Ledger, Probe, StoreHandle, ask, key_of, run_id
from agentplane.testkit.undo_hold import member
from agentplane.work import events

ORDER = keys(order="1")
BOTH = keys(order="1", parcel="9")
SHOP = "peer:shop"


def event_id(number: int) -> str:
    return f"evt_{number:026d}"


def wait_key(number: int) -> bytes:
    return bytes.fromhex(key_of(number))


def delivered(
    store: StoreHandle, number: int, about: tuple[Key, ...] = ORDER, source: str = SHOP, kind: str = "paid",
    name: str | None = None,
) -> events.Seen | None:  # fmt: skip
    """An event that came now, and is known again by ``name``."""
    dedup = sha256((name or str(number)).encode()).digest()
    return ask(
        store, events.store, event_id(number), dedup, source, "", str(number), kind, about, b'{"n":1}', store.now_ms
    )


def announced(one: Ledger, key: int, kind: str = AWAIT, **args: Any) -> Record:
    return member(one, key, descriptor=Descriptor(kind=kind, args=args), mutates=False)


def awaits(
    one: Ledger, key: int, about: tuple[Key, ...] = ORDER, sender: str | None = None, kind: str = "paid",
    due_ms: int | None = None,
) -> None:  # fmt: skip
    """An announced wait of the run, with its rows."""
    one.append(announced(one, key, until=None if due_ms is None else "2027-01-01T00:00:00.000Z"))
    ask(one.store, subscriptions.arm, one.run, wait_key(key), kind, about, sender)
    if due_ms is not None:
        ask(one.store, timers.arm, one.run, wait_key(key), due_ms)


def waiting_for(store: StoreHandle, about: tuple[Key, ...], source: str = SHOP, limit: int = 9) -> list[str]:
    return [one.run for one in ask(store, events.waiters, "paid", about, source, limit)]


def taken(store: StoreHandle, about: tuple[Key, ...] = ORDER, sender: str | None = None) -> str | None:
    """What a wait would take from the buffer."""
    found = ask(store, events.oldest, "paid", about, sender)
    return None if found is None else found.event


@check
def a_message_is_stored_once(probe: Probe, store: StoreHandle) -> None:
    probe.hold(delivered(store, 1, name="a") is None, "a first message was called a second one")
    again = delivered(store, 2, name="a")
    probe.hold(again == events.Seen(event_id(1), None), "a message that came again was stored again")
    ask(store, events.consume, event_id(1), run_id(5), wait_key(1))
    probe.hold(delivered(store, 3, name="a") == events.Seen(event_id(1), run_id(5)), "who took the first is not told")
    probe.hold(delivered(store, 4, name="b") is None, "another message was called the same")
    row = ask(store, events.get, event_id(4))
    probe.hold((row.state, row.payload, row.keys) == ("buffered", b'{"n":1}', ORDER), "a message is not as it came")


@check
def the_buffer_is_taken_oldest_first_by_all_of_a_waits_keys(probe: Probe, store: StoreHandle) -> None:
    for number, about, source in (
        (4, ORDER, SHOP), (3, BOTH, SHOP), (2, BOTH, "peer:bank"), (1, keys(order="2"), SHOP),
    ):  # fmt: skip
        delivered(store, number, about, source)
        store.now_ms += number != 3
    delivered(store, 5, kind="lost")
    probe.hold(taken(store, ORDER) == event_id(4), "not the oldest event was found")
    probe.hold(taken(store, BOTH) == event_id(2), "of one instant, not the first by its id was found")
    probe.hold(taken(store, BOTH, SHOP) == event_id(3), "a sender that was asked for was not heeded")
    probe.hold(taken(store, ORDER, "peer:x") is None, "an event of another sender was found")
    probe.hold(taken(store, keys(order="1", parcel="8")) is None, "an event about a part of what was asked was found")
    probe.hold(taken(store, keys(parcel="9")) == event_id(2), "an event is not found under each of its keys")


@check
def a_wait_is_found_by_an_event_about_all_that_it_asks(probe: Probe, store: StoreHandle) -> None:
    for number, about, sender in ((4, ORDER, None), (3, BOTH, None), (2, ORDER, SHOP), (1, ORDER, "peer:bank")):
        ask(store, subscriptions.arm, run_id(number), wait_key(1), "paid", about, sender)
        store.now_ms += number != 3
    ask(store, subscriptions.arm, run_id(5), wait_key(1), "lost", ORDER, None)
    found = [waiting_for(store, about, source) for about, source in ((BOTH, SHOP), (ORDER, SHOP), (ORDER, "peer:x"))]
    expected = [[4, 2, 3], [4, 2], [4]]
    probe.hold(
        found[1:] == [[run_id(n) for n in one] for one in expected[1:]], "a wait was found by what it is not for"
    )
    probe.hold(found[0] == [run_id(n) for n in expected[0]], "waits are not found oldest first, by (armed, run, key)")
    probe.hold(waiting_for(store, keys(parcel="9")) == [], "a wait was found by an event about a part of what it asks")
    first = ask(store, events.waiters, "paid", BOTH, SHOP, 1)[0]
    rest = ask(store, events.waiters, "paid", BOTH, SHOP, 9, first.cursor)
    probe.hold([one.run for one in rest] == [run_id(2), run_id(3)], "a page of waits repeats or skips one")


@check
def a_wait_that_is_armed_again_keeps_its_place(probe: Probe, store: StoreHandle) -> None:
    for number in (1, 2, 1):
        ask(store, subscriptions.arm, run_id(number), wait_key(1), "paid", ORDER, None)
        store.now_ms += 1
    probe.hold(waiting_for(store, ORDER) == [run_id(1), run_id(2)], "armed again, a wait lost its place")
    (row,) = ask(store, subscriptions.of_run, run_id(1))
    probe.hold((row.keys, row.sender, row.kind) == (ORDER, None, "paid"), "a wait is not as it was armed")


@check
def an_event_is_consumed_by_one_wait(probe: Probe, store: StoreHandle) -> None:
    for number in (1, 2):
        delivered(store, number, BOTH)
    claims = [ask(store, events.consume, event_id(1), run_id(run), wait_key(1)) for run in (1, 2, 1)]
    probe.hold(claims == [True, False, False], "an event was consumed by two waits, or twice by one")
    row = ask(store, events.get, event_id(1))
    probe.hold((row.state, row.run, row.key) == ("consumed", run_id(1), wait_key(1)), "who consumed it is not known")
    probe.hold(not ask(store, events.is_buffered, event_id(1)), "a consumed event is in the buffer")
    probe.hold(taken(store, ORDER) == taken(store, keys(parcel="9")) == event_id(2), "a consumed event is found still")
    probe.hold(ask(store, events.age_out, store.now_ms, 9, "w") == 1, "a consumed event became a dead letter")
    probe.hold(ask(store, listed_keys) == 0, "what left the buffer is looked at in every search")
    probe.hold(not ask(store, events.consume, event_id(2), run_id(3), wait_key(1)), "a dead letter was consumed")


def listed_keys(tx: Tx) -> int:
    row = tx.one("SELECT count(*) FROM event_key WHERE tenant = ?", tx.tenant)
    return -1 if row is None else int(str(row[0]))


@check
def a_wait_that_has_its_outcome_takes_no_second(probe: Probe, store: StoreHandle) -> None:
    one, other = Ledger(store).admit(), Ledger(store, 2).admit()
    for ledger in (one, other):
        for key in (1, 2):
            awaits(ledger, key, due_ms=90)
    one.append(one.done(1))
    other.append(other.failed(1))
    for ledger in (one, other):
        left = [row.key for row in ask(store, subscriptions.of_run, ledger.run)]
        armed = [row.key for row in ask(store, timers.of_run, ledger.run)]
        probe.hold(left == [wait_key(2)], "a subscription outlived its wait's outcome, or went with another's")
        probe.hold(armed == [wait_key(2)], "a timer outlived its wait's outcome, or went with another's")
    probe.hold(len(waiting_for(store, ORDER)) == 2, "a wait that has its outcome is found by the next event")
    probe.hold(not ask(store, events.is_open_wait, one.run, wait_key(1)), "a wait with its outcome is open")
    probe.hold(ask(store, events.is_open_wait, one.run, wait_key(2)), "an open wait is not")


@check
def a_run_that_ended_waits_for_no_event(probe: Probe, store: StoreHandle) -> None:
    ended = {"failed": 1, "exhausted": 2, "quarantined": 3, "abandoned": 4}
    for outcome, number in ended.items():
        one = Ledger(store, number).admit()
        awaits(one, 1)
        one.append(one.concluded(outcome))
    Ledger(store, 5).admit()
    ask(store, subscriptions.arm, run_id(5), wait_key(1), "paid", ORDER, None)
    probe.hold(waiting_for(store, ORDER) == [run_id(5)], "a run that ended waits still, or another lost its wait")
    still = [ask(store, events.is_open_wait, run_id(number), wait_key(1)) for number in ended.values()]
    probe.hold(still == [True, True, True, False], "a claim is open in a run that is closed, or not in one that is not")


@check
def a_claim_is_finished_by_the_wait_that_it_names(probe: Probe, store: StoreHandle) -> None:
    for number in (1, 2):
        delivered(store, number)
    plant_claim(store, 1, run_id(1), wait_key(1))
    probe.hold([row.event for row in ask(store, events.claimed, 9)] == [event_id(1)], "a claim is not found")
    probe.hold(taken(store) == event_id(2), "a claimed event was offered to another wait")
    ask(store, events.park, event_id(2))
    probe.hold(ask(store, events.age_out, store.now_ms, 9, "w") == 0, "a claimed event was made a dead letter")
    for run, key in ((run_id(2), wait_key(1)), (run_id(1), wait_key(2))):
        probe.hold(not ask(store, events.consume, event_id(1), run, key), "a claim was finished by another wait")
    probe.hold(ask(store, events.consume, event_id(1), run_id(1), wait_key(1)), "a wait could not finish its own claim")
    probe.hold(ask(store, events.claimed, 9) == [], "a finished claim is listed still")


def plant_claim(store: StoreHandle, number: int, run: str, key: bytes) -> None:
    """What only a store of two is left in: a claim whose outcome was not recorded."""
    store.unit(lambda tx: tx.run(
        "UPDATE event SET state = 'claimed', parked = 0, run = ?, key = ? WHERE tenant = ? AND event = ?",
        run, key, tx.tenant, event_id(number),
    ))  # fmt: skip


@check
def a_claim_whose_wait_ended_otherwise_goes_back(probe: Probe, store: StoreHandle) -> None:
    one = Ledger(store).admit()
    for key in (1, 2):
        awaits(one, key)
        delivered(store, key)
        plant_claim(store, key, one.run, wait_key(key))
    output = events.as_output(ask(store, events.get, event_id(1)))
    one.append(one.record(EffectDone, step=0, effect_key=key_of(1), output=output, source=SHOP))
    one.append(one.record(EffectDone, step=0, effect_key=key_of(2), output={"timed_out": True}))
    settled = [ask(store, events.retire, event_id(number)) for number in (1, 2)]
    probe.hold(settled == ["consumed", "buffered"], "a claim was settled otherwise than its wait ended")
    probe.hold(taken(store) == event_id(2), "an event that nobody had was lost with the wait that claimed it")
    probe.hold([row.event for row in ask(store, events.parked, 9)] == [event_id(2)], "nobody looks at it again")
    probe.hold(ask(store, events.get, event_id(2)).run is None, "an event in the buffer names a run")
    probe.hold(ask(store, events.retire, event_id(1)) == "consumed", "what is settled was settled again")


@check
def only_what_nobody_claims_becomes_a_dead_letter(probe: Probe, store: StoreHandle) -> None:
    for number in (1, 2, 3, 4):
        delivered(store, number, BOTH)
        store.now_ms += 10
    ask(store, events.park, event_id(2))
    before_ms = store.now_ms - 20
    probe.hold(not ask(store, events.has_older, store.now_ms - 41), "something is older than the first")
    probe.hold(ask(store, events.has_older, store.now_ms - 40), "an event is not old at its very age")
    moved = [ask(store, events.age_out, before_ms, 1, "nobody waited") for _ in range(3)]
    probe.hold(moved == [1, 1, 0], "events do not age in their bounds, or one that somebody waits for did")
    letters = ask(store, events.dead_letters, 9)
    probe.hold([row.event for row in letters] == [event_id(3), event_id(1)], "dead letters are not newest first")
    probe.hold([(row.why, row.ended_ms) for row in letters] == [("nobody waited", store.now_ms)] * 2, "why is not told")
    paged = ask(store, events.dead_letters, 9, (letters[0].ended_ms or 0, letters[0].event))
    probe.hold([row.event for row in paged] == [event_id(1)], "a page of dead letters repeats or skips one")
    ask(store, events.consume, event_id(2), run_id(1), wait_key(1))
    probe.hold(taken(store) == taken(store, keys(parcel="9")) == event_id(4), "a dead letter is found in the buffer")
    expected = {"buffered": 1, "parked": 0, "claimed": 0, "dead": 2}
    probe.hold(ask(store, events.counts) == expected, "events are miscounted")


@check
def what_somebody_waits_for_is_paged_without_a_gap(probe: Probe, store: StoreHandle) -> None:
    for number in range(1, 6):
        delivered(store, number)
        ask(store, events.park, event_id(number))
    ask(store, events.park, event_id(2), False)
    paged: list[str] = []
    while (page := ask(store, events.parked, 2, paged[-1] if paged else "")) and len(paged) < 9:
        paged += [row.event for row in page]
    probe.hold(paged == [event_id(number) for number in (1, 3, 4, 5)], "a page of parked events repeats or skips one")
    ask(store, events.consume, event_id(3), run_id(1), wait_key(1))
    ask(store, events.park, event_id(3))
    probe.hold(len(ask(store, events.parked, 9)) == 3, "a consumed event is parked")
    counted = ask(store, events.counts)
    probe.hold((counted["buffered"], counted["parked"]) == (4, 3), "parked events are miscounted")


@check
def the_first_instant_of_a_waiting_run_follows_its_timers(probe: Probe, store: StoreHandle) -> None:
    for number in (1, 2):
        one = Ledger(store, number).admit()
        one.append(announced(one, 1, SLEEP), one.record(RunSuspended, seq=3, reason="it waits"))

    def shown() -> list[tuple[str, int | None]]:
        return [(row.run, row.until_ms) for row in ask(store, lists.waiting, 1, None) + ask(
            store, lists.waiting, 9, ask(store, lists.waiting, 1)[0].cursor
        )]  # fmt: skip

    probe.hold(shown() == [(run_id(1), None), (run_id(2), None)], "a run without a timer has an instant")
    ask(store, timers.arm, run_id(2), wait_key(1), 60)
    ask(store, timers.arm, run_id(2), wait_key(2), 80)
    probe.hold(shown() == [(run_id(2), 60), (run_id(1), None)], "a run is not at its first timer's instant")
    ask(store, timers.arm, run_id(2), wait_key(1), 90)
    ask(store, timers.arm, run_id(1), wait_key(1), 85)
    probe.hold(shown() == [(run_id(2), 80), (run_id(1), 85)], "a timer that moved did not take its run along")
    ask(store, timers.disarm, run_id(2), wait_key(2))
    probe.hold(shown() == [(run_id(1), 85), (run_id(2), 90)], "a timer that went left its instant behind")
    ask(store, timers.disarm_run, run_id(1))
    probe.hold(shown() == [(run_id(2), 90), (run_id(1), None)], "a run that lost its timers kept an instant")


@check
def a_wait_that_lost_a_row_is_found(probe: Probe, store: StoreHandle) -> None:
    lost: dict[int, tuple[str, str | None, dict[str, object]]] = {
        1: (SLEEP, "timer", {}), 2: (AWAIT, "subscription", {"until": "x"}), 3: (AWAIT, "timer", {"until": "x"}),
        4: (AWAIT, "subscription", {"until": None}), 5: (TASK, "task", {}), 6: (SLEEP, None, {}),
        7: (AWAIT, None, {"until": "x"}), 8: (TASK, None, {}), 9: (AWAIT, None, {"until": None}),
    }  # fmt: skip
    for number, (kind, _, args) in lost.items():
        one = Ledger(store, number).admit()
        one.append(announced(one, 1, kind, **args))
        arm(store, one.run, wait_key(1), kind, args)
        one.append(one.record(RunSuspended, reason="it waits"))
    found = ask(store, rows.suspended_without_timer, 20)
    probe.hold(found == [], "a wait that has its rows is said to lack one")
    for number, (_, table, _) in lost.items():
        if table is not None:
            ask(store, drop, table, run_id(number))
    expected = [run_id(number) for number, (_, table, _) in lost.items() if table is not None]
    paged: list[str] = []
    while (page := ask(store, rows.suspended_without_timer, 2, paged[-1] if paged else "")) and len(paged) < 20:
        paged += page
    probe.hold(paged == expected, "a wait that lost a row is not found, or another is")
    arm(store, run_id(2), wait_key(1), AWAIT, {"until": "x"})
    probe.hold(not ask(store, rows.is_unarmed, run_id(2)), "a wait that was armed again lacks something still")
    probe.hold(ask(store, rows.is_unarmed, run_id(1)), "a run without its timer is not among those that lack one")


def drop(tx: Tx, table: str, run: str) -> None:
    tx.run(f"DELETE FROM {table} WHERE tenant = ? AND run = ?", tx.tenant, run)


def arm(store: StoreHandle, run: str, key: bytes, kind: str, args: Mapping[str, object]) -> None:
    if kind == SLEEP or args.get("until"):
        ask(store, timers.arm, run, key, 90)
    if kind == AWAIT:
        ask(store, subscriptions.arm, run, key, "paid", ORDER, None)
    if kind == TASK:
        from agentplane.testkit.tasks_hold import opened

        opened(store, run, key)
