"""Budgets: what is a ceiling, what is counted, and when a run must stop and ask."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentplane.core import bounds
from agentplane.core.budget import ASKED, MEMBERS, Budget, Ledger, from_data, narrow, raised, serial, verdict
from agentplane.core.dispositions import Disposition
from agentplane.core.errors import BudgetFault
from agentplane.core.records import Exhaustion, PlanFrozen, Record, Spend, StepFinished, StepStarted
from rules.record_samples import done, failed, make, samples, started

repeatable = settings(derandomize=True, database=None, deadline=None)


def ledger(*records: Record) -> Ledger:
    counted = Ledger()
    for record in records:
        counted.add(record)
    return counted


def state(counted: Ledger) -> dict[str, object]:
    return {name: getattr(counted, name) for name in Ledger.__slots__}


def test_a_budget_says_only_what_it_limits() -> None:
    """As data it has the ceilings that are set, and reads back as it was."""
    budget = Budget(max_effects=3, max_replans=0)
    assert budget.to_data() == {"max_effects": 3, "max_replans": 0}
    assert from_data(budget.to_data()) == budget
    assert from_data({}) == from_data({"max_steps": None}) == Budget()


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"max_effects": -1}, "max_effects must be a whole number from 0 to 9007199254740991, not -1."),
        ({"max_effects": 2**53}, "max_effects must be a whole number from 0 to 9007199254740991, not a larger number."),
        ({"max_effects": 1.5}, "The ceiling max_effects must be a whole number, not 1.5."),
        ({"max_effects": 2.0}, "The ceiling max_effects must be a whole number, not 2.0."),
        ({"max_effects": True}, "The ceiling max_effects must be a whole number, not True."),
        ({"max_effects": "3"}, "The ceiling max_effects must be a whole number, not '3'."),
        ({"max_parallel_steps": 0}, "max_parallel_steps must be a whole number from 1 to"),
        ({"effects": 3}, "A budget has no ceiling 'effects'; it has max_steps, max_effects,"),
        ({3: 3}, "A budget has no ceiling 3; it has"),
        ([1], "A budget is an object of ceilings by name, such as max_effects, not [1]."),
        (None, "A budget is an object of ceilings by name, such as max_effects, not None."),
    ],
)
def test_what_is_no_budget_is_refused_in_one_sentence(data: Any, sentence: str) -> None:
    """Negative, unknown, or not a whole number."""
    with pytest.raises(BudgetFault) as caught:
        from_data(data)
    told = str(caught.value)
    assert sentence in told and told.endswith(".") and "\n" not in told


def test_an_author_is_answered_as_a_caller_is() -> None:
    """A negative budget is no budget where it is written down either."""
    with pytest.raises(BudgetFault, match="max_tokens must be a whole number from 0"):
        Budget(max_tokens=-5)
    assert Budget(max_tokens=bounds.CEILING_MAX).max_tokens == bounds.CEILING_MAX


ceilings = st.dictionaries(st.sampled_from(MEMBERS), st.integers(1, 5))


@repeatable
@given(ceilings, ceilings)
def test_what_is_asked_may_only_narrow(outer: dict[str, int], inner: dict[str, int]) -> None:
    """S90: Either every ceiling is the lower of the two, or the one that is wider is named."""
    wider = [name for name in MEMBERS if name in outer and inner.get(name, 0) > outer[name]]
    if wider:
        with pytest.raises(BudgetFault, match="may only narrow") as caught:
            narrow(from_data(outer), from_data(inner))
        assert caught.value.details["limit"] == wider[0] and wider[0] in str(caught.value)
    else:
        assert narrow(from_data(outer), from_data(inner)).to_data() == outer | inner


def test_nobody_asks_for_less_than_nothing() -> None:
    """Without a budget on either side, what the other one says holds."""
    some = Budget(max_effects=2)
    assert narrow(None, some) == narrow(some, None) == narrow(Budget(), some) == some
    assert narrow(None, None) == Budget()


def test_a_raise_puts_a_higher_ceiling_in_the_place_of_one_that_holds() -> None:
    """And leaves the others."""
    assert raised(Budget(max_effects=2, max_steps=1), {"max_effects": 3}) == Budget(max_effects=3, max_steps=1)


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        ({"max_effects": 2}, "The ceiling max_effects is 2; raise it to more than that, not to 2."),
        ({"max_effects": 1}, "The ceiling max_effects is 2; raise it to more than that, not to 1."),
        ({"max_tokens": 9}, "The run has no ceiling max_tokens, so there is none to raise."),
        ({"max_effects": -3}, "must be a whole number from 0"),
        ({"max_effects": None}, "must be a whole number, not None."),
        ({"tokens": 9}, "A budget has no ceiling 'tokens'"),
        ({}, "Name at least one ceiling to raise, of max_steps,"),
    ],
)
def test_a_raise_that_raises_nothing_is_refused(wanted: Any, sentence: str) -> None:
    """It would end an exhaustion that stands, or limit what was not limited."""
    with pytest.raises(BudgetFault) as caught:
        raised(Budget(max_effects=2), wanted)
    assert sentence in str(caught.value)


def test_each_kind_of_record_is_counted_as_what_it_uses() -> None:
    """A step begun, an attempt announced, a plan after the first; a bill whatever the outcome was. Nothing else."""
    plan = {"steps": ["a"], "plan": {}, "digest": "c3" * 32}
    counted = ledger(
        make(PlanFrozen, 1, **plan),
        make(StepStarted, 2, step=0, skill="a"),
        started(3, clock_s=100),
        failed(4, Disposition.DID_NOT_HAPPEN, spend=Spend(tokens=5, minor_units=1)),
        started(5, attempt=2, clock_s=160),
        done(6, spend=Spend(tokens=7)),
        make(StepFinished, 7, step=0, outcome="replanned"),
        make(PlanFrozen, 8, **plan),
    )
    used = (counted.steps, counted.effects, counted.replans, counted.tokens, counted.minor_units)
    assert used == (1, 2, 1, 12, 1)
    assert (counted.first_s, counted.last_s, counted.denials) == (100, 160, 0)


def test_only_five_kinds_use_anything() -> None:
    """A run's live_spend, for one, is the same bill told again."""
    use = {type(record).__name__ for record in samples() if state(ledger(record)) != state(Ledger())}
    assert use == {"StepStarted", "EffectStarted", "EffectDone", "EffectFailed", "PlanFrozen"}


def test_what_undoes_is_counted_all_the_same() -> None:
    """A compensation, a reversal and a local effect take their slots, so that what went over is seen."""
    exempt = [started(1, phase="compensating"), started(2, group=0, role="reversal"), started(3, local=True)]
    assert ledger(*exempt).effects == 3
    assert ledger(done(1, phase="compensating", spend=Spend(tokens=3))).tokens == 3


spends = st.builds(Spend, tokens=st.integers(0, 9), minor_units=st.integers(0, 9))
counted_records = st.lists(
    st.one_of(
        st.builds(lambda clock: started(1, clock_s=clock), st.none() | st.integers(0, 50)),
        st.builds(lambda spend: done(1, spend=spend), spends),
        st.builds(lambda spend: failed(1, spend=spend), spends),
        st.just(make(StepStarted, 1, step=0, skill="a")),
        st.just(make(PlanFrozen, 1, steps=["a"], plan={}, digest="c3" * 32)),
    ),
    max_size=12,
)


@repeatable
@given(counted_records, st.data())
def test_counting_does_not_depend_on_the_order_in_which_series_met(records: list[Record], data: st.DataObject) -> None:
    """Live, one by one in the order of answers, or all at once in the order of the journal: the same figures, and the
    same verdict on every question."""
    one, other = ledger(*records), ledger(*data.draw(st.permutations(records)))
    assert state(one) == state(other)
    budget = from_data(data.draw(ceilings))
    for what in ASKED:
        assert verdict(one, budget, what, 20) == verdict(other, budget, what, 20)  # type: ignore[arg-type]


def slow(records: Iterable[Record], name: str) -> int:
    return sum(getattr(getattr(record, "spend", Spend()), name) for record in records)


@repeatable
@given(counted_records)
def test_the_bill_is_the_sum_of_every_outcomes(records: list[Record]) -> None:
    """S88: A failed attempt's too."""
    counted = ledger(*records)
    assert (counted.tokens, counted.minor_units) == (slow(records, "tokens"), slow(records, "minor_units"))


def test_a_count_is_exact() -> None:
    """S86: The last that is allowed is allowed, the next is not, and what is said is the ceiling and both figures."""
    budget = Budget(max_effects=2, max_steps=1, max_replans=0)
    counted = ledger(started(1))
    assert verdict(counted, budget, "effect") is None
    counted.add(started(2, attempt=2))
    assert verdict(counted, budget, "effect") == Exhaustion(limit="max_effects", allowed=2, used=2)
    assert verdict(counted, budget, "step") is None
    counted.add(make(StepStarted, 3, step=0, skill="a"))
    assert verdict(counted, budget, "step") == Exhaustion(limit="max_steps", allowed=1, used=1)
    assert verdict(counted, budget, "replan") == Exhaustion(limit="max_replans", allowed=0, used=0)
    assert verdict(counted, Budget(), "effect") is None


def test_announcements_side_by_side_do_not_share_a_slot() -> None:
    """What is queued counts before it is read back, and once when it is; what is withdrawn gives its slot back."""
    budget, counted = Budget(max_effects=3), Ledger()

    def announce() -> bool:
        if verdict(counted, budget, "effect") is not None:
            return False
        counted.reserve_effect()
        return True

    assert [announce() for _ in range(5)] == [True, True, True, False, False]
    counted.add(started(1), reserved=True)
    assert not announce() and (counted.effects, counted.reserved) == (1, 2)
    counted.unreserve_effect()
    assert announce() and not announce()
    counted.add(started(2), reserved=True)
    counted.add(started(3), reserved=True)
    assert (counted.effects, counted.reserved) == (3, 0)
    assert verdict(counted, budget, "effect") == Exhaustion(limit="max_effects", allowed=3, used=3)


def test_what_was_never_reserved_takes_no_reservation() -> None:
    """A record that is read back beside queued announcements leaves their slots alone."""
    counted = Ledger()
    counted.reserve_effect()
    counted.add(started(1))
    assert (counted.effects, counted.reserved) == (1, 1)


def test_a_spend_ceiling_is_passed_by_what_was_in_flight_and_by_no_more() -> None:
    """Nobody knows a bill before its outcome: the operation under way may go over, the next one is refused."""
    budget, counted = Budget(max_tokens=10), ledger(started(1), done(1, spend=Spend(tokens=9)))
    assert verdict(counted, budget, "effect") is None
    counted.add(started(2))
    counted.add(failed(2, spend=Spend(tokens=30)))
    for what in ("effect", "step"):
        assert verdict(counted, budget, what) == Exhaustion(limit="max_tokens", allowed=10, used=39)


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (Budget(max_tokens=1), True), (Budget(max_minor_units=0), True),
        (Budget(max_effects=1, max_wallclock_s=3, max_parallel_steps=2), False), (Budget(), False),
    ],
)  # fmt: skip
def test_a_ceiling_on_spend_makes_a_step_go_one_by_one(budget: Budget, expected: bool) -> None:
    """Otherwise one step could go over by as many operations as it has in flight."""
    assert serial(budget) is expected


def test_time_is_the_span_of_recorded_readings() -> None:
    """The reading that the announcement would record decides with the first one; without a reading nothing does."""
    budget, counted = Budget(max_wallclock_s=60), ledger(started(1, clock_s=1_000))
    assert verdict(counted, budget, "effect", 1_059) is None
    assert verdict(counted, budget, "effect", 1_060) == Exhaustion(limit="max_wallclock_s", allowed=60, used=60)
    assert verdict(counted, budget, "effect") is None
    assert verdict(Ledger(), budget, "effect", 5_000) is None


def test_a_clock_that_is_set_back_gives_no_time_back() -> None:
    """The span is between the extremes, in whatever order they were read."""
    counted = ledger(started(1, clock_s=1_000), started(2, clock_s=1_050))
    assert counted.used("max_wallclock_s", 1_010) == 50
    assert counted.used("max_wallclock_s", 990) == 60


def test_the_ceilings_are_asked_in_one_order() -> None:
    """So that the same run names the same one, live and replayed; each question has those that bind it."""
    counted = ledger(
        started(1, clock_s=0),
        done(1, spend=Spend(tokens=1, minor_units=1)),
        make(StepStarted, 2, step=0, skill="a"),
    )
    order: dict[str, list[str]] = {"effect": [], "step": []}
    for what, named in order.items():
        over = dict.fromkeys(["max_steps", "max_effects", "max_tokens", "max_minor_units", "max_wallclock_s"], 1)
        while (found := verdict(counted, from_data(over), what, 9)) is not None:  # type: ignore[arg-type]
            named.append(found.limit)
            del over[found.limit]
    spent = ["max_tokens", "max_minor_units", "max_wallclock_s"]
    assert order == {"effect": ["max_effects", *spent], "step": ["max_steps", *spent]}


def test_every_ceiling_is_asked_by_something() -> None:
    """A ceiling that nothing is held against would be a promise; parallel steps are held by how many are taken."""
    asked = {name for names in ASKED.values() for name in names}
    assert asked | {"max_parallel_steps"} == set(MEMBERS)


def test_a_denial_is_survived_as_often_as_the_ceiling_says() -> None:
    """None at all under a ceiling of 0."""
    counted = Ledger()
    told = []
    for denials in range(3):
        counted.denials = denials
        told.append(verdict(counted, Budget(max_denials=2), "denial") is None)
    assert told == [True, True, False]
    assert verdict(Ledger(), Budget(max_denials=0), "denial") == Exhaustion(limit="max_denials", allowed=0, used=0)


@repeatable
@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.integers(0, 8))
def test_raising_readmits_exactly_what_the_new_ceiling_allows(steps: list[int], begun: int) -> None:
    """However often a ceiling is raised, as many attempts are announced as the last one says."""
    marks = [begun]
    for step in steps:
        marks.append(marks[-1] + step)
    budget, counted = Budget(max_effects=begun), Ledger()
    for low, high in pairwise(marks):
        while verdict(counted, budget, "effect") is None:
            counted.add(started(1))
        assert counted.effects == low
        budget = raised(budget, {"max_effects": high})
