"""Plans: their contract, their ready set, the requests of their steps, and their digest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentplane.core import bounds
from agentplane.core.plan import (
    BindFault,
    Frontier,
    Node,
    Plan,
    bind,
    complete,
    digest,
    faults,
    from_data,
    ready,
    single,
    terminal,
    to_data,
)

repeatable = settings(derandomize=True, database=None, deadline=None)
ANYTHING: Mapping[str, frozenset[str] | None] = {"c": None}


def step(number: int, *after: int, **members: Any) -> Node:
    whole: dict[str, Any] = {"id": number, "name": f"n{number}", "capability": "c", "after": after}
    return Node(**(whole | members))


def plan(*after: tuple[int, ...], terminals: tuple[int, ...] = (0,)) -> Plan:
    return Plan(nodes=tuple(step(at, *deps, terminal=at in terminals) for at, deps in enumerate(after)))


def said(faulty: Plan, provided: Mapping[str, frozenset[str] | None] = ANYTHING) -> list[str]:
    return [str(fault) for fault in faults(faulty, provided)]


def test_a_bare_capability_is_a_plan_of_one_terminal_step() -> None:
    """And nothing is wrong with it where the capability exists."""
    assert faults(single("refunds.issue"), {"refunds.issue": frozenset({"order"})}) == []
    assert terminal(single("refunds.issue")) == 0


AMOUNT = {"input": ["amount"]}


@pytest.mark.parametrize(
    ("faulty", "sentences"),
    [
        (plan((), terminals=()), ["no step is terminal"]),
        (Plan(nodes=()), ["no step is terminal"]),
        (plan((0,)), ["step 0 (n0) depends on itself"]),
        (plan((2,), (0,), (1,)), ["steps 0, 1, 2 depend on each other in a circle"]),
        (plan((1,), (0,), (1,), (2,), terminals=(3,)), [
            "steps 0, 1 depend on each other in a circle",
            "step 2 (n2) can never begin: it waits for step 1, which cannot",
            "step 3 (n3) can never begin: it waits for step 2, which cannot",
        ]),
        (plan((7,), (0,), terminals=(1,)), [
            "step 0 (n0) depends on step 7, which does not exist",
            "step 1 (n1) can never begin: it waits for step 0, which cannot",
        ]),
        (plan((), (), (1,)), [
            "step 1 (n1) leads to no terminal step, so nothing needs it",
            "step 2 (n2) leads to no terminal step, so nothing needs it",
        ]),
        (Plan(nodes=(step(2, terminal=True), step(1, terminal=True))),
            ["step 1 (n1) stands after step 2: steps stand in ascending id"]),
        (Plan(nodes=(step(1, terminal=True), step(1, terminal=True, name="other"))),
            ["step 1 (other) has the id of another step"]),
        (Plan(nodes=(step(1, terminal=True), step(2, terminal=True, name="n1"))),
            ["step 2 (n1) has the name of another step"]),
        (Plan(nodes=(step(-1, terminal=True),)), ["step -1 (n-1) needs an id from 0 to 4294967295"]),
        (Plan(nodes=(step(2**32, terminal=True),)), ["step 4294967296 (n4294967296) needs an id from 0 to 4294967295"]),
        (Plan(nodes=(step(0, terminal=True, name=""),)), ["step 0 () needs a name of 1 to 200 characters"]),
        (Plan(nodes=(step(0, terminal=True, capability="d"),)),
            ["step 0 (n0) needs the capability 'd', which is not provided"]),
        (Plan(nodes=(step(0, terminal=True, verifies=0),)),
            ["step 0 (n0) verifies step 0, which it does not depend on"]),
        (Plan(nodes=(step(0, terminal=True, verifies=9),)), ["step 0 (n0) verifies step 9, which does not exist"]),
        (Plan(nodes=(step(0, terminal=True), step(1, terminal=True, verifies=0))),
            ["step 1 (n1) verifies step 0, which it does not depend on"]),
        (Plan(nodes=(step(0, terminal=True), step(1, terminal=True, args={"a": {"node": 0}, "b": {"node": 5}}))),
            ["step 1 (n1) takes 'a' from step 0, which it does not depend on",
             "step 1 (n1) takes 'b' from step 5, which does not exist"]),
        (Plan(nodes=(step(0, terminal=True, args={"a": {}, "b": {"input": "x"}, "c": {"node": True}, "": AMOUNT}),)), [
            "step 0 (n0): the argument 'a' is bound to nothing: it needs an input, a node or a constant",
            "step 0 (n0): the argument 'b' has a path that is not a list of names and positions",
            "step 0 (n0): the argument 'c' names no step by its id",
            "step 0 (n0): the argument '' needs a name of 1 to 200 characters",
        ]),
        (Plan(nodes=(step(0, terminal=True, args={"a": {"input": [], "constant": 1}, "b": {"input": [-1]}}),)), [
            "step 0 (n0): the argument 'a' is bound to nothing: it needs an input, a node or a constant",
            "step 0 (n0): the argument 'b' has a path that is not a list of names and positions",
        ]),
        (Plan(nodes=(step(0, terminal=True, args={"a": {"input": ["x"] * 129}}),)),
            ["step 0 (n0): the argument 'a' has a path of 129 names, over the bound of 128"]),
        (Plan(nodes=(step(0, terminal=True, args={"a": {"constant": float("nan")}}),)),
            ["step 0 (n0): the argument 'a' is a constant that is not data: "
             "the value at the root is nan, which JSON cannot say"]),
    ],
)  # fmt: skip
def test_a_fault_is_a_sentence_that_names_its_step(faulty: Plan, sentences: list[str]) -> None:
    """A step that merely waits for a circle is not said to be in it, and nothing else is said."""
    assert said(faulty) == sentences


def test_every_fault_is_listed_and_those_of_the_whole_plan_come_first() -> None:
    """One look tells an author all that there is to correct; each says which step it is in."""
    faulty = Plan(
        nodes=(
            step(0, 8, capability="gone", args={}, verifies=9),
            step(1, 2),
            step(2, 1, name="n1", args={"amount": {"node": 0}}),
        )
    )
    found = faults(faulty, {"c": frozenset({"amount", "order"})})
    assert [fault.step for fault in found] == [None, 0, 0, 0, 1, 2, 2, 2]
    assert [str(fault) for fault in found] == [
        "no step is terminal",
        "step 0 (n0) depends on step 8, which does not exist",
        "step 0 (n0) needs the capability 'gone', which is not provided",
        "step 0 (n0) verifies step 9, which does not exist",
        "steps 1, 2 depend on each other in a circle",
        "step 2 (n1) has the name of another step",
        "step 2 (n1) binds no 'order', which c requires",
        "step 2 (n1) takes 'amount' from step 0, which it does not depend on",
    ]


def test_what_a_request_requires_is_bound_where_anything_is() -> None:
    """A step without arguments is given the run's input, which is judged when it comes."""
    wanting = {"c": frozenset({"amount"})}
    assert said(plan(()), wanting) == []
    assert said(Plan(nodes=(step(0, terminal=True, args={"amount": AMOUNT, "more": AMOUNT}),)), wanting) == []
    assert said(Plan(nodes=(step(0, terminal=True, args={}),)), wanting) == [
        "step 0 (n0) binds no 'amount', which c requires"
    ]


def test_a_source_or_a_subject_may_lie_further_up() -> None:
    """What must have finished before is enough, directly or not."""
    far = Plan(nodes=(step(0), step(1, 0), step(2, 1, terminal=True, args={"a": {"node": 0, "path": [0]}}, verifies=0)))
    assert said(far) == []


def test_a_plan_over_its_bound_is_not_looked_into() -> None:
    """What it costs to say so does not grow with what was sent."""
    over = Plan(nodes=tuple(step(0, 0) for _ in range(bounds.PLAN_NODES_MAX + 1)))
    assert said(over) == ["the plan has 10001 steps, over the bound of 10000"]


def test_a_plan_as_long_as_its_bound_is_read_without_recursion() -> None:
    """A chain of ten thousand steps, and the same closed to a circle, whose sentence stays short."""
    last = bounds.PLAN_NODES_MAX - 1
    chain = tuple(step(at, *([at - 1] if at else ()), terminal=at == last) for at in range(last + 1))
    assert faults(Plan(nodes=chain), ANYTHING) == []
    (circle,) = said(Plan(nodes=(step(0, last), *chain[1:])))
    assert circle == "steps 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 9990 more depend on each other in a circle"


graphs = st.integers(1, 7).flatmap(
    lambda n: st.tuples(
        st.tuples(*(st.sets(st.integers(0, n), max_size=3).map(tuple) for _ in range(n))),
        st.sets(st.integers(0, n - 1)),
        st.dictionaries(st.integers(0, n - 1), st.integers(0, n), max_size=3),
    )
)
Graph = tuple[tuple[tuple[int, ...], ...], set[int], dict[int, int]]


def above(after: Mapping[int, tuple[int, ...]], number: int) -> set[int]:
    """Every step that ``number`` depends on, found the slow way."""
    found: set[int] = set()
    while True:
        more = {dep for one in {number, *found} for dep in after.get(one, ()) if dep in after} - found
        if not more:
            return found
        found |= more


@repeatable
@given(graphs)
def test_the_contract_says_what_a_slow_reader_would_say(graph: Graph) -> None:
    """Circles, dead steps, needless steps and sources that come too late, on any graph."""
    deps, terminals, sources = graph
    after = dict(enumerate(deps))
    whole = Plan(
        nodes=tuple(
            step(at, *deps[at], terminal=at in terminals, args={"a": {"node": sources[at]}} if at in sources else None)
            for at in after
        )
    )
    found = said(whole)
    dead: set[int] = set()
    for _ in after:
        dead |= {at for at in after if dies(after, at, dead)}
    ring = {at for at in after if at in above(after, at)}
    missing = {at for at in after if any(dep not in after for dep in after[at])}
    told_dead = {at for at in after if any(text.startswith(f"step {at} (n{at}) can never begin") for text in found)}
    assert told_dead == dead - ring - missing
    rings = [text for text in found if "in a circle" in text or "depends on itself" in text]
    assert len(rings) == len({frozenset(above(after, at) & {o for o in ring if at in above(after, o)}) for at in ring})
    needed = terminals | {dep for one in terminals for dep in above(after, one)}
    told_needless = {at for at in after if f"step {at} (n{at}) leads to no terminal step, so nothing needs it" in found}
    assert told_needless == (set(after) - needed if terminals else set())
    told_late = {at for at in after if any(text.startswith(f"step {at} (n{at}) takes 'a'") for text in found)}
    assert told_late == {at for at, source in sources.items() if source not in above(after, at)}


def dies(after: Mapping[int, tuple[int, ...]], number: int, dead: set[int]) -> bool:
    return any(dep not in after or dep in dead for dep in after[number]) or number in above(after, number)


def test_ready_are_those_whose_dependencies_have_all_finished() -> None:
    """In ascending id, and nothing that has begun."""
    diamond = plan((), (0,), (0,), (1, 2), terminals=(3,))
    assert [n.id for n in ready(diamond, [], [])] == [0]
    assert [n.id for n in ready(diamond, [0], [0])] == [1, 2]
    assert [n.id for n in ready(diamond, [0, 2], [0, 1, 2])] == []
    assert [n.id for n in ready(diamond, [0, 1, 2], [0, 1, 2])] == [3]


def test_the_answer_is_the_lowest_terminals() -> None:
    """P16, S44: whatever order they end in."""
    assert terminal(plan((), (), (), terminals=(2, 1))) == 1


def test_success_means_that_every_terminal_ran() -> None:
    """And asks nothing of the steps before them: what is finished may have come from an earlier plan."""
    both = plan((), (), (), terminals=(2, 1))
    assert not complete(both, {0, 1}) and not complete(both, set())
    assert complete(both, {1, 2})


dags = st.integers(1, 8).flatmap(
    lambda n: st.tuples(*(st.sets(st.integers(0, max(0, i - 1)), max_size=i).map(tuple) for i in range(n)))
)


@repeatable
@given(dags)
def test_a_plan_without_faults_runs_to_its_end(after: tuple[tuple[int, ...], ...]) -> None:
    """Taking the ready set until it is empty runs every step, each after those it depends on."""
    inner = {dep for deps in after[1:] for dep in deps}
    whole = plan(
        *(deps if i else () for i, deps in enumerate(after)),
        terminals=tuple(at for at in range(len(after)) if at not in inner),
    )
    assert faults(whole, ANYTHING) == []
    finished: list[int] = []
    while batch := ready(whole, finished, finished):
        assert all(set(node.after) <= set(finished) for node in batch)
        finished += [node.id for node in batch]
    assert sorted(finished) == list(range(len(after)))


@repeatable
@given(dags, st.data())
def test_the_frontier_gives_each_step_once_as_soon_as_it_is_ready(
    after: tuple[tuple[int, ...], ...], data: st.DataObject
) -> None:
    """Whatever was finished before, however many are taken at once and in whatever order they end, what is out is what
    ``ready`` says."""
    whole = plan(*(deps if i else () for i, deps in enumerate(after)))
    finished: set[int] = set()
    for node in whole.nodes:
        if set(node.after) <= finished and data.draw(st.booleans()):
            finished.add(node.id)
    frontier = Frontier(whole, finished)
    begun, running = set(finished), []
    while True:
        limit = data.draw(st.none() | st.integers(1, 3))
        expected = [node.id for node in ready(whole, finished, begun)]
        assert len(frontier) == len(expected)
        taken = [node.id for node in frontier.take(limit)]
        assert taken == expected[:limit]
        begun.update(taken)
        running += taken
        if not running:
            break
        ended = running.pop(data.draw(st.integers(0, len(running) - 1)))
        finished.add(ended)
        frontier.done(ended)
        frontier.done(ended)
    assert begun == finished == {node.id for node in whole.nodes}


def test_a_steps_request_is_made_of_its_bindings() -> None:
    """The run's input, an upstream output, a constant; whole or a part, by name and by position."""
    node = step(
        3,
        1,
        args={
            "all": {"input": []},
            "amount": {"input": ["lines", 1, "amount"]},
            "hold": {"node": 1, "path": ["hold"]},
            "nothing": {"node": 1, "path": ["note"]},
            "limit": {"constant": {"max": [1]}},
        },
    )
    request = {"lines": [{"amount": 1}, {"amount": 2}]}
    assert bind(node, request, {1: {"hold": "h-1", "note": None}}) == {
        "all": request,
        "amount": 2,
        "hold": "h-1",
        "nothing": None,
        "limit": {"max": [1]},
    }
    assert bind(step(0), request, {}) == request
    assert bind(step(0, args={}), request, {}) == {}


def test_a_request_is_nobody_elses_data() -> None:
    """A skill that changes what it is given changes neither the run's input, nor an output, nor the plan."""
    node = step(1, 0, args={"in": {"input": []}, "out": {"node": 0}, "const": {"constant": [[]]}})
    request, output = {"a": [1]}, [{"b": 1}]
    bound: Any = bind(node, request, {0: output})
    bound["in"]["a"].append(2)
    bound["out"][0]["b"] = 2
    bound["const"][0].append(3)
    whole: Any = bind(step(0), request, {})
    whole["a"].append(4)
    assert (request, output) == ({"a": [1]}, [{"b": 1}])
    assert node.args is not None and node.args["const"] == {"constant": [[]]}


@pytest.mark.parametrize(
    ("binding", "path"),
    [
        ({"input": ["b"]}, "the run's input / b"),
        ({"input": ["a", 5]}, "the run's input / a / 5"),
        ({"input": ["a", "0"]}, "the run's input / a / 0"),
        ({"input": ["a", True]}, "the run's input / a / True"),
        ({"input": ["text", 0]}, "the run's input / text / 0"),
        ({"node": 0, "path": ["x", "y"]}, "the output of step 0 / x"),
        ({"node": 4}, "the output of step 4"),
    ],
)
def test_a_source_that_is_not_there_is_named(binding: dict[str, object], path: str) -> None:
    """Whose argument, and how far the path could be followed; text is not a list of letters."""
    with pytest.raises(BindFault) as caught:
        bind(step(7, args={"amount": binding}), {"a": [1, 2], "text": "abc"}, {0: {}})
    assert (caught.value.step, caught.value.path) == (7, path)
    assert str(caught.value) == f"step 7 takes its argument 'amount' from {path}, where there is nothing"


@repeatable
@given(dags)
def test_a_plan_survives_its_data_and_its_digest_is_its_own(after: tuple[tuple[int, ...], ...]) -> None:
    """What is frozen reads back equal, and another plan has another digest."""
    whole = plan(*(deps if i else () for i, deps in enumerate(after)))
    assert from_data(to_data(whole)) == whole
    assert digest(from_data(to_data(whole))) == digest(whole)
    assert digest(whole) != digest(Plan(version=2, nodes=whole.nodes))


def test_the_digest_of_the_first_plan_is_published() -> None:
    """S37: The layout under this domain name never changes, and members that came later cost an older plan nothing."""
    assert digest(single("refunds.issue")) == "8e11021ff30998ba261d5a4053ced4b1fa0ec4e6172aac9062a737c6009c957d"
    later = Plan(
        version=2,
        derived_from="ab" * 32,
        reason="supplier gone",
        nodes=(step(3, terminal=True, args={"a": {"input": ["x", 0]}, "b": {"constant": None}}, verifies=1),),
    )
    assert digest(later) == "c1e64a04359d2715673fdae7b296096ce80dfa618f0847b1b3bdda412a77e87d"


def test_other_shapes_are_refused() -> None:
    """A plan from outside has no unknown members."""
    with pytest.raises(msgspec.ValidationError):
        from_data({"nodes": [], "extra": 1})
