"""Plans: their contract, their ready set and their digest."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentplane.core.plan import Node, Plan, digest, faults, from_data, ready, single, terminal, to_data

repeatable = settings(derandomize=True, database=None, deadline=None)


def plan(*after: tuple[int, ...], terminals: tuple[int, ...] = (0,)) -> Plan:
    return Plan(
        nodes=tuple(
            Node(id=i, name=f"n{i}", capability="c", after=deps, terminal=i in terminals)
            for i, deps in enumerate(after)
        )
    )


def test_a_bare_capability_is_a_plan_of_one_terminal_step() -> None:
    """And nothing is wrong with it where the capability exists."""
    assert faults(single("refunds.issue"), ["refunds.issue"]) == []
    assert terminal(single("refunds.issue")) == 0


@pytest.mark.parametrize(
    ("faulty", "sentence"),
    [
        (plan((), terminals=()), "no step is terminal"),
        (Plan(nodes=()), "no step is terminal"),
        (plan((0,)), "steps 0 depend on each other in a circle"),
        (plan((2,), (0,), (1,)), "steps 0, 1, 2 depend on each other in a circle"),
        (plan((1,), (0,), (1,), ()), "steps 0, 1 depend on each other in a circle"),
        (plan((7,)), "step 0 depends on step 7, which does not exist"),
        (Plan(nodes=(Node(id=1, name="a", capability="c", terminal=True),)), "step ids are not dense from 0"),
        (
            Plan(nodes=(Node(id=0, name="a", capability="d", terminal=True),)),
            "step 0 needs the capability 'd', which is not provided",
        ),
    ],
)  # fmt: skip
def test_a_fault_is_a_sentence_that_names_its_steps(faulty: Plan, sentence: str) -> None:
    """A step that merely waits for a circle is not said to be in it."""
    assert sentence in faults(faulty, ["c"])


def test_ready_are_those_whose_dependencies_have_all_finished() -> None:
    """In ascending id, and nothing that has begun."""
    diamond = plan((), (0,), (0,), (1, 2), terminals=(3,))
    assert [n.id for n in ready(diamond, [], [])] == [0]
    assert [n.id for n in ready(diamond, [0], [0])] == [1, 2]
    assert [n.id for n in ready(diamond, [0, 2], [0, 1, 2])] == []
    assert [n.id for n in ready(diamond, [0, 1, 2], [0, 1, 2])] == [3]


def test_the_answer_is_the_lowest_terminals() -> None:
    """P16: whatever order they end in."""
    assert terminal(plan((), (), (), terminals=(2, 1))) == 1


dags = st.integers(1, 8).flatmap(
    lambda n: st.tuples(*(st.sets(st.integers(0, max(0, i - 1)), max_size=i).map(tuple) for i in range(n)))
)


@repeatable
@given(dags)
def test_a_plan_without_faults_runs_to_its_end(after: tuple[tuple[int, ...], ...]) -> None:
    """Taking the ready set until it is empty runs every step, each after those it depends on."""
    whole = plan(*(deps if i else () for i, deps in enumerate(after)), terminals=(len(after) - 1,))
    assert faults(whole, ["c"]) == []
    finished: list[int] = []
    while batch := ready(whole, finished, finished):
        assert all(set(node.after) <= set(finished) for node in batch)
        finished += [node.id for node in batch]
    assert sorted(finished) == list(range(len(after)))


@repeatable
@given(dags)
def test_a_plan_survives_its_data_and_its_digest_is_its_own(after: tuple[tuple[int, ...], ...]) -> None:
    """What is frozen reads back equal, and another plan has another digest."""
    whole = plan(*(deps if i else () for i, deps in enumerate(after)))
    assert from_data(to_data(whole)) == whole
    assert digest(from_data(to_data(whole))) == digest(whole)
    assert digest(whole) != digest(Plan(version=2, nodes=whole.nodes))


def test_the_digest_of_the_first_plan_is_published() -> None:
    """The layout under this domain name never changes."""
    assert digest(single("refunds.issue")) == DIGEST


DIGEST = "8e11021ff30998ba261d5a4053ced4b1fa0ec4e6172aac9062a737c6009c957d"


def test_other_shapes_are_refused() -> None:
    """A plan from outside has no unknown members."""
    with pytest.raises(msgspec.ValidationError):
        from_data({"nodes": [], "extra": 1})
