"""The aims of the order workload, and the orders themselves: every place once a round, every fate once a block, and a
run whose parcel lost its answer is killed only with its stop on record."""

from __future__ import annotations

from collections import Counter
from itertools import count

from agentplane.cli.main import build
from agentplane.lab import sabotage
from agentplane.lab.books import PATHS
from agentplane.lab.orders.aims import AIMS, ANY_TIME, ASKED_TO_STOP, SLOW_KIND, UNDOING, Aim, Hunt, Seen, aims
from agentplane.lab.orders.fixture import BLOCK, FORGETS, OVER, REFUSED, SPARED, WELL, orders, provider_rules
from agentplane.lab.orders.verdict import NOUN
from agentplane.lab.pipe import Point
from agentplane.lab.provider.book import PREFIX, REVERSES
from agentplane.lab.provider.faults import parse_rule

NUMBERS = count(1)


def point(at: str, run: str | None = "run_a", kind: str = "pack.keyed") -> Point:
    return Point(next(NUMBERS), at, {"run": run, "kind": kind})


def test_a_round_aims_everywhere_once() -> None:
    """Of n kills no aim has two more than another, and a seed repeats itself."""
    for seed in range(10):
        drawn = [aim.at for aim in aims(seed, 60)]
        counted = Counter(drawn)
        assert len(drawn) == 60 and set(drawn[: len(AIMS)]) == set(AIMS)
        assert max(counted.values()) - min(counted.values()) <= 1
        assert list(aims(seed, 60)) == list(aims(seed, 60))


def test_an_aim_kills_at_its_point_and_lets_its_skips_pass() -> None:
    """Named points by name, an undoing by what the effect takes back, a stop by the run that has one on record."""
    hunt = Hunt(Aim("group.settled", 1), Seen())
    assert [hunt.on_point(point(at)) for at in ("group.opened", "group.settled", "effect.acting", "group.settled")] == [
        False, False, False, True
    ]  # fmt: skip
    undoing = Hunt(Aim(UNDOING), Seen())
    assert not undoing.on_point(point("effect.acting"))
    assert undoing.on_point(point("effect.acting", kind="return.keyed"))
    stopping = Hunt(Aim(ASKED_TO_STOP), Seen(stopping={"run_b"}))
    assert not stopping.on_point(point("effect.acting"))
    assert stopping.on_point(point("effect.acting", "run_b"))
    timed = Hunt(Aim(ANY_TIME), Seen())
    assert not any(timed.on_point(point("effect.acting")) for _ in range(100))


def test_a_parcel_without_an_answer_waits_for_the_stop() -> None:
    """From the lost answer on no aim kills: the driver does, once the cancel is recorded; and once a run."""
    seen = Seen()
    hunt = Hunt(Aim("effect.acting"), seen)
    assert not hunt.on_point(point("effect.recorded", kind=SLOW_KIND))
    assert hunt.doubtful == "run_a" and not hunt.on_point(point("effect.acting"))
    again = Hunt(Aim("effect.acting"), seen)
    assert not again.on_point(point("effect.recorded", kind=SLOW_KIND)) and again.doubtful is None


def test_every_block_of_orders_holds_every_fate() -> None:
    """Some go well, one of them slowly; one forgets its group; each refusal is there; two blocks have both amounts."""
    for seed in range(10):
        made = orders(seed, 2 * BLOCK)
        assert made == orders(seed, 2 * BLOCK) and len({one.order for one in made}) == 2 * BLOCK
        fates = Counter(one.fate for one in made)
        assert set(fates) == {WELL, SPARED, FORGETS, *REFUSED, *OVER}
        for at in (0, BLOCK):
            block = made[at : at + BLOCK]
            assert sum(one.slow for one in block) == 1 and sum(one.fate == FORGETS for one in block) == 1
        assert all(one.cancel_after is None for one in made if one.slow or one.fate in (FORGETS, SPARED))
        for one in made:
            rules = [parse_rule(rule) for rule in provider_rules(one)]
            assert all(rule.match["order"] == one.order for rule in rules)
            assert any(rule.sets == {"status_before": 422} for rule in rules) == (one.fate in REFUSED)


def test_the_three_lists_of_deeds_are_one() -> None:
    """The provider's paths, the kinds that call them, and the words of the report."""
    assert set(PATHS.values()) == set(PREFIX)
    assert set(NOUN) == set(PREFIX) - {"/refunds", "/reships"}
    assert set(REVERSES) | set(REVERSES.values()) <= set(NOUN)


def test_the_command_line_knows_every_sabotage() -> None:
    """Its choices are those of the table, and each has one workload."""
    parser = build()
    verbs = next(action for action in parser._actions if isinstance(action.choices, dict))
    demo = verbs.choices["demo"]  # type: ignore[index]
    choices = {action.dest: action.choices for action in demo._actions}
    assert set(choices["sabotage"]) == set(sabotage.SABOTAGES)
    assert tuple(choices["workload"]) == sabotage.WORKLOADS
    assert Counter(map(sabotage.workload_of, sabotage.SABOTAGES)) == {"refunds": 5, "orders": 2, "overnight": 1}
