"""The overnight workload's fixture and its aims: the same month for the same seed, and every kind of place."""

from __future__ import annotations

from typing import cast

import pytest

from agentplane.lab.overnight.agenda import Agenda
from agentplane.lab.overnight.aims import CONSUMED, OFTEN, SELDOM, SKIP_MAX, Hunt
from agentplane.lab.overnight.desk import Desk, Gone
from agentplane.lab.overnight.fixture import (
    BLOCK,
    DAY_MS,
    TAIL_DAYS,
    Comes,
    Order,
    Says,
    Stray,
    month,
    provider_rules,
)
from agentplane.lab.pipe import Point
from agentplane.lab.provider.faults import parse_rule


def test_the_same_seed_is_the_same_month() -> None:
    assert month(7, 24, 30) == month(7, 24, 30) != month(8, 24, 30)


def test_a_block_holds_every_way_in_which_a_word_may_come_and_a_person_answer() -> None:
    """Eight orders are enough; orders, keys and events are all different, and each has time to end."""
    found = month(3, 3 * BLOCK, 30)
    for at in range(0, len(found.orders), BLOCK):
        block = found.orders[at : at + BLOCK]
        assert {each.comes for each in block} == set(Comes)
        assert {each.says for each in block if not each.misses} == set(Says)
    names = [each.order for each in (*found.orders, *found.strays)]
    assert len(set(names)) == len(names) == 27
    assert max(each.begins_h for each in found.orders) <= (30 - TAIL_DAYS) * 24


@pytest.mark.parametrize("seed", range(5))
def test_an_event_comes_when_its_order_says(seed: int) -> None:
    """Early ones before the order begins, late ones behind its patience, the others within it."""
    for each in month(seed, 24, 30).orders:
        after = None if each.event_h is None else each.event_h - each.begins_h
        match each.comes:
            case Comes.NEVER:
                assert after is None
            case Comes.EARLY:
                assert after is not None and after < 0
            case Comes.LATE:
                assert after is not None and after > each.patience_h + 6
            case _:
                assert after is not None and 0 < after < 0.9 * each.patience_h


def test_the_providers_rules_for_a_month_are_rules_it_accepts() -> None:
    rules = [parse_rule(told) for each in month(1, 8, 14).orders for told in provider_rules(each)]
    assert rules and all({"ignore_keys", "late_ms"} == set(rule.sets) for rule in rules)


class Teller:
    """A desk that is deaf at first, and to which a late event comes too soon once."""

    def __init__(self) -> None:
        self.deaf = True
        self.said: list[str] = []
        self.too_soon = {each.order for each in month(1, 8, 14).orders if each.comes is Comes.LATE}

    def _say(self, name: str) -> bool:
        if self.deaf:
            self.deaf = False
            raise Gone
        self.said.append(name)
        return True

    def submit(self, order: Order) -> bool:
        return self._say(f"begin {order.order}")

    def send(self, order: Order) -> bool:
        if order.order in self.too_soon:
            self.too_soon.discard(order.order)
            return False
        return self._say(f"event {order.order}")

    def send_stray(self, stray: Stray) -> bool:
        return self._say(f"event {stray.order}")


def test_everything_of_a_month_is_said_once_in_its_order() -> None:
    """What was not answered is said again; what comes too soon is put off by an hour; nothing is said before it is
    due."""
    found, teller = month(1, 8, 14), Teller()
    agenda = Agenda(found, cast(Desk, teller), 0)
    first_ms = agenda.next_ms
    assert first_ms is not None
    agenda.do(first_ms - 1)
    with pytest.raises(Gone):
        agenda.do(first_ms)
    assert teller.said == [] and agenda.next_ms == first_ms
    agenda.do(14 * DAY_MS)
    assert agenda.next_ms is None and not teller.too_soon
    wanted = [f"begin {each.order}" for each in found.orders]
    wanted += [f"event {each.order}" for each in (*found.orders, *found.strays) if each.event_h is not None]
    assert sorted(teller.said) == sorted(wanted)


def point(at: str, kind: str = "") -> Point:
    return Point(1, at, {"run": "run_a", "kind": kind})


def test_nothing_is_killed_before_the_hunt_is_armed_and_nothing_twice() -> None:
    """Until then every point has leave; from the kill on none has."""
    hunt = Hunt(1)
    hunt.begin()
    assert not any(hunt.on_point(point(at)) for at in SELDOM for _ in range(5))
    hunt.armed = True
    assert hunt.on_point(point("event.stored")) and hunt.hit == "event.stored"
    assert hunt.on_point(point("writer.committed"))


def test_what_comes_seldom_is_taken_when_it_comes_and_what_comes_often_in_turn() -> None:
    """An announcement that consumes an approval is a place of its own; every other name is hit within a few points."""
    hunt, hits = Hunt(2), []
    for _ in range(len(OFTEN)):
        hunt.begin()
        hunt.armed = True
        for _ in range(SKIP_MAX):
            for at in OFTEN:
                if hunt.hit is None:
                    hunt.on_point(point(at, "invoice.keyed"))
        assert hunt.hit is not None
        hits.append(hunt.hit)
    assert sorted(hits) == sorted(OFTEN)
    hunt.begin()
    hunt.armed = True
    assert hunt.on_point(point("effect.announced", "refund.asked")) and hunt.hit == CONSUMED
